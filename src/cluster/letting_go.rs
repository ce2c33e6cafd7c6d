//! Copies that were let go of, and of which the catalog did not hear: it is told again, or it would name this member for them
//! until somebody asks for one.
//!
//! Invariants
//! - What is here again by then is not told.
//!
//! Limits: those of [`super::told_again`]. What comes beyond is counted, and found out by who asks for the copy.

use std::sync::Arc;

use parking_lot::Mutex;
use tidefs_engine::types::MemberId;

use super::batcher::Haste;
use super::catalog::wire::Change;
use super::core::Core;
use super::object::Stamp;
use super::shards::KeyId;
use super::told_again::{OWED_MAX, ToldAgain};

/// Copies that are told at once.
const PAGE: usize = 512;

/// Copies of which the catalog is to be told again that they are not here.
#[derive(Debug, Default)]
pub(super) struct LetGo {
    /// Held for a look-up.
    owed: Mutex<ToldAgain<Left>>,
}

/// A copy that is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Left {
    /// The latest version that was let go of.
    stamp: Stamp,
    /// Who was told of it in place of a primary that is lost, and is not told again.
    told: Option<MemberId>,
}

impl LetGo {
    /// Notes one. Returns `false` when there are too many.
    fn add(&self, path: &[u8], left: Left) -> bool {
        let mut owed = self.owed.lock();
        let Some(known) = owed.place_of(path.to_vec()) else { return false };
        if left.stamp >= known.stamp {
            *known = left;
        }
        true
    }

    /// As [`ToldAgain::warns`].
    fn warns(&self) -> bool {
        self.owed.lock().warns()
    }

    fn take_page(&self) -> Vec<(Vec<u8>, Left)> {
        let mut owed = self.owed.lock();
        let page = owed.next_page(PAGE);
        for (path, _) in &page {
            owed.names.remove(path);
        }
        page
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.owed.lock().names.len()
    }
}

impl Core {
    /// A note did not do what it was to.
    pub(super) fn note_again(&self, change: &Change) {
        match change {
            // An announcement is refused where the copy is not valid any more.
            Change::Hold { path, .. } | Change::Announce { path, .. } => self.announce_what_is_held(path),
            Change::LetGo { path, stamp } => self.owe_let_go(path, Left { stamp: *stamp, told: None }),
            _ => {}
        }
    }

    /// A note is told to the other owner in place of a primary that is lost.
    pub(super) fn note_again_to_primary(&self, change: &Change, told: MemberId) {
        if let Change::LetGo { path, stamp } = change {
            // What the backup tells it when it is back takes no copy away.
            self.owe_let_go(path, Left { stamp: *stamp, told: Some(told) });
        }
    }

    fn owe_let_go(&self, path: &[u8], left: Left) {
        if !self.let_go.add(path, left) {
            self.counters.let_go_lost.increment();
            if self.let_go.warns() {
                tracing::warn!(
                    "{OWED_MAX} copies that are gone wait to be told already; the catalog names one more in vain \
                     (tidefs_cluster_let_go_lost_total counts them)"
                );
            }
        }
    }

    /// Tells of some of the copies that are gone once more. What is not heard again is owed again.
    pub(super) fn tell_let_go_again(self: &Arc<Self>) {
        let Some(holder) = self.holder.upgrade() else { return };
        let map = Arc::clone(&self.seen().map);
        for (path, left) in self.let_go.take_page() {
            let Left { stamp, told } = left;
            let key = KeyId::of(&path);
            let decides = map.owners(key.shard()).map(|owners| owners.primary);
            // It may decide by itself by now.
            let is_known = told.is_some() && told == decides;
            if is_known || holder.holds(&path, stamp) {
                continue;
            }
            if told.is_some() && told == self.whom_to_note(key) {
                self.owe_let_go(&path, left);
            } else {
                self.note(Change::LetGo { path, stamp }, Haste::Soon);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_bounded_and_told_page_by_page() {
        let owed = LetGo::default();
        let left = |stamp| Left { stamp: Stamp(stamp), told: None };
        assert!((0..OWED_MAX).all(|number: usize| owed.add(&number.to_be_bytes(), left(1))));
        assert!(!owed.add(b"one more", left(1)) && owed.add(&0_usize.to_be_bytes(), left(2)));
        let page = owed.take_page();
        assert_eq!((page.len(), page[0].1, owed.len()), (PAGE, left(2), OWED_MAX - PAGE));
        // Those that nobody heard wait until all others were told.
        page.iter().for_each(|(path, left)| assert!(owed.add(path, *left)));
        assert_eq!(owed.take_page()[0].0, PAGE.to_be_bytes());
        let few = LetGo::default();
        assert!(few.add(b"kv/a", left(1)));
        assert_eq!((few.take_page().len(), few.take_page().len()), (1, 0));
    }

    #[test]
    fn it_is_warned_once_of_copies_that_are_not_told_of_again_and_again_when_half_of_them_were_told() {
        let owed = LetGo::default();
        let left = Left { stamp: Stamp(1), told: None };
        let fill = || (0..=OWED_MAX).filter(|number| !owed.add(&number.to_be_bytes(), left)).count();
        assert_eq!(fill(), 1);
        assert_eq!([(); 3].map(|()| owed.warns()), [true, false, false]);
        // As while somebody goes on evicting.
        owed.take_page();
        assert_eq!((fill(), owed.warns()), (1, false));
        while owed.len() > OWED_MAX / 2 {
            owed.take_page();
        }
        assert_eq!((fill(), owed.warns()), (1, true));
    }
}
