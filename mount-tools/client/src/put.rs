//! Storing many objects. What is begun and not sealed yet cannot be evicted, so they are stored in rounds: a batch that is larger
//! than the cache passes through it as if its objects were stored one after the other.
//!
//! Limits: a round has [`ROUND_MAX`] objects, and as many bytes as the daemon lets a client keep from being evicted without a use
//! for them, but one object at least. An object for which there is no room is tried once more, alone, unless a smaller one was in vain.

use std::collections::HashSet;

use crate::copied::Copied;
use crate::create::Begun;
use crate::{Cache, Error, writer};

/// Objects of one round: a request or two.
const ROUND_MAX: usize = 512;

impl Cache {
    /// Stores an object, in place of what stood under its key.
    ///
    /// # Errors
    /// As [`Cache::create`].
    pub fn put(&self, key: impl AsRef<[u8]>, bytes: &[u8]) -> Result<(), Error> {
        self.put_many(&[(key, bytes)])
    }

    /// Stores many objects, the first ones first. Each becomes visible whole. They may be more than the cache holds: then it has the
    /// last of them.
    ///
    /// # Errors
    /// [`Error::BadKey`], before anything is stored; else as [`Cache::create`], the first failure after all were tried.
    pub fn put_many<K: AsRef<[u8]>>(&self, objects: &[(K, &[u8])]) -> Result<(), Error> {
        match self.store(objects)?.into_iter().min_by_key(|(index, _)| *index) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    /// As [`Cache::put_many`]. Returns what became of each.
    ///
    /// # Errors
    /// [`Error::BadKey`], before anything is stored.
    pub fn put_each<K: AsRef<[u8]>>(&self, objects: &[(K, &[u8])]) -> Result<Vec<Result<(), Error>>, Error> {
        let mut outcomes: Vec<_> = objects.iter().map(|_| Ok(())).collect();
        for (index, error) in self.store(objects)? {
            outcomes[index] = Err(error);
        }
        Ok(outcomes)
    }

    /// Stores objects, and returns the failures, each with the index of its object.
    fn store<K: AsRef<[u8]>>(&self, objects: &[(K, &[u8])]) -> Result<Vec<(usize, Error)>, Error> {
        objects.iter().try_for_each(|(key, _)| self.files.check_new(key.as_ref()))?;
        let (mut failures, mut start) = (Vec::new(), 0);
        // Length of the smallest object for which there was no room when it was tried alone.
        let mut too_long = usize::MAX;
        while start < objects.len() {
            let round = &objects[start..start + self.round(&objects[start..])];
            for (index, error) in self.store_at_once(round) {
                let length = round[index].1.len();
                if round.len() == 1 || !is_want_of_room(&error) || length >= too_long {
                    failures.push((start + index, error));
                    continue;
                }
                // What was begun beside it is sealed by now, and makes place for it.
                if let Some((_, error)) = self.store_at_once(&round[index..=index]).pop() {
                    if error.errno() == libc::ENOSPC {
                        too_long = length;
                    }
                    failures.push((start + index, error));
                }
            }
            start += round.len();
        }
        Ok(failures)
    }

    /// How many of the objects, from the first on, are stored at once. No two of one key are: they are not stored one after the
    /// other. Nor is any whose key is above or below that of an earlier one: the directory that one of them needs would take the
    /// place of the other.
    fn round<K: AsRef<[u8]>>(&self, objects: &[(K, &[u8])]) -> usize {
        let bytes_max = self.sessions.live().map_or(0, |opened| opened.session.kept_back_max());
        let (mut bytes, mut keys, mut above) = (0_usize, HashSet::new(), HashSet::new());
        let mut count = 0;
        for (key, object) in objects.iter().take(ROUND_MAX) {
            let key = key.as_ref();
            bytes = bytes.saturating_add(object.len());
            let is_below_another = directories_of(key).any(|directory| keys.contains(directory));
            if bytes > bytes_max || is_below_another || above.contains(key) || !keys.insert(key) {
                break;
            }
            above.extend(directories_of(key));
            count += 1;
        }
        count.max(1)
    }

    fn store_at_once<K: AsRef<[u8]>>(&self, objects: &[(K, &[u8])]) -> Vec<(usize, Error)> {
        let (mut failures, mut left) = (Vec::new(), Vec::new());
        for (index, copied) in self.store_copied(objects).into_iter().enumerate() {
            match copied {
                Copied::Stored => {}
                Copied::Failed(error) => failures.push((index, error)),
                Copied::Not => left.push(index),
            }
        }
        if !left.is_empty() {
            self.store_begun(objects, &left, &mut failures);
        }
        failures
    }

    /// Stores those of the objects that `indices` names where they stay, or by file.
    fn store_begun<K: AsRef<[u8]>>(
        &self,
        objects: &[(K, &[u8])],
        indices: &[usize],
        failures: &mut Vec<(usize, Error)>,
    ) {
        let sizes = indices.iter().map(|&index| (objects[index].0.as_ref(), objects[index].1.len()));
        let sizes: Vec<(&[u8], usize)> = sizes.collect();
        let (mut writers, mut begun_of) = (Vec::new(), Vec::new());
        for (begun, &index) in self.begin_all(&sizes).into_iter().zip(indices) {
            let (key, bytes) = &objects[index];
            let stored = match begun {
                Begun::Writer(mut writer) => {
                    writer.copy_from_slice(bytes);
                    writers.push(writer);
                    begun_of.push(index);
                    Ok(())
                }
                Begun::ByFile => self.files.write(&self.files.path_of(key.as_ref()), bytes),
                Begun::Failed(error) => Err(error),
            };
            failures.extend(stored.err().map(|error| (index, error)));
        }
        let unsealed = writer::seal_each(writers);
        if let (true, Some(opened)) = (unsealed.is_empty(), self.sessions.live()) {
            let keys = begun_of.iter().map(|&index| objects[index].0.as_ref());
            opened.session.directories.note_stored(keys);
        }
        failures.extend(unsealed.into_iter().map(|(index, error)| (begun_of[index], error)));
    }
}

/// The directories that a key is below, as keys.
fn directories_of(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    key.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(move |(end, _)| &key[..end])
}

/// Whether something could be stored if there were less else.
fn is_want_of_room(error: &Error) -> bool {
    matches!(error.errno(), libc::ENOSPC | libc::EDQUOT | libc::EMFILE)
}
