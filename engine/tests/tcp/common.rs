//! Two engines' worth of links and transports, regions, and batches whose ends are counted.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidefs_engine::error::Error;
use tidefs_engine::link::{Answer, Channel, ClusterKey, Link, LinkConfig, LinkEvents, Links};
use tidefs_engine::memory::{Access, MemorySlice, PageKind, Region};
use tidefs_engine::transport::tcp::{TcpConfig, TcpTransport};
use tidefs_engine::transport::{
    BatchId, BoxFuture, Direction, Endpoint, Exchange, Operation, RemoteSlice, Ticket, TicketSink, Transport,
};
use tidefs_engine::types::{ByteCount, Incarnation, MemberId, PeerId, RailId, RegionId};
use tokio::runtime::Handle;

const TRANSPORT: Channel = Channel(1);

/// Hands what the link says to the transport, as the engine does.
#[derive(Debug, Default)]
struct Router(OnceLock<Weak<TcpTransport>>);

impl Router {
    fn tcp(&self) -> Option<Arc<TcpTransport>> {
        self.0.get()?.upgrade()
    }
}

impl LinkEvents for Router {
    fn connected(&self, _: &Arc<Link>) {}

    fn disconnected(&self, peer: PeerId, _: &Error) {
        if let Some(tcp) = self.tcp() {
            tcp.forget(peer);
        }
    }

    fn request(&self, link: &Arc<Link>, _: Channel, body: Vec<u8>) -> Answer {
        let answer = self.tcp().ok_or(Error::Closed).and_then(|tcp| tcp.answer(link.peer(), &body));
        Answer::Now(answer.map_err(|error| error.to_string()))
    }

    fn notified(&self, _: &Arc<Link>, _: Channel, _: Vec<u8>) {}
}

#[derive(Debug)]
struct OverLink(Arc<Link>);

impl Exchange for OverLink {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        self.0.call(TRANSPORT, request, soon())
    }
}

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

pub(crate) fn peer(member: u64) -> PeerId {
    PeerId { member: MemberId(member), incarnation: Incarnation(1) }
}

/// One end.
pub(crate) struct Node {
    pub(crate) me: PeerId,
    pub(crate) links: Arc<Links>,
    pub(crate) tcp: Arc<TcpTransport>,
}

impl Node {
    pub(crate) fn start(member: u64) -> Self {
        Self::with(member, LinkConfig::default(), TcpConfig::default())
    }

    pub(crate) fn with(member: u64, link: LinkConfig, config: TcpConfig) -> Self {
        let events = Arc::new(Router::default());
        let link = LinkConfig {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            key: Some(ClusterKey::new(*b"the key of the tests")),
            ..link
        };
        let router = Arc::clone(&events) as Arc<dyn LinkEvents>;
        let links = Links::start(Handle::current(), link, peer(member), router).unwrap();
        let tcp = TcpTransport::open(&links, config).unwrap();
        events.0.set(Arc::downgrade(&tcp)).unwrap();
        Self { me: peer(member), links, tcp }
    }

    pub(crate) async fn connect(&self, to: PeerId, addresses: &[SocketAddr]) -> Arc<dyn Endpoint> {
        let link = self.links.connect(to, addresses, soon()).await.unwrap();
        self.tcp.connect(to, &OverLink(link)).await.unwrap()
    }

    /// A region with bytes from `seed`, registered as `id`.
    pub(crate) fn share(&self, id: u64, length: u64, seed: u64) -> Shared {
        let region =
            Arc::new(Region::anonymous(ByteCount(length), PageKind::Base, Access::ReadWrite).unwrap());
        let key = self.tcp.register(RegionId(id), &region).unwrap().into();
        let shared = Shared { region, id: RegionId(id), key };
        shared.fill(seed);
        shared
    }
}

pub(crate) struct Shared {
    pub(crate) region: Arc<Region>,
    pub(crate) id: RegionId,
    pub(crate) key: Arc<[u8]>,
}

/// `length` bytes that no other seed has.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

impl Shared {
    pub(crate) fn slice(&self, offset: u64, length: u64) -> MemorySlice {
        MemorySlice::new(&self.region, self.id, offset, ByteCount(length)).unwrap()
    }

    pub(crate) fn at(&self, offset: u64) -> RemoteSlice {
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

    pub(crate) fn holds(&self, seed: u64) -> bool {
        self.bytes() == pattern(seed, usize::try_from(self.region.length().get()).unwrap())
    }
}

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
    queue: VecDeque<Operation>,
    deadline: Instant,
    ends: Arc<Ends>,
    count: u32,
}

impl Batch {
    pub(crate) fn new() -> Self {
        Self::until(soon())
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

    /// Posts everything, as room returns.
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

    pub(crate) fn ended(&self) -> usize {
        self.ends.results.lock().len()
    }

    pub(crate) fn wait_for(&self, count: usize) {
        let limit = Instant::now() + Duration::from_secs(50);
        let mut results = self.ends.results.lock();
        while results.len() < count {
            let late = self.ends.changed.wait_until(&mut results, limit).timed_out();
            assert!(!late, "{} of {count} operations ended", results.len());
        }
    }

    /// Waits for all; fails when one ended twice.
    pub(crate) fn results(&self) -> Vec<Result<(), Error>> {
        self.wait_for(self.count as usize);
        let mut results = self.ends.results.lock().clone();
        results.sort_by_key(|(index, _)| *index);
        let indices: Vec<u32> = results.iter().map(|(index, _)| *index).collect();
        assert_eq!(indices, (0..self.count).collect::<Vec<_>>(), "each operation ends once");
        results.into_iter().map(|(_, result)| result).collect()
    }

    pub(crate) fn expect_done(&self) {
        for (index, result) in self.results().into_iter().enumerate() {
            assert_eq!(result, Ok(()), "operation {index}");
        }
    }
}
