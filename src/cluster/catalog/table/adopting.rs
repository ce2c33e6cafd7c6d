//! What another owner of a shard says of a key, and what of it counts here.
//!
//! Invariants
//! - Of two versions the later counts; where that is the one known here, the other owner has to be told.
//! - Of one version the word of one who decides the order counts as it is; that of another only adds holders: what a holder said
//!   here itself is not changed by hearsay.

use std::time::Duration;

use super::super::entry::{Copies, Entry, Slot};
use super::Table;
use crate::cluster::object::Stamp;
use crate::cluster::shards::KeyId;

/// What an owner of a shard says of a key, with members as slots and times as they are counted here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// No copy of this version, or an earlier one, is left.
    Gone(Stamp),
    /// It was removed through this version, then.
    Removed(Stamp, Duration),
    /// It stands.
    Present(Entry),
}

/// What another owner's word did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// What was answered about the key before is not true any more, through this version; zero when it was absent.
    pub changed: Option<Stamp>,
    /// Holders of versions that lost against a later one.
    pub losers: Vec<Slot>,
    /// What is known here is later: the other owner has to be told.
    pub is_ours_later: bool,
}

impl Table {
    /// What is known of `key`; `gone` through that version when nothing is.
    #[must_use]
    pub fn state(&self, key: KeyId, gone: Stamp) -> State {
        match (self.get(key), self.tombstones.get(key)) {
            (Some(entry), _) => State::Present(entry.clone()),
            (None, Some((through, at))) => State::Removed(through, at),
            (None, None) => State::Gone(self.ends.through(key).map_or(gone, |last| last.max(gone))),
        }
    }

    /// Takes the word of another owner of the shard where it is not earlier: that of one who decides the order as it is.
    pub fn adopt(&mut self, key: KeyId, theirs: State, is_decided: bool, now: Duration) -> Adopted {
        let ours = self.state(key, Stamp(0));
        let our_stamp = match &ours {
            // That version itself may stand again.
            State::Gone(last) => Stamp(last.0.saturating_sub(1)),
            State::Removed(stamp, _) => *stamp,
            State::Present(entry) => entry.stamp(),
        };
        let our_holders = |but: &Copies| match &ours {
            State::Present(entry) => beyond(&entry.copies, but),
            _ => Vec::new(),
        };
        let was_present = matches!(ours, State::Present(_));
        let shown = if was_present { our_stamp } else { Stamp(0) };
        match theirs {
            State::Gone(stamp) if was_present && stamp >= our_stamp && is_decided => {
                self.take(key);
                Adopted { changed: Some(shown), ..Adopted::default() }
            }
            State::Gone(stamp) => Adopted { is_ours_later: our_stamp > stamp, ..Adopted::default() },
            State::Removed(through, at) if through >= our_stamp => {
                let losers = if is_decided { Vec::new() } else { our_holders(&Copies::default()) };
                self.take(key);
                self.note_removal(key, through, at, now);
                Adopted { changed: was_present.then_some(through), losers, is_ours_later: false }
            }
            State::Removed(..) => Adopted { is_ours_later: true, ..Adopted::default() },
            State::Present(mut entry) if self.get(key).is_some_and(|known| known.is_made_anew_as(&entry)) => {
                // Who was answered about it was not answered wrong.
                if let (false, Some(known)) = (is_decided, self.get(key)) {
                    entry.copies.put_missing(&known.copies);
                }
                self.insert(key, entry);
                Adopted::default()
            }
            State::Present(entry) if entry.stamp() > our_stamp => {
                let losers = if is_decided { Vec::new() } else { our_holders(&entry.copies) };
                self.insert(key, entry);
                Adopted { changed: Some(shown), losers, is_ours_later: false }
            }
            State::Present(entry) if was_present && entry.stamp() == our_stamp => {
                if is_decided {
                    self.insert(key, entry);
                } else {
                    // What a holder said here itself is not changed by hearsay.
                    let is_new =
                        |slot: Slot| !matches!(&ours, State::Present(known) if known.copies.contains(slot));
                    let part = self.part(key.shard());
                    for (slot, medium) in entry.copies.iter().filter(|(slot, _)| is_new(*slot)) {
                        part.put_copy(key, slot, medium);
                    }
                }
                Adopted::default()
            }
            State::Present(entry) => {
                let losers = match self.get(key) {
                    Some(kept) => beyond(&entry.copies, &kept.copies),
                    None => beyond(&entry.copies, &Copies::default()),
                };
                Adopted { changed: None, losers, is_ours_later: true }
            }
        }
    }
}

/// Who has one of `copies`, and none of `others`.
fn beyond(copies: &Copies, others: &Copies) -> Vec<Slot> {
    copies.iter().map(|(slot, _)| slot).filter(|&slot| !others.contains(slot)).collect()
}
