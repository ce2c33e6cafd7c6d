//! What becomes of members when etcd, which they find each other by, is led by another server or cannot be reached by one of
//! them; and members that find each other without it.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};

use crate::common::etcd::Etcd;
use crate::common::{program, wait};
use crate::fixture::{Hosts, object, publish};
use crate::way::{Way, free_port};

const LONG: Duration = Duration::from_secs(40);

/// Every host reads every object in the end, the same bytes each.
#[track_caller]
fn all_read(hosts: &Hosts, objects: &BTreeMap<String, u64>) {
    for (name, &seed) in objects {
        for (host, mount) in hosts.mounts.iter().enumerate() {
            let path = mount.join(name);
            let is_right = || fs::read(&path).is_ok_and(|found| found == object(seed, 60_000));
            assert!(wait::until(LONG, is_right), "{name} on host {host}: {:?}", fs::metadata(&path));
        }
    }
}

#[test]
fn a_host_that_is_cut_off_from_etcd_serves_on_and_nothing_is_double_when_it_is_back() {
    let etcd = Etcd::start();
    let way = Way::to(etcd.port());
    let mut hosts = Hosts { mounts: Vec::new(), etcd: Some(etcd) };
    let by_way = format!("cluster.etcd=http://127.0.0.1:{}", way.port);
    hosts.add(&[&by_way]);
    hosts.add(&[]);
    hosts.add(&[]);
    hosts.wait_until_whole();
    let mut objects = BTreeMap::new();
    let mut put = |hosts: &Hosts, host: usize, name: String, seed: u64| {
        publish(&hosts.mounts[host].join(&name), &object(seed, 60_000));
        objects.insert(name, seed);
    };
    for number in 0..12_u64 {
        put(&hosts, usize::try_from(number % 3).expect("small"), format!("whole-0/before-{number}"), number);
    }
    way.close();
    // Its lease ends, and etcd tells the others that it is gone.
    assert!(wait::until(LONG, || hosts.members(1) == 2 && hosts.members(2) == 2), "its lease never ends");
    assert_eq!(hosts.members(0), 3, "it knows of no change");
    for number in 0..12_u64 {
        put(
            &hosts,
            usize::try_from(number % 3).expect("small"),
            format!("whole-0/apart-{number}"),
            100 + number,
        );
        // What another one wrote before is replaced on the other side.
        if number % 4 == 0 {
            put(&hosts, 1, format!("whole-0/before-{number}"), 200 + number);
        }
    }
    way.open();
    let have_met = || (0..3).all(|host| hosts.has_met(host, 3));
    assert!(wait::until(LONG, have_met), "it does not come back");
    all_read(&hosts, &objects);
    let names = |host: usize| {
        let mut names: Vec<_> = fs::read_dir(hosts.mounts[host].join("whole-0"))
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    };
    let wanted: Vec<_> = objects.keys().map(|name| name.trim_start_matches("whole-0/").to_owned()).collect();
    for host in 0..3 {
        assert!(wait::until(LONG, || names(host) == wanted), "host {host}: {:?}", names(host));
    }
}

/// Which of the servers leads.
fn leader(servers: &[Etcd]) -> Option<usize> {
    servers.iter().position(|server| {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3");
        command.args(["--endpoints", &server.endpoint(), "endpoint", "status", "--write-out", "json"]);
        let asked = program::run(&mut command, LONG);
        let found: serde_json::Value = serde_json::from_str(&asked.output).unwrap_or_default();
        let status = &found[0]["Status"];
        status["leader"].is_u64() && status["leader"] == status["header"]["member_id"]
    })
}

#[test]
fn when_another_etcd_leads_members_stay_and_new_ones_come() {
    let mut servers = Etcd::start_many(3);
    let endpoints: Vec<_> = servers.iter().map(Etcd::endpoint).collect();
    let by_all = format!("cluster.etcd={}", endpoints.join(" "));
    let mut hosts = Hosts { mounts: Vec::new(), etcd: None };
    hosts.add(&[&by_all]);
    hosts.add(&[&by_all]);
    hosts.wait_until_whole();
    let mut objects = BTreeMap::new();
    for number in 0..6_u64 {
        let name = format!("whole-1/{number}");
        publish(&hosts.mounts[1].join(&name), &object(number, 60_000));
        objects.insert(name, number);
    }
    let mut first = None;
    let is_known = || {
        first = leader(&servers);
        first.is_some()
    };
    assert!(wait::until(LONG, is_known), "nobody leads");
    let first = first.expect("one leads");
    servers[first].stop();
    let is_led = || leader(&servers).is_some_and(|now| now != first);
    assert!(wait::until(LONG, is_led), "nobody else leads");
    assert_eq!(hosts.members(0), 2, "who was there is there");
    all_read(&hosts, &objects);
    // A change that etcd has to know of.
    let place = hosts.mounts[0].join("agreed");
    assert!(wait::until(LONG, || fs::create_dir(&place).is_ok() || Path::new(&place).is_dir()));
    hosts.add(&[&by_all]);
    hosts.wait_until_whole();
    assert!(hosts.mounts[2].join("agreed").is_dir());
    all_read(&hosts, &objects);
}

#[test]
fn hosts_without_etcd_meet_at_one_of_them_and_go_on_while_it_is_away() {
    let port = free_port();
    let coordinator = format!("cluster.coordinator=127.0.0.1:{port}");
    let mut hosts = Hosts { mounts: Vec::new(), etcd: None };
    (0..3).for_each(|_| hosts.add(&[&coordinator, "cluster.patience_ms=2000"]));
    hosts.wait_until_whole();
    let modes = |hosts: &Hosts, seen_by: usize| {
        let mode =
            |name: &str| fs::metadata(hosts.mounts[seen_by].join(name)).map(|found| found.mode() & 0o777);
        [mode("whole-1").expect("a namespace"), mode("whole-2").expect("a namespace")]
    };
    fs::set_permissions(hosts.mounts[1].join("whole-1"), Permissions::from_mode(0o711)).expect("agreed");
    assert_eq!(modes(&hosts, 2)[0], 0o711);
    publish(&hosts.mounts[1].join("whole-1/before"), &object(1, 60_000));
    assert_eq!(fs::read(hosts.mounts[2].join("whole-1/before")).expect("it is there"), object(1, 60_000));

    hosts.mounts[0].kill9();
    publish(&hosts.mounts[2].join("whole-2/meanwhile"), &object(2, 60_000));
    // Who has no processor for as long as members are patient is not waited for.
    let meanwhile = hosts.mounts[1].join("whole-2/meanwhile");
    let is_there = || fs::read(&meanwhile).is_ok_and(|found| found == object(2, 60_000));
    assert!(wait::until(wait::HANG, is_there), "writes and reads go on");
    let is_told = || hosts.mounts[1].control_get("/v1/status").text().contains("the coordinator is away");
    assert!(wait::until(wait::HANG, is_told), "nobody is told that the coordinator is away");
    let refused = fs::set_permissions(hosts.mounts[2].join("whole-2"), Permissions::from_mode(0o711));
    assert_eq!(refused.expect_err("not agreed").raw_os_error(), Some(libc::ETIMEDOUT));

    hosts.mounts[0].start_daemon();
    let are_met = || (0..3).all(|host| hosts.has_met(host, 3));
    assert!(wait::until(wait::HANG, are_met), "they do not meet again");
    fs::set_permissions(hosts.mounts[2].join("whole-2"), Permissions::from_mode(0o700)).expect("agreed");
    assert_eq!(modes(&hosts, 0), [0o711, 0o700], "what was agreed on outlives the coordinator's process");
    assert_eq!(fs::read(hosts.mounts[0].join("whole-2/meanwhile")).expect("it is there"), object(2, 60_000));
    fs::remove_file(hosts.mounts[0].join("whole-1/before")).expect("an unlink");
    assert!(!hosts.mounts[1].join("whole-1/before").exists());
}

fn ip(arguments: &str) {
    let mut command = Command::new("ip");
    program::run(command.args(arguments.split(' ')), LONG).success(arguments);
}

#[test]
fn a_host_that_starts_before_its_network_coordinates_once_the_address_is_up() {
    let test = || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            eprintln!("SKIPPED: no network namespace can be made, which needs root: {error}");
            return;
        }
        // What this thread starts is in its network.
        ip("link set lo up");
        let coordinator = "cluster.coordinator=10.77.1.1:7401";
        let mut hosts = Hosts { mounts: Vec::new(), etcd: None };
        hosts.add(&[coordinator]);
        let status = || hosts.mounts[0].control_get("/v1/status").text();
        assert!(wait::until(wait::HANG, || status().contains("serves alone")), "{}", status());
        ip("address add 10.77.1.1/32 dev lo");
        assert!(wait::until(LONG, || !status().contains("serves alone")), "{}", status());
        hosts.add(&[coordinator]);
        hosts.wait_until_whole();
        publish(&hosts.mounts[0].join("whole-0/a"), &object(1, 60_000));
        assert_eq!(fs::read(hosts.mounts[1].join("whole-0/a")).expect("it is there"), object(1, 60_000));
    };
    // In a thread of its own, which the daemons end with: the next test of this one is to be in the network of all.
    thread::scope(|scope| scope.spawn(test).join()).expect("the test");
}
