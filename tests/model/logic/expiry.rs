//! Much that falls due at one moment: ended in parts, between which others are served.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tidefs::datapath::{AttributeChange, Datapath, Lookup, Patience};
use tidefs::namespace::Ino;

use super::meanwhile::{filled, meanwhile};
use super::{Logic, caller};
use crate::system::System as _;

/// A directory of objects that all got `policy` and are all past the time that it gives them.
fn due(count: usize, policy: &str, value: &str) -> (Logic, Ino) {
    let (logic, top) = filled(count);
    let name = format!("user.tidefs.{policy}");
    logic.datapath().set_attribute(top, name.as_bytes(), value.as_bytes(), None).expect("a policy");
    logic.clock.advance(Duration::from_secs(2));
    (logic, top)
}

fn has_expired(datapath: &Datapath, path: &[u8]) -> bool {
    datapath.facts(path).is_none()
}

fn is_unpinned(datapath: &Datapath, path: &[u8]) -> bool {
    datapath.facts(path).expect("it is there").policy.pin.is_none()
}

/// Says of a path whether what was due there has ended.
type HasEnded = fn(&Datapath, &[u8]) -> bool;

/// Whether somebody else is served while 20,000 objects that got `policy` fall due: who sees that the first one has ended and
/// then that the last one has not.
fn serves_others(policy: &str, value: &str, has_ended: HasEnded) -> bool {
    let (logic, _) = due(20_000, policy, value);
    let datapath = logic.datapath();
    let (is_over, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    let was_served = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut was_served = false;
            while !is_over.load(Ordering::Relaxed) {
                was_served |= has_ended(datapath, b"ns/k0") && !has_ended(datapath, b"ns/below/k1999");
                looks.fetch_add(1, Ordering::Relaxed);
            }
            was_served
        });
        // It is looking when it begins.
        while looks.load(Ordering::Relaxed) < 10 {
            thread::yield_now();
        }
        datapath.expire();
        is_over.store(true, Ordering::Relaxed);
        other.join().expect("the other thread")
    });
    assert!(has_ended(datapath, b"ns/k0") && has_ended(datapath, b"ns/below/k1999"), "{policy}");
    was_served
}

#[test]
fn others_are_served_while_what_falls_due_at_once_is_ended() {
    let cases: [(&str, &str, HasEnded); 2] = [("ttl", "1", has_expired), ("pin", "soft:1s", is_unpinned)];
    for (policy, value, has_ended) in cases {
        // Where others use the processors it may be given none meanwhile, which says nothing.
        let is_served = (0..5).any(|_| serves_others(policy, value, has_ended));
        assert!(is_served, "others wait for all of it: {policy}");
    }
}

#[test]
fn a_look_up_ends_what_it_asks_for_and_leaves_the_rest_that_is_due() {
    let (logic, top) = due(1000, "ttl", "1");
    let datapath = logic.datapath();
    let found = datapath.lookup(&caller(0), top, b"k0", Patience::None).expect("an answer");
    assert!(matches!(found, Lookup::Absent { .. }), "{found:?}");
    assert_eq!(datapath.sealed_below(b"ns").expect("it is there").len(), 1099);
    datapath.expire();
    assert!(datapath.sealed_below(b"ns").expect("it is there").is_empty());
}

#[test]
fn a_soft_pin_ends_with_its_time_whatever_changes_meanwhile() {
    let (logic, top) = filled(10);
    let datapath = logic.datapath();
    let look_up = |name: &str| match datapath.lookup(&caller(0), top, name.as_bytes(), Patience::None) {
        Ok(Lookup::Found { stat, .. }) => stat.ino,
        other => panic!("{name}: {other:?}"),
    };
    let pin = |ino: Ino| {
        datapath.set_attribute(ino, b"user.tidefs.pin", b"soft:4s", None).expect("a policy");
    };
    let after = |seconds: u64| {
        logic.clock.advance(Duration::from_secs(seconds));
        datapath.expire();
        [&b"ns/k0"[..], b"ns/k1"].map(|path| is_unpinned(datapath, path))
    };
    // One by its directory, and one itself.
    let [inherited, own] = ["k0", "k1"].map(look_up);
    pin(top);
    pin(own);
    assert_eq!(after(2), [false, false]);
    for ino in [inherited, own] {
        let touched = AttributeChange { mtime_ns: Some(1), mode: Some(0o600), ..AttributeChange::default() };
        datapath.setattr(&caller(0), ino, &touched).expect("new attributes");
        datapath.set_attribute(ino, b"user.tidefs.priority", b"1", None).expect("another policy");
    }
    assert_eq!(after(3), [true, true], "its time counts anew from another change");
    pin(own);
    assert_eq!(after(3), [true, false], "one that is set again counts from then");
    assert_eq!(after(3), [true, true]);
}

#[test]
fn a_soft_pin_ends_with_its_time_after_a_restart_too() {
    let (mut logic, top) = filled(1);
    let found = logic.lookup(0, top, "k0").expect("it is there").0;
    logic.datapath().set_attribute(found, b"user.tidefs.pin", b"soft:4s", None).expect("a policy");
    logic.clock.advance(Duration::from_secs(3));
    // Of what changes its attributes a restart knows when.
    let touched = AttributeChange { mode: Some(0o600), ..AttributeChange::default() };
    logic.datapath().setattr(&caller(0), found, &touched).expect("new attributes");
    logic.restart();
    assert!(!is_unpinned(logic.datapath(), b"ns/k0"));
    logic.clock.advance(Duration::from_secs(2));
    logic.datapath().expire();
    assert!(is_unpinned(logic.datapath(), b"ns/k0"), "its time counts anew from the start");
}

#[test]
#[ignore = "measures, and asserts nothing: run by hand, as docs/BENCHMARKING.md says under Longer runs"]
fn how_long_what_falls_due_at_once_lets_others_wait() {
    for (policy, value) in [("ttl", "1"), ("pin", "soft:1s")] {
        let (logic, top) = due(500_000, policy, value);
        let datapath = logic.datapath();
        let others = meanwhile(datapath, top, || datapath.expire());
        println!(
            "{policy}: 550,000 objects took {:?}, others waited {:?} at most",
            others.took, others.longest
        );
    }
}
