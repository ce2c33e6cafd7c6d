//! A daemon that may open no more files: what it cannot do is refused, and changes nothing.

use std::fs;

use super::common::modes::in_both_modes;
use super::common::pattern::{assert_same, object};
use super::common::sys::{get_xattr_text, limit_files};
use super::common::{Mode, Mount};

in_both_modes!(a_temporary_file_whose_rename_is_refused_stays_what_it_was);

/// Closed temporary files; of the last ones of so many the daemon has the bytes open.
const CLOSED: u64 = 80;
/// Fewer descriptors than any daemon has open.
const NO_MORE: u64 = 8;

fn a_temporary_file_whose_rename_is_refused_stays_what_it_was(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    let place = mount.namespace("ns");
    let path = |number: u64| place.join(format!("key{number}.tmp"));
    for number in 0..CLOSED {
        fs::write(path(number), object(number, 50_000)).expect("a file");
    }
    let is_closed =
        |number| get_xattr_text(&path(number), "user.tidefs.why").contains("closed temporary file");
    assert!(super::common::wait::until(super::common::wait::HANG, || (0..CLOSED).all(is_closed)));
    let limit = limit_files(mount.pid(), NO_MORE);
    let refused = fs::rename(path(0), place.join("key0"));
    limit_files(mount.pid(), limit);
    let refused = refused.expect_err("its bytes cannot be opened");
    // Nothing is wrong with the name: looking it up again, as the kernel does for ESTALE, is of no use.
    assert_eq!(refused.raw_os_error(), Some(libc::EIO), "{refused}");
    assert!(is_closed(0), "{}", get_xattr_text(&path(0), "user.tidefs.why"));
    fs::rename(path(0), place.join("key0")).expect("and can be now");
    assert_same(&fs::read(place.join("key0")).expect("read"), &object(0, 50_000), "the object");
}
