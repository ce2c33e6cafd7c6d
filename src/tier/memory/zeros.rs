//! Zeros, by which all pages of a new file come to stand.

use std::fs::File;
use std::io::{self, IoSlice};

use nix::sys::uio::pwritev;
use tidefs_engine::types::ByteCount;

/// Zeros that stay in the processor's cache while a file is written.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// How often they are written by one call: a huge page at once, or the kernel zeroes it before it copies a part.
const REPEATED: usize = (2 << 20) / ZEROS.len();

/// Makes all pages of a new file of this length.
///
/// They are written, not touched by a mapping: whoever is not let run in the middle of it holds no lock of its own memory.
///
/// # Errors
/// What pwritev(2) says; then a part may stand.
pub fn write_zeros(file: &File, size: ByteCount) -> io::Result<()> {
    let mut offset = 0;
    while offset < size.get() {
        let mut left = usize::try_from(size.get() - offset).unwrap_or(usize::MAX);
        let mut pieces = [IoSlice::new(&[]); REPEATED];
        for piece in &mut pieces {
            let (zeros, _) = ZEROS.split_at(left.min(ZEROS.len()));
            *piece = IoSlice::new(zeros);
            left -= zeros.len();
        }
        let at = i64::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        match pwritev(file, &pieces, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => offset += count as u64,
            Err(nix::Error::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn every_page_of_any_length_is_made() {
        for length in [1, 4096, (64 << 10) + 1, 2 << 20, (5 << 20) - 3] {
            let file = tempfile::tempfile().unwrap();
            file.set_len(length).unwrap();
            write_zeros(&file, ByteCount(length)).unwrap();
            let metadata = file.metadata().unwrap();
            assert_eq!(metadata.len(), length, "it is as long as before");
            assert!(metadata.blocks() * 512 >= length, "{} blocks of {length} bytes", metadata.blocks());
        }
    }
}
