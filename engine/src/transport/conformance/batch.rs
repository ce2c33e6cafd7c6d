//! Regions with known bytes, and batches whose ends are counted. The tests of TCP over real links compile this file, too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::error::Error;
use crate::memory::{MemorySlice, Region};
use crate::rng::Rng;
use crate::transport::{BatchId, Direction, Endpoint, Operation, RemoteSlice, Ticket, TicketSink};
use crate::types::{ByteCount, RailId, RegionId};

/// How long an operation may take that should succeed, and how long the suite waits for anything.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A region that was registered with a transport.
pub(crate) struct Shared {
    pub(crate) region: Arc<Region>,
    pub(crate) id: RegionId,
    pub(crate) key: Arc<[u8]>,
}

impl Shared {
    pub(crate) fn length(&self) -> u64 {
        self.region.length().get()
    }

    pub(crate) fn local(&self, offset: u64, length: u64) -> MemorySlice {
        MemorySlice::new(&self.region, self.id, offset, ByteCount(length)).unwrap()
    }

    pub(crate) fn remote(&self, offset: u64) -> RemoteSlice {
        RemoteSlice { region: self.id, key: Arc::clone(&self.key), offset }
    }

    pub(crate) fn fill(&self, seed: u64) {
        let length = usize::try_from(self.region.length().get()).unwrap();
        assert!(self.region.write_at(0, &pattern(seed, length)));
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.region.length().get()).unwrap()];
        assert!(self.region.read_at(0, &mut bytes));
        bytes
    }

    /// Fails unless the bytes are those of `fill(seed)`.
    pub(crate) fn expect(&self, seed: u64, when: &str) {
        let wanted = pattern(seed, usize::try_from(self.region.length().get()).unwrap());
        expect_bytes(&self.bytes(), &wanted, when);
    }
}

/// Fails with the first position where `found` is not `wanted`, never with megabytes of bytes.
pub(crate) fn expect_bytes(found: &[u8], wanted: &[u8], when: &str) {
    assert_eq!(found.len(), wanted.len(), "{when}");
    let difference = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    if let Some(at) = difference {
        panic!("{when}: byte {at} is {:#04x}, not {:#04x}", found[at], wanted[at]);
    }
}

/// `length` bytes that no other seed has.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::seeded(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Counts how each operation of a batch ended.
#[derive(Debug, Default)]
struct Ends {
    results: Mutex<Vec<(u32, Result<(), Error>)>>,
    changed: Condvar,
}

impl TicketSink for Ends {
    fn completed(&self, index: u32, result: Result<(), Error>) {
        self.results.lock().push((index, result));
        self.changed.notify_all();
    }
}

/// Operations that are posted together.
pub(crate) struct Batch {
    pub(crate) id: BatchId,
    pub(crate) queue: VecDeque<Operation>,
    pub(crate) deadline: Instant,
    ends: Arc<Ends>,
    count: u32,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self::until(Instant::now() + LONG)
    }

    pub(crate) fn until(deadline: Instant) -> Self {
        Self { id: BatchId::next(), queue: VecDeque::new(), deadline, ends: Arc::default(), count: 0 }
    }

    pub(crate) fn add(&mut self, direction: Direction, local: MemorySlice, remote: RemoteSlice) {
        let sink = Arc::clone(&self.ends) as Arc<dyn TicketSink>;
        let ticket = Ticket::new(sink, self.id, self.count);
        let (rail, deadline) = (RailId(0), self.deadline);
        self.queue.push_back(Operation { direction, local, remote, rail, deadline, ticket });
        self.count += 1;
    }

    pub(crate) fn read(&mut self, local: MemorySlice, remote: RemoteSlice) {
        self.add(Direction::Read, local, remote);
    }

    pub(crate) fn write(&mut self, local: MemorySlice, remote: RemoteSlice) {
        self.add(Direction::Write, local, remote);
    }

    /// Operations that have ended so far.
    pub(crate) fn ended(&self) -> usize {
        self.ends.results.lock().len()
    }

    /// Posts everything, each time as much as there is room for.
    pub(crate) fn post(&mut self, endpoint: &Arc<dyn Endpoint>) {
        loop {
            let before = self.ended();
            endpoint.post(&mut self.queue);
            if self.queue.is_empty() {
                return;
            }
            self.wait_for(before + 1);
        }
    }

    /// Waits until `count` operations have ended.
    pub(crate) fn wait_for(&self, count: usize) {
        let end = Instant::now() + LONG;
        let mut results = self.ends.results.lock();
        while results.len() < count {
            let late = self.ends.changed.wait_until(&mut results, end).timed_out();
            assert!(!late, "{} of {count} operations ended in {LONG:?}", results.len());
        }
    }

    /// Waits for all, and returns how each ended. Fails when one ended twice.
    pub(crate) fn results(&self) -> Vec<Result<(), Error>> {
        self.wait_for(self.count as usize);
        let mut results = self.ends.results.lock().clone();
        results.sort_by_key(|(index, _)| *index);
        let indices: Vec<u32> = results.iter().map(|(index, _)| *index).collect();
        assert_eq!(indices, (0..self.count).collect::<Vec<u32>>(), "each operation ends once");
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// Waits for all; fails unless all did what was asked.
    pub(crate) fn expect_done(&self) {
        for (index, result) in self.results().into_iter().enumerate() {
            assert_eq!(result, Ok(()), "operation {index}");
        }
    }

    /// Waits for all, of which there is one, and returns its error.
    pub(crate) fn expect_error(&self) -> Error {
        let results = self.results();
        assert_eq!(results.len(), 1);
        results[0].clone().expect_err("the operation was not refused")
    }
}
