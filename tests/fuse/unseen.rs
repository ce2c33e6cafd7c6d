//! A daemon in a container of its own: to it all who use the mount are one process, of which it knows nothing.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::common::modes::in_both_modes;
use crate::common::pattern::{self, assert_same};
use crate::common::{Mode, Mount, Peer};

in_both_modes!(
    no_half_of_a_file_is_shown_to_anybody_when_the_writer_is_not_seen,
    a_rewrite_by_a_writer_that_is_not_seen_shows_the_old_version_until_its_close,
    writers_that_are_not_seen_rewrite_their_keys_side_by_side,
    what_is_renamed_by_a_writer_that_is_not_seen_is_whole,
    an_operator_is_told_of_writers_that_are_not_seen,
);

fn kv(mode: Mode) -> (Mount, PathBuf) {
    let mut mount = Mount::prepare(&mode.options(&[]));
    mount.start_daemon_apart();
    let namespace = mount.namespace("kv");
    (mount, namespace)
}

fn unseen_writers(mount: &Mount) -> bool {
    let metrics = mount.control_get("/v1/metrics").text();
    !metrics.lines().any(|line| line == "tidefs_unknown_writers_total 0")
}

fn assert_absent(peer: &mut Peer, path: &Path, when: &str) {
    assert_eq!(peer.stat(path).map(|facts| facts.size), Err(Errno::ENOENT), "{when}");
    assert_eq!(peer.read(path).map(|bytes| bytes.len()), Err(Errno::ENOENT), "{when}");
}

fn no_half_of_a_file_is_shown_to_anybody_when_the_writer_is_not_seen(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut writer, mut joined, mut other) = (Peer::spawn(), Peer::spawn(), Peer::spawn());
    let (path, bytes) = (kv.join("key"), pattern::bytes(1, 300_000));
    let handle = writer.open(&path, libc::O_WRONLY | libc::O_CREAT).expect("create");
    writer.write_at(handle, 0, &bytes[..100_000]).expect("write");
    assert_absent(&mut other, &path, "while it is written");
    let second = joined.open(&path, libc::O_WRONLY | libc::O_CREAT).expect("join");
    writer.close(handle).expect("close");
    assert_absent(&mut other, &path, "while another writer has it open");
    joined.write_at(second, 100_000, &bytes[100_000..]).expect("write");
    joined.close(second).expect("close");
    assert_same(&other.read(&path).expect("read"), &bytes, "after the last close");
}

fn a_rewrite_by_a_writer_that_is_not_seen_shows_the_old_version_until_its_close(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut writer, mut other) = (Peer::spawn(), Peer::spawn());
    let path = kv.join("key");
    std::fs::write(&path, pattern::bytes(0, 50_000)).expect("write");
    for round in 1..=8 {
        let old = pattern::bytes(round - 1, 50_000);
        // A reader that has it open lets no version be made in place.
        let held = (round % 2 == 0).then(|| other.open(&path, libc::O_RDONLY).expect("open"));
        let handle = writer.open(&path, libc::O_WRONLY | libc::O_TRUNC).expect("open to rewrite");
        let new = pattern::bytes(round, 50_000);
        writer.write_at(handle, 0, &new[..20_000]).expect("write");
        match other.read(&path) {
            Ok(found) => assert_same(&found, &old, "while it is rewritten"),
            // It is rewritten in place, as nobody had it open: a miss.
            Err(error) => assert_eq!((error, held.is_some()), (Errno::ENOENT, false)),
        }
        writer.write_at(handle, 20_000, &new[20_000..]).expect("write");
        writer.close(handle).expect("close");
        assert_same(&other.read(&path).expect("read"), &new, "after the close");
        if let Some(held) = held {
            other.close(held).expect("close");
        }
    }
}

fn writers_that_are_not_seen_rewrite_their_keys_side_by_side(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let write_and_read = |number: u64| {
        let path = kv.join(format!("key{number}"));
        for round in 0..100 {
            let bytes = pattern::bytes(number + 4 * round, 20_000);
            std::fs::write(&path, &bytes).unwrap_or_else(|error| panic!("round {round}: {error}"));
            assert_same(&std::fs::read(&path).expect("read"), &bytes, "its own key");
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|number| drop(scope.spawn(move || write_and_read(number))));
    });
}

fn what_is_renamed_by_a_writer_that_is_not_seen_is_whole(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut writer, mut other) = (Peer::spawn(), Peer::spawn());
    let bytes = pattern::bytes(3, 300_000);
    for _ in 0..3 {
        let handle = writer.open(&kv.join("key.tmp"), libc::O_WRONLY | libc::O_CREAT).expect("create");
        writer.write_at(handle, 0, &bytes).expect("write");
        writer.rename(&kv.join("key.tmp"), &kv.join("key")).expect("rename, still open");
        assert_same(&other.read(&kv.join("key")).expect("read"), &bytes, "at the rename");
        writer.close(handle).expect("close");
    }
}

fn an_operator_is_told_of_writers_that_are_not_seen(mode: Mode) {
    let (mount, kv) = kv(mode);
    let warned = || mount.control_get("/v1/status").json()["warnings"].to_string().contains("pid namespace");
    assert!(!warned() && !unseen_writers(&mount), "before anybody wrote");
    std::fs::write(kv.join("key"), b"bytes").expect("write");
    assert!(warned() && unseen_writers(&mount), "{}", mount.control_get("/v1/status").text());
    assert!(mount.log().contains("hostPID"), "{}", mount.log());
}
