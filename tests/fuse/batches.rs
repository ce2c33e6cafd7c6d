//! Batches that the client library stores: as large as they may be, each object is stored or said not to be.

use std::path::Path;
use std::time::Duration;

use tidefs_client::{Cache, Error};

use crate::common::modes::in_fast_modes;
use crate::common::sys::set_xattr;
use crate::common::{Mode, Mount, pattern, wait};
use crate::fastpath::{assert_object, open};
use crate::fixture::{MIB, kv_with, offset};

in_fast_modes!(
    a_batch_that_is_larger_than_the_cache_is_stored_and_the_last_of_it_stays,
    what_has_no_room_is_told_of_each_and_all_else_is_stored,
    a_batch_without_room_ends_whatever_is_in_it,
    a_batch_of_more_objects_than_may_be_begun_at_once_is_stored,
    an_object_as_large_as_a_slot_file_is_stored_by_file,
    what_is_begun_takes_the_place_of_what_stands_there_in_a_full_quota,
    of_a_key_and_one_below_it_the_first_one_is_stored,
);

fn store(cache: &Cache, objects: &[(String, Vec<u8>)]) -> Vec<Result<(), Error>> {
    let objects: Vec<(&str, &[u8])> = objects.iter().map(|(key, bytes)| (&**key, &**bytes)).collect();
    cache.put_each(&objects).expect("the keys are keys")
}

fn a_batch_that_is_larger_than_the_cache_is_stored_and_the_last_of_it_stays(mode: Mode) {
    let (mount, kv) = kv_with(mode, &["capacity=64MiB"]);
    let cache = open(&mount, &kv, mode);
    let bytes = pattern::object(0, MIB);
    let keys: Vec<String> = (0..160).map(|index| format!("k{index}")).collect();
    let objects: Vec<(&str, &[u8])> = keys.iter().map(|key| (&**key, &*bytes)).collect();
    cache.put_many(&objects).expect("one after the other has room");
    for (key, view) in keys.iter().zip(cache.lookup_many(&keys).expect("lookup")).skip(keys.len() - 32) {
        assert_object(&view.unwrap_or_else(|| panic!("{key} was stored last")), 0);
    }
    // Nothing of it is begun still.
    drop(cache);
    let cache = open(&mount, &kv, mode);
    cache.put("large", &pattern::object(7, 40 * MIB)).expect("there is room for it");
    assert_object(&cache.get("large").expect("get").expect("a hit"), 7);
}

fn what_has_no_room_is_told_of_each_and_all_else_is_stored(mode: Mode) {
    let (mount, kv) = kv_with(mode, &["capacity=64MiB"]);
    if mount.is_bare() {
        return;
    }
    let cache = open(&mount, &kv, mode);
    // Written by file it takes the room of all others before it is refused, so it is the first.
    let lengths = [("dir/large", 65 * MIB), ("a", MIB), ("b", 40_000), ("dir/c", MIB), ("empty", 0)];
    let objects: Vec<(String, Vec<u8>)> =
        lengths.iter().map(|(key, length)| ((*key).to_owned(), vec![7; *length])).collect();
    let stored = store(&cache, &objects);
    for ((key, bytes), stored) in objects.iter().zip(&stored) {
        match stored {
            Ok(()) => assert!(cache.get(key).expect("get").is_some_and(|view| *view == **bytes), "{key}"),
            Err(error) => {
                assert_eq!((&**key, error.errno()), ("dir/large", libc::ENOSPC), "{error}");
                assert!(error.to_string().contains("dir/large"), "{error}");
                assert!(cache.get(key).expect("get").is_none());
            }
        }
    }
    assert!(stored[0].is_err());
    let objects: Vec<(&str, &[u8])> = objects.iter().map(|(key, bytes)| (&**key, &**bytes)).collect();
    let error = cache.put_many(&objects).expect_err("one has no room");
    assert!(error.to_string().contains("dir/large"), "{error}");
    let error = cache.put_each(&[("d", &b"d"[..]), ("../d", b"d")]).expect_err("no key");
    assert!(error.to_string().contains("../d") && cache.get("d").expect("get").is_none(), "{error}");
}

/// Pins objects of 1 MiB until none finds room.
fn fill(cache: &Cache, kv: &Path) {
    set_xattr(kv, "user.tidefs.pin", b"hard").expect("setxattr");
    for index in 0..=64 {
        if let Err(error) = cache.put(format!("pinned{index}"), &pattern::object(offset(index), MIB)) {
            assert_eq!(error.errno(), libc::ENOSPC);
            return;
        }
    }
    panic!("65 MiB are pinned in a cache of 64 MiB");
}

fn a_batch_without_room_ends_whatever_is_in_it(mode: Mode) {
    let (mount, kv) =
        kv_with(mode, &["capacity=64MiB", "memory.write_headroom=2MiB", "runtime.deadline_ms=200"]);
    if mount.is_bare() {
        return;
    }
    let cache = open(&mount, &kv, mode);
    fill(&cache, &kv);
    let objects: Vec<(String, Vec<u8>)> = (0..12)
        .map(|index| (format!("k{index}"), vec![7; if index % 2 == 0 { 0 } else { 4 * MIB }]))
        .collect();
    let stored = wait::within(Duration::from_secs(60), move || {
        let stored = store(&cache, &objects);
        let lengths = objects.into_iter().map(|(_, bytes)| bytes.len());
        lengths.zip(stored).collect::<Vec<_>>()
    });
    for (length, stored) in stored.expect("it ends") {
        match stored {
            Ok(()) => assert_eq!(length, 0, "4 MiB have no room"),
            Err(error) => assert_eq!(error.errno(), libc::ENOSPC, "{error}"),
        }
    }
}

fn a_batch_of_more_objects_than_may_be_begun_at_once_is_stored(mode: Mode) {
    let (mount, kv) = kv_with(mode, &["capacity=128MiB"]);
    let cache = open(&mount, &kv, mode);
    let objects: Vec<(String, Vec<u8>)> =
        (0_u32..5000).map(|index| (format!("k{index}"), index.to_le_bytes().to_vec())).collect();
    assert!(store(&cache, &objects).iter().all(Result::is_ok));
    let keys: Vec<&str> = objects.iter().map(|(key, _)| &**key).collect();
    for (view, (key, bytes)) in cache.lookup_many(&keys).expect("lookup").iter().zip(&objects) {
        assert!(view.as_ref().is_some_and(|view| **view == **bytes), "{key}");
    }
}

fn an_object_as_large_as_a_slot_file_is_stored_by_file(mode: Mode) {
    let (mount, kv): (Mount, _) = kv_with(mode, &["capacity=256MiB", "scratch.min=8MiB"]);
    let cache = open(&mount, &kv, mode);
    let bytes = pattern::object(3, 16 * MIB);
    cache.put("large", &bytes).expect("put");
    assert!(std::fs::read(kv.join("large")).expect("read") == bytes);
    assert_object(&cache.get("large").expect("get").expect("a hit"), 3);
    let mut writer = cache.create("begun", 8 * MIB).expect("create");
    assert!(!writer.is_mapped());
    writer.copy_from_slice(&pattern::object(4, 8 * MIB));
    writer.seal().expect("seal");
    assert_object(&cache.get("begun").expect("get").expect("a hit"), 4);
}

/// The new versions are begun together, while somebody looks at the old ones, so that nothing can leave for them.
fn what_is_begun_takes_the_place_of_what_stands_there_in_a_full_quota(mode: Mode) {
    let (mount, kv) = kv_with(mode, &["capacity=64MiB"]);
    set_xattr(&kv, "user.tidefs.quota", b"8MiB").expect("a quota");
    let cache = open(&mount, &kv, mode);
    let keys: Vec<String> = (0..6).map(|index| format!("k{index}")).collect();
    for (key, seed) in keys.iter().zip(0..) {
        cache.put(key, &pattern::object(seed, MIB)).expect("put");
    }
    let views = cache.lookup_many(&keys).expect("lookup");
    assert!(views.iter().all(Option::is_some), "they fit");
    let sizes: Vec<(&str, usize)> = keys.iter().map(|key| (&**key, MIB)).collect();
    let mut writers = cache.create_many(&sizes).expect("each takes the place of another one");
    for (writer, seed) in writers.iter_mut().zip(10..) {
        writer.copy_from_slice(&pattern::object(seed, MIB));
    }
    cache.seal_many(writers).expect("seal");
    for (index, (view, key)) in views.into_iter().zip(&keys).enumerate() {
        assert_object(&view.expect("it is viewed"), index);
        assert_object(&cache.get(key).expect("get").expect("a hit"), 10 + index);
    }
    // What was replaced counts no more.
    drop(cache.create_many(&[("l0", MIB), ("l1", MIB)]).expect("two more have room"));
}

/// As files would have it, one after the other.
fn of_a_key_and_one_below_it_the_first_one_is_stored(mode: Mode) {
    let (mount, kv) = kv_with(mode, &["capacity=64MiB"]);
    let cache = open(&mount, &kv, mode);
    for (keys, failure) in [
        (["a/b", "a/b/c", "a/other"], libc::ENOTDIR),
        (["x/b/c/d", "x/b", "x/other"], libc::EISDIR),
        // The directory above them is there by now.
        (["x/n/c", "x/n", "x/more"], libc::EISDIR),
        (["deep", "deep/er/still", "other"], libc::ENOTDIR),
    ] {
        let objects = keys.map(|key| (key.to_owned(), vec![7; 40_000]));
        let stored: Vec<Result<(), i32>> =
            store(&cache, &objects).into_iter().map(|one| one.map_err(|error| error.errno())).collect();
        assert_eq!(stored, [Ok(()), Err(failure), Ok(())], "{keys:?}");
        let found = keys.map(|key| cache.get(key).expect("get").is_some());
        assert_eq!(found, [true, false, true], "{keys:?}");
    }
}
