//! The fast path where nothing may be written: by a control file that was opened to read, and on a read-only mount.

use std::fs;
use std::path::Path;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tidefs_client::Pin;
use tidefs_control_api::ioctl::{self, Command, Create, Entry, Get, Name, Outcome, PIN_HARD, Put, Status};

use crate::common::{Mode, kernel, pattern};
use crate::fastpath::{assert_object, fast};
use crate::fixture::{MIB, kv, offset, publish, publish_object};
use crate::ioctl::Control;

/// A read-only view of a mount, as containers get it by `readOnly: true`.
struct View(tempfile::TempDir);

impl View {
    fn of(path: &Path) -> Self {
        let view = Self(tempfile::tempdir().expect("a folder"));
        let (none, target) = (None::<&str>, view.0.path());
        mount(Some(path), target, none, MsFlags::MS_BIND, none).expect("a bind mount");
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(none, target, none, flags, none).expect("a read-only mount");
        view
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_control_file_that_is_opened_to_read_makes_and_changes_nothing() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    publish_object(&kv.join("key"), 1, MIB);
    mount.wait_until_closed([kv.join("key")]);
    let (control, other) = (Control::open_to_read(&mount), Control::open(&mount));
    let name = Name(b"kv/key");
    let create = Create { size: offset(MIB), mode: 0o600, name };
    assert_eq!(control.one::<Entry>(Command::Create, &create).1.status(), Status::Denied);
    let area = control.register(offset(MIB)).expect("an area").segment.get();
    let put = Put { area, source: 0, length: 10, mode: 0o600, name };
    assert_eq!(control.one::<Outcome>(Command::PutFrom, &put).1.status(), Status::Denied);
    let pin = ioctl::Pin { ttl_s: 0, pin: PIN_HARD, name };
    assert_eq!(control.one::<Outcome>(Command::Pin, &pin).1.status(), Status::Denied);
    let (reference, _, _file) = other.begin(b"kv/new", 0o600);
    assert_eq!(control.seal(reference), Status::Invalid, "it began nothing");
    // It looks, and copies into what is its own.
    let get = Get { offset: 0, length: offset(MIB), area, target: 0, name };
    let (_, copied) = control.one::<Entry>(Command::GetInto, &get);
    assert_eq!((copied.status(), copied.length.get()), (Status::Ok, offset(MIB)));
    let copy = fs::read(control.segment(area)).expect("its area");
    assert_eq!(pattern::verify_object(&copy), Ok(1));
}

#[test]
fn on_a_read_only_mount_objects_are_viewed_and_nothing_is_stored() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    if mount.is_bare() {
        return;
    }
    publish_object(&kv.join("large"), 1, MIB);
    publish(&kv.join("small"), b"small");
    mount.wait_until_closed([kv.join("large"), kv.join("small")]);
    let view = View::of(mount.path());
    let cache = fast(&mount, &view.0.path().join("kv")).expect("it is fast to read");
    // More than one request asks for.
    let mut keys = vec!["large".to_owned(), "small".to_owned()];
    keys.extend((0..1000).map(|number| format!("none{number}")));
    let found = cache.lookup_many(&keys).expect("lookup");
    let [Some(large), Some(small), rest @ ..] = &found[..] else { panic!("both are there") };
    assert!(large.is_mapped() && rest.iter().all(Option::is_none));
    assert_object(large, 1);
    assert_eq!(&**small, b"small");
    assert_ne!(small.version(), 0, "it was read by file");
    let mut writer = cache.create("begun", 5).expect("create");
    writer.copy_from_slice(b"begun");
    let refused = [
        cache.put("new", b"new").expect_err("nothing is stored"),
        writer.seal().expect_err("nor sealed"),
        cache.pin("large", Pin::Hard).expect_err("nor pinned"),
    ];
    for error in refused {
        assert_eq!(error.errno(), libc::EROFS, "{error}");
    }
    assert!(!kv.join("new").exists() && !kv.join("begun").exists());
}
