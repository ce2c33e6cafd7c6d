//! Disks for tests: in memory, with a log of everything that was asked of them, and with faults.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::types::{ByteCount, Version};

use super::disk::{Completion, Disk, Request, Ticket};
use super::format::{BLOCK, ZONES_START};
use super::open::Candidate;
use super::{
    Budget, DroppedFor, Indexed, Missed, Owner, Put, ReadFor, RecoverySummary, Source, SsdConfig, SsdTier,
};

/// One thing that a disk was asked, in order.
#[derive(Clone, Debug)]
pub(super) enum Logged {
    Write { offset: u64, bytes: Arc<Vec<u8>> },
    Flush,
}

/// Counts what is asked of all disks.
static MOMENT: AtomicU64 = AtomicU64::new(0);

/// A disk in memory.
#[derive(Debug, Default)]
pub(super) struct MemoryDisk {
    pub(super) content: Mutex<Vec<u8>>,
    pub(super) log: Mutex<Vec<Logged>>,
    pub(super) keeps_log: AtomicBool,
    /// Reads that touch this byte fail.
    pub(super) bad_byte: AtomicU64,
    /// The error number with which they do, 0 for EIO.
    pub(super) bad_error: AtomicI32,
    pub(super) fails_reads: AtomicBool,
    /// So many of the next ones do.
    pub(super) failing_reads: AtomicU64,
    /// How long each of those takes, in milliseconds, and how many reads there were.
    pub(super) failing_takes: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) fails_writes: AtomicBool,
    /// There is no room for writes of more than a block.
    pub(super) is_full: AtomicBool,
    /// A write of a record with these data fails; none does while it is empty.
    pub(super) refused: Mutex<Vec<u8>>,
    /// The error number with which allocations fail, 0 for none.
    pub(super) allocate_error: AtomicI32,
    /// Allocations, and questions how much is allocated, wait until this is false.
    pub(super) holds_allocations: AtomicBool,
    /// Requests do not end, until they are [let go](Self::let_go).
    pub(super) hangs: AtomicBool,
    /// Writes do not.
    pub(super) hangs_writes: AtomicBool,
    /// Nor does what is asked of its zones, which are behind its superblocks.
    pub(super) hangs_in_zones: AtomicBool,
    /// Loads that were submitted by a thread that looks after them itself.
    pub(super) here: AtomicU64,
    /// Those that have not ended.
    pub(super) held: Mutex<Vec<(Request, Arc<Completion>)>>,
    /// What was written stays, as far as anybody knows, unless the power goes.
    pub(super) fails_flushes: AtomicBool,
    /// When it was last read and first written, among all disks.
    pub(super) last_read: AtomicU64,
    pub(super) first_write: AtomicU64,
    /// The error number with which the next write fails, and that one alone; 0 for none.
    pub(super) next_write_error: AtomicI32,
    /// Whether its length is what it is, as that of a block device.
    pub(super) is_device: AtomicBool,
    /// Most bytes that can be allocated, 0 for any number.
    pub(super) room: AtomicU64,
    /// The error number with which more cannot, 0 for ENOSPC.
    pub(super) room_error: AtomicI32,
}

impl MemoryDisk {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { bad_byte: AtomicU64::new(u64::MAX), ..Self::default() })
    }

    pub(super) fn holding(content: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { content: Mutex::new(content), bad_byte: AtomicU64::new(u64::MAX), ..Self::default() })
    }

    /// It does not hang any more, and does what it was asked meanwhile.
    pub(super) fn let_go(&self) {
        let held = {
            // What is submitted now is held and let go, or not held at all.
            let mut held = self.held.lock();
            self.hangs.store(false, Ordering::Relaxed);
            self.hangs_writes.store(false, Ordering::Relaxed);
            self.hangs_in_zones.store(false, Ordering::Relaxed);
            std::mem::take(&mut *held)
        };
        held.into_iter().for_each(|(request, completion)| self.end(request, &completion));
    }

    fn wait_for_allocations(&self) {
        while self.holds_allocations.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn end(&self, request: Request, completion: &Completion) {
        let outcome = self.perform(&request);
        drop(request);
        completion.end_one(outcome);
    }

    fn perform(&self, request: &Request) -> io::Result<()> {
        let mut content = self.content.lock();
        match request {
            Request::Flush => {
                if self.fails_flushes.load(Ordering::Relaxed) {
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
                if self.keeps_log.load(Ordering::Relaxed) {
                    self.log.lock().push(Logged::Flush);
                }
            }
            Request::Read { offset, pieces } => {
                self.last_read.store(MOMENT.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
                self.reads.fetch_add(1, Ordering::Relaxed);
                let one_less = |left: u64| left.checked_sub(1);
                let fails = self.failing_reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
                if fails.is_ok() || self.fails_reads.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(self.failing_takes.load(Ordering::Relaxed)));
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
                let mut at = usize::try_from(*offset).unwrap();
                for piece in pieces {
                    let end = at + piece.length();
                    let bad = usize::try_from(self.bad_byte.load(Ordering::Relaxed)).unwrap();
                    if (at..end).contains(&bad) {
                        let errno = self.bad_error.load(Ordering::Relaxed);
                        let errno = if errno == 0 { libc::EIO } else { errno };
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                    piece.copy_in(content.get(at..end).ok_or(io::ErrorKind::UnexpectedEof)?);
                    at = end;
                }
            }
            Request::Write { offset, pieces } => {
                self.first_write.fetch_min(MOMENT.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
                if self.fails_writes.load(Ordering::Relaxed) {
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
                let errno = self.next_write_error.swap(0, Ordering::Relaxed);
                if errno != 0 {
                    return Err(io::Error::from_raw_os_error(errno));
                }
                let bytes: Vec<u8> = pieces.iter().flat_map(super::memory::Piece::copy_out).collect();
                if self.is_full.load(Ordering::Relaxed) && bytes.len() > BLOCK {
                    return Err(io::Error::from_raw_os_error(libc::ENOSPC));
                }
                let refused = self.refused.lock();
                if !refused.is_empty() && bytes.get(BLOCK..).is_some_and(|data| data.starts_with(&refused)) {
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
                let at = usize::try_from(*offset).unwrap();
                if content.len() < at + bytes.len() {
                    content.resize(at + bytes.len(), 0);
                }
                content[at..at + bytes.len()].copy_from_slice(&bytes);
                if self.keeps_log.load(Ordering::Relaxed) {
                    self.log.lock().push(Logged::Write { offset: *offset, bytes: Arc::new(bytes) });
                }
            }
        }
        Ok(())
    }
}

impl Disk for MemoryDisk {
    fn submit(&self, requests: Vec<Request>) -> Ticket {
        let (ticket, completion) = Ticket::new(requests.len());
        let is_write = |request: &Request| matches!(request, Request::Write { .. });
        let is_in_zones = |request: &Request| match request {
            Request::Read { offset, .. } | Request::Write { offset, .. } => *offset >= ZONES_START,
            Request::Flush => false,
        };
        {
            let mut held = self.held.lock();
            let hangs_for = |flag: &AtomicBool, is_meant: &dyn Fn(&Request) -> bool| {
                flag.load(Ordering::Relaxed) && requests.iter().any(is_meant)
            };
            let hangs_in_part =
                hangs_for(&self.hangs_writes, &is_write) || hangs_for(&self.hangs_in_zones, &is_in_zones);
            if hangs_in_part || self.hangs.load(Ordering::Relaxed) {
                held.extend(requests.into_iter().map(|request| (request, Arc::clone(&completion))));
                return ticket;
            }
        }
        for request in requests {
            self.end(request, &completion);
        }
        ticket
    }

    fn submit_here(&self, requests: Vec<Request>) -> Ticket {
        self.here.fetch_add(1, Ordering::Relaxed);
        self.submit(requests)
    }

    fn allocate(&self, length: ByteCount) -> io::Result<()> {
        self.wait_for_allocations();
        let errno = self.allocate_error.load(Ordering::Relaxed);
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let room = self.room.load(Ordering::Relaxed);
        if room > 0 && length.get() > room {
            let errno = self.room_error.load(Ordering::Relaxed);
            return Err(io::Error::from_raw_os_error(if errno == 0 { libc::ENOSPC } else { errno }));
        }
        let mut content = self.content.lock();
        let length = usize::try_from(length.get()).unwrap();
        if content.len() < length {
            content.resize(length, 0);
        }
        Ok(())
    }

    fn length(&self) -> io::Result<ByteCount> {
        Ok(ByteCount(self.content.lock().len() as u64))
    }

    fn cut(&self, length: ByteCount) -> io::Result<()> {
        if !self.is_device.load(Ordering::Relaxed) {
            self.content.lock().truncate(usize::try_from(length.get()).unwrap());
        }
        Ok(())
    }

    fn allocated(&self) -> io::Result<ByteCount> {
        self.wait_for_allocations();
        self.length()
    }
}

impl SsdTier {
    /// Reads an object that somebody waits for.
    pub(super) fn read(&self, key: &[u8], version: Version, length: ByteCount) -> Result<Vec<u8>, Missed> {
        self.read_for(key, version, length, ReadFor::Use)
    }
}

/// Its record stays.
pub(super) const DIRECTORY: &[u8] = b"directory";

/// Objects with this bit in their numbers are in memory too.
pub(super) const ELSEWHERE: u32 = 1 << 30;

/// Those with this one are pinned.
pub(super) const PINNED: u32 = 1 << 29;

/// Remembers what it was told.
#[derive(Debug, Default)]
pub(super) struct Told(pub(super) Mutex<Vec<(u32, Version)>>);

impl Owner for Told {
    fn dropped(&self, number: u32, version: Version, _reason: DroppedFor) {
        self.0.lock().push((number, version));
    }

    fn has_elsewhere(&self, number: u32, _version: Version) -> bool {
        number & ELSEWHERE != 0
    }

    fn is_pinned(&self, number: u32, _version: Version) -> bool {
        number & PINNED != 0
    }

    fn must_stay(&self, key: &[u8]) -> bool {
        key == DIRECTORY
    }
}

pub(super) const ZONE: ByteCount = ByteCount(64 * 4096);

/// A tier of `zones` small zones for each disk, without budgets.
pub(super) fn config(disks: usize, zones: u64) -> SsdConfig {
    let capacity = ByteCount(disks as u64 * (ZONES_START + zones * ZONE.get()));
    SsdConfig {
        places: Vec::new(),
        capacity,
        zone_bytes: ZONE,
        budget: Budget {
            bytes_per_second: None,
            bytes_per_day: None,
            queue: Duration::from_secs(3600),
            queue_bytes_max: ByteCount::gib(1),
        },
        io_uring: false,
        intents: None,
        changes: None,
        epochs: None,
        roots: None,
        days: None,
        limit: Duration::from_secs(20),
    }
}

/// A tier on disks in memory, not recovered yet.
pub(super) fn tier_on(disks: &[Arc<MemoryDisk>], config: &SsdConfig) -> SsdTier {
    let candidate = |(number, disk): (usize, &Arc<MemoryDisk>)| Candidate {
        name: format!("disk {number}"),
        disk: Arc::clone(disk) as Arc<dyn Disk>,
        capacity: None,
    };
    let candidates = disks.iter().enumerate().map(candidate).collect();
    SsdTier::with_disks(config, None, candidates, Vec::new(), disks.len()).unwrap()
}

/// The keys that a start finds.
pub(super) fn keys_of(tier: &SsdTier) -> Vec<String> {
    recover(tier).0.into_iter().map(|(key, ..)| String::from_utf8(key).unwrap()).collect()
}

/// What a start finds on a disk, by key.
pub(super) fn found_on(content: Vec<u8>, config: &SsdConfig) -> Vec<String> {
    keys_of(&tier_on(&[MemoryDisk::holding(content)], config))
}

/// What a start finds on copies of disks, of which each takes writes.
pub(super) fn found_on_all(disks: &[Arc<MemoryDisk>], config: &SsdConfig) -> Vec<Vec<u8>> {
    let after: Vec<_> = disks.iter().map(|disk| MemoryDisk::holding(disk.content.lock().clone())).collect();
    recover(&tier_on(&after, config)).0.into_iter().map(|(key, ..)| key).collect()
}

/// Has a disk take no writes from now on, and waits until that is known.
pub(super) fn take_no_writes(tier: &SsdTier, disks: &[Arc<MemoryDisk>], disk: usize) {
    disks[disk].fails_writes.store(true, Ordering::Relaxed);
    disks[disk].fails_flushes.store(true, Ordering::Relaxed);
    let device = Arc::clone(&tier.shared.devices.all()[disk]);
    while !device.is_failing() {
        assert!(!tier.flush(Duration::from_secs(20)));
    }
}

/// Stores other objects until some zones were taken back.
pub(super) fn store_until_reclaimed(tier: &SsdTier, length: usize) {
    let (end, mut version) = (Instant::now() + Duration::from_secs(20), 2);
    while tier.status().reclaimed_zones < 3 {
        assert!(Instant::now() < end, "nothing is taken back");
        store(tier, format!("other {version}").as_bytes(), version, length);
        version += 1;
    }
}

/// What a start finds, as (key, version, length), sorted.
pub(super) fn recover(tier: &SsdTier) -> (Vec<(Vec<u8>, u64, u64)>, RecoverySummary) {
    let mut found = Vec::new();
    let Indexed { summary, mut unnamed, .. } = tier.index(&|_| false);
    while let Some(standing) = tier.next_unnamed(&mut unnamed) {
        for one in standing {
            let number = u32::try_from(found.len() + 1).unwrap();
            assert!(tier.own(&one, number), "it was removed by nobody");
            found.push((one.record.key, one.record.version.0, one.record.length.get()));
        }
    }
    found.sort();
    (found, summary)
}

/// A tier that runs, with what it tells its owner.
pub(super) fn running(disks: &[Arc<MemoryDisk>], config: &SsdConfig) -> (SsdTier, Arc<Told>) {
    let tier = tier_on(disks, config);
    recover(&tier);
    let told = Arc::new(Told::default());
    tier.start(Arc::clone(&told) as Arc<dyn Owner>).unwrap();
    (tier, told)
}

/// The bytes that every version of a key has: none like another's.
pub(super) fn data(key: &[u8], version: u64, length: usize) -> Vec<u8> {
    let seed = twox_hash::XxHash3_64::oneshot_with_seed(version, key);
    (0..length)
        .map(|at| u8::try_from((seed >> (at % 56)).wrapping_add(at as u64 / 7) & 0xff).unwrap())
        .collect()
}

/// An object to store.
pub(super) fn put_of(key: &[u8], version: u64, length: usize) -> Put {
    Put {
        key: key.to_vec(),
        meta: version.to_string().into_bytes(),
        version: Version(version),
        length: ByteCount(length as u64),
        checksum: None,
        source: Source::Bytes(data(key, version, length)),
        durable: false,
        owner: u32::try_from(version).unwrap(),
        uses: 0,
        is_copy: false,
    }
}

/// Stores an object and waits until that has ended.
pub(super) fn store(tier: &SsdTier, key: &[u8], version: u64, length: usize) -> super::Stored {
    store_put(tier, put_of(key, version, length)).unwrap()
}

/// Stores an object and waits until that has ended.
pub(super) fn store_put(tier: &SsdTier, put: Put) -> Result<super::Stored, super::Refused> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    tier.put(put, super::queue::report_to(sender))?;
    Ok(receiver.recv_timeout(Duration::from_secs(20)).unwrap())
}

/// Whether the object can be read and is right.
pub(super) fn is_right(tier: &SsdTier, key: &[u8], version: u64, length: usize) -> bool {
    let read = tier.read(key, Version(version), ByteCount(length as u64));
    read.is_ok_and(|read| read == data(key, version, length))
}
