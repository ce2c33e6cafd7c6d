//! Cases that a cache of many hosts must stand, as an observer of mounts sees them, where no other file has them.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::fixture::{Hosts, object, publish};

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
