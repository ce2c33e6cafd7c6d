//! Two engines' worth of links and transports.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use tidefs_engine::error::Error;
use tidefs_engine::link::{Answer, Channel, ClusterKey, Link, LinkConfig, LinkEvents, Links};
use tidefs_engine::memory::{Access, PageKind, Region};
use tidefs_engine::metrics::Metrics;
use tidefs_engine::transport::tcp::{TcpConfig, TcpTransport};
use tidefs_engine::transport::{BoxFuture, Endpoint, Exchange, Transport};
use tidefs_engine::types::{ByteCount, Incarnation, MemberId, PeerId, RegionId};
use tokio::runtime::Handle;

use crate::batch::Shared;

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
    pub(crate) metrics: Arc<Metrics>,
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
        let metrics = Arc::default();
        let tcp = TcpTransport::open(&links, config, &metrics).unwrap();
        events.0.set(Arc::downgrade(&tcp)).unwrap();
        Self { me: peer(member), links, tcp, metrics }
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
