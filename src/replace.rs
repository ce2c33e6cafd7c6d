//! Small files that are replaced as a whole: who reads one finds what stood there or what takes its place, never a part of
//! either. They are for the user of the daemon alone.

use std::fs::{self, File};
use std::io::{self, Write as _};
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
