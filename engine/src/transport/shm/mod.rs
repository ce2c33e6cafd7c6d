//! Memory of two processes of one host: each maps what the other registered, and who submits copies.
//!
//! A region's file is passed as a descriptor over a unix socket, once for each peer, and mapped there. An operation is
//! then a memory copy by the initiator; the peer's processor has no part in it.
//!
//! Peers are of one host when they were booted together (`/proc/sys/kernel/random/boot_id`, exchanged over the link) and
//! see the same abstract sockets. Every other peer is [`Error::Unavailable`], so that another transport takes it.
//!
//! Taking memory back: each mapped region has a count in memory that both processes share. The initiator holds the count
//! up while it copies; the owner sets its top bit, after which none starts, and waits until it is down. An initiator that
//! was killed has closed its socket, and its counts are no longer waited for. One that is stopped (SIGSTOP) in a copy is
//! waited for, since it will go on copying.
//!
//! Limits
//! - Regions have a file behind them ([`Region::file`]); others are refused.
//! - A peer is a process of the same user, or of root: it could keep what it mapped.
//! - [`attached::SLOTS`] regions of one peer are mapped at once; more end with [`Error::Busy`].

mod attached;
mod copy;
mod endpoint;
mod ffi;
mod line;
mod message;
mod owner;
mod socket;

use std::fmt;
use std::io;
use std::num::NonZero;
use std::sync::{Arc, Weak};
use std::thread::available_parallelism;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use crate::error::Error;
use crate::memory::{Region, SharedWords};
use crate::transport::{BoxFuture, Capabilities, Endpoint, EndpointState, Exchange, Rail, Transport};
use crate::types::{ByteCount, PeerId, RailId, RegionId};

use attached::SLOTS;
use copy::CopyPool;
use endpoint::ShmEndpoint;
use line::{Line, OPERATIONS_MAX};
use message::{Answer, Frame, Host, Token, decode_request, encode_request};
use owner::Owner;
use socket::{Listener, Socket};

const NAME: &str = "shm";

/// How long the owner may take to welcome a connection that it granted.
const WELCOME_MAX: Duration = Duration::from_secs(5);

/// How copies are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmOptions {
    /// Threads that copy, at least 1.
    pub copy_threads: usize,
    /// Length of the parts into which a copy is cut, for several threads and to give it up in between.
    pub part_bytes: ByteCount,
    /// Bytes that one `post` copies itself, when nothing waits: a short copy takes less time than waking a thread.
    pub inline_bytes: ByteCount,
}

impl Default for ShmOptions {
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, NonZero::get);
        Self {
            copy_threads: (processors / 2).clamp(1, 4),
            part_bytes: ByteCount::mib(1),
            inline_bytes: ByteCount::kib(64),
        }
    }
}

/// Shared memory between the processes of this host.
pub struct ShmTransport {
    host: Host,
    owner: Arc<Owner>,
    socket_name: Vec<u8>,
    pool: Arc<CopyPool>,
    inline_bytes: usize,
    runtime: Handle,
    listening: JoinHandle<()>,
    /// Connections that were made here, and whether more may be.
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    made: Vec<Weak<Line>>,
    is_closed: bool,
}

impl fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShmTransport").field("host", &self.host).finish_non_exhaustive()
    }
}

impl ShmTransport {
    /// Opens the transport. Its connections are served on `runtime`, which has its I/O and time drivers.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where this host has no boot id; [`Error::System`].
    pub fn open(options: ShmOptions, runtime: &Handle) -> Result<Arc<Self>, Error> {
        let host = Host::here().map_err(|error| Error::Unavailable {
            transport: NAME,
            looked_for: "/proc/sys/kernel/random/boot_id".into(),
            cause: error.to_string().into(),
        })?;
        Self::open_on(host, options, runtime)
    }

    fn open_on(host: Host, options: ShmOptions, runtime: &Handle) -> Result<Arc<Self>, Error> {
        let to_usize = |bytes: ByteCount| usize::try_from(bytes.get()).unwrap_or(usize::MAX);
        let _inside = runtime.enter();
        let socket_name = Token::random().map_err(|error| Error::system("/dev/urandom", &error))?.to_name();
        let listener = Listener::bind(&socket_name);
        let listener = listener.map_err(|error| Error::system("an abstract unix socket", &error))?;
        let pool = CopyPool::start(options.copy_threads, to_usize(options.part_bytes));
        let pool = pool.map_err(|error| Error::system("a thread that copies", &error))?;
        let owner = Arc::new(Owner::default());
        let listening = runtime.spawn(Arc::clone(&owner).listen(listener));
        Ok(Arc::new(Self {
            host,
            owner,
            socket_name,
            pool: Arc::new(pool),
            inline_bytes: to_usize(options.inline_bytes),
            runtime: runtime.clone(),
            listening,
            lines: Mutex::default(),
        }))
    }

    /// Connects to the socket that the peer named, on the transport's own runtime.
    async fn greet(&self, token: Token, name: Vec<u8>) -> Result<(Socket, SharedWords), Error> {
        // Dropping the set ends the task.
        let mut greeting = JoinSet::new();
        let greet = async move { tokio::time::timeout(WELCOME_MAX, greet(token, &name)).await };
        greeting.spawn_on(greet, &self.runtime);
        match greeting.join_next().await {
            Some(Ok(Ok(Ok(welcome)))) => Ok(welcome),
            Some(Ok(Ok(Err(error)))) => Err(Error::transport(NAME, format!("the peer's socket: {error}"))),
            Some(Ok(Err(_))) => Err(Error::transport(NAME, "the peer does not answer on its socket")),
            Some(Err(_)) | None => Err(Error::Closed),
        }
    }

    /// Follows a connection, unless the transport was closed meanwhile.
    fn adopt(&self, peer: PeerId, socket: Socket, words: SharedWords) -> Result<Arc<Line>, Error> {
        let (sender, outbox) = mpsc::unbounded_channel();
        let line = Line::new(peer, words, sender, Arc::clone(&self.pool), self.inline_bytes);
        let mut lines = self.lines.lock();
        if lines.is_closed {
            return Err(Error::Closed);
        }
        lines.made.retain(|line| line.strong_count() > 0);
        lines.made.push(Arc::downgrade(&line));
        drop(self.runtime.spawn(Arc::clone(&line).follow(socket, outbox)));
        Ok(line)
    }

    fn lines(&self) -> Vec<Arc<Line>> {
        self.lines.lock().made.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Connects to `name`, shows the token, and receives the counts.
async fn greet(token: Token, name: &[u8]) -> io::Result<(Socket, SharedWords)> {
    let socket = Socket::connect(name)?;
    check_user(socket.peer_user()?).map_err(io::Error::other)?;
    socket.send(Frame::Hello(token), None).await?;
    match socket.receive().await? {
        Some((Frame::Welcome, Some(words))) => Ok((socket, SharedWords::of_descriptor(words, SLOTS)?)),
        Some(_) => Err(io::Error::from(io::ErrorKind::InvalidData)),
        None => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
    }
}

/// Only a process of the same user, or of root, is let in: it may keep what it maps.
fn check_user(user: u32) -> Result<(), Error> {
    let ours = nix::unistd::geteuid().as_raw();
    if user == ours || user == 0 {
        return Ok(());
    }
    Err(Error::Refused { cause: format!("user {user} is neither root nor {ours}").into() })
}

impl Transport for ShmTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            operation_bytes_max: ByteCount::mib(64),
            slice_bytes: ByteCount::mib(1),
            operations_max: OPERATIONS_MAX,
            is_local: true,
            needs_target_cpu: false,
        }
    }

    fn rails(&self) -> Vec<Rail> {
        vec![Rail { id: RailId(0), name: "memory".to_owned(), numa: None, nominal_bytes_per_second: 0 }]
    }

    fn register(&self, id: RegionId, region: &Arc<Region>) -> Result<Vec<u8>, Error> {
        self.owner.register(id, region).map(|()| Vec::new())
    }

    fn unregister(&self, id: RegionId) -> BoxFuture<'_, ()> {
        Box::pin(self.owner.unregister(id))
    }

    fn connect<'a>(
        &'a self,
        peer: PeerId,
        exchange: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>> {
        Box::pin(async move {
            if self.lines.lock().is_closed {
                return Err(Error::Closed);
            }
            let answer = exchange.ask(encode_request(&self.host)).await?;
            let (token, name) = match Answer::decode(&answer)? {
                Answer::Granted(token, name) => (token, name),
                Answer::OtherHost(host) => {
                    let looked_for = format!("peer {peer} on this host ({})", self.host);
                    let cause = format!("it runs on another, or in another network namespace ({host})");
                    let (looked_for, cause) = (looked_for.into(), cause.into());
                    return Err(Error::Unavailable { transport: NAME, looked_for, cause });
                }
            };
            let (socket, words) = self.greet(token, name).await?;
            let line = self.adopt(peer, socket, words)?;
            Ok(Arc::new(ShmEndpoint::new(line)) as Arc<dyn Endpoint>)
        })
    }

    fn answer(&self, peer: PeerId, request: &[u8]) -> Result<Vec<u8>, Error> {
        if decode_request(request)? != self.host {
            return Ok(Answer::OtherHost(self.host.clone()).encode());
        }
        let token = Token::random().map_err(|error| Error::system("/dev/urandom", &error))?;
        self.owner.grant(peer, token)?;
        Ok(Answer::Granted(token, self.socket_name.clone()).encode())
    }

    fn forget(&self, peer: PeerId) {
        self.owner.forget(peer);
        let gone = Error::PeerGone { peer, cause: "the link to it is gone".into() };
        for line in self.lines().iter().filter(|line| line.peer() == peer) {
            line.end(EndpointState::Failed(gone.clone()));
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.lines.lock().is_closed = true;
            let lines = self.lines();
            for line in &lines {
                line.end(EndpointState::Closed);
            }
            self.listening.abort();
            self.owner.close().await;
            for line in &lines {
                line.drained().await;
            }
        })
    }
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        self.listening.abort();
        for line in self.lines() {
            line.end(EndpointState::Closed);
        }
    }
}

#[cfg(test)]
mod tests;
