//! The same by file: where there is no fast path, and for what it does not serve.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::Error;

/// NAME_MAX of limits.h: bytes of one part of a path.
const NAME_BYTES_MAX: usize = 255;
/// PATH_MAX of limits.h: bytes of a path with the zero behind it.
const PATH_BYTES_MAX: usize = 4096;

/// Checks a key.
pub(crate) fn check(key: &[u8]) -> Result<&[u8], Error> {
    let is_part = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
    if key.split(|&byte| byte == b'/').all(is_part) { Ok(key) } else { Err(Error::BadKey) }
}

/// Checks the key of an object that is to be made: no file has a longer one. Looking for it is a miss.
pub(crate) fn check_new(key: &[u8]) -> Result<(), Error> {
    check(key)?;
    let is_short = |part: &[u8]| part.len() <= NAME_BYTES_MAX;
    if key.len() < PATH_BYTES_MAX && key.split(|&byte| byte == b'/').all(is_short) {
        return Ok(());
    }
    Err(Error::io("create an object")(io::Error::from_raw_os_error(libc::ENAMETOOLONG)))
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
    ) || error.raw_os_error() == Some(libc::ENAMETOOLONG)
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
    let written = create(path, random).and_then(|(temporary, mut file)| {
        let written = file.write_all(bytes).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            // What was written so far stands for nothing; that it cannot be removed is the smaller trouble.
            let _ = fs::remove_file(&temporary);
        }
        written
    });
    written.map_err(Error::io("write an object"))
}

fn random() -> io::Result<u64> {
    getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
}

/// Names that are tried before a directory is thought to have them all.
const NAMES_MAX: usize = 16;

/// Makes a file of a name that nobody else has, beside `path`. Neither the number of a process nor a count of its own tells
/// writers apart: they may be in two containers, or be two copies of this library in one process. `*.tmp` is temporary for
/// tidefs (`names.temporary`).
fn create(path: &Path, draw: impl Fn() -> io::Result<u64>) -> io::Result<(PathBuf, File)> {
    let mut tried = 0;
    loop {
        let temporary = path.with_file_name(format!(".tidefs-{:016x}.tmp", draw()?));
        tried += 1;
        match File::options().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(error) if tried == NAMES_MAX => return Err(error),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_parent(path)?,
            Err(error) => return Err(error),
        }
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
            assert!(matches!(check_new(bad), Err(Error::BadKey)), "{bad:?}");
        }
        for (length, count, is_made) in [(255, 1, true), (256, 1, false), (255, 16, true), (255, 17, false)] {
            let key = vec!["n".repeat(length); count].join("/");
            assert!(check(key.as_bytes()).is_ok());
            let made = check_new(key.as_bytes()).map_err(|error| error.errno());
            assert_eq!(made, if is_made { Ok(()) } else { Err(libc::ENAMETOOLONG) }, "{count} of {length}");
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

    #[test]
    fn two_writers_that_draw_one_name_do_not_take_each_others_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/key");
        let (first, _) = create(&path, || Ok(7)).unwrap();
        let numbers = std::cell::Cell::new(6);
        let (second, _) = create(&path, || Ok(numbers.replace(numbers.get() + 1).max(7))).unwrap();
        assert_ne!(first, second);
        assert_eq!(create(&path, || Ok(7)).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(first.exists() && second.exists());
        // Nor does one that fails for another reason.
        fs::create_dir(&path).unwrap();
        write(&path, b"12345").unwrap_err();
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 3);
    }
}
