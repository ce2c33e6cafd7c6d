//! Memory that a disk reads from and writes into: whole pages, kept alive by whoever may still touch them.
//!
//! A piece is a range either of a mapped segment, so that bytes go between disk and segment without a copy, or of a
//! buffer of the tier's own, for headers and indices.
//!
//! Invariants
//! - A [`Piece`] lies inside its memory, starts on a page and covers whole pages, as O_DIRECT wants it.
//! - Whoever holds a piece keeps its memory mapped; a disk holds it until the kernel is done with it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use tidefs_engine::memory::Mapping;

use super::format::BLOCK;

/// A page-aligned buffer, zeroed when it is made.
#[derive(Debug)]
pub(super) struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the buffer owns its bytes; they are touched through `&mut self`, or by a disk between a submit and its
// completion, when nobody else holds a reference to the bytes (see `Piece`).
unsafe impl Send for Buffer {}
// SAFETY: as for Send: `&self` hands out shared borrows only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of at least `length` bytes, rounded up to whole blocks, at least one.
    pub(super) fn zeroed(length: usize) -> Self {
        let size = length.max(1).next_multiple_of(BLOCK);
        let layout = Layout::from_size_align(size, BLOCK)
            .unwrap_or_else(|_| handle_alloc_error(Layout::new::<[u8; BLOCK]>()));
        // SAFETY: the layout has a size above zero, as `max(1)` says.
        let start = unsafe { alloc_zeroed(layout) };
        Self { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }

    /// A buffer that begins with `bytes`; the rest is zero.
    pub(super) fn holding(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    /// All bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation of `layout.size()` zeroed bytes lives as long as `self`; a disk that fills the buffer
        // does so before its ticket is done, and nobody reads the bytes earlier.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }

    /// All bytes, to be changed.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes the borrow exclusive, and a buffer that a disk may touch is behind an
        // `Arc`, of which no exclusive borrow can be had.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `start` was allocated with exactly this layout, and is freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Where the bytes of a piece are.
#[derive(Clone, Debug)]
pub(super) enum Memory {
    /// The tier's own.
    Buffer(Arc<Buffer>),
    /// A segment.
    Segment(Arc<Mapping>),
}

impl Memory {
    fn base(&self) -> *mut u8 {
        match self {
            Self::Buffer(buffer) => buffer.start.as_ptr(),
            Self::Segment(mapping) => mapping.base(),
        }
    }

    /// Bytes that may be touched: of a segment up to the end of its last page.
    fn length(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.layout.size(),
            Self::Segment(mapping) => {
                usize::try_from(mapping.length().round_up_to_pages().get()).unwrap_or(0)
            }
        }
    }

    /// Makes the pages of a range, so that the disk's thread does not have to.
    pub(super) fn populate(&self, offset: usize, length: usize) {
        if let Self::Segment(mapping) = self {
            mapping.populate(offset, length);
        }
    }

    /// The first `length` bytes, as far as there are so many.
    pub(super) fn prefix(&self, length: usize) -> Option<&[u8]> {
        match self {
            Self::Buffer(buffer) => buffer.bytes().get(..length),
            Self::Segment(mapping) => mapping.slice(0, length),
        }
    }
}

/// A range of whole pages.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    memory: Memory,
    offset: usize,
    length: usize,
}

impl Piece {
    /// `length` bytes from `offset` of `memory`; `None` when they leave it or are not whole blocks.
    pub(super) fn new(memory: &Memory, offset: usize, length: usize) -> Option<Self> {
        let end = offset.checked_add(length)?;
        let is_aligned = offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK);
        (is_aligned && end <= memory.length()).then(|| Self { memory: memory.clone(), offset, length })
    }

    /// All of a buffer.
    pub(super) fn of_buffer(buffer: &Arc<Buffer>) -> Self {
        Self { memory: Memory::Buffer(Arc::clone(buffer)), offset: 0, length: buffer.layout.size() }
    }

    /// First byte, valid for [`Self::length`] bytes while `self` lives.
    pub(super) fn start(&self) -> *mut u8 {
        self.memory.base().wrapping_add(self.offset)
    }

    /// Length in bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// A copy of the bytes, for disks that live in memory.
    #[cfg(test)]
    pub(super) fn copy_out(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        // SAFETY: the piece lies inside memory that `self` keeps mapped; nobody writes it while it is being written out.
        unsafe { std::ptr::copy_nonoverlapping(self.start(), bytes.as_mut_ptr(), self.length) };
        bytes
    }

    /// Fills the piece, for disks that live in memory. `bytes` is as long as the piece.
    #[cfg(test)]
    pub(super) fn copy_in(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.length);
        // SAFETY: as in `copy_out`; nobody looks at the bytes before the read's ticket is done.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_zero_behind_what_it_holds() {
        let buffer = Buffer::holding(b"abc");
        assert!((buffer.start.as_ptr() as usize).is_multiple_of(BLOCK));
        assert_eq!(buffer.bytes().len(), BLOCK);
        assert_eq!(&buffer.bytes()[..4], b"abc\0");
    }

    #[test]
    fn a_piece_stays_inside_its_memory_and_covers_whole_blocks() {
        let memory = Memory::Buffer(Arc::new(Buffer::zeroed(3 * BLOCK)));
        assert!(Piece::new(&memory, BLOCK, 2 * BLOCK).is_some());
        for (offset, length) in [(BLOCK, 3 * BLOCK), (1, BLOCK), (0, 5), (usize::MAX - BLOCK + 1, BLOCK)] {
            assert!(Piece::new(&memory, offset, length).is_none(), "{offset} {length}");
        }
    }
}
