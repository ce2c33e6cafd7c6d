//! Names of which those who decide could not be told: they are told again, a page at a time.
//!
//! Invariants
//! - Each has its turn: a page goes on behind the one before, so that one deaf owner does not hold up all.
//! - It is warned once of names for which there is no room, until half of those that wait were told: whoever removes, or evicts,
//!   goes on doing so.
//!
//! Limits: [`OWED_MAX`] names. The oldest promise counts more than the newest: what comes beyond is not told again.

use std::collections::BTreeMap;
use std::ops::Bound;

/// Names that wait, at most.
pub(super) const OWED_MAX: usize = 65_536;

/// Names, each with what is to be told of it.
#[derive(Debug, Default)]
pub(super) struct ToldAgain<T> {
    pub(super) names: BTreeMap<Vec<u8>, T>,
    /// The name that was told last.
    last: Vec<u8>,
    /// It was said that there are too many, and since then there are.
    has_warned: bool,
}

impl<T: Copy + Default> ToldAgain<T> {
    /// What is to be told of `path`, to be noted. `None` when there are too many.
    pub(super) fn place_of(&mut self, path: Vec<u8>) -> Option<&mut T> {
        let is_room = self.names.len() < OWED_MAX || self.names.contains_key(&path);
        if !is_room {
            return None;
        }
        self.has_warned &= self.names.len() > OWED_MAX / 2;
        Some(self.names.entry(path).or_default())
    }

    /// Whether it is to be warned of one for which there is no room.
    pub(super) fn warns(&mut self) -> bool {
        !std::mem::replace(&mut self.has_warned, true)
    }

    /// Those whose turn it is, `max` at most, each once.
    pub(super) fn next_page(&mut self, max: usize) -> Vec<(Vec<u8>, T)> {
        let behind = (Bound::Excluded(&self.last), Bound::Unbounded);
        let entries = self.names.range::<Vec<u8>, _>(behind).chain(&self.names);
        let page: Vec<_> =
            entries.take(max.min(self.names.len())).map(|(path, told)| (path.clone(), *told)).collect();
        self.last = page.last().map(|(path, _)| path.clone()).unwrap_or_default();
        page
    }
}
