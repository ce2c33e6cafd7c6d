//! Bytes that tell whose they are and where they belong.

/// The byte string at `offset` of the endless one of `seed`.
pub(crate) fn bytes(seed: u64, offset: u64, length: usize) -> Vec<u8> {
    let first = offset / 8;
    let skip = usize::try_from(offset % 8).unwrap();
    let words = (skip + length).div_ceil(8) as u64;
    let mut found = Vec::with_capacity(usize::try_from(words * 8).unwrap());
    for word in first..first + words {
        // The finish of splitmix64.
        let mut mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word.wrapping_mul(0xd1b5_4a32_d192_ed03);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        found.extend_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes());
    }
    found.drain(..skip);
    found.truncate(length);
    found
}

#[test]
fn a_part_is_a_part_of_the_whole() {
    let whole = bytes(7, 0, 100);
    assert_eq!(bytes(7, 13, 50), whole[13..63]);
    assert_ne!(bytes(8, 0, 100), whole);
}
