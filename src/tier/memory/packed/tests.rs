//! Packed objects against a model, across restarts, kills at each write, and a tmpfs that is full.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidefs_engine::types::Version;

use super::super::record::tests::object;
use super::super::testing::Workplace;
use super::super::{HugePages, MemoryTier, Recovered};
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
fn a_retired_object_is_read_until_it_is_freed_and_not_found_by_a_restart() {
    let place = Workplace::new();
    let pool = Pool::open(&place);
    let (kept, retired) = (pack(&pool, NS, 1, 100), pack(&pool, NS, 2, 100));
    pool.pool.retire(retired).unwrap();
    pool.pool.retire(retired).unwrap();
    assert_eq!(pool.data(&retired), data(2, 100));
    drop(pool);
    let pool = Pool::open(&place);
    let (told, recovery) = pool.recover();
    assert_eq!(told.iter().map(|(extent, _)| *extent).collect::<Vec<_>>(), [kept]);
    assert_eq!((recovery.unsealed, recovery.corrupt), (0, 0));
    assert_eq!(pool.pool.usage().objects, ObjectCount(1));
    let again = pack(&pool, NS, 3, 100);
    pool.pool.retire(again).unwrap();
    pool.pool.free(again).unwrap();
    assert!(matches!(pool.pool.retire(again), Err(MemoryError::Stale { .. })));
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
fn a_free_block_that_starts_with_a_grain_keeps_its_mark() {
    let place = Workplace::new();
    let pool = Pool::open(&place);
    // So long that the next block starts where a grain does; sizes of 3 bytes as a varint keep the record's length.
    let (probe, _) = BlockHeader::new(Version(1), 0, &object(b"k1", 1, 60_000).encode().unwrap(), 60_000);
    let whole_grain = usize::try_from(GRAIN.get() - probe.data_offset()).unwrap();
    pack(&pool, NS, 1, whole_grain);
    let hole = pack(&pool, NS, 2, whole_grain);
    pack(&pool, NS, 3, 500);
    assert_eq!(u64::from(hole.unit) * UNIT, GRAIN.get());
    pool.pool.free(hole).unwrap();
    let (told, recovery) = Pool::open(&place).recover();
    let versions: Vec<_> = told.iter().map(|(_, record)| record.version.0).collect();
    assert_eq!((versions, recovery.corrupt), (vec![1, 3], 0));
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
fn of_an_object_and_its_rewrite_a_restart_finds_the_rewrite() {
    let place = Workplace::new();
    let pool = Pool::open(&place);
    pack(&pool, NS, 1, 3000);
    pack(&pool, NS, 2, 3000);
    let moved = pack(&pool, NS, 3, 3000);
    let moved = pool.pool.rewrite(moved, NS, &object(b"moved", 4, 3000)).unwrap();
    assert_eq!(pool.pool.segment(&moved).unwrap().header(&moved).unwrap().origin, Version(3));
    // A kill in the middle of a rewrite: the new one is there, the old one not freed yet. A rename gives it another version.
    pool.pool.store(DirectoryId(6), &object(b"changed", 1, 3000), &data(1, 3000), (Version(1), 1)).unwrap();
    pool.pool.store(DirectoryId(6), &object(b"again", 5, 3000), &data(3, 3000), (Version(3), 2)).unwrap();
    let (told, recovery) = Pool::open(&place).recover();
    let mut names: Vec<_> = told.iter().map(|(_, record)| record.name.clone()).collect();
    names.sort();
    assert_eq!(names, [&b"again"[..], b"changed", b"k2"]);
    assert_eq!(recovery.superseded, 2);
}

/// Every write that storing an object makes, in order, is left out from some point on, as by a kill; the objects
/// around it must be found, and it must be found only if its last write happened.
#[test]
fn a_kill_between_any_two_writes_leaves_an_unbroken_chain() {
    for done in 0..=5 {
        let place = Workplace::new();
        let pool = Pool::open(&place);
        pack(&pool, NS, 1, 500);
        let hole = pack(&pool, NS, 2, 5000);
        pack(&pool, NS, 3, 500);
        pool.pool.free(hole).unwrap();
        let segment = pool.pool.segment(&hole).unwrap();

        let record = object(b"k9", 9, 300);
        let (header, head) = BlockHeader::new(record.version, 0, &record.encode().unwrap(), 300);
        let start = u64::from(hole.unit) * UNIT;
        let hole_units =
            BlockHeader::parse(segment.read_block(hole.unit, &mut [0; 32]).unwrap()).unwrap().units;
        let writes: [&dyn Fn(); 5] = [
            &|| {
                segment
                    .write_mark(hole.unit + header.units(), State::Free, hole_units - header.units())
                    .unwrap()
            },
            &|| segment.write_mark(hole.unit, State::Pending, header.units()).unwrap(),
            &|| segment.file.write_all_at(&head, start + 8).unwrap(),
            &|| segment.file.write_all_at(&data(9, 300), start + header.data_offset()).unwrap(),
            &|| segment.write_mark(hole.unit, State::Live, header.units()).unwrap(),
        ];
        for write in &writes[..done] {
            write();
        }
        let again = Pool::open(&place);
        let (told, recovery) = again.recover();
        let versions: Vec<_> = told.iter().map(|(_, record)| record.version.0).collect();
        assert_eq!(versions, if done == 5 { vec![1, 9, 3] } else { vec![1, 3] }, "after {done} writes");
        assert_eq!(recovery.corrupt, 0);
        for (extent, record) in &told {
            let length = usize::try_from(record.size.get()).unwrap();
            assert_eq!(again.data(extent), data(record.version.0, length));
        }
        // The hole is whole again: what fitted before fits now.
        if done < 5 {
            assert_eq!(pack(&again, NS, 10, 5000).unit, hole.unit);
        }
    }
}

#[test]
fn damage_costs_the_damaged_object_or_what_lies_behind_it() {
    let place = Workplace::new();
    let pool = Pool::open(&place);
    let extents: Vec<_> = (0..5).map(|version| pack(&pool, NS, version, 500)).collect();
    let segment = pool.pool.segment(&extents[0]).unwrap();
    let offset = |at: usize| u64::from(extents[at].unit) * UNIT;
    segment.file.write_all_at(b"?", offset(1) + 40).unwrap(); // a record
    segment.file.write_all_at(b"????", offset(3)).unwrap(); // a mark
    let again = Pool::open(&place);
    let (told, recovery) = again.recover();
    let versions: Vec<_> = told.iter().map(|(_, record)| record.version.0).collect();
    assert_eq!(versions, [0, 2]);
    assert_eq!(recovery.corrupt, 2);
    pack(&again, NS, 9, 100_000);
    // The damage is repaired, not only passed over.
    let (told, recovery) = Pool::open(&place).recover();
    assert_eq!((told.len(), recovery.corrupt), (3, 0));
}

#[test]
fn a_file_that_is_no_segment_at_all_is_dropped() {
    let place = Workplace::new();
    let pool = Pool::open(&place);
    let name = Entry::Packed { index: 77, namespace: NS }.to_string();
    std::fs::write(place.path().join(&name), vec![0xff; 10_000]).unwrap();
    let created = Entry::Packed { index: 78, namespace: NS }.to_string();
    pool.space.create(&created).unwrap();
    let again = Pool::open(&place);
    let (told, recovery) = again.recover();
    assert_eq!((told.len(), recovery.corrupt), (0, 1), "an empty file is a kill, no damage");
    assert_eq!(again.used(), 0);
    assert!(pack(&again, NS, 1, 10).segment > 78);
}

#[test]
fn visitors_may_free_what_they_are_told() {
    let place = Workplace::new();
    let tier = place.open(CAPACITY);
    for version in 0..500 {
        tier.pack(NS, &object(b"k", version, 3000), &data(version, 3000)).unwrap();
    }
    let again: MemoryTier = place.open(CAPACITY);
    let summary = again
        .recover(&mut |found| match found {
            Recovered::Packed { extent, record } if record.version.0 != 250 => {
                again.free_packed(extent).unwrap()
            }
            Recovered::Packed { .. } => {}
            other => panic!("{other:?}"),
        })
        .unwrap();
    assert_eq!((summary.packed, summary.corrupt), (500, 0));
    assert_eq!(again.packed_usage().objects, ObjectCount(1));
    assert!(again.usage().unwrap().used <= ByteCount(3 * GRAIN.get()));
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
