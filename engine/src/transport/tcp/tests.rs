//! The suite on sockets of this host, with each setting that changes how bytes travel.

use std::sync::{Arc, mpsc};

use parking_lot::Mutex;
use tokio::runtime::{Handle, Runtime};

use super::{TcpConfig, TcpTransport};
use crate::error::Error;
use crate::link::{Answer, Channel, Link, LinkConfig, LinkEvents, Links};
use crate::transport::Transport;
use crate::transport::conformance::{Pair, Side, conformance, peer};
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

fn side(number: u64, runtime: Handle, config: TcpConfig) -> Side {
    let link = LinkConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], ..LinkConfig::default() };
    let links = Links::start(runtime, link, peer(number), Arc::new(NoLinks)).unwrap();
    Side { peer: peer(number), transport: TcpTransport::open(&links, config) as Arc<dyn Transport> }
}

/// Two ends; all threads of the second are blocked to hold operations back.
fn pair_with(config: TcpConfig) -> Pair {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let second: Runtime = builder.worker_threads(1).enable_all().build().unwrap();
    let (a, b) = (side(1, Handle::current(), config.clone()), side(2, second.handle().clone(), config));
    let blocked: Mutex<Option<mpsc::Sender<()>>> = Mutex::new(None);
    let stall = Box::new(move |is_stalled| {
        // Without a sender the blocked thread goes on.
        blocked.lock().take();
        if is_stalled {
            let (go_on, wait) = mpsc::channel();
            let (is_blocked, begun) = mpsc::channel();
            *blocked.lock() = Some(go_on);
            second.spawn(async move {
                is_blocked.send(()).unwrap();
                wait.recv().unwrap_err();
            });
            begun.recv().unwrap();
        }
    });
    Pair { a, b, stall: Some(stall), forget_takes_back: true }
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
