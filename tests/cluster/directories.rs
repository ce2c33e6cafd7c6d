//! Directories are the same on all hosts: their policy, their owner and mode, and that they are there.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;

use crate::common::sys::{get_xattr, get_xattr_text, remove_xattr, set_xattr};
use crate::common::{Peer, wait};
use crate::fixture::{Hosts, object, publish};

const STRANGER: u32 = 54_322;

fn set(path: &Path, name: &str, value: &str) {
    set_xattr(path, name, value.as_bytes()).unwrap_or_else(|error| panic!("{name}={value}: {error}"));
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

fn stranger() -> Peer {
    let mut peer = Peer::spawn();
    peer.become_user(STRANGER, STRANGER);
    peer
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a listing");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
}

/// What etcd holds about directories, as text.
fn agreed(hosts: &Hosts) -> String {
    let output = Command::new("etcdctl")
        // What etcd 3.3 speaks otherwise is the protocol before this one.
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &hosts.endpoint(), "get", "--prefix", "/tidefs/"])
        .output()
        .expect("etcdctl is installed (packaging/dev.sh deps)");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn policy_that_is_set_on_one_host_holds_on_all_when_setfattr_returns() {
    let hosts = Hosts::start(3, &[]);
    fs::create_dir(hosts.mounts[0].join("whole-0/sub")).expect("a directory");
    let values = [
        ("quota", "33554432"),
        ("floor", "4194304"),
        ("ttl", "7200s"),
        ("pin", "soft:600s"),
        ("priority", "7"),
        ("policy", "lru"),
        ("scratch", "false"),
        ("durability", "memory"),
        ("replicas", "2"),
        ("recompute_bytes_per_second", "1048576"),
    ];
    for directory in ["whole-0", "whole-0/sub"] {
        for (round, (name, value)) in values.into_iter().enumerate() {
            let name = format!("user.tidefs.{name}");
            // By any of them, not by its maker alone.
            set(&hosts.mounts[round % 3].join(directory), &name, value);
            for mount in &hosts.mounts {
                assert_eq!(get_xattr_text(&mount.join(directory), &name), value, "{name} of {directory}");
            }
        }
    }
    for mount in &hosts.mounts {
        let file = mount.join("whole-0/sub/key");
        publish(&file, &object(1, 5000));
        assert_eq!(get_xattr_text(&file, "user.tidefs.priority"), "7", "it is inherited");
        fs::remove_file(&file).expect("the unlink");
    }
    remove_xattr(&hosts.mounts[2].join("whole-0/sub"), "user.tidefs.priority").expect("it is set");
    set(&hosts.mounts[1].join("whole-0"), "user.tidefs.priority", "-3");
    for mount in &hosts.mounts {
        assert_eq!(get_xattr_text(&mount.join("whole-0/sub"), "user.tidefs.priority"), "-3");
    }
    set(hosts.mounts[2].path(), "user.tidefs.ttl", "3600s");
    for mount in &hosts.mounts {
        assert_eq!(
            get_xattr_text(&mount.join("whole-1"), "user.tidefs.ttl"),
            "3600s",
            "the root's holds below it"
        );
    }
    let again = remove_xattr(&hosts.mounts[0].join("whole-0/sub"), "user.tidefs.priority");
    assert_eq!(again, Err(Errno::ENODATA));
    let bad = set_xattr(&hosts.mounts[0].join("whole-0"), "user.tidefs.quota", b"much");
    assert_eq!(bad, Err(Errno::EINVAL));
}

#[test]
fn owner_and_mode_of_a_directory_are_those_of_all_hosts_when_chmod_returns() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0"));
    for length in [300, 70_000] {
        publish(&a.join(format!("key-{length}")), &object(length as u64, length));
    }
    let mut stranger = stranger();
    for round in 0..10 {
        // In turns by each of them.
        let (near, far) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        for length in [300, 70_000] {
            assert!(stranger.read(&far.join(format!("key-{length}"))).is_ok(), "everyone may read it");
        }
        chmod(near, 0o700);
        for length in [300, 70_000] {
            assert_eq!(
                stranger.read(&far.join(format!("key-{length}"))),
                Err(Errno::EACCES),
                "round {round}"
            );
        }
        assert_eq!(fs::metadata(far).expect("it is there").mode() & 0o7777, 0o700);
        chmod(far, 0o755);
    }
    std::os::unix::fs::chown(&b, Some(STRANGER), Some(77)).expect("chown");
    let facts = fs::metadata(&a).expect("it is there");
    assert_eq!((facts.uid(), facts.gid()), (STRANGER, 77));
}

#[test]
fn an_object_that_is_denied_on_one_host_is_denied_on_all_when_chmod_returns() {
    let hosts = Hosts::start(3, &[]);
    let [a, b, c] = [0, 1, 2].map(|index| hosts.mounts[index].join("whole-0"));
    let mut stranger = stranger();
    for (round, length) in [300, 70_000, 300, 70_000].into_iter().enumerate() {
        let (name, bytes) = (format!("key-{round}"), object(round as u64, length));
        publish(&a.join(&name), &bytes);
        for host in [&b, &c] {
            assert_eq!(stranger.read(&host.join(&name)).expect("everyone may read it"), bytes);
        }
        // By who wrote it, or by who has a copy.
        chmod(&[&a, &b][round / 2].join(&name), 0o600);
        for host in [&a, &b, &c] {
            assert_eq!(stranger.read(&host.join(&name)), Err(Errno::EACCES), "{name}");
            assert_eq!(fs::read(host.join(&name)).expect("its owner may"), bytes, "{name}");
        }
    }
}

#[test]
fn policy_and_mode_of_a_namespace_outlive_every_host() {
    let mut hosts = Hosts::start(2, &[]);
    let [quota, name] = ["user.tidefs.quota", "models"];
    fs::create_dir(hosts.mounts[0].join(name)).expect("a namespace");
    set(&hosts.mounts[0].join(name), quota, "1048576");
    chmod(&hosts.mounts[0].join(name), 0o750);
    let holds = |path: &Path| {
        // A host that etcd keeps waiting serves alone at first.
        assert!(wait::until(wait::HANG, || path.is_dir()), "{} is not there", path.display());
        assert_eq!(get_xattr_text(path, quota), "1048576");
        assert_eq!(fs::metadata(path).expect("it is there").mode() & 0o7777, 0o750);
    };
    // One that keeps nothing.
    hosts.mounts[1].restart();
    holds(&hosts.mounts[1].join(name));
    hosts.mounts[0].kill9();
    holds(&hosts.mounts[1].join(name));
    hosts.mounts[1].restart();
    holds(&hosts.mounts[1].join(name));
    hosts.add(&[]);
    let newcomer = &hosts.mounts[2];
    holds(&newcomer.join(name));
    assert!(names(newcomer.path()).contains(&name.to_owned()), "a namespace whose maker died is not listed");
}

#[test]
fn while_etcd_is_away_policy_is_refused_and_namespaces_are_agreed_on_later() {
    let mut hosts = Hosts::start(2, &["cluster.patience_ms=1000"]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].path().to_owned());
    publish(&a.join("whole-0/key"), &object(1, 60_000));
    hosts.etcd().stop();
    let is_read = |path: &Path, seed| fs::read(path).is_ok_and(|found| found == object(seed, 60_000));
    let refused = set_xattr(&a.join("whole-0"), "user.tidefs.quota", b"1MiB");
    assert_eq!(refused, Err(Errno::ETIMEDOUT));
    let refused = fs::set_permissions(a.join("whole-0"), Permissions::from_mode(0o700));
    assert_eq!(refused.expect_err("it is for all to agree on").raw_os_error(), Some(libc::ETIMEDOUT));
    let refused = fs::remove_dir(a.join("whole-1")).expect_err("it is for all to agree on");
    assert_eq!(refused.raw_os_error(), Some(libc::ETIMEDOUT));
    assert!(hosts.metric(0, "tidefs_agreements_refused_total") >= 3);
    let log = hosts.mounts[0].log();
    assert!(log.contains("reads and writes go on meanwhile"), "{log}");
    for host in [&a, &b] {
        assert_eq!(get_xattr(&host.join("whole-0"), "user.tidefs.quota"), Err(Errno::ENODATA));
        assert_eq!(fs::metadata(host.join("whole-0")).expect("it is there").mode() & 0o7777, 0o755);
        assert!(host.join("whole-1").is_dir());
        assert!(wait::until(wait::HANG, || is_read(&host.join("whole-0/key"), 1)), "reads go on");
    }
    fs::create_dir(a.join("meanwhile")).expect("a namespace can be made");
    assert!(wait::until(wait::HANG, || b.join("meanwhile").is_dir()), "it is not seen");
    publish(&b.join("meanwhile/key"), &object(2, 60_000));
    assert!(wait::until(wait::HANG, || is_read(&a.join("meanwhile/key"), 2)), "writes go on");
    hosts.etcd().start_again();
    let is_agreed = || agreed(&hosts).contains("/namespaces/meanwhile");
    assert!(wait::until(Duration::from_secs(30), is_agreed), "{}", agreed(&hosts));
    let is_set = || set_xattr(&a.join("meanwhile"), "user.tidefs.quota", b"1MiB").is_ok();
    assert!(wait::until(Duration::from_secs(30), is_set), "policy can be set again");
    let is_heard =
        || get_xattr(&b.join("meanwhile"), "user.tidefs.quota").is_ok_and(|text| text == b"1048576");
    assert!(wait::until(Duration::from_secs(30), is_heard), "all hosts hear of it");
}

#[test]
fn a_namespace_that_is_removed_takes_its_policy_along() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("models"));
    for round in 0..5 {
        let (maker, other) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        fs::create_dir(maker).expect("a namespace");
        assert_eq!(get_xattr(other, "user.tidefs.quota"), Err(Errno::ENODATA), "round {round}");
        set(other, "user.tidefs.quota", "1048576");
        publish(&maker.join("key"), &object(1, 5000));
        let refused = fs::remove_dir(other).expect_err("it is not empty");
        assert_eq!(refused.raw_os_error(), Some(libc::ENOTEMPTY));
        assert_eq!(get_xattr_text(maker, "user.tidefs.quota"), "1048576");
        fs::remove_file(other.join("key")).expect("the unlink");
        fs::remove_dir(other).expect("it is empty");
        assert!(!maker.exists() && !other.exists(), "round {round}");
        assert!(!agreed(&hosts).contains("/namespaces/models"));
    }
}

#[test]
fn a_directory_is_not_renamed_and_stays_as_it_is_on_all_hosts() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].path().to_owned());
    fs::create_dir(a.join("whole-0/sub")).expect("a directory");
    publish(&a.join("whole-0/sub/key"), &object(1, 5000));
    for (from, to) in [("whole-0/sub", "whole-0/other"), ("whole-0", "other")] {
        let refused = fs::rename(b.join(from), b.join(to)).expect_err("it does not move");
        assert_eq!(refused.raw_os_error(), Some(libc::EXDEV));
        assert!(!a.join(to).exists() && !b.join(to).exists());
    }
    assert_eq!(fs::read(b.join("whole-0/sub/key")).expect("it is there"), object(1, 5000));
}

#[test]
fn who_has_an_object_open_keeps_it_when_another_host_removes_it() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0/key"));
    for length in [300, 70_000, 5 << 20] {
        publish(&a, &object(1, length));
        let mut open = fs::File::open(&b).expect("it is there");
        fs::remove_file(&a).expect("the unlink");
        for host in [&a, &b] {
            let gone = fs::read(host).expect_err("its name is gone");
            assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
        }
        let mut kept = Vec::new();
        open.read_to_end(&mut kept).expect("its bytes");
        assert_eq!(kept, object(1, length));
    }
}

/// Another host removes a directory that is empty for it: who writes a file there publishes it all the same.
#[test]
fn what_is_being_written_in_a_directory_that_another_host_removes_is_found_everywhere() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0/sub"));
    fs::create_dir(&a).expect("a directory");
    let file = fs::File::create(a.join("key.tmp")).expect("a file that is being written");
    fs::remove_dir(&b).expect("it is empty for the other host");
    fs::write(a.join("key.tmp"), object(1, 40_000)).expect("write");
    fs::rename(a.join("key.tmp"), a.join("key")).expect("the rename");
    drop(file);
    let is_found = || fs::read(b.join("key")).is_ok_and(|found| found == object(1, 40_000));
    assert!(wait::until(wait::HANG, is_found), "the other host does not find it");
}

/// The host that has the only object of a namespace does not answer while another one removes what is empty for it.
#[test]
fn a_namespace_in_which_a_silent_host_holds_something_is_not_removed() {
    let hosts = Hosts::start(2, &["cluster.patience_ms=1000"]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("models"));
    fs::create_dir(&b).expect("a namespace");
    set(&b, "user.tidefs.quota", "1048576");
    publish(&b.join("key"), &object(1, 5000));
    hosts.mounts[1].stand_still();
    let removed = fs::remove_dir(&a);
    hosts.mounts[1].go_on();
    assert_eq!(removed.expect_err("it may not be empty").raw_os_error(), Some(libc::EBUSY));
    assert!(hosts.mounts[0].log().contains("do not say what they hold in it"));
    let is_refused = || {
        let refused = fs::remove_dir(&a).expect_err("it is not empty");
        refused.raw_os_error() == Some(libc::ENOTEMPTY)
    };
    assert!(wait::until(wait::HANG, is_refused), "the other host is back");
    for host in [&a, &b] {
        assert_eq!(get_xattr_text(host, "user.tidefs.quota"), "1048576");
        assert_eq!(fs::read(host.join("key")).expect("it is there"), object(1, 5000));
    }
    fs::remove_file(a.join("key")).expect("the unlink");
    fs::remove_dir(&a).expect("it is empty");
}

#[test]
fn a_host_that_has_not_joined_yet_removes_no_directory() {
    let mut hosts = Hosts::start(2, &["on_stop=keep"]);
    fs::create_dir(hosts.mounts[0].join("whole-0/sub")).expect("a directory");
    hosts.etcd().stop();
    hosts.mounts[0].restart();
    for (name, errno) in [("whole-1", libc::ETIMEDOUT), ("whole-0/sub", libc::EBUSY)] {
        let directory = hosts.mounts[0].join(name);
        let refused = fs::remove_dir(&directory).expect_err("others may hold something in it");
        assert_eq!(refused.raw_os_error(), Some(errno), "{name}");
        assert!(directory.is_dir());
    }
    hosts.etcd().start_again();
    let [here, there] = [0, 1].map(|index| hosts.mounts[index].join("whole-0/sub"));
    assert!(wait::until(3 * wait::HANG, || fs::remove_dir(&here).is_ok()), "it is empty on both");
    assert!(wait::until(wait::HANG, || !there.exists()));
}
