//! Shows that records survive a round trip, that any other bytes are refused without a panic, and that
//! format 1 still means what it meant.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;

pub(in super::super) fn object(name: &[u8], version: u64, size: u64) -> ObjectRecord {
    ObjectRecord {
        parent: DirectoryId(7),
        name: name.to_vec(),
        version: Version(version),
        size: ByteCount(size),
        checksum: Some(Checksum(0x0102_0304_0506_0708)),
        mode: 0o100_644,
        uid: 1000,
        gid: 100,
        mtime_ns: 1_700_000_000_000_000_001,
        atime_ns: -1,
        ctime_ns: 3,
        sealed_at_ns: 4,
        predecessor: Some(Version(41)),
        policy: PolicyRecord {
            quota: Some(ByteCount::gib(1)),
            floor: None,
            ttl_s: Some(60),
            pin: Some(Pin::Soft { ttl_s: Some(9) }),
            priority: Some(-3),
            eviction: Some("lru".to_owned()),
            scratch: Some(true),
            durable: None,
            recompute_bytes_per_second: None,
            replicas: None,
            pinned_at_ns: None,
        },
    }
}

pub(in super::super) fn directory(id: u64, name: &[u8]) -> DirectoryRecord {
    DirectoryRecord {
        id: DirectoryId(id),
        parent: DirectoryId::ROOT,
        name: name.to_vec(),
        mode: 0o040_755,
        uid: 0,
        gid: 5,
        mtime_ns: 1,
        ctime_ns: 2,
        policy: PolicyRecord { pin: Some(Pin::None), ..PolicyRecord::default() },
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_record_from_which_on_counting_would_begin_anew_is_refused() {
    let refused = object(b"name", u64::MAX, 1);
    assert_eq!(refused.encode(), Err(RecordError::Field { field: "version" }));
    let forged = super::encode(ObjectRecord::KIND, &refused, FORMAT).unwrap();
    assert_eq!(ObjectRecord::decode(&forged), Err(RecordError::Field { field: "version" }));
    assert!(object(b"name", NUMBER_MAX, 1).encode().is_ok());
    let refused = directory(u64::MAX, b"name");
    let forged = super::encode(DirectoryRecord::KIND, &refused, FORMAT).unwrap();
    assert_eq!(DirectoryRecord::decode(&forged), Err(RecordError::Field { field: "id" }));
}

#[test]
fn format_1_has_its_golden_bytes() {
    assert_eq!(hex(&object(b"block.bin", 42, 65536).encode().unwrap()), GOLDEN_OBJECT);
    assert_eq!(hex(&directory(12, b"ns").encode().unwrap()), GOLDEN_DIRECTORY);
}

const GOLDEN_OBJECT: &str = "54446f010709626c6f636b2e62696e2a80800401888e98a8c0e0808101a48302e807648280d0e2c6bfce972f\
                             010608012901808080800400013c0101010901fd01036c72750101d12895c4";
const GOLDEN_DIRECTORY: &str = "544464010c01026e73ed8301000502040000000100000000a6663e15";

#[test]
fn format_2_has_its_golden_bytes() {
    let mut record = directory(12, b"ns");
    record.policy.durable = Some(true);
    assert_eq!(hex(&record.encode().unwrap()), GOLDEN_DURABLE);
    assert_eq!(DirectoryRecord::decode(&record.encode().unwrap()), Ok(record));
}

#[test]
fn format_3_has_its_golden_bytes_with_and_without_what_format_2_added() {
    let mut record = directory(12, b"ns");
    record.policy.recompute_bytes_per_second = Some(ByteCount(300));
    assert_eq!(hex(&record.encode().unwrap()), GOLDEN_RECOMPUTE);
    assert_eq!(DirectoryRecord::decode(&record.encode().unwrap()), Ok(record.clone()));
    record.policy.durable = Some(false);
    assert_eq!(DirectoryRecord::decode(&record.encode().unwrap()), Ok(record));
}

#[test]
fn format_4_has_its_golden_bytes_with_and_without_what_earlier_ones_added() {
    let mut record = directory(12, b"ns");
    record.policy.replicas = Some(2);
    assert_eq!(hex(&record.encode().unwrap()), GOLDEN_REPLICAS);
    assert_eq!(DirectoryRecord::decode(&record.encode().unwrap()), Ok(record.clone()));
    record.policy.durable = Some(false);
    record.policy.recompute_bytes_per_second = Some(ByteCount(300));
    assert_eq!(DirectoryRecord::decode(&record.encode().unwrap()), Ok(record));
}

#[test]
fn format_5_has_its_golden_bytes_with_and_without_what_earlier_ones_added() {
    let mut record = object(b"block.bin", 42, 65536);
    record.policy.pinned_at_ns = Some(1_700_000_000_000_000_002);
    assert_eq!(hex(&record.encode().unwrap()), GOLDEN_PINNED_AT);
    assert_eq!(ObjectRecord::decode(&record.encode().unwrap()), Ok(record.clone()));
    record.policy.durable = Some(false);
    record.policy.replicas = Some(2);
    assert_eq!(ObjectRecord::decode(&record.encode().unwrap()), Ok(record));
}

const GOLDEN_PINNED_AT: &str = "54446f050709626c6f636b2e62696e2a80800401888e98a8c0e0808101a48302e807648280d0e2c6bfce972f01\
                                0608012901808080800400013c0101010901fd01036c72750101000000018480d0e2c6bfce972f3507f68a";

const GOLDEN_REPLICAS: &str = "544464040c01026e73ed830100050204000000010000000000000102595b2580";

const GOLDEN_RECOMPUTE: &str = "544464030c01026e73ed83010005020400000001000000000001ac02620f1e54";

const GOLDEN_DURABLE: &str = "544464020c01026e73ed8301000502040000000100000000010129e0ac05";

#[test]
fn the_longest_record_fits() {
    let mut record = object(&[b'x'; NAME_BYTES_MAX], NUMBER_MAX, u64::MAX);
    record.parent = DirectoryId(u64::MAX);
    record.policy.eviction = Some("e".repeat(EVICTION_BYTES_MAX));
    let encoded = record.encode().unwrap();
    assert!(encoded.len() < RECORD_BYTES_MAX / 2, "{}", encoded.len());
    assert_eq!(ObjectRecord::decode(&encoded), Ok(record));
}

#[test]
fn names_that_no_file_can_have_are_refused_in_both_directions() {
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
        let record = object(name, 1, 1);
        assert_eq!(record.encode(), Err(RecordError::Field { field: "name" }));
        let forged = encode(ObjectRecord::KIND, &record, FORMAT).unwrap();
        assert_eq!(ObjectRecord::decode(&forged), Err(RecordError::Field { field: "name" }));
    }
}

#[test]
fn only_the_root_has_no_name() {
    assert!(directory(DirectoryId::ROOT.0, b"").encode().is_ok());
    assert_eq!(directory(2, b"").encode(), Err(RecordError::Field { field: "name" }));
}

#[test]
fn each_damage_has_its_own_error() {
    let good = object(b"k", 1, 1).encode().unwrap();
    assert_eq!(ObjectRecord::decode(&good[..7]), Err(RecordError::TooShort { length: 7 }));
    assert_eq!(ObjectRecord::decode(&[0; RECORD_BYTES_MAX + 1]), Err(RecordError::TooLong));
    assert_eq!(DirectoryRecord::decode(&good), Err(RecordError::Foreign));
    let mut later = good[..good.len() - 4].to_vec();
    later[3] = 6;
    later.extend(crc32fast::hash(&later).to_le_bytes());
    assert_eq!(ObjectRecord::decode(&later), Err(RecordError::Format { format: 6 }));
    let mut longer = good[..good.len() - 4].to_vec();
    longer.push(0);
    longer.extend(crc32fast::hash(&longer).to_le_bytes());
    assert_eq!(ObjectRecord::decode(&longer), Err(RecordError::Body));
}

fn any_policy() -> impl Strategy<Value = PolicyRecord> {
    let pin = prop_oneof![
        Just(Pin::None),
        Just(Pin::Hard),
        option::of(any::<u64>()).prop_map(|ttl_s| Pin::Soft { ttl_s })
    ];
    (
        option::of(any::<u64>().prop_map(ByteCount)),
        option::of(any::<u64>().prop_map(ByteCount)),
        option::of(any::<u64>()),
        option::of(pin),
        option::of(any::<i8>()),
        option::of("[a-z0-9_]{1,32}"),
        option::of(any::<bool>()),
        option::of(any::<bool>()),
        option::of(any::<u64>().prop_map(ByteCount)),
        option::of(any::<u8>()),
        option::of(any::<i64>()),
    )
        .prop_map(
            |(
                quota,
                floor,
                ttl_s,
                pin,
                priority,
                eviction,
                scratch,
                durable,
                recompute,
                replicas,
                pinned,
            )| {
                let (recompute_bytes_per_second, pinned_at_ns) = (recompute, pinned);
                PolicyRecord {
                    quota,
                    floor,
                    ttl_s,
                    pin,
                    priority,
                    eviction,
                    scratch,
                    durable,
                    recompute_bytes_per_second,
                    replicas,
                    pinned_at_ns,
                }
            },
        )
}

fn any_name() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..=NAME_BYTES_MAX).prop_filter("a name", |name| validate_name(name).is_ok())
}

proptest! {
    #[test]
    fn an_object_survives_the_round_trip(
        name in any_name(),
        policy in any_policy(),
        numbers in (any::<u64>(), 0..=NUMBER_MAX, any::<u64>(), any::<u32>(), any::<u32>(), any::<u32>()),
        times in any::<(i64, i64, i64, i64)>(),
        checksum in option::of(any::<u64>().prop_map(Checksum)),
        predecessor in option::of(any::<u64>().prop_map(Version)),
    ) {
        let (parent, version, size, mode, uid, gid) = numbers;
        let (mtime_ns, atime_ns, ctime_ns, sealed_at_ns) = times;
        let record = ObjectRecord {
            parent: DirectoryId(parent), name, version: Version(version), size: ByteCount(size), checksum,
            mode, uid, gid, mtime_ns, atime_ns, ctime_ns, sealed_at_ns, predecessor, policy,
        };
        prop_assert_eq!(ObjectRecord::decode(&record.encode().unwrap()), Ok(record));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..2000)) {
        prop_assert!(ObjectRecord::decode(&bytes).is_err());
        prop_assert!(DirectoryRecord::decode(&bytes).is_err());
    }

    #[test]
    fn arbitrary_bodies_in_a_whole_frame_never_panic(body in vec(any::<u8>(), 0..400)) {
        let format = FORMAT + u8::try_from(body.len() % 4).unwrap();
        let mut bytes = [&MAGIC[..], &[ObjectRecord::KIND, format], &body].concat();
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        if let Ok(record) = ObjectRecord::decode(&bytes) {
            prop_assert_eq!(ObjectRecord::decode(&record.encode().unwrap()), Ok(record));
        }
    }

    #[test]
    fn a_flipped_bit_is_noticed(position in 0_usize..1_000_000, bit in 0_u32..8) {
        let mut bytes = object(b"block.bin", 42, 65536).encode().unwrap();
        let position = position % bytes.len();
        bytes[position] ^= 1 << bit;
        prop_assert!(ObjectRecord::decode(&bytes).is_err());
    }
}
