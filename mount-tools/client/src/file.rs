//! The same by file: where there is no fast path, and for what it does not serve.
//!
//! Invariants
//! - Nothing is stored, and nothing found, below the mount point of a mount that is gone: what stands there is none of the cache.
//!   Between the look at it and the store a mount may still go, unseen.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tidefs_control_api::ioctl::CONTROL_FILE;

use crate::Error;
use crate::mode::Mode;

/// NAME_MAX of limits.h: bytes of one part of a path.
const NAME_BYTES_MAX: usize = 255;
/// PATH_MAX of limits.h: bytes of a path with the zero behind it.
const PATH_BYTES_MAX: usize = 4096;

/// Checks a key.
pub(crate) fn check(key: &[u8]) -> Result<&[u8], Error> {
    let is_part = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
    if key.split(|&byte| byte == b'/').all(is_part) { Ok(key) } else { Err(Error::bad_key(key)) }
}

/// The files of a cache.
#[derive(Debug)]
pub(crate) struct Files {
    directory: PathBuf,
    /// The device of the mount of tidefs in which they were seen last; 0 while they were seen in none.
    device: AtomicU64,
    pub(crate) mode: Mode,
}

impl Files {
    /// Those below `directory`.
    pub(crate) fn below(directory: PathBuf) -> Self {
        Self { directory, device: AtomicU64::new(0), mode: Mode::by_umask() }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file of a key.
    pub(crate) fn path_of(&self, key: &[u8]) -> PathBuf {
        self.directory.join(OsStr::from_bytes(key))
    }

    /// Checks the key of an object that is to be made: no file has a longer path, and what is below memory, or of another host, is
    /// read by that. Looking for it is a miss.
    pub(crate) fn check_new(&self, key: &[u8]) -> Result<(), Error> {
        check(key)?;
        let is_short = |part: &[u8]| part.len() <= NAME_BYTES_MAX;
        // As long as `path_of` makes it, which is not made for that: each key of each put comes here.
        let above = self.directory.as_os_str().as_bytes();
        let between = usize::from(above.last().is_some_and(|&last| last != b'/'));
        let is_path = above.len() + between + key.len() < PATH_BYTES_MAX;
        if is_path && key.split(|&byte| byte == b'/').all(is_short) {
            return Ok(());
        }
        let shown = Path::new(OsStr::from_bytes(&key[..key.len().min(PATH_BYTES_MAX)]));
        Err(Error::at("create an object", shown)(io::Error::from_raw_os_error(libc::ENAMETOOLONG)))
    }

    /// Permissions of a new one.
    pub(crate) fn mode_of_new(&self) -> u32 {
        self.mode.of_new()
    }

    /// The root of the mount of tidefs that they are in now, if they are in one.
    pub(crate) fn find_mount(&self) -> Option<&Path> {
        let (nearest, device) = self.nearest().ok()?;
        let control = |root: &&Path| root.join(".tidefs").join(CONTROL_FILE).metadata();
        let root = nearest.ancestors().find(|root| control(root).is_ok_and(|found| found.dev() == device))?;
        self.device.store(device, Ordering::Relaxed);
        Some(root)
    }

    /// What there is of the directory and those above it, and the device that it is on.
    fn nearest(&self) -> io::Result<(&Path, u64)> {
        for above in self.directory.ancestors() {
            match above.metadata() {
                Ok(found) => return Ok((above, found.dev())),
                Err(error) if is_miss(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    /// Whether the mount is gone in which they were, and no other is in its place: what stands at their paths is none of the cache,
    /// and nothing is to be stored there.
    fn are_gone(&self) -> bool {
        let known = self.device.load(Ordering::Relaxed);
        // Of a dead mount, whoever opens a file of it is told.
        known != 0 && self.nearest().is_ok_and(|(_, device)| device != known) && self.find_mount().is_none()
    }

    fn check_stores(&self, operation: &'static str, path: &Path) -> Result<(), Error> {
        let gone = || io::Error::from_raw_os_error(libc::ENOTCONN);
        if self.are_gone() { Err(Error::at(operation, path)(gone())) } else { Ok(()) }
    }

    /// All bytes of an object; `None` is a miss.
    pub(crate) fn read(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        if self.are_gone() { Ok(None) } else { read(&self.path_of(key)) }
    }

    /// The first bytes of an object, as many as fit. Returns the length of the object; `None` is a miss.
    pub(crate) fn read_into(&self, key: &[u8], target: &mut [u8]) -> Result<Option<usize>, Error> {
        if self.are_gone() { Ok(None) } else { read_into(&self.path_of(key), target) }
    }

    /// Whether an object is there.
    pub(crate) fn has(&self, key: &[u8]) -> Result<bool, Error> {
        Ok(!self.are_gone() && exists(&self.path_of(key))?)
    }

    /// Pins an object. Returns whether it is there.
    pub(crate) fn pin(&self, key: &[u8], pin: &str) -> Result<bool, Error> {
        Ok(!self.are_gone() && self::pin(&self.path_of(key), pin)?)
    }

    /// Makes an object, of which `path` is the file: whole under its name, or not at all.
    pub(crate) fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), Error> {
        self.check_stores("write an object", path)?;
        write(path, bytes, self.mode.said())
    }

    /// Makes the directories above a file.
    pub(crate) fn make_parent(&self, path: &Path) -> Result<(), Error> {
        const OPERATION: &str = "make the directory of an object";
        self.check_stores(OPERATION, path)?;
        make_parent(path).map_err(Error::at(OPERATION, path))
    }
}

/// Whether an error says that nothing is there.
fn is_miss(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory
    ) || error.raw_os_error() == Some(libc::ENAMETOOLONG)
}

/// All bytes of an object; `None` is a miss.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if is_miss(&error) => Ok(None),
        Err(error) => Err(Error::at("read an object", path)(error)),
    }
}

/// The first bytes of an object, as many as fit. Returns the length of the object; `None` is a miss.
fn read_into(path: &Path, target: &mut [u8]) -> Result<Option<usize>, Error> {
    let mut read = || -> io::Result<usize> {
        let mut file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let length = metadata.len();
        let filled = fill(&mut file, target)?;
        Ok(usize::try_from(length).unwrap_or(usize::MAX).max(filled))
    };
    match read() {
        Ok(length) => Ok(Some(length)),
        Err(error) if is_miss(&error) => Ok(None),
        Err(error) => Err(Error::at("read an object", path)(error)),
    }
}

/// Reads until `target` is full or nothing is left. Returns how many bytes came. Some filesystems let signals interrupt a read.
fn fill(source: &mut impl io::Read, target: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < target.len() {
        match source.read(&mut target[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Whether an object is there.
fn exists(path: &Path) -> Result<bool, Error> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.is_file()),
        Err(error) if is_miss(&error) => Ok(false),
        Err(error) => Err(Error::at("look for an object", path)(error)),
    }
}

/// Pins an object. Returns whether it is there.
fn pin(path: &Path, pin: &str) -> Result<bool, Error> {
    // The attribute of a directory holds for all that is below it.
    if !exists(path)? {
        return Ok(false);
    }
    match crate::ffi::set_attribute(path, c"user.tidefs.pin", pin.as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) if is_miss(&error) => Ok(false),
        // A filesystem without attributes evicts nothing.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(true),
        Err(error) => Err(Error::at("pin an object", path)(error)),
    }
}

/// Makes an object: whole under its name, or not at all. `mode`: its permissions, if the umask does not say them. Nobody may do more
/// with it before that, either.
fn write(path: &Path, bytes: &[u8], mode: Option<u32>) -> Result<(), Error> {
    let written = create(path, mode.unwrap_or(0o666), random).and_then(|(temporary, mut file)| {
        // The umask took bits of what is said.
        let allowed = mode.map_or(Ok(()), |mode| file.set_permissions(Permissions::from_mode(mode)));
        // What is still open when it gets its name is not durable, and whoever waits for that waits for its close.
        let closed = allowed.and_then(|()| file.write_all(bytes)).and_then(|()| crate::ffi::close(file));
        let written = closed.and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            // What was written so far stands for nothing; that it cannot be removed is the smaller trouble.
            let _ = fs::remove_file(&temporary);
        }
        written
    });
    written.map_err(Error::at("write an object", path))
}

fn random() -> io::Result<u64> {
    getrandom::u64().map_err(|error| io::Error::other(error.to_string()))
}

/// Names that are tried before a directory is thought to have them all.
const NAMES_MAX: usize = 16;

/// Makes a file of a name that nobody else has, beside `path`, with the permissions that the umask leaves of `mode`. Neither the
/// number of a process nor a count of its own tells writers apart: they may be in two containers, or be two copies of this library in
/// one process. `*.tmp` is temporary for tidefs (`names.temporary`).
fn create(path: &Path, mode: u32, draw: impl Fn() -> io::Result<u64>) -> io::Result<(PathBuf, File)> {
    let mut tried = 0;
    loop {
        let temporary = path.with_file_name(format!(".tidefs-{:016x}.tmp", draw()?));
        tried += 1;
        match File::options().write(true).create_new(true).mode(mode).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(error) if tried == NAMES_MAX => return Err(error),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_parent(path)?,
            Err(error) => return Err(error),
        }
    }
}

/// Makes the directories above a file. Where an object is in their place that is said as open(2) says it.
fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => io::Error::from_raw_os_error(libc::ENOTDIR),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_paths_below_the_cache() {
        let files = Files::below(PathBuf::new());
        for good in [&b"a"[..], b"a/b", b"a/.b", b"\xff/..c"] {
            assert!(check(good).is_ok(), "{good:?}");
        }
        for bad in [&b""[..], b"/a", b"a/", b"a//b", b"../a", b"a/./b", b"a\0"] {
            assert!(matches!(check(bad), Err(Error::BadKey { .. })), "{bad:?}");
            assert!(matches!(files.check_new(bad), Err(Error::BadKey { .. })), "{bad:?}");
        }
        for (length, count, is_made) in [(255, 1, true), (256, 1, false), (255, 16, true), (255, 17, false)] {
            let key = vec!["n".repeat(length); count].join("/");
            assert!(check(key.as_bytes()).is_ok());
            let made = files.check_new(key.as_bytes()).map_err(|error| error.errno());
            assert_eq!(made, if is_made { Ok(()) } else { Err(libc::ENAMETOOLONG) }, "{count} of {length}");
        }
    }

    #[test]
    fn a_key_by_which_no_file_is_found_below_the_cache_is_not_made() {
        let directory = PathBuf::from("/mnt/kv");
        let most = PATH_BYTES_MAX - 1 - "/mnt/kv/".len();
        let files = Files::below(directory);
        for (length, is_made) in [(most, true), (most + 1, false)] {
            let above = vec!["n".repeat(NAME_BYTES_MAX); 15].join("/");
            let key = format!("{above}/{}", "n".repeat(length - above.len() - 1));
            assert_eq!(files.check_new(key.as_bytes()).is_ok(), is_made, "{} bytes", key.len());
        }
    }

    #[test]
    fn a_key_may_be_as_long_as_its_path() {
        for directory in ["", "/", "/mnt/kv", "/mnt/kv/", "kv"] {
            let files = Files::below(PathBuf::from(directory));
            let above = vec!["n".repeat(NAME_BYTES_MAX); 15].join("/");
            for last in 200..NAME_BYTES_MAX {
                let key = format!("{above}/{}", "n".repeat(last));
                let fits = files.path_of(key.as_bytes()).as_os_str().len() < PATH_BYTES_MAX;
                assert_eq!(files.check_new(key.as_bytes()).is_ok(), fits, "{last} bytes below {directory:?}");
            }
        }
    }

    #[test]
    fn an_object_written_by_file_is_whole_and_leaves_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/key");
        assert_eq!(read(&path).unwrap(), None);
        write(&path, b"12345", None).unwrap();
        assert_eq!(read(&path).unwrap().unwrap(), b"12345");
        let mut three = [0; 3];
        assert_eq!(read_into(&path, &mut three).unwrap(), Some(5));
        assert_eq!(&three, b"123");
        assert!(exists(&path).unwrap() && !exists(path.parent().unwrap()).unwrap());
        assert!(!pin(path.parent().unwrap(), "hard").unwrap(), "a directory is no object");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_signal_does_not_end_a_read() {
        /// What each read says, the last one first.
        struct Reads(Vec<io::Result<&'static [u8]>>);
        impl io::Read for Reads {
            fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
                let Some(outcome) = self.0.pop() else { return Ok(0) };
                let bytes = outcome?;
                target[..bytes.len()].copy_from_slice(bytes);
                Ok(bytes.len())
            }
        }
        let some = |bytes: &'static [u8]| -> io::Result<&'static [u8]> { Ok(bytes) };
        let none = |number| -> io::Result<&'static [u8]> { Err(io::Error::from_raw_os_error(number)) };
        let mut target = [0; 8];
        let mut reads = Reads(vec![none(libc::EINTR), some(b"345"), none(libc::EINTR), some(b"12")]);
        assert_eq!(fill(&mut reads, &mut target).unwrap(), 5);
        assert_eq!(&target[..5], b"12345");
        let mut reads = Reads(vec![none(libc::EIO), some(b"12")]);
        assert_eq!(fill(&mut reads, &mut target).unwrap_err().raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn what_was_in_a_mount_is_not_looked_for_where_none_is() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::below(directory.path().join("kv"));
        let path = files.path_of(b"dir/key");
        files.write(&path, b"plain").unwrap();
        assert!(files.find_mount().is_none() && files.has(b"dir/key").unwrap());
        let device = directory.path().metadata().unwrap().dev();
        files.device.store(device, Ordering::Relaxed);
        assert!(files.has(b"dir/key").unwrap(), "it is where it was");
        files.device.store(device + 1, Ordering::Relaxed);
        assert!(!files.has(b"dir/key").unwrap() && files.read(b"dir/key").unwrap().is_none());
        assert!(
            files.read_into(b"dir/key", &mut []).unwrap().is_none()
                && !files.pin(b"dir/key", "hard").unwrap()
        );
        for directory in ["dir", "other"] {
            let path = files.path_of(format!("{directory}/new").as_bytes());
            assert_eq!(files.write(&path, b"new").unwrap_err().errno(), libc::ENOTCONN);
            assert_eq!(files.make_parent(&path).unwrap_err().errno(), libc::ENOTCONN);
        }
        assert_eq!(fs::read_dir(files.directory()).unwrap().count(), 1);
        fs::remove_dir_all(files.directory()).unwrap();
        assert_eq!(files.write(&path, b"new").unwrap_err().errno(), libc::ENOTCONN, "nor is it made again");
    }

    #[test]
    fn what_is_on_its_way_may_be_used_for_no_more_than_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        for mode in [0, 0o600, 0o640] {
            let (temporary, file) = create(&path, mode, random).unwrap();
            let begun = file.metadata().unwrap().permissions().mode() & 0o7777;
            assert_eq!(begun & !mode, 0, "{begun:o} of {mode:o}");
            fs::remove_file(temporary).unwrap();
        }
    }

    #[test]
    fn two_writers_that_draw_one_name_do_not_take_each_others_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/key");
        let (first, _) = create(&path, 0o666, || Ok(7)).unwrap();
        let numbers = std::cell::Cell::new(6);
        let (second, _) = create(&path, 0o666, || Ok(numbers.replace(numbers.get() + 1).max(7))).unwrap();
        assert_ne!(first, second);
        assert_eq!(create(&path, 0o666, || Ok(7)).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(first.exists() && second.exists());
        // Nor does one that fails for another reason.
        fs::create_dir(&path).unwrap();
        write(&path, b"12345", None).unwrap_err();
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 3);
    }
}
