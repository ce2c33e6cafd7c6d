//! The transport that is always there: sockets.
//!
//! Each end dials a few data connections to the listener of the other, with a token that it was granted over the link,
//! and asks over them. A read is answered with bytes straight from the region, which are received straight into their
//! target; a write carries its bytes along and is acknowledged when they are in the region, and checked if they are.
//!
//! Invariants
//! - A region is named by its id and its registration; one that was withdrawn is never touched again, whatever a peer
//!   sends, and however slowly.
//! - An operation that is given up lets go of its memory before it ends: what is left of its payload is dropped, or
//!   finished from a copy, so that the other operations of its connection go on. Where the kernel may still read what was
//!   sent without a copy, it ends when the kernel is done, which costs the connection if that takes long.
//! - A connection that fails ends its own operations with an error that may be retried, and is dialled again. So does one by
//!   which nothing comes while another hears the peer, where only reads are under way on it.
//!
//! Limits: [`TcpConfig`]; beyond `operations_max` and `in_flight_bytes_max`, operations stay in the caller's queue.
//!
//! Threads: a few pollers of its own (see `poller`), which move all bytes; the runtime of the links, which dials and
//! watches deadlines and silence. Short requests are sent by whoever posts them, and who blocks for a short transfer does
//! the poller's work meanwhile.

// Peers and their connections: what is granted, and which one an operation takes.
mod config;
mod endpoint;
mod grant;

// One data connection: frames in and out, and what is asked and served over it.
mod ffi;
mod frame;
mod inbox;
mod lane;
mod outbox;
mod sends;
mod serve;

// The threads that work on connections, and tasks that are waited for.
mod poller;
mod tasks;

// Regions that peers may name.
mod registry;

// Tests, and the parsers for fuzzing.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use self::endpoint::{Granted, TcpEndpoint};
use self::grant::{Ask, Grant, Grants};
use self::poller::Pollers;
use self::registry::Registry;
use self::sends::Policy;
use self::serve::Served;
use super::{BoxFuture, Capabilities, Endpoint, EndpointState, Exchange, Rail, Transport, ZeroCopyStatus};
use crate::error::Error;
use crate::link::{Adopter, Links, Stream, Token};
use crate::memory::Region;
use crate::metrics::Metrics;
use crate::topology::{Topology, nodes_of_nics, processors_beside};
use crate::types::{ByteCount, PeerId, RailId, RegionId};

pub use config::{ParseZeroCopyError, TcpConfig, ZeroCopy};

const NAME: &str = "tcp";
/// Data connections to one peer.
const LANES_MAX: usize = 8;
/// A peer that takes no operation of a page is refused: each piece that a request is cut into costs memory here.
const OPERATION_BYTES_MIN: u64 = 4096;
/// Below this, cutting costs more than it gains.
const SLICE_BYTES: ByteCount = ByteCount::kib(256);
/// The kernel routes, so all interfaces are one rail.
const RAIL: RailId = RailId(0);
/// System calls in one direction before others have their turn.
const TURN: usize = 8;

/// Moves bytes over sockets. See the module's page.
#[derive(Debug)]
pub struct TcpTransport {
    links: Arc<Links>,
    config: TcpConfig,
    registry: Arc<Registry>,
    /// What peers may do here. Held for a look-up.
    grants: Mutex<Grants>,
    /// What was connected from here, to be ended. Held for a look-up.
    endpoints: Mutex<Vec<(PeerId, Weak<TcpEndpoint>)>>,
    is_closed: AtomicBool,
    pollers: Arc<Pollers>,
    policy: Policy,
}

impl TcpTransport {
    /// Makes the transport. It uses the listener and the runtime of `links`, which it does not close, and counts in
    /// `metrics`.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no more threads or descriptors.
    pub fn open(links: &Arc<Links>, config: TcpConfig, metrics: &Arc<Metrics>) -> Result<Arc<Self>, Error> {
        let host = Topology::of_this_host();
        let nodes = nodes_of_nics(&host);
        let beside = |index: usize| {
            // Each poller beside one of the NICs; the kernel routes, so which NIC a connection goes by is not known.
            let node = nodes.get(index.checked_rem(nodes.len())?).copied();
            processors_beside(&host, node)
        };
        let pollers = Pollers::start(config.threads(), config.completion.spin(), beside)
            .map_err(|error| Error::system("start the threads of data connections", &error))?;
        let policy = Policy { wanted: config.zero_copy, metrics: Arc::clone(metrics) };
        let tcp = Arc::new(Self {
            links: Arc::clone(links),
            policy,
            config,
            registry: Arc::default(),
            grants: Mutex::default(),
            endpoints: Mutex::default(),
            is_closed: AtomicBool::new(false),
            pollers: Arc::new(pollers),
        });
        let weak: Weak<Self> = Arc::downgrade(&tcp);
        links.add_adopter(weak);
        Ok(tcp)
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.is_closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Where `peer` may dial. One that was dialled from here knows no address that certainly leads here, and takes "any" for
    /// where its link came from: it is told besides what that means on this host.
    fn addresses_for(&self, peer: PeerId) -> Vec<SocketAddr> {
        let mut addresses = self.links.told();
        if self.links.link(peer).is_some_and(|link| link.is_dialled()) {
            for address in self.links.addresses() {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        addresses
    }

    fn endpoints(&self, is_wanted: impl Fn(PeerId) -> bool) -> Vec<Arc<TcpEndpoint>> {
        let mut endpoints = self.endpoints.lock();
        endpoints.retain(|(_, endpoint)| endpoint.strong_count() > 0);
        let wanted = endpoints.iter().filter(|(peer, _)| is_wanted(*peer));
        wanted.filter_map(|(_, endpoint)| endpoint.upgrade()).collect()
    }
}

impl Adopter for TcpTransport {
    fn wants(&self, peer: PeerId, token: &Token) -> bool {
        self.grants.lock().holds(peer, token)
    }

    fn adopt(&self, peer: PeerId, token: &Token, stream: Stream) {
        let longest = self.config.operation_bytes_max.get();
        let make = || {
            let stream = stream.detach()?;
            let sends = self.policy.start(&stream);
            Served::start(stream, sends, &self.registry, longest, self.pollers.next())
        };
        if let Err(error) = self.grants.lock().add(peer, token, make) {
            tracing::warn!(%peer, %error, "a data connection of a peer is not served");
        }
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            operation_bytes_max: self.config.operation_bytes_max,
            slice_bytes: SLICE_BYTES,
            operations_max: self.config.operations_max,
            is_local: false,
            needs_target_cpu: true,
            needs_local_registration: false,
        }
    }

    fn rails(&self) -> Vec<Rail> {
        vec![Rail {
            id: RAIL,
            name: NAME.to_owned(),
            numa: None,
            pci_links: None,
            nominal_bytes_per_second: 0,
        }]
    }

    fn register(&self, id: RegionId, region: &Arc<Region>) -> Result<Vec<u8>, Error> {
        self.registry.register(id, region).map(|number| number.to_le_bytes().to_vec())
    }

    fn unregister(&self, id: RegionId) -> BoxFuture<'_, ()> {
        // Nobody gets at it any more: no connection has to wake for what none touches.
        let withdrawn = self.registry.withdraw(id).filter(|registration| !registration.is_idle());
        if withdrawn.is_some() {
            let served = self.grants.lock().served();
            served.iter().for_each(|served| served.let_go_withdrawn());
        }
        Box::pin(async move {
            if let Some(registration) = withdrawn {
                registration.wait_idle().await;
            }
        })
    }

    fn connect<'a>(
        &'a self,
        peer: PeerId,
        exchange: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>> {
        Box::pin(async move {
            self.check_open()?;
            let connections = u8::try_from(self.config.lanes()).unwrap_or(u8::MAX);
            let ask = grant::encode(&Ask { version: grant::VERSION, connections })?;
            let answer = exchange.ask(ask).await?;
            let grant: Grant = grant::decode(&answer)?;
            if grant.version != grant::VERSION {
                return Err(Error::protocol(format!("version {} was granted", grant.version)));
            }
            if grant.operation_bytes_max < OPERATION_BYTES_MIN {
                let granted = grant.operation_bytes_max;
                return Err(Error::protocol(format!("operations of at most {granted} bytes were granted")));
            }
            let granted = Granted {
                token: grant.token,
                addresses: grant.addresses,
                lanes: usize::from(grant.connections).min(self.config.lanes()),
                operation_bytes_max: grant.operation_bytes_max.min(self.config.operation_bytes_max.get()),
            };
            let links = Arc::clone(&self.links);
            let pollers = Arc::clone(&self.pollers);
            let (config, policy) = (self.config.clone(), self.policy.clone());
            let endpoint = TcpEndpoint::dial(peer, links, pollers, config, policy, granted).await?;
            let mut endpoints = self.endpoints.lock();
            // Those that failed were closed since.
            endpoints.retain(|(_, endpoint)| endpoint.strong_count() > 0);
            endpoints.push((peer, Arc::downgrade(&endpoint)));
            drop(endpoints);
            if let Err(closed) = self.check_open() {
                endpoint.end(EndpointState::Closed);
                return Err(closed);
            }
            Ok(endpoint as Arc<dyn Endpoint>)
        })
    }

    fn answer(&self, peer: PeerId, request: &[u8]) -> Result<Vec<u8>, Error> {
        let ask: Ask = grant::decode(request)?;
        if ask.version < grant::VERSION {
            let (theirs, ours) = (ask.version.to_string().into(), grant::VERSION.to_string().into());
            return Err(Error::VersionMismatch { theirs, ours });
        }
        let connections = ask.connections.clamp(1, u8::try_from(LANES_MAX).unwrap_or(u8::MAX));
        let token = {
            let mut grants = self.grants.lock();
            // Under the lock that `close` takes after it has set this.
            self.check_open()?;
            grants.give(peer, usize::from(connections))?
        };
        grant::encode(&Grant {
            version: grant::VERSION,
            connections,
            operation_bytes_max: self.config.operation_bytes_max.get(),
            token,
            addresses: self.addresses_for(peer),
        })
    }

    fn zero_copy(&self, peer: PeerId) -> Option<ZeroCopyStatus> {
        let dialled = self.endpoints(|found| found == peer);
        let mut states: Vec<_> = dialled.iter().flat_map(|endpoint| endpoint.zero_copy()).collect();
        let served = self.grants.lock().served_of(peer);
        states.extend(served.iter().filter(|served| !served.is_over()).map(|served| served.zero_copy()));
        let count = |wanted: &[sends::State]| states.iter().filter(|state| wanted.contains(state)).count();
        Some(ZeroCopyStatus {
            on: count(&[sends::State::On]),
            off: count(&[sends::State::Off]),
            untried: count(&[sends::State::Untried, sends::State::Trying]),
        })
    }

    fn forget(&self, peer: PeerId) {
        self.grants.lock().take_back(peer);
        for endpoint in self.endpoints(|found| found == peer) {
            let cause = "the link to it ended".into();
            endpoint.end(EndpointState::Failed(Error::PeerGone { peer, cause }));
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.is_closed.store(true, Ordering::Release);
        self.grants.lock().take_back_all();
        let endpoints = self.endpoints(|_| true);
        for endpoint in &endpoints {
            endpoint.end(EndpointState::Closed);
        }
        Box::pin(async move {
            for endpoint in &endpoints {
                endpoint.close().await;
            }
            self.pollers.until_graves_are_gone().await;
            self.pollers.stop();
        })
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.grants.lock().take_back_all();
    }
}
