//! A record on its way to the end of a disk's log: how it is begun, waited for, and ended.
//!
//! Invariants
//! - A record is entered into the index only when all of it was written, and not when its key was removed meanwhile.
//! - Its order is drawn under the same lock under which a removal looks at what is on its way, and its zone is open
//!   before that: a removal that comes later finds it, and stands later in the log.
//! - An older record of its version that it [was to take along](super::super::under_way) is removed when it is not entered.
//! - Who gave a record is told of its end when nobody here holds its memory any more.
//!
//! Limits: `WINDOW_BYTES` are under way at once. A disk that ends none of them within the limit of a request fails them all.
//! Threads: the disk's writer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::super::checksum_of;
use super::super::disk::{Request, Ticket};
use super::super::format::{BLOCK, BLOCK_BYTES, FooterEntry, RecordFacts, RecordHeader, encode};
use super::super::identity::{Unusable, write_blocks};
use super::super::index::{Located, Place};
use super::super::memory::{Buffer, Piece};
use super::super::open_zone::Last;
use super::super::queue::{Append, Origin, Stored};
use super::super::reasons::{DroppedFor, WrittenFor};
use super::super::under_way::Pending;
use super::Writer;

/// Bytes under way at once, as [`Append::cost`] counts them.
const WINDOW_BYTES: u64 = 32 << 20;
/// Bytes of one request: a larger one keeps the ring's thread busy for too long.
const REQUEST_BYTES: usize = 4 << 20;

/// A record that is being written.
#[derive(Debug)]
pub(super) struct Flight {
    append: Append,
    facts: RecordFacts,
    place: Place,
    ticket: Ticket,
    started: Instant,
}

impl Writer {
    pub(in crate::tier::ssd) fn append(&mut self, append: Append) {
        let memory_length = usize::try_from(append.length.get()).unwrap_or(usize::MAX);
        let Some(data) = append.memory.prefix(memory_length) else { return self.finish(append, None) };
        let facts = RecordFacts {
            order: 0,
            hash: append.hash,
            version: append.version,
            length: append.length,
            checksum: append.checksum.unwrap_or_else(|| checksum_of(data)),
            key: append.key.clone(),
            meta: append.meta.clone(),
        };
        if self.device.is_failing() {
            return self.finish(append, None);
        }
        if let Err(reason) = self.ensure_zone(facts.blocks(), facts.footer_bytes(), Last::Left) {
            return self.do_without_zone(append, reason);
        }
        let order = match self.shared.draw_order(&append) {
            Ok(order) => order,
            Err(Stored::Superseded) => return self.finish_superseded(append),
            Err(_) => return self.finish(append, None),
        };
        let facts = RecordFacts { order, ..facts };
        match self.submit(&append, &facts) {
            Some((place, ticket)) => {
                self.flight_bytes += append.cost().get();
                self.flight.push_back(Flight { append, facts, place, ticket, started: Instant::now() });
            }
            None => self.finish(append, None),
        }
        while self.flight_bytes > WINDOW_BYTES {
            self.reap_one();
        }
    }

    /// No zone became free for a record. One that stands nowhere else by now waits for another when it is pinned, or when no zone is
    /// taken back yet.
    fn do_without_zone(&mut self, append: Append, reason: DroppedFor) {
        let Origin::Zone(nowhere) = append.origin else { return self.finish(append, None) };
        let is_at_home = self.shared.return_home(&append.hash, append.version, nowhere);
        let is_early = !self.shared.is_named.load(Ordering::Relaxed);
        let waits = !is_at_home && (is_early || self.shared.is_pinned_at(&append.hash, nowhere));
        let ended = if waits { self.device.queue.push_again(append) } else { Some(append) };
        if let Some(append) = ended {
            if !is_at_home {
                self.shared.forget_record(&append.hash, nowhere, reason);
            }
            self.finish(append, None);
        }
    }

    /// Starts writing a record at the end of the open zone, in which it fits.
    fn submit(&mut self, append: &Append, facts: &RecordFacts) -> Option<(Place, Ticket)> {
        let device = &self.device;
        let open = self.open.as_mut()?;
        let header = RecordHeader { device: device.uuid, sequence: open.sequence, facts: facts.clone() };
        let header = Piece::of_buffer(&Arc::new(Buffer::holding(&encode(&header)?)));
        let padded = usize::try_from(append.length.get()).ok()?.checked_next_multiple_of(BLOCK)?;
        let block = open.next_block;
        let data_at = device.offset(open.zone, block + 1);
        let mut requests = Vec::with_capacity(1 + padded / REQUEST_BYTES);
        let first = padded.min(REQUEST_BYTES);
        let mut pieces = vec![header];
        if first > 0 {
            pieces.push(Piece::new(&append.memory, 0, first)?);
        }
        requests.push(Request::Write { offset: data_at - BLOCK_BYTES, pieces });
        for at in (first..padded).step_by(REQUEST_BYTES) {
            let piece = Piece::new(&append.memory, at, REQUEST_BYTES.min(padded - at))?;
            requests.push(Request::write(data_at + at as u64, piece));
        }
        open.next_block += u32::try_from(facts.blocks()).ok()?;
        open.footer_bytes += facts.footer_bytes();
        let place = Place { zone: device.zone_id(open.zone), block };
        Some((place, device.disk.submit(requests)))
    }

    pub(in crate::tier::ssd) fn reap_all(&mut self) {
        while !self.flight.is_empty() {
            self.reap_one();
        }
    }

    /// Waits for the record that was started first.
    pub(super) fn reap_one(&mut self) {
        let Some(Flight { append, facts, place, ticket, started }) = self.flight.pop_front() else { return };
        let cost = append.cost().get();
        self.flight_bytes -= cost;
        // What was started together is waited for together: a disk that ends nothing for that long hangs.
        let busy_since = started.max(self.last_end);
        let was_busy = started <= self.last_end;
        let outcome = ticket.wait(self.shared.limit.saturating_sub(busy_since.elapsed()));
        let now = Instant::now();
        let is_late = outcome.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut);
        if !is_late {
            self.last_end = now;
        }
        match outcome {
            Ok(()) => {
                let reason = match append.origin {
                    Origin::Owner(_) => WrittenFor::Objects,
                    Origin::Zone(_) => WrittenFor::Again,
                };
                self.device.count_written(reason, facts.blocks() * BLOCK_BYTES);
                if reason == WrittenFor::Objects {
                    self.device.work.stored_bytes.fetch_add(append.length.get(), Ordering::Relaxed);
                }
                self.device.work.write_times.observe(now.saturating_duration_since(started));
                let taken = now.saturating_duration_since(busy_since);
                self.device.admission.lock().measured(cost, taken, was_busy);
                // The zone is gone when another record of it failed, or could not be loaded.
                self.abandon_zone_if_given_up();
                let open = self.open.as_mut().filter(|open| self.device.zone_id(open.zone) == place.zone);
                let Some(open) = open else { return self.finish(append, None) };
                let blocks = u32::try_from(facts.blocks()).unwrap_or(u32::MAX);
                open.entries.push(FooterEntry::Object { block: place.block, facts });
                self.finish(append, Some((place, blocks)));
            }
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                tracing::warn!(
                    device = self.device.name, hash = ?append.hash, %error,
                    "the memory of a record became shorter while it was written"
                );
                self.leave_out(place);
                self.finish(append, None);
            }
            // Where bytes are never written in place, or more is promised than there is: what stands before it is whole.
            Err(error) if Unusable::from(&error) == Unusable::Full => {
                self.count_refusal(&error, started);
                self.leave_out(place);
                self.finish(append, None);
            }
            Err(error) => {
                // One pause of the disk is one error, which cost the zone.
                if !is_late || self.open.as_ref().is_some_and(|open| open.zone == place.zone.zone()) {
                    self.device.count_write_error(&error);
                    self.abandon_zone();
                }
                self.finish(append, None);
            }
        }
    }

    /// A record that was `started` at a time found no room. Of those that did together, and soon after, one counts: more of them say
    /// no more of the disk.
    fn count_refusal(&mut self, error: &io::Error, started: Instant) {
        let since = |at: Instant| started.saturating_duration_since(at);
        if self.full_at.is_none_or(|at| since(at) >= self.shared.limit) {
            self.full_at = Some(Instant::now());
            self.device.count_write_error(error);
        }
    }

    /// Leaves a hole in place of a record that could not be written as a whole: its header may stand there, and before
    /// data that happens to match.
    fn leave_out(&mut self, place: Place) {
        let zone = place.zone.zone();
        if self.open.as_ref().is_none_or(|open| open.zone != zone) {
            return;
        }
        let header = self.device.offset(zone, place.block);
        if let Err(error) = write_blocks(&*self.device.disk, header, &[0; BLOCK], self.shared.limit) {
            self.device.count_write_error(&error);
            self.abandon_zone();
        }
    }

    /// Tells the index and the owner how a record ended. `written`: where it stands, and its blocks.
    fn finish(&mut self, append: Append, written: Option<(Place, u32)>) {
        let cost = append.cost();
        let Append { hash, version, memory, durable, origin, uses, done, .. } = append;
        // Its owner, who is told below, takes the segment back only when nobody else has it mapped.
        drop(memory);
        let stored = {
            let mut pending = self.shared.pending.lock();
            // What is written again from a zone is not pending; the same version from its owner may be.
            let is_owners = matches!(origin, Origin::Owner(_));
            let ended = if is_owners { pending.end(hash, version) } else { Pending::default() };
            match (written, origin) {
                (None, Origin::Owner(_)) if ended.is_again.get() => {
                    // What it was to take along stands where nobody else knows of it.
                    self.shared.bury_all(&pending, vec![self.device.number], hash, version);
                    Stored::Failed
                }
                (None, _) => Stored::Failed,
                (Some(_), Origin::Owner(_)) if ended.is_cancelled => Stored::Superseded,
                (Some((place, blocks)), Origin::Owner(owner)) => {
                    let is_again = ended.is_again.get();
                    let located = Located { version, place, blocks, owner, heat: uses, is_again };
                    let older = self.shared.begin_entering(&hash, version, self.device.number);
                    if self.shared.index.put(hash, &located) {
                        // It is not to come back when this one is dropped.
                        self.shared.bury_replaced(&pending, hash, version, older.as_ref());
                        Stored::Yes
                    } else {
                        self.shared.bury_all(&pending, vec![self.device.number], hash, version);
                        Stored::Superseded
                    }
                }
                (Some((to, _)), Origin::Zone(from)) => {
                    let stands = self.move_in_index(&pending, hash, version, (from, to));
                    if stands { Stored::Yes } else { Stored::Superseded }
                }
            }
        };
        if let (Stored::Failed, Origin::Zone(from)) = (stored, origin) {
            // The zone from which it is moved may not be void yet.
            self.shared.put_back(&hash, version, from);
        }
        self.device.queue.settle(cost);
        match written {
            Some((place, _)) if durable && stored == Stored::Yes => self.awaiting.push((place.zone, done)),
            _ => done(stored),
        }
    }

    fn finish_superseded(&self, append: Append) {
        let cost = append.cost();
        let Append { hash, version, memory, origin, done, .. } = append;
        drop(memory);
        if matches!(origin, Origin::Owner(_)) {
            self.shared.pending.lock().end(hash, version);
        }
        self.device.queue.settle(cost);
        done(Stored::Superseded);
    }
}
