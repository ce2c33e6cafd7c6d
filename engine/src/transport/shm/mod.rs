//! Peers of one host: their memory is mapped here, and an operation is a copy by the initiator's processor.
//!
//! The owner passes the files of its regions as descriptors over a local socket, whose random name it grants over the
//! link. Beside them it shares one word for each grant: the initiator counts its copies there, and the owner withdraws
//! it, so that a region can be given back while peers have it mapped. A peer that dies leaves its socket, which ends all
//! that it was granted.
//!
//! Limits: regions without a file cannot be passed; the initiator runs as the owner's user, or as root; the same network
//! namespace, because the socket's name is of that. Where one of these fails the transport says so, and the next one is used.
//!
//! Threads: one runtime task for each connection at either end, and a small pool that copies (see `copier`).

mod admission;
mod copier;
mod endpoint;
mod ffi;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
mod grants;
mod socket;
mod wire;
mod word;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use admission::Shared;
use copier::Copiers;
use endpoint::ShmEndpoint;
use ffi::Words;
use socket::{Listener, Socket};
use wire::{PACKET, Packet, Token};

use super::{BoxFuture, Capabilities, Endpoint, Exchange, Rail, Transport};
use crate::error::Error;
use crate::link::{BootId, fill_random};
use crate::memory::Region;
use crate::types::{ByteCount, PeerId, RailId, RegionId};

const NAME: &str = "shm";
/// Operations that one endpoint holds.
const OPERATIONS_MAX: usize = 1024;

/// How the transport works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmConfig {
    /// Threads that copy. Default: half of the processors, at least 1 and at most 8.
    pub copy_threads: usize,
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self { copy_threads: thread::available_parallelism().map_or(1, |count| count.get() / 2).clamp(1, 8) }
    }
}

/// Version of [`Question`] and [`Reply`].
const VERSION: u8 = 1;

/// What the initiator asks over the link.
#[derive(Debug, Serialize, Deserialize)]
struct Question {
    version: u8,
    boot_id: [u8; 16],
}

/// What the owner answers.
#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    /// Come to this abstract socket with this token.
    Granted { name: Vec<u8>, token: Token },
    /// The two run on different hosts.
    OtherHost { boot_id: [u8; 16] },
}

/// The transport of one process.
#[derive(Debug)]
pub struct ShmTransport {
    shared: Arc<Shared>,
    boot_id: [u8; 16],
    name: Vec<u8>,
    copiers: Arc<Copiers>,
    runtime: Handle,
    listener: tokio::task::JoinHandle<()>,
    /// What was connected from here, to be ended. A failed one is kept by its last copy only.
    endpoints: Mutex<Vec<Weak<ShmEndpoint>>>,
    is_closed: AtomicBool,
}

impl ShmTransport {
    /// Listens on a socket with a random name.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when this host has no boot id, sockets or threads for it.
    pub fn open(config: ShmConfig, runtime: &Handle) -> Result<Arc<Self>, Error> {
        let unavailable = |looked_for: &'static str| {
            move |error: io::Error| Error::Unavailable {
                transport: NAME,
                looked_for: looked_for.into(),
                cause: error.to_string().into(),
            }
        };
        let boot_id = BootId::of_this_host().0;
        if boot_id == [0; 16] {
            let missing =
                io::Error::other("the kernel does not tell it, so peers of this host cannot be recognised");
            return Err(unavailable("/proc/sys/kernel/random/boot_id")(missing));
        }
        let mut random = [0; 16];
        fill_random(&mut random)?;
        let name: Vec<u8> = [&b"tidefs-shm-"[..], &random].concat();
        let inside = runtime.enter();
        let listener = Listener::bind(&name).map_err(unavailable("an abstract unix socket"))?;
        drop(inside);
        let copiers = Copiers::start(config.copy_threads).map_err(unavailable("threads that copy"))?;
        let shared = Arc::new(Shared::default());
        let listener = runtime.spawn(Arc::clone(&shared).accept(listener));
        let (endpoints, is_closed) = (Mutex::default(), AtomicBool::new(false));
        let (copiers, runtime) = (Arc::new(copiers), runtime.clone());
        Ok(Arc::new(Self { shared, boot_id, name, copiers, runtime, listener, endpoints, is_closed }))
    }

    async fn connect_to(&self, peer: PeerId, exchange: &dyn Exchange) -> Result<Arc<dyn Endpoint>, Error> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let question =
            postcard::to_allocvec(&Question { version: VERSION, boot_id: self.boot_id }).unwrap_or_default();
        let answer = exchange.ask(question).await?;
        let reply =
            postcard::from_bytes(&answer).map_err(|error| Error::protocol(format!("shm: {error}")))?;
        let (name, token) = match reply {
            Reply::Granted { name, token } => (name, token),
            Reply::OtherHost { boot_id } => {
                return Err(Error::Unavailable {
                    transport: NAME,
                    looked_for: format!("peer {peer} on this host, boot {:02x?}", &self.boot_id[..4]).into(),
                    cause: format!("it runs on another, boot {:02x?}", &boot_id[..4]).into(),
                });
            }
        };
        let out_of_reach = |cause: String| Error::Unavailable {
            transport: NAME,
            looked_for: format!("the abstract socket of peer {peer}").into(),
            cause: cause.into(),
        };
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::PermissionDenied => {
                out_of_reach(format!("{error}: it is in another network namespace, or of another user"))
            }
            _ => Error::transport(NAME, error.to_string()),
        };
        let socket = {
            let _inside = self.runtime.enter();
            Socket::connect(&name).map_err(failed)?
        };
        if !socket.trusts_us() {
            let cause = "it is of another user, to whom and to root alone it gives memory";
            return Err(out_of_reach(cause.to_owned()));
        }
        socket.send(&token, None).await.map_err(failed)?;
        let mut packet = [0; PACKET];
        let words = match socket.receive(&mut packet).await.map_err(failed)? {
            (count, Some(words)) if Packet::decode(&packet[..count]) == Some(Packet::Welcome) => words,
            _ => return Err(Error::transport(NAME, "the peer did not welcome the token that it granted")),
        };
        let words = Words::of_descriptor(words).map_err(failed)?;
        let endpoint = ShmEndpoint::start(&self.runtime, peer, socket, words, Arc::clone(&self.copiers));
        let mut endpoints = self.endpoints.lock();
        endpoints.retain(|other| other.strong_count() > 0);
        endpoints.push(Arc::downgrade(&endpoint));
        drop(endpoints);
        if self.is_closed.load(Ordering::Acquire) {
            // Who closed it may have looked before.
            endpoint.end_here();
            return Err(Error::Closed);
        }
        Ok(endpoint)
    }

    /// What was connected from here and is not gone.
    fn connected(&self) -> Vec<Arc<ShmEndpoint>> {
        self.endpoints.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            operation_bytes_max: ByteCount::gib(1),
            slice_bytes: ByteCount::mib(1),
            operations_max: OPERATIONS_MAX,
            is_local: true,
            needs_target_cpu: false,
            needs_local_registration: false,
        }
    }

    fn rails(&self) -> Vec<Rail> {
        vec![Rail {
            id: RailId(0),
            name: "memory".to_owned(),
            numa: None,
            pci_links: None,
            nominal_bytes_per_second: 0,
        }]
    }

    fn register(&self, id: RegionId, region: &Arc<Region>) -> Result<Vec<u8>, Error> {
        if region.file().is_none() {
            let cause = "the region has no file, and only a file can be passed to another process";
            return Err(Error::System { what: "register memory for shm", cause: cause.into() });
        }
        self.shared.owner.add(id, region);
        Ok(Vec::new())
    }

    fn unregister(&self, id: RegionId) -> BoxFuture<'_, ()> {
        Box::pin(self.shared.owner.remove(id))
    }

    fn connect<'a>(
        &'a self,
        peer: PeerId,
        exchange: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>> {
        Box::pin(self.connect_to(peer, exchange))
    }

    fn answer(&self, peer: PeerId, request: &[u8]) -> Result<Vec<u8>, Error> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let question = match postcard::take_from_bytes::<Question>(request) {
            Ok((question, [])) if question.version == VERSION => question,
            Ok((question, [])) => {
                return Err(Error::protocol(format!("shm: version {}, this is {VERSION}", question.version)));
            }
            Ok((_, rest)) => {
                return Err(Error::protocol(format!("shm: {} bytes follow a question", rest.len())));
            }
            Err(error) => return Err(Error::protocol(format!("shm: {error}"))),
        };
        let reply = if question.boot_id == self.boot_id {
            Reply::Granted { name: self.name.clone(), token: self.shared.grant_token(peer)? }
        } else {
            Reply::OtherHost { boot_id: self.boot_id }
        };
        postcard::to_allocvec(&reply).map_err(|error| Error::protocol(error.to_string()))
    }

    fn forget(&self, peer: PeerId) {
        self.shared.tokens.lock().retain(|_, (granted, _)| *granted != peer);
        self.shared.owner.forget(peer);
        let endpoints = self.connected();
        endpoints.iter().filter(|endpoint| endpoint.peer() == peer).for_each(|endpoint| endpoint.lose());
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.is_closed.store(true, Ordering::Release);
            self.listener.abort();
            self.shared.tokens.lock().clear();
            self.shared.owner.stop();
            for endpoint in self.connected() {
                endpoint.close().await;
            }
            self.shared.owner.close().await;
        })
    }
}

impl Drop for ShmTransport {
    /// Ends what its tasks would keep: they hold the connections, and those the threads that copy.
    fn drop(&mut self) {
        self.listener.abort();
        self.shared.owner.stop();
        self.connected().iter().for_each(|endpoint| endpoint.end_here());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::EndpointState;
    use super::super::conformance::{Pair, conformance, peer};
    use super::*;

    fn pair() -> Pair {
        let open = || ShmTransport::open(ShmConfig { copy_threads: 2 }, &Handle::current()).unwrap();
        Pair::new(open(), open())
    }

    conformance!(conforms, super::pair);

    #[derive(Debug)]
    struct OfAnotherHost;

    impl Exchange for OfAnotherHost {
        fn ask(&self, _: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
            let reply = postcard::to_allocvec(&Reply::OtherHost { boot_id: [9; 16] }).unwrap();
            Box::pin(async { Ok(reply) })
        }
    }

    /// The link to a transport of this process.
    #[derive(Debug)]
    struct To(Arc<ShmTransport>);

    impl Exchange for To {
        fn ask(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
            Box::pin(std::future::ready(self.0.answer(peer(1), &request)))
        }
    }

    /// An engine that is dropped and was not closed, say. Its threads end, and its peers keep nothing for it.
    #[tokio::test]
    async fn a_transport_that_is_dropped_leaves_no_connection_and_no_threads() {
        let open = || ShmTransport::open(ShmConfig { copy_threads: 1 }, &Handle::current()).unwrap();
        let (near, far) = (open(), open());
        let endpoint = near.connect(peer(2), &To(Arc::clone(&far))).await.unwrap();
        let copiers = Arc::downgrade(&near.copiers);
        drop(near);
        assert_eq!(endpoint.state(), EndpointState::Closed);
        drop(endpoint);
        let wait = async {
            while copiers.strong_count() > 0 || far.shared.owner.has_guests() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), wait).await.expect("nothing stays");
    }

    #[tokio::test]
    async fn a_peer_of_another_host_is_out_of_reach_for_good() {
        let transport = ShmTransport::open(ShmConfig::default(), &Handle::current()).unwrap();
        let refused = transport.connect(peer(2), &OfAnotherHost).await.unwrap_err();
        assert!(matches!(refused, Error::Unavailable { transport: "shm", .. }), "{refused}");
    }
}
