//! xxh3-64 over the bytes of an object, the same for a solo and a packed one.

use std::fs::File;
use std::hash::Hasher as _;
use std::io;
use std::os::unix::fs::FileExt as _;

use tidefs_engine::types::{ByteCount, Checksum};
use twox_hash::XxHash3_64;

/// Bytes read at once: they stay in the processor's cache until they are hashed.
const CHUNK_BYTES: usize = 256 << 10;

/// Checksum of bytes in memory.
#[must_use]
pub fn checksum_bytes(bytes: &[u8]) -> Checksum {
    Checksum(XxHash3_64::oneshot(bytes))
}

/// Checksum of the first `size` bytes of a segment file, by way of a buffer, which grows as it is needed. Before each piece of it
/// `is_stopping` is asked whether anybody wants it still.
///
/// It is read, not mapped: a sealed object may be reopened for writing and cut while its checksum is taken in the
/// background, and a mapping of what was cut off would kill the daemon (SIGBUS). Then this is an error, or the checksum of
/// bytes that are no version; whoever calls looks whether the object is still the one that it was.
///
/// # Errors
/// `UnexpectedEof` when the file is shorter than `size`; `Interrupted` when it `is_stopping`; else what read(2) says.
pub fn checksum_file(
    file: &File,
    size: ByteCount,
    buffer: &mut Vec<u8>,
    is_stopping: impl Fn() -> bool,
) -> io::Result<Checksum> {
    let chunk = usize::try_from(size.get()).unwrap_or(usize::MAX).min(CHUNK_BYTES);
    if buffer.len() < chunk {
        buffer.resize(chunk, 0);
    }
    let mut hash = XxHash3_64::new();
    let mut offset = 0;
    while offset < size.get() {
        if is_stopping() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let count = usize::try_from(size.get() - offset).unwrap_or(usize::MAX).min(buffer.len());
        file.read_exact_at(&mut buffer[..count], offset)?;
        hash.write(&buffer[..count]);
        offset += count as u64;
    }
    Ok(Checksum(hash.finish()))
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
        let mut buffer = Vec::new();
        for size in [0, 1, 4096, 4 << 20, 5_000_003, 7] {
            let sum = checksum_file(&file, ByteCount(size as u64), &mut buffer, || false).unwrap();
            assert_eq!(sum, checksum_bytes(&bytes[..size]), "{size}");
        }
    }

    #[test]
    fn a_file_that_is_cut_while_it_is_read_is_an_error_and_no_fault() {
        const LENGTH: u64 = 8 << 20;
        let file = tempfile::tempfile().unwrap();
        let cutter = file.try_clone().unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    cutter.set_len(LENGTH).unwrap();
                    cutter.set_len(0).unwrap();
                }
            });
            for _ in 0..200 {
                match checksum_file(&file, ByteCount(LENGTH), &mut Vec::new(), || false) {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof),
                }
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn a_checksum_that_nobody_wants_any_more_ends_before_the_next_piece() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10 * CHUNK_BYTES as u64).unwrap();
        let looks = std::cell::Cell::new(0);
        let is_stopping = || {
            looks.set(looks.get() + 1);
            looks.get() == 3
        };
        let size = ByteCount(10 * CHUNK_BYTES as u64);
        let error = checksum_file(&file, size, &mut Vec::new(), is_stopping).unwrap_err();
        assert_eq!((error.kind(), looks.get()), (io::ErrorKind::Interrupted, 3));
    }

    #[test]
    fn a_file_that_is_too_short_is_an_error_and_no_fault() {
        let file = tempfile::tempfile().unwrap();
        let error = checksum_file(&file, ByteCount(1), &mut Vec::new(), || false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
