//! Deterministic bytes: what a test wrote can be told from zeros, from other objects and from torn mixtures.

/// Bytes of the head of an [`object`]: its seed and its length.
pub(crate) const HEAD_BYTES: usize = 16;

/// The 64-bit word at `index` of the stream `seed` (the finaliser of SplitMix64: every index differs).
fn word(seed: u64, index: u64) -> u64 {
    let mut value = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(index.wrapping_add(1));
    value = value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// The first `length` bytes of the stream `seed`.
pub(crate) fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    for index in 0.. {
        if bytes.len() >= length {
            break;
        }
        bytes.extend_from_slice(&word(seed, index).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// An object of `length` bytes (at least [`HEAD_BYTES`]) that says itself which bytes it must have.
pub(crate) fn object(seed: u64, length: usize) -> Vec<u8> {
    assert!(length >= HEAD_BYTES, "an object of {length} bytes has no room for its head");
    let mut object = bytes(seed, length);
    object[..8].copy_from_slice(&seed.to_le_bytes());
    object[8..16].copy_from_slice(&u64::try_from(length).expect("usize fits u64").to_le_bytes());
    object
}

/// The seed of a whole [`object`], or what is wrong with these bytes.
pub(crate) fn verify_object(found: &[u8]) -> Result<u64, String> {
    if found.len() < HEAD_BYTES {
        return Err(format!("{} bytes are too few for a head", found.len()));
    }
    let number = |at: usize| u64::from_le_bytes(found[at..at + 8].try_into().expect("eight bytes"));
    let (seed, length) = (number(0), number(8));
    if usize::try_from(length) != Ok(found.len()) {
        return Err(format!("object {seed} has {} bytes, its head says {length}", found.len()));
    }
    match first_difference(found, &object(seed, found.len())) {
        None => Ok(seed),
        Some(offset) => Err(format!("object {seed} of {length} bytes is wrong at offset {offset}")),
    }
}

/// The first offset at which two byte strings differ; the shorter length when one is a prefix of the other.
pub(crate) fn first_difference(found: &[u8], expected: &[u8]) -> Option<usize> {
    if found == expected {
        return None;
    }
    let common = found.iter().zip(expected).position(|(left, right)| left != right);
    Some(common.unwrap_or(found.len().min(expected.len())))
}

/// Fails with the place of the first difference rather than with megabytes of numbers.
#[track_caller]
pub(crate) fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    if let Some(offset) = first_difference(found, expected) {
        let show = |bytes: &[u8]| format!("{:02x?}", bytes.iter().skip(offset).take(16).collect::<Vec<_>>());
        panic!(
            "{what}: {} bytes instead of {}, first difference at {offset}: found {} expected {}",
            found.len(),
            expected.len(),
            show(found),
            show(expected),
        );
    }
}
