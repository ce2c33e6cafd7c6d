//! What the link and the TCP transport cost beside bare sockets, in one process over loopback.
//!
//! `cargo run --release -p tidefs-engine --example sockets [rounds]` prints medians of interleaved samples and their
//! ratios to the baseline of the same round: a copy over as many sockets, and a ping-pong of two tasks.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidefs_engine::error::Error;
use tidefs_engine::link::{Answer, Channel, Link, LinkConfig, LinkEvents, Links};
use tidefs_engine::memory::{Access, MemorySlice, PageKind, Region};
use tidefs_engine::transport::tcp::{TcpConfig, TcpTransport};
use tidefs_engine::transport::{
    BatchId, BoxFuture, Direction, Endpoint, Exchange, Operation, RemoteSlice, Ticket, TicketSink, Transport,
};
use tidefs_engine::types::{ByteCount, Incarnation, MemberId, PeerId, RailId, RegionId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const BLOCK: u64 = 1 << 20;
const STREAMS: usize = 4;
const DEPTH: u64 = 16;
const BLOCKS: u64 = 1024;
const CALLS: u32 = 5_000;
const ECHO: Channel = Channel(2);

#[derive(Debug, Default)]
struct Router(OnceLock<Weak<TcpTransport>>);

impl LinkEvents for Router {
    fn connected(&self, _: &Arc<Link>) {}

    fn disconnected(&self, _: PeerId, _: &Error) {}

    fn request(&self, link: &Arc<Link>, channel: Channel, body: Vec<u8>) -> Answer {
        if channel == ECHO {
            return Answer::Now(Ok(body));
        }
        let tcp = self.0.get().and_then(Weak::upgrade).ok_or(Error::Closed);
        Answer::Now(tcp.and_then(|tcp| tcp.answer(link.peer(), &body)).map_err(|error| error.to_string()))
    }

    fn notified(&self, _: &Arc<Link>, _: Channel, _: Vec<u8>) {}
}

#[derive(Debug)]
struct OverLink(Arc<Link>);

impl Exchange for OverLink {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        self.0.call(Channel(1), request, soon())
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

struct Node {
    me: PeerId,
    links: Arc<Links>,
    tcp: Arc<TcpTransport>,
}

fn node(member: u64) -> Node {
    let me = PeerId { member: MemberId(member), incarnation: Incarnation(1) };
    let router = Arc::new(Router::default());
    let link = LinkConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], ..LinkConfig::default() };
    let events = Arc::clone(&router) as Arc<dyn LinkEvents>;
    let links = Links::start(tokio::runtime::Handle::current(), link, me, events).unwrap();
    let tcp = TcpTransport::open(&links, TcpConfig { connections: STREAMS, ..TcpConfig::default() }).unwrap();
    router.0.set(Arc::downgrade(&tcp)).unwrap();
    Node { me, links, tcp }
}

/// Keeps [`DEPTH`] operations under way until [`BLOCKS`] are done.
#[derive(Debug)]
struct Pump {
    endpoint: Arc<dyn Endpoint>,
    direction: Direction,
    near: Arc<Region>,
    far: RegionId,
    key: Arc<[u8]>,
    state: Mutex<(u64, u64)>,
    done: Condvar,
}

impl Pump {
    fn next(self: &Arc<Self>) {
        let index = {
            let mut state = self.state.lock();
            if state.0 == BLOCKS {
                return;
            }
            state.0 += 1;
            state.0 - 1
        };
        let offset = index % DEPTH * BLOCK;
        let sink = Arc::new(Again(Arc::clone(self)));
        let operation = Operation {
            direction: self.direction,
            local: MemorySlice::new(&self.near, RegionId(1), offset, ByteCount(BLOCK)).unwrap(),
            remote: RemoteSlice { region: self.far, key: Arc::clone(&self.key), offset },
            rail: RailId(0),
            deadline: soon(),
            ticket: Ticket::new(sink, BatchId::next(), 0),
        };
        self.endpoint.post(&mut VecDeque::from([operation]));
    }
}

#[derive(Debug)]
struct Again(Arc<Pump>);

impl TicketSink for Again {
    fn completed(&self, _: u32, result: Result<(), Error>) {
        result.unwrap();
        self.0.next();
        let mut state = self.0.state.lock();
        state.1 += 1;
        if state.1 == BLOCKS {
            self.0.done.notify_all();
        }
    }
}

fn transfer(endpoint: &Arc<dyn Endpoint>, direction: Direction, near: &Arc<Region>, key: &Arc<[u8]>) -> f64 {
    let pump = Arc::new(Pump {
        endpoint: Arc::clone(endpoint),
        direction,
        near: Arc::clone(near),
        far: RegionId(2),
        key: Arc::clone(key),
        state: Mutex::default(),
        done: Condvar::new(),
    });
    let begin = Instant::now();
    (0..DEPTH).for_each(|_| pump.next());
    let mut state = pump.state.lock();
    while state.1 < BLOCKS {
        pump.done.wait(&mut state);
    }
    begin.elapsed().as_secs_f64()
}

/// As many blocks over as many sockets, from and to buffers of the same size.
async fn copy() -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut pairs = Vec::new();
    for _ in 0..STREAMS {
        let (from, to) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (from, to) = (from.unwrap(), to.unwrap().0);
        from.set_nodelay(true).unwrap();
        pairs.push((from, to));
    }
    let blocks = usize::try_from(DEPTH).unwrap() / STREAMS;
    let block = usize::try_from(BLOCK).unwrap();
    let mut buffers: Vec<_> =
        (0..STREAMS).map(|_| (vec![1_u8; blocks * block], vec![2_u8; blocks * block])).collect();
    let begin = Instant::now();
    let mut tasks = Vec::new();
    for (mut from, mut to) in pairs {
        let (source, mut target) = buffers.pop().unwrap();
        let count = usize::try_from(BLOCKS).unwrap() / STREAMS;
        tasks.push(tokio::spawn(async move {
            for index in 0..count {
                from.write_all(&source[index % blocks * block..][..block]).await.unwrap();
            }
        }));
        tasks.push(tokio::spawn(async move {
            for index in 0..count {
                to.read_exact(&mut target[index % blocks * block..][..block]).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    begin.elapsed().as_secs_f64()
}

async fn ping_pong() -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (mut near, mut far) = (near.unwrap(), far.unwrap().0);
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let echo = tokio::spawn(async move {
        let mut bytes = [0; 64];
        while far.read_exact(&mut bytes).await.is_ok() {
            far.write_all(&bytes).await.unwrap();
        }
    });
    let asking = tokio::spawn(async move {
        let mut bytes = [0; 64];
        let begin = Instant::now();
        for _ in 0..CALLS {
            near.write_all(&bytes).await.unwrap();
            near.read_exact(&mut bytes).await.unwrap();
        }
        begin.elapsed().as_secs_f64()
    });
    let elapsed = asking.await.unwrap();
    echo.await.unwrap();
    elapsed
}

async fn calls(link: Arc<Link>) -> f64 {
    let asking = tokio::spawn(async move {
        let begin = Instant::now();
        for _ in 0..CALLS {
            link.call(ECHO, vec![0; 64], soon()).await.unwrap();
        }
        begin.elapsed().as_secs_f64()
    });
    asking.await.unwrap()
}

/// Median of `values`, and the range of the middle half.
fn middle(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |part: usize| sorted[(sorted.len() - 1) * part / 4];
    (at(2), at(1), at(3))
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let rounds = std::env::args().nth(1).map_or(9, |text| text.parse().unwrap());
    let (a, b) = (node(1), node(2));
    let link = a.links.connect(b.me, &b.links.addresses(), soon()).await.unwrap();
    let endpoint = a.tcp.connect(b.me, &OverLink(Arc::clone(&link))).await.unwrap();
    let region = || {
        let region = Region::anonymous(ByteCount(DEPTH * BLOCK), PageKind::Base, Access::ReadWrite).unwrap();
        region.write_at(0, &vec![3; usize::try_from(DEPTH * BLOCK).unwrap()]);
        Arc::new(region)
    };
    let (near, far) = (region(), region());
    let key: Arc<[u8]> = b.tcp.register(RegionId(2), &far).unwrap().into();
    let mut samples: Vec<[f64; 5]> = Vec::new();
    for _ in 0..rounds {
        let base = copy().await;
        let moved = |direction| tokio::task::block_in_place(|| transfer(&endpoint, direction, &near, &key));
        let (read, write) = (moved(Direction::Read), moved(Direction::Write));
        samples.push([base, read, write, ping_pong().await, calls(Arc::clone(&link)).await]);
    }
    let column = |index: usize| samples.iter().map(|sample| sample[index]).collect::<Vec<_>>();
    let ratios = |over: usize, under: usize| samples.iter().map(|s| s[over] / s[under]).collect::<Vec<_>>();
    let gigabytes = |seconds: f64| 1e-9 * 1_073_741_824.0 / seconds;
    println!("1 MiB blocks over {STREAMS} sockets, depth {DEPTH}, {rounds} rounds");
    println!("  bare copy {:.2} GB/s", gigabytes(middle(&column(0)).0));
    for (name, index) in [("read", 1), ("write", 2)] {
        let (ratio, low, high) = middle(&ratios(0, index));
        let rate = gigabytes(middle(&column(index)).0);
        println!("  {name:5} {rate:.2} GB/s, {ratio:.2} of the copy (middle half {low:.2} to {high:.2})");
    }
    let micros = |seconds: f64| seconds / f64::from(CALLS) * 1e6;
    let (ratio, low, high) = middle(&ratios(4, 3));
    println!(
        "64 B call {:.1} us, bare ping-pong {:.1} us: {ratio:.2} times (middle half {low:.2} to {high:.2})",
        micros(middle(&column(4)).0),
        micros(middle(&column(3)).0)
    );
}
