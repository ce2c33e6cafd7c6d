//! Capacity as an invariant: a writer never hears ENOSPC because of cold data, and used bytes never pass the cap.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;
use tidefs_client::Cache;

use crate::common::modes::in_both_modes;
use crate::common::pattern;
use crate::common::sys::{Mapping, checksum_of, errno, set_xattr, sorted_names};
use crate::common::wait::{HANG, until};
use crate::common::{Mode, Mount};
use crate::fixture::{MIB, kv_with, offset, publish_object};

in_both_modes!(
    filling_four_times_the_capacity_never_fails_and_never_passes_it,
    filling_with_small_objects_never_fails_and_never_passes_it,
    small_objects_that_are_read_as_they_come_make_room_for_others,
    filling_by_several_threads_never_passes_the_capacity,
    pages_really_taken_stay_within_the_capacity,
    what_was_written_last_is_still_there,
    what_is_read_again_and_again_survives,
    a_chain_published_by_temporary_names_loses_its_end_first,
    under_lru_exactly_the_oldest_leave,
    no_more_leaves_than_room_is_needed,
    an_evicted_key_says_enoent_and_can_be_written_again,
    an_evicted_key_is_gone_from_the_listing,
    an_open_object_is_not_evicted,
    what_is_open_and_viewed_stays_until_it_is_neither_whichever_ends_first,
    a_mapped_object_keeps_its_bytes,
    bytes_of_unlinked_open_files_are_in_use,
    a_hard_pinned_object_is_never_evicted,
    a_soft_pinned_object_outlives_ordinary_ones,
    a_higher_priority_outlives_a_lower_one,
    a_cache_full_of_hard_pins_says_enospc_and_still_reads,
    many_open_writers_share_the_cache_without_error,
);

/// Capacity of these mounts, in MiB: small, so that filling it four times is quick.
const CAPACITY_MIB: usize = 64;

fn small(mode: Mode) -> (Mount, std::path::PathBuf) {
    kv_with(mode, &["capacity=64MiB"])
}

#[track_caller]
fn assert_within_capacity(mount: &Mount) {
    let usage = mount.usage();
    assert!(usage.used <= usage.capacity, "{usage:?}");
}

fn exists(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(errno(&error), Errno::ENOENT, "only a miss is a miss");
            false
        }
    }
}

/// Publishes objects of 1 MiB, `count` times, named and numbered from `first`.
fn fill(mount: &Mount, directory: &Path, first: usize, count: usize) {
    for index in first..first + count {
        publish_object(&directory.join(format!("fill{index}")), offset(index), MIB);
        assert_within_capacity(mount);
    }
}

fn filling_four_times_the_capacity_never_fails_and_never_passes_it(mode: Mode) {
    let (mount, kv) = small(mode);
    fill(&mount, &kv, 0, 4 * CAPACITY_MIB);
    let mut left = 0;
    for index in 0..4 * CAPACITY_MIB {
        if let Ok(found) = fs::read(kv.join(format!("fill{index}"))) {
            assert_eq!(pattern::verify_object(&found), Ok(offset(index)));
            left += 1;
        }
    }
    assert!(left >= CAPACITY_MIB / 2, "only {left} of {CAPACITY_MIB} MiB hold objects");
}

fn filling_with_small_objects_never_fails_and_never_passes_it(mode: Mode) {
    let (mount, kv) = small(mode);
    let count = 2 * CAPACITY_MIB * MIB / 16_000;
    for index in 0..count {
        publish_object(&kv.join(format!("k{index}")), offset(index), 16_000);
        if index % 64 == 0 {
            assert_within_capacity(&mount);
        }
    }
    let left = (0..count).filter(|index| exists(&kv.join(format!("k{index}")))).count();
    assert!(left >= count / 4, "{left} of {count} are left");
    for index in count - 100..count {
        let found = fs::read(kv.join(format!("k{index}"))).expect("the last ones are there");
        assert_eq!(pattern::verify_object(&found), Ok(offset(index)));
    }
}

/// The kernel goes on to know the inode of what was read and evicted; its bytes do not stay for that.
fn small_objects_that_are_read_as_they_come_make_room_for_others(mode: Mode) {
    let (mount, kv) = small(mode);
    let count = 2 * CAPACITY_MIB * MIB / 16_000;
    let path_of = |index: usize| kv.join(format!("k{index}"));
    for index in 0..count {
        publish_object(&path_of(index), offset(index), 16_000);
        let found = fs::read(path_of(index)).unwrap_or_else(|error| panic!("object {index}: {error}"));
        assert_eq!(pattern::verify_object(&found), Ok(offset(index)));
    }
    assert_within_capacity(&mount);
    let left = (0..count).filter(|&index| exists(&path_of(index))).count();
    assert!(left >= count / 4, "{left} of {count} are left");
}

fn filling_by_several_threads_never_passes_the_capacity(mode: Mode) {
    let (mount, kv) = small(mode);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut samples = 0_u32;
            while !done.load(Ordering::Relaxed) {
                assert_within_capacity(&mount);
                samples += 1;
            }
            samples
        });
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let kv = &kv;
                scope.spawn(move || {
                    for round in 0..CAPACITY_MIB / 2 {
                        let seed = offset(writer * 1000 + round);
                        let length = [100_000, MIB, 3 * MIB, 10_000][round % 4];
                        publish_object(&kv.join(format!("k{seed}")), seed, length);
                    }
                })
            })
            .collect();
        let results: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        assert!(watcher.join().expect("never above the capacity") > 10);
        assert!(results.iter().all(Result::is_ok), "a writer failed");
    });
}

fn pages_really_taken_stay_within_the_capacity(mode: Mode) {
    let (mount, kv) = small(mode);
    let memory = mount.instance_dir().join("memory");
    for index in 0..3 * CAPACITY_MIB {
        // Sizes that do not end at a page, beside small ones that are packed.
        publish_object(&kv.join(format!("k{index}")), offset(index), 900_001);
        publish_object(&kv.join(format!("s{index}")), offset(index), 5000);
        let facts = statvfs(&memory).expect("statfs of the private tmpfs");
        let taken = (facts.blocks() - facts.blocks_free()) * facts.fragment_size();
        let capacity = mount.usage().capacity;
        assert!(taken <= capacity, "after {index}: {taken} bytes of pages, capacity {capacity}");
    }
}

fn what_was_written_last_is_still_there(mode: Mode) {
    let (mount, kv) = small(mode);
    for index in 0..3 * CAPACITY_MIB {
        fill(&mount, &kv, index, 1);
        let found = fs::read(kv.join(format!("fill{index}"))).expect("what was just written");
        assert_eq!(pattern::verify_object(&found), Ok(offset(index)));
    }
}

fn what_is_read_again_and_again_survives(mode: Mode) {
    let (mount, kv) = small(mode);
    for index in 0..8 {
        publish_object(&kv.join(format!("hot{index}")), index, MIB);
    }
    for round in 0..4 * CAPACITY_MIB {
        fill(&mount, &kv, round, 1);
        if round % 8 == 0 {
            for index in 0..8 {
                let found = fs::read(kv.join(format!("hot{index}")));
                let found = found.unwrap_or_else(|error| panic!("round {round}, hot{index}: {error}"));
                assert_eq!(pattern::verify_object(&found), Ok(index));
            }
        }
    }
}

/// Probes the blocks of a chain and publishes them in order, as clients do. Returns their paths.
fn publish_chain(directory: &Path, name: &str, length: usize) -> Vec<std::path::PathBuf> {
    let blocks: Vec<_> = (0..length).map(|block| directory.join(format!("{name}{block}"))).collect();
    assert!(!blocks.iter().any(|block| exists(block)), "{name} is new");
    for (seed, block) in blocks.iter().enumerate() {
        publish_object(block, offset(seed), MIB);
    }
    blocks
}

fn a_chain_published_by_temporary_names_loses_its_end_first(mode: Mode) {
    let (mount, kv) = small(mode);
    let length = CAPACITY_MIB * 5 / 8;
    let chain = publish_chain(&kv, "old", length);
    // What is open does not leave.
    mount.wait_until_closed(&chain);
    publish_chain(&kv, "new", length);
    let left: Vec<bool> = chain.iter().map(|block| exists(block)).collect();
    let prefix = left.iter().take_while(|&&left| left).count();
    assert!((1..length).contains(&prefix), "some of the older chain is left, and some is not: {left:?}");
    assert!(!left[prefix..].contains(&true), "a block without the ones before it is of no use: {left:?}");
}

fn under_lru_exactly_the_oldest_leave(mode: Mode) {
    let (mount, kv) = small(mode);
    set_xattr(&kv, "user.tidefs.policy", b"lru").expect("setxattr");
    fill(&mount, &kv, 0, CAPACITY_MIB / 2);
    // Reading turns the first ten into the youngest of them.
    for index in 0..10 {
        fs::read(kv.join(format!("fill{index}"))).expect("read");
    }
    // What is open does not leave.
    mount.wait_until_closed((0..CAPACITY_MIB / 2).map(|index| kv.join(format!("fill{index}"))));
    fill(&mount, &kv, 1000, CAPACITY_MIB * 3 / 4);
    let order: Vec<_> =
        (10..CAPACITY_MIB / 2).chain(0..10).chain(1000..1000 + CAPACITY_MIB * 3 / 4).collect();
    // As the daemon lists them: the kernel is told of an eviction a moment after it.
    let listed = sorted_names(&kv);
    let present: Vec<_> = order.iter().map(|index| listed.contains(&format!("fill{index}"))).collect();
    let gone = present.iter().filter(|there| !**there).count();
    assert!(gone > 0, "something had to leave");
    assert!(present[..gone].iter().all(|there| !there), "in order of last use, present: {present:?}");
    assert!(present[gone..].iter().all(|there| *there), "in order of last use, present: {present:?}");
}

fn no_more_leaves_than_room_is_needed(mode: Mode) {
    let (mount, kv) = small(mode);
    fill(&mount, &kv, 0, 2 * CAPACITY_MIB);
    // As the daemon lists them: the kernel is told of an eviction a moment after it.
    let present = || -> BTreeSet<String> { sorted_names(&kv).into_iter().collect() };
    let mut before = present();
    let mut left = 0;
    for written in 1..=20 {
        fill(&mount, &kv, 2 * CAPACITY_MIB + written, 1);
        let after = present();
        left += before.difference(&after).count();
        // Who keeps room ahead of writers may have been late, and makes up for some of them at once.
        assert!(left <= written + 4, "{left} MiB left to make room for {written}");
        before = after;
    }
}

fn an_evicted_key_says_enoent_and_can_be_written_again(mode: Mode) {
    let (mount, kv) = small(mode);
    publish_object(&kv.join("key"), 1, MIB);
    let mut other = crate::common::Peer::spawn();
    other.stat(&kv.join("key")).expect("stat");
    fill(&mount, &kv, 0, 3 * CAPACITY_MIB);
    let is_gone = until(HANG, || other.stat(&kv.join("key")) == Err(Errno::ENOENT));
    assert!(is_gone, "the kernel must not answer from memory");
    assert_eq!(other.open(&kv.join("key"), libc::O_RDONLY).err(), Some(Errno::ENOENT));
    assert_eq!(other.access(&kv.join("key"), libc::F_OK), Err(Errno::ENOENT));
    publish_object(&kv.join("key"), 2, MIB);
    assert_eq!(pattern::verify_object(&other.read(&kv.join("key")).expect("read")), Ok(2));
}

fn an_evicted_key_is_gone_from_the_listing(mode: Mode) {
    let (mount, kv) = small(mode);
    fill(&mount, &kv, 0, 3 * CAPACITY_MIB);
    // The daemon may still be making room for the next writer, so a key that was listed can be gone a moment later;
    // one that is gone never comes back.
    let listing = || -> BTreeSet<_> { sorted_names(&kv).into_iter().collect() };
    let before = listing();
    let names: Vec<_> = (0..3 * CAPACITY_MIB).map(|index| format!("fill{index}")).collect();
    let present: BTreeSet<_> = names.into_iter().filter(|name| exists(&kv.join(name))).collect();
    let after = listing();
    assert!(present.len() < 3 * CAPACITY_MIB, "something had to leave");
    assert!(present.is_subset(&before), "present, and not listed: {:?}", present.difference(&before));
    assert!(after.is_subset(&present), "listed, and gone before: {:?}", after.difference(&present));
}

fn an_open_object_is_not_evicted(mode: Mode) {
    let (mount, kv) = small(mode);
    let mut open = Vec::new();
    for (index, length) in [MIB, 100_000, 5000].into_iter().enumerate() {
        let path = kv.join(format!("open{index}"));
        publish_object(&path, offset(index), length);
        open.push((File::open(&path).expect("open"), path, length));
    }
    fill(&mount, &kv, 0, 4 * CAPACITY_MIB);
    for (index, (file, path, length)) in open.into_iter().enumerate() {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, 0).expect("pread");
        assert_eq!(pattern::verify_object(&bytes), Ok(offset(index)));
        let found =
            fs::read(&path).unwrap_or_else(|error| panic!("{length} bytes, open all the time: {error}"));
        assert_eq!(pattern::verify_object(&found), Ok(offset(index)));
    }
}

fn what_is_open_and_viewed_stays_until_it_is_neither_whichever_ends_first(mode: Mode) {
    let (mount, kv) = small(mode);
    let cache = Cache::open(&kv).expect("the cache opens");
    let [opened, viewed] = ["opened", "viewed"].map(|name| kv.join(name));
    publish_object(&opened, 1, MIB);
    publish_object(&viewed, 2, MIB);
    let view = |name: &str| cache.get(name).expect("get").expect("a hit");
    // The one is viewed while it is open, the other opened while it is viewed; the first use ends first.
    let file_of_opened = File::open(&opened).expect("open");
    let view_of_opened = view("opened");
    drop(file_of_opened);
    let view_of_viewed = view("viewed");
    let file_of_viewed = File::open(&viewed).expect("open");
    drop(view_of_viewed);
    cache.flush();
    fill(&mount, &kv, 0, 2 * CAPACITY_MIB);
    // Without the fast path a view is a copy.
    assert!(exists(&viewed) && (exists(&opened) || !cache.is_fast()), "they are in use");
    assert_eq!(pattern::verify_object(&view_of_opened), Ok(1));
    let mut bytes = vec![0; MIB];
    file_of_viewed.read_exact_at(&mut bytes, 0).expect("what is open is read");
    assert_eq!(pattern::verify_object(&bytes), Ok(2));
    drop((view_of_opened, file_of_viewed));
    cache.flush();
    let are_gone = || {
        fill(&mount, &kv, 0, 2 * CAPACITY_MIB);
        !exists(&opened) && !exists(&viewed)
    };
    assert!(until(HANG, are_gone), "nobody uses them any more");
}

fn a_mapped_object_keeps_its_bytes(mode: Mode) {
    let (mount, kv) = small(mode);
    let mappings: Vec<_> = [MIB, 100_000, 5000]
        .into_iter()
        .map(|length| {
            let path = kv.join(format!("mapped{length}"));
            publish_object(&path, offset(length), length);
            (Mapping::shared(&File::open(&path).expect("open"), length).expect("mmap"), length)
        })
        .collect();
    fill(&mount, &kv, 0, 4 * CAPACITY_MIB);
    for (mapping, length) in mappings {
        assert_eq!(pattern::verify_object(&mapping.bytes()), Ok(offset(length)));
    }
}

fn bytes_of_unlinked_open_files_are_in_use(mode: Mode) {
    let (mount, kv) = small(mode);
    let mut open = Vec::new();
    for index in 0..CAPACITY_MIB / 2 {
        let path = kv.join(format!("open{index}"));
        publish_object(&path, offset(index), MIB);
        open.push(File::open(&path).expect("open"));
    }
    // A file that is unlinked before the daemon has heard of its close becomes scratch, which is not in memory.
    (0..CAPACITY_MIB / 2).for_each(|index| drop(checksum_of(&kv.join(format!("open{index}")))));
    for index in 0..CAPACITY_MIB / 2 {
        fs::remove_file(kv.join(format!("open{index}"))).expect("unlink");
    }
    assert!(mount.usage().used >= offset(CAPACITY_MIB / 2 * MIB), "{:?}", mount.usage());
    fill(&mount, &kv, 0, 2 * CAPACITY_MIB);
    for (index, file) in open.iter().enumerate() {
        let mut bytes = vec![0; MIB];
        file.read_exact_at(&mut bytes, 0).expect("pread");
        assert_eq!(pattern::verify_object(&bytes), Ok(offset(index)));
    }
}

fn a_hard_pinned_object_is_never_evicted(mode: Mode) {
    let (mount, kv) = small(mode);
    fs::create_dir(kv.join("pinned")).expect("mkdir");
    set_xattr(&kv.join("pinned"), "user.tidefs.pin", b"hard").expect("setxattr of a directory");
    for index in 0..8 {
        publish_object(&kv.join(format!("pinned/k{index}")), index, MIB);
        publish_object(&kv.join(format!("small{index}")), index, 5000);
        set_xattr(&kv.join(format!("small{index}")), "user.tidefs.pin", b"hard")
            .expect("setxattr of an object");
    }
    fill(&mount, &kv, 0, 4 * CAPACITY_MIB);
    for index in 0..8 {
        for path in [kv.join(format!("pinned/k{index}")), kv.join(format!("small{index}"))] {
            let found = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(pattern::verify_object(&found), Ok(index));
        }
    }
}

fn a_soft_pinned_object_outlives_ordinary_ones(mode: Mode) {
    let (mount, kv) = small(mode);
    for index in 0..8 {
        publish_object(&kv.join(format!("soft{index}")), index, MIB);
        set_xattr(&kv.join(format!("soft{index}")), "user.tidefs.pin", b"soft").expect("setxattr");
    }
    fill(&mount, &kv, 0, 3 * CAPACITY_MIB);
    for index in 0..8 {
        assert!(exists(&kv.join(format!("soft{index}"))), "soft{index} left before ordinary objects");
    }
    // They are no hard pins: with nothing else to evict they go, and the writer hears of nothing.
    fs::create_dir(kv.join("hard")).expect("mkdir");
    set_xattr(&kv.join("hard"), "user.tidefs.pin", b"hard").expect("setxattr");
    fill(&mount, &kv.join("hard"), 0, CAPACITY_MIB * 7 / 8 - 2);
    // The kernel, which knows them, is told of an eviction a moment after it.
    let is_any_gone = || (0..8).any(|index| !exists(&kv.join(format!("soft{index}"))));
    assert!(until(HANG, is_any_gone), "soft pins give way at last");
}

fn a_higher_priority_outlives_a_lower_one(mode: Mode) {
    let (mount, kv) = small(mode);
    for index in 0..8 {
        publish_object(&kv.join(format!("high{index}")), index, MIB);
        set_xattr(&kv.join(format!("high{index}")), "user.tidefs.priority", b"5").expect("setxattr");
    }
    fill(&mount, &kv, 0, 3 * CAPACITY_MIB);
    for index in 0..8 {
        assert!(exists(&kv.join(format!("high{index}"))), "high{index} left before lower ones");
    }
}

/// Creates, writes and closes; the errno of whichever step failed, with its name.
fn try_publish(path: &Path, seed: u64) -> Result<(), (&'static str, Errno)> {
    let temporary = path.with_extension("tmp");
    let step = |step: &'static str| move |error: std::io::Error| (step, errno(&error));
    let mut file = File::create(&temporary).map_err(step("create"))?;
    file.write_all(&pattern::object(seed, MIB)).map_err(step("write"))?;
    nix::unistd::close(file).map_err(|error| ("close", error))?;
    fs::rename(&temporary, path).map_err(step("rename"))
}

fn a_cache_full_of_hard_pins_says_enospc_and_still_reads(mode: Mode) {
    let (mount, kv) = kv_with(mode, &["capacity=64MiB", "runtime.deadline_ms=500"]);
    set_xattr(&kv, "user.tidefs.pin", b"hard").expect("setxattr");
    let mut written = 0;
    let (step, error) = loop {
        match try_publish(&kv.join(format!("k{written}")), offset(written)) {
            Ok(()) => written += 1,
            Err(failure) => break failure,
        }
        assert_within_capacity(&mount);
        assert!(written <= CAPACITY_MIB, "{written} MiB pinned in a cache of {CAPACITY_MIB}");
    };
    assert_eq!(error, Errno::ENOSPC, "at {step}");
    assert!(matches!(step, "write" | "close"), "ENOSPC comes from write or close, not from {step}");
    assert!(written >= CAPACITY_MIB / 2, "only {written} MiB could be pinned");
    for index in 0..written {
        let found = fs::read(kv.join(format!("k{index}"))).expect("reads go on");
        assert_eq!(pattern::verify_object(&found), Ok(offset(index)));
    }
    let names = sorted_names(&kv);
    assert!(names.iter().filter(|name| name.ends_with(".tmp")).count() <= 1, "{names:?}");
    let _ = fs::remove_file(kv.join(format!("k{written}.tmp")));
    for index in 0..8 {
        fs::remove_file(kv.join(format!("k{index}"))).expect("unlink");
    }
    try_publish(&kv.join("again"), 1000).expect("there is room again");
}

fn many_open_writers_share_the_cache_without_error(mode: Mode) {
    let (mount, kv) = small(mode);
    fill(&mount, &kv, 0, CAPACITY_MIB);
    let mut files: Vec<_> =
        (0..24).map(|index| File::create(kv.join(format!("open{index}"))).expect("create")).collect();
    let bytes: Vec<_> = (0..24).map(|index| pattern::object(index, MIB)).collect();
    for piece in 0..16 {
        for (file, bytes) in files.iter_mut().zip(&bytes) {
            file.write_all(&bytes[piece * 65_536..(piece + 1) * 65_536]).expect("write");
        }
        assert_within_capacity(&mount);
    }
    drop(files);
    for (index, bytes) in bytes.iter().enumerate() {
        let found = fs::read(kv.join(format!("open{index}"))).expect("read");
        pattern::assert_same(&found, bytes, "written beside 23 others");
    }
}
