//! A lane with endpoints that have little room, or end at once.

use super::*;
use std::time::Duration;

use crate::memory::{Access, PageKind, Region};
use crate::topology::Node;
use crate::transport::{BoxFuture, Direction, EndpointState, RemoteSlice, Ticket, TicketSink};
use crate::types::{ByteCount, NumaNode, RegionId};

/// Has room for `room` operations and keeps them until told to end them.
#[derive(Debug)]
struct Narrow {
    room: usize,
    held: Mutex<VecDeque<Operation>>,
    posted: Mutex<Vec<u32>>,
    /// Ends what it is given at once, inside `post`.
    is_immediate: bool,
    /// What is said of the rails.
    loads: Mutex<Vec<RailLoad>>,
}

impl Endpoint for Narrow {
    fn post(&self, operations: &mut VecDeque<Operation>) {
        while self.held.lock().len() < self.room
            && let Some(operation) = operations.pop_front()
        {
            self.posted.lock().push(operation.ticket.index());
            if self.is_immediate {
                operation.complete(Ok(()));
            } else {
                self.held.lock().push_back(operation);
            }
        }
    }

    fn cancel(&self, batch: BatchId) {
        let taken = take_batch(&mut self.held.lock(), batch);
        taken.into_iter().for_each(|operation| operation.complete(Err(Error::Cancelled)));
    }

    fn state(&self) -> EndpointState {
        EndpointState::Ready
    }

    fn load(&self) -> Vec<RailLoad> {
        self.loads.lock().clone()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

#[derive(Debug, Default)]
struct Ends {
    results: Mutex<Vec<(u32, Result<(), Error>)>>,
    lane: Mutex<Option<Arc<Lane>>>,
}

impl TicketSink for Ends {
    fn completed(&self, index: u32, result: Result<(), Error>) {
        self.results.lock().push((index, result));
        let lane = self.lane.lock().clone();
        if let Some(lane) = lane {
            lane.pump();
        }
    }
}

struct Stand {
    endpoint: Arc<Narrow>,
    lane: Arc<Lane>,
    ends: Arc<Ends>,
    memory: MemorySlice,
}

/// A lane of one rail that is ready, for who does not use it.
pub(crate) fn idle() -> Arc<Lane> {
    stand(1, false).lane
}

fn stand(room: usize, is_immediate: bool) -> Stand {
    let rail =
        Rail { id: RailId(0), name: "test".into(), numa: None, pci_links: None, nominal_bytes_per_second: 0 };
    stand_on(vec![rail], &Arc::default(), room, is_immediate)
}

fn stand_on(rails: Vec<Rail>, host: &Arc<Topology>, room: usize, is_immediate: bool) -> Stand {
    let endpoint = Arc::new(Narrow {
        room,
        held: Mutex::default(),
        posted: Mutex::default(),
        is_immediate,
        loads: Mutex::default(),
    });
    let capabilities = Capabilities {
        operation_bytes_max: ByteCount(4096),
        slice_bytes: ByteCount(4096),
        operations_max: room,
        is_local: true,
        needs_target_cpu: false,
        needs_local_registration: false,
    };
    let connection = Arc::clone(&endpoint) as Arc<dyn Endpoint>;
    let lane = Arc::new(Lane::new("test", capabilities, rails, host, connection));
    let ends = Arc::new(Ends::default());
    *ends.lane.lock() = Some(Arc::clone(&lane));
    let region = Arc::new(Region::anonymous(ByteCount(4096), PageKind::Base, Access::Read).unwrap());
    let memory = MemorySlice::new(&region, RegionId(1), 0, ByteCount(1000)).unwrap();
    Stand { endpoint, lane, ends, memory }
}

impl Stand {
    fn operation(&self, batch: BatchId, index: u32) -> Operation {
        Operation {
            direction: Direction::Read,
            local: self.memory.clone(),
            remote: RemoteSlice { region: RegionId(2), key: Arc::from([]), offset: 0 },
            rail: RailId(0),
            deadline: Instant::now() + Duration::from_secs(60),
            ticket: Ticket::new(Arc::clone(&self.ends) as Arc<dyn TicketSink>, batch, index),
        }
    }

    fn end_one(&self) {
        let operation = self.endpoint.held.lock().pop_front().unwrap();
        operation.complete(Ok(()));
    }
}

#[test]
fn what_has_no_room_waits_and_the_urgent_goes_first() {
    let stand = stand(1, false);
    let batch = BatchId::next();
    stand.lane.push(Priority::Normal, (0..3).map(|index| stand.operation(batch, index)));
    stand.lane.push(Priority::Background, [stand.operation(batch, 10)]);
    stand.lane.push(Priority::Urgent, [stand.operation(batch, 20)]);
    (0..5).for_each(|_| stand.end_one());
    assert_eq!(*stand.endpoint.posted.lock(), [0, 20, 1, 2, 10]);
}

/// Room for one, and more of what is urgent than ever ends.
#[test]
fn what_is_less_urgent_has_every_ninth_turn_while_others_pass_it_by() {
    let stand = stand(1, false);
    let batch = BatchId::next();
    stand.lane.push(Priority::Urgent, (0..40).map(|index| stand.operation(batch, index)));
    stand.lane.push(Priority::Normal, (100..102).map(|index| stand.operation(batch, index)));
    stand.lane.push(Priority::Background, (200..202).map(|index| stand.operation(batch, index)));
    (0..44).for_each(|_| stand.end_one());
    let posted = stand.endpoint.posted.lock();
    let places = [200, 100, 201, 101].map(|index| posted.iter().position(|&found| found == index).unwrap());
    // The first of the urgent was started before any of the others came.
    assert_eq!(places, [9, 10, 18, 20], "{posted:?}");
}

/// What was given up while it was passed by leaves nothing behind for what comes after it.
#[test]
fn what_comes_anew_is_passed_by_from_then_on() {
    let stand = stand(1, false);
    let (first, second) = (BatchId::next(), BatchId::next());
    stand.lane.push(Priority::Urgent, (0..30).map(|index| stand.operation(first, index)));
    stand.lane.push(Priority::Background, [stand.operation(second, 100)]);
    (0..6).for_each(|_| stand.end_one());
    drop(stand.lane.cancel(second));
    stand.end_one();
    stand.lane.push(Priority::Background, [stand.operation(first, 200)]);
    (0..9).for_each(|_| stand.end_one());
    assert_eq!(stand.endpoint.posted.lock().iter().position(|&index| index == 200), Some(16));
}

#[test]
fn an_endpoint_may_end_operations_inside_post() {
    let stand = stand(1, true);
    let batch = BatchId::next();
    stand.lane.push(Priority::Normal, (0..10_000).map(|index| stand.operation(batch, index)));
    assert_eq!(stand.ends.results.lock().len(), 10_000);
}

/// Takes one operation at a time, and ends those that are posted at once, as who copies does.
#[derive(Debug, Default)]
struct Worker {
    worked: Mutex<Vec<u32>>,
    handed: Mutex<VecDeque<Operation>>,
}

impl Endpoint for Worker {
    fn post(&self, operations: &mut VecDeque<Operation>) {
        if let Some(operation) = operations.pop_front() {
            self.worked.lock().push(operation.ticket.index());
            operation.complete(Ok(()));
        }
    }

    fn hand_over(&self, operations: &mut VecDeque<Operation>) {
        self.handed.lock().append(operations);
    }

    fn cancel(&self, _: BatchId) {}

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

#[test]
fn who_pushes_works_once_and_hands_the_rest_over() {
    let stand = stand(1, false);
    let worker = Arc::new(Worker::default());
    let connection = Arc::clone(&worker) as Arc<dyn Endpoint>;
    let capabilities = stand.lane.capabilities().clone();
    let lane = Arc::new(Lane::new("test", capabilities, Vec::new(), &Arc::default(), connection));
    *stand.ends.lane.lock() = Some(Arc::clone(&lane));
    let batch = BatchId::next();
    lane.push(Priority::Normal, (0..100).map(|index| stand.operation(batch, index)));
    assert_eq!(*worker.worked.lock(), [0]);
    assert_eq!(worker.handed.lock().len(), 99);
}

#[test]
fn a_cancelled_batch_leaves_the_queue_and_the_endpoint() {
    let stand = stand(1, false);
    let (first, second) = (BatchId::next(), BatchId::next());
    stand.lane.push(Priority::Normal, (0..3).map(|index| stand.operation(first, index)));
    stand.lane.push(Priority::Normal, [stand.operation(second, 9)]);
    let taken = stand.lane.cancel(first);
    assert_eq!(taken.iter().map(|operation| operation.ticket.index()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(*stand.ends.results.lock(), [(0, Err(Error::Cancelled))]);
    stand.end_one();
    assert_eq!(*stand.endpoint.posted.lock(), [0, 9]);
    drop(taken);
    assert_eq!(stand.ends.results.lock().len(), 4, "each ended once");
}

#[test]
fn a_rail_counts_what_is_under_way_and_its_rate() {
    const LENGTH: u64 = 1 << 20;
    let stand = stand(1, false);
    let region = Arc::new(Region::anonymous(ByteCount(LENGTH), PageKind::Base, Access::Read).unwrap());
    let memory = MemorySlice::new(&region, RegionId(1), 0, ByteCount(LENGTH)).unwrap();
    let began = Instant::now();
    assert_eq!(stand.lane.take_rail(&memory), RailId(0));
    assert_eq!(stand.lane.rails()[0].waiting_bytes, LENGTH);
    std::thread::sleep(Duration::from_millis(1));
    stand.lane.ended(RailId(0), LENGTH, began, true);
    let rails = stand.lane.rails();
    assert_eq!((rails[0].waiting_bytes, rails[0].operations), (0, 0));
    assert!((1..=1000 * LENGTH).contains(&rails[0].bytes_per_second), "{rails:?}");
}

/// What is short takes the time of the way there and back, which says nothing of how much goes by it.
#[test]
fn a_rail_that_has_carried_something_short_is_not_slower_than_the_other() {
    let rail = |id| Rail {
        id: RailId(id),
        name: "test".into(),
        numa: None,
        pci_links: None,
        nominal_bytes_per_second: 1 << 30,
    };
    let stand = stand_on(vec![rail(0), rail(1)], &Arc::default(), 1, false);
    let began = Instant::now();
    let first = stand.lane.take_rail(&stand.memory);
    std::thread::sleep(Duration::from_millis(1));
    stand.lane.ended(first, 1000, began, true);
    let taken: Vec<u16> = (0..4).map(|_| stand.lane.take_rail(&stand.memory).0).collect();
    assert_eq!(taken, [0, 1, 0, 1]);
}

#[test]
fn a_rail_that_takes_no_more_is_passed_over() {
    let rail = |id| Rail {
        id: RailId(id),
        name: format!("test{id}"),
        numa: None,
        pci_links: None,
        nominal_bytes_per_second: 1 << (30 - 4 * id),
    };
    let stand = stand_on(vec![rail(0), rail(1)], &Arc::default(), 1, false);
    let load = |id, credits| RailLoad { rail: RailId(id), operations: 0, bytes: 0, credits };
    *stand.endpoint.loads.lock() = vec![load(0, 2), load(1, 3)];
    let taken: Vec<u16> = (0..6).map(|_| stand.lane.take_rail(&stand.memory).0).collect();
    // The fast one for as long as it takes what is coming, then the other, then by their rates again.
    assert_eq!(taken, [0, 0, 1, 1, 1, 0]);
}

#[test]
fn memory_goes_by_the_nic_beside_it_until_that_is_busy() {
    let touched = stand(1, false).memory;
    assert!(touched.region().write_at(0, &[1]));
    let home = match touched.node() {
        Ok(home) => home,
        Err(error) => return println!("skipped: the kernel does not say where memory is: {error}"),
    };
    let far = NumaNode(home.0 + 1);
    let distances = vec![(home, 20), (far, 10)];
    let node = Node { id: far, cpus: Vec::new(), memory: None, distances };
    let host = Arc::new(Topology { nodes: vec![node], nics: Vec::new() });
    let rail = |id, numa| Rail {
        id: RailId(id),
        name: "test".into(),
        numa,
        pci_links: None,
        nominal_bytes_per_second: 0,
    };
    let rails = vec![rail(0, Some(far)), rail(1, Some(home))];
    let stand = stand_on(rails, &host, 1, false);
    let untouched = stand.lane.take_rail(&stand.memory);
    assert_eq!(untouched, RailId(0), "a page that is not there is near to none");
    stand.lane.ended(untouched, 1000, Instant::now(), false);
    assert!(stand.memory.region().write_at(0, &[1]));
    let taken: Vec<u16> = (0..6).map(|_| stand.lane.take_rail(&stand.memory).0).collect();
    assert_eq!(taken, [1, 0, 1, 1, 0, 1]);
}

#[test]
fn of_nics_of_one_node_the_one_with_fewer_pcie_links_goes_first() {
    let rail = |id, pci_links| Rail {
        id: RailId(id),
        name: "test".into(),
        numa: Some(NumaNode(0)),
        pci_links,
        nominal_bytes_per_second: 1 << 30,
    };
    let stand = stand_on(vec![rail(0, Some(4)), rail(1, Some(2))], &Arc::default(), 1, false);
    let taken: Vec<u16> = (0..4).map(|_| stand.lane.take_rail(&stand.memory).0).collect();
    assert_eq!(taken, [1, 0, 1, 0]);
}
