//! A daemon that nobody can hear: who started it is gone, and the disk of its log is full. It serves as any other.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::common::control::{self, Answer};
use super::common::mount::{mounts_below, wait_for};
use super::common::pattern::{assert_same, object};
use super::common::place::Place;
use super::common::wait::{HANG, until};
use super::daemon::daemon;

/// Longest time for a start or a stop.
const LIMIT: Duration = Duration::from_secs(20);

/// A daemon without a reader, which is not there any more when this is dropped, nor are its mounts.
struct Unheard {
    place: Place,
    child: Child,
}

impl Unheard {
    /// Starts it, and waits until it is mounted: it cannot say so.
    fn start() -> Self {
        let place = Place::new();
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let full = || File::options().write(true).open("/dev/full").expect("/dev/full");
        let mut command = daemon(&place.point, &place.state);
        command.args(["--capacity", "256MiB", "-o", "on_stop=keep,log=debug", "-o"]);
        command.arg(format!("scratch.dir={}", place.base.path().join("scratch").display()));
        command.stdin(Stdio::null()).stdout(writer).stderr(full());
        let child = command.spawn().expect("the daemon starts");
        let mut unheard = Self { place, child };
        let is_mounted = until(LIMIT, || unheard.is_mounted() || unheard.has_ended());
        assert!(is_mounted && !unheard.has_ended(), "it ended before it was mounted, or hangs");
        unheard
    }

    fn is_mounted(&self) -> bool {
        mounts_below(&self.place.point).contains(&self.place.point)
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    fn socket(&self) -> Option<PathBuf> {
        let instance = fs::read_dir(&self.place.state).ok()?.next()?.ok()?;
        Some(instance.path().join("control.sock"))
    }

    /// What the admin socket says, which is there a moment after the mount.
    fn ask(&self, method: &str, target: &str, body: Option<&str>) -> Answer {
        let mut answer = None;
        until(HANG, || {
            answer = self.socket().and_then(|socket| control::request(&socket, method, target, body).ok());
            answer.is_some()
        });
        answer.expect("the admin socket answers")
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for point in mounts_below(self.place.base.path()).iter().rev() {
            let _ = umount2(point.as_path(), MntFlags::MNT_DETACH);
        }
    }
}

#[test]
fn a_daemon_that_cannot_write_its_log_or_say_that_it_is_mounted_serves_and_stops() {
    let mut unheard = Unheard::start();
    let space = unheard.place.point.join("ns");
    fs::create_dir(&space).expect("a namespace");
    fs::write(space.join("gone"), object(1, 100_000)).expect("an object");
    assert_same(&fs::read(space.join("gone")).expect("it is there"), &object(1, 100_000), "read");
    let evicted = unheard.ask("POST", "/v1/evict", Some(r#"{"bytes":67108864}"#));
    assert_eq!(evicted.status, 200, "{}", evicted.text());
    fs::write(space.join("kept"), object(2, 100_000)).expect("an object");
    let pid = Pid::from_raw(i32::try_from(unheard.child.id()).expect("a pid is an i32"));
    kill(pid, Signal::SIGTERM).expect("the daemon can be signalled");
    let status = wait_for(&mut unheard.child, LIMIT).expect("the daemon ends");
    assert!(status.success(), "the daemon ended with {status}");
    assert!(!unheard.is_mounted(), "its mount is left");
}
