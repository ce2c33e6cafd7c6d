//! Two engines that move bytes, over real sockets and shared memory: what the engine promises whoever embeds it.

mod attempts;
mod described;
mod moody;
mod notices;
mod order;
mod ways;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::engine::{
    Answer, Directory, Engine, EngineConfig, FIRST_FREE_CHANNEL, Messages, Parts, PeerDescriptor,
    TRANSFER_DONE, TransportChoice, TransportName, TransportOptions, open_transports,
};
use tidefs_engine::error::Error;
use tidefs_engine::link::{Channel, LinkConfig};
use tidefs_engine::memory::{Access, PageKind, Region};
use tidefs_engine::queue::Priority;
use tidefs_engine::request::{Batch, LocalPlace, RemotePlace, Request};
use tidefs_engine::transport::layer::fault::{FaultOptions, Faults, faulty};
use tidefs_engine::transport::{BoxFuture, Direction, Transport};
use tidefs_engine::types::{ByteCount, Incarnation, MemberId, PeerId, RegionId};
use tokio::runtime::Runtime;

const LENGTH: u64 = 8 << 20;
/// What reaches another host.
const SOCKETS: &str = "tcp";
/// What is asked there is taken, and never answered.
const NEVER: Channel = Channel(FIRST_FREE_CHANNEL.0 + 2);

/// Answers with what it was asked, and keeps what it was told.
#[derive(Debug, Default)]
struct Listener {
    told: Mutex<Vec<(PeerId, Channel, Vec<u8>)>>,
}

impl Messages for Listener {
    fn request(&self, _: PeerId, channel: Channel, body: Vec<u8>) -> Answer {
        match channel {
            FIRST_FREE_CHANNEL => Answer::Now(Ok(body)),
            NEVER => Answer::Later(Box::pin(std::future::pending())),
            _ => Answer::Now(Err("not here".into())),
        }
    }

    fn notified(&self, peer: PeerId, channel: Channel, body: Vec<u8>) {
        self.told.lock().push((peer, channel, body));
    }
}

/// One engine with one region.
struct End {
    engine: Engine,
    id: PeerId,
    region: Arc<Region>,
    region_id: RegionId,
    listener: Arc<Listener>,
}

fn member() -> MemberId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    MemberId(NEXT.fetch_add(1, Ordering::Relaxed))
}

fn start(runtime: &Runtime, id: PeerId, listen: &str, transports: &str, access: Access) -> End {
    let choice: TransportChoice = transports.parse().unwrap();
    let config = EngineConfig {
        link: LinkConfig { listen: vec![listen.parse().unwrap()], ..LinkConfig::default() },
        ..EngineConfig::new(id)
    };
    start_with(runtime, config, access, |parts| open_transports(&choice, &TransportOptions::default(), parts))
}

fn start_with(
    runtime: &Runtime,
    config: EngineConfig,
    access: Access,
    open: impl FnOnce(&Parts) -> Result<Vec<Arc<dyn Transport>>, Error>,
) -> End {
    let id = config.me;
    let listener = Arc::new(Listener::default());
    let messages = Arc::clone(&listener) as Arc<dyn Messages>;
    let engine = Engine::start(runtime.handle().clone(), config, messages, open).unwrap();
    let region = Arc::new(Region::anonymous(ByteCount(LENGTH), PageKind::Base, access).unwrap());
    let region_id = engine.register(&region).unwrap();
    End { engine, id, region, region_id, listener }
}

fn faulty_tcp(parts: &Parts, faults: &Arc<Faults>) -> Result<Vec<Arc<dyn Transport>>, Error> {
    let tcp = TransportName::Tcp.open(&TransportOptions::default(), parts)?;
    Ok(vec![faulty(tcp, faults, &parts.runtime)])
}

fn end(runtime: &Runtime, transports: &str) -> End {
    let id = PeerId { member: member(), incarnation: Incarnation(1) };
    start(runtime, id, "127.0.0.1:0", transports, Access::ReadWrite)
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Bytes that differ from their neighbours and from those of another seed.
fn bytes(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| u8::try_from((index * 31 + (index >> 8) + seed) % 251).unwrap_or(0)).collect()
}

impl End {
    fn connect(&self, runtime: &Runtime, other: &Self) {
        runtime.block_on(self.engine.connect(&other.engine.descriptor(), soon())).unwrap();
    }

    fn request(&self, other: &Self, direction: Direction, local: u64, remote: u64, length: u64) -> Request {
        Request {
            direction,
            local: LocalPlace { region: self.region_id, offset: local },
            remote: RemotePlace { peer: other.id, region: other.region_id, offset: remote },
            length: ByteCount(length),
        }
    }

    fn holds(&self, offset: u64, wanted: &[u8]) -> bool {
        let mut found = vec![0; wanted.len()];
        assert!(self.region.read_at(offset, &mut found));
        found == wanted
    }
}

/// Every fact holds whatever carries the bytes.
fn by_each_transport(fact: impl Fn(&Runtime, &str)) {
    for transports in ["tcp", "shm", "auto"] {
        fact(&runtime(), transports);
    }
}

#[test]
fn a_read_pulls_and_a_write_pushes_at_any_offset() {
    by_each_transport(|runtime, transports| {
        let (here, there) = (end(runtime, transports), end(runtime, transports));
        here.connect(runtime, &there);
        for (length, local, remote) in [(0, 0, LENGTH), (1, 7, 9), (4097, 1, 4095), (3 << 20, 12_345, 777)] {
            let sent = bytes(3, usize::try_from(length).unwrap());
            assert!(there.region.write_at(remote, &sent));
            let read = here.request(&there, Direction::Read, local, remote, length);
            here.engine.submit(Batch::new(vec![read], soon())).wait().into_result().unwrap();
            assert!(here.holds(local, &sent), "read of {length} by {transports}");
            let sent = bytes(5, usize::try_from(length).unwrap());
            assert!(here.region.write_at(local, &sent));
            let write = here.request(&there, Direction::Write, local, remote, length);
            here.engine.submit(Batch::new(vec![write], soon())).wait().into_result().unwrap();
            assert!(there.holds(remote, &sent), "write of {length} by {transports}");
        }
    });
}

#[test]
fn one_batch_reads_from_many_peers() {
    by_each_transport(|runtime, transports| {
        let here = end(runtime, transports);
        let others: Vec<End> = (0..4).map(|_| end(runtime, transports)).collect();
        let mut requests = Vec::new();
        for (index, other) in others.iter().enumerate() {
            here.connect(runtime, other);
            assert!(other.region.write_at(0, &bytes(index, 1 << 20)));
            requests.extend((0..16).map(|part| {
                here.request(
                    other,
                    Direction::Read,
                    ((index as u64) << 20) + (part << 16),
                    part << 16,
                    1 << 16,
                )
            }));
        }
        let report = runtime.block_on(here.engine.submit(Batch::new(requests, soon())));
        assert_eq!(report.entries.len(), 64);
        report.into_result().unwrap();
        for index in 0..4_usize {
            assert!(here.holds((index as u64) << 20, &bytes(index, 1 << 20)));
        }
    });
}

#[test]
fn what_cannot_be_done_is_told_for_each_request_and_the_others_go_on() {
    by_each_transport(|runtime, transports| {
        let here = end(runtime, transports);
        let id = PeerId { member: member(), incarnation: Incarnation(1) };
        let there = start(runtime, id, "127.0.0.1:0", transports, Access::Read);
        here.connect(runtime, &there);
        assert!(there.region.write_at(0, b"whole"));
        let good = here.request(&there, Direction::Read, 0, 0, 5);
        let requests = vec![
            good,
            here.request(&there, Direction::Read, 0, LENGTH - 1, 2),
            here.request(&there, Direction::Read, LENGTH, 0, 1),
            here.request(&there, Direction::Write, 0, 0, 1),
            Request { local: LocalPlace { region: RegionId(999), offset: 0 }, ..good },
            Request { remote: RemotePlace { region: RegionId(998), ..good.remote }, ..good },
        ];
        let found = here.engine.submit(Batch::new(requests, soon())).wait().entries;
        let out_of_range = |region, offset, length| Error::OutOfRange {
            region,
            offset,
            length: ByteCount(length),
            region_length: ByteCount(LENGTH),
        };
        assert_eq!(
            found,
            [
                Ok(()),
                Err(out_of_range(there.region_id, LENGTH - 1, 2)),
                Err(out_of_range(here.region_id, LENGTH, 1)),
                Err(Error::ReadOnly { region: there.region_id }),
                Err(Error::NoSuchRegion { region: RegionId(999) }),
                Err(Error::NoSuchRegion { region: RegionId(998) }),
            ],
            "{transports}"
        );
        assert!(here.holds(0, b"whole"));
    });
}

#[test]
fn a_region_that_was_withdrawn_is_not_read_any_more() {
    by_each_transport(|runtime, transports| {
        let (here, there) = (end(runtime, transports), end(runtime, transports));
        here.connect(runtime, &there);
        let read = here.request(&there, Direction::Read, 0, 0, 1 << 20);
        here.engine.submit(Batch::new(vec![read], soon())).wait().into_result().unwrap();
        runtime.block_on(there.engine.unregister(there.region_id));
        assert!(here.region.write_at(0, &bytes(9, 100)));
        let refused = here.engine.submit(Batch::new(vec![read], soon())).wait().into_result();
        assert_eq!(refused, Err(Error::NoSuchRegion { region: there.region_id }), "{transports}");
        assert!(here.holds(0, &bytes(9, 100)), "nothing arrived");
    });
}

#[test]
fn a_peer_that_is_gone_ends_what_was_under_way_and_its_successor_is_another() {
    by_each_transport(|runtime, transports| {
        let here = end(runtime, transports);
        let there = end(runtime, transports);
        here.connect(runtime, &there);
        let address = there.engine.addresses()[0].to_string();
        let (member, old) = (there.id.member, there.id);
        let read = here.request(&there, Direction::Read, 0, 0, 1 << 20);
        runtime.block_on(there.engine.close());
        drop(there);
        let began = Instant::now();
        let ended = here.engine.submit(Batch::new(vec![read; 100], soon())).wait();
        assert!(began.elapsed() < Duration::from_secs(15), "by its deadline, and not only then");
        assert!(ended.entries.iter().all(Result::is_err), "{transports}: {ended:?}");
        let id = PeerId { member, incarnation: Incarnation(2) };
        let again = start(runtime, id, &address, transports, Access::ReadWrite);
        assert!(again.region.write_at(0, b"new"));
        let stale = here.engine.submit(Batch::new(vec![read], soon())).wait().into_result();
        assert!(matches!(stale, Err(Error::PeerGone { peer, .. }) if peer == old), "{transports}: {stale:?}");
        here.connect(runtime, &again);
        let fresh = here.request(&again, Direction::Read, 0, 0, 3);
        here.engine.submit(Batch::new(vec![fresh], soon())).wait().into_result().unwrap();
        assert!(here.holds(0, b"new"));
    });
}

/// What was published last, and how often it was asked for.
#[derive(Debug)]
struct Board {
    published: Mutex<PeerDescriptor>,
    fetches: AtomicU64,
    /// What takes the place of the descriptor once it was fetched.
    next: Mutex<Option<PeerDescriptor>>,
}

impl Directory for Board {
    fn find(&self, _: MemberId) -> BoxFuture<'_, Result<PeerDescriptor, Error>> {
        self.fetches.fetch_add(1, Ordering::SeqCst);
        let mut published = self.published.lock();
        let found = published.clone();
        if let Some(next) = self.next.lock().take() {
            *published = next;
        }
        Box::pin(async { Ok(found) })
    }
}

/// The directory still names the dead process when it is asked first: one more look finds its successor on the same
/// port, and a successor that nobody published is not looked for again and again.
#[test]
fn a_restarted_peer_is_fetched_again_exactly_once() {
    let runtime = runtime();
    let here = end(&runtime, SOCKETS);
    let there = end(&runtime, SOCKETS);
    let (member, old) = (there.id.member, there.engine.descriptor());
    let board =
        Board { published: Mutex::new(old.clone()), fetches: AtomicU64::new(0), next: Mutex::default() };
    let connect = || runtime.block_on(here.engine.connect_member(member, &board, soon()));
    assert_eq!((connect(), connect()), (Ok(there.id), Ok(there.id)));
    assert_eq!(board.fetches.load(Ordering::SeqCst), 1, "a descriptor whose connection lives is kept");
    let address = there.engine.addresses()[0].to_string();
    let read = here.request(&there, Direction::Read, 0, 0, 1 << 20);
    runtime.block_on(there.engine.close());
    drop(there);
    let id = PeerId { member, incarnation: Incarnation(2) };
    let again = start(&runtime, id, &address, SOCKETS, Access::ReadWrite);
    let ended = here.engine.submit(Batch::new(vec![read; 3], soon())).wait();
    assert_eq!(ended.entries.len(), 3);
    assert!(ended.entries.iter().all(Result::is_err), "the dead one's operations fail: {ended:?}");
    let gone = connect().unwrap_err();
    assert!(matches!(gone, Error::PeerGone { .. }), "{gone:?}");
    let before = board.fetches.load(Ordering::SeqCst);
    *board.next.lock() = Some(again.engine.descriptor());
    assert_eq!(connect(), Ok(id));
    assert_eq!(board.fetches.load(Ordering::SeqCst), before + 2, "the stale one, and the one after it");
    let fresh = here.request(&again, Direction::Read, 0, 0, 3);
    here.engine.submit(Batch::new(vec![fresh], soon())).wait().into_result().unwrap();
}

/// The member's first process hangs, and its second is published while who asked for the first has given up.
#[test]
fn a_descriptor_that_led_nowhere_in_time_is_fetched_again() {
    let runtime = runtime();
    // No attempt to reach the first ends by itself.
    let connect_timeout = Duration::from_secs(60);
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let link = LinkConfig { listen, connect_timeout, ..LinkConfig::default() };
    let me = PeerId { member: member(), incarnation: Incarnation(1) };
    let config = EngineConfig { link, connect_timeout, ..EngineConfig::new(me) };
    let here = start_with(&runtime, config, Access::ReadWrite, |parts| {
        Ok(vec![TransportName::Tcp.open(&TransportOptions::default(), parts)?])
    });
    let id = PeerId { member: member(), incarnation: Incarnation(2) };
    let there = start(&runtime, id, "127.0.0.1:0", SOCKETS, Access::Read);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hung = PeerDescriptor {
        id: PeerId { incarnation: Incarnation(1), ..id },
        addresses: vec![silent.local_addr().unwrap()],
        transports: vec![SOCKETS.to_owned()],
    };
    let board = Board { published: Mutex::new(hung), fetches: AtomicU64::new(0), next: Mutex::default() };
    let connect =
        |deadline| runtime.block_on(here.engine.connect_member(id.member, &board, Instant::now() + deadline));
    assert_eq!(connect(Duration::from_millis(200)), Err(Error::DeadlinePassed));
    *board.published.lock() = there.engine.descriptor();
    assert_eq!(connect(Duration::from_secs(20)), Ok(id));
}

#[test]
fn a_question_that_nobody_answers_is_refused_in_the_peers_words() {
    let runtime = runtime();
    let (here, there) = (end(&runtime, SOCKETS), end(&runtime, SOCKETS));
    here.connect(&runtime, &there);
    let channel = Channel(FIRST_FREE_CHANNEL.0 + 1);
    let refused = runtime.block_on(here.engine.call(there.id, channel, Vec::new(), soon()));
    assert_eq!(refused, Err(Error::Refused { cause: "not here".into() }));
}

#[test]
fn a_passed_deadline_and_a_dropped_handle_end_a_batch() {
    by_each_transport(|runtime, transports| {
        let (here, there) = (end(runtime, transports), end(runtime, transports));
        here.connect(runtime, &there);
        let read = here.request(&there, Direction::Read, 0, 0, LENGTH);
        let late = here.engine.submit(Batch::new(vec![read; 20], Instant::now())).wait();
        let is_late = |result: &Result<(), Error>| matches!(result, Ok(()) | Err(Error::DeadlinePassed));
        assert!(late.entries.iter().all(is_late), "{transports}: {late:?}");
        for _ in 0..10 {
            drop(here.engine.submit(Batch::new(vec![read; 20], soon())));
        }
        // What was given up takes no room for ever.
        let until = soon();
        while here.engine.status().operations > 0 {
            assert!(Instant::now() < until, "{transports}: {:?}", here.engine.status());
            std::thread::sleep(Duration::from_millis(1));
        }
        let urgent = Batch { priority: Priority::Urgent, ..Batch::new(vec![read], soon()) };
        here.engine.submit(urgent).wait().into_result().unwrap();
    });
}

#[test]
fn without_a_common_transport_the_error_names_what_was_looked_for() {
    let runtime = runtime();
    let (here, there) = (end(&runtime, SOCKETS), end(&runtime, "shm"));
    let refused = runtime
        .block_on(here.engine.connect(&there.engine.descriptor(), Instant::now() + Duration::from_secs(2)));
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("tcp"), "{text}");
}

#[test]
fn the_status_tells_links_ways_and_rates() {
    let runtime = runtime();
    let (here, there) = (end(&runtime, "auto"), end(&runtime, "auto"));
    here.connect(&runtime, &there);
    // On a busy machine sockets are connected beside it, and first.
    ways::until(&|| here.engine.status().peers[0].ways[0].state == "ready");
    let read = here.request(&there, Direction::Read, 0, 0, 1 << 20);
    here.engine.submit(Batch::new(vec![read], soon())).wait().into_result().unwrap();
    let status = here.engine.status();
    let peer = &status.peers[0];
    assert!(peer.is_linked && peer.peer == there.id.to_string(), "{status:?}");
    assert_eq!(peer.ways.iter().map(|way| way.transport.as_str()).collect::<Vec<_>>(), ["shm", "tcp"]);
    assert_eq!(peer.ways[0].state, "ready");
    assert!(peer.ways[0].rails[0].bytes_per_second > 0);
    assert_eq!((status.metrics.read_bytes_total, status.metrics.requests_succeeded_total), (1 << 20, 1));
}

#[test]
fn a_host_without_ipv4_and_one_with_both_are_reached() {
    let runtime = runtime();
    for listen in ["[::1]:0", "[::]:0", "127.0.0.1:0"] {
        let id = PeerId { member: member(), incarnation: Incarnation(1) };
        let there = start(&runtime, id, listen, SOCKETS, Access::Read);
        let here = end(&runtime, SOCKETS);
        here.connect(&runtime, &there);
        let read = here.request(&there, Direction::Read, 0, 0, 4096);
        here.engine.submit(Batch::new(vec![read], soon())).wait().into_result().unwrap();
    }
}

/// The tasks that would open the way to the peer end with their runtime, and what waits for them does, too.
#[test]
fn a_handle_ends_when_the_runtime_is_gone() {
    let runtime = runtime();
    let (here, there) = (end(&runtime, SOCKETS), end(&runtime, SOCKETS));
    let read = here.request(&there, Direction::Read, 0, 0, 4096);
    runtime.shutdown_background();
    let handle = here.engine.submit(Batch::new(vec![read; 3], soon()));
    let report = handle.wait_for(Duration::from_secs(10)).expect("nobody would end it");
    assert_eq!(report.entries, vec![Err(Error::Closed); 3]);
}

/// A request with more slices than may be under way is taken when there is room for any, and the next one has to wait.
#[test]
fn a_request_of_more_slices_than_the_limit_is_carried() {
    let runtime = runtime();
    let there = end(&runtime, SOCKETS);
    let id = PeerId { member: member(), incarnation: Incarnation(1) };
    let config = EngineConfig {
        link: LinkConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], ..LinkConfig::default() },
        operations_max: 2,
        ..EngineConfig::new(id)
    };
    let faults = Faults::new(FaultOptions::default());
    let here = start_with(&runtime, config, Access::ReadWrite, |parts| faulty_tcp(parts, &faults));
    here.connect(&runtime, &there);
    let read = here.request(&there, Direction::Read, 0, 0, LENGTH);
    here.engine.submit(Batch::new(vec![read], soon())).wait().into_result().unwrap();
    faults.partition(there.id);
    let long = here.engine.submit(Batch::new(vec![read], soon()));
    let refused = here.engine.submit(Batch::new(vec![read], soon())).wait().into_result();
    assert!(matches!(refused, Err(Error::Busy { .. })), "{refused:?}");
    faults.heal(there.id);
    long.wait().into_result().unwrap();
}
