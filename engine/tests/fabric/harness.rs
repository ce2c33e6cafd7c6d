//! Two ends of the transport, and operations whose ends can be waited for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use tidefs_engine::error::Error;
use tidefs_engine::memory::{Access, MemorySlice, PageKind, Region};
use tidefs_engine::transport::libfabric::{Fabric, FabricConfig};
use tidefs_engine::transport::{
    BatchId, BoxFuture, Direction, Endpoint, Exchange, Operation, RemoteSlice, Ticket, TicketSink, Transport,
};
use tidefs_engine::types::{ByteCount, Incarnation, MemberId, PeerId, RailId, RegionId};

/// Longest that anything here may take, on a slow and busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn config() -> FabricConfig {
    let wanted = std::env::var("TIDEFS_TEST_FABRIC").unwrap_or_else(|_| "tcp;ofi_rxm@127.0.0.1".to_owned());
    let (provider, address) = wanted.split_once('@').unwrap();
    FabricConfig {
        provider: Some(provider.to_owned()),
        address: Some(address.parse().unwrap()),
        settle: Duration::from_millis(500),
        ..FabricConfig::default()
    }
}

/// Opens one end. `None`, with the reason on standard output, where there is no libfabric.
pub(crate) fn open() -> Option<Arc<Fabric>> {
    if let Err(error) = libfabric_sys::Library::open() {
        println!("skipped: {error} (Debian: libfabric1)");
        return None;
    }
    // The library is there, so a provider that is not is a failure.
    Some(Arc::new(Fabric::open(&config()).unwrap()))
}

pub(crate) fn peer(number: u64) -> PeerId {
    PeerId { member: MemberId(number), incarnation: Incarnation(1) }
}

/// An exchange with another end in this process, which knows us as `own`.
#[derive(Debug)]
pub(crate) struct Direct {
    pub(crate) other: Arc<Fabric>,
    pub(crate) own: PeerId,
}

impl Exchange for Direct {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        let answer = self.other.answer(self.own, &request);
        Box::pin(async move { answer })
    }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, future).await.expect("it takes too long") })
}

#[derive(Debug)]
struct Sink(Sender<(u32, Result<(), Error>)>);

impl TicketSink for Sink {
    fn completed(&self, index: u32, result: Result<(), Error>) {
        let _ = self.0.send((index, result));
    }
}

/// A registered region.
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) region: Arc<Region>,
    pub(crate) id: RegionId,
    pub(crate) key: Arc<[u8]>,
}

impl Memory {
    pub(crate) fn new(fabric: &Fabric, id: u64, length: u64, access: Access) -> Self {
        let region = Arc::new(Region::anonymous(ByteCount(length), PageKind::Base, access).unwrap());
        let id = RegionId(id);
        let key = fabric.register(id, &region).unwrap().into();
        Self { region, id, key }
    }

    /// Fills it with bytes that depend on `seed` and place.
    pub(crate) fn fill(&self, seed: u64) {
        let bytes: Vec<u8> = pattern(seed, self.region.length().get());
        assert!(self.region.write_at(0, &bytes));
    }

    pub(crate) fn bytes(&self, offset: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        assert!(self.region.read_at(offset, &mut bytes));
        bytes
    }
}

pub(crate) fn pattern(seed: u64, length: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(step).collect()
}

/// One operation to make: which way, local offset, remote offset, length.
pub(crate) type Piece = (Direction, u64, u64, u64);

/// Operations under way at one endpoint.
pub(crate) struct Run {
    pub(crate) batch: BatchId,
    results: Receiver<(u32, Result<(), Error>)>,
    count: usize,
    endpoint: Arc<dyn Endpoint>,
    rest: VecDeque<Operation>,
}

impl Run {
    /// Posts `pieces` between two regions, to end within `within`.
    pub(crate) fn start(
        endpoint: &Arc<dyn Endpoint>,
        local: &Memory,
        remote: &Memory,
        pieces: &[Piece],
        within: Duration,
    ) -> Self {
        let (sender, results) = channel();
        let sink: Arc<dyn TicketSink> = Arc::new(Sink(sender));
        let batch = BatchId::next();
        let deadline = Instant::now() + within;
        let operation = |(index, &(direction, from, to, length)): (usize, &Piece)| Operation {
            direction,
            local: MemorySlice::new(&local.region, local.id, from, ByteCount(length)).unwrap(),
            remote: RemoteSlice { region: remote.id, key: Arc::clone(&remote.key), offset: to },
            rail: RailId(0),
            deadline,
            ticket: Ticket::new(Arc::clone(&sink), batch, u32::try_from(index).unwrap()),
        };
        let mut rest: VecDeque<Operation> = pieces.iter().enumerate().map(operation).collect();
        endpoint.post(&mut rest);
        Self { batch, results, count: pieces.len(), endpoint: Arc::clone(endpoint), rest }
    }

    /// Waits for all ends; posts what did not fit before. Each operation ends exactly once.
    pub(crate) fn wait(mut self) -> Vec<Result<(), Error>> {
        let mut ends: Vec<Option<Result<(), Error>>> = vec![None; self.count];
        for _ in 0..self.count {
            let (index, result) = self.results.recv_timeout(PATIENCE).expect("an operation does not end");
            let before = ends[index as usize].replace(result);
            assert!(before.is_none(), "operation {index} ended twice");
            self.endpoint.post(&mut self.rest);
        }
        ends.into_iter().map(Option::unwrap).collect()
    }
}

/// Two ends in this process, the first connected to the second.
pub(crate) struct Pair {
    pub(crate) near: Arc<Fabric>,
    pub(crate) far: Arc<Fabric>,
    pub(crate) endpoint: Arc<dyn Endpoint>,
}

impl Pair {
    pub(crate) fn open() -> Option<Self> {
        Some(Self::of(open()?, open()?))
    }

    pub(crate) fn of(near: Arc<Fabric>, far: Arc<Fabric>) -> Self {
        let endpoint = connect(&near, &far);
        Self { near, far, endpoint }
    }
}

pub(crate) fn connect(near: &Arc<Fabric>, far: &Arc<Fabric>) -> Arc<dyn Endpoint> {
    let exchange = Direct { other: Arc::clone(far), own: peer(1) };
    block_on(near.connect(peer(2), &exchange)).unwrap()
}
