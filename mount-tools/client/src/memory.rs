//! Shared memory of the cache, mapped.
//!
//! The bytes of a segment change when it goes to another object. What makes a borrow of them sound is the reference that
//! its holder has: the daemon changes and cuts no segment whose object is referenced, and hands a begun object to one
//! writer alone.

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

/// What a device keeps of a registered segment. It is dropped right before the segment is unmapped.
pub type Registration = Box<dyn Any + Send + Sync>;

/// Registers memory with a device: its start, its length in bytes, and whether this process may write it.
pub(crate) type Register = dyn Fn(NonNull<u8>, usize, bool) -> Option<Registration> + Send + Sync;

/// A shared mapping of a segment.
pub(crate) struct Mapping {
    /// Before the mapping, since fields are dropped in this order.
    registration: OnceLock<Registration>,
    map: MmapRaw,
    is_writable: bool,
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("map", &self.map)
            .field("is_writable", &self.is_writable)
            .field("is_registered", &self.is_registered())
            .finish()
    }
}

const PAGE: usize = 4096;

impl Mapping {
    /// Maps a segment of `length` bytes, and its last page in full: the next object in it may be a little longer.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub(crate) fn new(file: &File, length: usize, is_writable: bool) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        options.len(length.next_multiple_of(PAGE)).populate();
        let map = if is_writable { options.map_raw(file)? } else { options.map_raw_read_only(file)? };
        Ok(Self { registration: OnceLock::new(), map, is_writable })
    }

    /// Registers the whole mapping, if it is not registered yet.
    pub(crate) fn register(&self, register: &Register) {
        if !self.is_registered()
            && let Some(start) = NonNull::new(self.map.as_mut_ptr())
            && let Some(registration) = register(start, self.map.len(), self.is_writable)
        {
            // Nobody else registers it: whoever does holds the lock of the function.
            let _ = self.registration.set(registration);
        }
    }

    pub(crate) fn is_registered(&self) -> bool {
        self.registration.get().is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// A number of the daemon's, which it may change at any moment; 0 outside the mapping.
    pub(crate) fn number(&self, offset: usize) -> u64 {
        let Some(start) = self.at(offset, size_of::<AtomicU64>()).map(NonNull::cast::<AtomicU64>) else {
            return 0;
        };
        if !start.is_aligned() {
            return 0;
        }
        // SAFETY: aligned, and in the mapping that `self` owns; the daemon changes it by atomic operations alone, and a load is
        // allowed of memory that cannot be written.
        u64::from_le(unsafe { start.as_ref() }.load(Ordering::Acquire))
    }

    fn at(&self, offset: usize, length: usize) -> Option<NonNull<u8>> {
        let end = offset.checked_add(length)?;
        // A pointer into the mapping that `self` owns.
        (end <= self.map.len()).then(|| NonNull::new(self.map.as_mut_ptr().wrapping_add(offset))).flatten()
    }

    /// The bytes of an object, to which the caller holds a reference while the borrow lives: views alone call this. Empty
    /// when the range leaves the mapping, which views have looked at before.
    pub(crate) fn referenced(&self, offset: usize, length: usize) -> &[u8] {
        let Some(start) = self.at(offset, length) else { return &[] };
        // SAFETY: the range lies in the mapping, which `self` owns. The view that borrows holds a reference in the daemon, which
        // cuts and reuses no segment of a referenced object; whoever may write the segment has promised the daemon not to
        // write a sealed object.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), length) }
    }

    /// The bytes of a begun object, whose one writer the caller is while the borrow lives: writers alone call this, through
    /// an exclusive borrow of themselves. Empty when the range leaves the mapping, which writers have looked at before.
    #[expect(
        clippy::mut_from_ref,
        reason = "what is borrowed is the segment, whose one writer the caller is"
    )]
    pub(crate) fn begun(&self, offset: usize, length: usize) -> &mut [u8] {
        let Some(start) = self.at(offset, length).filter(|_| self.is_writable) else { return &mut [] };
        // SAFETY: the range lies in the writable mapping that `self` owns. The daemon gives a begun object to one writer, in a
        // segment that holds nothing else, and the writer borrows it through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), length) }
    }

    /// Copies out bytes that somebody else may write meanwhile. False when the range leaves the mapping.
    pub(crate) fn copy_out(&self, offset: usize, target: &mut [u8]) -> bool {
        let Some(start) = self.at(offset, target.len()) else { return false };
        // SAFETY: the source lies in the mapping and cannot overlap `target`, which is exclusive.
        unsafe { std::ptr::copy_nonoverlapping(start.as_ptr(), target.as_mut_ptr(), target.len()) };
        true
    }

    /// Copies bytes in, which somebody else may read meanwhile. False when the range leaves the mapping.
    pub(crate) fn copy_in(&self, offset: usize, source: &[u8]) -> bool {
        let Some(start) = self.at(offset, source.len()).filter(|_| self.is_writable) else { return false };
        // SAFETY: the target lies in the writable mapping and cannot overlap `source`, which nobody writes while it is
        // borrowed.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), start.as_ptr(), source.len()) };
        true
    }
}
