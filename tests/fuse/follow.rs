//! Objects that are read while they are written, and objects that are pinned, by the client library on a real mount.

use std::time::Duration;

use tidefs_client::{AsyncCache, Cache, Pin};

use crate::common::wait::{HANG, until};
use crate::common::{Mode, kernel, pattern};
use crate::fixture::{MIB, kv, kv_with, offset};

const LAYERS: usize = 16;
const LAYER: usize = 256 << 10;

#[test]
fn a_reader_follows_a_writer_layer_by_layer_and_keeps_what_it_saw() {
    if !kernel::has_fast_path() {
        return;
    }
    let (_mount, kv) = kv(Mode::Passthrough);
    let (writers, readers) = (Cache::open(&kv).expect("open"), Cache::open(&kv).expect("open"));
    let bytes = pattern::object(7, LAYERS * LAYER);
    let (go, next) = std::sync::mpsc::sync_channel(0);
    std::thread::scope(|scope| {
        let (readers, bytes) = (&readers, &bytes);
        let reader = scope.spawn(move || {
            let mut views = Vec::new();
            for layer in 0..LAYERS {
                let range = layer * LAYER..(layer + 1) * LAYER;
                assert!(
                    readers
                        .wait_range("key", range.clone(), Duration::from_millis(1))
                        .expect("wait")
                        .is_none(),
                    "layer {layer} is not there before it is ready"
                );
                next.recv().expect("the writer goes on");
                let view = readers.wait_range("key", range.clone(), HANG).expect("wait").expect("it comes");
                assert!(view.is_mapped() && *view == bytes[range], "layer {layer}");
                views.push(view);
            }
            views
        });
        let mut writer = writers.create("key", bytes.len()).expect("create");
        for layer in 0..LAYERS {
            let range = layer * LAYER..(layer + 1) * LAYER;
            go.send(()).expect("the reader looked");
            writer[range.clone()].copy_from_slice(&bytes[range.clone()]);
            writer.ready(range).expect("ready");
        }
        let views = reader.join().expect("joined");
        assert_eq!(readers.statistics().mapped_views, offset(LAYERS), "a part that was waited for is a view");
        assert!(readers.get("key").expect("get").is_none(), "it is not sealed yet");
        writer.seal().expect("seal");
        writers.put("key", &pattern::object(8, LAYERS * LAYER)).expect("put over it");
        for (layer, view) in views.iter().enumerate() {
            assert!(
                **view == bytes[layer * LAYER..(layer + 1) * LAYER],
                "layer {layer} after it was replaced"
            );
        }
    });
}

#[test]
fn what_was_followed_stays_when_its_writer_gives_it_up_and_its_memory_returns_after() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv_with(Mode::Passthrough, &["capacity=64MiB"]);
    let (writers, readers) = (Cache::open(&kv).expect("open"), Cache::open(&kv).expect("open"));
    let before = mount.usage().used;
    let mut writer = writers.create("key", 16 * MIB).expect("create");
    writer.copy_from_slice(&pattern::object(3, 16 * MIB));
    writer.ready(0..8 * MIB).expect("ready");
    let view = readers.wait_range("key", MIB..8 * MIB, HANG).expect("wait").expect("it is ready");
    drop(writer);
    assert!(
        readers.wait_range("key", 0..1, Duration::ZERO).expect("wait").is_none(),
        "it is nothing any more"
    );
    for seed in 0..100 {
        writers.put(format!("k{seed}"), &pattern::object(offset(seed), MIB)).expect("never refused");
    }
    assert!(*view == pattern::object(3, 16 * MIB)[MIB..8 * MIB]);
    drop(view);
    readers.flush();
    for seed in 0..100 {
        std::fs::remove_file(kv.join(format!("k{seed}"))).ok();
    }
    drop((writers, readers));
    assert!(
        until(HANG, || mount.usage().used <= before + offset(MIB)),
        "{:?}, {before} before",
        mount.usage()
    );
}

#[test]
fn a_waiter_is_answered_by_a_seal_and_by_a_file_as_well() {
    let (_mount, kv) = kv(Mode::Passthrough);
    let cache = Cache::open(&kv).expect("open");
    std::thread::scope(|scope| {
        let waiters = ["sealed", "file"].map(|key| {
            let cache = &cache;
            scope
                .spawn(move || cache.wait_range(key, 10..20, HANG).expect("wait").expect("it comes").to_vec())
        });
        let bytes = pattern::bytes(1, 100_000);
        cache.put("sealed", &bytes).expect("put");
        std::fs::write(kv.join("tmp"), &bytes).expect("write");
        std::fs::rename(kv.join("tmp"), kv.join("file")).expect("rename");
        for waiter in waiters {
            assert_eq!(waiter.join().expect("joined"), bytes[10..20]);
        }
    });
}

#[test]
fn a_pinned_object_stays_while_all_others_go_and_goes_when_it_is_free() {
    let (_mount, kv) = kv_with(Mode::Passthrough, &["capacity=64MiB"]);
    let cache = Cache::open(&kv).expect("open");
    let keys: Vec<String> = (0..8).map(|index| format!("pinned{index}")).collect();
    for key in &keys {
        cache.put(key, &pattern::object(1, MIB)).expect("put");
    }
    let overwrite = |round: u64| {
        for seed in 0..128 {
            cache.put(format!("k{round}-{seed}"), &pattern::object(seed, MIB)).expect("put");
        }
    };
    let mut with_a_stranger = keys.clone();
    with_a_stranger.push("nowhere".to_owned());
    assert_eq!(cache.pin_many(&with_a_stranger, Pin::Hard).expect("pin"), 8);
    overwrite(0);
    assert_eq!(cache.prefix(&keys).expect("prefix"), 8);
    assert_eq!(cache.pin_many(&keys, Pin::None).expect("unpin"), 8);
    overwrite(1);
    let left = keys.iter().filter(|key| cache.contains(key).expect("contains")).count();
    assert_eq!(left, 0);
}

#[test]
fn a_part_that_is_shown_after_its_object_ended_shows_nothing() {
    if !kernel::has_fast_path() {
        return;
    }
    let (_mount, kv) = kv(Mode::Passthrough);
    let cache = Cache::open(&kv).expect("open");
    let begin = |key: &str| cache.create(key, MIB).expect("create");
    let (mut sealed, mut dropped) = (begin("sealed"), begin("dropped"));
    let parts = [sealed.part(0..MIB).expect("a part"), dropped.part(0..MIB).expect("a part")];
    sealed.seal().expect("seal");
    drop(dropped);
    let _later = (begin("sealed"), begin("dropped"));
    for part in parts {
        assert_eq!(part.show().expect_err("it is refused").errno(), libc::EINVAL);
    }
    assert!(cache.wait_range("dropped", 0..1, Duration::ZERO).expect("wait").is_none());
}

#[test]
fn tasks_follow_pin_and_tell_of_each_object() {
    let (_mount, kv) = kv(Mode::Passthrough);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let bytes = |seed| pattern::object(seed, MIB);
    runtime.block_on(async {
        let cache = AsyncCache::open(&kv).await.expect("the cache opens");
        let waiting = tokio::spawn({
            let cache = cache.clone();
            async move {
                cache.wait_range("begun0", 10..20, HANG).await.expect("wait").expect("it comes").to_vec()
            }
        });
        assert!(cache.wait_range("nothing", 0..1, Duration::from_millis(1)).await.expect("wait").is_none());
        let mut writers = cache.create_many(&[("begun0", MIB), ("begun1", MIB)]).await.expect("create");
        for (writer, seed) in writers.iter_mut().zip(0..) {
            writer.copy_from_slice(&bytes(seed));
        }
        assert!(!waiting.is_finished(), "no part of it is ready");
        cache.seal_many(writers).await.expect("seal");
        assert_eq!(waiting.await.expect("no task panics"), bytes(0)[10..20]);
        let objects = vec![("put", bytes(2)), ("put/below", bytes(3))];
        let stored = cache.put_each(objects).await.expect("keys that files can have");
        assert!(stored[0].is_ok() && stored[1].is_err(), "{stored:?}");
        let found = cache.lookup_each(&["put", "nothing", "begun1"]).await.expect("lookup");
        let found: Vec<bool> =
            found.into_iter().map(|found| found.expect("it may be read").is_some()).collect();
        assert_eq!(found, [true, false, true]);
        assert!(cache.pin("put", Pin::Hard).await.expect("pin"));
        assert_eq!(cache.pin_many(&["put", "nothing"], Pin::None).await.expect("pin"), 1);
        assert_eq!(cache.keep(MIB).await.expect("keep"), cache.blocking().is_fast());
        cache.flush().await.expect("flush");
    });
}

#[test]
fn of_several_writers_of_a_key_one_that_has_what_is_wanted_is_followed() {
    if !kernel::has_fast_path() {
        return;
    }
    let (_mount, kv) = kv(Mode::Passthrough);
    let [first, second, readers] = [(); 3].map(|()| Cache::open(&kv).expect("open"));
    let [bytes, others] = [1, 2].map(|seed| pattern::object(seed, 2 * LAYER));
    let begin = |cache: &Cache, bytes: &[u8]| {
        let mut writer = cache.create("key", bytes.len()).expect("create");
        writer.copy_from_slice(bytes);
        writer
    };
    let (mut ahead, mut behind) = (begin(&first, &bytes), begin(&second, &others));
    ahead.ready(0..2 * LAYER).expect("ready");
    behind.ready(0..LAYER).expect("ready");
    let wait = |range| readers.wait_range("key", range, HANG).expect("wait").expect("one of them has it");
    assert!(*wait(LAYER..2 * LAYER) == bytes[LAYER..], "the last one shown has none of it");
    assert!(*wait(0..LAYER) == others[..LAYER], "the last one shown");
    drop(behind);
    assert!(*wait(0..LAYER) == bytes[..LAYER], "the one that is left");
}
