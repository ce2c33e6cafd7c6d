//! A peer's region in this process's memory, and the count that keeps it from being withdrawn during a copy.
//!
//! Invariants
//! - Memory of the region is touched only while an [`Entered`] of it lives.
//! - A count is raised and lowered by one process, the peer; its top bit is set by the owner alone. Who lowers the count
//!   to nothing under a set bit tells the owner.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::mpsc::UnboundedSender;

use super::message::Frame;
use crate::error::Error;
use crate::memory::{Region, SharedWords};
use crate::types::RegionId;

/// Regions that one peer may have mapped at once.
pub(super) const SLOTS: u32 = 4096;

/// Set in a count by the owner: no new copies.
pub(super) const WITHDRAWN: u32 = 1 << 31;

/// A mapped region of the peer. Unmapped when dropped.
pub(super) struct Attached {
    id: RegionId,
    slot: u32,
    words: Arc<SharedWords>,
    outbox: UnboundedSender<Frame>,
    /// Taken out when dropped, so that the region is unmapped before the owner is told.
    region: Option<Arc<Region>>,
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attached").field("id", &self.id).field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl Attached {
    /// `None` when the owner named a count that does not exist.
    pub(super) fn new(
        id: RegionId,
        slot: u32,
        words: &Arc<SharedWords>,
        outbox: &UnboundedSender<Frame>,
        region: Region,
    ) -> Option<Self> {
        words.word(slot)?;
        let region = Some(Arc::new(region));
        Some(Self { id, slot, words: Arc::clone(words), outbox: outbox.clone(), region })
    }

    /// The memory. Touched only while [`Self::enter`]ed.
    pub(super) fn region(&self) -> &Arc<Region> {
        // It is taken out in `drop` and nowhere else.
        self.region.as_ref().expect("a region is there until the value is dropped")
    }

    fn count(&self) -> &AtomicU32 {
        // `new` looked it up.
        self.words.word(self.slot).expect("the slot was checked when the region was mapped")
    }

    /// The right to touch the memory, for as long as the value lives.
    pub(super) fn enter(self: &Arc<Self>) -> Result<Entered, Error> {
        // The owner sets the bit and then reads the count, this end raises the count and then reads the bit: one of
        // the two sees the other, since both are read-modify-writes of one word.
        let before = self.count().fetch_add(1, Ordering::Acquire);
        let entered = Entered(Arc::clone(self));
        if before & WITHDRAWN == 0 { Ok(entered) } else { Err(Error::NoSuchRegion { region: self.id }) }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        drop(self.region.take());
        // Nobody listens any more when the connection is over, and then nothing needs to be told.
        let _ = self.outbox.send(Frame::Freed { slot: self.slot });
    }
}

/// Keeps the owner of a region from taking it back.
#[derive(Debug)]
pub(super) struct Entered(Arc<Attached>);

impl Drop for Entered {
    fn drop(&mut self) {
        // Release: what was copied is done before the owner sees the count go down.
        let before = self.0.count().fetch_sub(1, Ordering::Release);
        if before == WITHDRAWN | 1 {
            // As above.
            let _ = self.0.outbox.send(Frame::Drained { slot: self.0.slot });
        }
    }
}
