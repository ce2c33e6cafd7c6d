//! The bytes of an object, while somebody looks at them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::memory::Mapping;
use crate::session::Session;

/// The bytes of an object. They do not change, and do not leave the cache, while the view lives.
pub struct View {
    version: u64,
    bytes: Bytes,
}

enum Bytes {
    Mapped { session: Arc<Session>, mapping: Arc<Mapping>, offset: usize, length: usize, reference: u64 },
    Owned(Vec<u8>),
}

impl View {
    /// A view of memory that the daemon keeps for `reference`. `None` when the object leaves its mapping.
    pub(crate) fn mapped(
        session: &Arc<Session>,
        mapping: Arc<Mapping>,
        (offset, length): (usize, usize),
        (reference, version): (u64, u64),
    ) -> Option<Self> {
        let fits = offset.checked_add(length).is_some_and(|end| end <= mapping.len());
        fits.then(|| {
            let session = Arc::clone(session);
            Self { version, bytes: Bytes::Mapped { session, mapping, offset, length, reference } }
        })
    }

    /// A view of bytes that were copied.
    pub(crate) fn owned(version: u64, bytes: Vec<u8>) -> Self {
        Self { version, bytes: Bytes::Owned(bytes) }
    }

    /// Only a part of its bytes, cut where the object ends.
    pub(crate) fn part(mut self, range: std::ops::Range<usize>) -> Self {
        match &mut self.bytes {
            Bytes::Mapped { offset, length, .. } => {
                let start = range.start.min(*length);
                *length = range.end.clamp(start, *length) - start;
                *offset += start;
            }
            Bytes::Owned(bytes) => {
                bytes.truncate(range.end);
                bytes.drain(..range.start.min(bytes.len()));
            }
        }
        self
    }

    /// Which version of the object it is; 0 when only its file knows, and of one that is still written.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether these are the bytes of the cache themselves, not a copy.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        matches!(self.bytes, Bytes::Mapped { .. })
    }
}

impl View {
    /// Whether a device may read it where it lies: see [`Cache::register_with`](crate::Cache::register_with).
    #[must_use]
    pub fn is_registered(&self) -> bool {
        matches!(&self.bytes, Bytes::Mapped { mapping, .. } if mapping.is_registered())
    }
}

impl View {
    /// Whether dropping it makes a request to the daemon, to give back its reference and those that wait: for who must not
    /// wait where it would be dropped. Another thread may make it so, or not so, meanwhile.
    #[must_use]
    pub fn asks_when_dropped(&self) -> bool {
        matches!(&self.bytes, Bytes::Mapped { session, length, .. } if session.is_full_with(*length))
    }

    /// Drops it without a request in any case: its reference, and those that wait, go back with the next view that is dropped,
    /// or with [`Cache::flush`](crate::Cache::flush).
    pub fn drop_later(mut self) {
        if let Bytes::Mapped { session, reference, length, .. } = &self.bytes {
            session.keep_back(*reference, *length);
            self.bytes = Bytes::Owned(Vec::new());
        }
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            // The reference goes back when `self` is dropped, after every borrow.
            Bytes::Mapped { mapping, offset, length, .. } => mapping.referenced(*offset, *length),
            Bytes::Owned(bytes) => bytes,
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
            .field("version", &self.version)
            .field("length", &self.len())
            .field("is_mapped", &self.is_mapped())
            .finish()
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Bytes::Mapped { session, reference, length, .. } = &self.bytes {
            session.give_back(*reference, *length);
        }
    }
}
