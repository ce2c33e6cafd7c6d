//! A start with less capacity than the one before.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::common::Mount;
use super::common::pattern::{assert_same, bytes};
use super::ssd::{disk, wait_for_room};

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
        wait_for_room(&mount);
        let found = fs::read(path(number)).unwrap_or_else(|error| panic!("object{number}: {error}"));
        assert_same(&found, &bytes(number, MIB), &format!("object{number}"));
    }
}
