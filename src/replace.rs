//! Small files that are replaced as a whole: who reads one finds what stood there or what takes its place, never a part of
//! either. They are for the user of the daemon alone. A start reads them as far as they can be ours, and no further.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Makes `bytes` the whole of `file`. They outlive this process, but perhaps not a loss of power.
///
/// # Errors
/// Of the file system; what stood there is still there then.
pub(crate) fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let (next, _) = write_next(file, bytes)?;
    fs::rename(next, file)
}

/// The same; when this returns they outlive a loss of power.
///
/// # Errors
/// As [`replace`].
pub(crate) fn replace_durably(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let (next, written) = write_next(file, bytes)?;
    written.sync_all()?;
    fs::rename(next, file)?;
    let directory = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    File::open(directory)?.sync_all()
}

/// The whole of `file`, which is no longer than `bytes_max`.
///
/// # Errors
/// Of the file system; `InvalidData` for a longer one, of which not more is read.
pub(crate) fn read_whole(file: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take((bytes_max as u64).saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("it is longer than {bytes_max} bytes"),
        ));
    }
    Ok(bytes)
}

fn write_next(file: &Path, bytes: &[u8]) -> io::Result<(PathBuf, File)> {
    let next = file.with_extension("next");
    let mut written = File::options().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    written.write_all(bytes)?;
    Ok((next, written))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_is_longer_than_it_can_be_is_refused_and_not_read_to_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state.json");
        fs::write(&file, "12345").unwrap();
        assert_eq!(read_whole(&file, 5).unwrap(), b"12345");
        for (file, bytes_max) in [(file.as_path(), 4), (Path::new("/dev/zero"), 1 << 20)] {
            assert_eq!(read_whole(file, bytes_max).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn a_file_is_what_was_written_last_and_stays_when_that_fails() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("state.json");
        replace(&file, b"a longer one").unwrap();
        replace_durably(&file, b"short").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"short");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        fs::create_dir(file.with_extension("next")).unwrap();
        replace(&file, b"another").unwrap_err();
        replace_durably(&file, b"another").unwrap_err();
        assert_eq!(fs::read(&file).unwrap(), b"short");
    }
}
