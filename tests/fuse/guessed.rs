//! Room that is reserved on a guess of a file's size: a wrong one costs others nothing, and many at once take a part.
//!
//! Nothing is guessed where the daemon serves the writers.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::common::sys::{set_xattr, sorted_names};
use crate::common::{Mode, Mount, kernel, pattern};
use crate::fixture::{MIB, kv_with, offset, publish_object};
use crate::ioctl::metric;

const CAPACITY_MIB: usize = 128;
/// As large as an object may be that is expected again: an eighth of the capacity.
const LARGE: usize = 16 * MIB;

fn cache() -> (Mount, PathBuf) {
    let capacity = format!("capacity={CAPACITY_MIB}MiB");
    kv_with(Mode::Passthrough, &[&capacity, "memory.write_headroom=4MiB", "runtime.deadline_ms=2000"])
}

/// Publishes so many objects of 1 MiB.
fn fill(directory: &Path, count: usize) {
    (0..count).for_each(|index| publish_object(&directory.join(format!("k{index}")), offset(index), MIB));
}

/// Creates temporary files, writes two bytes to each, and keeps them open.
fn idle_writers(directory: &Path, count: usize) -> Vec<File> {
    let writers = (0..count).map(|index| {
        let mut file = File::create(directory.join(format!("idle{index}.tmp"))).expect("create");
        file.write_all(b"hi").expect("two bytes find room");
        file
    });
    writers.collect()
}

#[test]
fn files_that_are_not_what_was_there_before_evict_nothing() {
    let (mount, kv) = cache();
    let other = mount.namespace("other");
    publish_object(&other.join("large"), 1, LARGE);
    fill(&kv, 90);
    let idle = idle_writers(&other, 8);
    assert_eq!(sorted_names(&kv).len(), 90, "objects beside eight files of two bytes");
    // And there is room for others.
    publish_object(&kv.join("next"), 7, MIB);
    assert_eq!(pattern::verify_object(&fs::read(kv.join("next")).expect("read")), Ok(7));
    assert!(sorted_names(&kv).len() >= 90, "objects beside eight files of two bytes");
    drop(idle);
}

#[test]
fn files_that_were_expected_larger_evict_a_part_of_the_cache_at_most() {
    let (mount, kv) = cache();
    let other = mount.namespace("other");
    for index in 0..4 {
        publish_object(&other.join("large"), index, LARGE);
    }
    fill(&kv, 100);
    let idle = idle_writers(&other, 8);
    let left = sorted_names(&kv).len();
    assert!(left >= 100 - CAPACITY_MIB / 4, "{left} of 100 objects beside eight files of two bytes");
    drop(idle);
}

#[test]
fn files_that_were_expected_larger_evict_a_part_of_a_quota_at_most() {
    let (mount, _) = cache();
    let limited = mount.namespace("limited");
    set_xattr(&limited, "user.tidefs.quota", b"64MiB").expect("setxattr");
    let other = limited.join("other");
    fs::create_dir(&other).expect("mkdir");
    for index in 0..4 {
        publish_object(&other.join("large"), index, LARGE);
    }
    fill(&limited, 44);
    let idle = idle_writers(&other, 8);
    let left = sorted_names(&limited).iter().filter(|name| name.starts_with('k')).count();
    assert!(left >= 44 - 16, "{left} of 44 objects beside eight files of two bytes");
    drop(idle);
}

#[test]
fn what_was_written_of_a_guess_is_none() {
    let (mount, kv) = cache();
    let copied = || metric(&mount, "tidefs_copied_bytes_total");
    // The cache is full, and it is known how large objects are.
    fill(&kv, CAPACITY_MIB + 8);
    let before = copied();
    // All that is guessed at one time is a quarter of the capacity; what is renamed is no guess any more, though its writer
    // keeps it open.
    let kept: Vec<File> = (0..CAPACITY_MIB / 2)
        .map(|index| {
            let temporary = kv.join(format!("kept{index}.tmp"));
            let mut file = File::create(&temporary).expect("create");
            file.write_all(&pattern::object(offset(index), MIB)).expect("write");
            fs::rename(&temporary, kv.join(format!("kept{index}"))).expect("rename");
            file
        })
        .collect();
    if kernel::has_fast_path() {
        assert_eq!(copied(), before, "bytes that the daemon wrote for them");
    }
    drop(kept);
}
