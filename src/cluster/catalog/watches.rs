//! Who was answered what, so that it can be told when that is not true any more.
//!
//! Bounded in bytes: the name that was asked for least recently leaves, and who watched it is told that it changed, which
//! is always safe.

use lru::LruCache;

use super::entry::Slot;
use super::table::KeyHash;
use crate::cluster::shards::KeyId;

/// Bytes of a watched name beside its path and its watchers: key, links of the order, places in the map.
const FIXED_BYTES: usize = 160;

/// A name, and who watches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// The name.
    pub path: Box<[u8]>,
    /// Who was answered, each once.
    pub watchers: Vec<Slot>,
}

impl Watched {
    fn bytes(&self) -> usize {
        FIXED_BYTES + self.path.len() + self.watchers.capacity() * size_of::<Slot>()
    }
}

/// Watched names, the one that was asked for last first.
#[derive(Debug)]
pub struct Watches {
    names: LruCache<KeyId, Watched, KeyHash>,
    bytes: usize,
    limit: usize,
}

impl Watches {
    /// None yet; at most `limit` bytes of them.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { names: LruCache::unbounded_with_hasher(KeyHash::default()), bytes: 0, limit }
    }

    /// `slot` was answered about `path`.
    pub fn add(&mut self, key: KeyId, path: &[u8], slot: Slot) {
        match self.names.get_mut(&key) {
            Some(watched) => {
                if !watched.watchers.contains(&slot) {
                    self.bytes -= watched.bytes();
                    watched.watchers.push(slot);
                    self.bytes += watched.bytes();
                }
            }
            None => {
                let watched = Watched { path: path.into(), watchers: vec![slot] };
                self.bytes += watched.bytes();
                self.names.put(key, watched);
            }
        }
    }

    /// Who is to be told about `key`. They watch it no more.
    pub fn take(&mut self, key: KeyId) -> Option<Watched> {
        let watched = self.names.pop(&key)?;
        self.bytes -= watched.bytes();
        Some(watched)
    }

    /// The name that was asked for least recently, while there are too many.
    pub fn take_surplus(&mut self) -> Option<(KeyId, Watched)> {
        if self.bytes <= self.limit {
            return None;
        }
        let (key, watched) = self.names.pop_lru()?;
        self.bytes -= watched.bytes();
        Some((key, watched))
    }

    /// Forgets the names for which `is_wanted` does not hold.
    pub fn retain(&mut self, is_wanted: impl Fn(KeyId) -> bool) {
        let surplus: Vec<KeyId> =
            self.names.iter().map(|(&key, _)| key).filter(|&key| !is_wanted(key)).collect();
        for key in surplus {
            self.take(key);
        }
    }

    /// How many names are watched.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Bytes that they take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    #[test]
    fn who_asked_least_recently_is_dropped_first_and_bytes_stay_bounded() {
        let limit = 10 * (FIXED_BYTES + 64);
        let mut watches = Watches::new(limit);
        let mut dropped = Vec::new();
        for number in 0..100_u128 {
            watches.add(KeyId(number), format!("kv/{number}").as_bytes(), slot(1));
            // Asked for again and again.
            watches.add(KeyId(0), b"kv/0", slot(2));
            while let Some((key, watched)) = watches.take_surplus() {
                assert_eq!(&*watched.path, format!("kv/{}", key.0).as_bytes());
                dropped.push(key.0);
            }
            assert!(watches.bytes() <= limit);
        }
        assert!(dropped.len() > 80 && dropped.is_sorted() && !dropped.contains(&0), "{dropped:?}");
        assert_eq!(watches.take(KeyId(0)).unwrap().watchers, [slot(1), slot(2)]);
        watches.retain(|_| false);
        assert_eq!((watches.len(), watches.bytes()), (0, 0));
    }
}
