//! Whose work an operation is, the caller's or the transport's: each layer passes that on to what it is around.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::Layer;
use super::*;
use crate::transport::operation::testing::Seen;
use crate::transport::{Progress, Ticket, TicketSink};
use crate::types::RailId;

/// Refuses what it is given, and lends work that there is none of.
#[derive(Debug, Default)]
struct Given {
    /// Whose work that was: whether it was handed over, and how many.
    taken: parking_lot::Mutex<Vec<(bool, usize)>>,
    /// For which batches a thread wanted to work that waits.
    asked: parking_lot::Mutex<Vec<BatchId>>,
}

impl Given {
    fn take(&self, is_handed_over: bool, operations: &mut VecDeque<Operation>) {
        self.taken.lock().push((is_handed_over, operations.len()));
        operations.drain(..).for_each(|operation| operation.complete(Err(Error::Cancelled)));
    }
}

impl Endpoint for Given {
    fn post(&self, operations: &mut VecDeque<Operation>) {
        self.take(false, operations);
    }

    fn hand_over(&self, operations: &mut VecDeque<Operation>) {
        self.take(true, operations);
    }

    fn cancel(&self, _: BatchId) {}

    fn state(&self) -> EndpointState {
        EndpointState::Ready
    }

    fn progress(&self, batch: BatchId) -> Option<Arc<dyn Progress>> {
        self.asked.lock().push(batch);
        Some(Arc::new(Idle))
    }

    fn load(&self) -> Vec<RailLoad> {
        Vec::new()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// Work that is done.
#[derive(Debug)]
struct Idle;

impl Progress for Idle {
    fn work(&self, _: &dyn Fn() -> bool, _: Instant) {}

    fn nudge(&self) {}
}

/// Has a transport lead to this connection alone.
#[derive(Debug)]
struct Leading(Arc<Given>);

impl Wrap for Leading {
    fn wrap(&self, _: PeerId, inner: Arc<dyn Endpoint>) -> Arc<dyn Endpoint> {
        inner
    }

    fn connect<'a>(
        &'a self,
        _: &'a dyn Transport,
        _: PeerId,
        _: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>> {
        Box::pin(async { Ok(Arc::clone(&self.0) as Arc<dyn Endpoint>) })
    }
}

/// Each layer around a transport whose only connection is `below`.
fn layers(below: &Arc<Given>) -> [Arc<dyn Transport>; 4] {
    let network = SimNetwork::in_real_time(13, Conditions::default()).unwrap();
    let bare: Arc<dyn Transport> = network.transport(peer(1));
    let inner = || {
        let (inner, wrap) = (Arc::clone(&bare), Leading(Arc::clone(below)));
        Arc::new(Layer { inner, wrap }) as Arc<dyn Transport>
    };
    let runtime = Handle::current();
    [
        throttled(inner(), u64::MAX, &runtime),
        faulty(inner(), &Faults::new(FaultOptions::default()), &runtime),
        recorded(inner(), &Record::new(1)),
        checksummed(inner(), Arc::new(Mute), &runtime),
    ]
}

/// A transport may work on the thread of who posts. That is to be once for all that is posted, and not at all for what is
/// handed over, whatever is around the transport.
#[tokio::test]
async fn whose_work_it_is_is_passed_on_by_each_layer() {
    let below = Arc::new(Given::default());
    let region = Arc::new(Region::anonymous(ByteCount(4096), PageKind::Base, Access::ReadWrite).unwrap());
    let sink = Arc::new(Seen::default());
    let reads = || -> VecDeque<Operation> {
        let read = |index| Operation {
            direction: Direction::Read,
            local: MemorySlice::new(&region, RegionId(1), 0, ByteCount(1000)).unwrap(),
            remote: RemoteSlice { region: RegionId(2), key: Arc::from([]), offset: 0 },
            rail: RailId(0),
            deadline: Instant::now() + Duration::from_secs(60),
            ticket: Ticket::new(Arc::clone(&sink) as Arc<dyn TicketSink>, BatchId::next(), index),
        };
        (0..100).map(read).collect()
    };
    for layer in layers(&below) {
        let endpoint = layer.connect(peer(2), &Mute).await.unwrap();
        endpoint.post(&mut reads());
        assert_eq!(std::mem::take(&mut *below.taken.lock()), [(false, 64), (true, 36)], "{layer:?}");
        endpoint.hand_over(&mut reads());
        assert_eq!(std::mem::take(&mut *below.taken.lock()), [(true, 64), (true, 36)], "{layer:?}");
    }
    assert_eq!(sink.0.lock().len(), 4 * 2 * 100);
}

/// Else a thread that blocks for a transfer would sleep through the work of its transport.
#[tokio::test]
async fn the_work_of_the_transport_is_lent_through_each_layer() {
    let below = Arc::new(Given::default());
    for layer in layers(&below) {
        let (endpoint, batch) = (layer.connect(peer(2), &Mute).await.unwrap(), BatchId::next());
        assert!(endpoint.progress(batch).is_some(), "{layer:?}");
        assert_eq!(std::mem::take(&mut *below.asked.lock()), [batch], "{layer:?}");
    }
}
