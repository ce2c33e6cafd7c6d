//! Caches of the client library whose directory is removed or renamed while the daemon lives: they go over to the one that is at
//! their path then.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidefs_client::{AsyncCache, Cache, View};

use crate::common::wait::HANG;
use crate::common::{Mode, Mount, kernel, pattern, wait};
use crate::fastpath::{assert_object, open};
use crate::fixture::{MIB, kv, offset, publish_object};

const MODE: Mode = Mode::Passthrough;

/// A directory below a namespace, and a cache with the fast path in it. `None` where there is none.
fn model() -> Option<(Mount, PathBuf, Cache)> {
    if !kernel::has_fast_path() {
        return None;
    }
    let (mount, kv) = kv(MODE);
    let model = kv.join("model");
    fs::create_dir(&model).expect("a directory");
    let cache = open(&mount, &model, MODE);
    cache.is_fast().then_some((mount, model, cache))
}

#[track_caller]
fn put(cache: &Cache, key: &str, seed: usize) {
    cache.put(key, &pattern::object(offset(seed), MIB)).expect("put");
}

#[track_caller]
fn get(cache: &Cache, key: &str, seed: usize) -> View {
    let view = cache.get(key).expect("get").expect("a hit");
    assert_object(&view, seed);
    view
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
    let registered = Arc::new(());
    let of_hook = Arc::clone(&registered);
    cache.register_with(move |_, _| Some(Box::new(Arc::clone(&of_hook))));
    // Besides the one here and that of the function.
    let count = || Arc::strong_count(&registered) - 2;
    put(&cache, "viewed", 1);
    put(&cache, "idle", 2);
    let viewed = get(&cache, "viewed", 1);
    assert_eq!(count(), 2);

    fs::remove_dir_all(&model).expect("rm -r");
    assert!(cache.get("viewed").expect("get").is_none());
    fs::create_dir(&model).expect("a directory");
    put(&cache, "new", 3);
    get(&cache, "new", 3);
    assert_eq!(cache.prefix(&["new", "viewed"]).expect("prefix"), 1);
    assert!(fs::read(model.join("new")).expect("by file") == pattern::object(3, MIB));
    assert!(wait::until(HANG, || get(&cache, "new", 3).is_mapped()), "it goes by file for good");
    assert!(cache.is_fast());
    assert_eq!(count(), 2, "what is viewed of the last session, and what is mapped of this one");
    assert_object(&viewed, 1);
    drop(viewed);
    assert_eq!((count(), cache.mapped_segments()), (1, 1));
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
