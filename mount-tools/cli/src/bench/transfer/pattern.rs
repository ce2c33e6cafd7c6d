//! Bytes that tell where they belong, so that a transfer to a wrong place is seen.

use tidefs_engine::memory::Region;

/// Bytes of one piece.
const PIECE: usize = 4096;

/// The piece at `index` of a region with `seed`.
fn piece(seed: u64, index: u64) -> [u8; PIECE] {
    let mut bytes = [0; PIECE];
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ index.wrapping_mul(0xD1B5_4A32_D192_ED03) ^ 1;
    for word in bytes.chunks_exact_mut(8) {
        // Marsaglia's xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    bytes
}

/// Fills all whole pieces of `region`.
pub(super) fn fill(region: &Region, seed: u64) {
    for index in 0..region.length().get() / PIECE as u64 {
        region.write_at(index * PIECE as u64, &piece(seed, index));
    }
}

/// The first offset below `length` at which `region` does not hold the pattern of `seed`.
pub(super) fn first_difference(region: &Region, seed: u64, length: u64) -> Option<u64> {
    let mut found = [0; PIECE];
    (0..length.div_ceil(PIECE as u64)).find_map(|index| {
        let from = index * PIECE as u64;
        let count = usize::try_from(length - from).unwrap_or(usize::MAX).min(PIECE);
        region.read_at(from, &mut found[..count]);
        let wanted = piece(seed, index);
        (0..count).find(|&at| found[at] != wanted[at]).map(|at| from + at as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidefs_engine::memory::{Access, PageKind};
    use tidefs_engine::types::ByteCount;

    #[test]
    fn a_wrong_byte_is_found_where_it_is() {
        let region = Region::anonymous(ByteCount::kib(64), PageKind::Base, Access::ReadWrite).unwrap();
        fill(&region, 7);
        assert_eq!(first_difference(&region, 7, 65_536), None);
        assert!(first_difference(&region, 8, 65_536).is_some());
        let mut byte = [0];
        region.read_at(5000, &mut byte);
        region.write_at(5000, &[byte[0] ^ 1]);
        assert_eq!(first_difference(&region, 7, 65_536), Some(5000));
        assert_eq!(first_difference(&region, 7, 5000), None);
    }
}
