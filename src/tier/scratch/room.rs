//! How much room a range of a scratch file takes, before it is written or allocated: none where it is rewritten in place, as
//! slots are, also when the capacity is used up.
//!
//! Limits: in a file with holes, what was allocated and never written counts as one. Blocks that a file system keeps beyond the
//! end of a file of its own accord, as XFS does, may stand for as many of a hole.

use std::sync::atomic::Ordering;

use nix::unistd::{Whence, lseek};
use tidefs_engine::types::ByteCount;

use super::{ScratchError, ScratchFile};

impl ScratchFile {
    /// Makes sure that `length` bytes may be allocated at `offset`. Waits for files that are being closed when there is no room
    /// without.
    ///
    /// # Errors
    /// [`ScratchError::Full`] when what they take would pass the capacity.
    pub(super) fn admit(&self, offset: u64, length: ByteCount) -> Result<(), ScratchError> {
        let space = &self.space;
        let has_room = |more: ByteCount| space.used().saturating_add(more) <= space.capacity;
        if has_room(length) {
            return Ok(());
        }
        let more = self.missing(offset, length);
        while more > ByteCount::ZERO && !has_room(more) {
            if more > space.capacity || !space.closer.help() {
                return Err(ScratchError::Full { needed: more, capacity: space.capacity });
            }
        }
        Ok(())
    }

    /// Bytes that the range takes at most beside what the file has.
    fn missing(&self, offset: u64, length: ByteCount) -> ByteCount {
        let end = ByteCount(offset).saturating_add(length);
        if self.has_data(offset, end) {
            return ByteCount::ZERO;
        }
        // Before its length: what is written meanwhile may lengthen it, and is not counted here.
        let charged = *self.charged.lock();
        let file_end = self.file().metadata().map_or(u64::MAX, |metadata| metadata.len());
        let reach = ByteCount(self.reach.load(Ordering::Relaxed).max(file_end)).max(end);
        // A file without a hole has so many.
        let whole = reach.round_up_to_pages();
        length.min(whole.saturating_sub(ByteCount(charged)))
    }

    /// Whether the range was written, all of it. Nothing else uses the offset of the file, which this moves.
    fn has_data(&self, offset: u64, end: ByteCount) -> bool {
        let Ok(from) = i64::try_from(offset) else { return false };
        let hole = lseek(&**self.file(), from, Whence::SeekHole);
        hole.is_ok_and(|hole| u64::try_from(hole).is_ok_and(|hole| hole >= end.get()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Scratch;
    use super::*;

    const MIB: usize = 1 << 20;

    /// Space for 1 MiB, and a file in it.
    fn space() -> (tempfile::TempDir, Arc<Scratch>, ScratchFile) {
        let directory = tempfile::tempdir().unwrap();
        let space = Scratch::new(vec![directory.path().to_path_buf()], true, ByteCount::mib(1));
        let file = space.create().unwrap();
        (directory, space, file)
    }

    fn is_refused(outcome: Result<(), ScratchError>) -> bool {
        matches!(outcome, Err(ScratchError::Full { .. }))
    }

    #[test]
    fn a_file_that_takes_the_whole_capacity_is_allocated_again_and_rewritten_in_place() {
        let (_directory, space, file) = space();
        file.grow(0, ByteCount::mib(1), false).unwrap();
        assert!(space.used() >= ByteCount::mib(1));
        for offset in [0, 4096, 777, 1_044_480] {
            file.write_at(&[7; 4096], offset).unwrap();
        }
        file.grow(0, ByteCount::mib(1), false).unwrap();
        assert!(is_refused(file.write_at(&[7; 65536], MIB as u64)), "beyond its end");
        assert!(is_refused(space.create().unwrap().write_at(&[7; 4096], 0)), "another file");
    }

    #[test]
    fn of_a_file_with_holes_what_was_written_is_rewritten_and_a_hole_is_refused() {
        let (_directory, _space, file) = space();
        file.set_length(ByteCount::gib(1)).unwrap();
        file.write_at(&vec![7; MIB], 64 << 20).unwrap();
        file.write_at(&vec![8; MIB / 2], (64 << 20) + 4096).unwrap();
        assert!(is_refused(file.write_at(&[7; 4096], 0)));
        assert!(is_refused(file.write_at(&[7; 8192], (65 << 20) - 4096)), "half of it is a hole");
    }

    #[test]
    fn blocks_beyond_the_end_make_up_for_no_hole() {
        let (_directory, _space, file) = space();
        file.grow(64 << 20, ByteCount::mib(1), true).unwrap();
        assert!(is_refused(file.write_at(&[7; 4096], 0)));
        file.set_length(ByteCount(1)).unwrap();
        file.set_length(ByteCount::ZERO).unwrap();
        file.write_at(&vec![7; MIB], 0).unwrap();
        file.write_at(&vec![8; MIB], 0).unwrap();
    }
}
