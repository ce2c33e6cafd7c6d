//! Names that are watched beyond the limit: who was answered about them is told that they changed, which is always safe, and
//! watches them no more.
//!
//! A member that walks through many names adds as many, and as many leave, that another walk, or the same one, had added before:
//! those that the same members watched are told together.
//!
//! Invariant: who holds a copy of what a name stands for is told of its change as a holder, and nothing here.

use std::collections::BTreeMap;

use tidefs_engine::types::{MemberId, PeerId};

use super::super::entry::{Entry, Slot};
use super::super::watches::Watched;
use super::super::wire::Revocation;
use super::Owner;
use crate::cluster::object::Stamp;
use crate::cluster::shards::KeyId;

/// Names that the same members watched until now.
#[derive(Debug, PartialEq, Eq)]
pub struct Surplus {
    /// Their keys.
    pub keys: Vec<KeyId>,
    /// What each of these members is told, of all of them in this order.
    pub tell: Vec<(MemberId, Vec<Revocation>)>,
}

/// One of them.
struct Unwatched {
    key: KeyId,
    path: Box<[u8]>,
    /// Nothing through this version is valid any more, or with zero it stands for something.
    through: Stamp,
}

impl Owner {
    /// Names that are watched beyond the limit, at most `max` of them, by who watches them: what those are told.
    pub fn drop_surplus(&mut self, max: usize) -> Vec<Surplus> {
        let mut unwatched: BTreeMap<Vec<Slot>, Vec<Unwatched>> = BTreeMap::new();
        for _ in 0..max {
            let Some((key, Watched { path, watchers: mut slots })) = self.watches.take_surplus() else {
                break;
            };
            let entry = self.table.get(key);
            slots.retain(|&slot| entry.is_none_or(|entry| !entry.copies.contains(slot)));
            slots.sort_unstable();
            let through = entry.map_or(Stamp(0), Entry::stamp);
            unwatched.entry(slots).or_default().push(Unwatched { key, path, through });
        }
        unwatched.into_iter().filter_map(|(slots, names)| self.surplus(&slots, names)).collect()
    }

    /// What is told to these starts of members; `None` where none of them is known any more.
    fn surplus(&self, slots: &[Slot], names: Vec<Unwatched>) -> Option<Surplus> {
        let peers: Vec<PeerId> = slots.iter().filter_map(|&slot| self.slots.peer(slot)).collect();
        let (&last, others) = peers.split_last()?;
        let keys = names.iter().map(|name| name.key).collect();
        let mut tell: Vec<(MemberId, Vec<Revocation>)> = Vec::with_capacity(peers.len());
        for &peer in others {
            let told = names.iter().map(|name| self.revocation(peer, name.path.to_vec(), name.through));
            tell.push((peer.member, told.collect()));
        }
        // The last one takes the paths.
        let told = names.into_iter().map(|name| self.revocation(last, name.path.into_vec(), name.through));
        tell.push((last.member, told.collect()));
        Some(Surplus { keys, tell })
    }
}
