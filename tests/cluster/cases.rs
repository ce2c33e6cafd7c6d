//! Cases that a cache of many hosts must stand, as an observer of mounts sees them, where no other file has them.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::wait;
use crate::fixture::{Hosts, object, publish};

const WRITTEN: u64 = 48;

fn bytes(number: u64) -> Vec<u8> {
    object(number, (4 << 20) + usize::try_from(number).expect("small") * 37)
}

/// Two hosts, of which the first has a disk, with three times what memory holds written on that; and the numbers of what is there.
struct OnDisk {
    hosts: Hosts,
    there: Vec<u64>,
    _disk: tempfile::TempDir,
}

impl OnDisk {
    fn new() -> Self {
        let disk = tempfile::Builder::new()
            .prefix("tidefs-ssd")
            .tempdir_in("/var/tmp")
            .expect("a directory on a disk");
        let hosts = Hosts::start_each(2, &["capacity=64MiB"], |host| match host {
            0 => vec![
                "ssd.capacity=512MiB".to_owned(),
                "ssd.zone=8MiB".to_owned(),
                "ssd.queue_ms=60000".to_owned(),
                "ssd.free_ahead=8MiB".to_owned(),
                format!("ssd.dirs={}", disk.path().display()),
            ],
            _ => Vec::new(),
        });
        let mut written = Self { hosts, there: Vec::new(), _disk: disk };
        for number in 0..WRITTEN {
            publish(&written.path(0, number), &bytes(number));
            written.wait_for_room();
        }
        assert!(written.hosts.metric(0, "tidefs_ssd_demotions_total") > 0, "nothing went to disk");
        // What its disk could not take in time was dropped; what is there is more than memory holds.
        written.there = (0..WRITTEN).filter(|&number| written.path(0, number).exists()).collect();
        assert!(written.there.len() > 20, "{:?}: {:?}", written.there, written.facts());
        written
    }

    fn path(&self, host: usize, number: u64) -> PathBuf {
        self.hosts.mounts[host].join(format!("whole-0/{number}"))
    }

    /// What the host with the disk did with its objects, for the message of a failure.
    fn facts(&self) -> Vec<(&'static str, u64)> {
        [
            "evictions",
            "ssd_demotions",
            "ssd_promotions",
            "ssd_promotion_misses",
            "ssd_refusals",
            "surprise_growth_bytes",
        ]
        .map(|name| (name, self.hosts.metric(0, &format!("tidefs_{name}_total"))))
        .to_vec()
    }

    /// What leaves memory for want of room at once is dropped: the host with the disk gets the time to write it, until there
    /// is room for an object beside what is kept free for writers, a quarter of the capacity.
    fn wait_for_room(&self) {
        // Not what statfs says, which counts the disk.
        let has_room = || self.hosts.metric(0, "tidefs_free_bytes") >= 22 << 20;
        assert!(
            wait::until(wait::HANG, has_room),
            "no room was made ahead of what comes: {:?}",
            self.facts()
        );
    }
}

/// Another host, which has room for a part of it, reads all that is there, every byte compared. The catalog knows what is on the
/// disk, and what came back from it.
#[test]
fn what_is_on_the_disk_of_another_host_is_read_whole() {
    let written = OnDisk::new();
    let lies = |number: u64, medium: &str| {
        let copies = written.hosts.copies(1, &format!("whole-0/{number}"));
        copies.get("host-0").is_some_and(|found| found == medium)
    };
    let mut first = None;
    let is_any_told = || {
        first = written.there.iter().copied().find(|&number| lies(number, "ssd"));
        first.is_some()
    };
    assert!(wait::until(wait::HANG, is_any_told), "nobody is told that something is on the disk");
    let first = first.expect("it was found");
    assert!(fs::read(written.path(1, first)).expect("it is there") == bytes(first));
    assert!(wait::until(wait::HANG, || lies(first, "memory")), "nobody is told that it came back");
    for &number in &written.there {
        let found = fs::read(written.path(1, number));
        let found = found
            .unwrap_or_else(|error| panic!("{number} is on the other host: {error}; {:?}", written.facts()));
        assert!(found == bytes(number), "{number}");
        written.wait_for_room();
    }
}

/// The owner dies while another host reads: each further read is the right bytes or a miss, and no other error.
#[test]
fn what_is_on_the_disk_of_a_host_that_dies_meanwhile_is_a_miss_at_most() {
    let mut written = OnDisk::new();
    let (mut paths, there) = (Vec::new(), std::mem::take(&mut written.there));
    paths.extend(there.iter().map(|&number| (number, written.path(1, number))));
    let has_begun = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..4)
            .map(|part| {
                let (paths, has_begun) = (&paths, &has_begun);
                scope.spawn(move || {
                    for (number, path) in paths.iter().skip(part).step_by(4) {
                        match fs::read(path) {
                            Ok(found) => assert!(found == bytes(*number), "{number}"),
                            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{number}: {error}"),
                        }
                        has_begun.store(true, Ordering::Release);
                    }
                })
            })
            .collect();
        assert!(wait::until(wait::HANG, || has_begun.load(Ordering::Acquire)));
        written.hosts.mounts[0].kill9();
        readers.into_iter().for_each(|reader| reader.join().expect("all reads are whole or misses"));
    });
}

/// A host asks for the attributes of another one's objects all the time. That holds nothing: four times the memory of the other one
/// is written without an error, and what is oldest leaves.
#[test]
fn what_another_host_only_looks_at_leaves_all_the_same() {
    let hosts = Hosts::start(2, &["capacity=32MiB"]);
    let path = |host: usize, number: u64| hosts.mounts[host].join(format!("whole-0/{number}"));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                for number in 0..20 {
                    // Whether it is there is no matter: it is looked at.
                    let _ = fs::metadata(path(1, number));
                    let _ = fs::metadata(path(0, number));
                }
            }
        });
        for number in 0..128 {
            publish(&path(0, number), &object(number, 1 << 20));
        }
        is_over.store(true, Ordering::Release);
    });
    let usage = hosts.mounts[0].usage();
    assert!(usage.used <= usage.capacity, "{usage:?}");
    assert_eq!(fs::read(path(1, 127)).expect("the last one"), object(127, 1 << 20));
    // The kernel, which knows them, is told of an eviction a moment after it.
    let are_gone = || (0..20).all(|number| !path(0, number).exists());
    assert!(
        wait::until(wait::HANG, are_gone),
        "objects that were only looked at stayed in a cache that was filled four times over"
    );
}

#[test]
fn why_names_who_holds_what_was_not_looked_up_here_and_says_of_nothing_that_nobody_wrote_it() {
    let hosts = Hosts::start(2, &[]);
    publish(&hosts.mounts[0].join("whole-0/held"), b"bytes");
    let why = |name: &str| {
        let told = hosts.mounts[1].control_get(&format!("/v1/why?path=whole-0/{name}")).json();
        (told["verdict"].clone(), told["explanation"].as_str().unwrap_or_default().to_owned())
    };
    let (verdict, explanation) = why("held");
    assert_eq!(verdict["kind"], "elsewhere", "{verdict}");
    assert_eq!(verdict["held_by"].as_array().map(Vec::len), Some(1), "{verdict}");
    assert!(explanation.contains("is held by"), "{explanation}");
    let (verdict, explanation) = why("nowhere");
    assert_eq!((&verdict["kind"], &verdict["of_several_hosts"]), (&"never_written".into(), &true.into()));
    assert!(explanation.contains("on this host"), "{explanation}");
}
