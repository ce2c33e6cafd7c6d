//! Reading sysfs: values, lists of numbers, NUMA nodes.

use std::fs;
use std::path::Path;

use super::Node;
use crate::types::{ByteCount, NumaNode};

/// The text of a file without the spaces around it, or `None` when it cannot be read.
pub(super) fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The names in a folder, sorted; none when it cannot be read.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// More numbers than this in one list are no list that a kernel writes.
const LIST_MAX: u32 = 1 << 16;

/// Reads a list of numbers as the kernel writes it: `0-3,8`.
pub(super) fn list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for range in text.split(',').map(str::trim).filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last >= LIST_MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// The NUMA nodes, by number.
pub(super) fn nodes(root: &Path) -> Vec<Node> {
    let folder = root.join("devices/system/node");
    let number = |name: String| name.strip_prefix("node")?.parse::<u32>().ok();
    let mut numbers: Vec<u32> = names(&folder).into_iter().filter_map(number).collect();
    numbers.sort_unstable();
    let node = |number: &u32| {
        let folder = folder.join(format!("node{number}"));
        let cpus = text(&folder.join("cpulist")).and_then(|text| list(&text)).unwrap_or_default();
        // A row of distances has one column for each node that is online, in their order.
        let row = text(&folder.join("distance")).unwrap_or_default();
        let row: Option<Vec<u32>> = row.split_whitespace().map(|column| column.parse().ok()).collect();
        let row = row.filter(|row| row.len() == numbers.len()).unwrap_or_default();
        let distances = numbers.iter().map(|number| NumaNode(*number)).zip(row).collect();
        let memory = text(&folder.join("meminfo")).and_then(|text| memory_of(&text));
        Node { id: NumaNode(*number), cpus, memory, distances }
    };
    numbers.iter().map(node).collect()
}

/// `Node 0 MemTotal:       65808252 kB`, among other lines.
fn memory_of(meminfo: &str) -> Option<ByteCount> {
    let line = meminfo.lines().find(|line| line.contains("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().rev().nth(1)?.parse().ok()?;
    Some(ByteCount(kib.checked_mul(1024)?))
}
