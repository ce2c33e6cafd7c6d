//! How much room a range of a scratch file takes, before it is written or allocated: none where it is rewritten in place, as
//! slots are, also when the capacity is used up.
//!
//! Limits: in a file with holes, what was allocated and never written counts as one. Blocks that a file system keeps beyond the
//! end of a file of its own accord, as XFS does, may stand for as many of a hole. So may those that somebody else cuts off while
//! this is looked up.

use std::sync::atomic::Ordering;

use nix::unistd::{Whence, lseek};
use tidefs_engine::types::{ByteCount, PAGE};

use super::budget::Claim;
use super::{ScratchError, ScratchFile, Wait};

impl ScratchFile {
    /// Claims what `length` bytes at `offset` take at most when they are allocated; no more than they take beside what is there when
    /// somebody waits for room. Waits for what others may give back when there is no room without: files that are being closed, and
    /// what is claimed and not used.
    ///
    /// # Errors
    /// [`ScratchError::Full`] when it would pass the capacity.
    pub(super) fn admit(
        &self,
        offset: u64,
        length: ByteCount,
        wait: Wait,
    ) -> Result<Claim<'_>, ScratchError> {
        let bytes = &self.space.bytes;
        if let Some(claim) = bytes.try_claim(pages(offset, length).get()) {
            return Ok(claim);
        }
        let deadline = self.space.end_of(wait);
        let mut more = self.missing(offset, length);
        loop {
            if let Some(claim) = bytes.claim(more.get(), deadline) {
                return Ok(claim);
            }
            let still = self.missing(offset, length);
            if still >= more {
                return Err(ScratchError::Full { needed: more, capacity: self.space.capacity() });
            }
            // Others have allocated a part of it meanwhile.
            more = still;
        }
    }

    /// Whether who writes `length` bytes at `offset` now waits for what others may give back.
    #[must_use]
    pub fn waits_for_room(&self, offset: u64, length: ByteCount) -> bool {
        self.space.bytes.would_wait(self.missing(offset, length).get())
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
        pages(offset, length).min(whole.saturating_sub(ByteCount(charged)))
    }

    /// Whether the range was written, all of it. Nothing else uses the offset of the file, which this moves.
    fn has_data(&self, offset: u64, end: ByteCount) -> bool {
        let Ok(from) = i64::try_from(offset) else { return false };
        let hole = lseek(&**self.file(), from, Whence::SeekHole);
        hole.is_ok_and(|hole| u64::try_from(hole).is_ok_and(|hole| hole >= end.get()))
    }
}

/// Bytes of all pages that the range touches: a disk has no less of a file.
pub(super) fn pages(offset: u64, length: ByteCount) -> ByteCount {
    let end = ByteCount(offset).saturating_add(length).round_up_to_pages();
    end.saturating_sub(ByteCount(offset - offset % PAGE.get()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};
    use std::thread;
    use std::time::Duration;

    use super::super::{PATIENCE, Scratch, testing};
    use super::*;

    const MIB: usize = 1 << 20;

    /// Space for 1 MiB, and a file in it.
    fn space() -> (tempfile::TempDir, Arc<Scratch>, ScratchFile) {
        let (directory, space) = testing::space(PATIENCE);
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
    fn what_is_about_to_be_allocated_counts_for_who_asks_next() {
        let (_directory, space) = testing::space(Duration::ZERO);
        let (first, second) = (space.create().unwrap(), space.create().unwrap());
        let claim = first.admit(0, ByteCount::kib(768), Wait::Patiently).unwrap();
        assert!(is_refused(second.grow(0, ByteCount::kib(512), false)));
        second.write_at(&[7; 4096], 0).unwrap();
        drop(claim);
        second.grow(0, ByteCount::kib(512), false).unwrap();
    }

    #[test]
    fn what_is_rewritten_in_place_keeps_no_room_from_who_waits_for_some() {
        let (_directory, space, file) = space();
        file.write_at(&vec![7; MIB / 2], 0).unwrap();
        let rest = space.capacity().saturating_sub(space.used()).get();
        let held = space.bytes.try_claim(rest - PAGE.get()).unwrap();
        let other = space.create().unwrap();
        thread::scope(|scope| {
            let appending = scope.spawn(|| other.write_at(&[1; 65536], 0));
            while space.bytes.waiting() == 0 {
                thread::yield_now();
            }
            let used = space.used();
            let rewriting = file.admit(0, PAGE, Wait::Patiently).unwrap();
            assert_eq!(space.used(), used, "a page is free, and left to who waits");
            drop((held, rewriting));
            appending.join().unwrap().expect("there is room");
        });
    }

    #[test]
    fn what_is_allocated_at_once_does_not_pass_the_capacity() {
        let (_directory, space, _file) = space();
        let together = Barrier::new(4);
        let grow = || {
            let file = space.create().unwrap();
            together.wait();
            (is_refused(file.grow(0, ByteCount::kib(640), false)), file)
        };
        let grown: Vec<_> = thread::scope(|scope| {
            let growing: Vec<_> = (0..4).map(|_| scope.spawn(grow)).collect();
            growing.into_iter().map(|growing| growing.join().unwrap()).collect()
        });
        assert_eq!(grown.iter().filter(|(is_refused, _)| *is_refused).count(), 3);
        assert!(space.used() <= space.capacity(), "{}", space.used());
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
