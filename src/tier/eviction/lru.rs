//! Exact least-recently-used, one list per class, for those who want what they know.
//!
//! The lists are of the `lru` crate, which cannot insert in the middle. An object that was held, or came from
//! another class, gets its old place back nevertheless: it waits in `returned`, ordered by its last touch, until
//! it is touched again.
//!
//! Invariants
//! - An object stands either in the list of its class or in `aside`; in `returned` too if it is aside but free.
//! - The victim is the least recent of the lists' tails and the first of `returned`, in the lowest class.
//!
//! Cost: O(classes in use) and O(log objects aside). No ghost: nothing that leaves is remembered, and no chains.

use std::collections::BTreeMap;

use ::lru::LruCache;
use hashbrown::HashMap;
use tidefs_engine::types::KeyHash;

use super::standing::Standing;
use super::{Departure, Eviction, ObjectSlot, RetentionClass};

/// See the module page.
#[derive(Debug, Default)]
pub struct Lru {
    lists: BTreeMap<RetentionClass, RecencyList>,
    aside: HashMap<ObjectSlot, Aside>,
    returned: BTreeMap<(RetentionClass, u64), ObjectSlot>,
    clock: u64,
    len: usize,
}

/// Objects of one class that were touched since they became evictable; the value is the last touch.
#[derive(Debug)]
struct RecencyList {
    cache: LruCache<ObjectSlot, u64>,
    /// Most objects it ever held: its table does not shrink.
    peak: usize,
}

/// An object that its list cannot place.
#[derive(Clone, Copy, Debug)]
struct Aside {
    class: RetentionClass,
    touched: u64,
    held: bool,
}

impl Lru {
    /// An empty policy.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts an object at the recent end of its class.
    fn push(&mut self, object: ObjectSlot, class: RetentionClass, touched: u64) {
        let list =
            self.lists.entry(class).or_insert_with(|| RecencyList { cache: LruCache::unbounded(), peak: 0 });
        list.cache.put(object, touched);
        list.peak = list.peak.max(list.cache.len());
    }

    /// Takes an object out of wherever it stands.
    fn take(&mut self, object: ObjectSlot) -> Option<Aside> {
        if let Some(aside) = self.aside.remove(&object) {
            if !aside.held {
                self.returned.remove(&(aside.class, aside.touched));
            }
            return Some(aside);
        }
        self.lists.iter_mut().find_map(|(&class, list)| {
            list.cache.pop(&object).map(|touched| Aside { class, touched, held: false })
        })
    }

    fn put_aside(&mut self, object: ObjectSlot, place: Aside) {
        self.aside.insert(object, place);
        if !place.held {
            self.returned.insert((place.class, place.touched), object);
        }
    }

    /// Evictable objects of the lists, coldest first.
    fn listed(&self) -> impl Iterator<Item = ((RetentionClass, u64), ObjectSlot)> {
        self.lists.iter().flat_map(|(&class, list)| {
            list.cache.iter().rev().map(move |(&object, &touched)| ((class, touched), object))
        })
    }
}

impl Eviction for Lru {
    fn name(&self) -> &'static str {
        super::LRU
    }

    fn insert(
        &mut self,
        object: ObjectSlot,
        _key: KeyHash,
        _predecessor: Option<ObjectSlot>,
        class: RetentionClass,
    ) {
        self.remove(object, Departure::Gone);
        self.clock += 1;
        self.len += 1;
        self.push(object, class, self.clock);
    }

    fn touch(&mut self, object: ObjectSlot) {
        let touched = self.clock + 1;
        if let Some(list) = self.lists.values_mut().find(|list| list.cache.contains(&object)) {
            list.cache.put(object, touched);
        } else if let Some(place) = self.take(object) {
            if place.held {
                self.put_aside(object, Aside { touched, ..place });
            } else {
                self.push(object, place.class, touched);
            }
        } else {
            return;
        }
        self.clock = touched;
    }

    fn set_held(&mut self, object: ObjectSlot, held: bool) {
        if let Some(place) = self.take(object) {
            self.put_aside(object, Aside { held, ..place });
        }
    }

    fn set_class(&mut self, object: ObjectSlot, class: RetentionClass) {
        if let Some(place) = self.take(object) {
            self.put_aside(object, Aside { class, ..place });
        }
    }

    fn remove(&mut self, object: ObjectSlot, _departure: Departure) {
        if self.take(object).is_some() {
            self.len -= 1;
        }
        self.lists.retain(|_, list| !list.cache.is_empty());
    }

    fn victim(&mut self) -> Option<ObjectSlot> {
        let returned = self.returned.first_key_value().map(|(&place, &object)| (place, object));
        self.listed().take(1).chain(returned).min().map(|(_, object)| object)
    }

    fn coldest(&mut self, limit: usize) -> Vec<ObjectSlot> {
        let mut listed = self.listed().peekable();
        let mut returned = self.returned.iter().map(|(&place, &object)| (place, object)).peekable();
        let merged = std::iter::from_fn(|| match (listed.peek(), returned.peek()) {
            (Some(left), Some(right)) if right < left => returned.next(),
            (Some(_), _) => listed.next(),
            (None, _) => returned.next(),
        });
        merged.map(|(_, object)| object).take(limit).collect()
    }

    fn standing(&self, object: ObjectSlot) -> Option<Standing> {
        if let Some(place) = self.aside.get(&object) {
            return Some(Standing::alone(place.class, place.touched));
        }
        let mut lists = self.lists.iter();
        lists.find_map(|(&class, list)| Some(Standing::alone(class, *list.cache.peek(&object)?)))
    }

    fn last_touch(&self, object: ObjectSlot) -> Option<u64> {
        self.standing(object).map(|standing| standing.turn.score)
    }

    fn len(&self) -> usize {
        self.len
    }

    /// Sizes that the crates do not tell are derived from their layout: a list's entry is a box of key, value
    /// and two links; a table has a power of two of buckets, 7/8 of them in use, each with one control byte.
    fn memory_bytes(&self) -> usize {
        let entry = size_of::<(ObjectSlot, u64, usize, usize)>();
        let lists: usize = self
            .lists
            .values()
            .map(|list| list.cache.len() * entry + buckets(list.peak) * (size_of::<(usize, usize)>() + 1))
            .sum();
        let returned = self.returned.len() * size_of::<(RetentionClass, u64, ObjectSlot)>() * 3 / 2;
        lists + self.aside.allocation_size() + returned
    }
}

/// Buckets of a hash table that holds `entries`.
fn buckets(entries: usize) -> usize {
    if entries == 0 { 0 } else { (entries * 8 / 7 + 1).next_power_of_two() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(count: u32) -> Lru {
        let mut lru = Lru::new();
        for slot in 0..count {
            lru.insert(ObjectSlot(slot), KeyHash(slot.into()), None, RetentionClass::NORMAL);
        }
        lru
    }

    #[test]
    fn a_released_object_stands_where_it_stood_before_it_was_held() {
        let mut lru = with(4);
        lru.set_held(ObjectSlot(1), true);
        lru.touch(ObjectSlot(0));
        assert_eq!(lru.coldest(9), [2, 3, 0].map(ObjectSlot));
        lru.set_held(ObjectSlot(1), false);
        assert_eq!(lru.coldest(9), [1, 2, 3, 0].map(ObjectSlot));
        lru.touch(ObjectSlot(1));
        assert_eq!(lru.coldest(9), [2, 3, 0, 1].map(ObjectSlot));
    }

    #[test]
    fn an_object_keeps_its_recency_in_another_class() {
        let mut lru = with(3);
        lru.set_class(ObjectSlot(0), RetentionClass::SOFT_PIN);
        assert_eq!(lru.coldest(9), [1, 2, 0].map(ObjectSlot));
        lru.set_class(ObjectSlot(0), RetentionClass::NORMAL);
        assert_eq!(lru.coldest(9), [0, 1, 2].map(ObjectSlot));
    }
}
