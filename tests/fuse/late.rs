//! Caches of the client library that are open before their mount is there, and when it is gone.

use std::fs;
use std::path::Path;
use std::process::Command;

use tidefs_client::Cache;

use crate::common::modes::in_fast_modes;
use crate::common::wait::HANG;
use crate::common::{Mode, Mount, pattern, wait};
use crate::fastpath::{assert_object, get};
use crate::fixture::MIB;

in_fast_modes!(
    a_cache_that_was_opened_before_its_mount_goes_over_to_it,
    a_cache_whose_mount_is_gone_stores_nothing_below_its_mount_point,
    a_cache_that_was_taken_out_of_the_tree_stores_nothing_below_its_mount_point,
);

/// Whether calls of a cache are of its mount by now.
fn is_at_home(cache: &Cache, mode: Mode) -> bool {
    let stored = cache.put("kv/home", &pattern::object(9, MIB)).is_ok();
    stored
        && cache
            .get("kv/home")
            .expect("get")
            .is_some_and(|view| view.is_mapped() == (mode == Mode::Passthrough))
}

fn names_in(directory: &Path) -> Vec<std::ffi::OsString> {
    fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").file_name()).collect()
}

fn a_cache_that_was_opened_before_its_mount_goes_over_to_it(mode: Mode) {
    let mut mount = Mount::prepare(&mode.options(&[]));
    if mount.is_bare() {
        return;
    }
    let cache = Cache::open(mount.path()).expect("a directory");
    assert!(cache.get("kv/key").expect("get").is_none() && !cache.is_fast());
    mount.start_daemon();
    mount.namespace("kv");
    assert!(wait::until(HANG, || is_at_home(&cache, mode)), "it does not see its mount");
    assert_eq!(cache.is_fast(), mode == Mode::Passthrough);
    cache.put("kv/key", &pattern::object(1, MIB)).expect("put");
    get(&cache, "kv/key", 1);
}

fn a_cache_whose_mount_is_gone_stores_nothing_below_its_mount_point(mode: Mode) {
    let mut mount = Mount::start(&mode.options(&[]));
    if mount.is_bare() {
        return;
    }
    mount.namespace("kv");
    let (cache, below) = (Cache::open(mount.path()), Cache::open(mount.join("kv")));
    let (cache, below) = (cache.expect("the cache opens"), below.expect("the cache opens"));
    cache.put("kv/key", &pattern::object(1, MIB)).expect("put");
    let begun = below.create("begun", MIB).expect("create");

    assert!(mount.stop().success());
    assert!(names_in(mount.path()).is_empty(), "nothing is mounted");
    // What somebody else has there is none of the cache.
    fs::create_dir(mount.join("kv")).expect("mkdir");
    fs::write(mount.join("kv/key"), b"another's").expect("write");
    let is_refused = |stored: Result<(), tidefs_client::Error>| {
        let error = stored.expect_err("there is no mount");
        assert!(matches!(error.errno(), libc::ENOTCONN | libc::ECONNABORTED), "{error}");
        assert!(error.to_string().contains(mount.path().to_str().expect("a text")), "{error}");
    };
    is_refused(begun.seal());
    for _ in 0..2 {
        is_refused(cache.put("kv/new", b"new"));
        is_refused(cache.put("kv/some/where/new", b"new"));
        is_refused(below.put("new", b"new"));
        is_refused(below.create("new", 10).and_then(|writer| writer.seal()));
        assert!(cache.get("kv/key").expect("a miss").is_none());
        assert!(below.get_into("key", &mut [0; 4]).expect("a miss").is_none());
        assert!(
            !below.contains("key").expect("a miss")
                && !below.pin("key", tidefs_client::Pin::Hard).expect("a miss")
        );
    }
    assert_eq!(names_in(&mount.join("kv")), ["key"]);
    fs::remove_dir_all(mount.join("kv")).expect("rmdir");

    mount.start_daemon();
    mount.namespace("kv");
    assert!(wait::until(HANG, || is_at_home(&cache, mode)), "it does not see its mount");
    assert!(wait::until(HANG, || below.put("key", &pattern::object(2, MIB)).is_ok()));
    get(&cache, "kv/key", 2);
}

/// As `umount -l` does it: the daemon serves what is open still.
fn a_cache_that_was_taken_out_of_the_tree_stores_nothing_below_its_mount_point(mode: Mode) {
    let mut mount = Mount::start(&mode.options(&[]));
    if mount.is_bare() {
        return;
    }
    mount.expect_failure();
    mount.namespace("kv");
    let cache = Cache::open(mount.path()).expect("the cache opens");
    cache.put("kv/key", &pattern::object(1, MIB)).expect("put");
    let held = cache.get("kv/key").expect("get").expect("a hit");
    let ended = Command::new("umount").arg("-l").arg(mount.path()).status().expect("umount");
    assert!(ended.success());
    let is_refused = |stored: Result<(), tidefs_client::Error>| {
        stored.is_err_and(|error| matches!(error.errno(), libc::ENOTCONN | libc::ECONNABORTED))
    };
    // Until it notices, what it stores goes to the mount.
    assert!(wait::until(HANG, || is_refused(cache.put("kv/other/new", b"new"))), "it stores somewhere");
    assert!(is_refused(cache.put("kv/new", b"new")) && cache.get("kv/key").expect("a miss").is_none());
    assert!(names_in(mount.path()).is_empty());
    assert_object(&held, 1);
}
