//! Hosts that join, crash, come back and leave, one after the other, beside two that stay: programs on those find right bytes all the
//! time, and what their daemons hold does not grow.
//!
//! 4 seconds, or `TIDEFS_TEST_SECONDS`: `packaging/dev.sh soak cluster` runs 20 minutes.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::common::growth::{self, Held};
use crate::common::{Mount, pattern, wait};
use crate::fixture::{Hosts, object, publish};

/// Hosts that stay.
const STAY: usize = 2;
/// Names of each of their programs.
const NAMES: u64 = 200;
/// Objects of a host that comes.
const BROUGHT: u64 = 20;
/// Fewer hosts that came say nothing about growth.
const COME_MIN: u64 = 2;

fn length_of_run() -> Duration {
    let told = std::env::var("TIDEFS_TEST_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(told.unwrap_or(4))
}

/// Writes, reads and removes names of its own, reads those of others, and counts what it read.
fn work(mount: &Path, worker: u64, reads: &AtomicU64, is_over: &AtomicBool) {
    let mut random = SmallRng::seed_from_u64(worker);
    let path = |worker: u64, name: u64| mount.join(format!("whole-0/{worker}-{name}"));
    let mut next = worker << 40;
    while !is_over.load(Ordering::Relaxed) {
        let name = random.random_range(0..NAMES);
        match random.random_range(0..10) {
            0..3 => {
                next += 1;
                publish(&path(worker, name), &object(next, random.random_range(1000..100_000)));
            }
            // What is gone already is fine.
            3 => drop(fs::remove_file(path(worker, name))),
            _ => match fs::read(path(random.random_range(0..STAY as u64), name)) {
                Ok(found) => {
                    pattern::verify_object(&found).expect("whole and of one version");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}: not a miss"),
            },
        }
    }
}

/// What a host that came holds is read by one that stays, every byte compared.
#[track_caller]
fn bring(guest: &Mount, stays: &Mount, number: u64) {
    let name = |object: u64| format!("whole-0/guest-{object}");
    assert!(wait::until(wait::HANG, || guest.join("whole-0").is_dir()), "host {number} does not join");
    for brought in 0..BROUGHT {
        let bytes = object((number << 20) + brought, 30_000);
        publish(&guest.join(name(brought)), &bytes);
        let there = stays.join(name(brought));
        let is_found = || fs::read(&there).is_ok_and(|found| found == bytes);
        assert!(wait::until(wait::HANG, is_found), "host {number} brought {brought} in vain");
    }
}

#[test]
fn hosts_that_come_crash_and_leave_cost_those_that_stay_nothing() {
    let options = ["on_stop=keep", "cluster.patience_ms=2000", "capacity=64MiB"];
    let mut hosts = Hosts::start(STAY, &options);
    let folders: Vec<_> = hosts.mounts.iter().map(|mount| mount.path().to_owned()).collect();
    let (reads, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let (mut come, mut samples) = (0, vec![Vec::new(); STAY]);
    let over = Instant::now() + length_of_run();
    thread::scope(|scope| {
        for (worker, folder) in (0..).zip(&folders) {
            let (reads, is_over) = (&reads, &is_over);
            scope.spawn(move || work(folder, worker, reads, is_over));
        }
        let _over = Over(&is_over);
        while Instant::now() < over || come < COME_MIN {
            hosts.add(&options);
            let mut guest = hosts.mounts.pop().expect("it was added");
            bring(&guest, &hosts.mounts[0], come);
            if come.is_multiple_of(2) {
                guest.kill9();
            }
            if come.is_multiple_of(4) {
                // Its next start is a member again.
                guest.start_daemon();
                bring(&guest, &hosts.mounts[1], come);
            }
            drop(guest);
            come += 1;
            for (samples, mount) in samples.iter_mut().zip(&hosts.mounts) {
                samples.push(Held::by(mount));
            }
        }
    });
    println!("{come} hosts came and went, {} objects were read beside them", reads.load(Ordering::Relaxed));
    samples.iter().for_each(|samples| growth::expect_none(samples));
    assert!(reads.load(Ordering::Relaxed) > 0, "nothing was read");
}

/// Ends the programs when it is dropped, also when a host did not come.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
