//! The stage of the suite: two connected transports.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::runtime::Runtime;

use super::batch::Shared;
use crate::error::Error;
use crate::memory::{Access, PageKind, Region};
use crate::transport::{BoxFuture, Endpoint, Exchange, KEY_BYTES_MAX, Transport};
use crate::types::{ByteCount, Incarnation, MemberId, PeerId, RegionId};

/// Two instances of one transport.
pub(crate) struct Pair {
    pub(crate) a: Side,
    pub(crate) b: Side,
    /// `true` holds all operations of the pair back, in flight; `false` lets them go on. Where the transport has a way.
    pub(crate) stall: Option<Box<dyn Fn(bool) + Send>>,
    /// Whether the operations of a peer that was forgotten are refused. False for a fabric whose keys are not per peer.
    pub(crate) forget_takes_back: bool,
    /// Whether an operation on a region that is gone is told so. False for a fabric that ends the connection instead: then
    /// the engine asks the peer.
    pub(crate) names_what_is_gone: bool,
}

impl Pair {
    /// A pair without a way to hold operations back.
    pub(crate) fn new(a: Arc<dyn Transport>, b: Arc<dyn Transport>) -> Self {
        let side = |number, transport| Side { peer: peer(number), transport };
        Self { a: side(1, a), b: side(2, b), stall: None, forget_takes_back: true, names_what_is_gone: true }
    }
}

/// The peer that the suite knows under `number`; a pair's first is 1, its second 2.
pub(crate) fn peer(number: u64) -> PeerId {
    PeerId { member: MemberId(number), incarnation: Incarnation(7) }
}

/// One end.
pub(crate) struct Side {
    pub(crate) peer: PeerId,
    pub(crate) transport: Arc<dyn Transport>,
}

impl Side {
    /// A new region of `length` with bytes from `seed`, registered here.
    pub(crate) fn share(&self, length: u64, access: Access, seed: u64) -> Shared {
        let region = Arc::new(Region::anonymous(ByteCount(length), PageKind::Base, access).unwrap());
        let shared = self.share_again(&region);
        shared.fill(seed);
        shared
    }

    /// Registers `region` under an id that was never used.
    pub(crate) fn share_again(&self, region: &Arc<Region>) -> Shared {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = RegionId(NEXT.fetch_add(1, Ordering::Relaxed));
        let key = self.transport.register(id, region).unwrap();
        assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes does not travel", key.len());
        Shared { region: Arc::clone(region), id, key: key.into() }
    }
}

/// The link of the suite: asks the other end directly.
pub(crate) struct Wire {
    from: PeerId,
    to: Arc<dyn Transport>,
    /// Whether requests are lost, with [`Error::DeadlinePassed`].
    pub(crate) is_cut: AtomicBool,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("from", &self.from).field("is_cut", &self.is_cut).finish_non_exhaustive()
    }
}

impl Exchange for Wire {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        Box::pin(async move {
            if self.is_cut.load(Ordering::SeqCst) {
                return Err(Error::DeadlinePassed);
            }
            let answer = self.to.answer(self.from, &request);
            answer.map_err(|error| Error::Refused { cause: error.to_string().into() })
        })
    }
}

/// A pair with its link and its runtime.
pub(crate) struct Scene {
    pub(crate) runtime: Runtime,
    pub(crate) pair: Pair,
    /// Asks `b` on behalf of `a`.
    pub(crate) to_b: Wire,
    /// Asks `a` on behalf of `b`.
    pub(crate) to_a: Wire,
}

impl Scene {
    /// A scene of what `make_pair` makes. `None` where this host lacks the transport, and that makes none.
    pub(crate) fn of<P: Into<Option<Pair>>>(make_pair: impl FnOnce() -> P) -> Option<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let pair = {
            let _inside = runtime.enter();
            make_pair().into()?
        };
        let wire = |from: &Side, to: &Side| Wire {
            from: from.peer,
            to: Arc::clone(&to.transport),
            is_cut: AtomicBool::new(false),
        };
        let (to_b, to_a) = (wire(&pair.a, &pair.b), wire(&pair.b, &pair.a));
        Some(Self { runtime, pair, to_b, to_a })
    }

    /// The same of a transport that is on every host.
    pub(crate) fn new(make_pair: impl FnOnce() -> Pair) -> Self {
        Self::of(make_pair).unwrap()
    }

    /// Connects `a` to `b`.
    pub(crate) fn connect(&self) -> Arc<dyn Endpoint> {
        let connecting = self.pair.a.transport.connect(self.pair.b.peer, &self.to_b);
        self.runtime.block_on(connecting).unwrap()
    }

    /// Connects `b` to `a`.
    pub(crate) fn connect_back(&self) -> Arc<dyn Endpoint> {
        let connecting = self.pair.b.transport.connect(self.pair.a.peer, &self.to_a);
        self.runtime.block_on(connecting).unwrap()
    }

    /// Longest operation, as far as a test wants it.
    pub(crate) fn longest(&self) -> u64 {
        self.pair.a.transport.capabilities().operation_bytes_max.get().min(8 << 20)
    }

    /// `length`, or the longest operation where that is less.
    pub(crate) fn up_to(&self, length: u64) -> u64 {
        length.min(self.longest())
    }

    /// Runs `hold` while the operations of the pair stand still; returns `None` where they cannot be held.
    pub(crate) fn stalled<T>(&self, hold: impl FnOnce() -> T) -> Option<T> {
        let stall = self.pair.stall.as_ref()?;
        stall(true);
        let result = hold();
        stall(false);
        Some(result)
    }
}
