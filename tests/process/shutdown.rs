//! SIGTERM and SIGINT while clients use the mount: it goes away within seconds and the daemon ends with 0. And SIGHUP, which a
//! daemon outlives that was started to do so, or has no terminal to lose.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::sys::stat::{self, SFlag, makedev, mknod};

use super::common::modes::in_both_modes;
use super::common::mount::{mounts_below, wait_for};
use super::common::pattern::{assert_same, object};
use super::common::{Mode, Mount, Peer, kernel};

/// Longest time from the signal to the end of the daemon.
const STOP: Duration = Duration::from_secs(10);
/// An ordinary user: nobody.
const USER: u32 = 65534;

fn sigterm_ends_a_mount_whose_files_are_open(mode: Mode) {
    let mut mount = Mount::start(&mode.options(&["on_stop=keep"]));
    let place = mount.namespace("ns");
    let (sealed, unsealed) = (place.join("sealed"), place.join("unsealed"));
    fs::write(&sealed, object(1, 1 << 20)).expect("an object");
    mount.wait_until_closed([&sealed]);
    let mut peer = Peer::spawn();
    let reader = peer.open(&sealed, libc::O_RDONLY).expect("open");
    let map = peer.map(reader, 1 << 20, false).expect("mmap");
    let writer = peer.open(&unsealed, libc::O_RDWR | libc::O_CREAT).expect("create");
    peer.write_at(writer, 0, &[7; 100_000]).expect("write");
    let mut dweller = Command::new("sleep")
        .arg("60")
        .current_dir(&place)
        .stdin(Stdio::null())
        .spawn()
        .expect("a process that lives in the mount");
    let began = Instant::now();
    let status = mount.stop();
    assert!(status.success(), "the daemon ended with {status}");
    assert!(began.elapsed() < STOP, "the daemon took {:?}", began.elapsed());
    assert!(!mounts_below(mount.path()).contains(&mount.path().to_owned()), "the mount is gone");
    if mode == Mode::Passthrough && kernel::is_at_least((6, 9), "a mapping that outlives the mount") {
        assert_same(&peer.map_read(map, 0, 1 << 20), &object(1, 1 << 20), "a mapping outlives the mount");
    }
    dweller.kill().expect("the process can be killed");
    assert!(wait_for(&mut dweller, STOP).is_some(), "a process that lived in the mount can be killed");
    drop(peer);
    mount.start_daemon();
    assert_same(&fs::read(&sealed).expect("the object is back"), &object(1, 1 << 20), "after the next start");
    assert!(!unsealed.exists(), "what was not sealed is not back");
}

fn sigint_does_the_same(mode: Mode) {
    let mut mount = Mount::start(&mode.options(&[]));
    let place = mount.namespace("ns");
    fs::write(place.join("a"), b"bytes").expect("an object");
    mount.expect_failure();
    let began = Instant::now();
    mount.signal(Signal::SIGINT);
    let point = mount.path().to_owned();
    let gone = || !mounts_below(&point).contains(&point);
    assert!(super::common::wait::until(STOP, gone), "the mount is gone within {STOP:?} of SIGINT");
    assert!(began.elapsed() < STOP);
    assert!(fs::read_dir(&point).expect("the mount point is a plain directory").next().is_none());
}

/// Gives this thread, and what it starts, mounts of its own, among them a /dev/fuse that every user may open. Most machines have
/// one; in containers it may be of root alone.
fn let_every_user_mount() {
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS).expect("root may make mount namespaces");
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("others are told of no mount");
    let place = tempfile::tempdir().expect("a directory");
    // Device nodes of the temporary directory may be worth nothing.
    mount(Some("none"), place.path(), Some("tmpfs"), MsFlags::empty(), none).expect("a tmpfs");
    let node = place.path().join("fuse");
    mknod(&node, SFlag::S_IFCHR, stat::Mode::empty(), makedev(10, 229)).expect("a device node");
    fs::set_permissions(&node, fs::Permissions::from_mode(0o666)).expect("it is ours");
    mount(Some(&node), "/dev/fuse", none, MsFlags::MS_BIND, none).expect("the node is bound over the other");
    umount2(place.path(), MntFlags::MNT_DETACH).expect("the directory is free again");
}

/// The set-uid helper of fuse3 mounts and unmounts for it.
#[test]
fn sigterm_ends_a_mount_of_an_ordinary_user_whose_files_are_open() {
    let daemon = Path::new(env!("CARGO_BIN_EXE_tidefsd"));
    if !daemon.ancestors().all(|path| fs::metadata(path).is_ok_and(|facts| facts.mode() & 1 == 1)) {
        eprintln!("SKIPPED: an ordinary user may not run {}", daemon.display());
        return;
    }
    let_every_user_mount();
    // Who may not mount has no tmpfs of its own.
    let memory = tempfile::Builder::new().prefix("tidefs-test-").tempdir_in("/dev/shm").expect("a directory");
    let [state, scratch] = ["state", "scratch"].map(|name| memory.path().join(name).display().to_string());
    let (state, scratch) = (format!("runtime.state_dir={state}"), format!("scratch.dir={scratch}"));
    let mut mount = Mount::prepare(&["capacity=64MiB", &state, &scratch]);
    for directory in [memory.path(), mount.path()] {
        chown(directory, Some(USER), Some(USER)).expect("root gives it away");
    }
    mount.start_daemon_by(STOP, |command| command.uid(USER).gid(USER).spawn());
    let mut holder = Command::new("sh")
        .args(["-c", "mkdir \"$0\" && exec 3>\"$0/open\" && echo open && exec sleep 60"])
        .arg(mount.join("ns"))
        .uid(USER)
        .gid(USER)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process with an open file");
    let mut said = String::new();
    let stdout = holder.stdout.take().expect("stdout is a pipe");
    BufReader::new(stdout).read_line(&mut said).expect("it says when");
    assert_eq!(said, "open\n", "nobody else may enter: {}", mount.log());
    let began = Instant::now();
    let status = mount.stop();
    assert!(status.success(), "the daemon ended with {status}");
    assert!(began.elapsed() < STOP, "the daemon took {:?}", began.elapsed());
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").expect("the mounts of this thread");
    assert!(!mounts.contains(&format!(" {} ", mount.path().display())), "the mount is gone: {mounts}");
    holder.kill().expect("it can be killed");
    assert!(wait_for(&mut holder, STOP).is_some(), "a process with a file of the mount can be killed");
}

#[test]
fn a_hangup_ends_the_daemon_unless_it_was_started_to_ignore_it() {
    let mut mount = Mount::start(&[]);
    let (place, point) = (mount.namespace("ns"), mount.path().to_owned());
    fs::write(place.join("a"), b"bytes").expect("an object");
    mount.signal(Signal::SIGHUP);
    let gone = || !mounts_below(&point).contains(&point);
    assert!(super::common::wait::until(STOP, gone), "the mount is gone within {STOP:?} of SIGHUP");
    assert!(mount.stop().success(), "it had ended");
    mount.start_daemon_by(STOP, |command| {
        // SAFETY: between fork and exec the closure makes one async-signal-safe system call and allocates nothing.
        unsafe {
            command.pre_exec(|| match libc::signal(libc::SIGHUP, libc::SIG_IGN) {
                libc::SIG_ERR => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        command.spawn()
    });
    fs::create_dir_all(&place).expect("a namespace");
    mount.signal(Signal::SIGHUP);
    mount.signal(Signal::SIGHUP);
    fs::write(place.join("a"), b"bytes").expect("it serves on");
    assert!(!gone(), "the mount is there");
    assert!(mount.stop().success());
}

#[test]
fn a_hangup_means_nothing_to_a_daemon_that_leads_a_session_without_a_terminal() {
    let mut mount = Mount::prepare(&[]);
    mount.start_daemon_by(STOP, |command| {
        // SAFETY: between fork and exec the closure makes one async-signal-safe system call and allocates nothing.
        unsafe {
            command.pre_exec(|| nix::unistd::setsid().map(drop).map_err(std::io::Error::from));
        }
        command.spawn()
    });
    let status = fs::read_to_string(format!("/proc/{}/status", mount.pid())).expect("it runs");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask of signals");
    let ignored = u64::from_str_radix(ignored.trim(), 16).expect("a number");
    assert_eq!(ignored & 1, 1, "SIGHUP is the first signal: {ignored:x}");
    let place = mount.namespace("ns");
    mount.signal(Signal::SIGHUP);
    fs::write(place.join("a"), b"bytes").expect("it serves on");
    assert!(mounts_below(mount.path()).contains(&mount.path().to_owned()), "the mount is there");
    assert!(mount.stop().success());
}

in_both_modes!(sigterm_ends_a_mount_whose_files_are_open, sigint_does_the_same);
