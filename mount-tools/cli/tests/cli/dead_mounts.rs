//! Mounts of daemons that are gone or do not answer. They are made by hand: a FUSE mount whose device nobody
//! reads hangs whoever looks at it, and one whose device is closed is dead. Needs root and `/dev/fuse`.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;
use tidefs_control_api::lock::InstanceLock;
use tidefs_control_api::mounts::find_mount;

use crate::fake_daemon::FakeDaemon;
use crate::host::Host;
use crate::mounting::GOOD;

/// A mount that nobody answers for. Taken away at the end of the test if it is still there.
#[derive(Debug)]
struct OrphanMount {
    dir: PathBuf,
    device: Option<File>,
}

impl OrphanMount {
    fn hanging(dir: &Path) -> Self {
        let device =
            OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("this test needs FUSE");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("tidefs"), dir, Some("fuse.tidefs"), flags, Some(options.as_str()))
            .expect("this test needs root");
        Self { dir: dir.to_owned(), device: Some(device) }
    }

    fn dead(dir: &Path) -> Self {
        let mut mount = Self::hanging(dir);
        mount.device = None;
        mount
    }

    fn is_there(&self) -> bool {
        find_mount(&self.dir).unwrap().is_some()
    }
}

impl Drop for OrphanMount {
    fn drop(&mut self) {
        self.device = None; // wakes whoever hangs
        // Most tests take the mount away themselves.
        let _ = umount2(&self.dir, MntFlags::MNT_DETACH);
    }
}

/// What a daemon that died leaves in the state directory.
fn leave_record(host: &Host) {
    std::fs::create_dir_all(host.instance().dir()).unwrap();
    drop(InstanceLock::acquire(&host.instance().lock()).unwrap());
}

#[test]
fn a_mount_that_hangs_does_not_hang_the_commands() {
    let host = Host::new();
    let mount = OrphanMount::hanging(&host.mount_dir());
    let daemon = FakeDaemon::serve(
        &host,
        &[("GET /v1/stat", 200, json!({"path": "ns/k"})), ("GET /v1/status", 200, json!({"pid": 7}))],
    );
    assert_eq!(host.run("stat MNT/ns/k").code, 0);
    assert_eq!(host.run("status --mount MNT").code, 0);
    let ended = host.run("mount MNT");
    assert!(ended.code == 1 && ended.stderr.contains("already served by process"), "{ended:?}");
    let helper = host.install("mount.tidefs", GOOD);
    let ended = host.run_program(&helper, "tidefs MNT");
    assert!(ended.code == 32 && ended.stderr.contains("already served by process"), "{ended:?}");
    assert_eq!(daemon.asked()[0], "GET /v1/stat?path=ns%2Fk");
    assert!(mount.is_there());
}

#[test]
fn a_remount_of_what_is_served_is_for_the_daemon_to_refuse_and_a_mount_is_not() {
    let host = Host::new();
    let mount = OrphanMount::hanging(&host.mount_dir());
    let _daemon = FakeDaemon::serve(&host, &[]);
    let refuses = "case \"$*\" in *remount*--check-config*) echo 'mount it again' >&2; exit 2;; esac; exit 4";
    let helper = host.install("mount.tidefs", refuses);
    let ended = host.run_program(&helper, "tidefs MNT -o rw,remount,capacity=1GiB");
    assert!(ended.code == 1 && ended.stderr.contains("mount it again"), "{ended:?}");
    let ended = host.run_program(&helper, "tidefs MNT -o rw,capacity=1GiB");
    assert!(ended.code == 32 && ended.stderr.contains("already served by process"), "{ended:?}");
    assert!(mount.is_there());
}

#[test]
fn umount_takes_the_mount_of_a_dead_daemon_away() {
    let host = Host::new();
    let mount = OrphanMount::dead(&host.mount_dir());
    leave_record(&host);
    let ended = host.run("why MNT/ns/k");
    assert!(ended.code == 3 && ended.stderr.contains("is gone"), "{ended:?}");
    let ended = host.run("umount MNT --json");
    assert_eq!((ended.code, &ended.json()["daemon"]), (0, &json!("gone")), "{ended:?}");
    assert!(!mount.is_there());
}

#[test]
fn a_mount_whose_daemon_may_only_be_stopped_is_left_alone_whatever_the_record_says() {
    let host = Host::new();
    let mount = OrphanMount::hanging(&host.mount_dir());
    leave_record(&host);
    for command in ["umount MNT", "umount MNT --discard", "status --mount MNT"] {
        let ended = host.run(command);
        assert!(ended.code == 1 && ended.stderr.contains("does not answer"), "{command}: {ended:?}");
    }
    assert!(mount.is_there());
}

#[test]
fn a_mount_without_a_record_is_left_alone() {
    let host = Host::new();
    let mount = OrphanMount::dead(&host.mount_dir());
    let ended = host.run("umount MNT");
    assert!(ended.code == 3 && ended.stderr.contains("--state-dir"), "{ended:?}");
    assert!(mount.is_there());
}

#[test]
fn the_daemon_that_mounts_replaces_the_mount_of_a_dead_one_and_the_command_tells_it() {
    let host = Host::new();
    let mount = OrphanMount::dead(&host.mount_dir());
    leave_record(&host);
    // The script says whether the dead mount was left to it, and takes it away as tidefsd does.
    let program = host.install("mount.tidefs", &format!("umount -l \"$1\" || exit 4\n{GOOD}"));
    let ended = host.run_program(&program, "tidefs MNT");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("replaced the mount of a dead daemon"), "{ended:?}");
    assert!(!mount.is_there());
    assert_eq!(host.run("umount MNT").code, 0);
}

#[test]
fn a_start_that_fails_leaves_the_mount_of_a_dead_daemon_where_it_is() {
    let host = Host::new();
    let mount = OrphanMount::dead(&host.mount_dir());
    leave_record(&host);
    for name in ["mount.tidefs", "tidefs"] {
        let program = host.install(name, "echo 'unknown option capcity' >&2; exit 2");
        let verb = if name == "tidefs" { "mount" } else { "tidefs" };
        let ended = host.run_program(&program, &format!("{verb} MNT -o capcity=1"));
        assert!(ended.code != 0 && ended.stderr.contains("capcity"), "{ended:?}");
        assert!(!ended.stderr.contains("replaced"), "{ended:?}");
        assert!(mount.is_there(), "{name}");
    }
}

#[test]
fn discard_unmounts_the_memory_that_was_kept() {
    let host = Host::new();
    leave_record(&host);
    let memory = host.instance().memory();
    std::fs::create_dir(&memory).unwrap();
    mount(Some("tidefs-memory"), &memory, Some("tmpfs"), MsFlags::empty(), Some("size=1m"))
        .expect("this test needs root");
    std::fs::write(memory.join("segment"), "bytes").unwrap();
    let ended = host.run("umount MNT --discard");
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(find_mount(&memory).unwrap().is_none() && !host.instance().dir().exists());
}
