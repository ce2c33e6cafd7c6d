//! The segments that this process has mapped, each once.

use std::collections::HashMap;
use std::ffi::CString;
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lru::LruCache;
use parking_lot::{Mutex, RwLock};

use crate::ffi;
use crate::memory::{Mapping, Register};

/// Segments that stay mapped although nobody views them. Linux lets a process have 65,530 mappings by default.
const MAPPED_MAX: usize = 16_384;

/// Those of them that are unmapped together when there are so many: whoever maps the next one waits for that.
const UNMAPPED_AT_ONCE: usize = 256;

/// Segments of which is known that they were met before, without being mapped: as many as may be mapped then.
const MET_MAX: NonZeroUsize = NonZeroUsize::new(MAPPED_MAX).expect("some may be mapped");

/// Spreads numbers that follow one another: the odd constant is 2^64 divided by the golden ratio.
#[derive(Debug, Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// What registers segments. Held while it is called, until what it registered is in `mapped`, so that no segment is missed.
pub(crate) type Hook = Mutex<Option<Box<Register>>>;

/// Mapped segments by number.
pub(crate) struct Segments {
    /// Of the mount that was there when it was opened: under its path there may be another one, whose segments are others. `None`
    /// once nothing is to be mapped any more. Held to open a segment.
    directory: RwLock<Option<File>>,
    /// Shared with the sessions before and after.
    hook: Arc<Hook>,
    /// Never held while a registration is made or ended: that may wait for others, or let go of views.
    mapped: RwLock<Mapped>,
    /// How many were unmapped to make place for others, about.
    unmapped: AtomicUsize,
    /// Those that were met last and not mapped.
    met: Mutex<LruCache<u64, ()>>,
}

type Mapped = HashMap<u64, Arc<Mapping>, BuildHasherDefault<NumberHasher>>;

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segments")
            .field("directory", &self.directory)
            .field("mapped", &self.mapped)
            .finish_non_exhaustive()
    }
}

impl Segments {
    /// The segments of a mount, which are files in `directory`.
    ///
    /// # Errors
    /// What open(2) says.
    pub(crate) fn open(directory: &Path, hook: &Arc<Hook>) -> io::Result<Self> {
        // To look names up in it, it need not be opened to be read.
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let directory = File::options().read(true).custom_flags(flags).open(directory)?;
        let directory = RwLock::new(Some(directory));
        // Without room for all of them from the start.
        let mut met = LruCache::unbounded();
        met.resize(MET_MAX);
        let met = Mutex::new(met);
        Ok(Self {
            directory,
            hook: Arc::clone(hook),
            mapped: RwLock::default(),
            unmapped: AtomicUsize::new(0),
            met,
        })
    }

    /// Number of the device that the mount is.
    ///
    /// # Errors
    /// What fstat(2) says.
    pub(crate) fn device(&self) -> io::Result<u64> {
        self.directory.read().as_ref().ok_or_else(closed)?.metadata().map(|metadata| metadata.dev())
    }

    /// Registers all that are mapped, for who holds the lock of the hook, and is to drop what this returns without it.
    pub(crate) fn register_all(&self, register: &Register) -> Vec<Arc<Mapping>> {
        let mapped: Vec<Arc<Mapping>> = self.mapped.read().values().cloned().collect();
        mapped.iter().for_each(|mapping| mapping.register(register));
        mapped
    }

    /// Whether what is mapped is registered.
    pub(crate) fn are_registered(&self) -> bool {
        // Whoever holds the lock registers a segment, or is about to say how that is done.
        self.hook.try_lock().is_none_or(|hook| hook.is_some())
    }

    /// Whether a segment, which is not mapped, is met for the first time, as far as that is known.
    pub(crate) fn is_new(&self, segment: u64) -> bool {
        self.met.lock().put(segment, ()).is_none()
    }

    /// The mapping of a segment, of at least `length` bytes, writable if that is asked for.
    ///
    /// # Errors
    /// What open(2) and mmap(2) say.
    pub(crate) fn get(&self, segment: u64, length: usize, is_writable: bool) -> io::Result<Arc<Mapping>> {
        let known = || {
            let mapped = self.mapped.read();
            let fits =
                |mapping: &&Arc<Mapping>| mapping.len() >= length && (mapping.is_writable() || !is_writable);
            mapped.get(&segment).filter(fits).cloned()
        };
        if let Some(mapping) = known() {
            return Ok(mapping);
        }
        let file = self.open_segment(segment, is_writable)?;
        let mapping = Arc::new(Mapping::new(&file, length, is_writable)?);
        let register = self.hook.lock();
        // Another thread may have been faster.
        if let Some(mapping) = known() {
            return Ok(mapping);
        }
        if let Some(register) = &*register {
            mapping.register(register);
        }
        let ended = self.insert(segment, &mapping);
        drop(register);
        drop(ended);
        Ok(mapping)
    }

    /// Keeps a mapping. Returns those that it takes the place of.
    fn insert(&self, segment: u64, mapping: &Arc<Mapping>) -> Vec<Arc<Mapping>> {
        let mut mapped = self.mapped.write();
        let mut ended = Vec::new();
        if mapped.len() >= MAPPED_MAX {
            // From another place each time, or some would stay for ever.
            let start = self.unmapped.fetch_add(UNMAPPED_AT_ONCE, Ordering::Relaxed) % mapped.len();
            let around = mapped.iter().skip(start).chain(mapped.iter().take(start));
            let idle = around.filter(|(_, mapping)| Arc::strong_count(mapping) == 1);
            let idle: Vec<u64> = idle.map(|(&segment, _)| segment).take(UNMAPPED_AT_ONCE).collect();
            ended.extend(idle.iter().filter_map(|segment| mapped.remove(segment)));
        }
        ended.extend(mapped.insert(segment, Arc::clone(mapping)));
        ended
    }

    /// The mappings of these segments and lengths, as far as they are mapped already.
    pub(crate) fn mapped(&self, wanted: impl Iterator<Item = (u64, usize)>) -> Vec<Option<Arc<Mapping>>> {
        let mapped = self.mapped.read();
        let one = |(segment, length): (u64, usize)| {
            mapped.get(&segment).filter(|mapping| mapping.len() >= length).cloned()
        };
        wanted.map(one).collect()
    }

    /// Maps what holds no objects: the names clock, and an area. It is no memory for devices, so it is not registered.
    ///
    /// # Errors
    /// What open(2) and mmap(2) say.
    pub(crate) fn map_apart(&self, segment: u64, length: usize, is_writable: bool) -> io::Result<Mapping> {
        Mapping::new(&self.open_segment(segment, is_writable)?, length, is_writable)
    }

    fn open_segment(&self, segment: u64, is_writable: bool) -> io::Result<File> {
        let directory = self.directory.read();
        let directory = directory.as_ref().ok_or_else(closed)?;
        ffi::open_below(directory, &CString::new(segment.to_string())?, is_writable)
    }

    /// Unmaps segments that are no more, once nobody views them.
    pub(crate) fn forget(&self, segments: impl Iterator<Item = u64>) {
        let ended: Vec<Arc<Mapping>> = {
            let mut mapped = self.mapped.write();
            segments.filter_map(|segment| mapped.remove(&segment)).collect()
        };
        drop(ended);
    }

    /// Unmaps all, once nobody views them.
    pub(crate) fn forget_all(&self) {
        let ended = std::mem::take(&mut *self.mapped.write());
        drop(ended);
    }

    /// Unmaps all, once nobody views them, and maps none any more.
    pub(crate) fn close(&self) {
        let directory = self.directory.write().take();
        self.forget_all();
        drop(directory);
    }

    /// How many are registered that nobody uses. `None` when another thread holds the lock.
    pub(crate) fn idle_registrations(&self) -> Option<usize> {
        let mapped = self.mapped.try_read()?;
        let is_idle = |mapping: &&Arc<Mapping>| mapping.is_registered() && Arc::strong_count(mapping) == 1;
        Some(mapped.values().filter(is_idle).count())
    }

    /// How many are mapped.
    pub(crate) fn len(&self) -> usize {
        self.mapped.read().len()
    }
}

fn closed() -> io::Error {
    io::Error::from_raw_os_error(libc::EBADF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_that_are_mapped_some_are_unmapped_and_none_that_is_viewed() {
        let directory = tempfile::tempdir().unwrap();
        let segments = Segments::open(directory.path(), &Arc::default()).unwrap();
        let map = |segment: u64| {
            std::fs::write(directory.path().join(segment.to_string()), [7; 8]).unwrap();
            segments.get(segment, 8, false).unwrap()
        };
        let viewed: Vec<Arc<Mapping>> = (0..100).map(map).collect();
        let most = MAPPED_MAX as u64;
        (100..most).for_each(|segment| drop(map(segment)));
        assert_eq!(segments.len(), MAPPED_MAX);
        drop(map(most));
        assert_eq!(segments.len(), MAPPED_MAX + 1 - UNMAPPED_AT_ONCE);
        assert!(segments.mapped((0..100).map(|segment| (segment, 8))).iter().all(Option::is_some));
        assert!(viewed.iter().all(|mapping| mapping.referenced(0, 8) == [7; 8]));
    }
}
