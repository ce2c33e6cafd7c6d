//! The same by file: where there is no fast path, and for what it does not serve.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;

/// Checks a key.
pub(crate) fn check(key: &[u8]) -> Result<&[u8], Error> {
    let is_part = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
    if key.split(|&byte| byte == b'/').all(is_part) { Ok(key) } else { Err(Error::BadKey) }
}

/// The file of a key.
pub(crate) fn path_of(directory: &Path, key: &[u8]) -> PathBuf {
    directory.join(OsStr::from_bytes(key))
}

/// Whether an error says that nothing is there.
fn is_miss(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory
    )
}

/// All bytes of an object; `None` is a miss.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if is_miss(&error) => Ok(None),
        Err(error) => Err(Error::io("read an object")(error)),
    }
}

/// The first bytes of an object, as many as fit. Returns the length of the object; `None` is a miss.
pub(crate) fn read_into(path: &Path, target: &mut [u8]) -> Result<Option<usize>, Error> {
    let mut read = || -> io::Result<usize> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut filled = 0;
        while filled < target.len() {
            match file.read(&mut target[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(usize::try_from(length).unwrap_or(usize::MAX).max(filled))
    };
    match read() {
        Ok(length) => Ok(Some(length)),
        Err(error) if is_miss(&error) => Ok(None),
        Err(error) => Err(Error::io("read an object")(error)),
    }
}

/// Whether an object is there.
pub(crate) fn exists(path: &Path) -> Result<bool, Error> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.is_file()),
        Err(error) if is_miss(&error) => Ok(false),
        Err(error) => Err(Error::io("look for an object")(error)),
    }
}

/// Pins an object. Returns whether it is there.
pub(crate) fn pin(path: &Path, pin: &str) -> Result<bool, Error> {
    match crate::ffi::set_attribute(path, c"user.tidefs.pin", pin.as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) if is_miss(&error) => Ok(false),
        // A filesystem without attributes evicts nothing.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => exists(path),
        Err(error) => Err(Error::io("pin an object")(error)),
    }
}

/// Makes an object: whole under its name, or not at all.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_file_name(format!(".tidefs-{}-{number}.tmp", std::process::id()));
    let written = create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        fs::rename(&temporary, path)
    });
    written.map_err(|error| {
        // What was written so far stands for nothing; that it cannot be removed is the smaller trouble.
        let _ = fs::remove_file(&temporary);
        Error::io("write an object")(error)
    })
}

fn create(path: &Path) -> io::Result<File> {
    let open = || File::options().write(true).create_new(true).open(path);
    match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_parent(path)?;
            open()
        }
        outcome => outcome,
    }
}

/// Makes the directories above a file.
pub(crate) fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// The permissions that open(2) would give a new file.
pub(crate) fn mode_of_new_files() -> u32 {
    // Without setting it there is no way to ask for the umask but this.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let umask = umask.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022);
    0o666 & !umask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_paths_below_the_cache() {
        for good in [&b"a"[..], b"a/b", b"a/.b", b"\xff/..c"] {
            assert!(check(good).is_ok(), "{good:?}");
        }
        for bad in [&b""[..], b"/a", b"a/", b"a//b", b"../a", b"a/./b", b"a\0"] {
            assert!(matches!(check(bad), Err(Error::BadKey)), "{bad:?}");
        }
    }

    #[test]
    fn an_object_written_by_file_is_whole_and_leaves_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_of(directory.path(), b"deep/er/key");
        assert_eq!(read(&path).unwrap(), None);
        write(&path, b"12345").unwrap();
        assert_eq!(read(&path).unwrap().unwrap(), b"12345");
        let mut three = [0; 3];
        assert_eq!(read_into(&path, &mut three).unwrap(), Some(5));
        assert_eq!(&three, b"123");
        assert!(exists(&path).unwrap() && !exists(path.parent().unwrap()).unwrap());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
