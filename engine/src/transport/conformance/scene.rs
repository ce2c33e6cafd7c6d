//! The stage of the suite: two connected transports, regions with known bytes, batches whose ends are counted.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::runtime::Runtime;

use crate::error::Error;
use crate::memory::{Access, MemorySlice, PageKind, Region};
use crate::rng::Rng;
use crate::transport::{
    BatchId, BoxFuture, Direction, Endpoint, Exchange, Operation, RemoteSlice, Ticket, TicketSink, Transport,
};
use crate::types::{ByteCount, Incarnation, MemberId, PeerId, RegionId};

/// How long an operation may take that should succeed, and how long the suite waits for anything.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Two instances of one transport.
pub(crate) struct Pair {
    pub(crate) a: Side,
    pub(crate) b: Side,
    /// `true` holds all operations of the pair back, in flight; `false` lets them go on. Where the transport has a way.
    pub(crate) stall: Option<Box<dyn Fn(bool) + Send>>,
    /// Whether the operations of a peer that was forgotten are refused. False for a fabric whose keys are not per peer.
    pub(crate) forget_takes_back: bool,
}

impl Pair {
    /// A pair without a way to hold operations back.
    pub(crate) fn new(a: Arc<dyn Transport>, b: Arc<dyn Transport>) -> Self {
        let side = |number, transport| Side { peer: peer(number), transport };
        Self { a: side(1, a), b: side(2, b), stall: None, forget_takes_back: true }
    }
}

/// The peer that the suite knows under `number`; a pair's first is 1, its second 2.
pub(crate) fn peer(number: u64) -> PeerId {
    PeerId { member: MemberId(number), incarnation: Incarnation(7) }
}

/// One end.
pub(crate) struct Side {
    pub(crate) peer: PeerId,
    pub(crate) transport: Arc<dyn Transport>,
}

impl Side {
    /// A new region of `length` with bytes from `seed`, registered here.
    pub(crate) fn share(&self, length: u64, access: Access, seed: u64) -> Shared {
        let region = Arc::new(Region::anonymous(ByteCount(length), PageKind::Base, access).unwrap());
        let shared = self.share_again(&region);
        shared.fill(seed);
        shared
    }

    /// Registers `region` under an id that was never used.
    pub(crate) fn share_again(&self, region: &Arc<Region>) -> Shared {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = RegionId(NEXT.fetch_add(1, Ordering::Relaxed));
        let key = self.transport.register(id, region).unwrap();
        assert!(key.len() <= 256, "a key of {} bytes does not travel", key.len());
        Shared { region: Arc::clone(region), id, key: key.into() }
    }
}

/// A region that a side registered.
pub(crate) struct Shared {
    pub(crate) region: Arc<Region>,
    pub(crate) id: RegionId,
    pub(crate) key: Arc<[u8]>,
}

impl Shared {
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
        let (rail, deadline) = (crate::types::RailId(0), self.deadline);
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

/// The link of the suite: asks the other end directly.
pub(crate) struct Wire {
    from: PeerId,
    to: Arc<dyn Transport>,
    /// Whether requests are lost, with [`Error::DeadlinePassed`].
    pub(crate) is_cut: AtomicBool,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("from", &self.from).field("is_cut", &self.is_cut).finish_non_exhaustive()
    }
}

impl Exchange for Wire {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        Box::pin(async move {
            if self.is_cut.load(Ordering::SeqCst) {
                return Err(Error::DeadlinePassed);
            }
            let answer = self.to.answer(self.from, &request);
            answer.map_err(|error| Error::Refused { cause: error.to_string().into() })
        })
    }
}

/// A pair with its link and its runtime.
pub(crate) struct Scene {
    pub(crate) runtime: Runtime,
    pub(crate) pair: Pair,
    /// Asks `b` on behalf of `a`.
    pub(crate) to_b: Wire,
    /// Asks `a` on behalf of `b`.
    pub(crate) to_a: Wire,
}

impl Scene {
    pub(crate) fn new(make_pair: impl FnOnce() -> Pair) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let pair = {
            let _inside = runtime.enter();
            make_pair()
        };
        let wire = |from: &Side, to: &Side| Wire {
            from: from.peer,
            to: Arc::clone(&to.transport),
            is_cut: AtomicBool::new(false),
        };
        let (to_b, to_a) = (wire(&pair.a, &pair.b), wire(&pair.b, &pair.a));
        Self { runtime, pair, to_b, to_a }
    }

    /// Connects `a` to `b`.
    pub(crate) fn connect(&self) -> Arc<dyn Endpoint> {
        let connecting = self.pair.a.transport.connect(self.pair.b.peer, &self.to_b);
        self.runtime.block_on(connecting).unwrap()
    }

    /// Connects `b` to `a`.
    pub(crate) fn connect_back(&self) -> Arc<dyn Endpoint> {
        let connecting = self.pair.b.transport.connect(self.pair.a.peer, &self.to_a);
        self.runtime.block_on(connecting).unwrap()
    }

    /// Longest operation, as far as a test wants it.
    pub(crate) fn longest(&self) -> u64 {
        self.pair.a.transport.capabilities().operation_bytes_max.get().min(8 << 20)
    }

    /// Runs `hold` while the operations of the pair stand still; returns `None` where they cannot be held.
    pub(crate) fn stalled<T>(&self, hold: impl FnOnce() -> T) -> Option<T> {
        let stall = self.pair.stall.as_ref()?;
        stall(true);
        let result = hold();
        stall(false);
        Some(result)
    }
}
