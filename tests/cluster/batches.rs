//! Many names of other hosts at once, by the ioctls of the fast path.

use std::fs;

use tidefs_client::Cache;

use crate::common::kernel;
use crate::fixture::{Hosts, object, publish};

const NAMES: usize = 300;

fn names(directory: &str) -> Vec<String> {
    (0..NAMES).map(|number| format!("{directory}/{number}")).collect()
}

/// Messages by which host 1 asked for names.
fn messages(hosts: &Hosts) -> u64 {
    hosts.metric(1, "tidefs_cluster_find_messages_total")
}

#[test]
fn names_of_another_host_are_asked_for_with_one_message_for_each_level_of_directories() {
    if !kernel::has_fast_path() {
        return;
    }
    let hosts = Hosts::start(2, &[]);
    let deep = hosts.mounts[0].join("whole-0/a/b");
    fs::create_dir_all(&deep).expect("directories");
    for (number, name) in (0..).zip(names("whole-0/a/b")) {
        publish(&hosts.mounts[0].join(name), &object(number, 60_000));
    }
    let cache = Cache::open(hosts.mounts[1].path()).expect("the cache opens");
    assert!(cache.is_fast());
    let before = messages(&hosts);
    assert_eq!(cache.prefix(&names("whole-0/a/b")).expect("an answer"), NAMES);
    let asked = messages(&hosts) - before;
    assert!(asked <= 6, "{asked} messages for {NAMES} names");
    for (number, view) in (0..).zip(cache.lookup_many(&names("whole-0/a/b")).expect("an answer")) {
        assert!(view.is_some_and(|view| view[..] == object(number, 60_000)), "object {number}");
    }
}

#[test]
fn absence_is_asked_for_at_once_and_remembered_until_somebody_publishes() {
    let hosts = Hosts::start(2, &[]);
    let cache = Cache::open(hosts.mounts[1].path()).expect("the cache opens");
    let (before, absent) = (messages(&hosts), names("whole-0"));
    let none = |cache: &Cache| {
        let found = cache.lookup_many(&absent).expect("an answer");
        found.iter().all(Option::is_none)
    };
    assert!(none(&cache));
    let asked = messages(&hosts) - before;
    assert!(asked <= 4, "{asked} messages for {NAMES} names");
    assert!(none(&cache));
    assert_eq!(messages(&hosts) - before, asked, "it is remembered");
    assert_eq!(cache.prefix(&names("whole-0/no/such/directory")).expect("an answer"), 0);
    publish(&hosts.mounts[0].join(&absent[7]), &object(7, 60_000));
    let found = cache.lookup_many(&absent).expect("an answer");
    let there: Vec<usize> =
        found.iter().enumerate().filter(|(_, view)| view.is_some()).map(|(at, _)| at).collect();
    assert_eq!(there, [7]);
}

#[test]
fn an_object_of_another_host_is_on_its_way_before_who_looked_it_up_opens_its_file() {
    if !kernel::has_fast_path() {
        return;
    }
    let hosts = Hosts::start(2, &[]);
    let cache = Cache::open(hosts.mounts[1].path()).expect("the cache opens");
    let loaded_ahead = || hosts.metric(1, "tidefs_ssd_prefetches_total");
    for (number, name) in (0..).zip(["whole-0/probed", "whole-0/wanted"]) {
        publish(&hosts.mounts[0].join(name), &object(number, 60_000));
    }
    assert_eq!(cache.prefix(&["whole-0/probed"]).expect("an answer"), 1);
    assert_eq!(loaded_ahead(), 0, "whether it is there is all that was asked");
    let mut bytes = vec![0; 60_000];
    assert_eq!(cache.get_into("whole-0/wanted", &mut bytes).expect("an answer"), Some(bytes.len()));
    assert!(bytes == object(1, 60_000));
    assert_eq!(loaded_ahead(), 1);
}
