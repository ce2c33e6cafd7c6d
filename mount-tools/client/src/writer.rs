//! Objects on their way into the cache.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::MmapMut;
use tidefs_control_api::ioctl::{self, Command, Features, Flags, Outcome, Ready, Seal, Status};

use crate::Error;
use crate::file::Files;
use crate::memory::Mapping;
use crate::session::Session;

/// Length from which memory for what is written by file is pages of its own.
const PAGES_FROM: usize = 1 << 20;

/// The bytes of an object that nobody sees yet. It becomes visible, whole, when it is sealed, and is given up when it is
/// dropped before.
///
/// What it holds at first means nothing: zeros, or bytes of an object that was there before.
pub struct Writer {
    bytes: Bytes,
    path: PathBuf,
    /// What was made ready: sorted, and none touches another.
    ready: Vec<Range<usize>>,
}

enum Bytes {
    Mapped {
        session: Arc<Session>,
        mapping: Arc<Mapping>,
        length: usize,
        reference: u64,
    },
    /// To be written by file.
    Owned(Memory, Arc<Files>),
    /// Sealed, or given up.
    Over,
}

/// Memory of this process.
enum Memory {
    Heap(Vec<u8>),
    /// Of an object that is large.
    Pages(MmapMut),
}

impl Memory {
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

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages(pages) => pages,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages(pages) => pages,
        }
    }
}

impl Writer {
    /// A writer of `length` bytes that the daemon has begun, by the reference that it gave.
    pub(crate) fn mapped(
        (session, reference): (&Arc<Session>, u64),
        mapping: Arc<Mapping>,
        length: usize,
        path: PathBuf,
    ) -> Self {
        let bytes = Bytes::Mapped { session: Arc::clone(session), mapping, length, reference };
        Self { bytes, path, ready: Vec::new() }
    }

    /// A writer of memory of this process, zeroed, which is written by file.
    ///
    /// # Errors
    /// [`Error::Io`] with ENOMEM.
    pub(crate) fn owned(length: usize, path: PathBuf, files: &Arc<Files>) -> Result<Self, Error> {
        match Memory::zeroed(length) {
            Some(memory) => {
                Ok(Self { bytes: Bytes::Owned(memory, Arc::clone(files)), path, ready: Vec::new() })
            }
            None => {
                let none = io::Error::from_raw_os_error(libc::ENOMEM);
                Err(Error::at("get memory for an object", &path)(none))
            }
        }
    }

    /// Whether these are bytes of the cache themselves, which sealing does not copy.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        matches!(self.bytes, Bytes::Mapped { .. })
    }

    /// Says that these bytes are as they will stay, and shows them to who waits for them
    /// ([`Cache::wait_range`](crate::Cache::wait_range)) before the object is sealed. From then on they are not written:
    /// [`Writer::write_at`] refuses it, and who writes through the slice is to see to it. Nor is the object sealed without them. An object that is written by file shows all its bytes when it is sealed.
    ///
    /// # Errors
    /// [`Error::TooLong`] when the object ends before them; [`Error::Io`].
    pub fn ready(&mut self, range: Range<usize>) -> Result<(), Error> {
        self.part(range)?.show()
    }

    /// What [`Writer::ready`] shows, still to be shown: for who has the writer behind a lock that is not to be held while the
    /// daemon is asked.
    ///
    /// # Errors
    /// [`Error::TooLong`] when the object ends before it.
    pub fn part(&mut self, range: Range<usize>) -> Result<Part, Error> {
        if range.end > self.len() {
            return Err(self.too_long(range.end));
        }
        self.note_ready(&range);
        let Bytes::Mapped { session, reference, .. } = &self.bytes else { return Ok(Part(None)) };
        if !session.offers(Features::FOLLOW) {
            return Ok(Part(None));
        }
        let (offset, length) = (range.start as u64, range.len() as u64);
        let record = Ready { reference: *reference, offset, length };
        Ok(Part(Some((Arc::clone(session), record, self.path.clone()))))
    }

    /// Copies bytes to `offset`. Nothing is copied where that would change what was made ready.
    ///
    /// # Errors
    /// [`Error::TooLong`] when they do not fit; [`Error::Ready`].
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let end = offset.saturating_add(bytes.len());
        if end > self.len() {
            return Err(self.too_long(end));
        }
        let is_touched = |ready: &&Range<usize>| ready.start < end && offset < ready.end;
        if let Some(ready) = self.ready.iter().find(is_touched).filter(|_| !bytes.is_empty()) {
            return Err(Error::Ready { path: self.path.clone(), start: ready.start, end: ready.end });
        }
        self[offset..end].copy_from_slice(bytes);
        Ok(())
    }

    /// Joins a range with those that it touches.
    fn note_ready(&mut self, range: &Range<usize>) {
        if range.is_empty() {
            return;
        }
        let first = self.ready.partition_point(|other| other.end < range.start);
        let last = self.ready.partition_point(|other| other.start <= range.end);
        let joined = self.ready[first..last]
            .iter()
            .fold(range.clone(), |joined, other| joined.start.min(other.start)..joined.end.max(other.end));
        self.ready.splice(first..last, [joined]);
    }

    fn too_long(&self, length: usize) -> Error {
        Error::TooLong { path: self.path.clone(), length, size: self.len() }
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
            return Err(self.too_long(length));
        }
        match self.take_bytes() {
            Bytes::Owned(memory, files) => files.write(&self.path, &memory[..length]),
            Bytes::Mapped { session, reference, .. } => {
                let mut sealed = Ok(());
                seal_by(&session, &[Seal { reference, length: length as u64 }], |_, error| {
                    sealed = Err(not_sealed(&self.path, error));
                });
                sealed
            }
            Bytes::Over => Ok(()),
        }
    }

    /// Its bytes. Nothing is left to be given up.
    fn take_bytes(&mut self) -> Bytes {
        std::mem::replace(&mut self.bytes, Bytes::Over)
    }
}

/// A part of a begun object that is as it will stay. `None` when that is shown by the seal alone.
pub struct Part(Option<(Arc<Session>, Ready, PathBuf)>);

impl Part {
    /// Shows it.
    ///
    /// # Errors
    /// [`Error::Io`], also when the object was sealed or given up meanwhile: its number is given to no other.
    pub fn show(self) -> Result<(), Error> {
        const OPERATION: &str = "show a part of an object";
        let Some((session, record, path)) = self.0 else { return Ok(()) };
        let mut status = None;
        let asked = session.each(Command::Ready, Flags::NONE, &[record], |_, _, outcomes: &[Outcome]| {
            status = outcomes.first().map(Outcome::status);
        });
        asked.map_err(|error| Error::at(OPERATION, &path)(error.to_io()))?;
        match status {
            Some(Status::Ok) => Ok(()),
            Some(status) => Err(Error::of(OPERATION, &path, status)),
            None => Err(Error::BadReply),
        }
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let record = self.0.as_ref().map(|(_, record, _)| record);
        f.debug_tuple("Part").field(&record).finish()
    }
}

/// What one session is to seal.
struct Batch {
    session: Arc<Session>,
    seals: Vec<Seal>,
    /// Which writer each is of.
    writers: Vec<usize>,
}

/// Seals many, each by the session that began it: their numbers mean something only there. Returns the failures, each with the
/// index of its writer, after all were tried: what is whole is worth having, and what is begun must end.
pub(crate) fn seal_each(mut writers: Vec<Writer>) -> Vec<(usize, Error)> {
    let (mut batches, mut failures): (Vec<Batch>, Vec<(usize, Error)>) = (Vec::new(), Vec::new());
    for (index, writer) in writers.iter_mut().enumerate() {
        let written = match writer.take_bytes() {
            Bytes::Mapped { session, reference, length, .. } => {
                let known = batches.iter().position(|batch| Arc::ptr_eq(&batch.session, &session));
                let place = known.unwrap_or_else(|| {
                    batches.push(Batch { session, seals: Vec::new(), writers: Vec::new() });
                    batches.len() - 1
                });
                batches[place].seals.push(Seal { reference, length: length as u64 });
                batches[place].writers.push(index);
                Ok(())
            }
            Bytes::Owned(memory, files) => files.write(&writer.path, &memory),
            Bytes::Over => Ok(()),
        };
        failures.extend(written.err().map(|error| (index, error)));
    }
    for batch in batches {
        seal_by(&batch.session, &batch.seals, |index, error| {
            let index = batch.writers[index];
            failures.push((index, not_sealed(&writers[index].path, error)));
        });
    }
    failures
}

/// Why an object is not sealed under its key, as rename(2) says it: a directory may stand there by now.
fn not_sealed(path: &Path, error: io::Error) -> Error {
    let is_taken = error.raw_os_error() == Some(libc::EIO) && path.is_dir();
    let error = if is_taken { io::Error::from_raw_os_error(libc::EISDIR) } else { error };
    Error::at("seal an object", path)(error)
}

/// Seals by one session. `fail` gets the index of each that is not sealed, and why.
fn seal_by(session: &Session, seals: &[Seal], mut fail: impl FnMut(usize, io::Error)) {
    let mut told = 0;
    let asked = session.each(Command::Seal, Flags::NONE, seals, |_, start, outcomes: &[Outcome]| {
        told = start + outcomes.len();
        for (outcome, index) in outcomes.iter().zip(start..) {
            if outcome.status() != Status::Ok {
                fail(index, Error::number(outcome.status()));
            }
        }
    });
    if let Err(error) = asked {
        (told..seals.len()).for_each(|index| fail(index, error.to_io()));
    }
}

impl Deref for Writer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped { mapping, length, .. } => mapping.referenced(0, *length),
            Bytes::Owned(memory, _) => memory,
            Bytes::Over => &[],
        }
    }
}

impl DerefMut for Writer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Mapped { mapping, length, .. } => mapping.begun(0, *length),
            Bytes::Owned(memory, _) => memory,
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
            session.send_ranges(Command::Abort, Flags::NONE, &[ioctl::Range { first: *reference, count: 1 }]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_ready_is_not_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let files = Arc::new(Files::below(directory.path().to_owned()));
        let mut writer = Writer::owned(100, files.path_of(b"key"), &files).unwrap();
        writer.write_at(0, &[1; 100]).unwrap();
        for range in [10..20, 40..50, 20..25, 60..60] {
            writer.ready(range).unwrap();
        }
        assert_eq!(writer.ready, [10..25, 40..50]);
        for (offset, length, is_written) in [
            (0, 10, true),
            (0, 11, false),
            (24, 1, false),
            (25, 15, true),
            (45, 1, false),
            (0, 100, false),
            (12, 0, true),
        ] {
            let written = writer.write_at(offset, &vec![2; length]);
            assert_eq!(written.is_ok(), is_written, "{length} at {offset}");
        }
        let error = writer.write_at(15, &[2]).unwrap_err();
        assert!(error.to_string().contains("bytes 10 to 25 of") && error.errno() == libc::EINVAL, "{error}");
        assert!(matches!(writer.write_at(99, &[2; 2]), Err(Error::TooLong { length: 101, .. })));
        assert!(writer[10..25].iter().chain(&writer[40..50]).all(|&byte| byte == 1));
    }
}
