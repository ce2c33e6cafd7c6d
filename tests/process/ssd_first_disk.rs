//! A daemon that was started without a disk gets its first one while it runs, and is from then on as if it had been started
//! with it; a place that is refused changes nothing.
//!
//! How: a mount of 64 MiB to which more is written than it holds, before and after the disk is there.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::common::Mount;
use super::common::control::Answer;
use super::common::pattern::{assert_same, bytes};
use super::common::small_disk::SmallDisk;
use super::common::sys::{get_xattr_text, set_xattr};
use super::common::wait::{HANG, until};

const MIB: usize = 1 << 20;
/// Objects that are together larger than memory.
const MANY: u64 = 100;

fn content(number: u64) -> Vec<u8> {
    bytes(number, MIB + usize::try_from(number).expect("it fits") * 37)
}

fn disk() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("tidefs-ssd").tempdir_in("/var/tmp").expect("a directory on a disk")
}

/// A mount without a disk.
fn mount(on_stop: &str) -> Mount {
    mount_with(&[&format!("on_stop={on_stop}")])
}

fn mount_with(more: &[&str]) -> Mount {
    let sizes = ["capacity=64MiB", "ssd.capacity=512MiB", "ssd.zone=8MiB"];
    let pace = ["ssd.queue_ms=60000", "ssd.prefetch_objects=0"];
    Mount::start(&[&sizes[..], &pace, more].concat())
}

fn write(directory: &Path, number: u64) -> PathBuf {
    let path = directory.join(format!("object{number}"));
    fs::write(path.with_extension("tmp"), content(number)).expect("write");
    fs::rename(path.with_extension("tmp"), &path).expect("rename");
    path
}

/// Writes as fast as the disk makes room, so that nothing is dropped for want of time. The daemon has heard of each close then:
/// what is open is not evicted.
fn write_all(mount: &Mount, directory: &Path, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let path = write(directory, number);
        assert!(until(HANG, || mount.free_memory() >= 18 << 20), "no room was made ahead of the writer");
        mount.wait_until_closed([path]);
    }
}

fn all_are_right(directory: &Path, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let path = directory.join(format!("object{number}"));
        let found = fs::read(&path).unwrap_or_else(|error| panic!("read of {}: {error}", path.display()));
        assert_same(&found, &content(number), &path.display().to_string());
    }
}

fn change(mount: &Mount, what: &str, disk: &Path) -> Answer {
    mount.control("POST", &format!("/v1/tier/{what}"), Some(&format!(r#"{{"path":"{}"}}"#, disk.display())))
}

fn status(mount: &Mount) -> serde_json::Value {
    mount.control_get("/v1/status").json()["ssd"].clone()
}

/// Path and state of the only disk.
fn only_disk(mount: &Mount) -> (String, String) {
    let status = status(mount);
    assert_eq!(status["devices"].as_array().expect("a list").len(), 1, "{status}");
    let text = |key: &str| status["devices"][0][key].as_str().expect("a text").to_owned();
    (text("path"), text("state"))
}

fn ready(disk: &Path) -> (String, String) {
    (disk.display().to_string(), "ready".to_owned())
}

/// Names of the daemon's threads that only a daemon with a disk has.
fn threads_for_disks(mount: &Mount) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", mount.pid())).expect("the daemon's threads");
    let names = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    let of_disks = |name: &String| {
        name.starts_with("ssd-") || name == "demoter" || (name.starts_with("load-") && name != "load-0")
    };
    let mut names: Vec<String> = names.map(|name| name.trim().to_owned()).filter(of_disks).collect();
    names.sort();
    names
}

#[test]
fn the_first_disk_of_a_running_daemon_takes_what_is_evicted_and_a_restart_knows_it() {
    let disk = disk();
    let mut mount = mount("keep");
    let namespace = mount.namespace("kv");
    fs::create_dir(namespace.join("a")).expect("mkdir");
    fs::set_permissions(namespace.join("a"), Permissions::from_mode(0o750)).expect("chmod");
    (0..MANY).for_each(|number| drop(write(&namespace, number)));
    assert!(!namespace.join("object0").exists(), "there is nowhere for what left memory to be");
    assert!(status(&mount).is_null(), "{}", status(&mount));
    assert!(!mount.control_get("/v1/metrics").text().contains("tidefs_ssd_records"));
    assert_eq!(threads_for_disks(&mount), [""; 0]);

    let added = change(&mount, "add", disk.path());
    assert_eq!(added.status, 200, "{}", added.text());
    let told = added.json();
    assert_eq!((&told["as_configured"], &told["disks"][0]), (&false.into(), &ready(disk.path()).0.into()));
    assert_eq!(change(&mount, "add", disk.path()).status, 409);
    assert_eq!(only_disk(&mount), ready(disk.path()));
    // A thread names itself when it first runs.
    let are_there = || {
        let threads = threads_for_disks(&mount);
        ["demoter", "load-15", "ssd-reclaim"].iter().all(|name| threads.iter().any(|thread| thread == name))
    };
    assert!(until(HANG, are_there), "{:?}", threads_for_disks(&mount));

    write_all(&mount, &namespace, MANY..2 * MANY);
    let deep = namespace.join("a");
    set_xattr(&deep, "user.tidefs.durability", b"ssd").expect("setxattr");
    write(&deep, 7);
    let first = namespace.join(format!("object{MANY}"));
    assert_eq!(get_xattr_text(&first, "user.tidefs.tier"), "ssd");
    all_are_right(&namespace, MANY..2 * MANY);
    let lines = mount.control("POST", "/v1/verify", Some(r#"{"tier":"ssd"}"#)).text();
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&last["event"], &last["corrupt"]), (&"summary".into(), &0.into()), "{lines}");
    assert!(last["checked_bytes"].as_u64().is_some_and(|checked| checked > 64 << 20), "{lines}");
    assert!(mount.control_get("/v1/metrics").text().contains("tidefs_ssd_records"));

    // Killed with its memory gone, as by a power cut that leaves the state directory.
    let evicted = mount.control("POST", "/v1/evict", Some(r#"{"bytes":67108864}"#));
    assert_eq!(evicted.status, 200, "{}", evicted.text());
    let memory = mount.instance_dir().join("memory");
    mount.kill9();
    nix::mount::umount2(&memory, nix::mount::MntFlags::MNT_DETACH).expect("umount of the memory");
    mount.start_daemon();
    assert!(until(HANG, || status(&mount)["naming"].is_null()));
    assert_eq!(only_disk(&mount), ready(disk.path()));
    assert_eq!(fs::metadata(&deep).expect("stat").permissions().mode() & 0o777, 0o750);
    assert_eq!(get_xattr_text(&deep, "user.tidefs.durability"), "ssd");
    all_are_right(&deep, 7..8);
    // The newest may have been in a zone that was open: its records are found by their headers.
    all_are_right(&namespace, MANY..2 * MANY);
}

#[test]
fn the_first_disk_can_be_removed_again_and_leaves_no_trace() {
    let disk = disk();
    let mut mount = mount("discard");
    let namespace = mount.namespace("kv");
    assert_eq!(change(&mount, "add", disk.path()).status, 200);
    write_all(&mount, &namespace, 0..MANY);
    let evicted = mount.control("POST", "/v1/evict", Some(r#"{"bytes":67108864}"#));
    assert_eq!(evicted.status, 200, "{}", evicted.text());
    // Memory is given up at the end; the disk is not, and the next daemon has it.
    assert!(mount.stop().success());
    mount.start_daemon();
    assert!(until(HANG, || status(&mount)["naming"].is_null()));
    assert_eq!(only_disk(&mount), ready(disk.path()));
    all_are_right(&namespace, 0..MANY);

    let last = change(&mount, "drain", disk.path()).text();
    assert!(last.contains("there is no other disk"), "{last}");
    let held = change(&mount, "remove", disk.path());
    assert_eq!(held.status, 409, "{}", held.text());
    let body = format!(r#"{{"path":"{}","force":true}}"#, disk.path().display());
    let removed = mount.control("POST", "/v1/tier/remove", Some(&body));
    assert_eq!(removed.status, 200, "{}", removed.text());
    assert_eq!(removed.json()["as_configured"], true, "{}", removed.text());
    assert_eq!(fs::read_dir(disk.path()).expect("readdir").count(), 0, "its file is left");
    assert!(mount.stop().success());
    // But for what tells, should another disk of the tier come back, that it was away.
    let left: Vec<_> =
        fs::read_dir(mount.instance_dir()).expect("readdir").map(|entry| entry.expect("entry")).collect();
    assert!(left.len() == 1 && left[0].file_name() == "ssd-epochs.json", "{left:?}");
    mount.start_daemon();
    assert!(status(&mount).is_null(), "{}", status(&mount));
    assert_eq!(threads_for_disks(&mount), [""; 0]);
}

#[test]
fn a_first_disk_that_is_refused_says_why_and_changes_nothing() {
    let mount = mount("discard");
    let namespace = mount.namespace("kv");
    let refused = |disk: &Path, code: u16, says: &str| {
        let answer = change(&mount, "add", disk);
        assert_eq!(answer.status, code, "{}", answer.text());
        assert!(answer.text().contains(says), "{}", answer.text());
    };
    refused(Path::new("/var/tmp/tidefs-no-such-disk"), 404, "make the directory");
    refused(&namespace, 400, "it is in the mount");
    let read_only = SmallDisk::new("48m", nix::mount::MsFlags::MS_RDONLY);
    refused(read_only.path(), 409, "mount it writable");
    let foreign = disk();
    let theirs = bytes(1, 100_000);
    fs::write(foreign.path().join("tidefs.ssd"), &theirs).expect("write");
    refused(foreign.path(), 409, "was not touched");
    assert!(fs::read(foreign.path().join("tidefs.ssd")).expect("read") == theirs, "it was written");
    let used = disk();
    let owner = self::mount("discard");
    assert_eq!(change(&owner, "add", used.path()).status, 200);
    refused(used.path(), 409, "another daemon uses it");
    for what in ["remove", "drain"] {
        let answer = change(&mount, what, used.path()).text();
        assert!(answer.contains("no SSD tier") && answer.contains("tidefs tier add"), "{answer}");
    }
    // What the tier needs beside a disk is not to be had.
    let own = disk();
    let in_the_way = mount.instance_dir().join("ssd-removals");
    // What the attempts before left there.
    let _ = fs::remove_file(&in_the_way);
    fs::create_dir(&in_the_way).expect("mkdir");
    refused(own.path(), 500, "the SSD tier cannot start");
    fs::remove_dir(&in_the_way).expect("rmdir");

    assert!(status(&mount).is_null(), "{}", status(&mount));
    assert!(until(HANG, || threads_for_disks(&mount).is_empty()), "{:?}", threads_for_disks(&mount));
    (0..MANY).for_each(|number| drop(write(&namespace, number)));
    all_are_right(&namespace, MANY - 1..MANY);
    assert_eq!(change(&mount, "add", own.path()).status, 200);
    assert_eq!(only_disk(&mount), ready(own.path()));
}

#[test]
fn a_first_disk_of_a_daemon_whose_state_is_lost_is_refused_and_a_start_with_it_finds_what_it_holds() {
    let disk = disk();
    let mut lost = mount("discard");
    assert_eq!(change(&lost, "add", disk.path()).status, 200);
    write_all(&lost, &lost.namespace("kv"), 0..MANY);
    let evicted = lost.control("POST", "/v1/evict", Some(r#"{"bytes":67108864}"#));
    assert_eq!(evicted.status, 200, "{}", evicted.text());
    assert!(lost.stop().success());
    drop(lost);

    let next = mount("discard");
    let refusal = change(&next, "add", disk.path());
    assert_eq!(refusal.status, 409, "{}", refusal.text());
    assert!(
        refusal.text().contains("started with it in `ssd.dirs` finds what it holds"),
        "{}",
        refusal.text()
    );
    drop(next);

    let found = mount_with(&[&format!("ssd.dirs={}", disk.path().display())]);
    assert!(until(HANG, || status(&found)["naming"].is_null()));
    all_are_right(&found.join("kv"), 0..MANY);
}
