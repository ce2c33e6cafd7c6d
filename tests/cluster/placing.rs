//! Copies that a policy wants on several hosts: where they are, what is shown when there are too few, and their repair.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use crate::common::sys::set_xattr;
use crate::common::wait;
use crate::fixture::{Hosts, object, publish};

const LONG: Duration = Duration::from_secs(30);

/// Lengths of objects that are packed, sent in one message, and lent.
const LENGTHS: [usize; 4] = [16, 5000, 100_000, 3 << 20];

fn want_copies(hosts: &Hosts, host: usize, directory: &str, replicas: &str) {
    let path = hosts.mounts[host].join(directory);
    set_xattr(&path, "user.tidefs.replicas", replicas.as_bytes()).expect("the policy is set");
}

/// Hosts with a copy that does not leave first, as host `asked` learns it.
fn holders(hosts: &Hosts, asked: usize, name: &str) -> BTreeSet<String> {
    let copies = hosts.copies(asked, name).into_iter().filter(|(_, medium)| !medium.contains("first"));
    copies.map(|(host, _)| host).collect()
}

#[track_caller]
fn held_by(hosts: &Hosts, asked: usize, name: &str, count: usize) -> BTreeSet<String> {
    let is_held = || holders(hosts, asked, name).len() == count;
    assert!(wait::until(LONG, is_held), "{name}: {}", hosts.found(asked, name));
    holders(hosts, asked, name)
}

fn write_each_length(hosts: &Hosts, host: usize, directory: &str) -> Vec<String> {
    let names: Vec<String> = (0..20).map(|number| format!("{directory}/{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        publish(&hosts.mounts[host].join(name), &object(number as u64, LENGTHS[number % 4]));
    }
    names
}

#[track_caller]
fn read_each_length(hosts: &Hosts, host: usize, names: &[String]) {
    for (number, name) in names.iter().enumerate() {
        let (path, wanted) = (hosts.mounts[host].join(name), object(number as u64, LENGTHS[number % 4]));
        // Perhaps only who died had heard of a copy: its holder says it again.
        let is_it = || {
            let found = fs::read(&path);
            assert!(found.as_ref().is_ok_and(|found| *found == wanted) || found.is_err(), "{name}");
            found.is_ok()
        };
        assert!(wait::until(wait::HANG, is_it), "{name} on host {host} is missed");
    }
}

#[test]
fn what_is_wanted_twice_survives_a_host_and_is_held_twice_again() {
    let mut hosts = Hosts::start(3, &[]);
    want_copies(&hosts, 0, "whole-1", "2");
    let names = write_each_length(&hosts, 0, "whole-1");
    for name in &names {
        // Who was slow to say that it has one may make one more.
        let is_held = || holders(&hosts, 1, name).len() >= 2;
        assert!(wait::until(LONG, is_held), "{name}: {}", hosts.found(1, name));
        assert_eq!(hosts.found(1, name)["replicas"], 2);
    }
    hosts.mounts[0].kill9();
    for host in [1, 2] {
        read_each_length(&hosts, host, &names);
    }
    let others = BTreeSet::from(["host-1".to_owned(), "host-2".to_owned()]);
    // The dead host's copies count for others until its grace is over.
    for name in &names {
        let is_repaired = || holders(&hosts, 1, name).is_superset(&others);
        assert!(wait::until(LONG, is_repaired), "{name}: {}", hosts.found(1, name));
    }
    // The first loss was made good: so is a second one borne.
    hosts.mounts[1].kill9();
    read_each_length(&hosts, 2, &names);
}

#[test]
fn copies_are_in_distinct_racks() {
    let rack = |host: usize| vec![format!("cluster.labels=topology.rack={}", ["a", "a", "b"][host])];
    let hosts = Hosts::start_each(3, &[], rack);
    want_copies(&hosts, 0, "whole-0", "2");
    let apart = BTreeSet::from(["host-0".to_owned(), "host-2".to_owned()]);
    for name in write_each_length(&hosts, 0, "whole-0") {
        // Who was slow to say that it has one may make one more.
        let is_held = || holders(&hosts, 1, &name).is_superset(&apart);
        assert!(wait::until(LONG, is_held), "{name}: {}", hosts.found(1, &name));
    }
}

#[test]
fn fewer_hosts_than_copies_is_shown_and_made_good_when_one_joins() {
    let mut hosts = Hosts::start(2, &[]);
    want_copies(&hosts, 0, "whole-0", "3");
    let names = write_each_length(&hosts, 0, "whole-0");
    for name in &names {
        held_by(&hosts, 1, name, 2);
        assert_eq!(hosts.found(1, name)["is_short"], true);
    }
    // Its writer counts it, and after a walk the first of those who hold it: either of them.
    let shown = || [0, 1].map(|host| hosts.metric(host, "tidefs_cluster_short_of_copies"));
    assert!(wait::until(LONG, || shown().contains(&(names.len() as u64))), "{:?}", shown());
    // A walk counts them anew while it lasts.
    let warnings =
        || [0, 1].map(|host| hosts.mounts[host].control_get("/v1/status").json()["warnings"].to_string());
    let is_warned = |text: &String| text.contains("20 objects have fewer copies than wanted");
    assert!(wait::until(LONG, || warnings().iter().any(is_warned)), "{:?}", warnings());
    hosts.add(&[]);
    for name in &names {
        held_by(&hosts, 1, name, 3);
        assert_eq!(hosts.found(1, name)["is_short"], serde_json::Value::Null);
    }
    let is_short = |host: usize| hosts.metric(host, "tidefs_cluster_short_of_copies") > 0;
    assert!(wait::until(LONG, || !(0..3).any(is_short)));
}

#[test]
fn a_policy_that_is_set_later_holds_for_what_is_there() {
    let hosts = Hosts::start(2, &[]);
    let names = write_each_length(&hosts, 0, "whole-0");
    assert_eq!(holders(&hosts, 1, &names[0]), BTreeSet::from(["host-0".to_owned()]));
    want_copies(&hosts, 0, "whole-0", "2");
    for name in &names {
        held_by(&hosts, 1, name, 2);
    }
    for wrong in ["0", "17", "many"] {
        let path = hosts.mounts[0].join("whole-0");
        assert!(set_xattr(&path, "user.tidefs.replicas", wrong.as_bytes()).is_err(), "{wrong}");
    }
}

#[test]
fn objects_of_a_chain_have_their_copies_on_the_same_host() {
    let hosts = Hosts::start(4, &[]);
    want_copies(&hosts, 0, "whole-0", "2");
    let mut placed = BTreeSet::new();
    for chain in 0..8 {
        let names: Vec<String> = (0..8).map(|number| format!("whole-0/chain-{chain}-{number}")).collect();
        // As engines do: a prefix is looked for to its end, and then written.
        for name in &names {
            assert!(!hosts.mounts[0].join(name).exists());
        }
        for name in &names {
            publish(&hosts.mounts[0].join(name), &object(3, 50_000));
        }
        // Who was slow to say that it has one may make one more.
        let held_twice = |name: &String| {
            assert!(wait::until(LONG, || holders(&hosts, 1, name).len() >= 2), "{}", hosts.found(1, name));
            holders(&hosts, 1, name)
        };
        let held: Vec<_> = names.iter().map(held_twice).collect();
        let of_all = held.iter().skip(1).fold(held[0].clone(), |all, one| &all & one);
        assert!(of_all.len() >= 2, "chain {chain} is torn apart: {held:?}");
        placed.insert(of_all);
    }
    assert!(placed.len() > 1, "all chains are on {placed:?}");
}

#[test]
fn what_is_below_a_directory_of_a_dead_host_is_found() {
    let mut hosts = Hosts::start(3, &[]);
    fs::create_dir(hosts.mounts[0].join("its-own")).expect("a directory");
    publish(&hosts.mounts[1].join("its-own/key"), &object(5, 100_000));
    hosts.mounts[0].kill9();
    let members = || {
        let status = hosts.mounts[2].control_get("/v1/status").json();
        status["cluster"]["members"].as_array().map_or(0, Vec::len)
    };
    assert!(wait::until(LONG, || members() == 2), "a dead host is still a member");
    // Until what it held is forgotten.
    // Which of the two serves its names depends on who they are.
    let dropped = |host| hosts.metric(host, "tidefs_cluster_dropped_copies_total");
    assert!(wait::until(LONG, || dropped(1) + dropped(2) > 0), "nothing of it is forgotten");
    assert_eq!(fs::read(hosts.mounts[2].join("its-own/key")).expect("it is there"), object(5, 100_000));
}
