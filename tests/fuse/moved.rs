//! Caches of the client library whose directory is removed or renamed while the daemon lives: they go over to the one that is at
//! their path then.

use std::fs;
use std::path::{Path, PathBuf};

use tidefs_client::{AsyncCache, Cache};

use crate::common::wait::HANG;
use crate::common::{Mode, Mount, kernel, pattern, wait};
use crate::fastpath::{Viewed, assert_object, fast, get, put};
use crate::fixture::{MIB, kv, publish_object};

const MODE: Mode = Mode::Passthrough;

/// A directory below a namespace, and a cache with the fast path in it. `None` where there is none.
fn model() -> Option<(Mount, PathBuf, Cache)> {
    if !kernel::has_fast_path() {
        return None;
    }
    let (mount, kv) = kv(MODE);
    let model = kv.join("model");
    fs::create_dir(&model).expect("a directory");
    let cache = fast(&mount, &model)?;
    Some((mount, model, cache))
}

/// Renames the directory, and makes another in its place. Returns where it is now.
fn give_way(model: &Path) -> PathBuf {
    let old = model.with_file_name("old");
    fs::rename(model, &old).expect("rename");
    fs::create_dir(model).expect("a directory");
    old
}

#[test]
fn a_cache_whose_directory_is_removed_and_made_again_maps_what_is_stored_there() {
    let Some((_mount, model, cache)) = model() else { return };
    let viewed = Viewed::of(&cache);
    assert_eq!(viewed.count(), 2);

    fs::remove_dir_all(&model).expect("rm -r");
    assert!(cache.get("viewed").expect("get").is_none());
    fs::create_dir(&model).expect("a directory");
    put(&cache, "new", 3);
    get(&cache, "new", 3);
    assert_eq!(cache.prefix(&["new", "viewed"]).expect("prefix"), 1);
    assert!(fs::read(model.join("new")).expect("by file") == pattern::object(3, MIB));
    assert!(wait::until(HANG, || get(&cache, "new", 3).is_mapped()), "it goes by file for good");
    assert!(cache.is_fast());
    viewed.assert_let_go(&cache);
}

#[test]
fn a_cache_whose_directory_gives_way_to_another_goes_over_to_that_one() {
    let Some((_mount, model, cache)) = model() else { return };
    assert!(cache.keep(64 * MIB).expect("the clock is mapped"));
    put(&cache, "key", 1);
    let (view, mut begun) = (get(&cache, "key", 1), cache.create("begun", MIB).expect("create"));
    let old = give_way(&model);
    publish_object(&model.join("new"), 2, MIB);
    let is_found = || cache.get("new").expect("get").is_some();
    assert!(wait::until(HANG, is_found), "its misses are for good");
    assert!(cache.get("key").expect("get").is_none());
    assert!(wait::until(HANG, || get(&cache, "new", 2).is_mapped()), "it goes by file for good");
    put(&cache, "put", 3);
    assert!(fs::read(model.join("put")).expect("by file") == pattern::object(3, MIB));
    // What was begun before is of the directory that was there.
    begun.copy_from_slice(&pattern::object(4, MIB));
    begun.seal().expect("seal");
    assert!(fs::read(old.join("begun")).expect("by file") == pattern::object(4, MIB));
    assert_object(&view, 1);
}

#[test]
fn who_does_nothing_but_store_goes_over_as_well() {
    let Some((_mount, model, cache)) = model() else { return };
    put(&cache, "key", 1);
    give_way(&model);
    let is_stored = || {
        put(&cache, "key", 2);
        model.join("key").exists()
    };
    assert!(wait::until(HANG, is_stored), "it stores elsewhere for good");
    get(&cache, "key", 2);
}

#[test]
fn tasks_go_over_as_well() {
    let Some((_mount, model, cache)) = model() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let of_tasks = runtime.block_on(AsyncCache::open(&model)).expect("the cache opens");
    put(&cache, "key", 1);
    give_way(&model);
    publish_object(&model.join("new"), 2, MIB);
    let is_found = || runtime.block_on(of_tasks.get("new")).expect("get").is_some();
    assert!(wait::until(HANG, is_found), "its misses are for good");
}
