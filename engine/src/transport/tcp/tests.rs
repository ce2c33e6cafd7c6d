//! The suite on sockets of this host, with each setting that changes how bytes travel.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::grant::{self, Grant};
use super::poller::{Driven, Poller, Readiness, Watch};
use super::{TcpConfig, TcpTransport, ZeroCopy};
use crate::error::Error;
use crate::link::{Answer, Channel, Link, LinkConfig, LinkEvents, Links};
use crate::transport::conformance::{Pair, Side, conformance, peer};
use crate::transport::{BoxFuture, Exchange, Transport};
use crate::types::PeerId;

/// No link is made: the suite carries what the ends ask each other.
#[derive(Debug)]
struct NoLinks;

impl LinkEvents for NoLinks {
    fn connected(&self, _: &Arc<Link>) {}

    fn disconnected(&self, _: PeerId, _: &Error) {}

    fn request(&self, _: &Arc<Link>, _: Channel, _: Vec<u8>) -> Answer {
        Answer::Now(Err("nobody answers".to_owned()))
    }

    fn notified(&self, _: &Arc<Link>, _: Channel, _: Vec<u8>) {}
}

fn side(number: u64, config: &TcpConfig) -> (PeerId, Arc<TcpTransport>) {
    let link = LinkConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], ..LinkConfig::default() };
    let links = Links::start(Handle::current(), link, peer(number), Arc::new(NoLinks)).unwrap();
    (peer(number), TcpTransport::open(&links, config.clone(), &Arc::default()).unwrap())
}

/// Holds the thread of a poller for as long as the sender of its channel lives.
#[derive(Debug)]
struct Plug {
    descriptor: EventFd,
    hold: Mutex<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>,
}

impl Driven for Plug {
    fn turn(&self, _: &mut Readiness) -> bool {
        if let Some((is_held, wait)) = self.hold.lock().take() {
            is_held.send(()).unwrap();
            wait.recv().unwrap_err();
        }
        false
    }

    fn wants_room(&self) -> bool {
        false
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A plug in a poller, and what it is watched by.
struct Plugged {
    plug: Arc<Plug>,
    watch: Watch,
}

impl Plugged {
    fn new(poller: &Arc<Poller>) -> Self {
        let plug = Arc::new(Plug { descriptor: EventFd::new().unwrap(), hold: Mutex::new(None) });
        let watch = poller.watch(&plug).unwrap();
        Self { plug, watch }
    }

    /// Returns when the thread is held; it is for as long as the sender lives.
    fn hold(&self) -> mpsc::Sender<()> {
        let (go_on, wait) = mpsc::channel();
        let (is_held, held) = mpsc::channel();
        *self.plug.hold.lock() = Some((is_held, wait));
        self.watch.wake();
        held.recv().unwrap();
        go_on
    }
}

/// Two ends; all pollers of the second are held to hold operations back.
fn pair_with(config: TcpConfig) -> Pair {
    let ((a, near), (b, far)) = (side(1, &config), side(2, &config));
    let plugs: Vec<_> = (0..config.threads()).map(|_| Plugged::new(far.pollers.next())).collect();
    let held: Mutex<Vec<mpsc::Sender<()>>> = Mutex::default();
    let stall = Box::new(move |is_stalled| {
        let mut held = held.lock();
        held.clear();
        if is_stalled {
            held.extend(plugs.iter().map(Plugged::hold));
        }
    });
    let (a, b) = (Side { peer: a, transport: near }, Side { peer: b, transport: far });
    Pair { a, b, stall: Some(stall), forget_takes_back: true, names_what_is_gone: true }
}

conformance!(plain, || super::pair_with(super::TcpConfig::default()));
conformance!(checked, || {
    super::pair_with(super::TcpConfig { payload_checksum: true, ..super::TcpConfig::default() })
});
conformance!(narrow, || {
    super::pair_with(super::TcpConfig {
        connections: 1,
        operations_max: 2,
        in_flight_bytes_max: crate::types::ByteCount::mib(1),
        ..super::TcpConfig::default()
    })
});
conformance!(without_a_copy, || {
    super::pair_with(super::TcpConfig { zero_copy: super::ZeroCopy::On, ..super::TcpConfig::default() })
});

/// A peer that grants no connection, and operations of this length.
#[derive(Debug)]
struct Granting(u64);

impl Exchange for Granting {
    fn ask(&self, _: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        let grant = Grant {
            version: grant::VERSION,
            connections: 0,
            operation_bytes_max: self.0,
            token: [7; 32],
            addresses: Vec::new(),
        };
        Box::pin(async move { grant::encode(&grant) })
    }
}

/// Else a request would be cut into as many operations as it has bytes.
#[tokio::test]
async fn a_grant_of_tiny_operations_breaks_the_protocol() {
    let (_, tcp) = side(1, &TcpConfig::default());
    for tiny in [0, 1, 4095] {
        let refused = tcp.connect(peer(2), &Granting(tiny)).await.unwrap_err();
        assert!(matches!(refused, Error::Protocol { .. }), "{refused}");
    }
    let refused = tcp.connect(peer(2), &Granting(4096)).await.unwrap_err();
    assert!(matches!(refused, Error::TransportFailed { .. }), "it grants no connection: {refused}");
}

/// A peer that grants one connection, to these addresses.
#[derive(Debug)]
struct Naming(Vec<SocketAddr>);

impl Exchange for Naming {
    fn ask(&self, _: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        let grant = Grant {
            version: grant::VERSION,
            connections: 1,
            operation_bytes_max: 1 << 20,
            token: [7; 32],
            addresses: self.0.clone(),
        };
        Box::pin(async move { grant::encode(&grant) })
    }
}

/// The peer has dialled, so that no address is known which certainly leads to it.
#[tokio::test]
async fn a_linked_peer_is_not_gone_where_another_answers_at_its_address() {
    let config = TcpConfig::default();
    let ((a, near), (b, far), (_, other)) = (side(1, &config), side(2, &config), side(3, &config));
    let deadline = Instant::now() + Duration::from_secs(60);
    far.links.connect(a, &near.links.addresses(), deadline).await.unwrap();
    let refused = near.connect(b, &Naming(other.links.addresses())).await.unwrap_err();
    assert!(matches!(refused, Error::Unreachable { .. }), "{refused}");
}
