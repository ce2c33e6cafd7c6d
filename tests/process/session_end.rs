//! Sessions that end though the daemon was not told to stop: aborted ones are failures, unmounted ones are not.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::minor;
use tempfile::TempDir;

use super::common::pattern::{assert_same, object};
use super::common::{Mount, wait};
use super::daemon::EXIT_FAILED;

/// The kernel's connections to FUSE daemons, mounted for this test: not every machine has them mounted.
struct Connections(TempDir);

impl Connections {
    fn new() -> Self {
        let place = tempfile::tempdir().expect("a temporary directory");
        let (kind, flags) = (Some("fusectl"), MsFlags::empty());
        mount(kind, place.path(), kind, flags, None::<&str>).expect("root may mount fusectl");
        Self(place)
    }

    /// Aborts the connection of a mount that answers.
    fn abort(&self, mount: &Mount) {
        let device = fs::metadata(mount.path()).expect("the mount answers").dev();
        let file = self.0.path().join(minor(device).to_string()).join("abort");
        fs::write(&file, "1").unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_session_that_ends_by_itself_is_a_failure_and_the_next_daemon_finds_what_was_sealed() {
    let connections = Connections::new();
    for on_stop in ["on_stop=keep", "on_stop=discard"] {
        let mut mount = Mount::start(&[on_stop]);
        let path = mount.namespace("ns").join("object");
        fs::write(&path, object(1, 1 << 20)).expect("an object");
        mount.wait_until_closed([&path]);
        connections.abort(&mount);
        let status = mount.wait_for_end();
        assert_eq!(status.code(), Some(EXIT_FAILED), "{}", mount.log());
        assert!(mount.log().contains("ended by itself"), "{}", mount.log());
        let error = fs::read(&path).expect_err("nobody answers");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "programs meet the dead mount: {error}");
        mount.start_daemon();
        assert_same(&fs::read(&path).expect("it is back"), &object(1, 1 << 20), on_stop);
    }
}

#[test]
fn an_unmount_by_an_operator_is_a_clean_stop() {
    for flags in [MntFlags::empty(), MntFlags::MNT_DETACH, MntFlags::MNT_FORCE] {
        let mut mount = Mount::start(&["on_stop=keep"]);
        let path = mount.namespace("ns").join("object");
        fs::write(&path, object(1, 100_000)).expect("an object");
        mount.wait_until_closed([&path]);
        // Somebody who looks around the machine may be in it for a moment.
        let unmounted = wait::until(wait::HANG, || umount2(mount.path(), flags).is_ok());
        assert!(unmounted, "it cannot be unmounted ({flags:?})");
        let status = mount.wait_for_end();
        assert!(status.success(), "{flags:?}: the daemon ended with {status}\n{}", mount.log());
        mount.start_daemon();
        assert_same(
            &fs::read(&path).expect("the object is back"),
            &object(1, 100_000),
            "after the next start",
        );
    }
}
