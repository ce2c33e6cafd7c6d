//! Copies that were fetched to be read: they leave before what no other host has, and count when nobody else has one.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::common::wait;
use crate::fixture::{Hosts, object, publish};

const OBJECT: usize = 2 << 20;
const SOFT: &str = "memory, leaves first";

/// Objects of this host that fill two thirds of its 64 MiB.
fn write_own(hosts: &Hosts, host: usize, numbers: std::ops::Range<u64>) {
    for number in numbers {
        publish(&hosts.mounts[host].join(format!("whole-0/own-{number}")), &object(number, OBJECT));
    }
}

fn there(hosts: &Hosts, host: usize, name: &str) -> PathBuf {
    hosts.mounts[host].join(name)
}

/// Host 0 writes objects that host 1 reads, more than its memory holds beside its own.
fn read_many_of_another(hosts: &Hosts) {
    for number in 100..140 {
        let name = format!("whole-0/other-{number}");
        publish(&hosts.mounts[0].join(&name), &object(number, OBJECT));
        assert_eq!(
            fs::read(there(hosts, 1, &name)).expect("it is there"),
            object(number, OBJECT),
            "{number}"
        );
    }
}

#[test]
fn a_fetched_copy_leaves_before_what_no_other_host_has() {
    // A quarter is headroom. The rest holds all of its own, and a few copies that somebody has open still.
    let hosts = Hosts::start_each(2, &[], |host| vec![format!("capacity={}MiB", [256, 72][host])]);
    write_own(&hosts, 1, 0..18);
    read_many_of_another(&hosts);
    // The two are counted one after the other; what is not soft keeps them apart for ever.
    let are_all_soft =
        || hosts.metric(1, "tidefs_evictions_total") == hosts.metric(1, "tidefs_soft_evictions_total");
    assert!(wait::until(wait::HANG, are_all_soft), "something that no other host has was evicted");
    assert!(hosts.metric(1, "tidefs_soft_evictions_total") > 10, "memory was never full");
    for number in 0..18 {
        let found = fs::read(there(&hosts, 1, &format!("whole-0/own-{number}")));
        assert_eq!(found.expect("an object of its own"), object(number, OBJECT), "{number}");
    }
    // More of its own takes the room of copies until there are hardly any.
    write_own(&hosts, 1, 18..24);
    for number in 0..24 {
        let name = format!("whole-0/own-{number}");
        let why = || hosts.mounts[1].control_get(&format!("/v1/why?path={name}")).text();
        assert!(there(&hosts, 1, &name).exists(), "{}", why());
    }
}

#[test]
fn a_fetched_copy_is_not_written_to_disk() {
    let disk =
        tempfile::Builder::new().prefix("tidefs-ssd").tempdir_in("/var/tmp").expect("a directory on a disk");
    let hosts = Hosts::start_each(2, &[], |host| match host {
        0 => vec!["capacity=256MiB".to_owned()],
        _ => vec![
            "capacity=64MiB".to_owned(),
            "ssd.capacity=512MiB".to_owned(),
            "ssd.zone=8MiB".to_owned(),
            format!("ssd.dirs={}", disk.path().display()),
        ],
    });
    read_many_of_another(&hosts);
    assert!(hosts.metric(1, "tidefs_soft_evictions_total") > 10, "memory was never full");
    assert_eq!(hosts.metric(1, "tidefs_ssd_demotions_total"), 0);
    for name in (100..140).map(|number| format!("whole-0/other-{number}")) {
        assert_ne!(hosts.copies(0, &name).get("host-1").map(String::as_str), Some("ssd"), "{name}");
    }
}

#[test]
fn what_was_read_twice_outlives_what_was_read_once() {
    let hosts = Hosts::start_each(2, &[], |host| vec![format!("capacity={}MiB", [256, 64][host])]);
    for number in 0..4 {
        let name = format!("whole-0/hot-{number}");
        publish(&hosts.mounts[0].join(&name), &object(number, OBJECT));
        for _ in 0..2 {
            assert_eq!(fs::read(there(&hosts, 1, &name)).expect("it is there"), object(number, OBJECT));
        }
    }
    read_many_of_another(&hosts);
    assert!(hosts.metric(1, "tidefs_soft_evictions_total") > 5, "memory was never full");
    for number in 0..4 {
        let copies = hosts.copies(0, &format!("whole-0/hot-{number}"));
        assert_eq!(copies.get("host-1").map(String::as_str), Some(SOFT), "{number}: {copies:?}");
    }
}

#[test]
fn the_copy_that_is_left_when_its_writer_lets_go_counts_from_then_on() {
    let mut hosts = Hosts::start(3, &[]);
    for (name, is_evicted) in [("whole-1/let-go", true), ("whole-1/lost", false)] {
        publish(&hosts.mounts[0].join(name), &object(7, OBJECT));
        assert_eq!(fs::read(there(&hosts, 1, name)).expect("it is there"), object(7, OBJECT));
        let is_soft = || hosts.copies(2, name).get("host-1").is_some_and(|medium| medium == SOFT);
        assert!(wait::until(Duration::from_secs(10), is_soft), "{:?}", hosts.copies(2, name));
        if is_evicted {
            let body = format!("{{\"path\":\"{name}\",\"force\":true}}");
            let answer = hosts.mounts[0].control("POST", "/v1/evict", Some(&body));
            assert_eq!(answer.status, 200, "{}", answer.text());
        } else {
            hosts.mounts[0].kill9();
        }
        let is_hard = || {
            let copies = hosts.copies(2, name);
            copies.len() == 1 && copies.get("host-1").is_some_and(|medium| medium == "memory")
        };
        assert!(wait::until(Duration::from_secs(30), is_hard), "{:?}", hosts.copies(2, name));
        assert_eq!(fs::read(there(&hosts, 2, name)).expect("the copy"), object(7, OBJECT));
    }
}

#[test]
fn a_copy_that_is_pinned_or_renamed_does_not_leave_first() {
    let hosts = Hosts::start(2, &[]);
    for name in ["whole-0/pinned", "whole-0/renamed"] {
        publish(&hosts.mounts[0].join(name), &object(7, OBJECT));
        assert_eq!(fs::read(there(&hosts, 1, name)).expect("it is there"), object(7, OBJECT));
    }
    assert_eq!(hosts.metric(1, "tidefs_soft_copies"), 2);
    fs::rename(there(&hosts, 1, "whole-0/renamed"), there(&hosts, 1, "whole-0/its-own")).expect("the rename");
    assert_eq!(hosts.metric(1, "tidefs_soft_copies"), 1);
    // Others hear of a copy a moment after its host has it.
    let medium = |name: &str| hosts.copies(0, name).remove("host-1");
    let is_hard = || medium("whole-0/its-own").as_deref() == Some("memory");
    assert!(wait::until(wait::HANG, is_hard), "{:?}", hosts.copies(0, "whole-0/its-own"));
    assert!(wait::until(wait::HANG, || medium("whole-0/pinned").is_some()), "the copy is not known");
    let body = "{\"path\":\"whole-0/pinned\",\"pin\":\"hard\"}";
    let answer = hosts.mounts[1].control("POST", "/v1/pin", Some(body));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = hosts.mounts[1].control("POST", "/v1/evict", Some("{\"bytes\":1073741824,\"force\":false}"));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(medium("whole-0/pinned").is_some(), "a pinned copy was evicted");
}

#[test]
fn a_copy_that_leaves_first_is_no_other_after_a_restart() {
    let mut hosts = Hosts::start(2, &[]);
    let names = [("whole-0/large", OBJECT), ("whole-0/small", 100)];
    for (name, length) in names {
        publish(&hosts.mounts[0].join(name), &object(7, length));
        assert_eq!(fs::read(there(&hosts, 1, name)).expect("it is there"), object(7, length));
    }
    assert_eq!(hosts.metric(1, "tidefs_soft_copies"), 2);
    hosts.mounts[1].kill9();
    hosts.mounts[1].restart();
    assert_eq!(hosts.metric(1, "tidefs_soft_copies"), 2);
    for (name, length) in names {
        let is_soft = || hosts.copies(0, name).get("host-1").is_some_and(|medium| medium == SOFT);
        assert!(wait::until(Duration::from_secs(10), is_soft), "{:?}", hosts.copies(0, name));
        assert_eq!(fs::read(there(&hosts, 1, name)).expect("it is there"), object(7, length));
    }
}
