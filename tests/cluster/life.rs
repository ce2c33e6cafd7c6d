//! Members that come, stop and die; an etcd that goes away.

use std::fs;
use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::common::{Mount, wait};
use crate::fixture::{Hosts, object, publish};

#[test]
fn an_object_of_a_host_that_died_is_a_miss_and_nothing_else_is() {
    let mut hosts = Hosts::start(3, &[]);
    for number in 0..60_u64 {
        let host = usize::try_from(number % 3).expect("small");
        publish(&hosts.mounts[host].join(format!("whole-0/{number}")), &object(number, 50_000));
    }
    hosts.mounts[2].kill9();
    for mount in &hosts.mounts[..2] {
        for number in 0..60_u64 {
            match fs::read(mount.join(format!("whole-0/{number}"))) {
                Ok(bytes) => assert_eq!(bytes, object(number, 50_000)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{number}");
                    assert_eq!(number % 3, 2, "an object of a host that lives is a miss");
                }
            }
        }
    }
    // The shards that it served are served by others, and names can be made again.
    for number in 0..60_u64 {
        let path = hosts.mounts[0].join(format!("whole-0/again-{number}"));
        publish(&path, &object(number, 50_000));
        let there = hosts.mounts[1].join(format!("whole-0/again-{number}"));
        assert_eq!(fs::read(there).expect("it is there"), object(number, 50_000));
    }
}

#[test]
fn a_host_that_starts_again_is_found_with_what_it_kept() {
    let mut hosts = Hosts::start(2, &["on_stop=keep"]);
    publish(&hosts.mounts[0].join("whole-0/key"), &object(4, 100_000));
    hosts.mounts[0].restart();
    let there = hosts.mounts[1].join("whole-0/key");
    assert!(wait::until(Duration::from_secs(10), || fs::read(&there)
        .is_ok_and(|found| found == object(4, 100_000))));
}

#[test]
fn a_key_that_was_deleted_while_its_holder_was_away_stays_deleted() {
    let mut hosts = Hosts::start(2, &["on_stop=keep"]);
    let name = "whole-1/key";
    publish(&hosts.mounts[0].join(name), &object(4, 100_000));
    assert_eq!(fs::read(hosts.mounts[1].join(name)).expect("a copy"), object(4, 100_000));
    hosts.mounts[0].stop();
    fs::remove_file(hosts.mounts[1].join(name)).expect("the unlink");
    hosts.mounts[0].start_daemon();
    hosts.wait_until_whole();
    let is_gone = || hosts.mounts.iter().all(|mount| !mount.join(name).exists());
    assert!(wait::until(wait::HANG, is_gone), "a deleted key came back");
    thread::sleep(Duration::from_secs(1));
    for mount in &hosts.mounts {
        assert!(!mount.join(name).exists(), "a deleted key came back later");
    }
}

#[test]
fn while_etcd_is_away_reads_and_writes_go_on() {
    let mut hosts = Hosts::start(2, &[]);
    hosts.etcd().stop();
    for number in 0..20_u64 {
        let name = format!("whole-0/{number}");
        publish(&hosts.mounts[0].join(&name), &object(number, 60_000));
        assert_eq!(fs::read(hosts.mounts[1].join(&name)).expect("it is there"), object(number, 60_000));
    }
    thread::sleep(Duration::from_secs(12));
    publish(&hosts.mounts[1].join("whole-0/late"), &object(7, 60_000));
    assert_eq!(fs::read(hosts.mounts[0].join("whole-0/late")).expect("it is there"), object(7, 60_000));
    hosts.etcd().start_again();
    publish(&hosts.mounts[1].join("whole-0/later"), &object(8, 60_000));
    assert_eq!(fs::read(hosts.mounts[0].join("whole-0/later")).expect("it is there"), object(8, 60_000));
}

#[test]
fn a_host_that_starts_while_etcd_is_away_serves_alone_and_joins_when_it_is_back() {
    let mut hosts = Hosts::start(2, &["on_stop=keep"]);
    let (kept, gone) = ("whole-0/kept", "whole-0/gone");
    for (seed, name) in [(1, kept), (2, gone)] {
        publish(&hosts.mounts[0].join(name), &object(seed, 60_000));
        assert_eq!(fs::read(hosts.mounts[1].join(name)).expect("a copy"), object(seed, 60_000));
    }
    hosts.etcd().stop();
    hosts.mounts[0].restart();
    let alone = &hosts.mounts[0];
    assert_eq!(fs::read(alone.join(kept)).expect("its own"), object(1, 60_000));
    let joined = |mount: &Mount| {
        let metrics = mount.control_get("/v1/metrics").text();
        metrics.lines().any(|line| line == "tidefs_cluster_joined 1")
    };
    assert!(!joined(alone));
    let warnings = alone.control_get("/v1/status").text();
    assert!(warnings.contains("has not joined its cluster yet"), "{warnings}");
    publish(&alone.join("whole-0/new"), &object(3, 60_000));
    // Found absent while it was alone, and on the other host all the time.
    fs::remove_file(alone.join(gone)).expect("an unlink");
    assert!(!alone.join("whole-1/theirs").exists());
    publish(&hosts.mounts[1].join("whole-1/theirs"), &object(4, 60_000));
    hosts.etcd().start_again();
    let alone = &hosts.mounts[0];
    let here = alone.join("whole-1/theirs");
    assert!(wait::until(Duration::from_secs(30), || fs::read(&here)
        .is_ok_and(|found| found == object(4, 60_000))));
    assert!(joined(alone));
    let there = hosts.mounts[1].join("whole-0/new");
    assert!(wait::until(Duration::from_secs(20), || fs::read(&there)
        .is_ok_and(|found| found == object(3, 60_000))));
    let there = hosts.mounts[1].join(gone);
    assert!(wait::until(Duration::from_secs(20), || !there.exists()), "what was removed alone lives on");
}

#[test]
fn a_host_that_stood_still_for_a_while_has_lost_nothing() {
    let hosts = Hosts::start(2, &["cluster.grace_s=60", "cluster.patience_ms=2000"]);
    publish(&hosts.mounts[0].join("whole-0/key"), &object(4, 100_000));
    hosts.mounts[0].signal(Signal::SIGSTOP);
    // Others go on meanwhile: what it holds is a miss at the most, and within the time that a fetch may take.
    let other = hosts.mounts[1].join("whole-1/mine");
    let done = wait::within(Duration::from_secs(40), move || {
        publish(&other, &object(5, 100_000));
        fs::read(&other).is_ok_and(|found| found == object(5, 100_000))
    });
    hosts.mounts[0].signal(Signal::SIGCONT);
    assert_eq!(done, Some(true), "a write waited for a host that stands still");
    let there = hosts.mounts[1].join("whole-0/key");
    assert!(wait::until(Duration::from_secs(20), || fs::read(&there)
        .is_ok_and(|found| found == object(4, 100_000))));
    hosts.wait_until_whole();
}
