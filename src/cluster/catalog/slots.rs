//! Numbers for starts of members, so that a copy costs two bytes.
//!
//! A member that is started again gets a new number: what its earlier start held is dropped under the old one, whatever
//! the new one announces meanwhile. A start that is forgotten has no number until it is met again, whoever still names it.

use std::collections::{BTreeMap, BTreeSet};

use tidefs_engine::types::{Incarnation, MemberId, PeerId};

use super::entry::Slot;

/// Which start of which member has which number.
#[derive(Debug, Default)]
pub struct Slots {
    peers: Vec<Option<PeerId>>,
    /// The latest start of each.
    latest: BTreeMap<MemberId, Slot>,
    /// Those that are forgotten, and their latest starts.
    gone: BTreeMap<MemberId, Incarnation>,
    /// Those that others spoke of before this member met them, and the latest view of which somebody who did so knew.
    heard: BTreeMap<MemberId, u64>,
    /// Numbers under which copies are being dropped.
    leaving: BTreeSet<Slot>,
    /// All members of that view have been met.
    view: u64,
}

impl Slots {
    /// This start is there: it is not forgotten any more.
    pub fn meet(&mut self, peer: PeerId) {
        if self.gone.get(&peer.member).is_some_and(|gone| *gone <= peer.incarnation) {
            self.gone.remove(&peer.member);
        }
        self.of(peer);
    }

    /// The number of this start. `None` when all numbers are taken, or when it is forgotten or a later start is known.
    pub fn of(&mut self, peer: PeerId) -> Option<Slot> {
        if let Some(&gone) = self.gone.get(&peer.member) {
            if peer.incarnation <= gone {
                return None;
            }
            self.gone.remove(&peer.member);
        }
        if let Some(&slot) = self.latest.get(&peer.member) {
            match self.peer(slot) {
                Some(known) if known == peer => return Some(slot),
                // Heard of by its id alone before.
                Some(known) if known.incarnation == Incarnation(0) => {
                    self.peers[slot.index()] = Some(peer);
                    return Some(slot);
                }
                Some(known) if known.incarnation > peer.incarnation => return None,
                _ => {}
            }
        }
        let free = self.peers.iter().position(Option::is_none).unwrap_or(self.peers.len());
        let slot = Slot::new(u16::try_from(free).ok()?)?;
        if free == self.peers.len() {
            self.peers.push(Some(peer));
        } else {
            self.peers[free] = Some(peer);
        }
        self.latest.insert(peer.member, slot);
        Some(slot)
    }

    /// The number of the latest start of a member, as far as it is known. `None` when it is forgotten.
    #[must_use]
    pub fn of_member(&self, member: MemberId) -> Option<Slot> {
        self.latest.get(&member).copied()
    }

    /// The latest starts of all members that are known.
    pub fn latest(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.latest.values().filter_map(|&slot| self.peer(slot))
    }

    /// The number of a member of which somebody speaks who knows of that view. `None` when it is forgotten, and when it would
    /// have been met.
    pub fn hear_of(&mut self, member: MemberId, view: u64) -> Option<Slot> {
        let known = self.of_member(member);
        if known.is_some() || self.gone.contains_key(&member) || view <= self.view {
            return known;
        }
        self.heard.insert(member, view);
        self.of(PeerId { member, incarnation: Incarnation(0) })
    }

    /// All members of that view have been met.
    pub fn set_view(&mut self, view: u64) {
        self.view = view;
    }

    /// Starts to forget who was heard of and left before it was met. As [`Self::forget`].
    pub fn forget_strangers(&mut self) -> Vec<Slot> {
        let view = self.view;
        let mut strangers: Vec<MemberId> =
            self.heard.extract_if(.., |_, heard| *heard <= view).map(|(member, _)| member).collect();
        let latest = |member: &MemberId| self.peer(self.of_member(*member)?);
        strangers.retain(|member| latest(member).is_some_and(|peer| peer.incarnation == Incarnation(0)));
        self.latest.retain(|member, _| !strangers.contains(member));
        self.take(|known| strangers.contains(&known.member))
    }

    /// Whether it is the number of the latest start of its member.
    #[must_use]
    pub fn is_latest(&self, slot: Slot) -> bool {
        self.peer(slot).is_some_and(|peer| self.latest.get(&peer.member) == Some(&slot))
    }

    /// Whose number it is.
    #[must_use]
    pub fn peer(&self, slot: Slot) -> Option<PeerId> {
        self.peers.get(slot.index()).copied().flatten()
    }

    /// Starts to forget this start and those before it: whoever asks is to drop the copies under these numbers, and to
    /// [free](Self::free) them.
    pub fn forget(&mut self, peer: PeerId) -> Vec<Slot> {
        let latest = self.latest.get(&peer.member).and_then(|&slot| self.peer(slot));
        if latest.is_none_or(|latest| latest.incarnation <= peer.incarnation) {
            self.latest.remove(&peer.member);
            self.gone.insert(peer.member, peer.incarnation);
        }
        self.take(|known| known.member == peer.member && known.incarnation <= peer.incarnation)
    }

    /// Starts to forget the starts before this one. As [`Self::forget`].
    pub fn forget_earlier(&mut self, peer: PeerId) -> Vec<Slot> {
        self.take(|known| known.member == peer.member && known.incarnation < peer.incarnation)
    }

    /// Numbers for which `is_wanted` holds, each of them once.
    fn take(&mut self, is_wanted: impl Fn(&PeerId) -> bool) -> Vec<Slot> {
        let mut taken: Vec<Slot> = (0..)
            .zip(&self.peers)
            .filter(|(_, known)| known.as_ref().is_some_and(&is_wanted))
            .filter_map(|(at, _)| Slot::new(at))
            .collect();
        taken.retain(|&slot| self.leaving.insert(slot));
        taken
    }

    /// Whether an earlier start of this member has a number still.
    #[must_use]
    pub fn has_earlier(&self, peer: PeerId) -> bool {
        let mut known = self.peers.iter().flatten();
        known.any(|known| known.member == peer.member && known.incarnation < peer.incarnation)
    }

    /// Nothing names this number any more.
    pub fn free(&mut self, slot: Slot) {
        self.leaving.remove(&slot);
        if let Some(peer) = self.peers.get_mut(slot.index()) {
            *peer = None;
        }
    }

    /// Numbers in use, and what is kept beside them, of members other than `me`.
    #[cfg(test)]
    pub(super) fn kept_of_others(&self, me: MemberId) -> usize {
        let members = self.latest.keys().chain(self.gone.keys()).chain(self.heard.keys());
        let numbers = self.peers.iter().flatten().map(|peer| &peer.member);
        members.chain(numbers).filter(|&&member| member != me).count() + self.leaving.len()
    }

    /// Nobody speaks of that member any more.
    pub fn forget_for_ever(&mut self, member: MemberId) {
        self.gone.remove(&member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(member: u64, incarnation: u64) -> PeerId {
        PeerId { member: MemberId(member), incarnation: Incarnation(incarnation) }
    }

    #[test]
    fn each_start_has_a_number_of_its_own_and_the_latest_is_the_members() {
        let mut slots = Slots::default();
        let first = slots.of(peer(1, 4)).unwrap();
        let again = slots.of(peer(1, 5)).unwrap();
        assert_ne!(first, again);
        assert_eq!(slots.of_member(MemberId(1)), Some(again));
        assert_eq!(slots.of(peer(1, 4)), None, "an earlier start holds nothing");
        assert!(slots.has_earlier(peer(1, 5)));
        assert_eq!(slots.forget_earlier(peer(1, 5)), [first]);
        assert_ne!(slots.of(peer(2, 1)), Some(first), "copies are dropped under it");
        assert_eq!(slots.forget_earlier(peer(1, 5)), [], "somebody does it already");
        slots.free(first);
        assert_eq!((slots.has_earlier(peer(1, 5)), slots.peer(first)), (false, None));
        assert_eq!(slots.of(peer(3, 1)), Some(first), "a number is used again");
    }

    #[test]
    fn who_is_forgotten_has_no_number_until_it_is_met_again() {
        let mut slots = Slots::default();
        let known = slots.of(peer(1, 4)).unwrap();
        assert_eq!(slots.forget(peer(1, 4)), [known]);
        assert_eq!((slots.of_member(MemberId(1)), slots.of(peer(1, 4))), (None, None));
        assert_eq!(slots.forget(peer(1, 4)), [], "somebody does it already");
        slots.free(known);
        assert_eq!((slots.of_member(MemberId(1)), slots.of(peer(1, 4))), (None, None));
        slots.meet(peer(1, 3));
        assert_eq!(slots.of_member(MemberId(1)), None, "that is an earlier start");
        slots.meet(peer(1, 4));
        let again = slots.of_member(MemberId(1));
        assert_eq!((again, slots.of(peer(1, 4))), (slots.of(peer(1, 4)), again));
        slots.forget(peer(1, 4));
        assert!(slots.of(peer(1, 5)).is_some(), "a later start is there");
    }

    #[test]
    fn who_was_only_heard_of_is_forgotten_with_its_start() {
        let mut slots = Slots::default();
        let named = slots.hear_of(MemberId(3), 1).unwrap();
        assert_eq!(slots.forget(peer(3, 9)), [named]);
        assert_eq!(slots.hear_of(MemberId(3), 1), None);
        slots.forget_for_ever(MemberId(3));
        assert!(slots.hear_of(MemberId(3), 1).is_some());
    }

    #[test]
    fn who_was_heard_of_and_left_before_it_was_met_is_forgotten() {
        let mut slots = Slots::default();
        slots.set_view(4);
        assert_eq!(slots.hear_of(MemberId(3), 4), None, "it is no member");
        let stays = slots.hear_of(MemberId(1), 5).unwrap();
        let left = slots.hear_of(MemberId(3), 5).unwrap();
        let later = slots.hear_of(MemberId(4), 6).unwrap();
        assert_eq!(slots.forget_strangers(), []);
        slots.meet(peer(1, 1));
        slots.set_view(5);
        assert_eq!(slots.forget_strangers(), [left]);
        assert_eq!(slots.forget_strangers(), []);
        let known = [1, 3, 4].map(|member| slots.of_member(MemberId(member)));
        assert_eq!(known, [Some(stays), None, Some(later)]);
    }

    #[test]
    fn a_member_that_was_named_before_it_was_met_keeps_its_number() {
        let mut slots = Slots::default();
        let named = slots.hear_of(MemberId(3), 1).unwrap();
        assert_eq!(slots.of(peer(3, 9)), Some(named));
        assert_eq!(slots.peer(named), Some(peer(3, 9)));
    }
}
