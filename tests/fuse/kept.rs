//! References that the client library keeps: what they answer without the daemon is what the daemon would have answered.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::{Pid, gettid};
use tidefs_client::{Cache, View};

use crate::common::sys::set_xattr;
use crate::common::{Mode, Mount, kernel, pattern, wait};
use crate::fastpath::open;
use crate::fixture::{MIB, kv, kv_with, offset, publish};

const LENGTH: usize = 64 * 1024;
const MODE: Mode = Mode::Passthrough;

/// A cache that keeps what it looked up. `None` where there is no fast path.
fn keeping(mount: &Mount, kv: &Path) -> Option<Cache> {
    let cache = open(mount, kv, MODE);
    let keeps = cache.keep(64 * MIB).expect("the clock is mapped");
    assert_eq!(keeps, cache.is_fast(), "references are kept wherever there are some");
    keeps.then_some(cache)
}

/// What a look-up shows of a key. Two are the same as far as both know the version: what is just being closed is read by its
/// file, which does not tell.
#[derive(Debug)]
struct Shown {
    version: u64,
    length: usize,
    seed: u64,
}

impl PartialEq for Shown {
    fn eq(&self, other: &Self) -> bool {
        let is_same_version = self.version == other.version || self.version == 0 || other.version == 0;
        is_same_version && (self.length, self.seed) == (other.length, other.seed)
    }
}

fn shown(cache: &Cache, keys: &[String]) -> Vec<Option<Shown>> {
    let views = cache.lookup_many(keys).expect("a look-up");
    let facts = |view: View| {
        let seed = pattern::verify_object(&view).expect("the bytes of one object");
        Shown { version: view.version(), length: view.len(), seed }
    };
    views.into_iter().map(|view| view.map(facts)).collect()
}

#[test]
fn a_key_that_is_looked_up_again_is_answered_without_the_daemon() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(MODE);
    let Some(cache) = keeping(&mount, &kv) else { return };
    let keys: Vec<String> = (0..100).map(|index| format!("b{index}")).collect();
    for (index, key) in keys.iter().enumerate() {
        cache.put(key, &pattern::object(offset(index), LENGTH)).expect("put");
    }
    let first = shown(&cache, &keys);
    assert_eq!(cache.statistics().kept_views, 0);
    // Who had no processor for so long that the clock seems to stand asks the daemon, which answers when it goes on: then it
    // is tried again.
    let held = (0..10).find_map(|_| {
        shown(&cache, &keys);
        let before = cache.statistics().kept_views;
        mount.stand_still();
        let (again, run) = thread::scope(|scope| {
            let looking = scope.spawn(|| (cache.lookup_many(&keys), cache.prefix(&keys)));
            wait::until(Duration::from_secs(5), || looking.is_finished());
            let is_answered = looking.is_finished() && mount.stands_still();
            mount.go_on();
            let found = looking.join().expect("it looks");
            is_answered.then_some(found)
        })?;
        let kept = cache.statistics().kept_views - before;
        assert_eq!((kept, run.expect("a prefix")), (100, 100), "the daemon stood still");
        Some(again.expect("a look-up").into_iter().flatten().collect::<Vec<View>>())
    });
    let held = held.expect("the daemon is asked each time");
    assert_eq!(held.len(), 100);
    for (view, first) in held.iter().zip(&first) {
        let is_same = |first: &Shown| (first.version, first.length) == (view.version(), view.len());
        assert!(first.as_ref().is_some_and(is_same));
    }
}

#[test]
fn what_is_kept_shows_every_change_as_soon_as_it_is_made() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(MODE);
    let Some(cache) = keeping(&mount, &kv) else { return };
    let asks = open(&mount, &kv, MODE);
    let keys: Vec<String> = (0..24).map(|index| format!("d{}/b{index}", index % 3)).collect();
    let path = |index: usize| kv.join(&keys[index]);
    (0..3).for_each(|directory| fs::create_dir(kv.join(format!("d{directory}"))).expect("mkdir"));
    let mut kept_before = 0;
    let mut changes_seen = 0;
    // The sequence is the same each time.
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for step in 0..600_usize {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (index, other) = ((random >> 33) as usize % 24, (random >> 45) as usize % 24);
        let bytes = pattern::object(offset(step), LENGTH + index);
        match (random >> 57) % 10 {
            0 => drop(fs::remove_file(path(index))),
            1 => drop(fs::rename(path(index), path(other))),
            2 => publish(&path(index), &bytes),
            3 => asks.put(&keys[index], &bytes).expect("put"),
            4 => fs::write(path(index), &bytes).expect("write in place"),
            5 => {
                let (from, to) = (kv.join("d0"), kv.join("elsewhere"));
                fs::rename(&from, &to).expect("rename of a directory");
                assert_eq!(shown(&cache, &keys), shown(&asks, &keys), "step {step}: while it is elsewhere");
                fs::rename(&to, &from).expect("rename of a directory");
            }
            6 => drop(set_xattr(&path(index), "user.tidefs.ttl", b"1h")),
            7 => {
                let mut file = fs::File::options().write(true).open(path(index));
                assert_eq!(shown(&cache, &keys), shown(&asks, &keys), "step {step}: while it is open");
                if let Ok(file) = &mut file {
                    file.set_len(offset(bytes.len())).expect("ftruncate");
                    std::io::Write::write_all(file, &bytes).expect("write over it");
                }
            }
            8 => drop(fs::set_permissions(path(index), Permissions::from_mode(0o600))),
            _ => cache.put(&keys[index], &bytes).expect("put"),
        }
        let (by_kept, by_asking) = (shown(&cache, &keys), shown(&asks, &keys));
        assert_eq!(by_kept, by_asking, "step {step}");
        let kept = cache.statistics().kept_views;
        changes_seen += usize::from(kept == kept_before);
        // And once more, from what is kept.
        assert_eq!(shown(&cache, &keys), by_asking, "step {step}, again");
        kept_before = cache.statistics().kept_views;
    }
    assert!(
        cache.statistics().kept_views > 2000,
        "{:?}: too little was kept to say anything",
        cache.statistics()
    );
    assert!(changes_seen > 100, "{changes_seen} of 600 steps changed what was kept");
}

/// One key goes through states that are numbered: it is there in the odd ones, with the number in its bytes, and gone in
/// the even.
#[test]
fn nobody_is_shown_what_somebody_else_has_changed_already() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(MODE);
    let (Some(shared), Some(alone)) = (keeping(&mount, &kv), keeping(&mount, &kv)) else { return };
    let (state, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let look = |cache: &Cache| {
        while !is_over.load(Ordering::Relaxed) {
            let before = state.load(Ordering::SeqCst);
            let Some(view) = cache.get("key").expect("get") else { continue };
            let shown = pattern::verify_object(&view).expect("the bytes of one object");
            let after = state.load(Ordering::SeqCst);
            let is_in_time = (before..=after + 2).contains(&shown);
            assert!(
                is_in_time,
                "state {shown} was shown by a look-up between the states {before} and {after}"
            );
        }
    };
    thread::scope(|scope| {
        for cache in [&shared, &shared, &alone] {
            scope.spawn(move || look(cache));
        }
        let is_enough = || [&shared, &alone].iter().all(|cache| cache.statistics().kept_views > 100);
        for round in 0..5000_u64 {
            // Those who look need a processor in time for that.
            if round >= 500 && is_enough() {
                break;
            }
            // Made, replaced, and unlinked or moved away; packed and solo.
            let length = if round % 2 == 0 { LENGTH } else { 4096 };
            publish(&kv.join("key"), &pattern::object(4 * round + 1, length));
            state.store(4 * round + 1, Ordering::SeqCst);
            thread::sleep(Duration::from_micros(300));
            publish(&kv.join("key"), &pattern::object(4 * round + 3, length));
            state.store(4 * round + 3, Ordering::SeqCst);
            thread::sleep(Duration::from_micros(300));
            if round % 3 == 0 {
                fs::rename(kv.join("key"), kv.join("elsewhere")).expect("rename");
            } else {
                fs::remove_file(kv.join("key")).expect("unlink");
            }
            state.store(4 * round + 4, Ordering::SeqCst);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(shared.statistics().kept_views > 100 && alone.statistics().kept_views > 100);
}

#[test]
fn a_time_that_has_come_is_seen_without_a_change_of_the_clock() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(MODE);
    let Some(cache) = keeping(&mount, &kv) else { return };
    set_xattr(&kv, "user.tidefs.ttl", b"2s").expect("a time to live");
    cache.put("short", &pattern::object(1, LENGTH)).expect("put");
    assert!(cache.get("short").expect("get").is_some() && cache.get("short").expect("get").is_some());
    assert_eq!(cache.statistics().kept_views, 0, "what has an end is not kept");
    let is_gone = || cache.get("short").expect("get").is_none();
    assert!(wait::until(Duration::from_secs(10), is_gone), "it stays beyond its time");
}

#[test]
fn rights_that_are_taken_away_are_seen_at_once() {
    if !kernel::has_fast_path() || !nix::unistd::geteuid().is_root() {
        return;
    }
    let (mount, kv) = kv(MODE);
    let Some(cache) = keeping(&mount, &kv) else { return };
    let clock = |cache: &Cache| {
        let kept = cache.statistics().kept_views;
        drop(cache.get("key").expect("get"));
        cache.statistics().kept_views > kept
    };
    // At once, unless the clock seems to stand to who had no processor for a while.
    let is_answered_here = |cache: &Cache| wait::until(wait::HANG, || clock(cache));
    cache.put("key", &pattern::object(1, LENGTH)).expect("put");
    assert!(!clock(&cache) && is_answered_here(&cache), "the next look-up is answered from here");
    for (path, mode) in [(kv.clone(), 0o700), (kv.join("key"), 0o600)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
        assert!(!clock(&cache), "somebody may be looking at it who may not any more");
        assert!(is_answered_here(&cache));
    }
    std::os::unix::fs::chown(kv.join("key"), Some(1), None).expect("chown");
    assert!(!clock(&cache));
}

#[test]
fn what_is_kept_and_not_looked_up_goes_back_and_can_be_evicted() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv_with(MODE, &["capacity=64MiB"]);
    let Some(cache) = keeping(&mount, &kv) else { return };
    let keys: Vec<String> = (0..24).map(|index| format!("b{index}")).collect();
    for (index, key) in keys.iter().enumerate() {
        cache.put(key, &pattern::object(offset(index), MIB)).expect("put");
    }
    assert!(cache.lookup_many(&keys).expect("a look-up").iter().all(Option::is_some));
    cache.keep(8 * MIB).expect("a lower limit");
    let fill = |names: &str, looked_up: &[String]| {
        for index in 0..80 {
            publish(&kv.join(format!("{names}{index}")), &pattern::object(7, MIB));
            // However long it takes: what is looked up does not go back.
            drop(cache.lookup_many(looked_up).expect("a look-up"));
        }
        keys.iter().filter(|key| kv.join(key).exists()).count()
    };
    let stayed = fill("one", &keys[16..]);
    assert!((8..16).contains(&stayed), "{stayed} of 24 stayed: those that are kept, and no others");
    let started = Instant::now();
    while fill("more", &[]) > 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "they are kept for ever, unused");
        thread::sleep(Duration::from_millis(500));
    }
}

/// A registration takes its time to end on the thread that gives back what is kept, and the cache is closed meanwhile.
#[test]
fn nothing_of_a_cache_goes_on_once_it_is_closed() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(MODE);
    let Some(cache) = keeping(&mount, &kv) else { return };
    let registered = Arc::new(());
    let (ends, is_ending) = mpsc::sync_channel(1000);
    let of_hook = Arc::clone(&registered);
    cache.register_with(move |_, _| {
        Some(Box::new(Ends { _registered: Arc::clone(&of_hook), ends: ends.clone() }))
    });
    for key in ["given up", "kept"] {
        cache.flush();
        cache.put(key, &pattern::object(1, MIB)).expect("put");
        assert!(cache.get(key).expect("get").is_some());
    }
    // A segment of which somebody has seen the file is given up; the next request, which brings back what is kept, is told.
    assert_eq!(fs::read(kv.join("given up")).expect("by file").len(), MIB);
    for key in ["given up", "kept"] {
        fs::remove_file(kv.join(key)).expect("unlink");
    }
    let ending = is_ending.recv_timeout(Duration::from_secs(30)).expect("the segment is unmapped");
    let name = || fs::read_to_string(format!("/proc/self/task/{ending}/comm"));
    assert_eq!(name().expect("it is at work"), "tidefs-kept\n");
    drop(cache);
    assert_eq!(Arc::strong_count(&registered), 1, "a registration outlives the cache");
    assert!(name().is_err(), "a thread outlives the cache");
}

/// A registration that takes its time to end.
#[derive(Debug)]
struct Ends {
    _registered: Arc<()>,
    /// Is told of the thread.
    ends: mpsc::SyncSender<Pid>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.ends.try_send(gettid());
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn nothing_is_answered_from_what_an_earlier_daemon_gave() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mut mount, kv) = kv(MODE);
    let Some(cache) = keeping(&mount, &kv) else { return };
    for key in ["stays", "goes"] {
        publish(&kv.join(key), &pattern::object(1, LENGTH));
    }
    let both = ["stays".to_owned(), "goes".to_owned()];
    shown(&cache, &both);
    mount.kill9();
    mount.restart();
    fs::remove_file(kv.join("goes")).expect("unlink");
    let found = cache.lookup_many(&both).expect("a look-up");
    assert!(found[0].is_some() && found[1].is_none(), "by file, as without the fast path");
    let again = keeping(&mount, &kv).expect("a new session has a fast path");
    let is_kept = || again.get("stays").expect("get").is_some() && again.statistics().kept_views > 0;
    assert!(wait::until(wait::HANG, is_kept), "nothing of the new session is kept");
}
