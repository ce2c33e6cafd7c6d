//! Policies of directories with many objects: changed in parts, between which others are served.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidefs::datapath::{Datapath, OpenOptions};
use tidefs::namespace::Ino;
use tidefs_engine::types::ByteCount;

use super::meanwhile::{Meanwhile, SETUP, filled, meanwhile};
use super::{Logic, caller};

/// A page, which is no object that is packed.
const PAGE: usize = 4096;

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

/// Makes a directory with a quota, and `count` objects of a page in it.
fn limited(datapath: &Datapath, name: &str, count: u64) -> Ino {
    let ino = datapath.make_directory(&caller(0), Ino::ROOT, name.as_bytes(), 0o755).expect("mkdir").ino;
    set(datapath, ino, "quota", Some("1GiB"));
    for index in 0..count {
        let options = OpenOptions { write: true, exclusive: true, ..OpenOptions::default() };
        let name = format!("k{index}");
        let created = datapath.create(&caller(0), ino, name.as_bytes(), 0o644, options);
        let handle = created.expect("a file").1.handle;
        datapath.write(handle, 0, &[1; PAGE]).expect("room for a page");
        datapath.flush(&caller(0), handle).expect("a close");
        datapath.release(handle);
    }
    ino
}

fn evict_page(datapath: &Datapath) {
    let page = ByteCount(PAGE as u64);
    let done = datapath.evict_coldest(page, |_| ControlFlow::Continue(()));
    assert_eq!((done.objects, done.bytes), (1, page));
}

#[test]
fn a_namespace_tells_what_was_evicted_from_it_with_a_quota_and_without() {
    let logic = Logic::new(SETUP);
    let datapath = logic.datapath();
    limited(datapath, "limited", 2);
    let plain = limited(datapath, "plain", 2);
    set(datapath, plain, "quota", None);
    (0..4).for_each(|_| evict_page(datapath));
    let namespaces = datapath.overview().expect("the tier answers").namespaces;
    let evicted: Vec<u64> = namespaces.iter().map(|namespace| namespace.evicted).collect();
    assert_eq!(evicted, [2, 2]);
    assert_eq!(datapath.telemetry().evictions.get(), 4);
}

#[test]
fn who_holds_most_above_its_share_pays_for_all() {
    let logic = Logic::new(SETUP);
    let datapath = logic.datapath();
    let floors = [None, Some(8), None, None, Some(3), None];
    let mut held = [1_u64, 12, 9, 3, 5, 7];
    for (index, count) in held.into_iter().enumerate() {
        let ino = limited(datapath, &format!("d{index}"), count);
        if let Some(pages) = floors[index] {
            set(datapath, ino, "floor", Some(&(pages * PAGE).to_string()));
        }
    }
    while held.iter().sum::<u64>() > 20 {
        // The root has a share, too.
        let fair = held.iter().sum::<u64>() * PAGE as u64 / (held.len() as u64 + 1);
        let excess = |index: usize| {
            let share = floors[index].map_or(fair, |pages| (pages * PAGE) as u64);
            (held[index] * PAGE as u64).saturating_sub(share)
        };
        let most = (0..held.len()).map(excess).max().expect("there are some");
        evict_page(datapath);
        let left = |index: usize| {
            let path = format!("d{index}");
            datapath.sealed_below(path.as_bytes()).expect("it is there").len() as u64
        };
        let paid = (0..held.len()).find(|&index| left(index) < held[index]).expect("one has paid");
        assert_eq!(excess(paid), most, "d{paid} paid, of {held:?}");
        held[paid] -= 1;
        datapath.check_domains();
    }
}

#[test]
#[ignore = "measures, and asserts nothing: run by hand, as docs/BENCHMARKING.md says under Longer runs"]
fn how_long_a_victim_takes_among_many_directories_with_a_policy() {
    for directories in [16, 4096] {
        let logic = Logic::new(SETUP);
        for index in 0..directories {
            limited(logic.datapath(), &format!("d{index}"), 4);
        }
        let victims = directories.min(1000);
        let began = Instant::now();
        (0..victims).for_each(|_| evict_page(logic.datapath()));
        println!("{directories} directories: {:?} for each victim", began.elapsed() / victims);
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
