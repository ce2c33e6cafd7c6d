//! Copies that were let go of, and of which the catalog did not hear: it is told again, or it would name this member for them
//! until somebody asks for one.
//!
//! Invariants
//! - What is here again by then is not told.
//! - What is owed is bounded: what comes beyond is counted and warned of, and found out by who asks for the copy.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use super::batcher::Haste;
use super::catalog::wire::Change;
use super::core::Core;
use super::object::Stamp;

/// Copies that are told again, at most.
const OWED_MAX: usize = 65_536;
/// Of these, told at once.
const PAGE: usize = 512;

/// Copies of which the catalog is to be told again that they are not here.
#[derive(Debug, Default)]
pub(super) struct LetGo {
    /// Held for a look-up.
    owed: Mutex<Owed>,
}

#[derive(Debug, Default)]
struct Owed {
    /// By name, the latest version of it.
    copies: BTreeMap<Vec<u8>, Stamp>,
    /// The name that was told last: the next round goes on behind it, so that one deaf owner does not hold up all.
    last: Vec<u8>,
}

impl LetGo {
    /// Notes one. Returns `false` when there are too many.
    fn add(&self, path: &[u8], stamp: Stamp) -> bool {
        let mut owed = self.owed.lock();
        let is_room = owed.copies.len() < OWED_MAX || owed.copies.contains_key(path);
        if is_room {
            let known = owed.copies.entry(path.to_vec()).or_default();
            *known = stamp.max(*known);
        }
        is_room
    }

    fn take_page(&self) -> Vec<(Vec<u8>, Stamp)> {
        let mut owed = self.owed.lock();
        let behind = (Bound::Excluded(&owed.last), Bound::Unbounded);
        let names = owed.copies.range::<Vec<u8>, _>(behind).chain(&owed.copies).take(PAGE);
        let names: Vec<Vec<u8>> = names.map(|(path, _)| path.clone()).collect();
        owed.last = names.last().cloned().unwrap_or_default();
        // One that stands in both parts is taken once.
        names.into_iter().filter_map(|path| owed.copies.remove_entry(&path)).collect()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.owed.lock().copies.len()
    }
}

impl Core {
    /// A note did not do what it was to.
    pub(super) fn note_again(&self, change: &Change) {
        match change {
            // An announcement is refused where the copy is not valid any more.
            Change::Hold { path, .. } | Change::Announce { path, .. } => self.announce_what_is_held(path),
            Change::LetGo { path, stamp } if !self.let_go.add(path, *stamp) => {
                self.counters.let_go_lost.increment();
                tracing::warn!(
                    "{OWED_MAX} copies that are gone wait to be told already; the catalog names one more in vain"
                );
            }
            _ => {}
        }
    }

    /// Tells of some of the copies that are gone once more. What is not heard again is owed again.
    pub(super) fn tell_let_go_again(self: &Arc<Self>) {
        let Some(holder) = self.holder.upgrade() else { return };
        for (path, stamp) in self.let_go.take_page() {
            if !holder.holds(&path, stamp) {
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
        assert!((0..OWED_MAX).all(|number: usize| owed.add(&number.to_be_bytes(), Stamp(1))));
        assert!(!owed.add(b"one more", Stamp(1)) && owed.add(&0_usize.to_be_bytes(), Stamp(2)));
        let page = owed.take_page();
        assert_eq!((page.len(), page[0].1, owed.len()), (PAGE, Stamp(2), OWED_MAX - PAGE));
        // Those that nobody heard wait until all others were told.
        page.iter().for_each(|(path, stamp)| assert!(owed.add(path, *stamp)));
        assert_eq!(owed.take_page()[0].0, PAGE.to_be_bytes());
        let few = LetGo::default();
        assert!(few.add(b"kv/a", Stamp(1)));
        assert_eq!((few.take_page().len(), few.take_page().len()), (1, 0));
    }
}
