//! The parsers of this folder for fuzzing.

use super::frame::{HEADER_BYTES, Header};
use super::grant::{Ask, Grant, decode, encode};

/// Headers of data connections, as they are and with a checksum that holds.
pub(crate) fn frames(bytes: &[u8]) {
    let Some(raw) = bytes.first_chunk::<HEADER_BYTES>() else { return };
    let mut mended = *raw;
    let checksum = crc32fast::hash(&mended[..HEADER_BYTES - 4]);
    mended[HEADER_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
    for header in [raw, &mended] {
        if let Ok(parsed) = Header::parse(header) {
            assert_eq!(parsed.bytes(), *header);
            if let Some(reason) = parsed.reason {
                let _ = parsed.error(reason, parsed.offset).to_string();
            }
        }
    }
}

#[cfg(test)]
pub(crate) fn frame_seeds() -> Vec<Vec<u8>> {
    use super::frame::{Kind, Reason};
    let header = Header {
        kind: Kind::Read,
        reason: None,
        is_checked: true,
        operation: 1,
        region: crate::types::RegionId(2),
        registration: 3,
        offset: 4,
        length: 5,
        checksum: 6,
    };
    let kinds = [Kind::Read, Kind::Write, Kind::Data, Kind::Applied];
    let mut seeds: Vec<_> = kinds.iter().map(|&kind| header.answer(kind).bytes().to_vec()).collect();
    seeds.push(header.refusal(Reason::OutOfRange, 9).bytes().to_vec());
    seeds
}

/// What is said over the link before there are data connections.
pub(crate) fn grants(bytes: &[u8]) {
    let _ = decode::<Ask>(bytes);
    if let Ok(grant) = decode::<Grant>(bytes)
        && let Ok(again) = encode(&grant)
    {
        assert_eq!(decode::<Grant>(&again), Ok(grant));
    }
}

#[cfg(test)]
pub(crate) fn grant_seeds() -> Vec<Vec<u8>> {
    let grant = Grant {
        version: 1,
        connections: 4,
        operation_bytes_max: 1 << 20,
        token: [7; 32],
        addresses: "127.0.0.1:7000".parse().into_iter().collect(),
    };
    [encode(&grant), encode(&Ask { version: 1, connections: 4 })].into_iter().flatten().collect()
}
