//! Objects on their way into the cache.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;

use memmap2::MmapMut;
use tidefs_control_api::ioctl::{Command, Features, Flags, Outcome, Range, Ready, Seal, Status};

use crate::memory::Mapping;
use crate::session::Session;
use crate::{Error, file};

/// Length from which memory for what is written by file is pages of its own.
const PAGES_FROM: usize = 1 << 20;

/// The bytes of an object that nobody sees yet. It becomes visible, whole, when it is sealed, and is given up when it is
/// dropped before.
///
/// What it holds at first means nothing: zeros, or bytes of an object that was there before.
pub struct Writer {
    bytes: Bytes,
    path: PathBuf,
}

enum Bytes {
    Mapped {
        session: Arc<Session>,
        mapping: Arc<Mapping>,
        length: usize,
        reference: u64,
    },
    /// To be written by file.
    Heap(Vec<u8>),
    /// The same, of an object that is large.
    Pages(MmapMut),
    /// Sealed, or given up.
    Over,
}

impl Bytes {
    fn zeroed(length: usize) -> Option<Self> {
        if length >= PAGES_FROM {
            // Page by page, when they are first touched.
            return MmapMut::map_anon(length).ok().map(Self::Pages);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).ok()?;
        bytes.resize(length, 0);
        Some(Self::Heap(bytes))
    }
}

impl Writer {
    pub(crate) fn mapped(
        session: &Arc<Session>,
        mapping: Arc<Mapping>,
        length: usize,
        reference: u64,
        path: PathBuf,
    ) -> Self {
        Self { bytes: Bytes::Mapped { session: Arc::clone(session), mapping, length, reference }, path }
    }

    /// A writer of memory of this process, zeroed, which is written by file.
    ///
    /// # Errors
    /// [`Error::Io`] with ENOMEM.
    pub(crate) fn owned(length: usize, path: PathBuf) -> Result<Self, Error> {
        let none = || Error::io("get memory for an object")(io::Error::from_raw_os_error(libc::ENOMEM));
        Ok(Self { bytes: Bytes::zeroed(length).ok_or_else(none)?, path })
    }

    /// Whether these are bytes of the cache themselves, which sealing does not copy.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        matches!(self.bytes, Bytes::Mapped { .. })
    }

    /// Says that these bytes are as they will stay, and shows them to who waits for them
    /// ([`Cache::wait_range`](crate::Cache::wait_range)) before the object is sealed. From then on they are not written, and
    /// the object is not sealed without them. An object that is written by file shows all its bytes when it is sealed.
    ///
    /// # Errors
    /// [`Error::TooLong`] when the object ends before them; [`Error::Io`].
    pub fn ready(&mut self, range: std::ops::Range<usize>) -> Result<(), Error> {
        self.part(range)?.show()
    }

    /// What [`Writer::ready`] shows, still to be shown: for who has the writer behind a lock that is not to be held while the
    /// daemon is asked.
    ///
    /// # Errors
    /// [`Error::TooLong`] when the object ends before it.
    pub fn part(&mut self, range: std::ops::Range<usize>) -> Result<Part, Error> {
        if range.end > self.len() {
            return Err(Error::TooLong { length: range.end, size: self.len() });
        }
        let Bytes::Mapped { session, reference, .. } = &self.bytes else { return Ok(Part(None)) };
        let (offset, length) = (range.start as u64, range.len() as u64);
        let record = Ready { reference: *reference, offset, length };
        Ok(Part(session.offers(Features::FOLLOW).then(|| (Arc::clone(session), record))))
    }

    /// Makes the object visible with all its bytes, in place of what stood under its key.
    ///
    /// # Errors
    /// [`Error::Io`]; then nothing changed and the object is given up.
    pub fn seal(self) -> Result<(), Error> {
        let length = self.len();
        self.seal_first(length)
    }

    /// As [`Writer::seal`], with the first `length` bytes alone.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Io`].
    pub fn seal_first(mut self, length: usize) -> Result<(), Error> {
        if length > self.len() {
            return Err(Error::TooLong { length, size: self.len() });
        }
        match std::mem::replace(&mut self.bytes, Bytes::Over) {
            Bytes::Heap(bytes) => file::write(&self.path, &bytes[..length]),
            Bytes::Pages(pages) => file::write(&self.path, &pages[..length]),
            Bytes::Mapped { session, reference, .. } => {
                seal_by(&session, &[Seal { reference, length: length as u64 }])
            }
            Bytes::Over => Ok(()),
        }
    }

    /// What sealing asks for, and of whom, and nothing of the writer is left. `None` when it is written by file.
    fn into_seal(mut self) -> Result<Option<(Arc<Session>, Seal)>, Error> {
        match std::mem::replace(&mut self.bytes, Bytes::Over) {
            Bytes::Mapped { session, reference, length, .. } => {
                Ok(Some((session, Seal { reference, length: length as u64 })))
            }
            Bytes::Heap(bytes) => file::write(&self.path, &bytes).map(|()| None),
            Bytes::Pages(pages) => file::write(&self.path, &pages).map(|()| None),
            Bytes::Over => Ok(None),
        }
    }
}

/// A part of a begun object that is as it will stay. `None` when that is shown by the seal alone.
pub struct Part(Option<(Arc<Session>, Ready)>);

impl Part {
    /// Shows it.
    ///
    /// # Errors
    /// [`Error::Io`], also when the object was sealed or given up meanwhile: its number is given to no other.
    pub fn show(self) -> Result<(), Error> {
        let Some((session, record)) = self.0 else { return Ok(()) };
        let mut status = None;
        session.each(Command::Ready, Flags::NONE, &[record], |_, _, outcomes: &[Outcome]| {
            status = outcomes.first().map(Outcome::status);
        })?;
        match status {
            Some(Status::Ok) => Ok(()),
            Some(status) => Err(Error::of("show a part of an object", status)),
            None => Err(Error::BadReply),
        }
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.0.as_ref().map(|(_, record)| record);
        f.debug_tuple("Part").field(&record).finish()
    }
}

/// Seals many, each by the session that began it: their numbers mean something only there. The first failure is told after
/// all were tried.
pub(crate) fn seal_all(writers: Vec<Writer>) -> Result<(), Error> {
    let (mut begun, mut failure): (Vec<(Arc<Session>, Vec<Seal>)>, _) = (Vec::new(), None);
    for writer in writers {
        match writer.into_seal() {
            Ok(None) => {}
            Ok(Some((session, seal))) => {
                match begun.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &session)) {
                    Some((_, seals)) => seals.push(seal),
                    None => begun.push((session, vec![seal])),
                }
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    // Also after a failure: what is whole is worth having, and what is begun must end.
    for (session, seals) in begun {
        failure = failure.or(seal_by(&session, &seals).err());
    }
    failure.map_or(Ok(()), Err)
}

fn seal_by(session: &Session, seals: &[Seal]) -> Result<(), Error> {
    let mut failure = None;
    session.each(Command::Seal, Default::default(), seals, |_, _, outcomes: &[Outcome]| {
        let failed = outcomes.iter().map(Outcome::status).find(|status| *status != Status::Ok);
        failure = failure.or(failed);
    })?;
    failure.map_or(Ok(()), |status| Err(Error::of("seal an object", status)))
}

impl Deref for Writer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped { mapping, length, .. } => mapping.referenced(0, *length),
            Bytes::Heap(bytes) => bytes,
            Bytes::Pages(pages) => pages,
            Bytes::Over => &[],
        }
    }
}

impl DerefMut for Writer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Mapped { mapping, length, .. } => mapping.begun(0, *length),
            Bytes::Heap(bytes) => bytes,
            Bytes::Pages(pages) => pages,
            Bytes::Over => &mut [],
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("path", &self.path)
            .field("length", &self.len())
            .field("is_mapped", &self.is_mapped())
            .finish()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Bytes::Mapped { session, reference, .. } = &self.bytes {
            session.send_ranges(Command::Abort, Flags::NONE, &[Range { first: *reference, count: 1 }]);
        }
    }
}
