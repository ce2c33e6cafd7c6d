//! Disks that are added to a running mount, emptied, and taken out, and what a restart makes of that.

use std::fs;
use std::path::Path;

use super::common::pattern::{assert_same, bytes};
use super::common::wait::{HANG, until};
use super::common::{Mount, kernel};

const OBJECTS: u64 = 20;

fn content(number: u64) -> Vec<u8> {
    bytes(number, (1 << 20) + usize::try_from(number).expect("it fits") * 37)
}

fn disk() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("tidefs-ssd").tempdir_in("/var/tmp").expect("a directory on a disk")
}

fn mount_on(disk: &Path) -> Mount {
    let dirs = format!("ssd.dirs={}", disk.display());
    Mount::start(&[
        "capacity=64MiB",
        "ssd.capacity=128MiB",
        "ssd.zone=8MiB",
        "ssd.queue_ms=60000",
        "ssd.prefetch_objects=0",
        "on_stop=keep",
        dirs.as_str(),
    ])
}

fn write_and_evict(mount: &Mount, namespace: &Path, numbers: std::ops::Range<u64>) {
    let path = |number: u64| namespace.join(format!("object{number}"));
    for number in numbers.clone() {
        fs::write(path(number).with_extension("tmp"), content(number)).expect("write");
        fs::rename(path(number).with_extension("tmp"), path(number)).expect("rename");
    }
    mount.wait_until_closed(numbers.map(path));
    let evicted = mount.control("POST", "/v1/evict", Some(r#"{"bytes":67108864}"#));
    assert_eq!(evicted.status, 200, "{}", evicted.text());
}

fn all_are_right(namespace: &Path) {
    for number in 0..2 * OBJECTS {
        let found = fs::read(namespace.join(format!("object{number}"))).expect("read");
        assert_same(&found, &content(number), "an object on disk");
    }
}

/// What programs do that make room themselves (the cleaners of SGLang, the evictor of llm-d): they unlink what is oldest until
/// statfs tells that little enough is used.
#[test]
fn who_unlinks_the_oldest_until_statfs_moves_stops_while_most_is_still_there() {
    let disk = disk();
    let mount = mount_on(disk.path());
    let namespace = mount.namespace("kv");
    let empty = mount.usage();
    assert_eq!(empty.capacity, (64 + 128 - 8) << 20, "both tiers; a zone of the disk is its superblock's");
    write_and_evict(&mount, &namespace, 0..OBJECTS);
    let full = mount.usage();
    assert!(full.used >= OBJECTS << 20, "{full:?}");
    let mut left: Vec<u64> = (0..OBJECTS).collect();
    while mount.usage().used > full.used / 2 {
        fs::remove_file(namespace.join(format!("object{}", left.remove(0)))).expect("unlink");
    }
    assert!(left.len() as u64 >= OBJECTS / 3, "{} of {OBJECTS} objects are left", left.len());
}

/// The number after `name` among the metrics.
fn metric(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.trim().parse().ok()).expect("the metric")
}

#[test]
fn the_bytes_of_a_disk_are_told_by_what_they_were_for_and_make_its_write_amplification() {
    let disk = disk();
    let mut mount = mount_on(disk.path());
    let namespace = mount.namespace("kv");
    write_and_evict(&mount, &namespace, 0..8);
    let object = |number: u64| namespace.join(format!("object{number}"));
    let bytes_of = |number: u64| content(number).len() as u64;
    let status = |mount: &Mount| mount.control_get("/v1/status").json()["ssd"]["devices"][0].clone();
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    assert_same(&fs::read(object(1)).expect("read"), &content(1), "an object on disk");
    fs::remove_file(object(2)).expect("unlink");
    let verified = mount.control("POST", "/v1/verify", Some(r#"{"tier":"ssd"}"#));
    assert_eq!(verified.status, 200, "{}", verified.text());
    if kernel::has_fast_path() {
        let cache = tidefs_client::Cache::open(&namespace).expect("open");
        cache.prefetch(&["object3"]).expect("a hint never fails");
    }
    let ahead = if kernel::has_fast_path() { bytes_of(3) } else { 0 };
    let is_told = || {
        let device = status(&mount);
        number(&device["read_for"]["ahead"]) >= ahead && number(&device["written_for"]["removals"]) > 0
    };
    assert!(until(HANG, is_told), "{}", status(&mount));
    // Both tell of one moment when nothing was read or written in between.
    let (mut device, mut metrics) = (status(&mount), String::new());
    let is_quiet = || {
        metrics = mount.control_get("/v1/metrics").text();
        let before = std::mem::replace(&mut device, status(&mount));
        ["written", "read", "stored"].iter().all(|total| before[*total] == device[*total])
    };
    assert!(until(HANG, is_quiet), "the disk is never quiet");
    let of = |what: &str, reason: &str| number(&device[what][reason]);
    // Headers and padding are less than two blocks of each object.
    let stored: u64 = (0..8).map(bytes_of).sum();
    assert_eq!(number(&device["stored"]), stored);
    assert!((stored..=stored + 10 * 8192).contains(&of("written_for", "objects")), "{device}");
    assert!((bytes_of(1)..bytes_of(1) + 8192).contains(&of("read_for", "use")), "{device}");
    assert!((ahead..=ahead + 8192).contains(&of("read_for", "ahead")), "{device}");
    assert!(of("read_for", "check") >= 7 << 20, "all that stands there is compared: {device}");
    assert!(of("written_for", "structures") > 0 && of("written_for", "again") == 0, "{device}");
    for (total, by_reason) in [("written", "written_for"), ("read", "read_for")] {
        let sum: u64 = device[by_reason].as_object().expect("a map").values().map(number).sum();
        assert_eq!(sum, number(&device[total]), "{device}");
        for reason in device[by_reason].as_object().expect("a map").keys() {
            let labels = format!("{{device=\"{}\",reason=\"{reason}\"}}", disk.path().display());
            let name = format!("tidefs_ssd_{total}_by_reason_bytes_total{labels}");
            assert_eq!(metric(&metrics, &name), of(by_reason, reason), "{name}");
        }
    }
    let amplification = number(&device["written"]) as f64 / number(&device["stored"]) as f64;
    assert!((1.0..1.1).contains(&amplification), "{amplification}");
    mount.restart();
    assert!(number(&status(&mount)["read_for"]["structures"]) > 0, "a start reads what is there");
}

/// Path and state of each disk.
fn disks(mount: &Mount) -> Vec<(String, String)> {
    let status = mount.control_get("/v1/status").json();
    let devices = status["ssd"]["devices"].as_array().expect("a list").clone();
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    devices.iter().map(|device| (text(&device["path"]), text(&device["state"]))).collect()
}

#[test]
fn a_disk_is_not_added_with_more_than_it_has() {
    let (disk, other) = (disk(), disk());
    let mount = mount_on(disk.path());
    let place = other.path().display();
    let add = |capacity: u64| {
        let body = format!(r#"{{"path":"{place}","capacity":{capacity}}}"#);
        mount.control("POST", "/v1/tier/add", Some(&body))
    };
    let refused = add(1 << 60);
    let text = refused.text();
    assert_eq!(refused.status, 400, "{text}");
    assert!(text.contains("more than the disk has") && text.contains("ask for less"), "{text}");
    assert_eq!(disks(&mount).len(), 1);
    assert_eq!(fs::read_dir(other.path()).expect("a directory").count(), 0, "nothing is left in it");
    let added = add(64 << 20);
    assert_eq!(added.status, 200, "{}", added.text());
}

fn change(mount: &Mount, what: &str, disk: &Path) -> super::common::control::Answer {
    mount.control("POST", &format!("/v1/tier/{what}"), Some(&format!(r#"{{"path":"{}"}}"#, disk.display())))
}

#[test]
fn a_disk_has_one_name_and_is_not_in_the_mount_by_whatever_way_a_path_leads_there() {
    let (first, second) = (disk(), disk());
    let mount = mount_on(first.path());
    let inside = mount.namespace("kv");
    let link = first.path().join("link");
    std::os::unix::fs::symlink(&inside, &link).expect("a link");
    let from_root = inside.strip_prefix("/").expect("an absolute path");
    let by_dots = first.path().join("../../../../../../../..").join(from_root);
    for way in [inside, link, by_dots] {
        let refused = change(&mount, "add", &way);
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert!(refused.text().contains("it is in the mount"), "{}", refused.text());
    }
    let with_slash = second.path().join("");
    assert!(with_slash.display().to_string().ends_with('/'));
    let added = change(&mount, "add", &with_slash);
    assert_eq!(added.status, 200, "{}", added.text());
    assert_eq!(disks(&mount)[1].0, second.path().display().to_string());
    assert_eq!(change(&mount, "add", second.path()).status, 409);
    let removed = change(&mount, "remove", &with_slash);
    assert_eq!(removed.status, 200, "{}", removed.text());
    assert_eq!(disks(&mount).len(), 1);
}

#[test]
fn a_disk_is_added_another_emptied_and_removed_and_a_restart_knows_it() {
    let (first, second) = (disk(), disk());
    let mut mount = mount_on(first.path());
    let namespace = mount.namespace("kv");
    write_and_evict(&mount, &namespace, 0..OBJECTS);
    let added = change(&mount, "add", second.path());
    assert_eq!(added.status, 200, "{}", added.text());
    assert_eq!(added.json()["as_configured"], false, "{}", added.text());
    assert_eq!(change(&mount, "add", second.path()).status, 409);
    write_and_evict(&mount, &namespace, OBJECTS..2 * OBJECTS);
    let paths = [first.path(), second.path()].map(|path| path.display().to_string());
    assert_eq!(disks(&mount), paths.clone().map(|path| (path, "ready".to_owned())));
    let written = mount.control_get("/v1/status").json()["ssd"]["devices"][1]["written"].as_u64();
    assert!(written.expect("a number") > 1 << 20, "the new disk takes nothing");
    // Killed and started again, it has both.
    mount.kill9();
    mount.restart();
    assert_eq!(disks(&mount).len(), 2, "{:?}", disks(&mount));
    all_are_right(&namespace);
    let evicted = mount.control("POST", "/v1/evict", Some(r#"{"bytes":67108864}"#));
    assert_eq!(evicted.status, 200, "{}", evicted.text());

    let refused = change(&mount, "remove", first.path());
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(refused.text().contains("tidefs tier drain"), "{}", refused.text());
    let lines = change(&mount, "drain", first.path()).text();
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().expect("a line")).expect("JSON");
    assert_eq!(
        (&last["event"], &last["left"], &last["lost"]),
        (&"summary".into(), &0.into(), &0.into()),
        "{lines}"
    );
    assert!(last["moved"].as_u64().expect("a number") > 0, "{lines}");
    assert_eq!(disks(&mount)[0].1, "leaving");
    all_are_right(&namespace);
    let removed = change(&mount, "remove", first.path());
    assert_eq!(removed.status, 200, "{}", removed.text());
    assert!(!first.path().join("tidefs.ssd").exists(), "its file is left");
    mount.kill9();
    mount.restart();
    assert_eq!(disks(&mount), [(paths[1].clone(), "ready".to_owned())]);
    all_are_right(&namespace);
    let lines = change(&mount, "drain", second.path()).text();
    assert!(lines.contains("there is no other disk"), "{lines}");
    assert_eq!(change(&mount, "remove", Path::new("/var/tmp/tidefs-no-such-disk")).status, 404);
    assert_eq!(change(&mount, "add", Path::new("/var/tmp/tidefs-no-such-disk")).status, 404);
}
