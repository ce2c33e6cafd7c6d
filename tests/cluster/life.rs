//! Members that come, stop and die; an etcd that goes away.

use std::fs;
use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, umount2};

use crate::common::mount::mounts_below;
use crate::common::sys::set_xattr;
use crate::common::{Mount, wait};
use crate::fixture::{Hosts, is_long, object, publish};

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
    let is_found = || fs::read(&there).is_ok_and(|found| found == object(4, 100_000));
    assert!(wait::until(wait::HANG, is_found), "it is not found with what it kept");
}

/// A key that the first of two hosts wrote, and the second has a copy of.
const KEY: &str = "whole-1/key";

fn hosts_with_a_key_and_a_copy() -> Hosts {
    let hosts = Hosts::start(2, &["on_stop=keep"]);
    publish(&hosts.mounts[0].join(KEY), &object(4, 100_000));
    assert_eq!(fs::read(hosts.mounts[1].join(KEY)).expect("a copy"), object(4, 100_000));
    hosts
}

/// The second host deletes the key, and the first, which was stopped with it, starts again.
#[track_caller]
fn expect_deleted_for_good(hosts: &mut Hosts) {
    fs::remove_file(hosts.mounts[1].join(KEY)).expect("the unlink");
    expect_gone_for_good(hosts);
}

/// The first host, which was stopped before the second deleted the key, starts again.
#[track_caller]
fn expect_gone_for_good(hosts: &mut Hosts) {
    hosts.mounts[0].start_daemon();
    hosts.wait_until_whole();
    let is_gone = || hosts.mounts.iter().all(|mount| !mount.join(KEY).exists());
    assert!(wait::until(wait::HANG, is_gone), "a deleted key came back");
    thread::sleep(Duration::from_secs(1));
    for mount in &hosts.mounts {
        assert!(!mount.join(KEY).exists(), "a deleted key came back later");
    }
}

#[test]
fn a_key_that_was_deleted_while_its_holder_was_away_stays_deleted() {
    let mut hosts = hosts_with_a_key_and_a_copy();
    hosts.mounts[0].stop();
    expect_deleted_for_good(&mut hosts);
}

#[test]
fn a_key_that_was_deleted_by_who_was_alone_since_its_start_stays_deleted() {
    let mut hosts = hosts_with_a_key_and_a_copy();
    hosts.mounts[0].stop();
    hosts.mounts[1].restart();
    expect_deleted_for_good(&mut hosts);
}

/// What a restart of its machine does to a host that is stopped: its state directory is on a tmpfs, as `/run` is, and empty.
#[track_caller]
fn lose_state(host: &Mount) {
    for point in mounts_below(host.state_dir()).iter().rev() {
        umount2(point.as_path(), MntFlags::MNT_DETACH).expect("umount of its state");
    }
    let (kind, options) = (Some("tmpfs"), Some("mode=0755"));
    nix::mount::mount(kind, host.state_dir(), kind, MsFlags::empty(), options).expect("a tmpfs");
}

#[test]
fn a_key_that_was_deleted_by_who_was_alone_before_its_machine_was_restarted_stays_deleted() {
    let mut hosts = hosts_with_a_key_and_a_copy();
    hosts.mounts[1].stop();
    lose_state(&hosts.mounts[1]);
    hosts.mounts[1].start_daemon();
    hosts.wait_until_whole();
    assert_eq!(fs::read(hosts.mounts[1].join(KEY)).expect("a copy"), object(4, 100_000));
    hosts.mounts[0].stop();
    fs::remove_file(hosts.mounts[1].join(KEY)).expect("the unlink");
    hosts.mounts[1].stop();
    lose_state(&hosts.mounts[1]);
    hosts.mounts[1].start_daemon();
    expect_gone_for_good(&mut hosts);
}

#[test]
fn a_key_of_which_all_other_copies_were_evicted_while_its_holder_was_away_is_back_with_it() {
    let mut hosts = hosts_with_a_key_and_a_copy();
    assert!(wait::until(wait::HANG, || hosts.copies(1, KEY).len() == 2), "the copy is not known");
    hosts.mounts[0].stop();
    assert!(wait::until(wait::HANG, || hosts.copies(1, KEY).len() == 1), "it is known to be away");
    let is_evicted = || {
        hosts.mounts[1].control("POST", "/v1/evict", Some(&format!(r#"{{"path":"{KEY}"}}"#)));
        !hosts.mounts[1].join(KEY).exists()
    };
    assert!(wait::until(wait::HANG, is_evicted), "it is not evicted");
    hosts.mounts[0].start_daemon();
    hosts.wait_until_whole();
    for mount in &hosts.mounts {
        assert_eq!(fs::read(mount.join(KEY)).expect("it is back"), object(4, 100_000));
    }
}

/// For longer than a lease, or 10 minutes. Who joins meanwhile, and what would change policy, waits and says so.
#[test]
fn while_etcd_is_away_reads_and_writes_go_on() {
    let mut hosts = Hosts::start(2, &["cluster.patience_ms=2000"]);
    hosts.etcd().stop();
    let back = Instant::now() + if is_long() { Duration::from_secs(600) } else { Duration::from_secs(12) };
    hosts.add(&["cluster.patience_ms=2000"]);
    let refused = set_xattr(&hosts.mounts[1].join("whole-0"), "user.tidefs.quota", b"64MiB");
    assert_eq!(refused, Err(Errno::ETIMEDOUT));
    let waits = hosts.mounts[2].control_get("/v1/status").text();
    assert!(waits.contains("has not joined its cluster yet"), "{waits}");
    let is_told = || hosts.mounts[0].control_get("/v1/status").text().contains("the coordinator is away");
    assert!(wait::until(wait::HANG, is_told), "nobody is told that etcd is away");
    let mut written = 0_u64;
    while written < 20 || Instant::now() < back {
        let (writer, reader) = if written.is_multiple_of(2) { (0, 1) } else { (1, 0) };
        let name = format!("whole-0/{}", written % 100);
        publish(&hosts.mounts[writer].join(&name), &object(written, 60_000));
        assert_eq!(fs::read(hosts.mounts[reader].join(&name)).expect("it is there"), object(written, 60_000));
        written += 1;
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(hosts.members(0), 2, "nobody comes or goes");
    hosts.etcd().start_again();
    publish(&hosts.mounts[1].join("whole-0/later"), &object(8, 60_000));
    assert_eq!(fs::read(hosts.mounts[0].join("whole-0/later")).expect("it is there"), object(8, 60_000));
    let have_met = || (0..3).all(|host| hosts.has_met(host, 3));
    assert!(wait::until(3 * wait::HANG, have_met), "who waited does not join");
    let is_set = || set_xattr(&hosts.mounts[1].join("whole-0"), "user.tidefs.quota", b"64MiB").is_ok();
    assert!(wait::until(wait::HANG, is_set), "policy does not change");
    assert_eq!(fs::read(hosts.mounts[2].join("whole-0/later")).expect("it is there"), object(8, 60_000));
}

#[test]
fn a_host_that_starts_while_etcd_is_away_serves_alone_and_joins_when_it_is_back() {
    let mut hosts = Hosts::start(2, &["on_stop=keep"]);
    let (kept, gone, gone_later) = ("whole-0/kept", "whole-0/gone", "whole-0/gone-later");
    for (seed, name) in [(1, kept), (2, gone), (5, gone_later)] {
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
    // Once more, and the next start knows what this one removed.
    hosts.mounts[0].restart();
    fs::remove_file(hosts.mounts[0].join(gone_later)).expect("an unlink");
    hosts.etcd().start_again();
    let alone = &hosts.mounts[0];
    let here = alone.join("whole-1/theirs");
    assert!(wait::until(Duration::from_secs(30), || fs::read(&here)
        .is_ok_and(|found| found == object(4, 60_000))));
    assert!(wait::until(wait::HANG, || joined(alone)), "it does not say that it has joined");
    let there = hosts.mounts[1].join("whole-0/new");
    assert!(wait::until(Duration::from_secs(20), || fs::read(&there)
        .is_ok_and(|found| found == object(3, 60_000))));
    for name in [gone, gone_later] {
        let there = hosts.mounts[1].join(name);
        assert!(wait::until(Duration::from_secs(20), || !there.exists()), "what was removed alone lives on");
    }
}

/// For as long as others wait for it, or 30 seconds, in which its lease ends.
#[test]
fn a_host_that_stood_still_for_a_while_has_lost_nothing() {
    let hosts = Hosts::start(2, &["cluster.grace_s=60", "cluster.patience_ms=2000"]);
    let name = |number: u64| format!("whole-0/{number}");
    for number in 0..20 {
        publish(&hosts.mounts[0].join(name(number)), &object(number, 100_000));
    }
    hosts.mounts[0].stand_still();
    let goes_on = Instant::now() + if is_long() { Duration::from_secs(30) } else { Duration::ZERO };
    // Others go on meanwhile: what it holds is a miss at the most, and within the time that a fetch may take.
    let there = hosts.mounts[1].path().to_owned();
    let done = wait::within(Duration::from_secs(40), move || {
        publish(&there.join("whole-1/mine"), &object(5, 100_000));
        // It may be a miss already.
        let is_removed = fs::remove_file(there.join(name(19))).is_ok();
        assert_eq!(fs::read(there.join("whole-1/mine")).expect("its own"), object(5, 100_000));
        is_removed
    });
    thread::sleep(goes_on.saturating_duration_since(Instant::now()));
    hosts.mounts[0].go_on();
    let is_removed = done.expect("a write waited for a host that stands still");
    for number in 0..19 {
        let there = hosts.mounts[1].join(name(number));
        let is_right = || fs::read(&there).is_ok_and(|found| found == object(number, 100_000));
        assert!(wait::until(wait::HANG, is_right), "{number} is lost");
    }
    hosts.wait_until_whole();
    for mount in &hosts.mounts {
        assert_eq!(fs::read(mount.join("whole-1/mine")).expect("it is there"), object(5, 100_000));
        let is_gone = || !mount.join(name(19)).exists();
        assert!(!is_removed || wait::until(wait::HANG, is_gone), "what was removed is back");
    }
}
