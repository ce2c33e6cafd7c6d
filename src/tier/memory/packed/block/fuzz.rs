//! The blocks of packed segments for fuzzing.

use super::{Block, BlockHeader, HEADER_BYTES, UNIT, tag};

/// A block as it is found, and with a tag that holds: what it says lies inside of it.
pub(crate) fn blocks(bytes: &[u8]) {
    let mut mended = bytes.to_vec();
    if let Some(Block { header: Some(header), .. }) = BlockHeader::parse(bytes)
        && let Some(record) = bytes.get(HEADER_BYTES..HEADER_BYTES + usize::from(header.record_length))
    {
        mended[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&tag(&header.fixed(), record).to_le_bytes());
    }
    for bytes in [bytes, &mended] {
        let Some(Block { units, header, .. }) = BlockHeader::parse(bytes) else { continue };
        assert!(units > 0, "who follows the chain comes to its end");
        let Some(header) = header else { continue };
        assert!(header.data_offset() + header.data_length() <= u64::from(units) * UNIT);
        if let Ok(record) = header.record(&bytes[HEADER_BYTES..]) {
            assert!(record.version.0 < u64::MAX, "what is new has a later one");
        }
    }
}

/// Blocks of each kind.
#[cfg(test)]
pub(crate) fn block_seeds() -> Vec<Vec<u8>> {
    use super::super::super::record::tests::object;
    use super::super::PACKED_MAX;
    use super::tests::bytes_of;
    use super::{State, mark};

    let (header, live) = bytes_of(&object(b"k", 3, 200), 9);
    let with = |state| [&mark(state, header.units())[..], &live[8..]].concat();
    let longest = bytes_of(&object(&[b'x'; 255], 3, PACKED_MAX.get()), 0).1;
    vec![with(State::Retired), with(State::Free), with(State::Pending), live.clone(), longest]
}
