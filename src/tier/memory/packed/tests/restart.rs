//! What a restart finds of packed objects: all that were stored whole and were not retired, after a kill at any write, beside
//! damage, and where an object was just written again.

use tidefs_engine::types::Version;

use super::*;
use crate::tier::memory::{MemoryTier, Recovered};

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
