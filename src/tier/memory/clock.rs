//! The names clock: a page that clients of the fast path map, to see whether what they found under names still stands there.
//!
//! A client that keeps a reference and sees the same count as when it looked the name up need not ask again. The count
//! changes before anybody who takes away, replaces or forbids something that is referenced is told that it is done.
//!
//! Invariants
//! - A daemon that starts changes the clock that it finds. Clients of the one before have sessions that are over: they are
//!   answered by no daemon any more, so they keep nothing that the new one would have to know of.
//! - A clock that does not beat says nothing: its daemon is gone, or stands still.
//!
//! The file is no segment: its name is none that a restart recovers.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidefs_control_api::ioctl::{CLOCK_BEAT, CLOCK_BYTES, CLOCK_CHANGES};
use tidefs_engine::memory::Mapping;
use tidefs_engine::types::{ByteCount, SegmentId};

use super::error::MemoryError;
use super::space::Space;

/// Name of its file.
const NAME: &str = "clock";

/// See the module page.
#[derive(Debug)]
pub struct NamesClock {
    /// The number under which clients map it.
    segment: SegmentId,
    file: Arc<File>,
    mapping: Mapping,
}

impl NamesClock {
    /// Opens the clock, which a restart finds, and changes it: this life knows nothing of the references of the one before.
    pub(super) fn start(space: &Space, segment: SegmentId) -> Result<Self, MemoryError> {
        let file = match space.create(NAME) {
            Err(MemoryError::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                space.open(NAME)?
            }
            outcome => outcome?,
        };
        if file.metadata().map_err(|error| MemoryError::file("stat", &file, error))?.len()
            != CLOCK_BYTES as u64
        {
            // Its page stands from the start: a full tmpfs must not make an access fail. It is in no account.
            file.write_all_at(&[0; CLOCK_BYTES], 0)
                .map_err(|error| MemoryError::file("write", &file, error))?;
        }
        let clock = Self::of(segment, file).map_err(|error| MemoryError::io("map", space.path(), error))?;
        clock.changed();
        Ok(clock)
    }

    fn of(segment: SegmentId, file: File) -> io::Result<Self> {
        let length = ByteCount(CLOCK_BYTES as u64);
        file.set_len(length.get())?;
        Ok(Self { segment, mapping: Mapping::new(&file, length)?, file: Arc::new(file) })
    }

    /// Ends it for its clients, and takes its name.
    pub(super) fn end(&self, space: &Space) -> Result<(), MemoryError> {
        self.changed();
        space.unlink_own(NAME)
    }

    /// The number under which clients map it.
    #[must_use]
    pub fn segment(&self) -> SegmentId {
        self.segment
    }

    /// Its file.
    #[must_use]
    pub fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Something that is referenced is not what its name stands for any more, or may not be looked at.
    pub fn changed(&self) {
        self.add(CLOCK_CHANGES);
    }

    /// How often something changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.mapping.counter(CLOCK_CHANGES).map_or(0, |changes| u64::from_le(changes.load(Ordering::Acquire)))
    }

    /// The daemon lives.
    pub fn beat(&self) {
        self.add(CLOCK_BEAT);
    }

    fn add(&self, offset: usize) {
        let next = |number: u64| Some(u64::from_le(number).wrapping_add(1).to_le());
        if let Some(counter) = self.mapping.counter(offset) {
            add_one(counter, next);
        }
    }
}

fn add_one(counter: &AtomicU64, next: impl FnMut(u64) -> Option<u64>) {
    // `next` always gives a number.
    let _ = counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
}
