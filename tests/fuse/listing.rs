//! Directories of very many names: listed in pieces with cookies that survive whatever comes and goes meanwhile.
//!
//! `TIDEFS_TEST_NAMES` sets the number of names of the large test (30,000 if unset; one million takes minutes).

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::errno::Errno;

use crate::common::modes::in_both_modes;
use crate::common::sys::{RawEntry, open_file, raw_batch, sorted_names};
use crate::common::{Mode, Mount, Peer, wait};
use crate::fixture::{kv, publish_object};

in_both_modes!(
    every_name_is_listed_once_with_any_size_of_buffer,
    a_saved_position_goes_on_where_it_was,
    a_position_survives_the_removal_of_everything_before_it,
    a_rewound_directory_shows_what_is_new,
    names_removed_while_listing_everything_are_all_removed,
    entries_say_what_they_are,
    a_removed_directory_that_is_open_lists_nothing,
    a_listing_shows_sealed_objects_and_no_hidden_ones,
    what_was_closed_before_a_listing_is_in_it,
    a_file_whose_descriptor_was_inherited_is_not_listed_and_holds_no_listing_up,
);

/// Opens a directory and reads it to its end in pieces.
fn list(directory: &Path, buffer_bytes: usize) -> Vec<RawEntry> {
    let descriptor = open_file(directory, libc::O_RDONLY | libc::O_DIRECTORY).expect("open");
    let mut entries = Vec::new();
    while let Some(batch) = raw_batch(&descriptor, buffer_bytes).expect("getdents64") {
        assert!(!batch.is_empty());
        entries.extend(batch);
    }
    entries.retain(|entry| entry.name != b"." && entry.name != b"..");
    entries
}

fn names(entries: &[RawEntry]) -> HashMap<Vec<u8>, usize> {
    let mut counts = HashMap::new();
    for entry in entries {
        *counts.entry(entry.name.clone()).or_default() += 1;
    }
    counts
}

/// Makes empty files `k0` to `k<count - 1>`.
fn fill(directory: &Path, count: usize) {
    for index in 0..count {
        File::create(directory.join(format!("k{index}"))).expect("create");
    }
}

fn every_name_is_listed_once_with_any_size_of_buffer(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fill(&kv, 3000);
    for buffer_bytes in [300, 1000, 4096, 32_768, 1 << 20] {
        let counts = names(&list(&kv, buffer_bytes));
        assert_eq!(counts.len(), 3000, "with a buffer of {buffer_bytes}");
        assert!(counts.values().all(|count| *count == 1), "a name twice with a buffer of {buffer_bytes}");
    }
    let mut other = Peer::spawn();
    assert!(wait::until(wait::HANG, || other.list(&kv).expect("list").len() == 3000), "by another process");
}

/// Once: how bytes are served is no matter to a listing, and so many names take long to make.
#[test]
fn names_that_stay_are_listed_once_while_others_come_and_go() {
    let count = std::env::var("TIDEFS_TEST_NAMES").ok().and_then(|text| text.parse().ok()).unwrap_or(30_000);
    let mount = Mount::start(&Mode::Passthrough.options(&["capacity=4GiB"]));
    let kv = mount.namespace("kv");
    fill(&kv, count);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            let mut round = 0_u64;
            while !done.load(Ordering::Relaxed) {
                let path = kv.join(format!("churn{}", round % 500));
                if fs::remove_file(&path).is_err() {
                    File::create(&path).expect("create");
                }
                round += 1;
            }
        });
        for buffer_bytes in [32_768, 4096] {
            let start = Instant::now();
            let counts = names(&list(&kv, buffer_bytes));
            println!("{} names listed in {:?}", counts.len(), start.elapsed());
            for index in 0..count {
                let name = format!("k{index}");
                assert_eq!(counts.get(name.as_bytes()), Some(&1), "{name} with a buffer of {buffer_bytes}");
            }
            let strangers =
                counts.keys().filter(|name| !name.starts_with(b"k") && !name.starts_with(b"churn"));
            assert_eq!(strangers.count(), 0);
            let twice = counts.values().filter(|count| **count > 2).count();
            assert_eq!(twice, 0, "a name that went and came may be listed twice, not more often");
        }
        done.store(true, Ordering::Relaxed);
        churn.join().expect("the churn ends well");
    });
}

/// The most memory that a process ever had, and what it has, in KiB (proc_pid_status(5)).
fn resident_kib(pid: nix::unistd::Pid) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon lives");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field of status");
        line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number of KiB")
    };
    (field("VmHWM:"), field("VmRSS:"))
}

#[test]
fn a_listing_takes_no_memory_for_its_names() {
    let (mount, kv) = kv(Mode::Passthrough);
    fill(&kv, 50_000);
    // The daemon hears of closes one after the other, and until then there is more to do than the listing.
    mount.wait_until_closed([kv.join("k49999")]);
    // Once before, so that what is kept of each thread is there.
    assert_eq!(list(&kv, 32_768).len(), 50_000);
    // 5 starts the peak anew (proc_pid_clear_refs(5)).
    fs::write(format!("/proc/{}/clear_refs", mount.pid()), "5").expect("root may");
    let (_, before) = resident_kib(mount.pid());
    assert_eq!(list(&kv, 32_768).len(), 50_000);
    let (peak, _) = resident_kib(mount.pid());
    let grown = peak.saturating_sub(before);
    // Names and attributes of all 50,000 at once would be 5 MiB and more.
    assert!(grown < 2048, "a listing of 50,000 names took {grown} KiB beside {before}");
}

/// Moves the position of an open directory.
fn seek(directory: &impl AsRawFd, cookie: i64) {
    // SAFETY: a system call on an open descriptor.
    let place = unsafe { libc::lseek(directory.as_raw_fd(), cookie, libc::SEEK_SET) };
    Errno::result(place).expect("lseek of a directory");
}

fn a_saved_position_goes_on_where_it_was(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fill(&kv, 2000);
    let directory = open_file(&kv, libc::O_RDONLY | libc::O_DIRECTORY).expect("open");
    let mut all: Vec<RawEntry> = Vec::new();
    while let Some(batch) = raw_batch(&directory, 4096).expect("getdents64") {
        all.extend(batch);
    }
    let cookies: BTreeSet<_> = all.iter().map(|entry| entry.cookie).collect();
    assert_eq!(cookies.len(), all.len(), "every entry has a cookie of its own");
    for position in [0, 1, 2, 50, 777, 1500, 2000] {
        seek(&directory, all[position].cookie);
        let next = raw_batch(&directory, 4096).expect("getdents64").expect("not the end");
        assert_eq!(next[0].name, all[position + 1].name, "after entry {position}");
    }
    seek(&directory, all.last().expect("not empty").cookie);
    assert_eq!(raw_batch(&directory, 4096).expect("getdents64"), None, "after the last entry");
}

fn a_position_survives_the_removal_of_everything_before_it(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fill(&kv, 2000);
    let directory = open_file(&kv, libc::O_RDONLY | libc::O_DIRECTORY).expect("open");
    let mut before: Vec<RawEntry> = Vec::new();
    while before.len() < 1000 {
        before.extend(raw_batch(&directory, 2000).expect("getdents64").expect("not the end"));
    }
    for entry in before.iter().filter(|entry| entry.name.starts_with(b"k")) {
        let name = std::str::from_utf8(&entry.name).expect("ASCII");
        fs::remove_file(kv.join(name)).expect("unlink");
    }
    let mut after: Vec<RawEntry> = Vec::new();
    while let Some(batch) = raw_batch(&directory, 2000).expect("getdents64") {
        after.extend(batch);
    }
    let expected = sorted_names(&kv);
    let mut found: Vec<_> =
        after.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
    found.retain(|name| name != "." && name != "..");
    found.sort();
    assert_eq!(found, expected, "what was left is listed, once");
}

fn a_rewound_directory_shows_what_is_new(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fill(&kv, 10);
    let directory = open_file(&kv, libc::O_RDONLY | libc::O_DIRECTORY).expect("open");
    let count = |directory| {
        let mut count = 0;
        while let Some(batch) = raw_batch(directory, 4096).expect("getdents64") {
            count += batch.iter().filter(|entry| entry.name.starts_with(b"k")).count();
        }
        count
    };
    assert_eq!(count(&directory), 10);
    publish_object(&kv.join("knew"), 1, 100);
    fs::remove_file(kv.join("k3")).expect("unlink");
    fs::remove_file(kv.join("k4")).expect("unlink");
    seek(&directory, 0);
    assert_eq!(count(&directory), 9);
}

fn names_removed_while_listing_everything_are_all_removed(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::create_dir(kv.join("dir")).expect("mkdir");
    fill(&kv.join("dir"), 5000);
    // As `rm -r` and shutil.rmtree do: remove while the same listing goes on.
    for entry in fs::read_dir(kv.join("dir")).expect("list") {
        fs::remove_file(entry.expect("entry").path()).expect("unlink");
    }
    fs::remove_dir(kv.join("dir")).expect("nothing is left");
    fs::create_dir(kv.join("tree")).expect("mkdir");
    for index in 0..50 {
        fs::create_dir_all(kv.join(format!("tree/{}/{index}", index % 5))).expect("mkdir");
        publish_object(&kv.join(format!("tree/{}/{index}/key", index % 5)), index, 100);
    }
    fs::remove_dir_all(kv.join("tree")).expect("rm -r");
    assert_eq!(sorted_names(&kv), Vec::<String>::new());
}

fn entries_say_what_they_are(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::create_dir(kv.join("dir")).expect("mkdir");
    publish_object(&kv.join("file"), 1, 100);
    let directory = open_file(&kv, libc::O_RDONLY | libc::O_DIRECTORY).expect("open");
    let first = raw_batch(&directory, 4096).expect("getdents64").expect("entries");
    let dots = first.iter().filter(|entry| entry.name == b"." || entry.name == b"..");
    assert_eq!(dots.map(|entry| entry.kind).collect::<Vec<_>>(), [libc::DT_DIR; 2]);
    let entries = list(&kv, 4096);
    let kind = |name: &[u8]| entries.iter().find(|entry| entry.name == name).expect("listed").kind;
    assert_eq!((kind(b"dir"), kind(b"file")), (libc::DT_DIR, libc::DT_REG));
    for entry in &entries {
        let name = std::str::from_utf8(&entry.name).expect("ASCII");
        let facts = fs::metadata(kv.join(name)).expect("stat");
        assert_eq!(std::os::unix::fs::MetadataExt::ino(&facts), entry.inode, "{name}");
    }
}

fn a_removed_directory_that_is_open_lists_nothing(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::create_dir(kv.join("dir")).expect("mkdir");
    let directory = open_file(&kv.join("dir"), libc::O_RDONLY | libc::O_DIRECTORY).expect("open");
    fs::remove_dir(kv.join("dir")).expect("rmdir");
    match raw_batch(&directory, 4096) {
        Ok(None) | Err(Errno::ENOENT) => {}
        Ok(Some(batch)) => {
            assert!(batch.iter().all(|entry| entry.name == b"." || entry.name == b".."), "{batch:?}");
        }
        Err(error) => panic!("{error}"),
    }
}

fn a_listing_shows_sealed_objects_and_no_hidden_ones(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let mut open = Vec::new();
    for index in 0..20 {
        let file = File::create(kv.join(format!("k{index:02}"))).expect("create");
        if index % 2 == 0 {
            open.push(file);
        }
    }
    let visible: Vec<_> =
        (0..20).filter(|index| index % 2 == 1).map(|index| format!("k{index:02}")).collect();
    assert_eq!(other.list(&kv).expect("list"), visible, "exactly what was closed is listed");
    drop(open);
    assert_eq!(other.list(&kv).expect("list").len(), 20, "all are closed");
}

fn what_was_closed_before_a_listing_is_in_it(mode: Mode) {
    const WRITERS: usize = 4;
    const FILES: usize = 150;
    let (_mount, kv) = kv(mode);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let directory = kv.join(format!("d{writer}"));
            fs::create_dir(&directory).expect("a directory");
            scope.spawn(move || {
                let mut other = Peer::spawn();
                for index in 0..FILES {
                    fs::write(directory.join(format!("k{index}")), [7; 9000]).expect("write");
                    let listed = other.list(&directory).expect("list").len();
                    assert_eq!(listed, index + 1, "k{index} is closed and not listed");
                }
            });
        }
    });
}

/// As long as a descriptor is left, of this process or of a child that inherited it, the file may be written.
fn a_file_whose_descriptor_was_inherited_is_not_listed_and_holds_no_listing_up(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let file = File::create(kv.join("inherited")).expect("create");
    let second = file.try_clone().expect("a second descriptor");
    publish_object(&kv.join("whole"), 1, 5000);
    drop(file);
    for _ in 0..3 {
        let started = Instant::now();
        assert_eq!(other.list(&kv).expect("list"), ["whole"]);
        assert!(started.elapsed() < wait::HANG, "a listing waits for a close that does not come");
    }
    drop(second);
    assert_eq!(other.list(&kv).expect("list"), ["inherited", "whole"]);
}
