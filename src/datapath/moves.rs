//! Who keeps a file where it is while it writes to it, and who has it alone to move or to cut it.
//!
//! Invariants
//! - Who waits waits for those who use the same file: the disk of one keeps nobody from another.
//! - A move that has begun waits for those who write, and who comes after that waits for it.
//!
//! Threads: any. Never taken under the state's lock, and not twice by one thread for one file.

use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};

use crate::namespace::Slot;

/// How a file is used now.
#[derive(Debug, Default)]
struct Use {
    /// How many keep it where it is.
    stays: u32,
    /// Whether somebody has it alone, or waits until the others are gone.
    is_alone: bool,
}

/// Keeps files where they are while they are written.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Guards which files are used so; held for moments.
    files: Mutex<HashMap<Slot, Use>>,
    /// How many somebody has alone, or waits to have so: mostly none, which costs a look. Raised under the lock above, and lowered
    /// when those who waited for it have been told.
    alone: AtomicUsize,
    /// Signalled when the last use of a file ends, or somebody has it alone no more.
    ended: Condvar,
}

/// A file that stays where it is.
#[derive(Debug)]
pub(super) struct Stays<'a> {
    moves: &'a Moves,
    slot: Slot,
}

/// A file that nobody writes to.
#[derive(Debug)]
pub(super) struct Alone<'a> {
    moves: &'a Moves,
    slot: Slot,
}

impl Moves {
    /// The file in `slot` stays where it is until the guard is dropped. Waits for who has it alone.
    pub(super) fn stays(&self, slot: Slot) -> Stays<'_> {
        let mut files = self.files.lock();
        while files.get(&slot).is_some_and(|file| file.is_alone) {
            self.ended.wait(&mut files);
        }
        files.entry(slot).or_default().stays += 1;
        Stays { moves: self, slot }
    }

    /// Nobody else keeps the file in `slot` where it is, or has it alone, until the guard is dropped. Waits for those who do.
    pub(super) fn alone(&self, slot: Slot) -> Alone<'_> {
        let mut files = self.files.lock();
        while files.get(&slot).is_some_and(|file| file.is_alone) {
            self.ended.wait(&mut files);
        }
        files.entry(slot).or_default().is_alone = true;
        self.alone.fetch_add(1, Ordering::Relaxed);
        while files.get(&slot).is_some_and(|file| file.stays > 0) {
            self.ended.wait(&mut files);
        }
        Alone { moves: self, slot }
    }

    /// Whether somebody has the file in `slot` alone. Waits for nothing.
    pub(super) fn is_under_way(&self, slot: Slot) -> bool {
        // Who misses one that begins right now waits for it, as who came a moment later would.
        self.are_any_under_way() && self.files.lock().get(&slot).is_some_and(|file| file.is_alone)
    }

    /// Whether somebody has any file alone. Waits for nothing.
    pub(super) fn are_any_under_way(&self) -> bool {
        self.alone.load(Ordering::Relaxed) > 0
    }

    fn end(&self, slot: Slot, end: impl FnOnce(&mut Use)) {
        let mut files = self.files.lock();
        let Some(file) = files.get_mut(&slot) else { return };
        end(file);
        if file.stays == 0 && !file.is_alone {
            files.remove(&slot);
        }
        // Whoever waits does so because somebody has a file alone, or wants it.
        let is_awaited = self.alone.load(Ordering::Relaxed) > 0;
        drop(files);
        if is_awaited {
            self.ended.notify_all();
        }
    }
}

impl Drop for Stays<'_> {
    fn drop(&mut self) {
        self.moves.end(self.slot, |file| file.stays -= 1);
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.moves.end(self.slot, |file| file.is_alone = false);
        self.moves.alone.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_move_waits_for_those_who_write_and_keeps_those_waiting_who_come_to_the_same_file_alone() {
        let moves = Moves::default();
        let writer = moves.stays(Slot(1));
        let (has_moved, has_written) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _alone = moves.alone(Slot(1));
                assert!(!has_written.load(Ordering::SeqCst));
                has_moved.store(true, Ordering::SeqCst);
            });
            while !moves.is_under_way(Slot(1)) {
                thread::yield_now();
            }
            let others: Vec<_> = (2..100).map(|slot| moves.stays(Slot(slot))).collect();
            assert!(!moves.is_under_way(Slot(2)) && !has_moved.load(Ordering::SeqCst));
            drop(others);
            scope.spawn(|| {
                let _stays = moves.stays(Slot(1));
                assert!(has_moved.load(Ordering::SeqCst));
                has_written.store(true, Ordering::SeqCst);
            });
            drop(writer);
        });
        assert!(has_written.load(Ordering::SeqCst) && moves.files.lock().is_empty());
    }
}
