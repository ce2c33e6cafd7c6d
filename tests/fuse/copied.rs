//! Small objects of the client library, which are stored and copied out through an area and not mapped.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tidefs_control_api::ioctl::{Command, Encoder, Entry, Flags, Get, Name, Outcome, Put, Status, results};

use crate::common::modes::in_fast_modes;
use crate::common::sys::set_xattr;
use crate::common::{Mode, kernel, pattern, wait};
use crate::fastpath::{assert_object, fast, open};
use crate::fixture::{MIB, kv, kv_with, offset};
use crate::ioctl::{Control, metric};

in_fast_modes!(
    a_batch_is_visible_in_its_order,
    what_is_copied_out_while_it_is_replaced_is_one_version_of_it,
    threads_that_store_and_copy_out_at_once_meet_their_own_objects,
    where_no_area_is_granted_all_is_stored_and_found,
);

#[test]
fn what_is_stored_once_and_copied_out_once_is_not_mapped() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    let Some(cache) = fast(&mount, &kv) else { return };
    let lengths = [1, 40_000, 256 << 10, MIB];
    let keys: Vec<String> = lengths.iter().map(|length| format!("k{length}")).collect();
    let objects: Vec<Vec<u8>> =
        lengths.iter().map(|&length| pattern::bytes(offset(length), length)).collect();
    cache.put("first", b"what is done once needs no area").expect("put");
    let before = cache.mapped_segments();
    for (key, bytes) in keys.iter().zip(&objects) {
        cache.put(key, bytes).expect("put");
        assert!(fs::read(kv.join(key)).expect("read") == *bytes, "{key}");
    }
    assert_eq!(cache.mapped_segments(), before, "each is one request");
    let copy_all = || {
        let hits = metric(&mount, "tidefs_fast_hits_total");
        for (key, bytes) in keys.iter().zip(&objects) {
            let mut target = vec![0; bytes.len() + 1];
            assert_eq!(cache.get_into(key, &mut target).expect("get"), Some(bytes.len()), "{key}");
            assert!(target[..bytes.len()] == **bytes && target[bytes.len()] == 0, "{key}");
        }
        assert_eq!(metric(&mount, "tidefs_fast_hits_total"), hits + offset(keys.len()), "each is one use");
    };
    copy_all();
    assert_eq!(cache.mapped_segments(), before, "each was met once");
    copy_all();
    assert_eq!(cache.mapped_segments(), before + 3, "but what lies in no segment of its own");
    copy_all();
    let (mut first, mut none) = ([0; 3], []);
    for (key, bytes) in keys.iter().zip(&objects).skip(1) {
        assert_eq!(cache.get_into(key, &mut first).expect("get"), Some(bytes.len()));
        assert_eq!(first, bytes[..3], "{key}");
        assert_eq!(cache.get_into(key, &mut none).expect("get"), Some(bytes.len()));
    }
    cache.put("large", &pattern::object(1, MIB + 1)).expect("put");
    assert_eq!(cache.mapped_segments(), before + 4, "what is longer is written where it stays");
    assert_eq!(metric(&mount, "tidefs_fast_name_resets_total"), 0, "nobody had looked");
}

/// Sets a flag when a thread ends, also by a failed assertion: others stop then, and that is told.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each object needs the place of an earlier one of the same request.
#[test]
fn one_request_stores_more_than_its_quota_holds_and_the_last_of_it_stays() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv_with(Mode::Passthrough, &["capacity=512MiB"]);
    set_xattr(&kv, "user.tidefs.quota", b"1MiB").expect("a quota");
    let control = Control::open(&mount);
    let (area, _file) = control.area(offset(MIB));
    let names: Vec<String> = (0..12).map(|index| format!("kv/k{index}")).collect();
    let mut request = Encoder::new(Flags::NONE, 0, size_of::<Outcome>());
    for name in &names {
        let name = Name(name.as_bytes());
        assert!(request.push(&Put { area, source: 0, length: 256 << 10, mode: 0o600, name }));
    }
    let reply = control.call(Command::PutFrom, request.finish()).expect("a reply");
    let (_, outcomes) = results::<Outcome>(&reply).expect("a whole reply");
    let statuses: Vec<Status> = outcomes.iter().map(Outcome::status).collect();
    assert_eq!(statuses, [Status::Ok; 12]);
    assert_eq!(metric(&mount, "tidefs_over_quota_total"), 0, "nobody was refused");
    for (name, is_last) in names.iter().zip((0..12).map(|index| index >= 9)) {
        let is_there = mount.join(name).exists();
        assert!(is_there || !is_last, "{name} was stored last");
    }
    let held: u64 = fs::read_dir(&kv)
        .expect("list")
        .map(|entry| entry.expect("entry").metadata().expect("stat").len())
        .sum();
    assert!(held <= offset(MIB), "{held} bytes in a quota of a MiB");
}

/// Who finds the last object of a batch finds those before it, whatever the sizes of them are, and where their directory is new.
fn a_batch_is_visible_in_its_order(mode: Mode) {
    const ROUNDS: usize = 40;
    let (mount, kv) = kv_with(mode, &["capacity=512MiB"]);
    let cache = open(&mount, &kv, mode);
    // The area is there from the second on.
    cache.put_many(&[("one", &b"1"[..]), ("two", b"2")]).expect("put");
    cache.put("three", b"3").expect("put");
    let block = pattern::object(7, 2 * MIB);
    let (awaited, own) = (AtomicUsize::new(0), open(&mount, &kv, mode));
    thread::scope(|scope| {
        let looker = scope.spawn(|| {
            for round in 0..ROUNDS {
                let before = [format!("large{round}"), format!("new{round}/small")];
                for (last, key) in [format!("a{round}"), format!("b{round}")].iter().zip(&before) {
                    awaited.fetch_add(1, Ordering::Relaxed);
                    assert!(own.wait_ready(last, wait::HANG).expect("get").is_some(), "{last}");
                    assert!(own.contains(key).expect("contains"), "{key} stands before {last}");
                }
            }
        });
        let wait_for = |count| {
            let is_there = || awaited.load(Ordering::Relaxed) == count || looker.is_finished();
            assert!(wait::until(wait::HANG, is_there), "somebody looks for {count}");
        };
        for round in 0..ROUNDS {
            let (large, last) = (format!("large{round}"), format!("a{round}"));
            wait_for(2 * round + 1);
            cache.put_many(&[(large, &*block), (last, &b"last"[..])]).expect("put");
            let (small, last) = (format!("new{round}/small"), format!("b{round}"));
            wait_for(2 * round + 2);
            cache.put_many(&[(small, &block[..40_000]), (last, &b"last"[..])]).expect("put");
        }
    });
}

fn what_is_copied_out_while_it_is_replaced_is_one_version_of_it(mode: Mode) {
    const LOOKS: u64 = 300;
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    let object = |seed: u64| pattern::object(seed, if seed.is_multiple_of(3) { 40_000 } else { 200_000 });
    cache.put("key", &object(0)).expect("put");
    let (looks, own, is_over) = (AtomicU64::new(0), open(&mount, &kv, mode), AtomicBool::new(false));
    let last = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut seed = 0;
            while looks.load(Ordering::Relaxed) < LOOKS && !is_over.load(Ordering::Relaxed) {
                seed += 1;
                own.put("key", &object(seed)).expect("put");
            }
            seed
        });
        let _end = SetAtEnd(&is_over);
        let (mut target, mut latest) = (vec![0; 200_000], 0);
        while !writer.is_finished() {
            let length = cache.get_into("key", &mut target).expect("get").expect("it is never absent");
            let seed = pattern::verify_object(&target[..length]).expect("one version");
            assert!(latest <= seed, "{seed} came before {latest}");
            assert_eq!(length, object(seed).len());
            latest = seed;
            looks.fetch_add(1, Ordering::Relaxed);
        }
        writer.join().expect("the writer ends")
    });
    let mut target = vec![0; 200_000];
    let length = cache.get_into("key", &mut target).expect("get").expect("a hit");
    assert_eq!(pattern::verify_object(&target[..length]), Ok(last));
}

/// Its client takes an area back, or cuts it, while the daemon copies from it and into it.
#[test]
fn an_area_that_is_taken_back_meanwhile_fails_its_requests_alone() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    let control = Control::open(&mount);
    let name = Name(b"kv/key");
    let (area, latest) = (offset(MIB), AtomicU64::new(0));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = SetAtEnd(&is_over);
        let owner = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let grant = control.register(area).expect("an area");
                latest.store(grant.segment.get(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
                let back = Encoder::new(Flags::NONE, grant.segment.get(), 0).finish();
                control.call(Command::Unregister, back).expect("it is taken back");
            }
        });
        let mut stored = 0;
        while stored < 100 && !owner.is_finished() {
            let area = latest.load(Ordering::Relaxed);
            let put = Put { area, source: 0, length: offset(MIB), mode: 0o600, name };
            match control.one::<Outcome>(Command::PutFrom, &put).1.status() {
                Status::Ok => stored += 1,
                status => assert!(matches!(status, Status::Invalid | Status::Failed), "{status:?}"),
            }
            let get = Get { offset: 0, length: offset(MIB), area, target: 0, name };
            let status = control.one::<Entry>(Command::GetInto, &get).1.status();
            let is_told = matches!(status, Status::Ok | Status::Absent | Status::Invalid | Status::Failed);
            assert!(is_told, "{status:?}");
        }
        assert_eq!(stored, 100);
    });
    assert_eq!(fs::metadata(kv.join("key")).expect("stat").len(), offset(MIB));
}

/// One of them has the area; the others do without.
fn threads_that_store_and_copy_out_at_once_meet_their_own_objects(mode: Mode) {
    let (mount, kv) = kv(mode);
    let cache = open(&mount, &kv, mode);
    thread::scope(|scope| {
        for thread in 0..6_u64 {
            let cache = &cache;
            scope.spawn(move || {
                let mut target = vec![0; 100_000];
                for round in 0..60 {
                    let (key, seed) = (format!("{thread}/k{}", round % 7), thread << 32 | round);
                    cache.put(&key, &pattern::object(seed, 100_000)).expect("put");
                    assert_eq!(cache.get_into(&key, &mut target).expect("get"), Some(100_000));
                    assert_eq!(pattern::verify_object(&target), Ok(seed), "{key}");
                }
            });
        }
    });
}

fn where_no_area_is_granted_all_is_stored_and_found(mode: Mode) {
    let (mount, kv) = kv_with(mode, &["capacity=48MiB"]);
    let cache = open(&mount, &kv, mode);
    // A sixteenth of the capacity.
    let others = cache.is_fast().then(|| {
        let control = Control::open(&mount);
        control.register(offset(3 * MIB)).expect("an area");
        control.register(4096).expect_err("and no other one");
        control
    });
    let mut target = vec![0; 50_000];
    let mut store = |seed: u64| {
        let key = format!("k{}", seed % 5);
        cache.put(&key, &pattern::object(seed, 50_000)).expect("put");
        assert_eq!(cache.get_into(&key, &mut target).expect("get"), Some(50_000));
        assert_eq!(pattern::verify_object(&target), Ok(seed));
        assert_object(
            &cache.get(&key).expect("get").expect("a hit"),
            usize::try_from(seed).expect("it fits"),
        );
    };
    (0..20).for_each(&mut store);
    if others.is_some() {
        drop(others);
        // Only what goes through an area is copied by the daemon.
        let copied = || metric(&mount, "tidefs_copied_bytes_total");
        let is_granted = |seed: u64| {
            let before = copied();
            cache.put(format!("n{seed}"), &pattern::object(seed, 50_000)).expect("put");
            copied() == before + 50_000
        };
        let is_asked_again = (0..100).any(|seed| {
            thread::sleep(Duration::from_millis(100));
            is_granted(seed)
        });
        assert!(is_asked_again, "a refusal counts for a second");
    }
}
