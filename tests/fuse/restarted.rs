//! Caches of the client library that stay open while their daemon is killed and started again: they find the next one.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidefs_client::{AsyncCache, Cache, Error, View};

use crate::common::wait::HANG;
use crate::common::{Mode, kernel, pattern, wait};
use crate::fastpath::{Viewed, assert_object, fast, get, put};
use crate::fixture::{MIB, kv, offset};

const MODE: Mode = Mode::Passthrough;

/// Whether an error is what a mount says whose daemon is gone.
fn is_of_dead_mount(error: &Error) -> bool {
    matches!(error.errno(), libc::ENOTCONN | libc::ECONNABORTED)
}

#[test]
fn a_cache_maps_objects_again_when_its_daemon_was_killed_and_started_again() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mut mount, kv) = kv(MODE);
    let Some(cache) = fast(&mount, &kv) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let of_tasks = runtime.block_on(AsyncCache::open(&kv)).expect("the cache opens");
    put(&cache, "key", 1);
    let (before, mut begun) = (get(&cache, "key", 1), cache.create("begun", MIB).expect("create"));
    assert!(before.is_mapped() && begun.is_mapped());

    mount.kill9();
    let meanwhile = cache.clone();
    let found = wait::within(HANG, move || meanwhile.get("key")).expect("a dead mount answers");
    assert!(is_of_dead_mount(&found.expect_err("there is no daemon")));
    assert!(!cache.is_fast(), "all is done by file");
    let error = begun.ready(0..1).expect_err("nobody can be shown it");
    assert!(is_of_dead_mount(&error) && error.to_string().contains("kv/begun"), "{error}");
    assert_object(&before, 1);

    mount.restart();
    assert!(wait::until(HANG, || get(&cache, "key", 1).is_mapped()), "it goes by file for good");
    assert!(cache.is_fast());
    let of_task = || runtime.block_on(of_tasks.get("key")).expect("get").expect("a hit");
    assert!(wait::until(HANG, || of_task().is_mapped()), "tasks go by file for good");
    assert!(of_tasks.blocking().is_fast());
    let mut writer = cache.create("new", MIB).expect("create");
    assert!(writer.is_mapped());
    writer.copy_from_slice(&pattern::object(2, MIB));
    writer.seal().expect("seal");
    get(&cache, "new", 2);
    assert!(is_of_dead_mount(&begun.seal().expect_err("nobody knows of it any more")));
    assert!(cache.get("begun").expect("get").is_none());
    // What was viewed before stays what it was, whatever becomes of its object.
    put(&cache, "key", 3);
    get(&cache, "key", 3);
    fs::remove_file(kv.join("key")).expect("unlink");
    assert!(cache.get("key").expect("get").is_none());
    assert_object(&before, 1);
}

#[test]
fn the_next_daemons_segments_are_registered_and_those_of_the_last_let_go() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mut mount, kv) = kv(MODE);
    let Some(cache) = fast(&mount, &kv) else { return };
    let viewed = Viewed::of(&cache);
    assert_eq!((viewed.view.is_registered(), viewed.count()), (true, 2));

    mount.kill9();
    mount.restart();
    assert!(wait::until(HANG, || get(&cache, "idle", 2).is_mapped()), "it goes by file for good");
    assert!(get(&cache, "idle", 2).is_registered());
    let registered = viewed.assert_let_go(&cache);
    drop(cache);
    assert_eq!(Arc::strong_count(&registered), 1, "a registration outlives the cache");
}

#[test]
fn as_much_is_kept_of_what_the_next_daemon_shows() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mut mount, kv) = kv(MODE);
    let Some(cache) = fast(&mount, &kv) else { return };
    assert!(cache.keep(64 * MIB).expect("the clock is mapped"));
    put(&cache, "key", 1);
    get(&cache, "key", 1);
    mount.kill9();
    mount.restart();
    let before = cache.statistics().kept_views;
    let is_kept = || {
        get(&cache, "key", 1);
        cache.statistics().kept_views > before
    };
    assert!(wait::until(HANG, is_kept), "nothing is kept");
    assert!(cache.is_fast());
    fs::remove_file(kv.join("key")).expect("unlink");
    assert!(cache.get("key").expect("get").is_none(), "the clock is this daemon's");
}

/// Looks all keys up until that is over, and holds some of what it is shown. Returns how many of those are mapped.
fn look_up_until(is_over: &AtomicBool, cache: &Cache, keys: &[String]) -> usize {
    let (mut held, mut rounds, started): (Vec<(usize, View)>, usize, _) = (Vec::new(), 0, Instant::now());
    while (!is_over.load(Ordering::Relaxed) || held.is_empty()) && started.elapsed() < 6 * HANG {
        match cache.lookup_many(keys) {
            Ok(views) => {
                for (seed, view) in views.into_iter().enumerate() {
                    let Some(view) = view else { continue };
                    assert_object(&view, seed);
                    let is_wanted = held.is_empty() || rounds.is_multiple_of(64) && held.len() < 256;
                    if is_wanted && view.is_mapped() {
                        held.push((seed, view));
                    }
                }
            }
            Err(error) => assert!(is_of_dead_mount(&error), "{error}"),
        }
        rounds += 1;
    }
    held.iter().for_each(|(seed, view)| assert_object(view, *seed));
    held.len()
}

#[test]
fn threads_see_hits_misses_and_a_dead_mount_while_the_daemon_is_started_again_and_no_wrong_byte() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mut mount, kv) = kv(MODE);
    let Some(cache) = fast(&mount, &kv) else { return };
    let length = 128 * 1024;
    let keys: Vec<String> = (0..16).map(|seed| format!("k{seed}")).collect();
    let put = |seed: usize| cache.put(&keys[seed], &pattern::object(offset(seed), length));
    (0..keys.len()).for_each(|seed| put(seed).expect("put"));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let look_up = || look_up_until(&is_over, &cache, &keys);
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(look_up)).collect();
        scope.spawn(|| {
            let started = Instant::now();
            for seed in (0..keys.len()).cycle() {
                if is_over.load(Ordering::Relaxed) || started.elapsed() >= 6 * HANG {
                    return;
                }
                // It fails where it meets the death of the daemon; what it stores are the same bytes each time.
                let _ = put(seed);
                thread::sleep(Duration::from_millis(1));
            }
        });
        for _ in 0..2 {
            mount.kill9();
            mount.restart();
            let is_mapped = || cache.get("k0").ok().flatten().is_some_and(|view| view.is_mapped());
            assert!(wait::until(HANG, is_mapped), "all go by file for good");
        }
        is_over.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().expect("no wrong byte") > 0, "nothing was mapped");
        }
    });
    assert!(cache.is_fast());
    for (seed, key) in keys.iter().enumerate() {
        get(&cache, key, seed);
    }
}
