//! Hot path: a link, which is the connection to one proved peer, with its calls.
//!
//! Invariants
//! - A call ends exactly once: by its answer, its deadline, or the end of the link. One that is dropped frees its place.
//! - When a link is over, it stays over: all calls have ended, and new ones end at once with the same cause.
//!
//! One task reads ([`super::drive`]); any thread sends.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

use super::frame::{Header, Kind};
use super::handshake::Identity;
use super::outbox::{Outbox, Sent};
use super::stream::Stream;
use super::{BootId, Channel, LinkConfig, socket};
use crate::error::Error;
use crate::types::{BoxFuture, PeerId};

type Reply = oneshot::Sender<Result<Vec<u8>, Error>>;

/// A connection to a peer that has proved itself, for messages of both ends.
#[derive(Debug)]
pub struct Link {
    identity: Identity,
    remote: SocketAddr,
    is_dialled: bool,
    pub(super) config: Arc<LinkConfig>,
    pub(super) runtime: Handle,
    pub(super) stream: Stream,
    /// Frames that wait. Held for system calls that do not wait.
    pub(super) outbox: Mutex<Outbox>,
    /// Calls that wait for their answers, and whether there can be more. Held for a look-up.
    calls: Mutex<Calls>,
    /// Wakes the link's task: something waits to be sent, or the link is over.
    pub(super) wake: Notify,
    /// Requests that are being answered by tasks of their own.
    pub(super) answering: AtomicUsize,
    /// Set when the link is over: ends those tasks.
    pub(super) over: watch::Sender<bool>,
    /// Set when nothing of the link will be called any more.
    pub(super) ended: watch::Sender<bool>,
    made: Instant,
    /// When the peer was heard last, in milliseconds since `made`.
    heard_ms: AtomicU64,
}

#[derive(Debug)]
struct Calls {
    next: u64,
    waiting: HashMap<u64, Reply>,
    over: Option<Error>,
}

/// A call on its way; dropping it gives its place to another.
struct Waiting<'a> {
    link: &'a Link,
    correlation: u64,
    reply: oneshot::Receiver<Result<Vec<u8>, Error>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.link.calls.lock().waiting.remove(&self.correlation);
    }
}

impl Link {
    pub(super) fn new(
        stream: Stream,
        identity: Identity,
        is_dialled: bool,
        config: Arc<LinkConfig>,
        runtime: Handle,
    ) -> io::Result<Arc<Self>> {
        let queue_bytes_max = usize::try_from(config.queue_bytes_max.get()).unwrap_or(usize::MAX);
        Ok(Arc::new(Self {
            remote: stream.remote()?,
            identity,
            is_dialled,
            config,
            runtime,
            stream,
            outbox: Mutex::new(Outbox::new(queue_bytes_max)),
            calls: Mutex::new(Calls { next: 1, waiting: HashMap::new(), over: None }),
            wake: Notify::new(),
            answering: AtomicUsize::new(0),
            over: watch::Sender::new(false),
            ended: watch::Sender::new(false),
            made: Instant::now(),
            heard_ms: AtomicU64::new(0),
        }))
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.identity.peer
    }

    /// Which boot of which host the peer runs on.
    #[must_use]
    pub fn boot(&self) -> BootId {
        self.identity.boot
    }

    /// Address of the other end of this connection.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Where the peer says that it listens, as far as it can be dialled from here.
    #[must_use]
    pub fn listens_at(&self) -> Vec<SocketAddr> {
        socket::candidates(&self.identity.addresses, Some(self.remote))
    }

    /// Whether this end dialled.
    #[must_use]
    pub fn is_dialled(&self) -> bool {
        self.is_dialled
    }

    /// Whether messages can be sent. False from the moment that the end is noticed.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.calls.lock().over.is_none()
    }

    /// Asks the peer, and waits for its answer until `deadline`.
    ///
    /// # Errors
    /// [`Error::Refused`] with the words of the peer's handler; [`Error::Busy`] when too much waits here or there;
    /// [`Error::TooLarge`]; [`Error::DeadlinePassed`]; [`Error::PeerGone`] or [`Error::Closed`] when the link ends.
    /// # Cancellation
    /// Dropping the future frees its place; the peer may still handle the request.
    pub fn call(
        &self,
        channel: Channel,
        body: Vec<u8>,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        Box::pin(async move {
            let mut waiting = self.begin(channel, body)?;
            let timed = {
                let _context = self.runtime.enter();
                tokio::time::timeout_at(deadline.into(), &mut waiting.reply)
            };
            match timed.await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(self.cause()),
                Err(_) => Err(Error::DeadlinePassed),
            }
        })
    }

    /// Tells the peer something. Returns when it is sent or queued.
    ///
    /// # Errors
    /// [`Error::Busy`] when the queue is full, [`Error::TooLarge`], or why the link is over.
    pub fn notify(&self, channel: Channel, body: Vec<u8>) -> Result<(), Error> {
        let header = Header { channel, length: self.length_of(&body)?, ..Header::bare(Kind::Notification) };
        if let Some(cause) = &self.calls.lock().over {
            return Err(cause.clone());
        }
        self.send(&header, body, false)
    }

    /// Ends the link. The peer is told, calls end with [`Error::Closed`].
    pub fn close(&self) {
        self.end(Error::Closed);
    }

    fn begin(&self, channel: Channel, body: Vec<u8>) -> Result<Waiting<'_>, Error> {
        let length = self.length_of(&body)?;
        let (sender, reply) = oneshot::channel();
        let correlation = {
            let mut calls = self.calls.lock();
            if let Some(cause) = &calls.over {
                return Err(cause.clone());
            }
            if calls.waiting.len() >= self.config.calls_max {
                return Err(Error::Busy { what: "the queue of calls to the peer" });
            }
            let correlation = calls.next;
            calls.next += 1;
            calls.waiting.insert(correlation, sender);
            correlation
        };
        let waiting = Waiting { link: self, correlation, reply };
        self.send(&Header { kind: Kind::Request, channel, correlation, length }, body, false)?;
        Ok(waiting)
    }

    fn length_of(&self, body: &[u8]) -> Result<u32, Error> {
        let limit = self.config.message_bytes_max;
        match u32::try_from(body.len()) {
            Ok(length) if u64::from(length) <= limit.get() => Ok(length),
            _ => Err(Error::TooLarge {
                what: "a message",
                length: crate::types::ByteCount(body.len() as u64),
                limit,
            }),
        }
    }

    /// Sends or queues a frame. `over` is for answers, see [`Outbox::send`].
    pub(super) fn send(&self, header: &Header, body: Vec<u8>, over: bool) -> Result<(), Error> {
        let sent = self.outbox.lock().send(&self.stream, header, body, over);
        match sent {
            Ok(Sent::Now) => Ok(()),
            Ok(Sent::Later) => {
                self.wake.notify_one();
                Ok(())
            }
            Ok(Sent::Full) => Err(Error::Busy { what: "the queue of messages to the peer" }),
            Err(error) => {
                self.end(self.gone(&error.to_string()));
                Err(self.cause())
            }
        }
    }

    /// Sends what the handler of a request said.
    pub(super) fn respond(&self, to: &Header, result: Result<Vec<u8>, String>) -> Result<(), Error> {
        let (kind, body) = match result {
            Ok(body) => (Kind::Response, body),
            Err(words) => (Kind::Refusal, words.into_bytes()),
        };
        let (kind, body, length) = match self.length_of(&body) {
            Ok(length) => (kind, body, length),
            Err(error) => {
                let words = error.to_string().into_bytes();
                let length = u32::try_from(words.len()).unwrap_or(0);
                (Kind::Refusal, words, length)
            }
        };
        match self.send(&Header { kind, length, ..*to }, body, false) {
            Err(Error::Busy { .. }) => self.respond_overload(to),
            sent => sent,
        }
    }

    /// Says that there is too much to do.
    pub(super) fn respond_overload(&self, to: &Header) -> Result<(), Error> {
        match self.send(&Header { kind: Kind::Overload, length: 0, ..*to }, Vec::new(), true) {
            Err(Error::Busy { .. }) => Err(Error::protocol("the peer asks and does not read the answers")),
            sent => sent,
        }
    }

    /// Hands an answer to the call that waits for it, if it still does.
    pub(super) fn deliver_answer(&self, header: &Header, body: Vec<u8>) {
        let reply = self.calls.lock().waiting.remove(&header.correlation);
        let answer = match header.kind {
            Kind::Response => Ok(body),
            Kind::Overload => Err(Error::Busy { what: "the peer" }),
            _ => Err(Error::Refused { cause: String::from_utf8_lossy(&body).into() }),
        };
        if let Some(reply) = reply {
            // Whoever waited may have given up in this very moment.
            let _ = reply.send(answer);
        }
    }

    /// Ends the link with `cause`, unless it is over: all calls end, and its task is woken to do the rest.
    pub(super) fn end(&self, cause: Error) {
        let waiting = {
            let mut calls = self.calls.lock();
            if calls.over.is_some() {
                return;
            }
            calls.over = Some(cause.clone());
            std::mem::take(&mut calls.waiting)
        };
        for reply in waiting.into_values() {
            // As in `deliver_answer`.
            let _ = reply.send(Err(cause.clone()));
        }
        self.over.send_replace(true);
        self.wake.notify_one();
    }

    /// Why the link is over.
    pub(super) fn cause(&self) -> Error {
        self.calls.lock().over.clone().unwrap_or(Error::Closed)
    }

    pub(super) fn gone(&self, cause: &str) -> Error {
        Error::PeerGone { peer: self.peer(), cause: cause.into() }
    }

    /// The peer was heard just now.
    pub(super) fn hear(&self) {
        let now = u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.heard_ms.store(now, Ordering::Relaxed);
    }

    /// How long the peer has said nothing.
    pub(super) fn silence(&self) -> Duration {
        self.made.elapsed().saturating_sub(Duration::from_millis(self.heard_ms.load(Ordering::Relaxed)))
    }

    /// Asks a peer that was not heard for a while whether it is there, and ends the link when it was too long.
    pub(super) fn check_silence(&self) {
        let silence = self.silence();
        if silence >= self.config.silence_max {
            self.end(self.gone(&format!("it was not heard for {} ms", silence.as_millis())));
        } else if silence >= self.config.silence_max / 3 {
            self.ping();
        }
    }

    /// Asks whether the peer is there.
    pub(super) fn ping(&self) {
        // A full queue, or an end of the link, says as much as an answer would.
        let _ = self.send(&Header::bare(Kind::Ping), Vec::new(), true);
    }

    /// Ends for another connection of the same member. Resolves as [`Self::wait_ended`].
    pub(super) async fn give_way(&self) {
        self.end(self.gone("it connected anew"));
        self.wait_ended().await;
    }

    /// Resolves when nothing of the link will be called any more.
    pub(super) async fn wait_ended(&self) {
        // The sender is a field of `self`, so it is not dropped.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }
}
