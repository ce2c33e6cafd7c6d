//! One connection: the operations that are held for it, and those that were let go on to the connection below.
//!
//! Invariants
//! - An operation is held here, on its way to the connection below, or in flight there, and counted in all three.
//! - What is on its way is in no table; a cancel or an end meanwhile is noted and done when it has arrived.
//!
//! Limits: as many operations as the transport below holds at once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::super::{Poster, Then, error_at_close, post_relayed};
use super::{Outcome, Policy};
use crate::error::Error;
use crate::memory::MemorySlice;
use crate::transport::{
    BatchId, BoxFuture, Direction, Endpoint, EndpointState, Operation, Progress, RailLoad, until,
};
use crate::types::{ByteCount, PeerId, RailId};

/// How often a connection below is asked whether it still works, while something is held for it.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// When an operation goes on, and in which order among those of one time.
type Turn = (Instant, u64);

#[derive(Debug, Default)]
struct Table {
    waiting: BTreeMap<Turn, (Operation, Outcome)>,
    next: u64,
    /// Held, on their way and in flight below.
    loads: BTreeMap<RailId, (usize, u64)>,
    /// Threads that have operations on their way down.
    on_the_way: usize,
    /// What was cancelled while something was on its way.
    cancelled: Vec<BatchId>,
    /// What ends operations once it is closed.
    closed: Option<Error>,
}

impl Table {
    fn operations(&self) -> usize {
        self.loads.values().map(|(operations, _)| operations).sum()
    }

    fn take(&mut self, which: impl Fn(&Turn, &Operation) -> bool) -> Vec<(Operation, Outcome)> {
        self.waiting
            .extract_if(.., |turn, (operation, _)| which(turn, operation))
            .map(|(_, held)| held)
            .collect()
    }
}

/// A connection, and what is held of it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) peer: PeerId,
    inner: Arc<dyn Endpoint>,
    policy: Arc<dyn Policy>,
    operations_max: usize,
    /// What is held. Never locked while an operation is posted or ended.
    table: Mutex<Table>,
    wake: Arc<Notify>,
    ended: Notify,
}

impl Held {
    /// The connection to `peer` over `inner`, which holds nothing yet; `wake` is told when the task of the layer has to look.
    pub(super) fn new(
        peer: PeerId,
        inner: Arc<dyn Endpoint>,
        policy: Arc<dyn Policy>,
        operations_max: usize,
        wake: Arc<Notify>,
    ) -> Self {
        let (table, ended) = (Mutex::default(), Notify::new());
        Self { peer, inner, policy, operations_max, table, wake, ended }
    }

    fn state(&self) -> EndpointState {
        match self.inner.state() {
            EndpointState::Ready if self.table.lock().closed.is_some() => EndpointState::Closed,
            state => state,
        }
    }

    fn post(self: &Arc<Self>, operations: &mut VecDeque<Operation>, poster: Poster) {
        let now = Instant::now();
        let refusal = self.state().error();
        let mut refused = Vec::new();
        let mut table = self.table.lock();
        let is_first = table.waiting.is_empty();
        while refusal.is_some() || table.operations() < self.operations_max {
            let Some(operation) = operations.pop_front() else { break };
            let late = (operation.deadline <= now).then_some(Error::DeadlinePassed);
            if let Some(error) = refusal.clone().or(table.closed.clone()).or(late) {
                refused.push((operation, error));
                continue;
            }
            let (due, outcome) = self.policy.decide(self.peer, operation.local.length(), now);
            table.next += 1;
            let (turn, load) = ((due, table.next), table.loads.entry(operation.rail).or_default());
            *load = (load.0 + 1, load.1 + operation.local.length() as u64);
            table.waiting.insert(turn, (operation, outcome));
        }
        drop(table);
        for (operation, error) in refused {
            operation.complete(Err(error));
        }
        if is_first {
            self.pump(poster);
        }
        self.wake.notify_one();
    }

    /// Takes an operation out of the counts. Whoever waits for its ticket finds room. Returns whether something is held that
    /// may find it, too.
    fn count_down(&self, rail: RailId, length: u64) -> bool {
        let mut table = self.table.lock();
        if let Some(load) = table.loads.get_mut(&rail) {
            *load = (load.0 - 1, load.1 - length);
        }
        !table.waiting.is_empty()
    }

    fn finish(&self, operation: Operation, result: Result<(), Error>) {
        self.count_down(operation.rail, operation.local.length() as u64);
        operation.complete(result);
        self.ended.notify_waiters();
    }

    fn finish_all(&self, operations: Vec<(Operation, Outcome)>, error: &Error) {
        for (operation, _) in operations {
            self.finish(operation, Err(error.clone()));
        }
    }

    /// Lets go on what is due, and ends what is late. Returns whether anything went on.
    pub(super) fn pump(self: &Arc<Self>, poster: Poster) -> bool {
        let now = Instant::now();
        if let Some(error) = self.state().error() {
            let all = self.table.lock().take(|_, _| true);
            self.finish_all(all, &error);
            return false;
        }
        let mut table = self.table.lock();
        let late = table.take(|_, operation| operation.deadline <= now);
        let is_cut_off = self.policy.is_cut_off(self.peer);
        let mut passing = VecDeque::new();
        let mut failed = Vec::new();
        while let Some(entry) =
            table.waiting.first_entry().filter(|entry| !is_cut_off && entry.key().0 <= now)
        {
            let (due, (operation, outcome)) = (entry.key().0, entry.get());
            if outcome.moves() && !self.policy.start(due, operation.local.length(), now) {
                break;
            }
            let (turn, (operation, outcome)) = entry.remove_entry();
            match outcome {
                Outcome::Fail(error) => failed.push((operation, error)),
                // Its turn is put off for ever; the deadline finds it.
                Outcome::Lose => {
                    let turn = (operation.deadline, turn.1);
                    table.waiting.insert(turn, (operation, Outcome::Lose));
                }
                Outcome::Pass | Outcome::Corrupt(_) => passing.push_back((turn, operation, outcome)),
            }
        }
        table.on_the_way += usize::from(!passing.is_empty());
        drop(table);
        self.finish_all(late, &Error::DeadlinePassed);
        for (operation, error) in failed {
            self.finish(operation, Err(error));
        }
        let has_passed = !passing.is_empty();
        if has_passed {
            self.pass(passing, poster);
        }
        has_passed
    }

    /// Posts below, in turn; what has no room is held again.
    fn pass(self: &Arc<Self>, passing: VecDeque<(Turn, Operation, Outcome)>, poster: Poster) {
        let mut turns = VecDeque::new();
        let mut operations = VecDeque::new();
        for (turn, operation, outcome) in passing {
            turns.push_back((turn, outcome));
            operations.push_back(operation);
        }
        let mut outcomes: VecDeque<Outcome> = turns.iter().map(|(_, outcome)| outcome.clone()).collect();
        post_relayed(&*self.inner, &mut operations, poster, |operation| {
            self.relay(operation, outcomes.pop_front().unwrap_or(Outcome::Pass))
        });
        let mut table = self.table.lock();
        // The ones that are left are the last of those that were given.
        while let (Some(operation), Some((turn, outcome))) = (operations.pop_back(), turns.pop_back()) {
            self.policy.not_started(operation.local.length());
            table.waiting.insert(turn, (operation, outcome));
        }
        table.on_the_way -= 1;
        let cancelled = table.cancelled.clone();
        if table.on_the_way == 0 {
            table.cancelled.clear();
        }
        let given_up = table.take(|_, operation| cancelled.contains(&operation.ticket.batch()));
        let closed = table.closed.clone().map(|error| (table.take(|_, _| true), error));
        drop(table);
        self.finish_all(given_up, &Error::Cancelled);
        if let Some((all, error)) = closed {
            self.finish_all(all, &error);
        }
        cancelled.into_iter().for_each(|batch| self.inner.cancel(batch));
        self.ended.notify_waiters();
    }

    /// What to do when an operation has ended below.
    fn relay(self: &Arc<Self>, operation: &Operation, outcome: Outcome) -> Then {
        let (held, rail, length) = (Arc::clone(self), operation.rail, operation.local.length() as u64);
        let target = match outcome {
            Outcome::Corrupt(number) if operation.direction == Direction::Read && length > 0 => {
                Some((operation.local.clone(), number % length))
            }
            _ => None,
        };
        Box::new(move |ticket, result| {
            if let Some((target, victim)) = target.filter(|_| result.is_ok()) {
                change_byte(&target, victim);
            }
            let is_more = held.count_down(rail, length);
            ticket.complete(result);
            if is_more {
                held.wake.notify_one();
            }
            held.ended.notify_waiters();
        })
    }

    fn cancel(&self, batch: BatchId) {
        let mut table = self.table.lock();
        let cancelled = table.take(|_, operation| operation.ticket.batch() == batch);
        if table.on_the_way > 0 {
            table.cancelled.push(batch);
        }
        drop(table);
        self.finish_all(cancelled, &Error::Cancelled);
        self.inner.cancel(batch);
    }

    fn end(&self) {
        let error = error_at_close(&*self.inner);
        let mut table = self.table.lock();
        let error = table.closed.get_or_insert(error).clone();
        let all = table.take(|_, _| true);
        drop(table);
        self.finish_all(all, &error);
        self.wake.notify_one();
    }

    /// Ends all of it. Resolves when nothing is held, on its way or in flight.
    pub(super) async fn close(&self) {
        self.end();
        self.inner.close().await;
        until(&self.ended, || self.table.lock().operations() == 0).await;
    }

    pub(super) fn is_holding(&self) -> bool {
        !self.table.lock().waiting.is_empty()
    }

    /// How long nothing needs to be done; `None` while nothing is held.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        let table = self.table.lock();
        let (due, _) = table.waiting.first_key_value()?.0;
        let to_go = self.policy.ready_at(*due).saturating_duration_since(Instant::now());
        // What is due and still here has no room, or no way: it is tried again when something has ended.
        Some(if to_go.is_zero() { LOOK_EVERY } else { to_go.min(LOOK_EVERY) })
    }
}

/// Changes byte `victim` of an operation's target, which nobody else writes yet.
fn change_byte(target: &MemorySlice, victim: u64) {
    let mut byte = [0];
    let at = target.offset() + victim;
    if target.region().read_at(at, &mut byte) {
        target.region().write_at(at, &[!byte[0]]);
    }
}

/// The connection as it is used; ends what is held when it is dropped.
#[derive(Debug)]
pub(super) struct HoldEndpoint(pub(super) Arc<Held>);

impl Endpoint for HoldEndpoint {
    fn post(&self, operations: &mut VecDeque<Operation>) {
        self.0.post(operations, Poster::Works);
    }

    fn hand_over(&self, operations: &mut VecDeque<Operation>) {
        self.0.post(operations, Poster::HandsOver);
    }

    fn cancel(&self, batch: BatchId) {
        self.0.cancel(batch);
    }

    fn state(&self) -> EndpointState {
        self.0.state()
    }

    fn failed_rail(&self) -> Option<RailId> {
        self.0.inner.failed_rail()
    }

    fn progress(&self, batch: BatchId) -> Option<Arc<dyn Progress>> {
        self.0.inner.progress(batch)
    }

    fn operation_bytes_max(&self) -> ByteCount {
        self.0.inner.operation_bytes_max()
    }

    fn load(&self) -> Vec<RailLoad> {
        let below = self.0.inner.load();
        let credits = |rail| below.iter().find(|load| load.rail == rail).map_or(0, |load| load.credits);
        let table = self.0.table.lock();
        let load = |(rail, (operations, bytes)): (&RailId, &(usize, u64))| RailLoad {
            rail: *rail,
            operations: *operations,
            bytes: *bytes,
            credits: credits(*rail),
        };
        table.loads.iter().map(load).collect()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.close())
    }
}

impl Drop for HoldEndpoint {
    fn drop(&mut self) {
        self.0.end();
    }
}
