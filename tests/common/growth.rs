//! What a daemon holds, and whether that grows over a run.

use std::fs;

use super::Mount;

/// What tables and the allocator may keep beyond what they had in the first half of a run.
const MEMORY_GROWTH_MAX: u64 = 24 << 20;
const DESCRIPTOR_GROWTH_MAX: usize = 24;

/// What a daemon holds at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// Anonymous memory, in bytes.
    pub(crate) memory: u64,
    /// Open descriptors.
    pub(crate) descriptors: usize,
}

impl Held {
    /// What the daemon of `mount` holds now.
    #[track_caller]
    pub(crate) fn by(mount: &Mount) -> Self {
        let pid = mount.pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status of the daemon");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line of it");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").count();
        Self { memory: kib << 10, descriptors }
    }

    /// The most of each.
    fn most(samples: &[Self]) -> Self {
        let memory = samples.iter().map(|held| held.memory).max().unwrap_or_default();
        let descriptors = samples.iter().map(|held| held.descriptors).max().unwrap_or_default();
        Self { memory, descriptors }
    }
}

/// Fails when the last quarter of a run holds more than its first half. Prints both.
#[track_caller]
pub(crate) fn expect_none(samples: &[Held]) {
    let quarter = samples.len() / 4;
    let (before, after) =
        (Held::most(&samples[..2 * quarter]), Held::most(&samples[samples.len() - quarter..]));
    println!(
        "memory {} -> {} MiB, descriptors {} -> {}",
        before.memory >> 20,
        after.memory >> 20,
        before.descriptors,
        after.descriptors
    );
    assert!(after.memory <= before.memory + MEMORY_GROWTH_MAX, "memory grew: {before:?}, then {after:?}");
    let most = before.descriptors + DESCRIPTOR_GROWTH_MAX;
    assert!(after.descriptors <= most, "descriptors grew: {before:?}, then {after:?}");
}
