//! The frame around everything on a disk: `magic, kind, format, length, checksum, postcard body`, padded to blocks.

use std::hash::Hasher as _;

use serde::Serialize;
use serde::de::DeserializeOwned;
use twox_hash::XxHash3_64;

use super::BLOCK;

const MAGIC: [u8; 4] = *b"TDSD";
const FORMAT: u8 = 1;
const LENGTH_AT: usize = 8;
const CHECKSUM_AT: usize = 16;
const HEADER_BYTES: usize = 24;

/// A structure with a frame of its own.
pub(in super::super) trait Frame: Serialize + DeserializeOwned {
    /// Which structure it is.
    const KIND: u8;

    /// Whether a daemon may have written it.
    fn is_sound(&self) -> bool;
}

/// Why bytes are not the frame that was looked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum FormatError {
    /// Not a frame, or of another kind.
    #[error("no such structure stands here")]
    Foreign,
    /// Written by a version of the daemon with another layout.
    #[error("format {0} is not known, this daemon writes {FORMAT}; use the daemon that wrote it")]
    Format(u8),
    /// Shorter than it says it is.
    #[error("the structure is cut off")]
    Short,
    /// The bytes changed since they were written.
    #[error("the checksum does not match")]
    Damaged,
    /// The frame is whole, the body is not, or says what no daemon writes.
    #[error("the body does not decode")]
    Body,
}

/// The bytes to write: whole blocks, zero behind the frame. `None` for a value that no disk can hold, or that is not sound.
pub(in super::super) fn encode<T: Frame>(value: &T) -> Option<Vec<u8>> {
    if !value.is_sound() {
        return None;
    }
    let mut bytes = framed(T::KIND, &postcard::to_allocvec(value).ok()?);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    Some(bytes)
}

/// A frame of `kind` around any body.
pub(in super::super) fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((HEADER_BYTES + body.len()).next_multiple_of(BLOCK));
    bytes.resize(HEADER_BYTES, 0);
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4] = kind;
    bytes[5] = FORMAT;
    bytes[LENGTH_AT..LENGTH_AT + 8].copy_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend(body);
    let checksum = checksum_of(&bytes);
    bytes[CHECKSUM_AT..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Reads what [`encode`] wrote from the start of `bytes`, which may be longer.
///
/// # Errors
/// [`FormatError`]; arbitrary bytes are safe to pass.
pub(in super::super) fn decode<T: Frame>(bytes: &[u8]) -> Result<T, FormatError> {
    let header = bytes.get(..HEADER_BYTES).ok_or(FormatError::Short)?;
    if header[..4] != MAGIC || header[4] != T::KIND {
        return Err(FormatError::Foreign);
    }
    let framed = HEADER_BYTES.saturating_add(usize::try_from(word(header, LENGTH_AT)).unwrap_or(usize::MAX));
    let frame = bytes.get(..framed).ok_or(FormatError::Short)?;
    if checksum_of(frame) != word(header, CHECKSUM_AT) {
        return Err(FormatError::Damaged);
    }
    if header[5] != FORMAT {
        return Err(FormatError::Format(header[5]));
    }
    match postcard::take_from_bytes(&frame[HEADER_BYTES..]) {
        Ok((value, [])) if T::is_sound(&value) => Ok(value),
        _ => Err(FormatError::Body),
    }
}

/// Blocks that a frame with `bytes` of body takes.
pub(in super::super) fn frame_blocks(bytes: usize) -> u64 {
    (bytes + HEADER_BYTES).div_ceil(BLOCK) as u64
}

/// Of everything in the frame but the checksum itself.
fn checksum_of(frame: &[u8]) -> u64 {
    let mut hash = XxHash3_64::new();
    hash.write(&frame[..CHECKSUM_AT]);
    hash.write(&frame[HEADER_BYTES..]);
    hash.finish()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
