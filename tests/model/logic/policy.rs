//! Policies of directories with many objects: changed in parts, between which others are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tidefs::datapath::Datapath;
use tidefs::namespace::Ino;

use super::caller;
use super::meanwhile::{Meanwhile, filled, meanwhile};

fn set(datapath: &Datapath, directory: Ino, policy: &str, value: Option<&str>) {
    let name = format!("user.tidefs.{policy}");
    match value {
        Some(value) => datapath.set_attribute(directory, name.as_bytes(), value.as_bytes(), None),
        None => datapath.remove_attribute(directory, name.as_bytes()),
    }
    .unwrap_or_else(|error| panic!("{policy}={value:?}: {error}"));
}

fn change(datapath: &Arc<Datapath>, top: Ino, policy: &str, value: Option<&str>) -> Meanwhile {
    meanwhile(datapath, top, || set(datapath, top, policy, value))
}

/// Policies that move objects to another order, rank them otherwise, and set when they expire.
const POLICIES: [(&str, &str); 4] =
    [("quota", "256MiB"), ("priority", "5"), ("ttl", "100000"), ("pin", "hard")];

#[test]
fn nobody_waits_for_a_change_of_policy_longer_than_for_a_part_of_it() {
    // Some 1,700 parts, after each of which whoever waits comes first. Without parts as many answers are given as fit into
    // the half of a millisecond after which a lock goes to who waits for it.
    let (logic, top) = filled(100_000);
    for (policy, value) in POLICIES {
        // Others may keep the machine from running the two at once, so one of some tries must do.
        for turn in [Some(value), None] {
            let is_shared = (0..10).any(|_| {
                set(logic.datapath(), top, policy, Some(value));
                if turn.is_some() {
                    set(logic.datapath(), top, policy, None);
                }
                change(logic.datapath(), top, policy, turn).answers >= 1000
            });
            assert!(is_shared, "others wait for all of it when {policy} becomes {turn:?}");
        }
        set(logic.datapath(), top, policy, Some(value));
        logic.datapath().check_domains();
    }
}

#[test]
#[ignore = "measures, and asserts nothing: run by hand, as docs/BENCHMARKING.md says under Longer runs"]
fn how_long_a_change_of_policy_lets_others_wait() {
    let (logic, top) = filled(500_000);
    for (policy, value) in POLICIES {
        let tries: Vec<_> = (0..6)
            .map(|round| change(logic.datapath(), top, policy, (round % 2 == 0).then_some(value)))
            .collect();
        let took = tries.iter().map(|one| one.took).max().unwrap_or_default();
        let mut waits: Vec<Duration> = tries.iter().map(|one| one.longest).collect();
        waits.sort_unstable();
        println!("{policy}: 550,000 objects took {took:?} at most, others waited {waits:?}");
    }
}

/// What a program does in two directories, again and again.
fn work(datapath: &Datapath, who: usize, directories: [Ino; 2], is_over: &AtomicBool) {
    let caller = caller(who);
    let mut number = 88_172_645_463_325_252_u64 + who as u64;
    let mut draw = |below: u64| {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        number % below
    };
    while !is_over.load(Ordering::Relaxed) {
        let (from, to) = (directories[usize::from(draw(2) == 0)], directories[usize::from(draw(2) == 0)]);
        let (name, other) = (format!("k{}", draw(2000)), format!("k{}", draw(4000)));
        // Whether there is such a name is left to chance.
        match draw(5) {
            0 => drop(datapath.unlink(&caller, from, name.as_bytes())),
            1 => drop(datapath.make_file(&caller, to, other.as_bytes(), 0o644)),
            2 => {
                let made = datapath.make_directory(&caller, to, b"new", 0o755);
                drop(made.and_then(|made| datapath.make_file(&caller, made.ino, name.as_bytes(), 0o644)));
                drop(datapath.rename(&caller, (to, b"new"), (from, b"moved"), false));
                drop(datapath.remove_directory(from, b"moved"));
            }
            _ => drop(datapath.rename(&caller, (from, name.as_bytes()), (to, other.as_bytes()), false)),
        }
    }
}

#[test]
fn a_change_of_policy_holds_for_what_is_made_moved_and_removed_meanwhile() {
    let (logic, top) = filled(2000);
    let datapath = logic.datapath();
    let below = datapath.make_directory(&caller(0), top, b"other", 0o755).expect("mkdir").ino;
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        for who in 1..3 {
            scope.spawn(move || work(datapath, who, [top, below], is_over));
        }
        for round in 0..6 {
            for (policy, value) in POLICIES {
                for (directory, turn) in [(top, 0), (below, 1)] {
                    let value = (round % 2 == turn).then_some(value);
                    if round > 0 || value.is_some() {
                        set(datapath, directory, policy, value);
                    }
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    datapath.check_domains();
    datapath.check_charges();
}
