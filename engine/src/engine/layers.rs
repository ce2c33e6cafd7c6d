//! What is put around each transport when it is opened: limits, comparisons, a record.
//!
//! From the inside out: bytes are compared, then limited, then recorded, so that the record has what the engine saw.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Parts;
use super::ways::LinkExchange;
use crate::error::Error;
use crate::link::Links;
use crate::transport::layer::checksum::{Exchanges, checksummed};
use crate::transport::layer::record::{Record, recorded};
use crate::transport::layer::throttle::throttled;
use crate::transport::{BoxFuture, Exchange, Transport};
use crate::types::PeerId;

/// Longest wait for a checksum of the peer.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(5);

/// Which layers transports get.
#[derive(Clone, Debug, Default)]
pub struct LayerOptions {
    /// Bytes that a transport moves to and from all peers on other hosts in a second, as asked from here. Default: no
    /// limit.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Whether both ends compare checksums after each operation. Engines that do have no way to those that do not.
    pub is_checked: bool,
    /// Where the last operations are remembered.
    pub record: Option<Arc<Record>>,
}

impl LayerOptions {
    /// `transport` with its layers.
    pub(super) fn around(&self, mut transport: Arc<dyn Transport>, parts: &Parts) -> Arc<dyn Transport> {
        if self.is_checked {
            let exchanges = LinkExchanges { links: Arc::clone(&parts.links), transport: transport.name() };
            transport = checksummed(transport, Arc::new(exchanges), &parts.runtime);
        }
        let is_local = transport.capabilities().is_local;
        if let Some(bytes_per_second) = self.bytes_per_second.filter(|_| !is_local) {
            transport = throttled(transport, bytes_per_second.get(), &parts.runtime);
        }
        if let Some(record) = &self.record {
            transport = recorded(transport, record);
        }
        transport
    }
}

/// The links, as the ends of a transport compare over them.
#[derive(Debug)]
struct LinkExchanges {
    links: Arc<Links>,
    transport: &'static str,
}

impl Exchanges for LinkExchanges {
    fn to(&self, peer: PeerId) -> Arc<dyn Exchange> {
        let (links, transport) = (Arc::clone(&self.links), self.transport);
        Arc::new(ToPeer { links, transport, peer, patience: COMPARE_TIMEOUT })
    }
}

#[derive(Debug)]
struct ToPeer {
    links: Arc<Links>,
    transport: &'static str,
    peer: PeerId,
    /// Longest wait for an answer.
    patience: Duration,
}

impl Exchange for ToPeer {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        Box::pin(async move {
            let gone = || Error::PeerGone { peer: self.peer, cause: "its link is closed".into() };
            let link = self.links.link(self.peer).ok_or_else(gone)?;
            let deadline = Instant::now() + self.patience;
            let answer = LinkExchange { link, transport: self.transport, deadline }.ask(request).await;
            answer.map_err(|error| match error {
                // The deadline of the operation is another, and leaves perhaps time for another attempt.
                Error::DeadlinePassed => {
                    let waited = self.patience.as_millis();
                    Error::transport(self.transport, format!("no checksum of the peer within {waited} ms"))
                }
                other => other,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Runtime;

    use super::super::{
        Engine, EngineConfig, NoMessages, TransportChoice, TransportOptions, open_transports,
    };
    use super::*;
    use crate::link::{Answer, Channel, Link, LinkConfig, LinkEvents};
    use crate::memory::{Access, PageKind, Region};
    use crate::request::{Batch, LocalPlace, RemotePlace, Request};
    use crate::transport::Direction;
    use crate::types::{ByteCount, Incarnation, MemberId, RegionId};

    const LENGTH: ByteCount = ByteCount::mib(4);

    struct End {
        engine: Engine,
        id: PeerId,
        region: Arc<Region>,
        region_id: RegionId,
    }

    fn end(runtime: &Runtime, number: u64, layers: LayerOptions) -> End {
        let id = PeerId { member: MemberId(number), incarnation: Incarnation(1) };
        let link = LinkConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], ..LinkConfig::default() };
        let config = EngineConfig { link, ..EngineConfig::new(id) };
        let choice: TransportChoice = "tcp".parse().unwrap();
        let options = TransportOptions { layers, ..TransportOptions::default() };
        let open = |parts: &Parts| open_transports(&choice, &options, parts);
        let engine = Engine::start(runtime.handle().clone(), config, Arc::new(NoMessages), open).unwrap();
        let region = Arc::new(Region::anonymous(LENGTH, PageKind::Base, Access::ReadWrite).unwrap());
        let region_id = engine.register(&region).unwrap();
        End { engine, id, region, region_id }
    }

    /// Reads all of one end's region at the other; returns how that ended and how long it took.
    fn read(near: &LayerOptions, far: &LayerOptions, patience: Duration) -> (Result<(), Error>, Duration) {
        let runtime = Runtime::new().unwrap();
        let (here, there) = (end(&runtime, 1, near.clone()), end(&runtime, 2, far.clone()));
        assert!(there.region.write_at(LENGTH.get() - 5, b"whole"));
        let until = Instant::now() + patience;
        let peer = there.engine.descriptor();
        if let Err(error) = runtime.block_on(here.engine.connect(&peer, until)) {
            return (Err(error), Duration::ZERO);
        }
        let request = Request {
            direction: Direction::Read,
            local: LocalPlace { region: here.region_id, offset: 0 },
            remote: RemotePlace { peer: there.id, region: there.region_id, offset: 0 },
            length: LENGTH,
        };
        let report = here.engine.submit(Batch::new(vec![request], until)).wait();
        let elapsed = report.elapsed;
        let result = report.into_result();
        let mut found = [0; 5];
        assert!(here.region.read_at(LENGTH.get() - 5, &mut found));
        assert_eq!(result.is_ok(), found == *b"whole");
        runtime.block_on(async { tokio::join!(here.engine.close(), there.engine.close()) });
        (result, elapsed)
    }

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_limit_keeps_transfers_to_its_rate() {
        let slow = LayerOptions { bytes_per_second: NonZeroU64::new(16 << 20), ..LayerOptions::default() };
        let (result, elapsed) = read(&slow, &LayerOptions::default(), PATIENCE);
        result.unwrap();
        // All but the last slice, which is a megabyte at most, have had their time when it starts.
        assert!(elapsed >= Duration::from_millis(180), "{elapsed:?}");
    }

    #[test]
    fn a_record_has_each_operation() {
        let record = Record::new(100);
        let recording = LayerOptions { record: Some(Arc::clone(&record)), ..LayerOptions::default() };
        read(&recording, &LayerOptions::default(), PATIENCE).0.unwrap();
        let bytes: usize = record.entries().iter().map(|entry| entry.length).sum();
        assert_eq!(bytes as u64, LENGTH.get());
    }

    #[test]
    fn ends_that_compare_understand_each_other_and_nobody_else() {
        let checked = LayerOptions { is_checked: true, ..LayerOptions::default() };
        read(&checked, &checked, PATIENCE).0.unwrap();
        let brief = Duration::from_millis(500);
        assert!(read(&checked, &LayerOptions::default(), brief).0.is_err());
        assert!(read(&LayerOptions::default(), &checked, brief).0.is_err());
    }

    /// A peer that is asked and never answers.
    #[derive(Debug)]
    struct Mute;

    impl LinkEvents for Mute {
        fn connected(&self, _: &Arc<Link>) {}

        fn disconnected(&self, _: PeerId, _: &Error) {}

        fn request(&self, _: &Arc<Link>, _: Channel, _: Vec<u8>) -> Answer {
            Answer::Later(Box::pin(std::future::pending()))
        }

        fn notified(&self, _: &Arc<Link>, _: Channel, _: Vec<u8>) {}
    }

    /// Else an operation would end at once that has time to be tried again, and count as one that had none.
    #[test]
    fn a_comparison_that_is_not_answered_is_a_failure_and_no_passed_deadline() {
        let runtime = Runtime::new().unwrap();
        let start = |number| {
            let me = PeerId { member: MemberId(number), incarnation: Incarnation(1) };
            let link = LinkConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], ..LinkConfig::default() };
            Links::start(runtime.handle().clone(), link, me, Arc::new(Mute)).unwrap()
        };
        let (here, there) = (start(1), start(2));
        let until = Instant::now() + PATIENCE;
        runtime.block_on(here.connect(there.me(), &there.addresses(), until)).unwrap();
        let (links, peer) = (Arc::clone(&here), there.me());
        let exchange = ToPeer { links, transport: "tcp", peer, patience: Duration::from_millis(50) };
        let answer = runtime.block_on(exchange.ask(vec![1])).unwrap_err();
        assert!(matches!(answer, Error::TransportFailed { .. }), "{answer}");
        assert!(answer.is_retryable());
    }
}
