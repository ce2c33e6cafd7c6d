//! What reads bytes of a disk of the tier, and of the files beside it, for fuzzing: frames one by one, a start on a disk some of
//! whose frames say something else, with right checksums, and the texts of the state files.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use tidefs_engine::types::{ByteCount, Version};

use super::super::roots::Roots;
use super::changes_file::Changes;
use super::days::Days;
use super::disk::{Disk, Request, Ticket};
use super::epochs::Epochs;
use super::format::{
    BLOCK, BLOCK_BYTES, EPOCH_MAX, Footer, FooterEntry, Frame, NUMBER_MAX, Order, RecordFacts, RecordHash,
    RecordHeader, Superblock, Tombstone, TombstoneBlock, Trailer, ZONES_START, ZoneHeader, decode, encode,
    framed,
};
use super::intents;
use super::open::Candidate;
use super::testing::{Told, ZONE, config, data, put_of};
use super::{
    FoundRecord, Indexed, KEY_BYTES_MAX, META_BYTES_MAX, Owner, Put, SsdTier, Stored, Uuid, checksum_of,
    queue,
};

/// Frames as they are, and their bodies with a checksum that holds.
pub(crate) fn frames(bytes: &[u8]) {
    fn round<T: Frame + PartialEq + Debug>(bytes: &[u8]) {
        for bytes in [bytes, &framed(T::KIND, bytes)] {
            if let Ok(value) = decode::<T>(bytes) {
                let again = encode(&value).expect("what was read can be written");
                assert_eq!(decode::<T>(&again).as_ref(), Ok(&value));
            }
        }
    }
    round::<Superblock>(bytes);
    round::<ZoneHeader>(bytes);
    round::<RecordHeader>(bytes);
    round::<TombstoneBlock>(bytes);
    round::<Footer>(bytes);
    round::<Trailer>(bytes);
}

/// The files beside the disks; the first byte says which.
pub(crate) fn state_files(bytes: &[u8]) {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    match which % 5 {
        0 => {
            for (hash, version) in intents::parse(bytes) {
                assert_eq!(intents::parse(&intents::entry(hash, version)), [(hash, version)]);
            }
        }
        1 => {
            let Ok(mut epochs) = Epochs::parse(bytes) else { return };
            let Some(pool) = epochs.last_pool() else { return };
            let before = epochs.of(pool);
            assert!(before <= EPOCH_MAX);
            epochs.pass_others(None);
            assert_eq!(epochs.of(pool), before + 1, "a disk that is away from now on is behind");
        }
        2 => {
            let Ok(days) = Days::parse(bytes) else { return };
            let _ = days.of("/mnt/a");
        }
        3 => {
            let Ok(mut changes) = Changes::parse(bytes) else { return };
            changes.remove("/mnt/a".as_ref(), false);
            assert!(changes.added.iter().all(|added| added.path.as_os_str() != "/mnt/a"));
        }
        _ => {
            let _ = Roots::parse(bytes);
        }
    }
}

/// A start on a disk of which some frames were exchanged: of each exchange a byte says which frame, two how long the body is
/// that follows. What is found then is in bounds, and what is stored behind it is found.
pub(crate) fn disk(bytes: &[u8]) {
    let disk = Sparse::default();
    FRAMES.iter().for_each(|placed| disk.put(placed.block, &framed(placed.kind, &placed.body)));
    let mut rest = bytes;
    while let Some((&[which, low, high], behind)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes([low, high])).min(behind.len());
        let (body, behind) = behind.split_at(length);
        let placed = &FRAMES[usize::from(which) % FRAMES.len()];
        disk.put(placed.block, &framed(placed.kind, body));
        rest = behind;
    }
    let candidate = Candidate { name: "disk".to_owned(), disk: Arc::new(disk), capacity: None };
    let tier = SsdTier::with_disks(&config(1, ZONES), None, vec![candidate], Vec::new(), 1)
        .expect("the system has random numbers");
    let Indexed { last_version, early, mut unnamed, .. } = tier.index(&|key| key.first() == Some(&b'd'));
    let mut found = early;
    while let Some(more) = tier.next_unnamed(&mut unnamed) {
        found.extend(more);
    }
    for standing in &found {
        let FoundRecord { key, meta, version, length } = &standing.record;
        assert!(key.len() <= KEY_BYTES_MAX && meta.len() <= META_BYTES_MAX);
        assert!(*version <= last_version && length.get() < ZONES * ZONE.get());
        tier.own(standing, 1);
        let _ = tier.describe(key);
        if let Ok(read) = tier.read(key, *version, *length) {
            assert_eq!(read.len() as u64, length.get());
        }
    }
    assert!(last_version.0 <= NUMBER_MAX && tier.shared.next_order() <= NUMBER_MAX + 1);
    // Threads take longer than all of the above.
    if bytes.len().is_multiple_of(16) {
        store_behind(&tier, last_version);
    }
}

fn store_behind(tier: &SsdTier, last_version: Version) {
    let version = last_version.0 + 1;
    if version > NUMBER_MAX || tier.shared.devices.all().is_empty() {
        return;
    }
    tier.start(Arc::new(Told::default()) as Arc<dyn Owner>).expect("threads");
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let put = Put { version: Version(version), ..put_of(b"o-new", 1, 5000) };
    if tier.put(put, queue::report_to(sender)).is_ok() {
        let stored = receiver.recv().expect("its writer has not panicked");
        let read = tier.read(b"o-new", Version(version), ByteCount(5000));
        assert!(stored != Stored::Yes || read == Ok(data(b"o-new", 1, 5000)));
    }
}

const ZONES: u64 = 8;
const DEVICE: Uuid = Uuid([7; 16]);
const POOL: Uuid = Uuid([9; 16]);

/// A frame and the block of the disk at which it stands.
struct Placed {
    block: u64,
    kind: u8,
    body: Vec<u8>,
}

impl Placed {
    fn new<T: Frame>(block: u64, value: &T) -> Self {
        Self { block, kind: T::KIND, body: postcard::to_allocvec(value).expect("it has a length") }
    }

    fn in_zone<T: Frame>(zone: u64, block: u64, value: &T) -> Self {
        Self::new((ZONES_START + zone * ZONE.get()) / BLOCK_BYTES + block, value)
    }
}

fn facts(order: Order, key: &[u8], length: u64) -> RecordFacts {
    // What nobody wrote is zeros.
    let data = vec![0; usize::try_from(length).unwrap_or(0)];
    RecordFacts {
        order,
        hash: RecordHash::of(POOL, key),
        version: Version(order),
        length: ByteCount(length),
        checksum: checksum_of(&data),
        key: key.to_vec(),
        meta: b"meta".to_vec(),
    }
}

/// A disk of a pool of one: a zone that is closed, one that is not, and one that lost its header.
static FRAMES: LazyLock<Vec<Placed>> = LazyLock::new(|| {
    let device = DEVICE;
    let superblock = |epoch| Superblock { device, pool: POOL, epoch, zone_bytes: ZONE };
    let removed =
        |order, key: &[u8]| Tombstone { order, hash: RecordHash::of(POOL, key), version: Version(order - 1) };
    let (first, directory) = (facts(11, b"o-a", 5000), facts(13, b"d-1", 0));
    let entries = vec![
        FooterEntry::Object { block: 1, facts: first.clone() },
        FooterEntry::Tombstones(vec![removed(12, b"o-b")]),
        FooterEntry::Object { block: 5, facts: directory.clone() },
    ];
    let record = |sequence, facts| RecordHeader { device, sequence, facts };
    let last = ZONE.get() / BLOCK_BYTES - 1;
    let trailer = |sequence, block| Trailer { device, sequence, block, blocks: 1 };
    let removals =
        |sequence, order| TombstoneBlock { device, sequence, tombstones: vec![removed(order, b"o-a")] };
    vec![
        Placed::new(0, &superblock(4)),
        Placed::new(1, &superblock(3)),
        Placed::in_zone(0, 0, &ZoneHeader { device, zone: 0, sequence: 10 }),
        Placed::in_zone(0, 1, &record(10, first)),
        Placed::in_zone(
            0,
            4,
            &TombstoneBlock { device, sequence: 10, tombstones: vec![removed(12, b"o-b")] },
        ),
        Placed::in_zone(0, 5, &record(10, directory)),
        Placed::in_zone(0, 6, &Footer { device, sequence: 10, entries }),
        Placed::in_zone(0, last, &trailer(10, 6)),
        Placed::in_zone(1, 0, &ZoneHeader { device, zone: 1, sequence: 20 }),
        Placed::in_zone(1, 1, &record(20, facts(21, b"o-b", 100))),
        Placed::in_zone(1, 3, &removals(20, 22)),
        Placed::in_zone(1, 4, &record(20, facts(23, b"o-a", 0))),
        Placed::in_zone(2, 1, &removals(30, 31)),
        Placed::in_zone(2, last, &trailer(30, 2)),
    ]
});

/// A disk that is zeros but for what was written.
#[derive(Debug, Default)]
struct Sparse(Mutex<HashMap<u64, Vec<u8>>>);

impl Sparse {
    const LENGTH: u64 = ZONES_START + ZONES * ZONE.get();

    fn put(&self, block: u64, bytes: &[u8]) {
        let mut blocks = self.0.lock();
        for (block, part) in (block..).zip(bytes.chunks(BLOCK)) {
            let mut whole = part.to_vec();
            whole.resize(BLOCK, 0);
            blocks.insert(block, whole);
        }
    }

    fn get(&self, block: u64, length: usize) -> Vec<u8> {
        let blocks = self.0.lock();
        let mut bytes = vec![0; length];
        for (block, part) in (block..).zip(bytes.chunks_mut(BLOCK)) {
            if let Some(found) = blocks.get(&block) {
                part.copy_from_slice(&found[..part.len()]);
            }
        }
        bytes
    }

    fn perform(&self, request: &Request) -> io::Result<()> {
        let (Request::Read { offset, pieces } | Request::Write { offset, pieces }) = request else {
            return Ok(());
        };
        let mut at = *offset;
        for piece in pieces {
            let end = at.checked_add(piece.length() as u64).filter(|end| *end <= Self::LENGTH);
            let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
            match request {
                Request::Read { .. } => piece.copy_in(&self.get(at / BLOCK_BYTES, piece.length())),
                _ => self.put(at / BLOCK_BYTES, &piece.copy_out()),
            }
            at = end;
        }
        Ok(())
    }
}

impl Disk for Sparse {
    fn submit(&self, requests: Vec<Request>) -> Ticket {
        let (ticket, completion) = Ticket::new(requests.len());
        requests.iter().for_each(|request| completion.end_one(self.perform(request)));
        ticket
    }

    fn allocate(&self, _length: ByteCount) -> io::Result<()> {
        Ok(())
    }

    fn length(&self) -> io::Result<ByteCount> {
        Ok(ByteCount(Self::LENGTH))
    }

    fn cut(&self, _length: ByteCount) -> io::Result<()> {
        Ok(())
    }

    fn allocated(&self) -> io::Result<ByteCount> {
        self.length()
    }
}

#[cfg(test)]
pub(crate) fn frame_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = FRAMES.iter().map(|placed| placed.body.clone()).collect();
    seeds.push(framed(FRAMES[0].kind, &FRAMES[0].body));
    seeds
}

#[cfg(test)]
pub(crate) fn disk_seeds() -> Vec<Vec<u8>> {
    let exchange = |(which, placed): (usize, &Placed)| {
        let length = u16::try_from(placed.body.len()).unwrap().to_le_bytes();
        [&[u8::try_from(which).unwrap()], &length[..], &placed.body].concat()
    };
    let one: Vec<Vec<u8>> = FRAMES.iter().enumerate().map(exchange).collect();
    let all = one.concat();
    // The ends of numbers.
    let ends = ends().into_iter().flat_map(|end| {
        let are_of_kind = |(_, placed): &(usize, &Placed)| placed.kind == end.kind;
        let which = FRAMES.iter().enumerate().filter(are_of_kind).map(|(which, _)| which);
        which.map(|which| exchange((which, &end))).collect::<Vec<_>>()
    });
    one.into_iter().chain([all]).chain(ends).collect()
}

/// Frames that no daemon writes.
#[cfg(test)]
fn ends() -> Vec<Placed> {
    const MAX: u64 = u64::MAX;
    let device = DEVICE;
    let last = |length| RecordFacts { version: Version(MAX), ..facts(MAX, b"o-z", length) };
    let removed = Tombstone { order: MAX, hash: RecordHash::of(POOL, b"o-z"), version: Version(MAX) };
    let entries =
        vec![FooterEntry::Object { block: 1, facts: last(5000) }, FooterEntry::Tombstones(Vec::new())];
    vec![
        Placed::new(0, &Superblock { device, pool: POOL, epoch: MAX, zone_bytes: ZONE }),
        Placed::new(0, &Superblock { device, pool: POOL, epoch: 5, zone_bytes: ByteCount(MAX) }),
        Placed::new(0, &ZoneHeader { device, zone: 0, sequence: MAX }),
        Placed::new(0, &RecordHeader { device, sequence: 10, facts: last(5000) }),
        Placed::new(0, &RecordHeader { device, sequence: 20, facts: last(100) }),
        Placed::new(
            0,
            &RecordHeader { device, sequence: 20, facts: RecordFacts { length: ByteCount(MAX), ..last(0) } },
        ),
        Placed::new(0, &TombstoneBlock { device, sequence: 20, tombstones: vec![removed] }),
        Placed::new(0, &Footer { device, sequence: 10, entries }),
        Placed::new(0, &Trailer { device, sequence: 10, block: u32::MAX, blocks: u32::MAX }),
    ]
}

#[cfg(test)]
pub(crate) fn state_file_seeds() -> Vec<Vec<u8>> {
    let epochs = format!(r#"[{{"pool":{:?},"epoch":5}},{{"pool":{:?},"epoch":9}}]"#, POOL.0, DEVICE.0);
    let end = format!(r#"[{{"pool":{:?},"epoch":{}}}]"#, POOL.0, u64::MAX);
    let changes = r#"{"added":[{"path":"/mnt/a","capacity":"1GiB"}],"removed":["/mnt/b"],
        "leaving":[{"path":"/mnt/a","bytes_per_second":null}]}"#;
    let days = r#"{"/mnt/a":{"began_s":1700000000,"written":12345}}"#;
    let roots = r#"{"/mnt/a":"/mnt","/mnt/b":"/"}"#;
    let intent = intents::entry(RecordHash([3; 16]), Version(7));
    vec![
        [&[0], &intent[..], &intent].concat(),
        [&[0], &intents::entry(RecordHash([3; 16]), Version(u64::MAX))[..]].concat(),
        [&[1], epochs.as_bytes()].concat(),
        [&[1], end.as_bytes()].concat(),
        [&[2], days.as_bytes()].concat(),
        [&[3], changes.as_bytes()].concat(),
        [&[4], roots.as_bytes()].concat(),
    ]
}
