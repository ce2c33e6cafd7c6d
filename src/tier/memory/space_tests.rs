//! What is counted as used while files grow, are cut and go, on a tmpfs of the tier's own and on one that it shares.

use std::os::unix::fs::FileExt;

use super::testing::Workplace;
use super::tests::{CAPACITY, open_as, places, used};
use super::*;

#[test]
fn a_reservation_beyond_the_capacity_leaves_what_was_there() {
    for (shared, place) in places() {
        let tier = open_as(shared, &place.config(CAPACITY));
        let (_, other) = tier.create_segment().unwrap();
        tier.reserve(&other, FileOffset(0), ByteCount::mib(10)).unwrap();
        let (_, file) = tier.create_segment().unwrap();
        tier.reserve(&file, FileOffset(0), ByteCount::mib(1)).unwrap();
        tier.reserve(&file, FileOffset(3 << 20), ByteCount::kib(64)).unwrap();
        let before = used(&tier);
        assert_eq!(before, (11 << 20) + (64 << 10));
        for (offset, length) in [(0, 7 << 20), (1 << 20, 6 << 20), (0, 100 << 20)] {
            let error = tier.reserve(&file, FileOffset(offset), ByteCount(length)).unwrap_err();
            assert!(error.is_full(), "{error}");
            assert_eq!(used(&tier), before, "shared {shared}");
        }
        // The earlier reservations are still there, so this is free of charge.
        tier.reserve(&file, FileOffset(0), ByteCount::mib(1)).unwrap();
        tier.reserve(&file, FileOffset(3 << 20), ByteCount::kib(64)).unwrap();
        assert_eq!(used(&tier), before);
        // What is left fits to the page, also around pages that are there.
        tier.reserve(&file, FileOffset(0), ByteCount::mib(6)).unwrap();
        assert_eq!(tier.usage().unwrap().free, ByteCount::ZERO);
        assert_eq!(file.metadata().unwrap().len(), 0, "the size stays");
    }
}

#[test]
fn usage_moves_exactly_with_reserve_write_trim_and_unlink() {
    for (shared, place) in places() {
        let tier = open_as(shared, &place.config(CAPACITY));
        let (id, file) = tier.create_segment().unwrap();
        tier.reserve(&file, FileOffset(0), ByteCount::mib(2)).unwrap();
        assert_eq!(used(&tier), 2 << 20);
        file.write_all_at(&[7; 5000], 0).unwrap();
        assert_eq!(used(&tier), 2 << 20, "a reserved write allocates nothing");
        tier.trim(&file, ByteCount(5000)).unwrap();
        assert_eq!(used(&tier), 8192, "trimming to the size it has frees what is beyond");
        tier.trim(&file, ByteCount(4096)).unwrap();
        assert_eq!(used(&tier), 4096);
        tier.trim(&file, ByteCount(8192)).unwrap();
        assert_eq!(used(&tier), 4096, "a hole at the end");
        tier.fill_holes(&file, ByteCount(8192)).unwrap();
        assert_eq!(used(&tier), 8192);
        let mut tail = [1; 4096];
        file.read_exact_at(&mut tail, 4096).unwrap();
        assert_eq!(tail, [0; 4096]);
        tier.remove_segment(id).unwrap();
        tier.remove_segment(id).unwrap();
        drop(file);
        assert_eq!(used(&tier), 0, "shared {shared}");
    }
}

#[test]
fn what_a_file_gets_after_its_name_went_is_counted_by_the_kernel_alone() {
    for (shared, place) in places() {
        let tier = open_as(shared, &place.config(CAPACITY));
        let (_, other) = tier.create_segment().unwrap();
        tier.reserve(&other, FileOffset(0), ByteCount::mib(4)).unwrap();
        let (id, file) = tier.create_segment().unwrap();
        tier.reserve(&file, FileOffset(0), ByteCount::mib(1)).unwrap();
        tier.remove_segment(id).unwrap();
        tier.reserve(&file, FileOffset(0), ByteCount::mib(2)).unwrap();
        tier.trim(&file, ByteCount::ZERO).unwrap();
        tier.reserve(&file, FileOffset(0), ByteCount::mib(3)).unwrap();
        assert_eq!(used(&tier), if shared { 4 << 20 } else { 7 << 20 });
        drop(file);
        assert_eq!(used(&tier), 4 << 20, "shared {shared}");
    }
}

#[test]
fn a_writer_that_the_tier_does_not_see_is_counted() {
    let place = Workplace::new();
    let tier = place.open(CAPACITY);
    let (_, file) = tier.create_segment().unwrap();
    file.write_all_at(&[1; 12345], 1 << 20).unwrap();
    assert_eq!(used(&tier), 16384);
    let error = file.write_all_at(&vec![1; 17 << 20], 0).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}
