//! Packed objects: what each of them is, what they take, a tmpfs that is full, and all of it against a model.

mod restart;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::HugePages;
use super::super::record::tests::object;
use super::super::testing::Workplace;
use super::*;

const CAPACITY: ByteCount = ByteCount::mib(8);

/// Places without and with huge pages.
fn places() -> [Workplace; 2] {
    [Workplace::new(), Workplace::with_huge_pages()]
}

/// A pool: with base pages, of small segments, so that tests fill several; with huge pages as in production.
struct Pool {
    pool: PackedPool,
    space: Arc<Space>,
}

impl Pool {
    fn open(place: &Workplace) -> Self {
        let tier = place.open(CAPACITY);
        let huge = place.config(CAPACITY).huge_pages == HugePages::Auto;
        let segment = if huge { SEGMENT } else { ByteCount::kib(256) };
        let next = super::super::recover::list(&tier.space).unwrap().next_packed();
        let space = Arc::clone(&tier.space);
        Self { pool: PackedPool::with_segment(Arc::clone(&space), next, segment), space }
    }

    fn recover(&self) -> (Vec<(PackedExtent, ObjectRecord)>, PackedRecovery) {
        let mut recovery = PackedRecovery::default();
        for entry in super::super::recover::list(&self.space).unwrap().entries() {
            if let Entry::Packed { index, namespace } = entry {
                self.pool.adopt(&mut recovery, index, namespace).unwrap();
            }
        }
        let mut told = Vec::new();
        self.pool.tell(&mut recovery, &mut |extent, record| told.push((extent, record))).unwrap();
        (told, recovery)
    }

    fn used(&self) -> u64 {
        self.space.usage().unwrap().used.get()
    }

    fn data(&self, extent: &PackedExtent) -> Vec<u8> {
        let mut bytes = vec![0; 100_000];
        let count = self.pool.read(extent, FileOffset(0), &mut bytes).unwrap();
        bytes.truncate(count);
        bytes
    }
}

fn data(version: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| u8::try_from((at * 31 + version * 7) % 251).unwrap()).collect()
}

const NS: DirectoryId = DirectoryId(5);

fn pack(pool: &Pool, namespace: DirectoryId, version: u64, length: usize) -> PackedExtent {
    let record = object(format!("k{version}").as_bytes(), version, length as u64);
    pool.pool.pack(namespace, &record, &data(version, length)).unwrap()
}

#[test]
fn objects_are_read_in_parts_and_end_where_they_end() {
    let place = Workplace::new();
    let pool = Pool::open(&place);
    let extent = pack(&pool, NS, 1, 5000);
    let mut part = [0; 100];
    assert_eq!(pool.pool.read(&extent, FileOffset(4950), &mut part).unwrap(), 50);
    assert_eq!(part[..50], data(1, 5000)[4950..]);
    assert_eq!(pool.pool.read(&extent, FileOffset(5000), &mut part).unwrap(), 0);
    assert_eq!(pool.pool.read(&extent, FileOffset(u64::MAX), &mut part).unwrap(), 0);
    assert_eq!(pool.pool.record(&extent).unwrap(), object(b"k1", 1, 5000));
    let empty = pack(&pool, NS, 2, 0);
    assert_eq!(pool.data(&empty), b"");
}

#[test]
fn an_object_is_read_whole_or_not_at_all() {
    let place = Workplace::new();
    let pool = Pool::open(&place);
    for length in [0, 5000] {
        let extent = pack(&pool, NS, length as u64 + 1, length);
        let whole = |size| pool.pool.read_whole(&extent, ByteCount(size));
        assert_eq!(whole(length as u64).unwrap(), data(length as u64 + 1, length));
        for other in [length as u64 + 1, (length as u64).saturating_sub(1), u64::MAX] {
            if other != length as u64 {
                let error = whole(other).unwrap_err();
                assert!(matches!(error, MemoryError::SizeMismatch { .. }), "{error}");
            }
        }
        pool.pool.free(extent).unwrap();
        assert!(matches!(pool.pool.read_whole(&extent, ByteCount(5000)), Err(MemoryError::Stale { .. })));
    }
}

#[test]
fn an_extent_that_was_merged_into_free_space_before_it_is_freed_once() {
    let place = Workplace::new();
    let pool = Pool::open(&place);
    let extents: Vec<_> = (1..=4).map(|version| pack(&pool, NS, version, 100)).collect();
    for extent in &extents[..3] {
        pool.pool.free(*extent).unwrap();
    }
    for extent in &extents[..3] {
        assert!(matches!(pool.pool.free(*extent), Err(MemoryError::Stale { .. })), "{extent}");
    }
    assert_eq!(pool.pool.usage().objects, ObjectCount(1));
}

#[test]
fn a_freed_extent_is_stale_and_freed_once() {
    let place = Workplace::new();
    let pool = Pool::open(&place);
    let kept = pack(&pool, NS, 1, 100);
    let extent = pack(&pool, NS, 2, 100);
    pool.pool.free(extent).unwrap();
    for outcome in [
        pool.pool.free(extent),
        pool.pool.record(&extent).map(|_| ()),
        pool.pool.read(&extent, FileOffset(0), &mut [0; 8]).map(|_| ()),
    ] {
        assert!(matches!(outcome, Err(MemoryError::Stale { .. })), "{outcome:?}");
    }
    // The place is used again, by an object with another tag.
    let reused = pack(&pool, NS, 3, 100);
    assert_eq!(reused.unit, extent.unit);
    assert!(matches!(pool.pool.record(&extent), Err(MemoryError::Stale { .. })));
    assert_eq!(pool.data(&kept), data(1, 100));
    assert_eq!(pool.data(&reused), data(3, 100));
}

#[test]
fn namespaces_share_no_segment() {
    let place = Workplace::new();
    let pool = Pool::open(&place);
    let (a, b) = (pack(&pool, NS, 1, 100), pack(&pool, DirectoryId(6), 2, 100));
    assert_ne!(a.segment, b.segment);
    pool.pool.free(a).unwrap();
    assert_ne!(pack(&pool, DirectoryId(6), 3, 100).segment, a.segment);
}

#[test]
fn a_segment_without_objects_is_gone_with_its_pages_and_the_heap_of_its_namespace() {
    for place in places() {
        let pool = Pool::open(&place);
        let extents: Vec<_> = (0..200).map(|version| pack(&pool, NS, version, 4000)).collect();
        let full = pool.pool.usage();
        assert!(full.segments > 0, "{full:?}");
        assert_eq!(full.objects, ObjectCount(200));
        assert_eq!(full.bytes_allocated.get(), pool.used());
        assert!(full.bytes_live <= full.bytes_allocated);
        for extent in extents {
            pool.pool.free(extent).unwrap();
        }
        assert_eq!(pool.pool.usage(), PackedUsage::default());
        assert_eq!((pool.used(), pool.pool.heaps.read().len()), (0, 0));
    }
}

#[test]
fn freed_grains_inside_a_segment_are_given_back_and_taken_again() {
    let place = Workplace::new();
    let pool = Pool::open(&place);
    let extents: Vec<_> = (0..6).map(|version| pack(&pool, NS, version, 32 << 10)).collect();
    let before = pool.used();
    for extent in &extents[1..5] {
        pool.pool.free(*extent).unwrap();
    }
    // Of the 128 KiB whole grains lie between the first and the last object.
    let after = pool.used();
    assert!(after + GRAIN.get() <= before, "{before} {after}");
    assert_eq!(pool.pool.usage().bytes_allocated.get(), after);
    let again: Vec<_> = (10..14).map(|version| pack(&pool, NS, version, 32 << 10)).collect();
    // The first of them may go behind the last object, where it fits best.
    assert!(pool.used().abs_diff(before) <= GRAIN.get(), "{before} {}", pool.used());
    assert_eq!(pool.pool.usage().bytes_allocated.get(), pool.used());
    for (extent, version) in again.iter().zip(10..) {
        assert_eq!(pool.data(extent), data(version, 32 << 10));
    }
    assert_eq!(pool.data(&extents[0]), data(0, 32 << 10));
    assert_eq!(pool.data(&extents[5]), data(5, 32 << 10));
}

#[test]
fn a_full_tmpfs_says_full_and_takes_objects_again_once_something_left() {
    for place in places() {
        let pool = Pool::open(&place);
        let mut extents = Vec::new();
        let error = loop {
            let version = extents.len() as u64;
            match pool.pool.pack(NS, &object(b"k", version, 30_000), &data(version, 30_000)) {
                Ok(extent) => extents.push(extent),
                Err(error) => break error,
            }
        };
        assert!(error.is_full(), "{error}");
        assert!(pool.used() <= CAPACITY.get());
        assert!(extents.len() > 220, "{} of at most 270", extents.len());
        let usage = pool.pool.usage();
        assert!(pool.pool.pack(NS, &object(b"k", 999, 30_000), &data(999, 30_000)).unwrap_err().is_full());
        assert_eq!(pool.pool.usage(), usage, "a refusal changes nothing");
        pool.pool.free(extents.remove(100)).unwrap();
        extents.push(pool.pool.pack(NS, &object(b"k", 999, 30_000), &data(999, 30_000)).unwrap());
        assert_eq!(pool.data(extents.last().unwrap()), data(999, 30_000));
        // Another namespace gets in as soon as whole grains left.
        for extent in extents.drain(..20) {
            pool.pool.free(extent).unwrap();
        }
        pack(&pool, DirectoryId(6), 1000, 30_000);
    }
}

#[test]
fn objects_that_are_too_large_or_of_another_size_are_refused() {
    let place = Workplace::new();
    let pool = Pool::open(&place);
    let large = data(1, (1 << 20) + 1);
    let error = pool.pool.pack(NS, &object(b"k", 1, large.len() as u64), &large).unwrap_err();
    assert!(matches!(error, MemoryError::TooLarge { .. }), "{error}");
    let error = pool.pool.pack(NS, &object(b"k", 1, 4), b"abc").unwrap_err();
    assert!(matches!(error, MemoryError::SizeMismatch { .. }), "{error}");
    assert_eq!(pool.used(), 0);
}

#[test]
fn a_rewritten_object_has_its_bytes_and_its_new_record_in_any_namespace() {
    let place = Workplace::new();
    let pool = Pool::open(&place);
    let old = pack(&pool, NS, 1, 3000);
    let new = pool.pool.rewrite(old, DirectoryId(6), &object(b"renamed", 1, 3000)).unwrap();
    assert!(matches!(pool.pool.record(&old), Err(MemoryError::Stale { .. })));
    assert_eq!(pool.pool.record(&new).unwrap(), object(b"renamed", 1, 3000));
    assert_eq!(pool.data(&new), data(1, 3000));
    assert_eq!(pool.pool.usage().objects, ObjectCount(1));
}

#[test]
fn threads_pack_read_and_free_at_once() {
    let place = Workplace::new();
    let pool = Pool::open(&place);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut mine = Vec::new();
                for round in 0..300 {
                    let version = thread * 1000 + round;
                    let length = usize::try_from(version * 37 % 9000).unwrap();
                    mine.push((pack(pool, DirectoryId(5 + thread % 2), version, length), version, length));
                    if round % 3 == 0 {
                        let (extent, version, length) =
                            mine.swap_remove(usize::try_from(version).unwrap() % mine.len());
                        assert_eq!(pool.data(&extent), data(version, length));
                        pool.pool.free(extent).unwrap();
                    }
                }
                for (extent, version, length) in mine {
                    assert_eq!(pool.data(&extent), data(version, length));
                    pool.pool.free(extent).unwrap();
                }
            });
        }
    });
    assert_eq!(pool.used(), 0);
}

#[derive(Clone, Debug)]
enum Op {
    Pack { namespace: u64, length: usize },
    Free { victim: usize },
    Rewrite { victim: usize, namespace: u64 },
    Restart,
}

fn any_op() -> impl Strategy<Value = Op> {
    let length = prop_oneof![3 => 0..300_usize, 3 => 3000..5000_usize, 2 => 0..=32_768_usize];
    prop_oneof![
        6 => (5..8_u64, length).prop_map(|(namespace, length)| Op::Pack { namespace, length }),
        4 => any::<usize>().prop_map(|victim| Op::Free { victim }),
        1 => (any::<usize>(), 5..8_u64).prop_map(|(victim, namespace)| Op::Rewrite { victim, namespace }),
        1 => Just(Op::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    /// Against a map from version to extent and length; after each restart, recovery must tell exactly the map.
    #[test]
    fn packed_objects_agree_with_a_map(
        ops in proptest::collection::vec(any_op(), 1..300),
        huge in any::<bool>(),
    ) {
        let [base, large] = places();
        let place = if huge { large } else { base };
        let mut pool = Pool::open(&place);
        let mut model: BTreeMap<u64, (PackedExtent, usize)> = BTreeMap::new();
        let mut next = 0;
        let pick = |model: &BTreeMap<u64, (PackedExtent, usize)>, victim: usize| {
            model.keys().nth(victim.checked_rem(model.len())?).copied()
        };
        for op in ops {
            match op {
                Op::Pack { namespace, length } => {
                    next += 1;
                    let record = object(b"k", next, length as u64);
                    match pool.pool.pack(DirectoryId(namespace), &record, &data(next, length)) {
                        Ok(extent) => { model.insert(next, (extent, length)); }
                        Err(error) => prop_assert!(error.is_full(), "{}", error),
                    }
                }
                Op::Free { victim } => if let Some(version) = pick(&model, victim) {
                    let (extent, length) = model.remove(&version).unwrap();
                    prop_assert_eq!(pool.data(&extent), data(version, length));
                    pool.pool.free(extent).unwrap();
                }
                Op::Rewrite { victim, namespace } => if let Some(version) = pick(&model, victim) {
                    let (extent, length) = model[&version];
                    let record = object(b"r", version, length as u64);
                    match pool.pool.rewrite(extent, DirectoryId(namespace), &record) {
                        Ok(extent) => { model.insert(version, (extent, length)); }
                        Err(error) => prop_assert!(error.is_full(), "{}", error),
                    }
                }
                Op::Restart => {
                    pool = Pool::open(&place);
                    let (told, recovery) = pool.recover();
                    prop_assert_eq!(recovery.corrupt + recovery.unsealed + recovery.superseded, 0);
                    let found: BTreeMap<_, _> =
                        told.into_iter().map(|(extent, record)| (record.version.0, extent)).collect();
                    let expected: BTreeMap<_, _> =
                        model.iter().map(|(version, (extent, _))| (*version, *extent)).collect();
                    prop_assert_eq!(found, expected);
                }
            }
            let usage = pool.pool.usage();
            prop_assert_eq!(usage.objects.0, model.len() as u64);
            prop_assert_eq!(usage.bytes_allocated.get(), pool.used());
        }
        for (version, (extent, length)) in model {
            prop_assert_eq!(pool.data(&extent), data(version, length));
            pool.pool.free(extent).unwrap();
        }
        prop_assert_eq!(pool.used(), 0);
    }
}
