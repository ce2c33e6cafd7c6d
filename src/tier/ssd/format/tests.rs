//! Shows that frames survive a round trip, that any other bytes are refused without a panic, and that format 1 still
//! means what it meant.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const DEVICE: Uuid = Uuid([7; 16]);

fn facts(key: &[u8], meta: &[u8]) -> RecordFacts {
    RecordFacts {
        order: 0x0102,
        hash: RecordHash::of(Uuid([9; 16]), key),
        version: Version(300),
        length: ByteCount(5000),
        checksum: Checksum(0x0102_0304_0506_0708),
        key: key.to_vec(),
        meta: meta.to_vec(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The frame without the zeros behind it.
fn written(bytes: &[u8]) -> String {
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |at| at + 1);
    hex(&bytes[..end])
}

#[test]
fn format_1_has_its_golden_bytes() {
    let superblock =
        Superblock { device: DEVICE, pool: Uuid([9; 16]), epoch: 300, zone_bytes: ByteCount::mib(256) };
    let zone = ZoneHeader { device: DEVICE, zone: 3, sequence: 77 };
    let record = RecordHeader { device: DEVICE, sequence: 77, facts: facts(b"key", b"meta") };
    let tombstone = Tombstone { order: 5, hash: RecordHash([1; 16]), version: Version(4) };
    let tombstones = TombstoneBlock { device: DEVICE, sequence: 77, tombstones: vec![tombstone] };
    let footer = Footer {
        device: DEVICE,
        sequence: 77,
        entries: vec![
            FooterEntry::Object { block: 1, facts: facts(b"k", b"") },
            FooterEntry::Tombstones(vec![tombstone]),
        ],
    };
    let trailer = Trailer { device: DEVICE, sequence: 77, block: 4, blocks: 1 };
    let found = [
        written(&encode(&superblock).unwrap()),
        written(&encode(&zone).unwrap()),
        written(&encode(&record).unwrap()),
        written(&encode(&tombstones).unwrap()),
        written(&encode(&footer).unwrap()),
        written(&encode(&trailer).unwrap()),
    ];
    let golden: Vec<&str> = include_str!("golden_1.txt").lines().collect();
    assert_eq!(found.join("\n"), golden.join("\n"));
}

#[test]
fn the_largest_record_fits_into_one_block() {
    let mut largest = facts(&[1; KEY_BYTES_MAX], &[2; META_BYTES_MAX]);
    largest.order = NUMBER_MAX;
    largest.version = Version(NUMBER_MAX);
    largest.length = ByteCount(u64::MAX);
    let footer_bytes = largest.footer_bytes();
    let entry = FooterEntry::Object { block: u32::MAX, facts: largest.clone() };
    assert!(postcard::to_allocvec(&entry).unwrap().len() <= footer_bytes);
    let header = RecordHeader { device: DEVICE, sequence: NUMBER_MAX, facts: largest };
    assert_eq!(encode(&header).unwrap().len(), BLOCK);
    let tombstone =
        Tombstone { order: NUMBER_MAX, hash: RecordHash([255; 16]), version: Version(NUMBER_MAX) };
    let full = vec![tombstone; TOMBSTONES_MAX];
    let entry = FooterEntry::Tombstones(full.clone());
    assert!(postcard::to_allocvec(&entry).unwrap().len() <= tombstone_footer_bytes(TOMBSTONES_MAX));
    let block = TombstoneBlock { device: DEVICE, sequence: NUMBER_MAX, tombstones: full };
    assert_eq!(encode(&block).unwrap().len(), BLOCK);
}

#[test]
fn one_kind_is_not_taken_for_another_and_a_later_format_is_named() {
    let zone = ZoneHeader { device: DEVICE, zone: 3, sequence: 77 };
    let mut bytes = encode(&zone).unwrap();
    assert_eq!(decode::<Trailer>(&bytes), Err(FormatError::Foreign));
    assert_eq!(decode::<ZoneHeader>(&bytes[..20]), Err(FormatError::Short));
    bytes[5] = 2;
    assert_eq!(decode::<ZoneHeader>(&bytes), Err(FormatError::Damaged));
}

#[test]
fn what_no_daemon_writes_is_refused_with_the_right_checksum_too() {
    fn refused<T: Frame + std::fmt::Debug>(value: &T) {
        let body = postcard::to_allocvec(value).unwrap();
        let read = decode::<T>(&framed(T::KIND, &body));
        assert!(matches!(read, Err(FormatError::Body)), "{read:?}");
        assert!(encode(value).is_none());
    }
    let header = |sequence, facts| RecordHeader { device: DEVICE, sequence, facts };
    // From these numbers on counting would begin anew, below everything that is there.
    refused(&header(77, RecordFacts { order: NUMBER_MAX + 1, ..facts(b"key", b"") }));
    refused(&header(77, RecordFacts { version: Version(u64::MAX), ..facts(b"key", b"") }));
    refused(&header(u64::MAX, facts(b"key", b"")));
    refused(&ZoneHeader { device: DEVICE, zone: 3, sequence: u64::MAX });
    refused(&Trailer { device: DEVICE, sequence: u64::MAX, block: 1, blocks: 1 });
    refused(&Superblock {
        device: DEVICE,
        pool: DEVICE,
        epoch: EPOCH_MAX + 1,
        zone_bytes: ByteCount::mib(256),
    });
    // A record of that length would be read into memory as a whole.
    let zone_bytes = ByteCount(ZONE_BYTES_MAX + 4096);
    refused(&Superblock { device: DEVICE, pool: DEVICE, epoch: 300, zone_bytes });
    let tombstone = Tombstone { order: 5, hash: RecordHash([1; 16]), version: Version(u64::MAX) };
    refused(&TombstoneBlock { device: DEVICE, sequence: 77, tombstones: vec![tombstone] });
    // It stands for a life that is not known.
    refused(&ZoneHeader { device: DEVICE, zone: 3, sequence: 0 });
    // Whoever writes one refuses a longer one.
    refused(&header(77, facts(&[1; KEY_BYTES_MAX + 1], b"")));
    let long = FooterEntry::Object { block: 1, facts: facts(b"key", &[1; META_BYTES_MAX + 1]) };
    refused(&Footer { device: DEVICE, sequence: 77, entries: vec![long] });
    // A footer of these takes fifty times its bytes in memory.
    let empty = vec![FooterEntry::Tombstones(Vec::new()); 1000];
    refused(&Footer { device: DEVICE, sequence: 77, entries: empty });
}

#[test]
fn every_flipped_bit_of_a_frame_is_found() {
    let record = RecordHeader { device: DEVICE, sequence: 77, facts: facts(b"key", b"meta") };
    let bytes = encode(&record).unwrap();
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    // The two bytes behind the format are not used, and covered by the checksum all the same.
    for bit in 0..=end * 8 + 7 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(decode::<RecordHeader>(&damaged).is_err(), "bit {bit}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_read_and_never_a_panic(bytes in vec(any::<u8>(), 0..600)) {
        let _ = decode::<Superblock>(&bytes);
        let _ = decode::<RecordHeader>(&bytes);
        let _ = decode::<Footer>(&bytes);
    }

    #[test]
    fn a_frame_with_any_body_is_refused_or_read_and_never_a_panic(body in vec(any::<u8>(), 0..300), kind in 0..4_usize) {
        // With a right checksum, so that the body's parser meets the bytes.
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Raw(u8);
        impl Frame for Raw {
            const KIND: u8 = b'?';
            fn is_sound(&self) -> bool { true }
        }
        let kind = [b'F', b'R', b'T', b'E'][kind];
        let bytes = framed(kind, &body);
        let _ = decode::<Footer>(&bytes);
        let _ = decode::<RecordHeader>(&bytes);
        let _ = decode::<TombstoneBlock>(&bytes);
        let _ = decode::<Trailer>(&bytes);
        prop_assert!(decode::<Raw>(&bytes).is_err());
    }

    #[test]
    fn what_is_written_is_read_back(key in vec(any::<u8>(), 0..64), meta in vec(any::<u8>(), 0..128), numbers in [1..=NUMBER_MAX, 1..=NUMBER_MAX, 1..=NUMBER_MAX]) {
        let mut facts = facts(&key, &meta);
        (facts.order, facts.version, facts.length) = (numbers[0], Version(numbers[1]), ByteCount(numbers[2]));
        let record = RecordHeader { device: DEVICE, sequence: numbers[2], facts };
        prop_assert_eq!(decode::<RecordHeader>(&encode(&record).unwrap()), Ok(record));
    }
}
