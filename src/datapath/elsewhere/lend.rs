//! Lending objects to other members: a short or packed one as its bytes, another one as the segment that has them.
//!
//! Invariants
//! - What is lent stays while the loan lasts: a handle of it is open.
//! - An object is said to be gone only when it is: not when it is still written, on a disk, or without its stamp.
//!
//! Limits: [`WRITER_WAIT`] for a writer, or for the stamp of what was just published; the deadline of the settings for a disk.
//! Threads: blocking threads of the runtime, but for what is lent at once.

use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_engine::types::ByteCount;

use super::super::{Caller, Datapath, Error, HandleId, IoPath, Marks, Need, OpenOptions, Phase, Place};
use super::stamp_of;
use crate::cluster::{Lent, LentBytes, Stamp, Unlent};
use crate::namespace::{Ino, ThreadId};
use crate::tier::memory::checksum_bytes;

/// How long a reader waits for a writer that still has the file open.
const WRITER_WAIT: Duration = Duration::from_secs(1);
/// How often a member looks whether it was told the stamp of what it published.
const STAMP_PAUSE: Duration = Duration::from_micros(200);
/// Objects up to this length are sent in the answer: lending a region would take longer than copying them.
const SENT_AT_ONCE: ByteCount = ByteCount::kib(64);

/// An open handle that a peer reads through. Closed when it is dropped.
struct Loan {
    datapath: Arc<Datapath>,
    handle: HandleId,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.datapath.release(self.handle);
    }
}

/// Why an object cannot be lent yet.
enum Reluctance {
    /// It is not held, not in this version.
    Gone,
    /// What is held is an earlier version, or was just published.
    Earlier,
    /// It could not be read this time.
    Unreadable,
    /// It is on SSD.
    OnSsd(Ino),
    /// Somebody may still write it.
    Unfinished,
}

/// A buffer for an object of `size`, which is in memory.
fn room_for(size: ByteCount) -> Result<Vec<u8>, Error> {
    let length = usize::try_from(size.get()).map_err(|_| Error::Invalid("too large to copy"))?;
    Ok(vec![0; length])
}

impl Datapath {
    /// Lends an object to another member, which asked for it at `asked`, when it is here and final. Waits for the SSD tier, and a
    /// while for a writer.
    pub(super) fn lend_to_peer(
        self: &Arc<Self>,
        path: &[u8],
        stamp: Stamp,
        asked: Instant,
    ) -> Result<Lent, Unlent> {
        let deadline = Instant::now() + WRITER_WAIT;
        let mut has_missed = false;
        loop {
            match self.try_to_lend(path, stamp) {
                Ok(lent) => {
                    self.telemetry.remote_lends.increment();
                    return Ok(lent);
                }
                Err(Reluctance::OnSsd(ino)) => {
                    let left = self.settings.deadline.checked_sub(asked.elapsed()).filter(|_| !has_missed);
                    // What a disk lost is not held any more, and the catalog has been told so. What somebody else brought
                    // back meanwhile, or wrote anew, is looked at once more.
                    has_missed = !self.load_for_peer(ino, Need::Whole, left.ok_or(Unlent::NotNow)?);
                }
                Err(Reluctance::Unfinished) => {
                    let left = deadline.checked_duration_since(Instant::now()).ok_or(Unlent::NotNow)?;
                    self.wait_for_release(left.min(Duration::from_millis(20)));
                }
                Err(Reluctance::Earlier) => {
                    // It may not know its stamp yet: to say that it is gone would take it out of the catalog.
                    let left = deadline.checked_duration_since(Instant::now()).ok_or(Unlent::NotNow)?;
                    std::thread::sleep(left.min(STAMP_PAUSE));
                }
                Err(Reluctance::Gone) => return Err(Unlent::Gone),
                Err(Reluctance::Unreadable) => return Err(Unlent::NotNow),
            }
        }
    }

    /// Lends an object for which nothing has to be waited for: no disk, no writer, no pass over its bytes.
    pub(super) fn lend_at_once(self: &Arc<Self>, path: &[u8], stamp: Stamp) -> Option<Lent> {
        {
            let state = self.lock();
            let object = state.object(state.tree.by_path(path)?)?;
            let is_ready = object.phase == Phase::Sealed
                && stamp_of(object) == stamp
                && object.marks.has(Marks::FINAL)
                && !object.marks.has(Marks::UNVERIFIED)
                && !object.marks.has(Marks::WRITABLE_MAPPING);
            let is_known = match &object.place {
                Place::Solo(_) => {
                    object.size <= SENT_AT_ONCE
                        || self.recorded_checksum(object).is_ok_and(|known| known.is_some())
                }
                Place::Packed(_) => object.size <= SENT_AT_ONCE,
                _ => false,
            };
            if !is_ready || !is_known {
                return None;
            }
        }
        let lent = self.try_to_lend(path, stamp).ok()?;
        self.telemetry.remote_lends.increment();
        Some(lent)
    }

    fn try_to_lend(self: &Arc<Self>, path: &[u8], stamp: Stamp) -> Result<Lent, Reluctance> {
        let (ino, handle, place, size, may_change) = {
            let mut state = self.lock();
            let slot = state.tree.by_path(path).ok_or(Reluctance::Gone)?;
            state.readmit(slot);
            let object = state.object(slot).ok_or(Reluctance::Gone)?;
            let may_change = object.marks.has(Marks::WRITABLE_MAPPING);
            let is_final = object.marks.has(Marks::FINAL) && !may_change;
            match (object.phase, &object.place) {
                (Phase::Writing, _) => return Err(Reluctance::Unfinished),
                // A later version is on its way into the catalog.
                (Phase::Sealed, _) if stamp_of(object) > stamp => return Err(Reluctance::Unreadable),
                // This version may be the one, and not know yet which stamp the catalog gave it.
                (Phase::Sealed, _) if stamp_of(object) < stamp => return Err(Reluctance::Earlier),
                (Phase::Sealed, Place::Ssd) => return Err(Reluctance::OnSsd(state.tree.ino(slot))),
                (Phase::Sealed, _) if !is_final && object.writers() > 0 => {
                    return Err(Reluctance::Unfinished);
                }
                (Phase::Sealed, Place::Solo(_) | Place::Packed(_)) => {}
                _ => return Err(Reluctance::Gone),
            }
            let (place, size) = (object.place.clone(), object.size);
            let caller = Caller { uid: 0, gid: 0, thread: ThreadId(std::process::id()) };
            // Read by the daemon alone: the kernel may serve it meanwhile.
            let options = OpenOptions::default();
            let opened = self.open_handle(&mut state, &caller, slot, options, IoPath::Cached);
            state.touch(slot);
            (opened.ino, opened.handle, place, size, may_change)
        };
        let loan = Loan { datapath: Arc::clone(self), handle };
        let unreadable = |error: Error| {
            tracing::debug!(%error, "an object cannot be lent now");
            Reluctance::Unreadable
        };
        self.verify_before_first_use(ino).map_err(unreadable)?;
        let (bytes, checksum) = match place {
            Place::Packed(_) => {
                // By its handle, since it may get a segment of its own at any time.
                let mut bytes = room_for(size).map_err(unreadable)?;
                if self.read(handle, 0, &mut bytes).map_err(unreadable)? < bytes.len() {
                    let short = Error::io("read of a packed object")(ErrorKind::UnexpectedEof.into());
                    return Err(unreadable(short));
                }
                let checksum = checksum_bytes(&bytes);
                (LentBytes::Inline(bytes), checksum)
            }
            Place::Solo(_) if size <= SENT_AT_ONCE => {
                let file = self.backing_file(ino).map_err(unreadable)?;
                let mut bytes = room_for(size).map_err(unreadable)?;
                let read = file.read_exact_at(&mut bytes, 0).map_err(Error::io("read of a segment"));
                read.map_err(unreadable)?;
                let checksum = checksum_bytes(&bytes);
                (LentBytes::Inline(bytes), checksum)
            }
            _ => {
                let file = self.backing_file(ino).map_err(unreadable)?;
                let taken = if may_change { self.checksum_now(ino) } else { self.checksum(ino) };
                let checksum = taken.map_err(unreadable)?.ok_or(Reluctance::Unfinished)?;
                (LentBytes::Segment(file, size), checksum)
            }
        };
        Ok(Lent { hold: Box::new(loan), bytes, checksum: checksum.0 })
    }
}
