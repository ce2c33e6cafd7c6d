//! Whole flows: what happens when a file is looked up, opened, written, sealed, evicted.
//!
//! Everything that decides stands under one lock, [`State`]; bytes move outside of it. A flow takes the lock, decides,
//! changes the tables, lets go, and then does what takes time: frees pages, tells the kernel. A system call on the
//! private tmpfs that takes about a microsecond (a record, an `fstat`) may be made under the lock; freeing pages,
//! disk, and messages to the kernel may not.
//!
//! Invariants
//! - What is visible is whole. A file in [`Phase::Writing`] is shown to nobody but its writers.
//! - A sealed object has all its pages, exactly its length, and a record in its segment.
//! - Real pages never pass the capacity: the private tmpfs is mounted with that size, and room is made before a
//!   write is accepted.
//! - The kernel is told after the tables changed, never before, and never under the lock.
//!
//! Threads: flows run on those of whoever asks, mostly those that answer the kernel. A file with a thread of its own says so;
//! docs/ARCHITECTURE.md has all of them.

// The tables behind the lock, and what is left to do once it is let go.
mod afterwards;
mod deadlines;
mod folders;
mod handle;
mod object;
mod open_state;
mod state;

// What the datapath is told when it is made, and how it refuses.
mod error;
mod settings;

// Names: looked up, listed, moved, and looked up again by a thread that was sent to.
mod expected;
mod listing;
mod lookup;
mod misses;
mod rename;
mod resent;

// What stands beside a name: attributes, policies as text, who may what.
mod attributes;
mod decorations;
mod policy_text;
mod rights;
mod stat;
mod xattrs;

// Making and opening files, and the bytes that go through the daemon.
mod backing;
mod create;
mod new_version;
mod open;
mod reopen;
mod write;

// From a close to a sealed object, small ones packed, and to its checksum.
mod flush;
mod overtaken;
mod packing;
mod release;
mod seal;
mod verify;

// Room, found before what needs it is accepted.
mod guess;
mod guessed;
mod headroom;
mod quota_room;
mod room;
mod unsealed;

// Who leaves, what ends by time, and what stays of it while somebody may use it.
mod burial;
mod departed;
mod domains;
mod expiry;
mod lingering;
mod remove;
mod victims;

// Everything below a directory, in parts: an operator's eviction, a policy that changed.
mod below;
mod regroup;

// To disks: objects to the SSD tier, files that are rewritten in place to scratch.
mod demote;
mod moves;
mod persist;
mod slot_file;
mod ssd;
mod storing;

// Back into memory, and who has a turn at the threads that load.
mod job_lines;
mod load_lines;
mod loader;
mod promote;
mod ways;

// Ahead of their use: objects that a client names or a chain goes on with, and memory for them.
mod blank;
mod prefault;
mod prefetch;
mod processors;
mod recent;

// A start: what is written for it, what it finds, and when names are known.
mod directory_records;
mod naming;
mod records;
mod recover;
mod recover_ssd;
mod settle;

// Programs that map segments, and other members.
mod elsewhere;
mod fastpath;

// What people ask: what is here, and what became of what is not.
mod fate;
mod history;
mod inspect;

// A cache without a mount, for tests.
#[cfg(test)]
pub(crate) mod testing;

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use hashbrown::HashSet;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tidefs_engine::time::Clock;
use tidefs_engine::types::{ByteCount, DirectoryId, KeyHash};
use twox_hash::XxHash3_64;

use crate::namespace::{Ino, Name, Slot, ThreadId, nanos_of};
use crate::telemetry::Telemetry;
use crate::tier::memory::MemoryTier;
use crate::tier::scratch::Scratch;
use crate::tier::ssd::SsdTier;

pub use attributes::AttributeChange;
pub use below::Order;
pub use domains::EvictionSettings;
pub use elsewhere::{ClusterSide, MemberSide, News, Stream};
pub use error::Error;
pub use fastpath::{
    AREA_MAX, BeginRequest, CREATES_MAX, FollowRequest, Followed, GetRequest, Located, PutRequest,
    REFERENCES_MAX, ReadyRequest, Remains, RetiredSegments, Run, SealRequest, Session, UnknownNames,
};
pub use fate::Fate;
pub use flush::CLOSE_WAIT;
pub use handle::{Handle, HandleId, IoPath, UNKNOWN_WRITERS};
pub use inspect::{EvictionProgress, NamespaceFacts, NodeFacts, Obstacle, OperatorEviction, Overview};
pub use listing::{Listed, Page, Paged};
pub use loader::{Job, Loader, Need, Pace, Rest};
pub use lookup::{Lookup, Patience};
pub use object::{Marks, Object, Phase, Place};
pub use open::{OpenOptions, Opened};
pub use recover::Recovered;
pub use rights::Credentials;
pub use settings::{NamePredicate, Settings, SparePredicate, ThreadPredicate};
pub use settle::Unsettled;
pub use stat::{Kind, SpaceStat, Stat};
pub use state::State;
pub use verify::Verdict;
pub use write::{Read, SizeChange};
pub use xattrs::Presence;

/// Who makes a request.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Thread id in the daemon's pid namespace.
    pub thread: ThreadId,
}

/// The kernel's caches of attributes, inodes and backing files, as far as the datapath changes them.
///
/// None of the calls may wait for the kernel: it may hold locks for a request that waits for us. That is also why none
/// is about a name.
pub trait KernelCache: Send + Sync + fmt::Debug {
    /// Attributes of the inode changed, or its name stands for something else: the kernel asks when it needs them, and
    /// looks the name up again when it is told that the inode is stale.
    fn forget_attributes(&self, ino: Ino);
    /// As [`KernelCache::forget_attributes`], and has when it returns. Never under the lock.
    fn forget_attributes_now(&self, ino: Ino);
    /// Nobody uses these inodes: the kernel may drop them.
    fn drop_idle(&self, inos: &[Ino]);
    /// Whether the kernel has a backing file of the inode. Waits for nothing.
    fn has_backing(&self, ino: Ino) -> bool;
    /// The inode's backing file is not needed for further opens; its pages may go.
    fn release_backing(&self, ino: Ino);
    /// Names were made known that the kernel did not ask for: it asks again for each name that it uses, and does when this
    /// returns. Waits for nothing, and takes no lock of a directory. Returns whether this kernel can.
    fn forget_names(&self) -> bool;
}

/// The cache on one host.
#[derive(Debug)]
pub struct Datapath {
    /// Guards every table. One lock, because a request holds it for about a microsecond and most touch several
    /// tables (docs/adr/0002-one-lock.md).
    state: Mutex<State>,
    /// Signalled when a writer's last handle is released.
    released: Condvar,
    tier: MemoryTier,
    scratch: Arc<Scratch>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    telemetry: Arc<Telemetry>,
    kernel: OnceLock<Arc<dyn KernelCache>>,
    passthrough: AtomicBool,
    /// Passthrough handles that may write, open now: while there are any, free room is watched.
    passthrough_writers: AtomicU64,
    /// When the last of them was opened, in monotonic milliseconds.
    last_writer_ms: AtomicU64,
    /// Held by who goes through a directory whose policy changed. Never taken under the state's lock.
    regrouping: Mutex<()>,
    /// Signalled when such a walk is through, with the state's lock.
    walked: Condvar,
    moves: moves::Moves,
    /// How many directories say that files below them are slot files.
    slot_directories: Arc<AtomicUsize>,
    /// How often no page was found to be left, each a moment at which a passthrough write may have been cut short.
    ends_of_room: AtomicU64,
    keeper: OnceLock<std::thread::Thread>,
    unchecked: verify::Queue,
    /// How many objects an earlier daemon left that were not checked since, which they are when they are first used.
    unverified: verify::Unverified,
    ssd: OnceLock<Arc<SsdTier>>,
    cluster: OnceLock<ClusterSide>,
    /// Whether this host is a member of a cluster, or is to be.
    expects_cluster: AtomicBool,
    /// The datapath itself, for what the SSD tier's threads and peers call back.
    this: OnceLock<Weak<Datapath>>,
    /// Guards which directories have no record on SSD as they are now, because no disk took it. Taken under the state's lock,
    /// or alone.
    unkept: Mutex<HashSet<Slot>>,
    /// Bytes of objects on their way to the SSD tier, still in memory.
    lent: AtomicU64,
    /// Loads that were predicted to take longer than computing.
    slow_loads: AtomicU64,
    /// Bytes of objects that are being loaded ahead of their use.
    loading_ahead: AtomicU64,
    loader: Loader,
    blanks: blank::Blanks,
    fast: fastpath::FastPath,
    /// Whether the kernel can be told of names that it did not ask for.
    names_can_be_told: AtomicBool,
}

impl Datapath {
    /// A cache over `tier`, empty until [`Datapath::recover`].
    #[must_use]
    pub fn new(
        tier: MemoryTier,
        scratch: Arc<Scratch>,
        clock: Arc<dyn Clock>,
        settings: Settings,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        let state = State::new(&settings, &tier, Arc::clone(&clock), &telemetry);
        Self {
            slot_directories: state.folders.slot_directories(),
            unverified: state.unverified.clone(),
            state: Mutex::new(state),
            released: Condvar::new(),
            tier,
            scratch,
            clock,
            fast: fastpath::FastPath::new(settings.capacity),
            blanks: blank::Blanks::new(settings.capacity),
            settings,
            telemetry,
            kernel: OnceLock::new(),
            passthrough: AtomicBool::new(false),
            passthrough_writers: AtomicU64::new(0),
            last_writer_ms: AtomicU64::new(0),
            regrouping: Mutex::default(),
            walked: Condvar::new(),
            moves: moves::Moves::default(),
            ends_of_room: AtomicU64::new(0),
            keeper: OnceLock::new(),
            unchecked: verify::Queue::default(),
            ssd: OnceLock::new(),
            cluster: OnceLock::new(),
            expects_cluster: AtomicBool::new(false),
            this: OnceLock::new(),
            unkept: Mutex::default(),
            lent: AtomicU64::new(0),
            slow_loads: AtomicU64::new(0),
            loading_ahead: AtomicU64::new(0),
            loader: Loader::default(),
            names_can_be_told: AtomicBool::new(false),
        }
    }

    /// Lets it hand itself to threads that call back. Again is fine.
    fn know_itself(self: &Arc<Self>) {
        let _ = self.this.set(Arc::downgrade(self));
    }

    /// Connects the kernel's caches, once, when the mount is up. `passthrough`: whether it serves files itself.
    pub fn attach_kernel(&self, kernel: Arc<dyn KernelCache>, passthrough: bool) {
        self.passthrough.store(passthrough, Ordering::Relaxed);
        self.names_can_be_told.store(kernel.forget_names(), Ordering::Relaxed);
        // A second attach would be a bug of the composition root; the first one stays in force.
        let _ = self.kernel.set(kernel);
    }

    /// Whether objects can be made without the kernel: it can be told of their names.
    #[must_use]
    pub fn can_tell_names(&self) -> bool {
        self.names_can_be_told.load(Ordering::Relaxed)
    }

    /// Objects shorter than this are packed.
    #[must_use]
    pub fn packed_max(&self) -> ByteCount {
        self.settings.packed_max
    }

    /// Whether the kernel serves files itself.
    #[must_use]
    pub fn is_passthrough(&self) -> bool {
        self.passthrough.load(Ordering::Relaxed)
    }

    /// Counters.
    #[must_use]
    pub fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// The memory tier below.
    #[must_use]
    pub fn tier(&self) -> &MemoryTier {
        &self.tier
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn now_ns(&self) -> i64 {
        nanos_of(self.clock.wall())
    }

    /// Monotonic milliseconds.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.monotonic().as_millis()).unwrap_or(u64::MAX)
    }

    fn is_temporary(&self, name: &Name) -> bool {
        (self.settings.is_temporary)(OsStr::from_bytes(name.as_bytes()))
    }
}

/// Hash of a key: its directory and its name there. A directory that moves takes the keys of its entries along.
fn key_hash(directory: DirectoryId, name: &[u8]) -> KeyHash {
    KeyHash(XxHash3_64::oneshot_with_seed(directory.0, name))
}
