//! Hot path: payload that the kernel sends from where it lies, and what it may still read.
//!
//! A send with `MSG_ZEROCOPY` returns before the bytes have left; a notice in the error queue of the socket says when the
//! kernel is done with them, and whether it has copied them after all (Documentation/networking/msg_zerocopy.rst).
//!
//! Invariants
//! - The memory of a send is held until its notice came: the right to a region of this side, and the operation whose
//!   source it is, which ends then and not before.
//! - With [`ZeroCopy::Auto`] one short send tries it; until the kernel has said how that went, and after it has copied,
//!   everything is copied. With [`ZeroCopy::On`] everything that is large goes without a copy.
//! - A send that the kernel has no room to note is copied, and counted.
//!
//! Limit: what nobody waits for any more but the kernel holds for [`SETTLE`] costs the connection: see [`Grave`].

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use super::config::ZeroCopy;
use super::ffi::{self, Notice};
use super::outbox::Payload;
use crate::error::Error;
use crate::link::DataStream;
use crate::metrics::Metrics;
use crate::transport::Operation;

/// Payload from which on it is worth the notice: below it, the kernel copies faster than it pins pages and tells.
pub(super) const LARGE_BYTES: usize = 256 << 10;
/// Bytes of the send that tries it: few enough to leave at once, even when nobody reads at the other end.
const PROBE_BYTES: usize = 32 << 10;
/// Bytes of one send: as much as one notice of the kernel is about.
const SEND_BYTES: usize = 512 << 10;
/// How long the kernel may hold what nobody waits for any more.
const SETTLE: Duration = Duration::from_millis(500);

/// Whether sends go without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// They do not, or not any more.
    Off,
    /// The next one tries it.
    Untried,
    /// One has tried it, and how that went is not known yet.
    Trying,
    /// They do.
    On,
}

/// What connections are started with.
#[derive(Clone, Debug)]
pub(super) struct Policy {
    pub(super) wanted: ZeroCopy,
    pub(super) metrics: Arc<Metrics>,
}

impl Policy {
    /// The sends of a new connection.
    pub(super) fn start(&self, stream: &DataStream) -> Sends {
        let mut state = match self.wanted {
            ZeroCopy::Off => State::Off,
            ZeroCopy::Auto => State::Untried,
            ZeroCopy::On => State::On,
        };
        // Bytes that are encrypted first do not leave from where they lie.
        let socket = stream.as_plain().filter(|_| state != State::Off);
        match socket.map(|socket| ffi::allow_zero_copy(socket)) {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, "this kernel does not send without a copy");
                self.metrics.zero_copy_refused_total.add(1);
                state = State::Off;
            }
            None => state = State::Off,
        }
        Sends::new(state, self.wanted == ZeroCopy::Auto, Arc::clone(&self.metrics))
    }
}

/// Payload that was sent and may still be read by the kernel.
#[derive(Debug)]
struct Pinned {
    /// The number of its last send.
    last: u64,
    operation: u64,
    payload: Payload,
}

/// An operation that has ended but for the kernel.
#[derive(Debug)]
struct Parked {
    id: u64,
    operation: Operation,
    result: Result<(), Error>,
    since: Instant,
}

/// The sends of one connection.
#[derive(Debug)]
pub(super) struct Sends {
    state: State,
    /// Whether one that the kernel copies turns it off.
    is_auto: bool,
    /// The first send of which no notice came.
    open_from: u64,
    /// Of it and those that follow it, whether a notice came.
    noticed: VecDeque<bool>,
    /// Oldest first.
    pinned: VecDeque<Pinned>,
    parked: Vec<Parked>,
    /// Since when somebody waits for regions that were withdrawn.
    withdrawn_since: Option<Instant>,
    /// The last time that was said to be one to look at.
    armed: Option<Instant>,
    metrics: Arc<Metrics>,
}

impl Default for Sends {
    fn default() -> Self {
        Self::new(State::Off, false, Arc::default())
    }
}

impl Sends {
    fn new(state: State, is_auto: bool, metrics: Arc<Metrics>) -> Self {
        Self {
            state,
            is_auto,
            open_from: 0,
            noticed: VecDeque::new(),
            pinned: VecDeque::new(),
            parked: Vec::new(),
            withdrawn_since: None,
            armed: None,
            metrics,
        }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    /// How many bytes of a payload of `length` the next send takes from where they lie, at most; `None` when it copies.
    pub(super) fn longest(&self, length: usize) -> Option<usize> {
        match self.state {
            _ if length < LARGE_BYTES => None,
            State::Off | State::Trying => None,
            State::Untried => Some(PROBE_BYTES),
            State::On => Some(SEND_BYTES),
        }
    }

    /// A send was taken. Returns its number.
    pub(super) fn sent(&mut self) -> u64 {
        if self.state == State::Untried {
            self.state = State::Trying;
        }
        self.metrics.zero_copy_sends_total.add(1);
        self.noticed.push_back(false);
        self.open_from + self.noticed.len() as u64 - 1
    }

    /// The kernel had no room to note a send.
    pub(super) fn refused(&self) {
        static TOLD: Once = Once::new();
        self.metrics.zero_copy_refused_total.add(1);
        TOLD.call_once(|| {
            tracing::warn!(
                "payload is copied: the kernel has no room to note that it is not; raise net.core.optmem_max, or the \
                 limit of locked memory"
            );
        });
    }

    /// Holds the payload of `operation`, whose last send was `last`, unless the kernel is done with that.
    pub(super) fn pin(&mut self, last: u64, operation: u64, payload: Payload) {
        if last >= self.open_from {
            self.pinned.push_back(Pinned { last, operation, payload });
        }
    }

    /// Whether the kernel may read anything.
    pub(super) fn is_open(&self) -> bool {
        !self.noticed.is_empty()
    }

    /// Keeps an operation that has ended until the kernel is done with its memory. Hands it back when it is.
    pub(super) fn park(
        &mut self,
        id: u64,
        operation: Operation,
        result: Result<(), Error>,
    ) -> Option<(Operation, Result<(), Error>)> {
        if self.pinned.iter().all(|pinned| pinned.operation != id) {
            return Some((operation, result));
        }
        self.parked.push(Parked { id, operation, result, since: Instant::now() });
        None
    }

    /// Somebody waits for regions that were withdrawn. Returns whether some are held here.
    pub(super) fn note_withdrawn(&mut self) -> bool {
        let is_held = self.holds_withdrawn();
        if is_held {
            self.withdrawn_since.get_or_insert_with(Instant::now);
        }
        is_held
    }

    fn holds_withdrawn(&self) -> bool {
        self.pinned.iter().any(|pinned| pinned.payload.is_withdrawn())
    }

    /// When to [`Self::look`], if there is something to wait for and that was not said before.
    pub(super) fn arm(&mut self, now: Instant) -> Option<Instant> {
        let due = self.due().filter(|_| self.armed.is_none_or(|armed| armed <= now));
        self.armed = due.or(self.armed);
        due
    }

    /// It is `now`: as [`Self::arm`].
    ///
    /// # Errors
    /// [`Error::TransportFailed`] when the connection has to go for the kernel to let go.
    pub(super) fn look(&mut self, now: Instant) -> Result<Option<Instant>, Error> {
        if self.due().is_some_and(|due| due <= now) {
            return Err(Error::transport(super::NAME, "the kernel holds memory that has to be let go"));
        }
        Ok(self.arm(now))
    }

    /// When the connection has to go, if the kernel is not done by then.
    fn due(&self) -> Option<Instant> {
        let parked = self.parked.iter().map(|parked| parked.since).min();
        let withdrawn = self.withdrawn_since.filter(|_| self.holds_withdrawn());
        parked.into_iter().chain(withdrawn).min().map(|since| since + SETTLE)
    }

    /// The connection of `socket` is over. Returns whether somebody has to look after what the kernel may still read.
    pub(super) fn end(&self, socket: &TcpStream) -> bool {
        if self.is_open() {
            ffi::abort(socket);
        }
        self.is_open()
    }

    /// Reads all notices of `socket`. Returns the operations that end by them.
    ///
    /// # Errors
    /// What the socket says.
    pub(super) fn read_notices(
        &mut self,
        socket: &TcpStream,
    ) -> io::Result<Vec<(Operation, Result<(), Error>)>> {
        while self.is_open() {
            let Some(notice) = ffi::next_notice(socket)? else { break };
            self.noticed(notice);
        }
        Ok(self.release())
    }

    fn noticed(&mut self, notice: Notice) {
        // The kernel counts in 32 bits, and what is open is far less.
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is what the kernel counts")]
        let place = |number: u32| number.wrapping_sub(self.open_from as u32) as usize;
        let (first, last) = (place(notice.first), place(notice.last));
        if first > last || last >= self.noticed.len() {
            tracing::error!(?notice, open = self.noticed.len(), "a notice of sends that were not made");
            return;
        }
        let count = (last - first + 1) as u64;
        self.noticed.range_mut(first..=last).for_each(|noticed| *noticed = true);
        while self.noticed.front() == Some(&true) {
            self.noticed.pop_front();
            self.open_from += 1;
        }
        self.metrics.zero_copy_done_total.add(count);
        if notice.is_copied {
            self.metrics.zero_copy_copied_total.add(count);
        }
        match self.state {
            State::Trying | State::On if notice.is_copied && self.is_auto => {
                tracing::debug!("the kernel copies what is sent on this data connection; zero-copy is off");
                self.metrics.zero_copy_left_total.add(1);
                self.state = State::Off;
            }
            State::Trying => self.state = State::On,
            State::Off | State::Untried | State::On => {}
        }
    }

    /// Lets go of what the kernel is done with.
    fn release(&mut self) -> Vec<(Operation, Result<(), Error>)> {
        while self.pinned.front().is_some_and(|pinned| pinned.last < self.open_from) {
            self.pinned.pop_front();
        }
        // Who waits for another region later, waits from then on.
        self.withdrawn_since = self.withdrawn_since.filter(|_| self.holds_withdrawn());
        let pinned = &self.pinned;
        let is_free = |parked: &mut Parked| pinned.iter().all(|pinned| pinned.operation != parked.id);
        self.parked.extract_if(.., is_free).map(|parked| (parked.operation, parked.result)).collect()
    }
}

/// A connection that is over while the kernel may still read what was sent on it.
///
/// It was aborted, which made the kernel drop what had not left; what a NIC has yet to fetch leaves within moments. The
/// socket stays open, since its notices go with it.
pub(super) trait Grave: Send + Sync + fmt::Debug {
    /// Looks whether the kernel is done, and ends the operations that were kept so long. Returns whether all is done.
    fn visit(&self) -> bool;
}

#[cfg(test)]
impl Sends {
    /// Those of a connection that sends without a copy.
    pub(super) fn on(metrics: &Arc<Metrics>) -> Self {
        Self::new(State::On, false, Arc::clone(metrics))
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{Header, Kind, header};
    use super::super::registry::Registry;
    use super::*;
    use crate::memory::{Access, PageKind, Region};
    use crate::types::{ByteCount, RegionId};

    fn notice(first: u32, last: u32, is_copied: bool) -> Notice {
        Notice { first, last, is_copied }
    }

    #[test]
    fn payload_is_held_until_all_before_it_is_done_however_notices_come_and_past_2_to_the_32() {
        let metrics = Arc::default();
        let mut sends = Sends::on(&metrics);
        sends.open_from = u64::from(u32::MAX) - 1;
        let numbers: Vec<u64> = (0..4).map(|_| sends.sent()).collect();
        assert_eq!(numbers[3], u64::from(u32::MAX) + 2);
        for (operation, last) in numbers.iter().enumerate() {
            sends.pin(*last, operation as u64, Payload::None);
        }
        let held = |sends: &mut Sends| {
            sends.release();
            sends.pinned.iter().map(|pinned| pinned.operation).collect::<Vec<_>>()
        };
        sends.noticed(notice(u32::MAX, 0, false));
        assert_eq!(held(&mut sends), [0, 1, 2, 3]);
        sends.noticed(notice(u32::MAX - 1, u32::MAX - 1, false));
        assert_eq!(held(&mut sends), [3]);
        // The kernel never says so: of sends that were not made, or were done before.
        sends.noticed(notice(2, 2, false));
        sends.noticed(notice(0, 0, false));
        assert_eq!(held(&mut sends), [3]);
        sends.noticed(notice(1, 1, true));
        assert_eq!(held(&mut sends), [] as [u64; 0]);
        assert!(!sends.is_open());
        sends.pin(numbers[3], 9, Payload::None);
        assert_eq!(held(&mut sends), [] as [u64; 0], "what is done is not held");
        assert_eq!(metrics.zero_copy_done_total.get(), 4);
        assert_eq!(metrics.zero_copy_copied_total.get(), 1);
    }

    #[test]
    fn each_who_waits_for_a_region_waits_as_long() {
        let region = Arc::new(Region::anonymous(ByteCount(4096), PageKind::Base, Access::Read).unwrap());
        let registry = Registry::default();
        let mut sends = Sends::on(&Arc::default());
        let withdraw = |sends: &mut Sends, number: u64| {
            let id = RegionId(number);
            let registration = registry.register(id, &region).unwrap();
            let header = Header { operation: number, region: id, registration, ..header(Kind::Read, 4096) };
            let (slice, lease) = registry.lease(&header).unwrap();
            let last = sends.sent();
            sends.pin(last, number, Payload::Memory(slice, Some(lease)));
            registry.withdraw(id);
            assert!(sends.note_withdrawn());
            sends.due().unwrap()
        };
        let first = withdraw(&mut sends, 1);
        assert!(sends.look(first - SETTLE).is_ok() && sends.look(first).is_err());
        sends.noticed(notice(0, 0, false));
        sends.release();
        assert_eq!(sends.due(), None);
        std::thread::sleep(Duration::from_millis(2));
        assert!(withdraw(&mut sends, 2) > first);
    }

    #[test]
    fn auto_tries_once_and_goes_on_as_long_as_nothing_is_copied() {
        let mut sends = Sends::new(State::Untried, true, Arc::default());
        assert_eq!(sends.longest(LARGE_BYTES - 1), None);
        assert_eq!(sends.longest(LARGE_BYTES), Some(PROBE_BYTES));
        sends.sent();
        assert_eq!(sends.longest(LARGE_BYTES), None, "nothing is known yet");
        sends.noticed(notice(0, 0, false));
        assert_eq!(sends.longest(LARGE_BYTES), Some(SEND_BYTES));
        sends.sent();
        sends.sent();
        sends.noticed(notice(1, 1, true));
        assert_eq!(sends.state(), State::Off);
        sends.noticed(notice(2, 2, false));
        assert_eq!(sends.longest(usize::MAX), None, "it stays off");
    }
}
