//! Namespaces that wait to be agreed on. Each has its turn, and of each that fails somebody is told once.

use std::collections::BTreeMap;
use std::ops::Bound;

/// Namespaces that wait to be agreed on, at most.
pub(super) const UNAGREED_MAX: usize = 4096;

/// Namespaces that were made here and could not be agreed on yet.
#[derive(Debug, Default)]
pub(super) struct Unagreed {
    /// Of each whether somebody was told that it was refused.
    paths: BTreeMap<Vec<u8>, bool>,
    /// The one whose turn was last: the next one comes behind it, so that one that is refused does not hold up all.
    last: Vec<u8>,
}

impl Unagreed {
    /// Notes a namespace. Returns `false` when there are too many.
    pub(super) fn add(&mut self, path: &[u8]) -> bool {
        let has_room = self.paths.len() < UNAGREED_MAX || self.paths.contains_key(path);
        if has_room {
            self.paths.entry(path.to_vec()).or_default();
        }
        has_room
    }

    /// It is agreed on, or gone.
    pub(super) fn remove(&mut self, path: &[u8]) {
        self.paths.remove(path);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// The namespace whose turn it is.
    pub(super) fn next_turn(&mut self) -> Option<Vec<u8>> {
        let behind = (Bound::Excluded(&self.last), Bound::Unbounded);
        let next = self.paths.range::<Vec<u8>, _>(behind).chain(&self.paths).next();
        self.last = next.map(|(path, _)| path.clone())?;
        Some(self.last.clone())
    }

    /// It was refused. Returns whether somebody is to be told of that.
    pub(super) fn note_refused(&mut self, path: &[u8]) -> bool {
        self.paths.get_mut(path).is_some_and(|was_told| !std::mem::replace(was_told, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_refused_holds_up_no_other_and_is_told_of_once() {
        let mut unagreed = Unagreed::default();
        assert_eq!(unagreed.next_turn(), None);
        assert!([&b"a"[..], b"b", b"c"].into_iter().all(|path| unagreed.add(path)));
        let turns = [(); 4].map(|()| unagreed.next_turn().unwrap());
        assert_eq!(turns, [b"a", b"b", b"c", b"a"]);
        assert_eq!([(); 2].map(|()| unagreed.note_refused(b"a")), [true, false]);
        assert!(unagreed.note_refused(b"b"));
        unagreed.remove(b"b");
        assert!(!unagreed.note_refused(b"b"), "it is agreed on, or gone");
        assert_eq!([(); 2].map(|()| unagreed.next_turn().unwrap()), [b"c", b"a"]);
        unagreed.remove(b"a");
        unagreed.remove(b"c");
        assert!(unagreed.is_empty() && unagreed.next_turn().is_none());
    }

    #[test]
    fn no_more_wait_than_are_bounded_and_who_waits_already_is_noted_once_more() {
        let mut unagreed = Unagreed::default();
        assert!((0..UNAGREED_MAX).all(|number| unagreed.add(&number.to_be_bytes())));
        assert!(!unagreed.add(b"one more") && unagreed.add(&0_usize.to_be_bytes()));
    }
}
