//! Which object stands under a key that was used a moment ago, to turn a chain's predecessor into an object.
//!
//! A table of fixed size, in sets of [`WAYS`] entries, most recently used first: an entry is 16 bytes and a look-up
//! touches one or two cache lines. A linked list with a hash table beside it would take five times as much.
//!
//! Limits: of the keys that share a set the least recently used is forgotten; 65,536 entries altogether.

use tidefs_engine::types::KeyHash;

use crate::namespace::Ino;

/// Entries of a set.
const WAYS: usize = 8;
/// Sets; a power of two, since the upper bits of a hash choose one.
const SETS: usize = 1 << 13;

/// No inode has number 0, so this is no entry.
const VACANT: (KeyHash, Ino) = (KeyHash(0), Ino(0));

/// See the module page.
#[derive(Debug)]
pub(super) struct Recent {
    sets: Box<[[(KeyHash, Ino); WAYS]]>,
}

impl Default for Recent {
    fn default() -> Self {
        Self { sets: vec![[VACANT; WAYS]; SETS].into() }
    }
}

impl Recent {
    /// Notes that `ino` stands under `key`.
    pub(super) fn put(&mut self, key: KeyHash, ino: Ino) {
        let set = self.set(key);
        let place = set.iter().position(|&(known, _)| known == key).unwrap_or(WAYS - 1);
        set[place] = (key, ino);
        set[..=place].rotate_right(1);
    }

    /// The inode that was noted for `key`, which counts as a use.
    pub(super) fn get(&mut self, key: KeyHash) -> Option<Ino> {
        let set = self.set(key);
        let place = set.iter().position(|&(known, ino)| known == key && ino != VACANT.1)?;
        set[..=place].rotate_right(1);
        Some(set[0].1)
    }

    fn set(&mut self, key: KeyHash) -> &mut [(KeyHash, Ino); WAYS] {
        let index = key.0 >> (u64::BITS - SETS.trailing_zeros());
        &mut self.sets[usize::try_from(index).expect("the index has 13 bits")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys of one set.
    fn key(number: u64) -> KeyHash {
        KeyHash(5 << 60 | number)
    }

    #[test]
    fn the_latest_inode_of_a_key_is_known() {
        let mut recent = Recent::default();
        assert_eq!((recent.get(key(0)), recent.get(KeyHash(0))), (None, None));
        recent.put(key(1), Ino(1));
        recent.put(key(2), Ino(2));
        recent.put(key(1), Ino(3));
        assert_eq!(
            (recent.get(key(1)), recent.get(key(2)), recent.get(key(3))),
            (Some(Ino(3)), Some(Ino(2)), None)
        );
    }

    #[test]
    fn of_a_full_set_the_least_recently_used_key_is_forgotten() {
        let mut recent = Recent::default();
        (0..WAYS as u64).for_each(|number| recent.put(key(number), Ino(number + 1)));
        assert_eq!(recent.get(key(0)), Some(Ino(1)));
        recent.put(key(100), Ino(101));
        assert_eq!(recent.get(key(1)), None);
        for number in [0, 2, 3, 4, 5, 6, 7] {
            assert_eq!(recent.get(key(number)), Some(Ino(number + 1)));
        }
    }
}
