//! A start with less capacity than the one before.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use nix::sys::statvfs::statvfs;
use tempfile::TempDir;

use super::common::pattern::{assert_same, bytes};
use super::common::sys::get_xattr_text;
use super::common::wait::{HANG, until};
use super::common::{Mount, Peer};
use super::ssd::disk;

const MIB: usize = 1 << 20;
/// Objects of a mebibyte: more than the smaller memory holds.
const OBJECTS: u64 = 120;
/// Of which so many are on disk too, with another mode.
const CHANGED: u64 = 20;

/// A file of settings that gives the capacity: the options of a [`Mount`] stay the same.
struct Settings {
    _folder: TempDir,
    file: PathBuf,
}

impl Settings {
    fn of(capacity: &str) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let settings = Self { file: folder.path().join("settings.toml"), _folder: folder };
        settings.set(capacity);
        settings
    }

    fn set(&self, capacity: &str) {
        fs::write(&self.file, format!("[memory]\ncapacity = \"{capacity}\"\n")).expect("a file");
    }

    fn option(&self) -> String {
        format!("--config={}", self.file.display())
    }
}

#[test]
fn what_has_no_room_any_more_is_on_disk_as_it_was_in_memory() {
    let (settings, disk) = (Settings::of("256MiB"), disk());
    let (config, dirs) = (settings.option(), format!("ssd.dirs={}", disk.path().display()));
    let mut options = vec!["capacity", "on_stop=keep", config.as_str(), dirs.as_str()];
    options.extend(["ssd.capacity=512MiB", "ssd.zone=8MiB", "ssd.queue_ms=60000"]);
    let mut mount = Mount::start(&options);
    let namespace = mount.namespace("kv");
    let path = |number: u64| namespace.join(format!("object{number}"));
    for number in 0..OBJECTS {
        fs::write(path(number), bytes(number, MIB)).expect("write");
    }
    mount.wait_until_closed((0..OBJECTS).map(path));
    let evicted = mount.control("POST", "/v1/evict", Some(r#"{"bytes":41943040}"#));
    assert_eq!(evicted.status, 200, "{}", evicted.text());
    for number in 0..CHANGED {
        fs::set_permissions(path(number), Permissions::from_mode(0o600)).expect("chmod");
    }
    assert!(mount.stop().success());
    settings.set("64MiB");
    mount.start_daemon();
    let status = mount.control_get("/v1/status").json();
    assert!(status["used"].as_u64().is_some_and(|used| used <= 64 << 20), "{status}");
    for number in 0..OBJECTS {
        let metadata = fs::metadata(path(number)).unwrap_or_else(|error| panic!("object{number}: {error}"));
        let is_private = metadata.permissions().mode() & 0o777 == 0o600;
        assert_eq!(is_private, number < CHANGED, "object{number}");
    }
    // What is in memory first: what comes back from disk pushes it out.
    let mut numbers: Vec<u64> = (0..OBJECTS).collect();
    numbers.sort_by_key(|&number| get_xattr_text(&path(number), "user.tidefs.tier") == "ssd");
    for number in numbers {
        let found = fs::read(path(number)).unwrap_or_else(|error| panic!("object{number}: {error}"));
        assert_same(&found, &bytes(number, MIB), &format!("object{number}"));
    }
}

#[test]
fn a_smaller_capacity_holds_as_soon_as_nobody_maps_what_it_has_no_room_for() {
    const LENGTH: usize = 48 * MIB;
    let settings = Settings::of("128MiB");
    let config = settings.option();
    let mut mount = Mount::start(&["capacity", "on_stop=keep", &config]);
    let path = mount.namespace("kv").join("object");
    fs::write(&path, bytes(1, LENGTH)).expect("write");
    mount.wait_until_closed([&path]);
    let mut reader = Peer::spawn();
    let handle = reader.open(&path, libc::O_RDONLY).expect("open");
    let map = reader.map(handle, LENGTH, false).expect("mmap");
    reader.close(handle).expect("close");
    mount.wait_until_closed([&path]);
    mount.kill9();
    settings.set("32MiB");
    mount.start_daemon();
    let memory = mount.instance_dir().join("memory");
    let size = || statvfs(&memory).map(|facts| facts.blocks() * facts.fragment_size()).expect("statfs");
    if mount.control_get("/v1/status").json()["fuse"]["passthrough"] == serde_json::json!(true) {
        assert!(size() > 128 << 20, "what is mapped is in use");
    }
    reader.unmap(map);
    // Beside the objects it has a page or two of its own.
    assert!(until(HANG, || size() < 33 << 20), "{} bytes", size());
}
