//! `tidefs why`: each verdict that one host can have.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use nix::errno::Errno;
use serde_json::{Value, json};

use super::common::pattern::object;
use super::common::sys::{errno, set_xattr};
use super::common::wait::{HANG, until};
use super::common::{Mount, Peer};
use super::tool::{argument, json as run_json, text};

/// The verdict on `path`; its explanation names the key.
#[track_caller]
fn verdict(mount: &Mount, path: &Path) -> Value {
    let why = run_json(mount, &["why", argument(path)]);
    let key = path.strip_prefix(mount.path()).expect("a path of the mount").display().to_string();
    assert!(why["explanation"].as_str().is_some_and(|text| text.contains(&key)), "{why}");
    let human = text(mount, &["why", argument(path)]);
    assert!(human.contains(&key), "{human}");
    why["verdict"].clone()
}

#[track_caller]
fn assert_kind(verdict: &Value, kind: &str) {
    assert_eq!(verdict["kind"], json!(kind), "{verdict}");
}

#[test]
fn what_was_never_written_and_what_is_here() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    assert_kind(&verdict(&mount, &place.join("never")), "never_written");
    fs::write(place.join("here"), object(1, 100_000)).expect("an object");
    mount.wait_until_closed([place.join("here")]);
    let here = verdict(&mount, &place.join("here"));
    assert_kind(&here, "present");
    assert_eq!(here["tier"], json!("memory"), "{here}");
}

#[test]
fn of_what_was_before_the_last_start_or_in_a_removed_directory_nothing_is_claimed() {
    let mut mount = Mount::start(&["on_stop=keep"]);
    let place = mount.namespace("ns");
    fs::write(place.join("gone"), object(1, 100_000)).expect("an object");
    mount.wait_until_closed([place.join("gone")]);
    run_json(&mount, &["evict", argument(&place.join("gone"))]);
    assert_kind(&verdict(&mount, &place.join("gone")), "evicted");
    assert_kind(&verdict(&mount, &place.join("never")), "never_written");
    let inner = place.join("inner");
    fs::create_dir(&inner).expect("a directory");
    fs::remove_dir(&inner).expect("rmdir");
    assert_kind(&verdict(&mount, &inner.join("key")), "unknown_history_too_old");
    fs::create_dir(&inner).expect("another of that name");
    assert_kind(&verdict(&mount, &inner.join("key")), "unknown_history_too_old");
    mount.restart();
    let unknown = verdict(&mount, &place.join("gone"));
    assert_kind(&unknown, "unknown_history_too_old");
    assert!(unknown["since"].is_string(), "{unknown}");
    let human = text(&mount, &["why", argument(&place.join("gone"))]);
    assert!(
        human.contains("nothing from before its start") && !human.contains("was never written"),
        "{human}"
    );
}

#[test]
fn what_was_evicted_by_pressure_and_by_an_operator() {
    let mount = Mount::start(&["capacity=64MiB", "policy=lru"]);
    let (old, new) = (mount.namespace("old"), mount.namespace("new"));
    fs::write(old.join("first"), object(1, 1 << 20)).expect("an object");
    for number in 0..80 {
        fs::write(new.join(number.to_string()), object(number, 1 << 20)).expect("an object");
    }
    let evicted = verdict(&mount, &old.join("first"));
    assert_kind(&evicted, "evicted");
    assert_eq!(evicted["for_whom"], json!("new"), "{evicted}");
    assert!(evicted["at"].is_string() && evicted["reason"].is_string(), "{evicted}");
    mount.wait_until_closed([new.join("79")]);
    run_json(&mount, &["evict", argument(&new.join("79"))]);
    let evicted = verdict(&mount, &new.join("79"));
    assert_kind(&evicted, "evicted");
    assert_eq!(evicted["for_whom"], json!("operator"), "{evicted}");
    let human = text(&mount, &["why", argument(&new.join("79"))]);
    assert!(!human.contains("room for") && !human.contains("raise the capacity"), "{human}");
}

#[test]
fn what_was_deleted_renamed_and_replaced() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    for name in ["deleted", "moved", "replaced"] {
        fs::write(place.join(name), object(1, 100_000)).expect("an object");
    }
    mount.wait_until_closed(["deleted", "moved", "replaced"].map(|name| place.join(name)));
    fs::remove_file(place.join("deleted")).expect("unlink");
    let deleted = verdict(&mount, &place.join("deleted"));
    assert_kind(&deleted, "deleted");
    assert_eq!(deleted["by_pid"], json!(std::process::id()), "{deleted}");
    fs::rename(place.join("moved"), place.join("there")).expect("rename");
    let moved = verdict(&mount, &place.join("moved"));
    assert_kind(&moved, "renamed");
    assert_eq!(moved["to"], json!("ns/there"), "{moved}");
    // written again: the old history is over
    fs::write(place.join("deleted"), object(2, 100_000)).expect("an object");
    mount.wait_until_closed([place.join("deleted")]);
    assert_kind(&verdict(&mount, &place.join("deleted")), "present");
}

#[test]
fn what_expired() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    set_xattr(&place, "user.tidefs.ttl", b"1h").expect("a time to live");
    fs::write(place.join("short"), object(1, 100_000)).expect("an object");
    mount.wait_until_closed([place.join("short")]);
    assert_kind(&verdict(&mount, &place.join("short")), "present");
    set_xattr(&place, "user.tidefs.ttl", b"1s").expect("a shorter time to live");
    let gone = until(HANG, || !place.join("short").exists());
    assert!(gone, "an object whose time is over is gone");
    assert_kind(&verdict(&mount, &place.join("short")), "expired");
}

#[test]
fn what_is_being_written_and_what_its_writer_left() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    let mut peer = Peer::spawn();
    let handle = peer.open(&place.join("half"), libc::O_RDWR | libc::O_CREAT).expect("create");
    peer.write_at(handle, 0, &[1; 50_000]).expect("write");
    let writing = verdict(&mount, &place.join("half"));
    assert_kind(&writing, "being_written");
    assert_eq!(writing["by_pid"], json!(peer.pid().as_raw()), "{writing}");
    let pid = peer.pid().as_raw();
    peer.kill9();
    let died = || run_json(&mount, &["why", "ns/half"])["verdict"]["kind"] == json!("writer_died");
    assert!(until(super::common::wait::HANG, died), "{}", run_json(&mount, &["why", "ns/half"]));
    assert_eq!(verdict(&mount, &place.join("half"))["pid"], json!(pid));
}

#[test]
fn what_was_refused_by_its_quota() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    set_xattr(&place, "user.tidefs.quota", b"8MiB").expect("a quota");
    set_xattr(&place, "user.tidefs.pin", b"hard").expect("a pin");
    fs::write(place.join("full"), object(1, 7 << 20)).expect("an object");
    // write(2) or close(2) says it; the standard library does not look at what close says.
    let file = File::create(place.join("refused")).expect("a new file");
    let outcome = (&file).write_all(&object(2, 4 << 20)).map_err(|error| errno(&error));
    let outcome = outcome.and(nix::unistd::close(file));
    assert_eq!(outcome, Err(Errno::EDQUOT), "a write over a quota that is full of pins");
    let refused = verdict(&mount, &place.join("refused"));
    assert_kind(&refused, "quota");
    assert_eq!((&refused["namespace"], &refused["quota"]), (&json!("ns"), &json!(8 << 20)), "{refused}");
}
