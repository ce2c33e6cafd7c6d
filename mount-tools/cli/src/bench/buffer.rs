//! Hot path: the memory that reads land in and writes come from.
//!
//! An inference engine reads blocks into ever new places. A buffer that is used again at once would stay in the
//! cache of the CPU and flatter the copy, so each use takes the next part of a buffer that no cache holds.

use std::io;

use memmap2::{Advice, MmapMut};
use tidefs_engine::types::ByteCount;

use super::error::Error;

/// Size of a buffer: several times the last-level cache that one core reaches.
const ROTATING: ByteCount = ByteCount::mib(128);

/// A page-aligned buffer of base pages that hands out one part after another, and starts again at its end.
#[derive(Debug)]
pub(crate) struct Rotating {
    memory: MmapMut,
    next: usize,
}

impl Rotating {
    /// A buffer whose parts are at most `part` bytes, filled with bytes that differ from page to page.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub(crate) fn new(part: ByteCount) -> Result<Self, Error> {
        let length = usize::try_from(ROTATING.max(part).get())
            .map_err(|_| Error::Argument(format!("objects of {part} do not fit this machine's addresses")))?;
        let fail = || Error::system::<io::Error>(format!("take a buffer of {}", ByteCount(length as u64)));
        let mut memory = MmapMut::map_anon(length).map_err(fail())?;
        // Base pages: most programs that copy KV blocks have them, and huge ones would hide the cost of a fault.
        memory.advise(Advice::NoHugePage).map_err(fail())?;
        let mut state = 1_u64;
        for word in memory.chunks_exact_mut(8) {
            // Steele et al., "Fast splittable pseudorandom number generators": its increment spreads the bits.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            word.copy_from_slice(&(state ^ (state >> 29)).to_le_bytes());
        }
        Ok(Self { memory, next: 0 })
    }

    /// The next `length` bytes.
    ///
    /// # Panics
    /// When `length` is larger than the part given to [`Rotating::new`].
    pub(crate) fn next(&mut self, length: usize) -> &mut [u8] {
        if self.next + length > self.memory.len() {
            self.next = 0;
        }
        let start = self.next;
        self.next = start + length;
        &mut self.memory[start..start + length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_start_again_at_the_end() {
        let mut buffer = Rotating::new(ByteCount::mib(64)).unwrap();
        let first = buffer.next(64 << 20).as_ptr();
        let second = buffer.next(64 << 20).as_ptr();
        let third = buffer.next(64 << 20).as_ptr();
        assert_eq!(second as usize - first as usize, 64 << 20);
        assert_eq!(third, first);
    }
}
