//! Numbers for starts of members, so that a copy costs two bytes.
//!
//! A member that is started again gets a new number: what its earlier start held is dropped under the old one, whatever
//! the new one announces meanwhile.

use std::collections::BTreeMap;

use tidefs_engine::types::{Incarnation, MemberId, PeerId};

use super::entry::Slot;

/// Which start of which member has which number.
#[derive(Debug, Default)]
pub struct Slots {
    peers: Vec<Option<PeerId>>,
    /// The latest start of each.
    latest: BTreeMap<MemberId, Slot>,
}

impl Slots {
    /// The number of this start. `None` when all numbers are taken, or when a later start is known.
    pub fn of(&mut self, peer: PeerId) -> Option<Slot> {
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

    /// The number of the latest start of a member, as far as it is known.
    pub fn of_member(&mut self, member: MemberId) -> Option<Slot> {
        match self.latest.get(&member) {
            Some(&slot) => Some(slot),
            None => self.of(PeerId { member, incarnation: Incarnation(0) }),
        }
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

    /// The number of exactly this start, if it has one.
    #[must_use]
    pub fn find(&self, peer: PeerId) -> Option<Slot> {
        let at = self.peers.iter().position(|&known| known == Some(peer))?;
        Slot::new(u16::try_from(at).ok()?)
    }

    /// Numbers of earlier starts of `member`.
    #[must_use]
    pub fn earlier(&self, peer: PeerId) -> Vec<Slot> {
        let is_earlier = |known: &PeerId| known.member == peer.member && known.incarnation < peer.incarnation;
        (0..)
            .zip(&self.peers)
            .filter(|(_, known)| known.as_ref().is_some_and(is_earlier))
            .filter_map(|(at, _)| Slot::new(at))
            .collect()
    }

    /// Nothing names this number any more.
    pub fn free(&mut self, slot: Slot) {
        let Some(peer) = self.peers.get_mut(slot.index()).and_then(Option::take) else { return };
        if self.latest.get(&peer.member) == Some(&slot) {
            self.latest.remove(&peer.member);
        }
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
        assert_eq!(slots.earlier(peer(1, 5)), [first]);
        slots.free(first);
        assert_eq!((slots.earlier(peer(1, 5)), slots.peer(first)), (vec![], None));
        assert_eq!(slots.of(peer(2, 1)), Some(first), "a number is used again");
    }

    #[test]
    fn a_member_that_was_named_before_it_was_met_keeps_its_number() {
        let mut slots = Slots::default();
        let named = slots.of_member(MemberId(3)).unwrap();
        assert_eq!(slots.of(peer(3, 9)), Some(named));
        assert_eq!(slots.peer(named), Some(peer(3, 9)));
    }
}
