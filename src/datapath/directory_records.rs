//! What a directory is, kept where a start finds it: in memory, and on SSD, where a host that lost its memory finds it.
//!
//! Without the record of a directory on SSD what is below it is found by no start that has lost its memory. So a record that
//! no disk took is sent again, until one does; and one that stands on a disk which the next start does not trust goes to another:
//! what is below the directory may stand there.
//!
//! Threads: [`Datapath::keep_unkept`] is called by the demoter; the rest by any, under the lock.

use std::time::Duration;

use super::ssd::directory_key;
use super::{Datapath, Error, State};
use crate::namespace::Slot;
use crate::tier::ssd::{Put, Source, Stored};
use tidefs_engine::types::{ByteCount, DirectoryId};

/// How long a record that no disk took waits before it is sent again.
pub(super) const UNKEPT_PAUSE: Duration = Duration::from_secs(1);

impl Datapath {
    /// Keeps what a directory is, in both tiers. Of one that was removed, and that somebody still has open, nothing is kept.
    pub(super) fn persist_directory(&self, state: &mut State, slot: Slot) -> Result<(), Error> {
        if !state.tree.is_living_directory(slot) {
            return Ok(());
        }
        self.tier.put_directory(&state.directory_record(slot))?;
        self.keep_directory(state, slot);
        Ok(())
    }

    /// Keeps what a directory is on SSD too. When no disk takes it now, it is sent again later.
    pub(super) fn keep_directory(&self, state: &mut State, slot: Slot) {
        let Some(ssd) = self.ssd.get() else { return };
        if !state.tree.is_living_directory(slot) {
            return;
        }
        let Some(directory) = state.tree.directory(slot).map(|directory| directory.id) else { return };
        let (record, version) = (state.directory_record(slot), state.take_version());
        let meta = match record.encode() {
            Ok(meta) => meta,
            Err(error) => {
                tracing::warn!(directory = directory.0, %error, "a directory is kept in memory only");
                return;
            }
        };
        let put = Put {
            key: directory_key(directory),
            meta,
            version,
            length: ByteCount::ZERO,
            checksum: None,
            source: Source::Bytes(Vec::new()),
            durable: false,
            owner: slot.0,
            uses: 0,
            is_copy: false,
        };
        let weak = self.this.get().cloned().unwrap_or_default();
        let done = move |stored| {
            if stored == Stored::Failed
                && let Some(datapath) = weak.upgrade()
            {
                datapath.unkept.lock().insert(slot);
            }
        };
        if let Err(refused) = ssd.put(put, done) {
            tracing::debug!(directory = directory.0, ?refused, "a directory is kept in memory only, for now");
            self.unkept.lock().insert(slot);
        }
    }

    /// Sends the records of directories again that no disk took.
    pub(super) fn keep_unkept(&self) {
        let unkept = std::mem::take(&mut *self.unkept.lock());
        if !unkept.is_empty() {
            let mut state = self.lock();
            // One that is gone has a slot without a directory, or with another one, which then is written once more.
            unkept.into_iter().for_each(|slot| self.keep_directory(&mut state, slot));
        }
    }

    /// Sends the records of directories to other disks that stand where the next start gives them up. `known`: the disks for which
    /// that was done. The tree is looked at once for each, under the lock, as a listing of the whole mount does.
    pub(super) fn keep_elsewhere(&self, known: &mut Vec<u8>) {
        let Some(ssd) = self.ssd.get() else { return };
        let outdated = ssd.outdated_disks();
        if outdated.iter().all(|number| known.contains(number)) || !ssd.takes_records() {
            return;
        }
        *known = outdated;
        let mut state = self.lock();
        for (id, slot) in state.directory_slots() {
            if !ssd.outlives_a_start(&directory_key(id)) {
                self.keep_directory(&mut state, slot);
            }
        }
    }

    /// A directory is gone from SSD too.
    pub(super) fn forget_directory(&self, state: &mut State, directory: DirectoryId) {
        if let Some(ssd) = self.ssd.get() {
            // Later than every record that was sent: the last one may be on its way.
            ssd.remove(&directory_key(directory), state.take_version());
        }
    }
}
