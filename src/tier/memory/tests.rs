//! The tier on a real tmpfs: what is counted, what a restart finds, and what happens at the limits.
//!
//! A restart is a second [`MemoryTier`] on the same directory, as after `kill -9`; nothing of the first is closed
//! in any order.

use std::os::unix::fs::FileExt;
use std::time::Instant;

use super::open::segment_seed;
use super::record::tests::{directory, object};
use super::space::allocated;
use super::testing::{Workplace, recovered};
use super::*;

pub(super) const CAPACITY: ByteCount = ByteCount::mib(16);

const fn shared_between_threads<T: Send + Sync>() {}
const _: () = shared_between_threads::<MemoryTier>();

pub(super) fn used(tier: &MemoryTier) -> u64 {
    tier.usage().unwrap().used.get()
}

/// Writes and seals an object, and returns its segment.
fn sealed(tier: &MemoryTier, name: &[u8], data: &[u8]) -> SegmentId {
    let (id, file) = tier.create_segment().unwrap();
    file.write_all_at(data, 0).unwrap();
    tier.seal(&file, &object(name, id.0, data.len() as u64)).unwrap();
    id
}

#[test]
fn the_tmpfs_is_private_sized_and_its_page_size_is_probed() {
    let place = Workplace::new();
    let config = MemoryConfig { huge_pages: HugePages::Auto, ..place.config(ByteCount(CAPACITY.0 + 4095)) };
    let tier = MemoryTier::open(&config).unwrap();
    let report = tier.report();
    assert!(report.private_mount && !report.adopted && !report.shrink_pending, "{report:?}");
    assert!([Some(PAGE), Some(ByteCount::mib(2))].contains(&report.page_size), "{report:?}");
    assert_eq!(report.page_size_unknown, None);
    assert_eq!(report.record_attribute, "user.tidefs.record");
    let usage = tier.usage().unwrap();
    assert_eq!(usage, MemoryUsage { capacity: CAPACITY, used: ByteCount(0), free: CAPACITY });
    println!("page size {:?}, refused {:?}", report.page_size, report.refused_options);
}

#[test]
fn the_page_size_is_unknown_where_the_tmpfs_was_full_when_it_was_probed() {
    let place = Workplace::with_huge_pages();
    let tier = place.open(CAPACITY);
    assert!(tier.report().page_size.is_some());
    sealed(&tier, b"a", &vec![7; 15 << 20]);
    drop(tier);
    let report = place.open(CAPACITY).report().clone();
    assert_eq!(report.page_size, None, "{report:?}");
    assert!(report.page_size_unknown.is_some(), "{report:?}");
}

#[test]
fn memory_is_touched_in_a_huge_page_only_where_files_get_such_pages() {
    let place = Workplace::new();
    let small = place.open(CAPACITY);
    assert_eq!((small.report().page_size, small.huge_page().is_some()), (Some(PAGE), false));
    let place = Workplace::with_huge_pages();
    let tier = place.open(CAPACITY);
    let has_huge = tier.report().page_size == Some(ByteCount::mib(2));
    assert_eq!(tier.huge_page().is_some(), has_huge && HugePage::new().is_some());
}

#[test]
fn a_capacity_without_room_is_refused_and_names_the_minimum() {
    let place = Workplace::new();
    let error = MemoryTier::open(&place.config(ByteCount::kib(64))).unwrap_err();
    assert!(matches!(error, MemoryError::CapacityTooSmall { .. }), "{error}");
    assert!(error.to_string().contains("1.0 MiB"), "{error}");
}

/// Whether the tier is to be opened without the right to mount, and where.
pub(super) fn places() -> [(bool, Workplace); 3] {
    [(false, Workplace::new()), (false, Workplace::with_huge_pages()), (true, Workplace::on_shared_tmpfs())]
}

#[test]
fn filling_the_holes_of_a_full_tier_says_full() {
    let place = Workplace::new();
    let tier = place.open(CAPACITY);
    let (_, file) = tier.create_segment().unwrap();
    file.set_len(17 << 20).unwrap();
    assert!(tier.fill_holes(&file, ByteCount::mib(17)).unwrap_err().is_full());
    assert_eq!(used(&tier), 0);
}

#[test]
fn a_restart_adopts_the_tmpfs_and_finds_what_was_sealed() {
    let place = Workplace::new();
    let first = place.open(CAPACITY);
    let id = sealed(&first, b"a", &[5; 70_000]);
    first.put_directory(&directory(12, b"old")).unwrap();
    first.put_directory(&directory(12, b"new")).unwrap();
    first.put_directory(&directory(13, b"gone")).unwrap();
    first.remove_directory(DirectoryId(13)).unwrap();
    let extent = first.pack(DirectoryId(12), &object(b"p", 9, 3), b"abc").unwrap();
    let before = used(&first);

    let second = place.open(CAPACITY);
    assert!(second.report().adopted);
    let (told, summary) = recovered(&second);
    assert_eq!(
        told,
        [
            Recovered::Directory(directory(12, b"new")),
            Recovered::Solo { segment: id, record: object(b"a", id.0, 70_000) },
            Recovered::Packed { extent, record: object(b"p", 9, 3) },
        ]
    );
    assert_eq!((summary.unsealed, summary.corrupt), (0, 0));
    assert_eq!(used(&second), before);
    let mut bytes = [0; 70_000];
    second.open_segment(id).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [5; 70_000]);
}

/// Seals an object of 1 MiB without its first 64 KiB, as its writer may leave it who goes on after the seal.
fn sealed_with_a_hole(tier: &MemoryTier) -> File {
    let file = tier.open_segment(sealed_reserved(tier, b"a", &[5; 1 << 20])).unwrap();
    tier.space.punch(&file, FileOffset(0), ByteCount::kib(64)).unwrap();
    file
}

#[test]
fn a_restart_gives_an_object_the_pages_of_its_length_and_no_others() {
    for (shared, place) in places() {
        for surplus in [0, 4 << 10, 128 << 10] {
            let tier = open_as(shared, &place.config(CAPACITY));
            let file = sealed_with_a_hole(&tier);
            tier.reserve(&file, FileOffset(1 << 20), ByteCount(surplus)).unwrap();
            drop(tier);

            let tier = open_as(shared, &place.config(CAPACITY));
            let (told, summary) = recovered(&tier);
            assert_eq!((told.len(), summary.solo), (1, 1), "shared {shared}");
            assert_eq!(allocated(&file).unwrap(), ByteCount::mib(1), "shared {shared}, {surplus} beyond");
            assert_eq!(used(&tier), 1 << 20, "shared {shared}");
            let Recovered::Solo { segment, .. } = told[0] else { panic!("{told:?}") };
            tier.remove_segment(segment).unwrap();
        }
    }
}

#[test]
fn an_object_with_a_hole_that_finds_no_room_at_a_restart_is_dropped() {
    for (shared, place) in places() {
        let tier = open_as(shared, &place.config(CAPACITY));
        sealed_with_a_hole(&tier);
        let rest = sealed_reserved(&tier, b"b", &vec![6; (15 << 20) + (32 << 10)]);
        drop(tier);

        let tier = open_as(shared, &place.config(CAPACITY));
        let (told, summary) = recovered(&tier);
        assert!(matches!(told[..], [Recovered::Solo { segment, .. }] if segment == rest), "{told:?}");
        assert_eq!((summary.solo, summary.corrupt), (1, 1), "shared {shared}");
        assert_eq!(used(&tier), (15 << 20) + (32 << 10), "shared {shared}");
    }
}

type Step<'a> = &'a dyn Fn(&MemoryTier, &File, SegmentId);

#[test]
fn a_kill_between_any_two_steps_of_a_write_leaves_all_or_nothing() {
    let place = Workplace::new();
    let steps: [Step; 6] = [
        &|tier, file, _| tier.reserve(file, FileOffset(0), ByteCount(9000)).unwrap(),
        &|_, file, _| file.write_all_at(&[3; 8000], 0).unwrap(),
        &|tier, file, _| tier.trim(file, ByteCount(8000)).unwrap(),
        &|tier, file, _| tier.fill_holes(file, ByteCount(8000)).unwrap(),
        &|tier, file, id| tier.seal(file, &object(b"k", id.0, 8000)).unwrap(),
        &|tier, file, id| tier.seal(file, &object(b"renamed", id.0, 8000)).unwrap(),
    ];
    for done in 0..=steps.len() {
        let tier = place.open(CAPACITY);
        let (id, file) = tier.create_segment().unwrap();
        for step in &steps[..done] {
            step(&tier, &file, id);
        }
        drop((tier, file));
        let tier = place.open(CAPACITY);
        let (told, summary) = recovered(&tier);
        let expected: &[&[u8]] = match done {
            0..=4 => &[],
            5 => &[b"k"],
            _ => &[b"renamed"],
        };
        let names: Vec<_> = told
            .iter()
            .map(|found| match found {
                Recovered::Solo { record, .. } => record.name.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(names, expected, "after {done} steps");
        assert_eq!((summary.unsealed, summary.corrupt), (u64::from(done < 5), 0));
        assert_eq!(used(&tier), if done < 5 { 0 } else { 8192 });
        tier.remove_segment(id).unwrap();
    }
}

#[test]
fn unsealing_makes_garbage_of_an_object() {
    let place = Workplace::new();
    let tier = place.open(CAPACITY);
    let id = sealed(&tier, b"k", b"data");
    let file = tier.open_segment(id).unwrap();
    assert_eq!(tier.read_record(&file).unwrap(), Some(object(b"k", id.0, 4)));
    tier.unseal(&file).unwrap();
    tier.unseal(&file).unwrap();
    assert_eq!(tier.read_record(&file).unwrap(), None);
    tier.seal(&file, &object(b"k", id.0, 4)).unwrap();
    tier.unseal_segment(id).unwrap();
    tier.unseal_segment(id).unwrap();
    assert_eq!(tier.read_record(&file).unwrap(), None);
    let (told, summary) = recovered(&place.open(CAPACITY));
    assert_eq!((told.len(), summary.unsealed), (0, 1));
}

#[test]
fn sealing_a_file_that_is_too_short_is_refused() {
    let place = Workplace::new();
    let tier = place.open(CAPACITY);
    let (id, file) = tier.create_segment().unwrap();
    let error = tier.seal(&file, &object(b"k", id.0, 1)).unwrap_err();
    assert!(matches!(error, MemoryError::SizeMismatch { .. }), "{error}");
    assert!(error.to_string().contains(&Entry::Segment(id).to_string()), "{error}");
}

#[test]
fn damaged_files_are_dropped_and_counted_and_the_others_kept() {
    let place = Workplace::new();
    let tier = place.open(CAPACITY);
    let whole = sealed(&tier, b"whole", b"data");
    let damage = |value: &[u8]| {
        let file = tier.open_segment(sealed(&tier, b"x", b"data")).unwrap();
        tier.attribute.set(&file, value).unwrap();
    };
    damage(b"");
    damage(b"nonsense that is no record");
    damage(&[b'T'; 5000]);
    let mut flipped = object(b"x", 1, 4).encode().unwrap();
    flipped[9] ^= 1;
    damage(&flipped);
    let shorter = tier.open_segment(sealed(&tier, b"y", b"data")).unwrap();
    shorter.set_len(3).unwrap();
    let grown = sealed(&tier, b"z", b"data");
    tier.open_segment(grown).unwrap().set_len(5).unwrap();
    tier.put_directory(&directory(12, b"d")).unwrap();
    let other = tier.space.create(&Entry::Directory(DirectoryId(13)).to_string()).unwrap();
    tier.attribute.set(&other, &directory(12, b"d").encode().unwrap()).unwrap();
    std::fs::write(place.path().join("lost+found"), b"not ours").unwrap();

    let (told, summary) = recovered(&place.open(CAPACITY));
    let mut told = told;
    told.sort_by_key(|found| matches!(found, Recovered::Unfinished { .. }));
    assert_eq!(
        told,
        [
            Recovered::Directory(directory(12, b"d")),
            Recovered::Solo { segment: whole, record: object(b"whole", whole.0, 4) },
            Recovered::Unfinished { segment: grown, record: object(b"z", grown.0, 4) },
        ]
    );
    assert_eq!((summary.corrupt, summary.unsealed), (6, 0));
    let mut left: Vec<_> =
        std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left.len(), 5, "with the names clock: {left:?}");
}

#[test]
fn what_its_writer_had_open_is_told_apart() {
    let place = Workplace::new();
    let tier = place.open(CAPACITY);
    let (segment, file) = tier.create_segment().unwrap();
    file.write_all_at(b"data", 0).unwrap();
    let record = ObjectRecord { mode: 0o644 | UNFINISHED, ..object(b"a", 1, 4) };
    tier.seal(&file, &record).unwrap();
    let (told, _) = recovered(&place.open(CAPACITY));
    assert_eq!(told, [Recovered::Unfinished { segment, record }]);
}

#[test]
fn segment_ids_are_never_used_again_across_restarts() {
    let place = Workplace::new();
    let first = place.open(CAPACITY);
    let (gone, _) = first.create_segment().unwrap();
    let (kept, _) = first.create_segment().unwrap();
    first.remove_segment(gone).unwrap();
    // As if the clock had been a year ahead.
    let ahead = SegmentId(segment_seed() + ((365 * 86_400) << 20));
    first.space.create(&Entry::Segment(ahead).to_string()).unwrap();
    let (next, _) = place.open(CAPACITY).create_segment().unwrap();
    assert!(gone < kept && ahead < next, "{gone} {kept} {ahead} {next}");
}

#[test]
fn an_adopted_tmpfs_grows_and_shrinks_and_a_shrink_below_the_usage_waits() {
    let place = Workplace::new();
    let id = sealed(&place.open(ByteCount::mib(8)), b"a", &vec![1; 6 << 20]);
    let tier = place.open(ByteCount::mib(16));
    let (_, file) = tier.create_segment().unwrap();
    tier.reserve(&file, FileOffset(0), ByteCount::mib(10)).unwrap();
    tier.trim(&file, ByteCount::ZERO).unwrap();
    drop((tier, file));

    let tier = place.open(ByteCount::mib(4));
    assert!(tier.report().shrink_pending);
    let usage = tier.usage().unwrap();
    assert_eq!(
        (usage.capacity, usage.used, usage.free),
        (ByteCount::mib(4), ByteCount::mib(6), ByteCount(0))
    );
    let (_, file) = tier.create_segment().unwrap();
    assert!(tier.reserve(&file, FileOffset(0), ByteCount(1)).unwrap_err().is_full());
    assert!(!tier.retry_resize().unwrap());
    tier.remove_segment(id).unwrap();
    assert!(tier.retry_resize().unwrap());
    assert!(!tier.report().shrink_pending);
    tier.reserve(&file, FileOffset(0), ByteCount::mib(4)).unwrap();
    assert!(file.write_all_at(&[1], 4 << 20).is_err(), "the kernel holds the new limit");
}

#[test]
fn noswap_survives_a_resize() {
    let place = Workplace::new();
    let refused = place.open(ByteCount::mib(8)).report().refused_options;
    place.open(ByteCount::mib(16));
    let options = mount::options_of_own(place.path()).unwrap().unwrap();
    assert!(options.contains("size=16388k"), "with a page for the names clock: {options}");
    assert_eq!(options.contains("noswap"), !refused.contains(&"noswap".to_owned()), "{options}");
}

#[test]
fn discarding_unmounts_and_frees() {
    let place = Workplace::new();
    let tier = place.open(CAPACITY);
    sealed(&tier, b"a", &[1; 10_000]);
    tier.discard().unwrap();
    assert!(!place.path().exists());
    assert_eq!(mount::options_of_own(place.path()).unwrap(), None);
}

pub(super) fn open_as(shared: bool, config: &MemoryConfig) -> MemoryTier {
    if shared { MemoryTier::open_unprivileged(config).unwrap() } else { MemoryTier::open(config).unwrap() }
}

#[test]
fn without_the_right_to_mount_a_directory_on_a_tmpfs_serves() {
    let place = Workplace::on_shared_tmpfs();
    let tier = open_as(true, &place.config(CAPACITY));
    assert!(!tier.report().private_mount);
    let id = sealed_reserved(&tier, b"a", &[5; 9000]);
    let extent = tier.pack(DirectoryId(2), &object(b"p", 9, 3), b"abc").unwrap();
    let before = used(&tier);
    assert_eq!(before, 12_288 + (16 << 10), "three pages, and those of one packed object");

    let second = open_as(true, &place.config(CAPACITY));
    assert_eq!(used(&second), before, "what is there is counted at the start");
    let (told, _) = recovered(&second);
    assert_eq!(
        told,
        [
            Recovered::Solo { segment: id, record: object(b"a", id.0, 9000) },
            Recovered::Packed { extent, record: object(b"p", 9, 3) },
        ]
    );
    second.free_packed(extent).unwrap();
    second.remove_segment(id).unwrap();
    assert_eq!(used(&second), 0);
    sealed_reserved(&second, b"b", &[5; 9000]);
    second.discard().unwrap();
    assert!(!place.path().exists());
}

fn sealed_reserved(tier: &MemoryTier, name: &[u8], data: &[u8]) -> SegmentId {
    let (id, file) = tier.create_segment().unwrap();
    tier.reserve(&file, FileOffset(0), ByteCount(data.len() as u64)).unwrap();
    file.write_all_at(data, 0).unwrap();
    tier.seal(&file, &object(name, id.0, data.len() as u64)).unwrap();
    id
}

#[test]
fn without_the_right_to_mount_a_directory_on_a_disk_is_refused_with_the_way_out() {
    let place = Workplace::new();
    if mount::on_tmpfs(place.path()).unwrap() {
        println!("skipped: the directory for temporary files is a tmpfs here");
        return;
    }
    let error = MemoryTier::open_unprivileged(&place.config(CAPACITY)).unwrap_err();
    assert!(error.to_string().contains("/dev/shm"), "{error}");
}

#[test]
fn a_hundred_thousand_segments_are_recovered() {
    let place = Workplace::new();
    let tier = place.open(ByteCount::gib(1));
    for number in 0..100_000_u64 {
        let (id, file) = tier.create_segment().unwrap();
        file.write_all_at(b"x", 0).unwrap();
        tier.seal(&file, &object(format!("block-{number:032x}.bin").as_bytes(), id.0, 1)).unwrap();
    }
    drop(tier);
    let start = Instant::now();
    let tier = place.open(ByteCount::gib(1));
    let opened = start.elapsed();
    let mut bytes = 0;
    let summary = tier
        .recover(&mut |found| {
            if let Recovered::Solo { record, .. } = found {
                bytes += record.size.get();
            }
        })
        .unwrap();
    assert_eq!((summary.solo, bytes), (100_000, 100_000));
    println!("100,000 segments: opened in {opened:?}, recovered in {:?}", summary.elapsed);
}
