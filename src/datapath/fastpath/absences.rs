//! Which names the kernel may believe to stand for nothing, roughly.
//!
//! A name that is published by a request on `.tidefs/control` does not pass through the kernel's cache of names, where an
//! earlier "there is no such file" may wait. Forgetting all cached names helps and costs every other program a question, so
//! it is done only when the published name may be among those that were answered so.
//!
//! One bit for many names: a name that was never asked for may share a bit with one that was, and then the kernel forgets
//! without need. Whenever it forgets, all bits are cleared. Set under the datapath's lock.

use std::sync::atomic::{AtomicU64, Ordering};

use tidefs_engine::types::KeyHash;

/// 2^20 bits.
const WORDS: usize = 1 << 14;

/// A set of names that has false members and no false absentees.
#[derive(Debug)]
pub(in crate::datapath) struct Absences(Box<[AtomicU64]>);

impl Default for Absences {
    fn default() -> Self {
        Self((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Absences {
    fn place(&self, key: KeyHash) -> (&AtomicU64, u64) {
        let word = usize::try_from(key.0 >> 6).unwrap_or(0) % WORDS;
        (&self.0[word], 1 << (key.0 & 63))
    }

    /// The kernel is told that the name stands for nothing, and may believe it.
    pub(in crate::datapath) fn note(&self, key: KeyHash) {
        let (word, bit) = self.place(key);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Whether the kernel may believe so.
    pub(super) fn may_hold(&self, key: KeyHash) -> bool {
        let (word, bit) = self.place(key);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// The kernel is about to forget all names.
    pub(super) fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_held_until_all_is_forgotten() {
        let absences = Absences::default();
        let keys = [0, 63, 64, u64::MAX, 0x0123_4567_89ab_cdef].map(KeyHash);
        for key in keys {
            assert!(!absences.may_hold(key));
            absences.note(key);
            assert!(absences.may_hold(key));
        }
        assert!(!absences.may_hold(KeyHash(1)));
        absences.clear();
        assert!(keys.iter().all(|key| !absences.may_hold(*key)));
    }
}
