//! All links of one engine.
//!
//! Two engines may dial each other at once. Then the connection that the smaller [`PeerId`] dials stays: the smaller
//! refuses the other as a duplicate, and the larger waits for it.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::dial::Dialled;
use super::drive::drive;
use super::handshake::{Identity, Prover, Token, Verdict};
use super::stream::Stream;
use super::tls::Encryption;
use super::{BootId, Link, LinkConfig, LinkEvents, accept, caught, socket};
use crate::error::Error;
use crate::types::{BoxFuture, MemberId, PeerId};

/// A transport that takes streams of bytes to which it granted tokens.
pub(crate) trait Adopter: Send + Sync + fmt::Debug {
    /// Whether `peer` was granted `token`.
    fn wants(&self, peer: PeerId, token: &Token) -> bool;

    /// Takes a stream that it wanted; drops it if it does not want it any more.
    fn adopt(&self, peer: PeerId, token: &Token, stream: Stream);
}

/// The links of one engine, and its listeners.
#[derive(Debug)]
pub struct Links {
    pub(super) config: Arc<LinkConfig>,
    pub(super) me: PeerId,
    pub(super) prover: Prover,
    pub(super) encryption: Option<Encryption>,
    pub(super) runtime: Handle,
    /// Where peers reach this engine: what is advertised, else as bound, so perhaps "any": who is asked over a connection knows
    /// better which of them that reaches.
    told: Vec<SocketAddr>,
    boot: BootId,
    events: Arc<dyn LinkEvents>,
    /// Which links there are and which are being made. Held for a look-up.
    state: Mutex<State>,
    /// Joined at the end. Held for a spawn, and a look.
    tasks: Mutex<JoinSet<()>>,
    /// Held by the one who waits for them to end: they wake one alone.
    joining: tokio::sync::Mutex<()>,
    /// Those that take streams. Held for a look-up.
    adopters: Mutex<Vec<Weak<dyn Adopter>>>,
    /// Set at the end: stops listeners, handshakes and dialling.
    pub(super) closing: watch::Sender<bool>,
    pub(super) weak: Weak<Self>,
}

#[derive(Debug, Default)]
struct State {
    links: HashMap<PeerId, Arc<Link>>,
    dialling: HashMap<PeerId, watch::Receiver<Dialled>>,
}

impl State {
    /// The link to the latest incarnation of a member, up or not.
    fn latest_of(&self, member: MemberId) -> Option<&Arc<Link>> {
        let of_member = self.links.values().filter(|link| link.peer().member == member);
        of_member.max_by_key(|link| link.peer().incarnation)
    }
}

/// What is to be done with a proved connection that wants to be a link.
#[derive(Debug)]
pub(super) enum Admission {
    /// It is registered, and both ends know; one that the peer dialled has to be run.
    Taken(Arc<Link>),
    /// This link has to end first.
    After(Arc<Link>),
    /// It is not taken.
    Refused(Verdict),
}

impl Links {
    /// Listens, and starts to answer.
    ///
    /// # Errors
    /// [`Error::CannotListen`] when an address cannot be listened on, [`Error::Unavailable`] when the files of the
    /// encryption cannot be used.
    pub fn start(
        runtime: Handle,
        config: LinkConfig,
        me: PeerId,
        events: Arc<dyn LinkEvents>,
    ) -> Result<Arc<Self>, Error> {
        let refused = |error: std::io::Error| Error::system("listen", &error);
        let encryption = config.tls.as_ref().map(Encryption::open).transpose()?;
        let listeners = socket::listen(&config.listen)?;
        let bound: Result<Vec<_>, _> = listeners.iter().map(|listener| listener.local_addr()).collect();
        let told = socket::told(bound.map_err(refused)?, &config.advertise);
        let listeners: Result<Vec<_>, _> = {
            let _context = runtime.enter();
            listeners.into_iter().map(tokio::net::TcpListener::from_std).collect()
        };
        let listeners = listeners.map_err(refused)?;
        let links = Arc::new_cyclic(|weak| Self {
            prover: Prover::new(&config.cluster, config.key.as_ref()),
            config: Arc::new(config),
            me,
            encryption,
            runtime,
            told,
            boot: BootId::of_this_host(),
            events,
            state: Mutex::default(),
            tasks: Mutex::default(),
            joining: tokio::sync::Mutex::default(),
            adopters: Mutex::default(),
            closing: watch::Sender::new(false),
            weak: Weak::clone(weak),
        });
        accept::start(&links, listeners);
        links.spawn(ask_silent_peers(Weak::clone(&links.weak), links.closing.subscribe()));
        Ok(links)
    }

    /// Who this engine is.
    #[must_use]
    pub fn me(&self) -> PeerId {
        self.me
    }

    /// Where peers reach this engine, to be published: what is advertised, else the addresses that are listened on, with the
    /// ports that the kernel chose; in place of one that means "any", those of this host as they are now.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        socket::published(&self.told)
    }

    /// The same for a peer over whose connection they are told: "any" stays.
    pub(crate) fn told(&self) -> Vec<SocketAddr> {
        self.told.clone()
    }

    /// The link to `peer`, if it is up.
    #[must_use]
    pub fn link(&self, peer: PeerId) -> Option<Arc<Link>> {
        self.state.lock().links.get(&peer).filter(|link| link.is_up()).cloned()
    }

    /// Returns the link to `peer`, and makes it if there is none: whoever asks meanwhile waits for the same attempt.
    /// `addresses` are where the peer said that it listens; one that means "any" reaches this host.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Unproven`], [`Error::VersionMismatch`]; [`Error::PeerGone`] when another
    /// incarnation answers; [`Error::DeadlinePassed`], [`Error::Closed`].
    /// # Cancellation
    /// The attempt goes on for others until [`LinkConfig::connect_timeout`].
    pub fn connect(
        &self,
        peer: PeerId,
        addresses: &[SocketAddr],
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Arc<Link>, Error>> {
        let addresses = addresses.to_vec();
        Box::pin(async move {
            let mut attempt = match self.join_attempt(peer, addresses) {
                Ok(link) => return Ok(link),
                Err(attempt) => attempt?,
            };
            let timed = {
                let _context = self.runtime.enter();
                tokio::time::timeout_at(deadline.into(), attempt.wait_for(Option::is_some))
            };
            match timed.await {
                Ok(Ok(done)) => done.clone().unwrap_or(Err(Error::Closed)),
                Ok(Err(_)) => Err(Error::Closed),
                Err(_) => Err(Error::DeadlinePassed),
            }
        })
    }

    /// The link, or the attempt to make it, which is started if there is none.
    fn join_attempt(
        &self,
        peer: PeerId,
        addresses: Vec<SocketAddr>,
    ) -> Result<Arc<Link>, Result<watch::Receiver<Dialled>, Error>> {
        let mut state = self.state.lock();
        if let Some(link) = state.links.get(&peer).filter(|link| link.is_up()) {
            return Ok(Arc::clone(link));
        }
        if let Some(attempt) = state.dialling.get(&peer) {
            return Err(Ok(attempt.clone()));
        }
        if *self.closing.borrow() {
            return Err(Err(Error::Closed));
        }
        if peer == self.me {
            return Err(Err(Error::Refused { cause: "an engine does not connect to itself".into() }));
        }
        let (done, attempt) = watch::channel(None);
        state.dialling.insert(peer, attempt.clone());
        drop(state);
        let Some(links) = self.weak.upgrade() else { return Err(Err(Error::Closed)) };
        self.spawn(async move {
            let mut closing = links.closing.subscribe();
            let outcome = tokio::select! {
                outcome = links.dial_link(peer, &addresses) => outcome,
                _ = closing.wait_for(|closing| *closing) => Err(Error::Closed),
            };
            links.state.lock().dialling.remove(&peer);
            // Nobody may be left who waits.
            let _ = done.send(Some(outcome));
        });
        Err(Ok(attempt))
    }

    /// Ends all links and stops to listen. Resolves when no event will be called any more. Idempotent.
    pub fn close(&self) -> BoxFuture<'_, ()> {
        self.shut();
        Box::pin(async move {
            // Who comes while others wait, or after one who did not wait until the end, waits for the same tasks.
            let _turn = self.joining.lock().await;
            // A link that was made just before is told of, and driven, from within one of them.
            while poll_fn(|context| self.tasks.lock().poll_join_next(context)).await.is_some() {}
        })
    }

    fn shut(&self) {
        self.closing.send_replace(true);
        let links: Vec<_> = self.state.lock().links.values().cloned().collect();
        for link in links {
            link.close();
        }
    }

    /// Lets `adopter` take streams, for as long as it lives.
    pub(crate) fn add_adopter(&self, adopter: Weak<dyn Adopter>) {
        self.adopters.lock().push(adopter);
    }

    /// Who granted `token` to `peer`.
    pub(super) fn adopter_of(&self, peer: PeerId, token: &Token) -> Option<Arc<dyn Adopter>> {
        let adopters: Vec<_> = self.adopters.lock().iter().filter_map(Weak::upgrade).collect();
        adopters.into_iter().find(|adopter| adopter.wants(peer, token))
    }

    /// The runtime that everything of the links runs on.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(super) fn identity(&self, token: Option<Token>) -> Identity {
        Identity { peer: self.me, boot: self.boot, addresses: self.told(), token }
    }

    /// Runs a task that [`Links::close`] waits for.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, &self.runtime);
    }

    /// Decides about a connection of a peer that dialled. `stream` is taken with [`Admission::Taken`].
    pub(super) fn admit(&self, stream: &mut Option<Stream>, identity: &Identity) -> Result<Admission, Error> {
        let peer = identity.peer;
        let mut state = self.state.lock();
        if *self.closing.borrow() || peer == self.me {
            return Ok(Admission::Refused(Verdict::Unwanted));
        }
        if let Some(link) = state.latest_of(peer.member) {
            if link.peer().incarnation > peer.incarnation {
                return Ok(Admission::Refused(Verdict::Unwanted));
            }
            // The process of an earlier incarnation has ended; and a peer does not dial again while its link is up.
            if link.peer() != peer || !link.is_up() || !link.is_dialled() {
                return Ok(Admission::After(Arc::clone(link)));
            }
            // If the peer does not know of it, this brings its end to light.
            link.ping();
            return Ok(Admission::Refused(Verdict::Duplicate));
        }
        if state.dialling.contains_key(&peer) && self.me < peer {
            return Ok(Admission::Refused(Verdict::Duplicate));
        }
        let Some(stream) = stream.take() else { return Err(Error::Closed) };
        // Before anybody can send a frame. Nothing was sent that could fill the socket.
        let welcome = [Verdict::Welcome as u8];
        if !matches!(stream.try_write(&[IoSlice::new(&welcome)]), Ok(1)) {
            return Err(Error::protocol("the connection ended before it was taken"));
        }
        let link = self.new_link(stream, identity.clone(), false)?;
        state.links.insert(peer, Arc::clone(&link));
        Ok(Admission::Taken(link))
    }

    /// Takes a connection that was dialled here and welcomed there, once the links to earlier incarnations have ended: a
    /// process that was only halted would go on with what it was granted.
    pub(super) async fn register(&self, stream: Stream, identity: &Identity) -> Result<Arc<Link>, Error> {
        let mut stream = Some(stream);
        loop {
            match self.admit_dialled(&mut stream, identity)? {
                Admission::Taken(link) => return Ok(link),
                Admission::After(link) => link.give_way().await,
                Admission::Refused(_) => {
                    let cause = "a later incarnation of it is known".into();
                    return Err(Error::PeerGone { peer: identity.peer, cause });
                }
            }
        }
    }

    /// Decides about a connection that was dialled here. `stream` is taken with a link that is new, which then runs.
    fn admit_dialled(&self, stream: &mut Option<Stream>, identity: &Identity) -> Result<Admission, Error> {
        let peer = identity.peer;
        let mut state = self.state.lock();
        if *self.closing.borrow() {
            return Err(Error::Closed);
        }
        if let Some(link) = state.latest_of(peer.member) {
            return Ok(match link.peer().incarnation.cmp(&peer.incarnation) {
                Ordering::Greater => Admission::Refused(Verdict::Unwanted),
                Ordering::Equal if link.is_up() => Admission::Taken(Arc::clone(link)),
                Ordering::Equal | Ordering::Less => Admission::After(Arc::clone(link)),
            });
        }
        let Some(stream) = stream.take() else { return Err(Error::Closed) };
        let link = self.new_link(stream, identity.clone(), true)?;
        state.links.insert(peer, Arc::clone(&link));
        drop(state);
        self.run(&link);
        Ok(Admission::Taken(link))
    }

    fn new_link(&self, stream: Stream, identity: Identity, is_dialled: bool) -> Result<Arc<Link>, Error> {
        Link::new(stream, identity, is_dialled, Arc::clone(&self.config), self.runtime.clone())
            .map_err(|error| Error::system("getpeername", &error))
    }

    /// The registered link to `peer`, up or not.
    pub(super) fn registered(&self, peer: PeerId) -> Option<Arc<Link>> {
        self.state.lock().links.get(&peer).cloned()
    }

    /// Says that a registered link is up, and drives it.
    pub(super) fn run(&self, link: &Arc<Link>) {
        if caught::called(|| self.events.connected(link)).is_none() {
            link.end(link.gone(caught::PANICKED));
        }
        let (links, link, events) = (Weak::clone(&self.weak), Arc::clone(link), Arc::clone(&self.events));
        self.spawn(async move {
            let cause = match caught::awaited(drive(&link, &events)).await {
                Some(cause) => cause,
                None => {
                    link.end(link.gone(caught::PANICKED));
                    link.stream.shut_down();
                    link.cause()
                }
            };
            // What became of it is told already.
            let _ = caught::called(|| events.disconnected(link.peer(), &cause));
            if let Some(links) = links.upgrade() {
                links.state.lock().links.remove(&link.peer());
            }
            link.ended.send_replace(true);
        });
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.shut();
        // They end by themselves now, and say so.
        self.tasks.get_mut().detach_all();
    }
}

/// Looks after all links at once, so that an idle one costs no timer.
async fn ask_silent_peers(links: Weak<Links>, mut closing: watch::Receiver<bool>) {
    let Some(period) = links.upgrade().map(|links| links.config.silence_max / 6) else { return };
    let wait = |mut closing: watch::Receiver<bool>| async move {
        let stop = closing.wait_for(|closing| *closing);
        tokio::time::timeout(period.max(std::time::Duration::from_millis(1)), stop).await.is_err()
    };
    let mut looked = Instant::now();
    while !*closing.borrow_and_update() && wait(closing.clone()).await {
        let Some(links) = links.upgrade() else { return };
        // Who stood still itself heard nobody, which says nothing of its peers: they get their time anew.
        let stood_still = looked.elapsed() > links.config.silence_max / 2;
        looked = Instant::now();
        let all: Vec<_> = links.state.lock().links.values().cloned().collect();
        for link in all {
            if stood_still {
                link.hear();
                link.ping();
            } else {
                link.check_silence();
            }
        }
    }
}
