//! Which of two records of one version was stored last, where a start meets them on two disks.
//!
//! On one disk that in the later zone was. Two disks have zones open at the same time, and a record of the one that was opened
//! first may be the later one: orders, which all disks of a pool share, decide.
//!
//! Limits: kept are the orders of the zones that took records when the one that is read was opened: about one for each disk,
//! at 16 bytes for each record.
//! Threads: the one that builds the index, zone by zone, those that were opened first first.

use hashbrown::HashMap;

use super::contents::records_in;
use super::format::{FooterEntry, Order};
use super::index::{Place, ZoneId};

/// The orders of one zone.
#[derive(Debug)]
struct ZoneOrders {
    last: Order,
    /// By block.
    records: Vec<(u32, Order)>,
}

/// The orders of the zones that overlap that which is read.
#[derive(Debug, Default)]
pub(super) struct Orders {
    zones: HashMap<ZoneId, ZoneOrders>,
}

impl Orders {
    /// A zone is read that was opened at `sequence`. What ended before it is older than all that stands in it and behind it.
    pub(super) fn begin(&mut self, zone: ZoneId, sequence: Order, entries: &[FooterEntry]) {
        self.zones.retain(|_, zone| zone.last > sequence);
        let records = records_in(zone, entries).map(|(place, facts)| (place.block, facts.order));
        let mut records: Vec<(u32, Order)> = records.collect();
        records.sort_unstable();
        let last = records.iter().map(|&(_, order)| order).max().unwrap_or_default();
        self.zones.insert(zone, ZoneOrders { last, records });
    }

    /// Whether the record at `place`, which was read before, was stored after `order`, at which something was that the zone
    /// has that is read now.
    pub(super) fn is_after(&self, place: Place, order: Order) -> bool {
        let Some(ZoneOrders { records, .. }) = self.zones.get(&place.zone) else { return false };
        let found = records.binary_search_by_key(&place.block, |&(block, _)| block);
        found.is_ok_and(|found| records[found].1 > order)
    }
}

#[cfg(test)]
mod tests {
    //! Shows which record counts of a version that is stored once more, with other attributes.

    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::sync::mpsc::sync_channel;
    use std::time::{Duration, Instant};

    use tidefs_engine::types::{ByteCount, Version};

    use super::super::emptying::NotMoved;
    use super::super::format::RecordFacts;
    use super::super::index::Place;
    use super::super::memory::{Buffer, Memory};
    use super::super::queue::{Job, Next, Retain, report_to};
    use super::super::testing::*;
    use super::super::writer::Writer;
    use super::super::{DroppedFor, Missed, Put, ReadFor, SsdConfig, SsdTier, Stored};

    const LIMIT: Duration = Duration::from_secs(20);
    const LENGTH: usize = 5000;

    /// The same version with other attributes.
    fn again(key: &[u8], meta: &[u8]) -> Put {
        Put { meta: meta.to_vec(), ..put_of(key, 7, LENGTH) }
    }

    /// What a start finds of a key.
    fn meta_after_a_start(disks: &[Arc<MemoryDisk>], config: &SsdConfig, key: &[u8]) -> Option<Vec<u8>> {
        let tier = tier_on(disks, config);
        recover(&tier);
        tier.describe(key).ok().map(|standing| standing.record.meta)
    }

    fn disk_of(tier: &SsdTier, key: &[u8]) -> Vec<u8> {
        tier.shared.disks_of(tier.shared.hash(key))
    }

    /// A tier with `key` in the zone of the second disk, which was opened after that of the first one and is being emptied.
    fn on_a_leaving_disk(disks: &[Arc<MemoryDisk>], config: &SsdConfig) -> SsdTier {
        let (tier, _) = running(disks, config);
        assert_eq!(store(&tier, b"first", 1, 9 * LENGTH), Stored::Yes);
        assert_eq!(store_put(&tier, again(b"key", b"before")), Ok(Stored::Yes));
        assert_eq!((disk_of(&tier, b"first"), disk_of(&tier, b"key")), (vec![0], vec![1]));
        tier.drain(Path::new("disk 1"), None, &mut |_| false).unwrap();
        tier
    }

    #[test]
    fn of_a_version_on_two_disks_a_start_takes_the_record_that_was_stored_last() {
        let (disks, config) = ([MemoryDisk::new(), MemoryDisk::new()], config(2, 12));
        let tier = on_a_leaving_disk(&disks, &config);
        assert_eq!(store_put(&tier, again(b"key", b"after")), Ok(Stored::Yes));
        assert_eq!(disk_of(&tier, b"key"), [0]);
        drop(tier);
        assert_eq!(meta_after_a_start(&disks, &config, b"key").as_deref(), Some(&b"after"[..]));
    }

    #[test]
    fn a_version_that_is_stored_again_on_another_disk_than_its_removal_is_found() {
        let (disks, config) = ([MemoryDisk::new(), MemoryDisk::new()], config(2, 12));
        let tier = on_a_leaving_disk(&disks, &config);
        tier.remove(b"key", Version(7));
        assert!(tier.flush(LIMIT));
        assert_eq!(store_put(&tier, again(b"key", b"after")), Ok(Stored::Yes));
        assert_eq!(disk_of(&tier, b"key"), [0]);
        drop(tier);
        assert_eq!(meta_after_a_start(&disks, &config, b"key").as_deref(), Some(&b"after"[..]));
    }
    /// Leaves a record to be stored, and waits until the disk has it, which does not end it.
    fn begin_again(tier: &SsdTier, disk: &MemoryDisk, key: &[u8]) {
        let before = disk.held.lock().len();
        disk.hangs_writes.store(true, Ordering::Relaxed);
        tier.put(again(key, b"after"), |_| ()).unwrap();
        wait_until(|| disk.held.lock().len() > before);
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        let end = Instant::now() + LIMIT;
        while !is_so() {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Where a record stands, and what it says.
    fn standing(tier: &SsdTier, key: &[u8], length: usize) -> (Place, RecordFacts) {
        let place = tier.shared.index.get(&tier.shared.hash(key)).unwrap().place;
        let memory = Memory::Buffer(Arc::new(Buffer::zeroed(length)));
        let facts = tier.shared.load_from(place, ByteCount(length as u64), &memory, ReadFor::Again);
        (place, facts.unwrap())
    }

    #[test]
    fn reclaim_moves_no_record_behind_one_of_its_version_that_is_being_stored() {
        let (disk, config) = (MemoryDisk::new(), config(1, 12));
        let (tier, _) = running(std::slice::from_ref(&disk), &config);
        assert_eq!(store_put(&tier, again(b"key", b"before")), Ok(Stored::Yes));
        let (place, facts) = standing(&tier, b"key", LENGTH);
        begin_again(&tier, &disk, b"key");
        let device = Arc::clone(&tier.shared.devices.all()[0]);
        let moved = tier.shared.rewrite(&device, &device, place, &facts);
        assert_eq!(moved.err(), Some(NotMoved::HeldUp));
        disk.let_go();
        assert!(tier.flush(LIMIT));
        drop(tier);
        assert_eq!(meta_after_a_start(&[disk], &config, b"key").as_deref(), Some(&b"after"[..]));
    }

    /// It was to be moved before it was stored again, and its turn comes while the other disk has not ended that.
    #[test]
    fn what_waits_to_be_moved_stays_where_it_stood_when_its_version_is_being_stored() {
        let (disks, config) = ([(); 3].map(|()| MemoryDisk::new()), config(3, 12));
        let (tier, _) = running(&disks, &config);
        assert_eq!(store_put(&tier, again(b"key", b"before")), Ok(Stored::Yes));
        assert_eq!(disk_of(&tier, b"key"), [0]);
        tier.drain(Path::new("disk 0"), None, &mut |_| false).unwrap();
        let (place, facts) = standing(&tier, b"key", LENGTH);
        // The writer of the second disk has no zone yet, and waits for one.
        disks[1].holds_allocations.store(true, Ordering::Relaxed);
        let devices = tier.shared.devices.all();
        let moved = tier.shared.rewrite(&devices[0], &devices[1], place, &facts).unwrap();
        assert_eq!(store(&tier, b"first", 1, LENGTH), Stored::Yes);
        begin_again(&tier, &disks[2], b"key");
        disks[1].holds_allocations.store(false, Ordering::Relaxed);
        assert_eq!(moved.recv_timeout(LIMIT), Ok(Stored::Failed));
        assert_eq!(standing(&tier, b"key", LENGTH).0, place);
        disks[2].let_go();
        assert!(tier.flush(LIMIT));
        drop(tier);
        assert_eq!(meta_after_a_start(&disks, &config, b"key").as_deref(), Some(&b"after"[..]));
    }

    /// Gives the next record to a writer without a thread.
    fn take(writer: &mut Writer, tier: &SsdTier, meta: &[u8]) {
        tier.put(Put { meta: meta.to_vec(), ..put_of(DIRECTORY, 7, 0) }, |_| ()).unwrap();
        let Next::Job(Job::Append(append)) = writer.device.queue.next(Duration::ZERO) else { panic!() };
        writer.append(append);
    }

    #[test]
    fn a_record_without_data_is_not_written_once_more_behind_one_that_is_being_stored() {
        let (disk, config) = (MemoryDisk::new(), config(1, 12));
        let tier = tier_on(std::slice::from_ref(&disk), &config);
        recover(&tier);
        let device = Arc::clone(&tier.shared.devices.all()[0]);
        let mut writer = Writer::new(Arc::clone(&tier.shared), device);
        take(&mut writer, &tier, b"before");
        writer.reap_all();
        let records = vec![standing(&tier, DIRECTORY, 0)];
        disk.hangs_writes.store(true, Ordering::Relaxed);
        take(&mut writer, &tier, b"after");
        assert_eq!(disk.held.lock().len(), 1);
        let (sender, receiver) = sync_channel(1);
        let retain = Retain { tombstones: Vec::new(), records, done: report_to(sender) };
        let held = Arc::clone(&disk);
        let letting_go = std::thread::spawn(move || {
            // What would be written before the other has ended is held, too.
            std::thread::sleep(Duration::from_millis(100));
            held.let_go();
        });
        writer.retain(retain);
        letting_go.join().unwrap();
        writer.reap_all();
        assert_eq!(receiver.recv_timeout(LIMIT), Ok(Stored::Yes));
        assert_eq!(meta_after_a_start(&[disk], &config, DIRECTORY).as_deref(), Some(&b"after"[..]));
    }

    #[test]
    fn what_is_being_stored_is_found_though_what_stood_is_damaged() {
        let (disks, config) = ([MemoryDisk::new(), MemoryDisk::new()], config(2, 12));
        let tier = on_a_leaving_disk(&disks, &config);
        let (place, _) = standing(&tier, b"key", LENGTH);
        let offset = tier.shared.devices.all()[1].offset(place.zone.zone(), place.block + 1);
        disks[1].content.lock()[usize::try_from(offset).unwrap()] ^= 1;
        begin_again(&tier, &disks[0], b"key");
        assert_eq!(tier.read(b"key", Version(7), ByteCount(LENGTH as u64)), Err(Missed::Corrupt));
        // The removal of what is damaged comes behind it in the order.
        assert!(SsdTier::flush_disks(&tier.shared.devices.all()[1..], LIMIT));
        disks[0].let_go();
        assert!(tier.flush(LIMIT));
        drop(tier);
        assert_eq!(meta_after_a_start(&disks, &config, b"key").as_deref(), Some(&b"after"[..]));
    }

    #[test]
    fn what_was_stored_again_does_not_come_back_as_it_was_when_its_zone_is_lost() {
        let (disk, config) = (MemoryDisk::new(), config(1, 12));
        let (tier, _) = running(std::slice::from_ref(&disk), &config);
        assert_eq!(store_put(&tier, again(b"key", b"before")), Ok(Stored::Yes));
        // Until another zone is open.
        for version in 10..15 {
            assert_eq!(store(&tier, b"other", version, 9 * LENGTH), Stored::Yes);
        }
        let before = standing(&tier, b"key", LENGTH).0;
        assert_eq!(store_put(&tier, again(b"key", b"after")), Ok(Stored::Yes));
        let place = standing(&tier, b"key", LENGTH).0;
        assert!(place.zone != before.zone);
        let device = Arc::clone(&tier.shared.devices.all()[0]);
        disk.bad_byte.store(device.offset(place.zone.zone(), place.block + 1), Ordering::Relaxed);
        assert_eq!(tier.read(b"key", Version(7), ByteCount(LENGTH as u64)), Err(Missed::Failed));
        disk.bad_byte.store(u64::MAX, Ordering::Relaxed);
        wait_until(|| tier.flush(LIMIT) && !device.may_find_given_up());
        drop(tier);
        assert_eq!(meta_after_a_start(&[disk], &config, b"key"), None);
    }

    /// It took back the zone of what stood, and left it to the record on its way to take along the one before.
    #[test]
    fn what_was_stored_again_does_not_come_back_as_it_was_when_reclaim_was_there_and_then_its_write_fails() {
        let (disk, config) = (MemoryDisk::new(), config(1, 12));
        let (tier, _) = running(std::slice::from_ref(&disk), &config);
        assert_eq!(store_put(&tier, again(b"key", b"before")), Ok(Stored::Yes));
        // Until another zone is open.
        for version in 10..15 {
            assert_eq!(store(&tier, b"other", version, 9 * LENGTH), Stored::Yes);
        }
        let before = standing(&tier, b"key", LENGTH).0;
        assert_eq!(store_put(&tier, again(b"key", b"between")), Ok(Stored::Yes));
        assert!(standing(&tier, b"key", LENGTH).0.zone != before.zone);
        begin_again(&tier, &disk, b"key");
        tier.shared.drop_record(&tier.shared.hash(b"key"), DroppedFor::Room, |_| true);
        // It fails alone.
        disk.next_write_error.store(libc::EFAULT, Ordering::Relaxed);
        disk.let_go();
        wait_until(|| !tier.has(b"key", Version(7)));
        tier.remove(b"key", Version(7));
        assert!(tier.flush(LIMIT));
        drop(tier);
        assert_eq!(meta_after_a_start(&[disk], &config, b"key"), None);
    }

    #[test]
    fn a_version_that_is_stored_again_has_not_settled_before_that_has_ended() {
        let (disk, config) = (MemoryDisk::new(), config(1, 12));
        let (tier, _) = running(std::slice::from_ref(&disk), &config);
        assert_eq!(store_put(&tier, again(b"key", b"before")), Ok(Stored::Yes));
        assert!(tier.has_settled(b"key", Version(7)) && !tier.has_settled(b"key", Version(6)));
        begin_again(&tier, &disk, b"key");
        assert!(tier.holds(b"key") == Some(Version(7)) && !tier.has_settled(b"key", Version(7)));
        disk.let_go();
        assert!(tier.flush(LIMIT) && tier.has_settled(b"key", Version(7)));
    }

    /// Stores versions again and again, as others do with other keys, and uses them so that reclaim moves them. Returns what each
    /// key says in the end.
    fn store_again_and_again(tier: &SsdTier, worker: u8) -> Vec<([u8; 2], Vec<u8>)> {
        let keys: Vec<[u8; 2]> = (0..6).map(|number| [worker, number]).collect();
        let mut last: Vec<Vec<u8>> = vec![Vec::new(); keys.len()];
        for round in 0..150_usize {
            let at = (round * 7 + usize::from(worker) + round / 11) % keys.len();
            let meta = round.to_string().into_bytes();
            if store_put(tier, again(&keys[at], &meta)) == Ok(Stored::Yes) {
                last[at] = meta;
            }
            // One that is gone is stored once more later.
            let _ = tier.read(&keys[(at + 3) % keys.len()], Version(7), ByteCount(LENGTH as u64));
        }
        keys.into_iter().zip(last).collect()
    }

    #[test]
    fn whatever_reclaim_moves_meanwhile_a_start_finds_what_was_stored_last() {
        let (disks, config) = ([MemoryDisk::new(), MemoryDisk::new()], config(2, 8));
        let (tier, _) = running(&disks, &config);
        let last: Vec<_> = std::thread::scope(|scope| {
            let tier = &tier;
            let workers: Vec<_> =
                (0..3).map(|worker| scope.spawn(move || store_again_and_again(tier, worker))).collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        assert!(tier.flush(LIMIT) && tier.status().reclaimed_zones > 0);
        drop(tier);
        let tier = tier_on(&disks, &config);
        recover(&tier);
        let found = |key: &[u8]| tier.describe(key).ok().map(|standing| standing.record.meta);
        let found: Vec<_> = last.iter().filter_map(|(key, meta)| Some((found(key)?, meta))).collect();
        assert!(!found.is_empty() && found.iter().all(|(found, last)| found == *last), "{found:?}");
    }
}
