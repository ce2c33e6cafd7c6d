//! What a session knows of the directories in which it stored objects.
//!
//! Objects that are stored with one request become visible in their order only if none of them has to wait for its directory to be
//! made. So a request names one directory of which nothing is known, or directories in which objects were stored before. One of those
//! may have been removed since: then its objects are stored after the others of that one request.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

/// Directories that are remembered.
const KNOWN_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("4096 is not zero");

/// How long it is believed that a directory has its objects written by file.
const BY_FILE_FOR: Duration = Duration::from_secs(1);

/// How objects are stored in a directory.
#[derive(Clone, Copy, Debug)]
enum Stores {
    ByRequest,
    ByFile { since: Instant },
}

/// The directories, as far as they are remembered.
#[derive(Debug)]
pub(crate) struct Directories(Mutex<LruCache<Box<[u8]>, Stores>>);

impl Default for Directories {
    fn default() -> Self {
        // Without room for all of them from the start.
        let mut known = LruCache::unbounded();
        known.resize(KNOWN_MAX);
        Self(Mutex::new(known))
    }
}

impl Directories {
    /// Whether objects of these keys may be stored with one request.
    pub(crate) fn may_share_request<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> bool {
        let mut known = self.0.lock();
        let (mut last, mut count, mut are_known) = (None, 0, true);
        for directory in keys.map(directory_of) {
            if last == Some(directory) {
                continue;
            }
            last = Some(directory);
            count += 1;
            match known.get(directory) {
                Some(Stores::ByRequest) => {}
                Some(Stores::ByFile { since }) if since.elapsed() < BY_FILE_FOR => return false,
                Some(Stores::ByFile { .. }) | None => are_known = false,
            }
        }
        are_known || count == 1
    }

    /// Objects of these keys were stored by request.
    pub(crate) fn note_stored<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        let (mut known, mut last) = (self.0.lock(), None);
        for directory in keys.map(directory_of) {
            if last != Some(directory) {
                note(&mut known, directory, Stores::ByRequest);
                last = Some(directory);
            }
        }
    }

    /// The daemon sends an object of this key to its file.
    pub(crate) fn note_by_file(&self, key: &[u8]) {
        note(&mut self.0.lock(), directory_of(key), Stores::ByFile { since: Instant::now() });
    }
}

fn note(known: &mut LruCache<Box<[u8]>, Stores>, directory: &[u8], stores: Stores) {
    match known.get_mut(directory) {
        Some(known) => *known = stores,
        None => _ = known.put(directory.into(), stores),
    }
}

/// The directory of a key; empty at the top of the cache.
fn directory_of(key: &[u8]) -> &[u8] {
    key.iter().rposition(|&byte| byte == b'/').map_or(&[], |end| &key[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_unknown_directory_has_a_request_of_its_own() {
        let directories = Directories::default();
        let may = |keys: &[&str]| directories.may_share_request(keys.iter().map(|key| key.as_bytes()));
        assert!(may(&["a/1", "a/2"]) && may(&["1", "2"]), "one directory");
        assert!(!may(&["a/1", "b/1"]) && !may(&["1", "a/1"]));
        let note = |key: &'static str| directories.note_stored([key.as_bytes()].into_iter());
        note("a/7");
        assert!(!may(&["a/1", "b/1"]), "one of them is known");
        note("b/7");
        assert!(may(&["a/1", "b/1", "a/2"]));
        assert!(!may(&["a/1", "b/c/1"]));
    }

    #[test]
    fn a_directory_whose_objects_are_files_is_left_alone_for_a_while() {
        let directories = Directories::default();
        let may = |keys: &[&str]| directories.may_share_request(keys.iter().map(|key| key.as_bytes()));
        directories.note_by_file(b"a/1");
        assert!(!may(&["a/2"]));
        let since = Instant::now().checked_sub(BY_FILE_FOR).unwrap();
        note(&mut directories.0.lock(), b"a", Stores::ByFile { since });
        assert!(may(&["a/2"]), "it may have changed");
        directories.note_by_file(b"a/1");
        directories.note_stored([&b"a/1"[..]].into_iter());
        assert!(may(&["a/2"]));
    }
}
