//! xxh3-64 over the bytes of an object, the same for a solo and a packed one.

use std::fs::File;
use std::io;

use tidefs_engine::memory::Mapping;
use tidefs_engine::types::{ByteCount, Checksum};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes hashed between two looks at the mapping; large enough that the loop costs nothing.
const CHUNK_BYTES: usize = 4 << 20;

/// Checksum of bytes in memory.
#[must_use]
pub fn checksum_bytes(bytes: &[u8]) -> Checksum {
    Checksum(xxh3_64(bytes))
}

/// Checksum of the first `size` bytes of a segment file, which is open for reading and writing.
///
/// The file is read through a mapping that lives for the call, so that nothing is copied. Whoever calls
/// guarantees that nobody truncates the file below `size` meanwhile, since such an access is a SIGBUS: it holds
/// for a sealed segment, which only [`super::MemoryTier::trim`] shortens, and for one whose last writing handle
/// is released. Call [`super::MemoryTier::fill_holes`] first: reading a hole through a mapping allocates its page.
///
/// # Errors
/// `UnexpectedEof` when the file is shorter than `size`; else what fstat(2) and mmap(2) say.
pub fn checksum_file(file: &File, size: ByteCount) -> io::Result<Checksum> {
    if size == ByteCount::ZERO {
        return Ok(checksum_bytes(&[]));
    }
    if file.metadata()?.len() < size.get() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mapping = Mapping::new(file, size)?;
    let length = usize::try_from(size.get()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut hash = Xxh3::new();
    let mut offset = 0;
    while offset < length {
        let count = CHUNK_BYTES.min(length - offset);
        let chunk = mapping.slice(offset, count).ok_or(io::ErrorKind::UnexpectedEof)?;
        hash.update(chunk);
        offset += count;
    }
    Ok(Checksum(hash.digest()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_file_has_the_checksum_of_its_bytes() {
        let bytes: Vec<u8> = (0..5_000_003_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        for size in [0, 1, 4096, 4 << 20, 5_000_003] {
            let sum = checksum_file(&file, ByteCount(size as u64)).unwrap();
            assert_eq!(sum, checksum_bytes(&bytes[..size]), "{size}");
        }
    }

    #[test]
    fn a_file_that_is_too_short_is_an_error_and_no_fault() {
        let file = tempfile::tempfile().unwrap();
        let error = checksum_file(&file, ByteCount(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
