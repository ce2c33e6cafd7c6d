//! Links that record what they are told and answer in a few fixed ways.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::error::Error;
use tidefs_engine::link::{Answer, Channel, ClusterKey, Link, LinkConfig, LinkEvents, Links};
use tidefs_engine::types::{Incarnation, MemberId, PeerId};
use tokio::runtime::Handle;

/// Answers with the body.
pub(crate) const ECHO: Channel = Channel(1);
/// Answers with the body, from a task of its own.
pub(crate) const ECHO_LATER: Channel = Channel(2);
/// Refuses.
pub(crate) const REFUSE: Channel = Channel(3);
/// Never answers.
pub(crate) const NEVER: Channel = Channel(4);
/// Panics.
pub(crate) const PANIC: Channel = Channel(5);
/// Panics in a task of its own.
pub(crate) const PANIC_LATER: Channel = Channel(6);

/// What was seen, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Connected(PeerId),
    Disconnected(PeerId),
    Notified(Vec<u8>),
}

fn panics() -> Result<Vec<u8>, String> {
    panic!("as the test asks")
}

#[derive(Debug, Default)]
pub(crate) struct Recorder(pub(crate) Mutex<Vec<Event>>);

impl LinkEvents for Recorder {
    fn connected(&self, link: &Arc<Link>) {
        self.0.lock().push(Event::Connected(link.peer()));
    }

    fn disconnected(&self, peer: PeerId, _: &Error) {
        self.0.lock().push(Event::Disconnected(peer));
    }

    fn request(&self, _: &Arc<Link>, channel: Channel, body: Vec<u8>) -> Answer {
        match channel {
            ECHO => Answer::Now(Ok(body)),
            ECHO_LATER => Answer::Later(Box::pin(async move {
                tokio::task::yield_now().await;
                Ok(body)
            })),
            NEVER => Answer::Later(Box::pin(std::future::pending())),
            PANIC => Answer::Now(panics()),
            PANIC_LATER => Answer::Later(Box::pin(async {
                tokio::task::yield_now().await;
                panics()
            })),
            _ => Answer::Now(Err(format!("channel {} is refused", channel.0))),
        }
    }

    fn notified(&self, _: &Arc<Link>, _: Channel, body: Vec<u8>) {
        self.0.lock().push(Event::Notified(body));
    }
}

impl Recorder {
    pub(crate) fn events(&self) -> Vec<Event> {
        self.0.lock().clone()
    }

    /// Waits until `wanted` was seen.
    pub(crate) async fn wait_for(&self, wanted: &Event) {
        until(|| self.0.lock().contains(wanted)).await;
    }
}

/// Waits until `holds`; panics after long.
pub(crate) async fn until(holds: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < limit, "what was waited for did not happen");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// One engine's links.
pub(crate) struct Node {
    pub(crate) me: PeerId,
    pub(crate) links: Arc<Links>,
    pub(crate) seen: Arc<Recorder>,
}

pub(crate) fn peer(member: u64, incarnation: u64) -> PeerId {
    PeerId { member: MemberId(member), incarnation: Incarnation(incarnation) }
}

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

pub(crate) fn config() -> LinkConfig {
    LinkConfig {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        key: Some(ClusterKey::new(*b"the key of the tests")),
        ..LinkConfig::default()
    }
}

impl Node {
    pub(crate) fn start(member: u64) -> Self {
        Self::with(peer(member, 1), config())
    }

    pub(crate) fn with(me: PeerId, config: LinkConfig) -> Self {
        let seen = Arc::new(Recorder::default());
        let events = Arc::clone(&seen) as Arc<dyn LinkEvents>;
        let links = Links::start(Handle::current(), config, me, events).unwrap();
        Self { me, links, seen }
    }

    pub(crate) async fn connect(&self, to: &Self) -> Result<Arc<Link>, Error> {
        self.links.connect(to.me, &to.links.addresses(), soon()).await
    }
}
