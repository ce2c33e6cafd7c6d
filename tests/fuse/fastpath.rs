//! The client library on a real mount: the same results by shared memory as by file, and bytes that stay while they are
//! viewed.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidefs_client::{Cache, View};

use crate::common::modes::in_fast_modes;
use crate::common::{Mode, Mount, pattern, wait};
use crate::fixture::{MIB, SIZES, kv, kv_with, offset, publish, publish_object};
use crate::ioctl::metric;

in_fast_modes!(
    what_is_put_is_there_for_the_library_and_for_files,
    what_files_wrote_is_there_for_the_library,
    a_view_keeps_its_bytes_when_the_key_is_replaced_and_unlinked,
    views_keep_their_bytes_while_everything_else_is_evicted,
    a_cache_that_is_written_four_times_over_never_refuses_and_never_passes_its_capacity,
    a_writer_that_is_dropped_leaves_nothing,
    writers_of_several_caches_are_sealed_together,
    only_the_first_bytes_are_sealed_when_that_is_asked_for,
    a_name_that_was_looked_up_before_shows_the_object_once_it_is_sealed,
    a_replaced_object_shows_its_new_bytes_by_file_at_once,
    a_prefix_ends_at_the_first_hole,
    a_batch_of_ten_thousand_keys_finds_each,
    a_batch_that_names_a_key_twice_answers_for_each,
    what_comes_later_is_waited_for,
    keys_are_relative_to_the_directory_that_was_opened,
    keys_at_the_top_of_the_mount_are_like_any_other,
    many_threads_share_one_cache,
    many_tasks_share_one_cache_and_wait_on_no_thread,
);

pub(crate) fn open(mount: &Mount, directory: &Path, mode: Mode) -> Cache {
    let cache = Cache::open(directory).expect("the cache opens");
    let is_fast = mode == Mode::Passthrough && !mount.is_bare();
    assert_eq!(cache.is_fast(), is_fast, "the fast path is there where segments can be mapped");
    cache
}

#[track_caller]
pub(crate) fn assert_object(view: &View, seed: usize) {
    assert_eq!(pattern::verify_object(view), Ok(offset(seed)));
}

/// A cache that has the fast path. `None` where there is none.
pub(crate) fn fast(mount: &Mount, directory: &Path) -> Option<Cache> {
    let cache = open(mount, directory, Mode::Passthrough);
    cache.is_fast().then_some(cache)
}

#[track_caller]
pub(crate) fn put(cache: &Cache, key: &str, seed: usize) {
    cache.put(key, &pattern::object(offset(seed), MIB)).expect("put");
}

#[track_caller]
pub(crate) fn get(cache: &Cache, key: &str, seed: usize) -> View {
    let view = cache.get(key).expect("get").expect("a hit");
    assert_object(&view, seed);
    view
}

/// A view of one of two objects whose segments are registered, from before its cache goes over to another session.
pub(crate) struct Viewed {
    registered: Arc<()>,
    pub(crate) view: View,
}

impl Viewed {
    /// Has the segments of `cache` registered, and stores `viewed` and `idle` there.
    pub(crate) fn of(cache: &Cache) -> Self {
        let registered = Arc::new(());
        let of_hook = Arc::clone(&registered);
        cache.register_with(move |_, _| Some(Box::new(Arc::clone(&of_hook))));
        put(cache, "viewed", 1);
        put(cache, "idle", 2);
        let view = get(cache, "viewed", 1);
        Self { registered, view }
    }

    /// How many segments are registered.
    pub(crate) fn count(&self) -> usize {
        // Besides the one here and that of the function.
        Arc::strong_count(&self.registered) - 2
    }

    /// Ends the view when one segment of the next session is mapped. Returns what the registrations share.
    #[track_caller]
    pub(crate) fn assert_let_go(self, cache: &Cache) -> Arc<()> {
        assert_eq!(self.count(), 2, "what is viewed of the last session, and what is mapped of this one");
        assert_object(&self.view, 1);
        let Self { registered, view } = self;
        drop(view);
        assert_eq!((Arc::strong_count(&registered) - 2, cache.mapped_segments()), (1, 1));
        registered
    }
}

fn what_is_put_is_there_for_the_library_and_for_files(mode: Mode) {
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    for length in SIZES {
        let (key, bytes) = (format!("some/where/k{length}"), pattern::bytes(7, length));
        cache.put(&key, &bytes).expect("put");
        let view = cache.get(&key).expect("get").expect("a hit");
        assert!(*view == *bytes, "{length} bytes by the library");
        assert!(fs::read(kv.join(&key)).expect("read") == bytes, "{length} bytes by file");
        let is_large = length >= 64 * 1024;
        assert!(!is_large || view.is_mapped() == cache.is_fast());
        let mut first = vec![0; length.min(10)];
        assert_eq!(cache.get_into(&key, &mut first).expect("get_into"), Some(length));
        assert_eq!(first, bytes[..first.len()]);
    }
    assert!(cache.get("some/where/else").expect("a miss is no error").is_none());
    assert!(cache.get("nowhere/else").expect("nor is a missing directory").is_none());
    let found = cache.lookup_many(&["n/".repeat(20_000) + "n", format!("some/where/k{}", SIZES[1])]);
    let found = found.expect("nor is a key that no request holds");
    assert!(found[0].is_none() && found[1].is_some());
}

fn what_files_wrote_is_there_for_the_library(mode: Mode) {
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    let keys: Vec<String> = SIZES.iter().map(|length| format!("k{length}")).collect();
    for (key, length) in keys.iter().zip(SIZES) {
        publish(&kv.join(key), &pattern::bytes(offset(length), length));
    }
    let views = cache.lookup_many(&keys).expect("lookup");
    for (view, length) in views.iter().zip(SIZES) {
        let view = view.as_ref().expect("a hit");
        assert!(**view == *pattern::bytes(offset(length), length), "{length}");
    }
}

fn a_view_keeps_its_bytes_when_the_key_is_replaced_and_unlinked(mode: Mode) {
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    cache.put("key", &pattern::object(1, MIB)).expect("put");
    let first = cache.get("key").expect("get").expect("a hit");
    cache.put("key", &pattern::object(2, MIB)).expect("put over it");
    let second = cache.get("key").expect("get").expect("a hit");
    publish_object(&kv.join("key"), 3, MIB);
    let third = cache.get("key").expect("get").expect("a hit");
    fs::write(kv.join("key"), pattern::object(4, MIB)).expect("rewrite");
    let fourth = cache.get("key").expect("get").expect("a hit");
    fs::remove_file(kv.join("key")).expect("unlink");
    assert!(cache.get("key").expect("get").is_none());
    for round in 0..40 {
        cache.put(format!("other{round}"), &pattern::object(9, MIB)).expect("put");
    }
    for (view, seed) in [first, second, third, fourth].iter().zip(1..) {
        assert_object(view, seed);
    }
}

fn views_keep_their_bytes_while_everything_else_is_evicted(mode: Mode) {
    let (mount, kv) = kv_with(mode, &["capacity=64MiB"]);
    let cache = open(&mount, &kv, mode);
    let held: Vec<View> = (0..16)
        .map(|seed| {
            cache.put(format!("held{seed}"), &pattern::object(offset(seed), MIB)).expect("put");
            cache.get(format!("held{seed}")).expect("get").expect("a hit")
        })
        .collect();
    for seed in 100..400 {
        cache.put(format!("k{seed}"), &pattern::object(offset(seed), MIB)).expect("put");
        if seed % 3 == 0 {
            publish_object(&kv.join(format!("f{seed}")), offset(seed), MIB);
        }
        if let Some(view) = cache.get(format!("k{}", seed - 20)).expect("get") {
            assert_object(&view, seed - 20);
        }
    }
    for (seed, view) in held.iter().enumerate() {
        assert_object(view, seed);
    }
    drop(held);
    cache.flush();
    for seed in 400..520 {
        cache.put(format!("k{seed}"), &pattern::object(offset(seed), MIB)).expect("put");
    }
    let left = (0..16).filter(|seed| kv.join(format!("held{seed}")).exists()).count();
    assert_eq!(left, 0, "what nobody views any more leaves like the rest");
}

fn a_cache_that_is_written_four_times_over_never_refuses_and_never_passes_its_capacity(mode: Mode) {
    let (mount, kv) = kv_with(mode, &["capacity=64MiB"]);
    let cache = open(&mount, &kv, mode);
    // Two sizes, so that segments are used again and given up, both while this process has them mapped.
    for seed in 0..256 {
        let length = if seed / 32 % 2 == 0 { MIB } else { 3 * MIB / 2 + 5000 };
        let key = format!("k{seed}");
        cache.put(&key, &pattern::object(offset(seed), length)).expect("never refused");
        let view = cache.get(&key).expect("get");
        assert_object(&view.expect("just written"), seed);
        let usage = mount.usage();
        assert!(usage.used <= usage.capacity, "{usage:?}");
    }
    let left = (0..256).filter(|seed| cache.contains(format!("k{seed}")).expect("contains")).count();
    assert!(left >= 24, "only {left} objects are left of 64 MiB");
    if cache.is_fast() {
        // While the daemon keeps room for other writers, as in its first second, segments are given up instead.
        let reused = wait::until(Duration::from_secs(20), || {
            for seed in 0..32 {
                cache.put(format!("k{seed}"), &pattern::object(offset(seed), MIB)).expect("never refused");
                assert_object(&cache.get(format!("k{seed}")).expect("get").expect("just written"), seed);
            }
            metric(&mount, "tidefs_fast_reuses_total") > 50
        });
        assert!(reused, "segments are used again");
        assert!(cache.mapped_segments() < 150, "{} segments are mapped", cache.mapped_segments());
    }
}

fn a_writer_that_is_dropped_leaves_nothing(mode: Mode) {
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    let before = mount.usage().used;
    for _ in 0..8 {
        let mut writer = cache.create("key", 4 * MIB).expect("create");
        writer[..5].copy_from_slice(b"bytes");
        assert!(!kv.join("key").exists(), "nothing is there before the seal");
    }
    assert!(cache.get("key").expect("get").is_none());
    assert_eq!(fs::read_dir(&kv).expect("a listing").count(), 0);
    // What was written by file is given back when the daemon hears of its close.
    let is_given_back = || mount.usage().used <= before + 6 * offset(MIB);
    assert!(wait::until(wait::HANG, is_given_back), "{:?}, {before} before", mount.usage());
}

fn writers_of_several_caches_are_sealed_together(mode: Mode) {
    let (mount, kv) = kv(mode);
    let (first, second) = (open(&mount, &kv, mode), open(&mount, &kv, mode));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let elsewhere = Cache::open(directory.path()).expect("the cache opens");
    let begin = |cache: &Cache, key: &str, seed| {
        let mut writer = cache.create(key, MIB).expect("create");
        writer.copy_from_slice(&pattern::object(seed, MIB));
        writer
    };
    // In its session it has the same number as the one of the first.
    let unfinished = begin(&second, "unfinished", 9);
    second.seal_many(vec![begin(&first, "a", 1)]).expect("seal");
    elsewhere.seal_many(vec![begin(&first, "b", 2)]).expect("seal");
    let begun = vec![begin(&elsewhere, "e", 5), begin(&second, "c", 3), begin(&first, "d", 4)];
    first.seal_many(begun).expect("seal");
    for (key, seed) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        assert_object(&second.get(key).expect("get").expect("a hit"), seed);
    }
    assert_object(&elsewhere.get("e").expect("get").expect("a hit"), 5);
    assert!(!first.contains("unfinished").expect("contains"));
    unfinished.seal().expect("seal");
    assert_object(&first.get("unfinished").expect("get").expect("a hit"), 9);
}

fn only_the_first_bytes_are_sealed_when_that_is_asked_for(mode: Mode) {
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    for length in [0, 100, 100_000, 2 * MIB - 1] {
        let mut writer = cache.create("key", 2 * MIB).expect("create");
        writer.copy_from_slice(&pattern::object(5, 2 * MIB));
        writer.seal_first(length).expect("seal");
        let expected = &pattern::object(5, 2 * MIB)[..length];
        assert!(*cache.get("key").expect("get").expect("a hit") == *expected, "{length}");
        assert_eq!(fs::read(kv.join("key")).expect("read"), expected);
    }
    let writer = cache.create("key", 10).expect("create");
    assert!(matches!(writer.seal_first(11), Err(tidefs_client::Error::TooLong { .. })));
}

fn a_name_that_was_looked_up_before_shows_the_object_once_it_is_sealed(mode: Mode) {
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    for round in 0..200 {
        let path = kv.join(format!("k{round}"));
        assert!(!path.exists());
        cache.put(format!("k{round}"), &pattern::object(1, 100_000)).expect("put");
        assert!(path.exists(), "round {round}");
    }
}

fn a_replaced_object_shows_its_new_bytes_by_file_at_once(mode: Mode) {
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    for round in 0..100_usize {
        let bytes = pattern::object(offset(round), 50_000 + 1000 * round);
        cache.put("key", &bytes).expect("put");
        assert_eq!(fs::metadata(kv.join("key")).expect("stat").len(), offset(bytes.len()), "round {round}");
        assert!(fs::read(kv.join("key")).expect("read") == bytes, "round {round}");
    }
}

fn a_prefix_ends_at_the_first_hole(mode: Mode) {
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    let keys: Vec<String> = (0..1200).map(|index| format!("b{index}")).collect();
    for (index, key) in keys.iter().enumerate().filter(|(index, _)| *index != 1100) {
        match index % 3 {
            0 => publish(&kv.join(key), b"by file"),
            _ => cache.put(key, b"by the library").expect("put"),
        }
    }
    assert_eq!(cache.prefix(&keys).expect("prefix"), 1100);
    assert_eq!(cache.prefix(&keys[..700]).expect("prefix"), 700);
    assert_eq!(cache.prefix(&keys[1100..]).expect("prefix"), 0);
    assert_eq!(cache.prefix::<&str>(&[]).expect("prefix"), 0);
    // A directory is no object.
    fs::create_dir(kv.join("b1100")).expect("mkdir");
    assert_eq!(cache.prefix(&keys).expect("prefix"), 1100);
}

fn a_batch_of_ten_thousand_keys_finds_each(mode: Mode) {
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    let objects: Vec<(String, Vec<u8>)> = (0..40_usize)
        .map(|index| (format!("k{index}"), pattern::object(offset(index), 40_000 + index)))
        .collect();
    let parts: Vec<(&str, &[u8])> = objects.iter().map(|(key, bytes)| (&**key, &**bytes)).collect();
    cache.put_many(&parts).expect("put_many");
    let keys: Vec<String> = (0..10_000).map(|index| format!("k{}", index % 50)).collect();
    let views = cache.lookup_many(&keys).expect("lookup");
    for (index, view) in views.iter().enumerate() {
        match view {
            Some(view) => assert!(**view == *objects[index % 50].1, "{index}"),
            None => assert!(index % 50 >= 40, "{index}"),
        }
    }
    assert_eq!(views.iter().flatten().count(), 8000);
}

fn what_comes_later_is_waited_for(mode: Mode) {
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    assert!(cache.wait_ready("key", Duration::from_millis(5)).expect("wait").is_none());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| cache.wait_ready("key", Duration::from_secs(20)));
        cache.put("key", &pattern::object(3, MIB)).expect("put");
        let view = waiter.join().expect("joined").expect("wait").expect("it came");
        assert_object(&view, 3);
    });
}

fn keys_at_the_top_of_the_mount_are_like_any_other(mode: Mode) {
    let (mount, _kv) = kv(mode);
    let top = mount.join("");
    let cache = open(&mount, &top, mode);
    let bytes = pattern::object(1, MIB);
    let mut writer = cache.create("key", MIB).expect("create");
    assert_eq!(writer.is_mapped(), cache.is_fast(), "bytes go to a segment");
    writer.copy_from_slice(&bytes);
    writer.seal().expect("seal");
    assert_eq!(get(&cache, "key", 1).is_mapped(), cache.is_fast());
    assert!(fs::read(top.join("key")).expect("read") == bytes, "by file");

    let refused = cache.put(".tidefs", &bytes).expect_err("the daemon's own files stand there");
    assert!(refused.to_string().contains(".tidefs"), "{refused}");
    assert!(top.join(".tidefs/status").is_file());
    let left = fs::read_dir(&top).expect("readdir").map(|entry| entry.expect("an entry").file_name());
    let mut left: Vec<_> = left.collect();
    left.sort();
    assert_eq!(left, ["key", "kv"], "nothing else is left");
}

fn keys_are_relative_to_the_directory_that_was_opened(mode: Mode) {
    let (mount, kv) = kv(mode);
    let root = open(&mount, mount.path(), mode);
    root.put("kv/deep/key", &pattern::object(1, 50_000)).expect("put");
    let deep = open(&mount, &kv.join("deep"), mode);
    assert_object(&deep.get("key").expect("get").expect("a hit"), 1);
    assert!(matches!(deep.get("../deep/key"), Err(tidefs_client::Error::BadKey { .. })));
}

fn many_threads_share_one_cache(mode: Mode) {
    let (mount, kv) = kv_with(mode, &["capacity=64MiB"]);
    let cache = open(&mount, &kv, mode);
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let cache = &cache;
            scope.spawn(move || {
                for round in 0..60_usize {
                    let seed = thread * 1000 + round;
                    let length = [MIB, 200_000, 5000][round % 3];
                    cache.put(format!("k{seed}"), &pattern::object(offset(seed), length)).expect("put");
                    for other in 0..4 {
                        let seed = other * 1000 + round / 2;
                        if let Some(view) = cache.get(format!("k{seed}")).expect("get") {
                            assert_object(&view, seed);
                        }
                    }
                }
            });
        }
    });
}

fn a_batch_that_names_a_key_twice_answers_for_each(mode: Mode) {
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    for length in [5000, MIB] {
        let (one, two) = (pattern::object(1, length), pattern::object(2, length));
        cache.put_many(&[("twice", &*one), ("other", &*one), ("twice", &*two)]).expect("put");
        let found = cache.lookup_many(&["twice", "nowhere", "twice", "other"]).expect("lookup");
        let [Some(first), None, Some(second), Some(other)] =
            <[Option<View>; 4]>::try_from(found).expect("four")
        else {
            panic!("each key has an answer of its own")
        };
        assert_object(&other, 1);
        assert_object(&first, 2);
        // One of them is let go, and the other is not.
        drop(first);
        fs::remove_file(kv.join("twice")).expect("unlink");
        assert_object(&second, 2);
        assert_eq!(cache.prefix(&["other", "other", "twice"]).expect("prefix"), 2);
        cache.prefetch(&["other", "other"]).expect("a hint never fails");
    }
    // An empty one is stored by file, in whatever mode.
    cache.put_many(&[("last", &b"first"[..]), ("last", b"")]).expect("put");
    assert!(cache.get("last").expect("get").expect("a hit").is_empty(), "the last one of a key stays");
}

/// All on one thread: a task that held it up would hold up the others.
fn many_tasks_share_one_cache_and_wait_on_no_thread(mode: Mode) {
    let (mount, kv) = kv(mode);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let cache = tidefs_client::AsyncCache::open(&kv).await.expect("the cache opens");
        assert_eq!(cache.blocking().is_fast(), mode == Mode::Passthrough && !mount.is_bare());
        let waiting = tokio::spawn({
            let cache = cache.clone();
            async move { cache.wait_ready("last", wait::HANG).await.expect("wait") }
        });
        let tasks: Vec<_> = (0..32_usize)
            .map(|number| {
                let cache = cache.clone();
                tokio::spawn(async move {
                    let key = format!("task/k{number}");
                    let bytes = pattern::object(offset(number), if number % 2 == 0 { 5000 } else { MIB });
                    assert!(!cache.contains(&key).await.expect("contains"));
                    cache.put(&key, bytes).await.expect("put");
                    let view = cache.get(&key).await.expect("get").expect("a hit");
                    assert_object(&view, number);
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task panics");
        }
        let keys: Vec<String> = (0..100).map(|number| format!("task/k{number}")).collect();
        let found = cache.lookup_many(&keys).await.expect("lookup");
        assert_eq!(found.iter().filter(|view| view.is_some()).count(), 32);
        assert_eq!(cache.prefix(&keys).await.expect("prefix"), 32);
        cache.prefetch(&keys).await.expect("a hint never fails");
        cache
            .put_many(vec![("a", pattern::object(1, 9000)), ("b", pattern::object(2, MIB))])
            .await
            .expect("put");
        assert!(cache.get("../outside").await.is_err(), "a key that no file can have");
        assert!(cache.wait_ready("never", Duration::from_millis(30)).await.expect("wait").is_none());
        let mut writer = cache.create("last", MIB).await.expect("create");
        writer.copy_from_slice(&pattern::object(77, MIB));
        assert!(!waiting.is_finished(), "nobody sees what is not sealed");
        cache.seal(writer).await.expect("seal");
        let last = waiting.await.expect("no task panics").expect("it came");
        assert_object(&last, 77);
    });
}
