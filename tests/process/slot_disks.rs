//! Slot files whose disk is not mounted: none is made in the file system above, and one is when the disk is back.
//!
//! How: a small disk of the test's own, which is unmounted while no daemon runs.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount as mount_disk, umount2};

use super::common::small_disk::SmallDisk;
use super::common::wait::HANG;
use super::common::{Mount, program};

fn make_slot_file(mount: &Mount, name: &str) -> io::Result<()> {
    let path = mount.namespace("slots").join(name);
    File::options().read(true).write(true).create_new(true).open(path)?.set_len(8 << 20)
}

#[track_caller]
fn is_refused(mount: &Mount, name: &str) -> bool {
    let error = make_slot_file(mount, name).expect_err("its disk is not there");
    error.raw_os_error() == Some(libc::EIO)
}

/// Starts the daemon anew when the disk is unmounted.
fn restart_without(mount: &mut Mount, disk: &Path) {
    assert!(mount.stop().success());
    umount2(disk, MntFlags::MNT_DETACH).expect("umount");
    mount.start_daemon();
}

fn entries(directory: &Path) -> usize {
    fs::read_dir(directory).expect("readdir").count()
}

fn warnings(mount: &Mount) -> String {
    mount.control_get("/v1/status").json()["warnings"].to_string()
}

/// What `--check-config` finds wrong with an option.
fn check(mount: &Mount, option: &str) -> String {
    let state = format!("runtime.state_dir={}", mount.state_dir().display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidefsd"));
    command.arg(mount.path()).args(["-o", state.as_str(), "-o", option, "--check-config"]);
    program::run(&mut command, HANG).errors
}

/// The mount point of a disk as the daemon knows it, without links.
fn root_of(disk: &SmallDisk) -> PathBuf {
    fs::canonicalize(disk.path()).expect("a directory")
}

/// What is said now of a disk that is away.
fn away(root: &Path) -> String {
    format!("nothing is mounted on {}", root.display())
}

/// What is said of it later.
fn was_away(root: &Path) -> String {
    format!("nothing was mounted on {}", root.display())
}

#[test]
fn slot_files_are_not_made_below_a_mount_point_whose_disk_is_not_there_and_are_when_it_is_back() {
    let disk = SmallDisk::new("64m", MsFlags::empty());
    let root = root_of(&disk);
    let option = format!("scratch.dir={}", root.join("below/slots").display());
    let mut mount = Mount::start(&["scratch_min=4MiB", option.as_str()]);
    make_slot_file(&mount, "first").expect("a slot file");
    assert_eq!((entries(&root), check(&mount, &option)), (1, String::new()));
    restart_without(&mut mount, &root);
    assert!(mount.log().contains("no slot file is made in a directory"), "{}", mount.log());
    assert!(is_refused(&mount, "second") && entries(&root) == 0);
    assert!(warnings(&mount).contains(&was_away(&root)), "{}", warnings(&mount));
    let found = check(&mount, &option);
    assert!(found.contains(&away(&root)) && found.contains("scratch.dir"), "{found}");
    // Nobody has to start the daemon anew.
    mount_disk(Some("back"), &root, Some("tmpfs"), MsFlags::empty(), Some("size=64m")).expect("mount");
    make_slot_file(&mount, "third").expect("a slot file");
    assert!(!warnings(&mount).contains(&was_away(&root)), "{}", warnings(&mount));
}

#[test]
fn slot_files_on_a_disk_of_the_tier_are_made_where_the_tier_may_be() {
    let disk = SmallDisk::new("96m", MsFlags::empty());
    let root = root_of(&disk);
    let dirs = format!("ssd.dirs={}", root.display());
    let sizes = ["capacity=64MiB", "ssd.capacity=48MiB", "scratch.capacity=16MiB", "scratch_min=4MiB"];
    let mut mount = Mount::start(&[&sizes[..], &["scratch.dir", dirs.as_str()]].concat());
    make_slot_file(&mount, "first").expect("a slot file");
    restart_without(&mut mount, &root);
    assert!(is_refused(&mount, "second") && entries(&root) == 0);
    let of_slot_files = format!("scratch in `{}/", root.display());
    assert!(warnings(&mount).contains(&of_slot_files), "{}", warnings(&mount));
    let found = check(&mount, &dirs);
    assert_eq!(found.matches(&away(&root)).count(), 1, "{found}");
    // As one has the tier lie there.
    fs::write(root.join("tidefs.ssd"), "").expect("write");
    make_slot_file(&mount, "third").expect("a slot file");
    assert!(!warnings(&mount).contains(&of_slot_files), "{}", warnings(&mount));
}
