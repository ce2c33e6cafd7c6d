//! The way to one peer, with several threads that push, cancel and complete.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use shuttle::thread;
use tidefs_engine::error::Error;
use tidefs_engine::memory::{Access, MemorySlice, PageKind, Region};
use tidefs_engine::transport::{
    BatchId, BoxFuture, Capabilities, Direction, Endpoint, EndpointState, Operation, Rail, RailLoad,
    RemoteSlice, Ticket, TicketSink,
};
use tidefs_engine::types::{ByteCount, RailId, RegionId};

use crate::lane::{Lane, Priority};
use crate::sync::Mutex;

/// Has room for one operation, and keeps it until a thread ends it.
#[derive(Debug, Default)]
struct Narrow {
    held: Mutex<Option<Operation>>,
    /// Ends what it is given at once, inside `post`.
    is_immediate: bool,
}

impl Narrow {
    /// Ends the operation that it holds, if there is one.
    fn end_one(&self) -> bool {
        let taken = self.held.lock().take();
        taken.map(|operation| operation.complete(Ok(()))).is_some()
    }
}

impl Endpoint for Narrow {
    fn post(&self, operations: &mut VecDeque<Operation>) {
        loop {
            let mut held = self.held.lock();
            if held.is_some() {
                return;
            }
            let Some(operation) = operations.pop_front() else { return };
            if self.is_immediate {
                drop(held);
                operation.complete(Ok(()));
            } else {
                *held = Some(operation);
            }
        }
    }

    fn cancel(&self, batch: BatchId) {
        let taken = {
            let mut held = self.held.lock();
            let is_of_batch = held.as_ref().is_some_and(|operation| operation.ticket.batch() == batch);
            if is_of_batch { held.take() } else { None }
        };
        if let Some(operation) = taken {
            operation.complete(Err(Error::Cancelled));
        }
    }

    fn state(&self) -> EndpointState {
        EndpointState::Ready
    }

    fn load(&self) -> Vec<RailLoad> {
        Vec::new()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// Counts the ends of each operation, and makes use of the room that each leaves, as the engine does.
#[derive(Debug, Default)]
struct Ends {
    counts: Mutex<Vec<usize>>,
    lane: Mutex<Option<Arc<Lane>>>,
}

impl TicketSink for Ends {
    fn completed(&self, index: u32, _: Result<(), Error>) {
        self.counts.lock()[usize::try_from(index).unwrap()] += 1;
        let lane = self.lane.lock().clone();
        if let Some(lane) = lane {
            lane.pump();
        }
    }
}

static MEMORY: LazyLock<MemorySlice> = LazyLock::new(|| {
    let region = Arc::new(Region::anonymous(ByteCount(4096), PageKind::Base, Access::Read).unwrap());
    MemorySlice::new(&region, RegionId(1), 0, ByteCount(1)).unwrap()
});

struct Stand {
    endpoint: Arc<Narrow>,
    lane: Arc<Lane>,
    ends: Arc<Ends>,
}

impl Stand {
    fn new(operations: usize, is_immediate: bool) -> Self {
        let endpoint = Arc::new(Narrow { held: Mutex::default(), is_immediate });
        let capabilities = Capabilities {
            operation_bytes_max: ByteCount(4096),
            slice_bytes: ByteCount(4096),
            operations_max: 1,
            is_local: true,
            needs_target_cpu: false,
            needs_local_registration: false,
        };
        let rail = Rail {
            id: RailId(0),
            name: "test".into(),
            numa: None,
            pci_links: None,
            nominal_bytes_per_second: 0,
        };
        let connection = Arc::clone(&endpoint) as Arc<dyn Endpoint>;
        let lane = Arc::new(Lane::new("test", capabilities, vec![rail], &Arc::default(), connection));
        let ends =
            Ends { counts: Mutex::new(vec![0; operations]), lane: Mutex::new(Some(Arc::clone(&lane))) };
        Self { endpoint, lane, ends: Arc::new(ends) }
    }

    fn operation(&self, batch: BatchId, index: u32) -> Operation {
        Operation {
            direction: Direction::Read,
            local: MEMORY.clone(),
            remote: RemoteSlice { region: RegionId(2), key: Arc::from([]), offset: 0 },
            rail: RailId(0),
            deadline: Instant::now() + Duration::from_secs(60),
            ticket: Ticket::new(Arc::clone(&self.ends) as Arc<dyn TicketSink>, batch, index),
        }
    }

    /// A thread that pushes these operations, one after the other.
    fn push(
        &self,
        batch: BatchId,
        indices: std::ops::Range<u32>,
        priority: Priority,
    ) -> thread::JoinHandle<()> {
        let operations: Vec<Operation> = indices.map(|index| self.operation(batch, index)).collect();
        let lane = Arc::clone(&self.lane);
        thread::spawn(move || operations.into_iter().for_each(|operation| lane.push(priority, [operation])))
    }

    /// A thread that ends some of what the endpoint holds.
    fn end_some(&self) -> thread::JoinHandle<()> {
        let endpoint = Arc::clone(&self.endpoint);
        thread::spawn(move || {
            for _ in 0..4 {
                endpoint.end_one();
                thread::yield_now();
            }
        })
    }

    /// When all threads have ended, the room that each end leaves is enough to get everything done: nothing is left waiting
    /// for somebody who does not come.
    fn expect_all_ended_once(self) {
        while self.endpoint.end_one() {}
        let counts = self.ends.counts.lock().clone();
        assert!(counts.iter().all(|&count| count == 1), "ends of each: {counts:?}");
        // The lane holds its endpoint, the sink the lane.
        self.ends.lane.lock().take();
    }
}

pub(crate) fn no_operation_is_left_when_room_returns() {
    let stand = Stand::new(5, false);
    let batch = BatchId::next();
    let threads = [
        stand.push(batch, 0..2, Priority::Normal),
        stand.push(batch, 2..4, Priority::Urgent),
        stand.push(batch, 4..5, Priority::Background),
        stand.end_some(),
    ];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    stand.expect_all_ended_once();
}

pub(crate) fn an_endpoint_ends_operations_inside_post() {
    let stand = Stand::new(4, true);
    let batch = BatchId::next();
    let threads = [stand.push(batch, 0..2, Priority::Normal), stand.push(batch, 2..4, Priority::Urgent)];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    stand.expect_all_ended_once();
}

pub(crate) fn a_cancelled_batch_ends_once_wherever_it_is() {
    let stand = Stand::new(5, false);
    let (given_up, kept) = (BatchId::next(), BatchId::next());
    let cancel = {
        let lane = Arc::clone(&stand.lane);
        thread::spawn(move || {
            for operation in lane.cancel(given_up) {
                operation.complete(Err(Error::Cancelled));
            }
        })
    };
    let threads = [
        stand.push(given_up, 0..3, Priority::Normal),
        stand.push(kept, 3..5, Priority::Normal),
        cancel,
        stand.end_some(),
    ];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    stand.expect_all_ended_once();
}

pub(crate) fn nothing_of_a_batch_is_left_after_its_cancelling() {
    let stand = Stand::new(3, false);
    let batch = BatchId::next();
    stand.lane.push(Priority::Normal, (0..3).map(|index| stand.operation(batch, index)));
    // One is with the endpoint, two wait. Its end hands over the next, in the middle of the cancelling.
    let end = {
        let endpoint = Arc::clone(&stand.endpoint);
        thread::spawn(move || endpoint.end_one())
    };
    for operation in stand.lane.cancel(batch) {
        operation.complete(Err(Error::Cancelled));
    }
    end.join().unwrap();
    assert!(!stand.endpoint.end_one(), "the endpoint has an operation that was given up before it came");
    stand.expect_all_ended_once();
}
