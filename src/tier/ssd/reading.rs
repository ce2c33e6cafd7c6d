//! The requests of one load, and the checksum of what they bring.
//!
//! A record is read by several requests, so that the checksum of one part is taken while the disk is at the next. Some disks
//! end what was submitted together together, and then nothing is left to wait for meanwhile: such a disk gets the next request
//! when the one before has ended, which costs it less than the checksum takes. Which kind a disk is shows while it works.
//!
//! Threads: the one that loads drives its requests; nothing here is shared.

use std::collections::VecDeque;
use std::hash::Hasher as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidefs_engine::types::Checksum;
use twox_hash::XxHash3_64;

use super::device::Device;
use super::disk::{Request, Ticket};
use super::format::BLOCK_BYTES;
use super::memory::{Buffer, Memory, Piece};

/// Bytes of one request.
const REQUEST_BYTES: usize = 1 << 20;
/// Requests of a load whose ends tell anything about the disk.
const TELLING: usize = 3;
/// Loads in a row whose requests ended together before a disk is said to work so.
const SURE: u32 = 4;
/// Of the loads of such a disk, one in so many looks again.
const LOOK_AGAIN: u64 = 64;

/// How a disk ends requests that were submitted together.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// Loads in a row whose requests ended together.
    together: AtomicU32,
    loads: AtomicU64,
}

impl Ending {
    /// Whether each request is to wait for the end of the one before.
    fn is_together(&self) -> bool {
        self.together.load(Ordering::Relaxed) >= SURE
            && !self.loads.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_AGAIN)
    }

    fn learn(&self, ended_together: bool) {
        // Racing loads may lose one of two looks.
        let seen = self.together.load(Ordering::Relaxed);
        self.together.store(if ended_together { seen.saturating_add(1) } else { 0 }, Ordering::Relaxed);
    }
}

/// One load that is under way.
pub(super) struct Reading<'a> {
    device: &'a Device,
    /// Of the header.
    offset: u64,
    header: &'a Arc<Buffer>,
    memory: &'a Memory,
    /// Bytes of the data.
    bytes: usize,
    /// The same in whole blocks.
    padded: usize,
    /// Data whose requests were submitted.
    submitted: usize,
    /// The requests that have not ended, each with the end of its data.
    under_way: VecDeque<(Ticket, usize)>,
    /// Requests that may be under way at once.
    window: usize,
    /// Whether no other load was under way when this one began.
    is_alone: bool,
    /// Whether this thread comes back for what ends late: then it has the requests in hand.
    is_here: bool,
}

impl<'a> Reading<'a> {
    /// Reads a header from `offset` on, and `padded` bytes of data behind it, of which `bytes` count.
    pub(super) fn new(
        device: &'a Device,
        offset: u64,
        header: &'a Arc<Buffer>,
        memory: &'a Memory,
        (bytes, padded): (usize, usize),
        (is_alone, is_here): (bool, bool),
    ) -> Self {
        let is_staged = is_alone && padded > REQUEST_BYTES && device.work.ending.is_together();
        let window = if is_staged { 1 } else { usize::MAX };
        let under_way = VecDeque::new();
        Self {
            device,
            offset,
            header,
            memory,
            bytes,
            padded,
            submitted: 0,
            under_way,
            window,
            is_alone,
            is_here,
        }
    }

    /// Submits the first request, of the header and the data behind it.
    fn begin(&mut self) -> io::Result<()> {
        let length = self.padded.min(REQUEST_BYTES);
        let mut pieces = vec![Piece::of_buffer(self.header)];
        if length > 0 {
            self.memory.populate(0, length);
            pieces.push(self.piece(0, length)?);
        }
        self.submit(Request::Read { offset: self.offset, pieces }, length);
        Ok(())
    }

    /// Submits as many more as may be under way. While the disk reads into one, the pages of the next are made.
    fn go_on(&mut self) -> io::Result<()> {
        while self.submitted < self.padded && self.under_way.len() < self.window {
            let at = self.submitted;
            let length = REQUEST_BYTES.min(self.padded - at);
            self.memory.populate(at, length);
            let request = Request::read(self.offset + BLOCK_BYTES + at as u64, self.piece(at, length)?);
            self.submit(request, at + length);
        }
        Ok(())
    }

    fn piece(&self, at: usize, length: usize) -> io::Result<Piece> {
        Piece::new(self.memory, at, length).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    fn submit(&mut self, request: Request, end: usize) {
        let disk = &self.device.disk;
        let ticket = if self.is_here { disk.submit_here(vec![request]) } else { disk.submit(vec![request]) };
        self.under_way.push_back((ticket, end));
        self.submitted = end;
    }

    /// Reads everything, and returns the checksum of the data.
    ///
    /// # Errors
    /// Those of the disk; `TimedOut` after `limit`; `InvalidInput` when the memory is too short.
    pub(super) fn sum_up(mut self, limit: Duration) -> io::Result<Checksum> {
        let deadline = Instant::now() + limit;
        let (mut state, mut from) = (XxHash3_64::new(), 0);
        self.begin()?;
        self.go_on()?;
        let tells = self.is_alone && self.under_way.len() >= TELLING;
        while let Some((ticket, end)) = self.under_way.pop_front() {
            ticket.wait(deadline.saturating_duration_since(Instant::now()))?;
            if from == 0 && tells {
                self.device.work.ending.learn(self.under_way.iter().all(|(ticket, _)| ticket.is_over()));
            }
            self.go_on()?;
            let end = end.min(self.bytes);
            // Nothing writes there any more, what is behind is still being read.
            let data = self.memory.prefix(end).ok_or(io::ErrorKind::InvalidInput)?;
            state.write(&data[from..]);
            from = end;
        }
        Ok(Checksum(state.finish()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_ends_requests_together_when_it_did_several_times_in_a_row_and_is_looked_at_again() {
        let ending = Ending::default();
        for _ in 0..SURE {
            assert!(!ending.is_together());
            ending.learn(true);
        }
        assert_eq!((0..LOOK_AGAIN * 2).filter(|_| !ending.is_together()).count(), 2);
        ending.learn(false);
        assert!(!ending.is_together(), "one look that says otherwise is enough");
    }
}
