//! Hot path: the way to one peer by one transport: its endpoint, and the operations that wait for room in it.
//!
//! Invariants
//! - One thread at a time hands operations to the endpoint; another that wants to leaves word, and the first goes on.
//!   So an endpoint may complete operations inside `post`, and their completion may come back here.
//! - Higher priority goes first; within a priority, first come, first served.
//! - What is less urgent is never passed by for ever: when `PASSED_BY_MAX` others have gone before it, one of it goes next.
//! - Who adds operations may do some of their work inside `post`, once: what others add meanwhile, or what follows, is
//!   work for other threads, or the one that came first would be kept for as long as any come.
//! - What waits here has not been touched by the endpoint, and can be taken back at once.
//!
//! Limit: how much may wait is bounded by the engine, which counts the operations of all lanes.

use std::collections::VecDeque;
use std::sync::{Arc, Once};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::memory::MemorySlice;
use crate::plan::route::{self, RailView, Rate};
use crate::plan::slice;
use crate::queue::rails::Rails;
use crate::sync::{AtomicUsize, Mutex, Ordering};
use crate::topology::Topology;
use crate::transport::{BatchId, Capabilities, Endpoint, Operation, Rail, RailLoad};
use crate::types::RailId;

/// Which submissions go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Repair, copies for others: nobody waits for it.
    Background,
    /// The usual; what is read ahead, and waited for soon.
    #[default]
    Normal,
    /// A reader waits for it.
    Urgent,
}

const PRIORITIES: usize = 3;
/// More urgent operations that go before one that waits: enough that a reader notices little of it, and that what nobody waits
/// for keeps a ninth of a connection that readers fill.
const PASSED_BY_MAX: usize = 8;

#[derive(Debug)]
struct RailState {
    rail: Rail,
    rate: Rate,
    waiting_bytes: u64,
    operations: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    /// By priority, the most urgent last.
    operations: [VecDeque<Operation>; PRIORITIES],
    /// For each of them, how many more urgent operations have started since one of it did, while some waited.
    passed_by: [usize; PRIORITIES],
    /// Whether one of the queues is with the endpoint at the moment.
    is_posting: bool,
    /// Given up while a queue was with the endpoint.
    cancelled: Vec<BatchId>,
}

/// The way to one peer by one transport.
#[derive(Debug)]
pub struct Lane {
    transport: &'static str,
    capabilities: Capabilities,
    endpoint: Arc<dyn Endpoint>,
    /// Operations that wait for room.
    waiting: Mutex<Waiting>,
    /// Calls of `pump` that have not been served.
    turns: AtomicUsize,
    /// What the plan knows of each rail.
    rails: Mutex<Vec<RailState>>,
    /// Which of them were in trouble, on this connection or an earlier one.
    health: Arc<Rails>,
    /// Whether there are several.
    has_choice: bool,
    /// How far the rails are from which memory; `None` where it makes no difference.
    places: Option<Arc<Topology>>,
}

/// One rail of a lane, for `status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RailStatus {
    /// Device name.
    pub name: String,
    /// Operations under way.
    pub operations: usize,
    /// Bytes of them.
    pub waiting_bytes: u64,
    /// Measured rate; 0 before the first operation that is long enough to tell.
    pub bytes_per_second: u64,
    /// How often it has ended the connection without a success between.
    pub failures: u32,
    /// Milliseconds for which it is left out because of that; 0 when it is used, or to be tried.
    pub out_ms: u64,
}

impl Lane {
    /// A lane over `endpoint`, whose transport has these `rails`, on this host.
    #[must_use]
    pub fn new(
        transport: &'static str,
        capabilities: Capabilities,
        rails: Vec<Rail>,
        host: &Arc<Topology>,
        endpoint: Arc<dyn Endpoint>,
    ) -> Self {
        let longest = capabilities.operation_bytes_max.min(endpoint.operation_bytes_max());
        let capabilities = Capabilities { operation_bytes_max: longest, ..capabilities };
        let is_spread = rails.iter().any(|rail| rail.numa != rails[0].numa);
        let places = is_spread.then(|| Arc::clone(host));
        let has_choice = rails.len() > 1;
        let state = |rail| RailState { rail, rate: Rate::default(), waiting_bytes: 0, operations: 0 };
        let rails = Mutex::new(rails.into_iter().map(state).collect());
        Self {
            transport,
            capabilities,
            endpoint,
            waiting: Mutex::default(),
            turns: AtomicUsize::new(0),
            rails,
            health: Arc::default(),
            has_choice,
            places,
        }
    }

    /// The same lane, which leaves out the rails that `health` names and tells it of those that work.
    #[must_use]
    pub fn with_health(self, health: &Arc<Rails>) -> Self {
        Self { health: Arc::clone(health), ..self }
    }

    /// Name of its transport.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.transport
    }

    /// What its transport can do with this peer.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Its connection.
    #[must_use]
    pub fn endpoint(&self) -> &Arc<dyn Endpoint> {
        &self.endpoint
    }

    /// How long slices of a request are to be that joins what waits here.
    #[must_use]
    pub fn wanted_slice_bytes(&self) -> u64 {
        let waiting = self.rails.lock().iter().map(|state| state.waiting_bytes).sum();
        slice::wanted_bytes(self.capabilities.slice_bytes.get(), waiting)
    }

    /// The rail for an operation on `memory`, which is then counted there until [`Self::ended`].
    pub fn take_rail(&self, memory: &MemorySlice) -> RailId {
        let length = memory.length() as u64;
        let distance = self.distances(memory);
        let loads = if self.has_choice { self.endpoint.load() } else { Vec::new() };
        let mut rails = self.rails.lock();
        let chosen = if let [only] = rails.as_slice() {
            only.rail.id
        } else {
            let credits = |state: &RailState| {
                let load = loads.iter().find(|load| load.rail == state.rail.id);
                // What is on its way to the endpoint takes of them, too.
                let coming = |load: &RailLoad| state.operations.saturating_sub(load.operations);
                load.map_or(usize::MAX, |load| load.credits.saturating_sub(coming(load)))
            };
            let view = |state: &RailState| RailView {
                id: state.rail.id,
                waiting_bytes: state.waiting_bytes,
                bytes_per_second: match state.rate.bytes_per_second() {
                    0 => state.rail.nominal_bytes_per_second,
                    measured => measured,
                },
                distance: distance(&state.rail),
                pci_links: state.rail.pci_links.unwrap_or_default(),
                credits: credits(state),
            };
            let out = self.health.out();
            let in_use = rails.iter().filter(|state| !out.contains(&state.rail.id));
            let mut views: Vec<_> = in_use.map(view).collect();
            if views.is_empty() {
                views = rails.iter().map(view).collect();
            }
            let chosen = route::choose(&mut views, length).unwrap_or_default();
            self.health.chosen(chosen);
            chosen
        };
        if let Some(state) = rails.iter_mut().find(|state| state.rail.id == chosen) {
            state.waiting_bytes += length;
            state.operations += 1;
        }
        chosen
    }

    /// How far each rail is from `memory`; 0 where that is not known, or the same for all.
    fn distances(&self, memory: &MemorySlice) -> impl Fn(&Rail) -> u32 {
        let node = self.places.as_ref().and_then(|_| match memory.node() {
            Ok(node) => Some(node),
            Err(error) => {
                // A page that is not there has no place. Any other answer holds for all memory.
                static TOLD: Once = Once::new();
                if error.raw_os_error() != Some(libc::ENOENT) {
                    TOLD.call_once(|| {
                        tracing::warn!(transport = self.transport, %error,
                            "the kernel does not say which NUMA node memory is on, so near NICs are not preferred; \
                             in a container, allow move_pages (CAP_SYS_NICE)");
                    });
                }
                None
            }
        });
        move |rail| {
            let known = self.places.as_ref().zip(rail.numa).zip(node);
            known.and_then(|((places, rail), node)| places.between(rail, node)).unwrap_or_default()
        }
    }

    /// An operation of `length` bytes that was queued at `began` has left `rail`. `moved`: its bytes arrived.
    pub fn ended(&self, rail: RailId, length: u64, began: Instant, moved: bool) {
        let mut rails = self.rails.lock();
        let Some(state) = rails.iter_mut().find(|state| state.rail.id == rail) else { return };
        state.waiting_bytes = state.waiting_bytes.saturating_sub(length);
        state.operations = state.operations.saturating_sub(1);
        if moved {
            self.health.succeeded(rail);
            state.rate.ended(length, began, Instant::now());
        }
    }

    /// Adds operations and starts what has room.
    pub fn push(&self, priority: Priority, operations: impl IntoIterator<Item = Operation>) {
        self.waiting.lock().operations[priority as usize].extend(operations);
        self.pump();
    }

    /// Starts what has room. Called when something was added, and when an operation ended.
    pub fn pump(&self) {
        if self.turns.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let mut served = 1;
        let mut is_first = true;
        loop {
            self.pump_once(is_first);
            is_first = false;
            let before = self.turns.fetch_sub(served, Ordering::AcqRel);
            if before == served {
                return;
            }
            served = before - served;
        }
    }

    fn pump_once(&self, is_first: bool) {
        let mut below = PRIORITIES;
        while let Some((priority, mut operations)) = self.take_next(&mut below) {
            let offered = operations.len();
            if is_first {
                self.endpoint.post(&mut operations);
            } else {
                self.endpoint.hand_over(&mut operations);
            }
            let is_full = !operations.is_empty();
            let started = offered - operations.len();
            let (batches, cancelled) = self.put_back(priority, started, operations);
            // Those of them that the endpoint has taken came after it was told.
            batches.into_iter().for_each(|batch| self.endpoint.cancel(batch));
            cancelled.into_iter().for_each(|operation| operation.complete(Err(Error::Cancelled)));
            if is_full {
                return;
            }
        }
    }

    /// What the endpoint is offered next, and its priority, which is less than `below`: one operation that was passed by too
    /// often, else all of the most urgent, which `below` is from then on.
    fn take_next(&self, below: &mut usize) -> Option<(usize, VecDeque<Operation>)> {
        let mut waiting = self.waiting.lock();
        let Waiting { operations, passed_by, is_posting, .. } = &mut *waiting;
        let is_late =
            |priority: &usize| passed_by[*priority] >= PASSED_BY_MAX && !operations[*priority].is_empty();
        let next = match (0..*below).find(is_late) {
            Some(late) => (late, operations[late].pop_front().into_iter().collect()),
            None => {
                *below = (0..*below).rev().find(|&priority| !operations[priority].is_empty())?;
                (*below, std::mem::take(&mut operations[*below]))
            }
        };
        *is_posting = true;
        Some(next)
    }

    /// Returns what the endpoint had no room for to the head of its queue, but for what was given up meanwhile: hands that
    /// out, with the batches that were. `started`: how many it had room for.
    fn put_back(
        &self,
        priority: usize,
        started: usize,
        mut left: VecDeque<Operation>,
    ) -> (Vec<BatchId>, Vec<Operation>) {
        let mut waiting = self.waiting.lock();
        waiting.is_posting = false;
        let cancelled = std::mem::take(&mut waiting.cancelled);
        let Waiting { operations, passed_by, .. } = &mut *waiting;
        let queue = &mut operations[priority];
        // Most often both are empty, and the queue keeps its memory.
        if left.len() >= queue.len() {
            left.append(queue);
            *queue = left;
        } else {
            left.into_iter().rev().for_each(|operation| queue.push_front(operation));
        }
        let taken = cancelled.iter().flat_map(|batch| take_batch(queue, *batch)).collect();
        if started > 0 {
            passed_by[priority] = 0;
        }
        for (count, queue) in passed_by.iter_mut().zip(operations.iter()).take(priority) {
            *count = if queue.is_empty() { 0 } else { *count + started };
        }
        (cancelled, taken)
    }

    /// Gives up all operations of `batch`. Those that wait are handed back; the endpoint ends the others.
    #[must_use]
    pub fn cancel(&self, batch: BatchId) -> Vec<Operation> {
        let taken = {
            let mut waiting = self.waiting.lock();
            if waiting.is_posting {
                waiting.cancelled.push(batch);
            }
            waiting.operations.iter_mut().flat_map(|operations| take_batch(operations, batch)).collect()
        };
        self.endpoint.cancel(batch);
        taken
    }

    /// What its rails are doing.
    #[must_use]
    pub fn rails(&self) -> Vec<RailStatus> {
        let status = |state: &RailState| {
            let (failures, out) = self.health.trouble(state.rail.id);
            RailStatus {
                name: state.rail.name.clone(),
                operations: state.operations,
                waiting_bytes: state.waiting_bytes,
                bytes_per_second: state.rate.bytes_per_second(),
                failures,
                out_ms: u64::try_from(out.as_millis()).unwrap_or(u64::MAX),
            }
        };
        self.rails.lock().iter().map(status).collect()
    }
}

/// Takes the operations of `batch` out of a queue.
fn take_batch(operations: &mut VecDeque<Operation>, batch: BatchId) -> Vec<Operation> {
    if !operations.iter().any(|operation| operation.ticket.batch() == batch) {
        return Vec::new();
    }
    let (taken, kept): (VecDeque<_>, VecDeque<_>) =
        std::mem::take(operations).into_iter().partition(|operation| operation.ticket.batch() == batch);
    *operations = kept;
    taken.into()
}

#[cfg(test)]
// By its path, since `tests/interleavings` names this file by one.
#[path = "lane/tests.rs"]
pub(crate) mod tests;
