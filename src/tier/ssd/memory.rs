//! Memory that a disk reads from and writes into: whole pages, kept alive by whoever may still touch them.
//!
//! A piece is a range either of a mapped segment, so that bytes go between disk and segment without a copy, or of a
//! buffer of the tier's own, for headers and indices.
//!
//! Invariants
//! - A [`Piece`] lies inside its memory, starts on a page and covers whole pages, as O_DIRECT wants it.
//! - Whoever holds a piece keeps its memory mapped; a disk holds it until the kernel is done with it.

use std::alloc::{Layout, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::MmapMut;
use tidefs_engine::memory::Mapping;

use super::format::BLOCK;

/// Bytes that small buffers are cut from.
const CHUNK: usize = 1 << 20;
/// Largest buffer that is not mapped by itself.
const SMALL_MAX: usize = CHUNK / 16;

/// Anonymous memory of the kernel, given back when no buffer is left in it. Small buffers that wait for a disk would leave
/// the heap full of holes: an allocator keeps what is between things that stay.
#[derive(Debug)]
struct Chunk {
    start: NonNull<u8>,
    _mapping: MmapMut,
}

// SAFETY: `start` points into the mapping, which may be sent and shared; who may touch which bytes is said by buffers.
unsafe impl Send for Chunk {}
// SAFETY: as for Send.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(size: usize) -> Arc<Self> {
        let mut mapping = MmapMut::map_anon(size).unwrap_or_else(|_| no_memory(size));
        let start = NonNull::new(mapping.as_mut_ptr()).unwrap_or_else(|| no_memory(size));
        Arc::new(Self { start, _mapping: mapping })
    }
}

/// Without memory there is nothing to go on with, as for any other allocation.
fn no_memory(size: usize) -> ! {
    handle_alloc_error(Layout::array::<u8>(size).unwrap_or(Layout::new::<u8>()))
}

/// The chunk that a thread cuts small buffers from, and how much of it is given out.
struct Open {
    chunk: Arc<Chunk>,
    used: usize,
}

impl Open {
    fn new() -> Self {
        Self { chunk: Chunk::new(CHUNK), used: 0 }
    }
}

thread_local! {
    static OPEN: RefCell<Option<Open>> = const { RefCell::new(None) };
}

/// A page-aligned buffer, zeroed when it is made.
#[derive(Debug)]
pub(super) struct Buffer {
    start: NonNull<u8>,
    size: usize,
    #[cfg_attr(not(test), expect(dead_code, reason = "keeps the bytes mapped"))]
    chunk: Arc<Chunk>,
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
        if size > SMALL_MAX {
            let chunk = Chunk::new(size);
            return Self { start: chunk.start, size, chunk };
        }
        OPEN.with_borrow_mut(|open| {
            if open.as_ref().is_some_and(|open| open.used + size > CHUNK) {
                *open = None;
            }
            let open = open.get_or_insert_with(Open::new);
            // SAFETY: `used + size` is at most the chunk's size. Each part is given out once, so that it is zero still.
            let start = unsafe { open.chunk.start.add(open.used) };
            open.used += size;
            Self { start, size, chunk: Arc::clone(&open.chunk) }
        })
    }

    /// A buffer that begins with `bytes`; the rest is zero.
    pub(super) fn holding(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    /// All bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `size` zeroed bytes of the chunk are this buffer's alone for as long as `self` lives; a disk that fills
        // the buffer does so before its ticket is done, and nobody reads the bytes earlier.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.size) }
    }

    /// All bytes, to be changed.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes the borrow exclusive, and a buffer that a disk may touch is behind an
        // `Arc`, of which no exclusive borrow can be had.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.size) }
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
            Self::Buffer(buffer) => buffer.size,
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
        Self { memory: Memory::Buffer(Arc::clone(buffer)), offset: 0, length: buffer.size }
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
    #[cfg(any(test, feature = "fuzz"))]
    pub(super) fn copy_out(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        // SAFETY: the piece lies inside memory that `self` keeps mapped; nobody writes it while it is being written out.
        unsafe { std::ptr::copy_nonoverlapping(self.start(), bytes.as_mut_ptr(), self.length) };
        bytes
    }

    /// Fills the piece, for disks that live in memory. `bytes` is as long as the piece.
    #[cfg(any(test, feature = "fuzz"))]
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
    fn buffers_do_not_overlap_and_a_chunk_leaves_with_the_last_of_them() {
        let mut buffers: Vec<Buffer> = (1..=300).map(|blocks| Buffer::zeroed(blocks % 20 * BLOCK)).collect();
        for (number, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.bytes().iter().all(|&byte| byte == 0), "{number}");
            buffer.bytes_mut().fill(u8::try_from(number % 255).unwrap() + 1);
        }
        for (number, buffer) in buffers.iter().enumerate() {
            let byte = u8::try_from(number % 255).unwrap() + 1;
            assert!(buffer.bytes().iter().all(|&found| found == byte), "{number}");
        }
        let chunk = Arc::downgrade(&buffers[0].chunk);
        buffers.drain(1..);
        assert!(chunk.upgrade().is_some(), "one buffer is left in it");
        drop(buffers);
        assert!(chunk.upgrade().is_none());
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
