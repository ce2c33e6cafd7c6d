//! Cases that a cache of many hosts must stand, as an observer of mounts sees them, where no other file has them.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::wait;
use crate::fixture::{Hosts, object, publish};

/// Three times what memory holds is written on one host, whose disk takes it. Another host, which has room for a part of it, reads
/// all that is there, every byte compared.
#[test]
fn what_is_on_the_disk_of_another_host_is_read_whole() {
    let disk =
        tempfile::Builder::new().prefix("tidefs-ssd").tempdir_in("/var/tmp").expect("a directory on a disk");
    let hosts = Hosts::start_each(2, &["capacity=64MiB"], |host| match host {
        0 => vec![
            "ssd.capacity=512MiB".to_owned(),
            "ssd.zone=8MiB".to_owned(),
            "ssd.queue_ms=60000".to_owned(),
            format!("ssd.dirs={}", disk.path().display()),
        ],
        _ => Vec::new(),
    });
    let count = 48_u64;
    let bytes = |number: u64| object(number, (4 << 20) + usize::try_from(number).expect("small") * 37);
    // What leaves memory for want of room at once is dropped: this host gets the time to write it.
    let wait_for_room = || {
        let has_room = || {
            let usage = hosts.mounts[0].usage();
            usage.capacity - usage.used >= 12 << 20
        };
        assert!(wait::until(wait::HANG, has_room), "no room was made ahead of what comes");
    };
    for number in 0..count {
        publish(&hosts.mounts[0].join(format!("whole-0/{number}")), &bytes(number));
        wait_for_room();
    }
    assert!(hosts.metric(0, "tidefs_ssd_demotions_total") > 0, "nothing went to disk");
    // What its disk could not take in time was dropped; what is there is more than memory holds.
    let there: Vec<u64> =
        (0..count).filter(|number| hosts.mounts[0].join(format!("whole-0/{number}")).exists()).collect();
    assert!(there.len() > 20, "{there:?}");
    for &number in &there {
        let found = fs::read(hosts.mounts[1].join(format!("whole-0/{number}")));
        assert!(found.expect("it is on the other host") == bytes(number), "{number}");
        wait_for_room();
    }
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
    let left = (0..20).filter(|&number| path(0, number).exists()).count();
    assert_eq!(left, 0, "objects that were only looked at stayed in a cache that was filled four times over");
}
