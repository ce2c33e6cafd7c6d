//! The bytes of an object, while somebody looks at them.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::memory::Mapping;
use crate::session::Session;

/// A reference to an object, and where its bytes are mapped. It goes back to the daemon when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    session: Arc<Session>,
    mapping: Arc<Mapping>,
    offset: usize,
    length: usize,
    version: u64,
    /// `None` once it is on its way back.
    reference: Option<u64>,
    /// Whether it is what its name stands for until the names clock changes.
    lasts: bool,
    /// Whether it answered a look-up that the daemon knows nothing of.
    is_used: AtomicBool,
}

impl Held {
    /// A reference to what lies at `offset` of a mapping. `None`, and it is the caller's still, when that leaves the mapping.
    pub(crate) fn new(
        session: &Arc<Session>,
        mapping: Arc<Mapping>,
        (offset, length): (usize, usize),
        (reference, version): (u64, u64),
        lasts: bool,
    ) -> Option<Self> {
        let fits = offset.checked_add(length).is_some_and(|end| end <= mapping.len());
        fits.then(|| {
            let (session, is_used) = (Arc::clone(session), AtomicBool::new(false));
            Self { session, mapping, offset, length, version, reference: Some(reference), lasts, is_used }
        })
    }

    /// Bytes of the object.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    fn bytes(&self, part: &Range<usize>) -> &[u8] {
        self.mapping.referenced(self.offset + part.start, part.len())
    }

    /// Whether dropping it makes a request, or ends a registration.
    fn asks_when_dropped(&self) -> bool {
        self.session.is_full_with(self.length)
            || (Arc::strong_count(&self.session) == 1 && self.session.asks_when_it_ends())
            || (Arc::strong_count(&self.mapping) == 1 && self.mapping.is_registered())
    }

    /// Gives it back with others, without a request.
    fn drop_later(mut self) {
        if let Some(reference) = self.reference.take() {
            self.session.keep_back(reference, self.length, *self.is_used.get_mut());
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(reference) = self.reference.take() {
            self.session.give_back(reference, self.length, *self.is_used.get_mut());
        }
    }
}

/// The bytes of an object. They do not change, and do not leave the cache, while the view lives.
pub struct View(Bytes);

enum Bytes {
    /// A part of an object, in general all of it.
    Mapped(Held, Range<usize>),
    /// The same of one whose reference is kept for others.
    Kept(Arc<Held>, Range<usize>),
    /// A copy, and the version that it is of.
    Owned(Vec<u8>, u64),
}

impl View {
    /// A view of memory that the daemon keeps for a reference.
    pub(crate) fn mapped(held: Held) -> Self {
        let whole = 0..held.length;
        Self(Bytes::Mapped(held, whole))
    }

    /// A view by a reference that is kept.
    pub(crate) fn kept(held: &Arc<Held>) -> Self {
        if !held.is_used.load(Ordering::Relaxed) {
            held.is_used.store(true, Ordering::Relaxed);
        }
        Self(Bytes::Kept(Arc::clone(held), 0..held.length))
    }

    /// A view of bytes that were copied.
    pub(crate) fn owned(version: u64, bytes: Vec<u8>) -> Self {
        Self(Bytes::Owned(bytes, version))
    }

    /// Lets others use its reference, if that may be kept and is to an object of at most `bytes_max`.
    pub(crate) fn share(&mut self, bytes_max: usize) -> Option<&Arc<Held>> {
        if matches!(&self.0, Bytes::Mapped(held, _) if held.lasts && held.length <= bytes_max) {
            self.0 = match std::mem::replace(&mut self.0, Bytes::Owned(Vec::new(), 0)) {
                Bytes::Mapped(held, part) => Bytes::Kept(Arc::new(held), part),
                other => other,
            };
        }
        if let Bytes::Kept(held, _) = &self.0 { Some(held) } else { None }
    }

    /// Only a part of its bytes, cut where the object ends.
    pub(crate) fn part(mut self, range: Range<usize>) -> Self {
        match &mut self.0 {
            Bytes::Mapped(_, part) | Bytes::Kept(_, part) => {
                let start = range.start.min(part.len());
                let end = range.end.clamp(start, part.len());
                *part = part.start + start..part.start + end;
            }
            Bytes::Owned(bytes, _) => {
                bytes.truncate(range.end);
                bytes.drain(..range.start.min(bytes.len()));
            }
        }
        self
    }

    fn held(&self) -> Option<&Held> {
        match &self.0 {
            Bytes::Mapped(held, _) => Some(held),
            Bytes::Kept(held, _) => Some(held),
            Bytes::Owned(..) => None,
        }
    }

    /// Which version of the object it is; 0 when only its file knows, and of one that is still written.
    #[must_use]
    pub fn version(&self) -> u64 {
        match &self.0 {
            Bytes::Mapped(held, _) => held.version,
            Bytes::Kept(held, _) => held.version,
            Bytes::Owned(_, version) => *version,
        }
    }

    /// Whether these are the bytes of the cache themselves, not a copy.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.held().is_some()
    }

    /// Whether a device may read it where it lies: see [`Cache::register_with`](crate::Cache::register_with).
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.held().is_some_and(|held| held.mapping.is_registered())
    }

    /// Whether dropping it makes a request to the daemon, to give back its reference and those that wait, or ends the
    /// registration of its segment: for who must not wait where it would be dropped. The last view of a cache that is closed
    /// does so where the process was forked meanwhile. Another thread may make it so, or not so, meanwhile.
    #[must_use]
    pub fn asks_when_dropped(&self) -> bool {
        let goes_back = match &self.0 {
            Bytes::Mapped(..) => true,
            // Nobody else has it: it is not kept any more.
            Bytes::Kept(held, _) => Arc::strong_count(held) == 1,
            Bytes::Owned(..) => false,
        };
        goes_back && self.held().is_some_and(Held::asks_when_dropped)
    }

    /// Drops it without a request: its reference, and those that wait, go back with the next view that is dropped, or with
    /// [`Cache::flush`](crate::Cache::flush). Only what is the last of its session or of its segment has none to go along with.
    pub fn drop_later(self) {
        match self.0 {
            Bytes::Mapped(held, _) => held.drop_later(),
            Bytes::Kept(held, _) => {
                if let Some(held) = Arc::into_inner(held) {
                    held.drop_later();
                }
            }
            Bytes::Owned(..) => {}
        }
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            // The reference goes back when `self` is dropped, after every borrow.
            Bytes::Mapped(held, part) => held.bytes(part),
            Bytes::Kept(held, part) => held.bytes(part),
            Bytes::Owned(bytes, _) => bytes,
        }
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("version", &self.version())
            .field("length", &self.len())
            .field("is_mapped", &self.is_mapped())
            .finish()
    }
}
