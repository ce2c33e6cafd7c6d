//! Permissions of new objects: what the umask leaves, or what the program says.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Cache;

/// The bits of a mode that are permissions.
const PERMISSIONS: u32 = 0o777;

/// Stands for a program that says nothing.
const NOT_SAID: u32 = u32::MAX;

/// What new objects of a cache may be used for.
#[derive(Debug)]
pub(crate) struct Mode {
    umask: Umask,
    said: AtomicU32,
}

impl Mode {
    pub(crate) fn by_umask() -> Self {
        Self { umask: Umask::open(), said: AtomicU32::new(NOT_SAID) }
    }

    /// What the program says, if it says something.
    pub(crate) fn said(&self) -> Option<u32> {
        Some(self.said.load(Ordering::Relaxed)).filter(|&said| said != NOT_SAID)
    }

    /// Permissions that a new object gets: what is said, or what open(2) would give it.
    pub(crate) fn of_new(&self) -> u32 {
        self.said().unwrap_or_else(|| 0o666 & !self.umask.now())
    }
}

impl Cache {
    /// Has objects that are begun or stored from now on, by this value and its clones, get these permissions, whatever the umask
    /// is; of the bits of `mode` those of 0o777 count. With `None`, as before the first call, they get what the umask of their
    /// moment leaves, as by open(2): to ask for that takes some microseconds for each call that begins or stores by the fast path.
    /// What is begun without it gets what holds when it is sealed. Directories are made as the umask says.
    pub fn set_mode(&self, mode: Option<u32>) {
        let said = mode.map_or(NOT_SAID, |mode| mode & PERMISSIONS);
        self.files.mode.said.store(said, Ordering::Relaxed);
    }
}

/// What new files of this process may not be allowed, which umask(2) may change at any time.
#[derive(Debug)]
struct Umask(Option<File>);

impl Umask {
    fn open() -> Self {
        // Without setting it there is no way to ask for the umask but this.
        Self(File::open("/proc/self/status").ok())
    }

    fn now(&self) -> u32 {
        // proc(5): it is in the second line, behind a name of up to 64 characters.
        let mut text = [0; 256];
        let length = self.0.as_ref().and_then(|status| status.read_at(&mut text, 0).ok()).unwrap_or(0);
        let mut lines = text[..length].split(|&byte| byte == b'\n');
        let umask = lines.find_map(|line| line.strip_prefix(b"Umask:"));
        let umask = umask.and_then(|digits| std::str::from_utf8(digits).ok());
        umask.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok()).unwrap_or(0o022)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_the_program_says_goes_before_the_umask_until_it_says_nothing_any_more() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path()).unwrap();
        let stored = |key: &str| {
            cache.put(key, b"bytes").unwrap();
            directory.path().join(key).metadata().unwrap().permissions().mode() & 0o7777
        };
        let usual = stored("by-umask");
        assert_eq!(usual, cache.files.mode_of_new());
        // No umask leaves these.
        cache.clone().set_mode(Some(0o4753));
        assert_eq!((stored("said"), cache.files.mode_of_new()), (0o753, 0o753));
        cache.set_mode(Some(0));
        assert_eq!((stored("nothing"), cache.files.mode_of_new()), (0, 0));
        cache.set_mode(None);
        assert_eq!((stored("by-umask-again"), cache.files.mode_of_new()), (usual, usual));
    }
}
