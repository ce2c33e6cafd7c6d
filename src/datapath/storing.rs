//! The way of an object to its disk, from the moment that it is sent to the answer.
//!
//! Invariants
//! - A record is handed over under the lock, while its key still stands for that version at that place: what removes
//!   or replaces it later finds the record on its way.
//! - Bytes leave memory only when the record that stands says what the object is now: it is stale from the moment that it is sent
//!   to that in which it is handed over, and what is said of it then is what it is then.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;

use tidefs_engine::memory::Mapping;
use tidefs_engine::types::{ByteCount, Checksum, Version};

use super::burial::Doomed;
use super::history::Ending;
use super::ssd::Lent;
use super::{Datapath, Marks, Object, Phase, Place, State};
use crate::namespace::{Ino, Slot};
use crate::tier::memory::{ObjectRecord, PackedExtent};
use crate::tier::ssd::{Put, Refused, Source, Stored};

/// Which object was sent: of a version, under the name that it had then.
#[derive(Debug)]
struct Sent {
    ino: Ino,
    version: Version,
    key: Vec<u8>,
    size: ByteCount,
    /// As in [`Lent`].
    was_stale: bool,
    leaves: Option<Ending>,
    /// As in [`Put`].
    is_copy: bool,
}

/// Where its bytes are.
enum Bytes {
    None,
    Segment(Arc<Mapping>),
    /// Packed: read under the lock, for the extent may be another object's without it.
    Packed(PackedExtent),
}

/// What became of the attempt to hand a record over.
enum Handed {
    Taken,
    /// The object left, or moved: what is there now is sent another time.
    Changed,
    /// With what the tier says, if it was asked.
    Refused(String, Option<Refused>),
}

impl Datapath {
    /// Leaves an object to the SSD tier. `told`: who wants to know when that has ended. Returns whether it is taken.
    pub(super) fn store(&self, lent: Lent, durable: bool, told: Option<SyncSender<()>>) -> bool {
        let counted = if lent.leaves.is_none() { ByteCount::ZERO } else { lent.size };
        self.lent.fetch_add(counted.get(), Ordering::Relaxed);
        let version = lent.record.version;
        let sent = Arc::new(Sent {
            ino: lent.ino,
            version,
            key: lent.key.clone(),
            size: lent.size,
            was_stale: lent.was_stale,
            leaves: lent.leaves,
            is_copy: lent.leaves.is_none() && !durable,
        });
        let weak = self.this.get().cloned().unwrap_or_default();
        let told_as = Arc::clone(&sent);
        let done = move |stored| {
            if let Some(datapath) = weak.upgrade() {
                datapath.lent.fetch_sub(counted.get(), Ordering::Relaxed);
                datapath.stored(&told_as, stored, None);
            }
            if let Some(told) = told {
                // Who asked may have stopped waiting.
                let _ = told.try_send(());
            }
        };
        let handed = match self.bytes_to_store(&lent) {
            Ok((bytes, checksum)) => self.hand_over(lent, &sent, (bytes, checksum), durable, done),
            Err(error) => Handed::Refused(error.to_string(), None),
        };
        match handed {
            Handed::Taken => return true,
            Handed::Changed => {
                self.lent.fetch_sub(counted.get(), Ordering::Relaxed);
                return true;
            }
            Handed::Refused(reason, refused) => {
                tracing::debug!(ino = sent.ino.0, reason, "an evicted object is not stored");
                self.lent.fetch_sub(counted.get(), Ordering::Relaxed);
                self.stored(&sent, Stored::Failed, refused);
            }
        }
        false
    }

    /// Leaves the record to the SSD tier, if its object is as it was when it was sent.
    fn hand_over(
        &self,
        lent: Lent,
        sent: &Sent,
        (bytes, checksum): (Bytes, Option<Checksum>),
        durable: bool,
        done: impl FnOnce(Stored) + Send + 'static,
    ) -> Handed {
        let Some(ssd) = self.ssd.get() else {
            return Handed::Refused("there is no SSD tier".to_owned(), None);
        };
        let mut state = self.lock();
        let Some(slot) = state.slot_of_sent(sent) else { return Handed::Changed };
        let is_another =
            |object: &Object| !object.place.is_same(&lent.place) || object.marks.has(Marks::DECORATED);
        if state.object(slot).is_none_or(is_another) {
            state.readmit(slot);
            if let Some(object) = state.object_mut(slot) {
                object.was_not_stored(lent.was_stale);
            }
            return Handed::Changed;
        }
        let source = match bytes {
            Bytes::None => Ok(Source::Bytes(Vec::new())),
            Bytes::Segment(mapping) => Ok(Source::Segment(mapping)),
            Bytes::Packed(extent) => {
                let bytes = self.tier.read_packed_whole(&extent, lent.size);
                bytes.map(Source::Bytes).map_err(io::Error::other)
            }
        };
        let put = source.and_then(|source| {
            let directory = state.directory_id(state.tree.node(slot).parent).map_err(io::Error::other)?;
            let record = state.object_record(slot, directory, &state.tree.name(slot));
            let record = ObjectRecord { checksum, ..record };
            let meta = record.encode().map_err(io::Error::other)?;
            Ok(Put {
                key: lent.key,
                meta,
                version: sent.version,
                length: lent.size,
                checksum,
                source,
                durable,
                owner: lent.slot.0,
                uses: lent.uses,
                is_copy: sent.is_copy,
            })
        });
        let put = match put {
            Ok(put) => put,
            Err(error) => return Handed::Refused(error.to_string(), None),
        };
        // It does not wait for a disk.
        let ctime_ns = lent.record.ctime_ns;
        match ssd.put(put, done) {
            Ok(()) => {
                if let Some(object) = state.object_mut(slot) {
                    object.marks.set(Marks::STALE_ON_SSD, false);
                }
                Handed::Taken
            }
            Err(Refused::Underway) => {
                // It was needed for a moment on its way; the end of that way decides. What is on its way may say less.
                let has_changed = state.tree.node(slot).attributes.ctime_ns != ctime_ns;
                if let Some(object) = state.object_mut(slot) {
                    object.marks.set(Marks::STALE_ON_SSD, lent.was_stale || has_changed);
                }
                Handed::Changed
            }
            Err(refused) => Handed::Refused(format!("{refused:?}"), Some(refused)),
        }
    }

    /// Where the bytes are, for the SSD tier; and their checksum, when it was taken and still holds.
    fn bytes_to_store(&self, lent: &Lent) -> io::Result<(Bytes, Option<Checksum>)> {
        let mut checksum = lent.record.checksum;
        let bytes = match &lent.place {
            _ if lent.size == ByteCount::ZERO => Bytes::None,
            Place::Solo(segment) => {
                let (file, mapping) = self.lend_mapping(*segment, lent.ino, || {
                    let file = self.tier.open_segment(*segment).map_err(io::Error::other)?;
                    let mapping = Arc::new(Mapping::new(&file, lent.size)?);
                    Ok((file, mapping))
                })?;
                if !lent.may_change {
                    let kept = self.tier.read_record(&file).map_err(io::Error::other)?;
                    checksum = kept.and_then(|kept| kept.checksum);
                }
                Bytes::Segment(mapping)
            }
            Place::Packed(extent) => Bytes::Packed(*extent),
            Place::Scratch(_) | Place::Ssd | Place::Remote | Place::Freed => {
                return Err(io::ErrorKind::InvalidInput.into());
            }
        };
        Ok((bytes, checksum))
    }

    /// The way of an object to its disk has ended, before it began when it was `refused`.
    fn stored(&self, sent: &Sent, stored: Stored, refused: Option<Refused>) {
        let doomed = {
            let mut state = self.lock();
            // Under another name by now, it is on another way, or on none.
            let Some(slot) = state.slot_of_sent(sent) else { return };
            if stored != Stored::Yes
                && let Some(object) = state.object_mut(slot)
            {
                object.was_not_stored(sent.was_stale && stored == Stored::Failed);
                // A copy of what stays costs nothing.
                if !sent.is_copy || object.marks.has(Marks::STORING) {
                    self.telemetry.ssd_refusals.increment();
                }
            }
            let Some(object) = state.object(slot) else { return };
            let is_storing = object.marks.has(Marks::STORING);
            let is_used = object.is_open()
                || object.next_version().is_some()
                || state.effective_policy(slot).is_hard_pinned();
            // Its attributes may have changed since it was sent, and its zone been lost.
            let stands = self.ssd.get().is_some_and(|ssd| self.stands_on_ssd(ssd, &state, slot));
            let has_changed = stored == Stored::Yes && !stands;
            match (is_storing, stored) {
                (true, _) if is_used || has_changed => {
                    state.readmit(slot);
                    return;
                }
                (true, Stored::Yes) => {
                    self.telemetry.ssd_demotions.increment();
                    self.telemetry.ssd_demoted_bytes.add(sent.size.get());
                    self.demote(&mut state, slot)
                }
                // No disk took it, and room was needed.
                (true, Stored::Superseded | Stored::Failed) => {
                    let ending = match sent.leaves {
                        Some(ending @ (Ending::EvictedByOperator | Ending::EvictedForQuota)) => ending,
                        _ => Ending::NotStored(refused),
                    };
                    state.evict_object(slot, self.now_ns(), ending)
                }
                (false, _) => return,
            }
        };
        // Only now: what was used on its way has stayed.
        self.count_evictions(std::slice::from_ref(&doomed));
        self.bury(doomed);
    }

    /// An object with a record on SSD gives up its bytes in memory. Nobody has it open.
    pub(super) fn demote(&self, state: &mut State, slot: Slot) -> Doomed {
        state.count_eviction(slot);
        let ino = state.tree.ino(slot);
        if let Some(kernel) = self.kernel.get() {
            // Under the lock: whoever opens it next has the kernel serve it from another segment, and while it is open two
            // backing files of one inode mean EIO.
            kernel.release_backing(ino);
        }
        let (mut place, mut size) = (Place::Ssd, ByteCount::ZERO);
        if let Some(object) = state.object_mut(slot) {
            size = object.size;
            place = object.move_to(Place::Ssd);
            // From now on it may leave its name without a word of these bytes.
            self.retire(&place);
            object.marks.set(Marks::STORING, false);
            object.settle();
        }
        state.mark_unverified(slot, false);
        state.note_moved(slot);
        Doomed::bytes_only(place, size, ino)
    }
}

impl Object {
    /// What was sent did not become its record. `was_stale`: the one that stood before says other things of it, and stands.
    fn was_not_stored(&mut self, was_stale: bool) {
        self.marks.set(Marks::ON_SSD, was_stale);
        if was_stale {
            self.marks.set(Marks::STALE_ON_SSD, true);
        }
    }
}

impl State {
    /// Where the object is that was sent, if it is that version under that name still.
    fn slot_of_sent(&self, sent: &Sent) -> Option<Slot> {
        let slot = self.tree.by_ino(sent.ino)?;
        let is_same = |object: &Object| object.version == sent.version && object.phase == Phase::Sealed;
        (self.object(slot).is_some_and(is_same) && self.ssd_key(slot).as_ref() == Some(&sent.key))
            .then_some(slot)
    }
}
