//! The order of eviction of many objects, made from what each policy says of one: for people to look at.
//!
//! It is told without asking for all objects at once, which would keep everybody waiting. It is the order in which objects
//! would leave now, but for `leaf_bonus`'s patience with a predecessor, which shrinks with the cache, and for `s3fifo`, whose
//! queues say less of one object: its order is that of the last use.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::{ObjectSlot, RetentionClass};

/// When an object's turn to leave comes: lower ones leave first. Comparable within a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// Its class.
    pub class: RetentionClass,
    /// Whether it came so lately that all others of its class leave first.
    pub is_newcomer: bool,
    /// Its use, as the policy weighs it.
    pub score: u64,
}

/// What a policy says of one object.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Its turn, once no successor of it is cached.
    pub turn: Turn,
    /// Its turn, though successors of it are cached.
    pub at_latest: Turn,
    /// The object before it in its chain, which stays for it until that one's latest turn.
    pub predecessor: Option<ObjectSlot>,
}

impl Standing {
    /// Of an object whose successors do not matter.
    pub(super) fn alone(class: RetentionClass, score: u64) -> Self {
        let turn = Turn { class, is_newcomer: false, score };
        Self { turn, at_latest: turn, predecessor: None }
    }
}

/// Where an object comes in the order of leaving: by the turn and the slot of the object that it waits for, itself if none, and
/// by how many it waits for; so that a chain leaves from its end.
type Place = (Turn, ObjectSlot, u32);

/// Sorts `objects` so that what leaves last comes first, and what is in no order at the end, by its name.
pub fn last_to_leave_first<N: Ord + Copy>(objects: &[(N, ObjectSlot, Option<Standing>)]) -> Vec<N> {
    let places = places_in_chains(objects);
    let mut sorted: Vec<(Reverse<Option<Place>>, N)> =
        places.into_iter().map(Reverse).zip(objects.iter().map(|&(name, ..)| name)).collect();
    sorted.sort_unstable();
    sorted.into_iter().map(|(_, name)| name).collect()
}

fn places_in_chains<N>(objects: &[(N, ObjectSlot, Option<Standing>)]) -> Vec<Option<Place>> {
    let own_place =
        |(_, slot, standing): &(N, ObjectSlot, Option<Standing>)| Some((standing.as_ref()?.turn, *slot, 0));
    let mut places: Vec<Option<Place>> = objects.iter().map(own_place).collect();
    let predecessor_of = |index: usize| objects[index].2?.predecessor;
    let mut ends: Vec<usize> = (0..objects.len()).filter(|&index| predecessor_of(index).is_some()).collect();
    if ends.is_empty() {
        return places;
    }
    let index_of: HashMap<ObjectSlot, usize> =
        objects.iter().enumerate().map(|(index, (_, slot, _))| (*slot, index)).collect();
    // From the last turn on, so that hardly any is raised twice. Links lead to what was there before, so a way ends.
    ends.sort_unstable_by_key(|&index| Reverse(places[index]));
    for mut at in ends {
        while let Some(&above) = predecessor_of(at).and_then(|slot| index_of.get(&slot))
            && let (Some((turn, end, waits_for)), Some(standing)) = (places[at], objects[above].2)
        {
            // Once its patience is at its end it waits for nobody.
            let raised = match turn > standing.at_latest {
                true => (standing.at_latest, objects[above].1, 0),
                false => (turn, end, waits_for + 1),
            };
            if places[above] >= Some(raised) {
                break;
            }
            places[above] = Some(raised);
            at = above;
        }
    }
    places
}
