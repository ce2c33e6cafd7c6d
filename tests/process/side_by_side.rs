//! More than one daemon: the same mount point is refused, different ones do not see each other; a dead one is replaced.

use std::fs;
use std::path::PathBuf;

use super::common::Mount;
use super::common::mount::mounts_below;
use super::common::pattern::{assert_same, object};
use super::common::wait::{HANG, until};
use super::daemon::{EXIT_MOUNT_POINT, daemon, refused};

#[test]
fn a_second_daemon_on_the_same_directory_is_refused() {
    let mount = Mount::start(&[]);
    let place = mount.namespace("ns");
    fs::write(place.join("a"), object(1, 100_000)).expect("an object");
    let point = mount.path().to_str().expect("a path in UTF-8").to_owned();
    let pid = mount.pid().to_string();
    let stop = format!("`tidefs umount {point} --state-dir {}`", mount.state_dir().display());
    refused(&mut daemon(mount.path(), mount.state_dir()), EXIT_MOUNT_POINT, &[&point, &pid, &stop]);
    // also by another spelling of the path, and with a state directory that knows nothing of the first
    let other_spelling = mount.path().join("../mount/.");
    refused(&mut daemon(&other_spelling, mount.state_dir()), EXIT_MOUNT_POINT, &[&pid]);
    let other_state = tempfile::tempdir().expect("a directory");
    refused(&mut daemon(mount.path(), other_state.path()), EXIT_MOUNT_POINT, &[&point]);
    assert_eq!(mounts_below(other_state.path()), Vec::<PathBuf>::new());
    assert_same(
        &fs::read(place.join("a")).expect("the first still serves"),
        &object(1, 100_000),
        "the first",
    );
    assert_eq!(mounts_below(mount.path()).len(), 1, "one mount on the directory");
}

#[test]
fn daemons_on_different_directories_do_not_see_each_other() {
    let state = tempfile::tempdir().expect("a state directory for both");
    let option = format!("runtime.state_dir={}", state.path().display());
    let mut first = Mount::start(&["capacity=64MiB", &option]);
    let second = Mount::start(&["capacity=128MiB", &option]);
    for (mount, seed) in [(&first, 1), (&second, 2)] {
        fs::write(mount.namespace("ns").join("same name"), object(seed, 200_000)).expect("an object");
    }
    for (mount, seed, capacity) in [(&first, 1, 64 << 20), (&second, 2, 128 << 20)] {
        let found = fs::read(mount.join("ns/same name")).expect("the object");
        assert_same(&found, &object(seed, 200_000), "each has its own");
        assert_eq!(mount.usage().capacity, capacity);
    }
    assert!(first.stop().success());
    let found = fs::read(second.join("ns/same name")).expect("the object");
    assert_same(&found, &object(2, 200_000), "the second goes on after the first stopped");
    drop(second);
    assert_eq!(
        mounts_below(state.path()),
        Vec::<PathBuf>::new(),
        "private memories are gone with on_stop=discard"
    );
}

#[test]
fn a_stale_mount_point_is_replaced_with_a_message() {
    let mut mount = Mount::start(&["on_stop=keep"]);
    fs::write(mount.namespace("ns").join("a"), object(1, 100_000)).expect("an object");
    let sealed = || mount.control_get("/v1/status").json()["objects"] == serde_json::json!(1);
    assert!(until(HANG, sealed));
    mount.kill9();
    assert_eq!(mounts_below(mount.path()).len(), 1, "a killed daemon leaves its mount");
    let before = mount.log().len();
    mount.start_daemon();
    let log = mount.log()[before..].to_owned();
    let point = mount.path().to_str().expect("a path in UTF-8").to_owned();
    assert!(log.lines().any(|line| line.contains("stale") && line.contains(&point)), "no message in:\n{log}");
    assert_eq!(mounts_below(mount.path()).len(), 1, "the dead mount is gone, not covered");
    assert_same(
        &fs::read(mount.join("ns/a")).expect("the object is back"),
        &object(1, 100_000),
        "after the start",
    );
}
