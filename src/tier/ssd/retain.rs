//! What of a zone that is taken back is written once more by the writer itself: removals, and records without data.
//!
//! Invariant: a record without data that is written once more does not come behind one that its owner stores of the same
//! version meanwhile.
//!
//! Threads: the disk's writer.

use std::io;

use tidefs_engine::types::Version;

use super::format::{
    BLOCK_BYTES, FooterEntry, RecordFacts, RecordHash, RecordHeader, TOMBSTONES_MAX, Tombstone,
    TombstoneBlock, tombstone_footer_bytes,
};
use super::index::Place;
use super::open_zone::Last;
use super::queue::Retain;
use super::reasons::WrittenFor;
use super::under_way::UnderWay;
use super::writer::Writer;

impl Writer {
    /// Writes what of a zone once more that is being taken back.
    pub(super) fn retain(&mut self, retain: Retain) {
        let Retain { tombstones, records, done } = retain;
        if !records.is_empty() {
            // What is stored once more is not to come before what stood.
            self.reap_all();
        }
        let written = self.write_tombstones(&tombstones, Last::Taken)
            && records.into_iter().all(|(from, facts)| self.write_bare(from, facts));
        self.end_with(written && self.flush(), done);
    }

    /// Writes a record without data once more, and waits. Returns whether it stands, or is not wanted any more.
    fn write_bare(&mut self, from: Place, facts: RecordFacts) -> bool {
        let (hash, version, footer_bytes) = (facts.hash, facts.version, facts.footer_bytes());
        if self.ensure_zone(1, footer_bytes, Last::Taken).is_err() {
            return false;
        }
        let order = {
            let pending = self.shared.pending.lock();
            let found = self.shared.index.get_at(&hash, from);
            let is_wanted = found.is_some_and(|found| found.version == version)
                && !pending.is_stored_elsewhere(hash, version, self.device.number);
            is_wanted.then(|| self.shared.next_order())
        };
        let (Some(order), Some(open)) = (order, self.open.as_mut()) else { return true };
        let (device, sequence) = (self.device.uuid, open.sequence);
        let header = RecordHeader { device, sequence, facts: RecordFacts { order, ..facts } };
        if let Err(error) = self.device.write_frame(open.zone, open.next_block, &header, self.shared.limit) {
            self.device.count_write_error(&error);
            self.abandon_zone();
            return false;
        }
        let to = Place { zone: self.device.zone_id(open.zone), block: open.next_block };
        open.next_block += 1;
        open.footer_bytes += footer_bytes;
        open.entries.push(FooterEntry::Object { block: to.block, facts: header.facts });
        self.device.count_written(WrittenFor::Again, BLOCK_BYTES);
        let pending = self.shared.pending.lock();
        self.move_in_index(&pending, hash, version, (from, to));
        true
    }

    /// A record was written once more. Returns whether it still counts. Called under the lock of what is pending.
    pub(super) fn move_in_index(
        &self,
        under_way: &UnderWay,
        hash: RecordHash,
        version: Version,
        (from, to): (Place, Place),
    ) -> bool {
        let stands = self.shared.index.relocate(&hash, version, from, to);
        if !stands {
            let comes_from_here = from.zone.device() == self.device.number;
            match self.shared.index.get(&hash) {
                // Its owner stored it again, and takes along what stands of it on the same disk.
                Some(found) if found.version == version => {
                    self.shared.note_on_another(&hash, version, self.device.number);
                }
                // It is hidden by what was left for the disk from which it comes.
                Some(found) if found.version > version && comes_from_here => {}
                // Nobody knows the copy: a start must not find it.
                _ => _ = self.shared.bury(under_way, &self.device, hash, version),
            }
        }
        stands
    }

    /// Writes removals and waits. Returns whether they are written.
    pub(super) fn write_tombstones(&mut self, tombstones: &[Tombstone], last: Last) -> bool {
        tombstones.chunks(TOMBSTONES_MAX).all(|chunk| self.write_tombstone_block(chunk, last))
    }

    fn write_tombstone_block(&mut self, tombstones: &[Tombstone], last: Last) -> bool {
        const ATTEMPTS: u32 = 3;
        let footer_bytes = tombstone_footer_bytes(tombstones.len());
        for _ in 0..ATTEMPTS {
            if self.ensure_zone(1, footer_bytes, last).is_err() {
                return false;
            }
            let Some(open) = self.open.as_mut() else { return false };
            let tombstones = {
                // A removal of what stands again comes before this, or leaves one for this disk, too.
                let _pending = self.shared.pending.lock();
                let as_of_now = |tombstone| self.shared.as_of_now(self.device.number, tombstone);
                tombstones.iter().map(as_of_now).collect()
            };
            let block = TombstoneBlock { device: self.device.uuid, sequence: open.sequence, tombstones };
            match self.device.write_frame(open.zone, open.next_block, &block, self.shared.limit) {
                Ok(()) => {
                    open.next_block += 1;
                    open.footer_bytes += footer_bytes;
                    open.entries.push(FooterEntry::Tombstones(block.tombstones));
                    self.device.count_written(WrittenFor::Removals, BLOCK_BYTES);
                    return true;
                }
                Err(error) => {
                    self.device.count_write_error(&error);
                    self.end_zone_after(&error);
                }
            }
        }
        false
    }

    /// Removals could not be written at the end of the open zone. What stands in it can be read as before; the next start finds
    /// it, whatever it finds of them.
    fn end_zone_after(&mut self, error: &io::Error) {
        if error.kind() == io::ErrorKind::TimedOut {
            // They may be written yet, when another record stands there.
            return self.abandon_zone();
        }
        if let Some(open) = self.open.as_mut() {
            open.next_block += 1;
        }
        self.close_zone();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use tidefs_engine::types::Version;

    use super::super::testing::*;
    use super::super::writer::Writer;
    use super::super::{SsdConfig, Stored};

    /// Three of them fill a zone.
    const THIRD: usize = 15 * 4096;

    #[test]
    fn a_removal_that_comes_when_all_zones_are_full_and_the_tier_ends_is_noted() {
        let (disk, config) = (MemoryDisk::new(), config(1, 8));
        let tier = tier_on(std::slice::from_ref(&disk), &config);
        recover(&tier);
        // As when the tier ends: no zone is taken back any more.
        tier.shared.is_reclaim_over.store(true, Ordering::Relaxed);
        let device = Arc::clone(&tier.shared.devices.all()[0]);
        let writer = Writer::new(Arc::clone(&tier.shared), Arc::clone(&device));
        let writer = std::thread::spawn(move || writer.run());
        let stored =
            (0..100_u8).take_while(|number| store(&tier, &[*number], 1, THIRD) == Stored::Yes).count();
        assert!((9..99).contains(&stored), "{stored} find room");
        tier.remove(&[0], Version(1));
        device.queue.close();
        writer.join().unwrap();
        assert_eq!((tier.status().lost_removals, tier.records()), (0, stored - 1));
        let content = disk.content.lock().clone();
        assert_eq!(found_on(content, &config).len(), stored - 1);
    }

    #[test]
    fn a_disk_without_room_for_removals_when_the_tier_ends_is_trusted_by_the_next_start() {
        let directory = tempfile::tempdir().unwrap();
        let [intents, epochs] = ["intents", "epochs"].map(|name| Some(directory.path().join(name)));
        let config = SsdConfig { intents, epochs, ..config(1, 8) };
        let disk = MemoryDisk::new();
        let tier = tier_on(std::slice::from_ref(&disk), &config);
        recover(&tier);
        tier.shared.is_reclaim_over.store(true, Ordering::Relaxed);
        let device = Arc::clone(&tier.shared.devices.all()[0]);
        let writer = Writer::new(Arc::clone(&tier.shared), Arc::clone(&device));
        let writer = std::thread::spawn(move || writer.run());
        assert!(["a", "b", "c"].iter().all(|key| store(&tier, key.as_bytes(), 1, THIRD) == Stored::Yes));
        disk.allocate_error.store(libc::ENOSPC, Ordering::Relaxed);
        assert_eq!(store(&tier, b"d", 1, THIRD), Stored::Failed);
        tier.remove(b"a", Version(1));
        device.queue.close();
        writer.join().unwrap();
        assert_eq!(tier.status().lost_removals, 1);
        disk.allocate_error.store(0, Ordering::Relaxed);
        // Unless the machine starts anew before that, it knows what was removed.
        assert_eq!(keys_of(&tier_on(&[disk], &config)), ["b", "c"]);
    }
}
