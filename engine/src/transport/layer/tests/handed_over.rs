//! Whose work an operation is, the caller's or the transport's: each layer passes that on to what it is around.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::transport::operation::testing::Seen;
use crate::transport::{Capabilities, Rail, Ticket, TicketSink};
use crate::types::RailId;

/// Refuses what it is given, and remembers whose work that was: whether it was handed over, and how many.
#[derive(Debug, Default)]
struct Given(parking_lot::Mutex<Vec<(bool, usize)>>);

impl Given {
    fn take(&self, is_handed_over: bool, operations: &mut VecDeque<Operation>) {
        self.0.lock().push((is_handed_over, operations.len()));
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

    fn load(&self) -> Vec<RailLoad> {
        Vec::new()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// A transport whose only connection is this one.
#[derive(Debug)]
struct Leading(Arc<Given>, Arc<dyn Transport>);

impl Transport for Leading {
    fn name(&self) -> &'static str {
        self.1.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.1.capabilities()
    }

    fn rails(&self) -> Vec<Rail> {
        self.1.rails()
    }

    fn register(&self, id: RegionId, region: &Arc<Region>) -> Result<Vec<u8>, Error> {
        self.1.register(id, region)
    }

    fn unregister(&self, id: RegionId) -> BoxFuture<'_, ()> {
        self.1.unregister(id)
    }

    fn connect<'a>(
        &'a self,
        _: PeerId,
        _: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>> {
        Box::pin(async { Ok(Arc::clone(&self.0) as Arc<dyn Endpoint>) })
    }

    fn answer(&self, peer: PeerId, request: &[u8]) -> Result<Vec<u8>, Error> {
        self.1.answer(peer, request)
    }

    fn forget(&self, peer: PeerId) {
        self.1.forget(peer);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.1.close()
    }
}

/// A transport may work on the thread of who posts. That is to be once for all that is posted, and not at all for what is
/// handed over, whatever is around the transport.
#[tokio::test]
async fn whose_work_it_is_is_passed_on_by_each_layer() {
    let network = SimNetwork::in_real_time(13, Conditions::default()).unwrap();
    let below = Arc::new(Given::default());
    let bare: Arc<dyn Transport> = network.transport(peer(1));
    let inner = || Arc::new(Leading(Arc::clone(&below), Arc::clone(&bare))) as Arc<dyn Transport>;
    let (record, runtime) = (Record::new(1), Handle::current());
    let layers = [
        throttled(inner(), u64::MAX, &runtime),
        faulty(inner(), &Faults::new(FaultOptions::default()), &runtime),
        recorded(inner(), &record),
        checksummed(inner(), Arc::new(Mute), &runtime),
    ];
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
    for layer in layers {
        let endpoint = layer.connect(peer(2), &Mute).await.unwrap();
        endpoint.post(&mut reads());
        assert_eq!(std::mem::take(&mut *below.0.lock()), [(false, 64), (true, 36)], "{layer:?}");
        endpoint.hand_over(&mut reads());
        assert_eq!(std::mem::take(&mut *below.0.lock()), [(true, 64), (true, 36)], "{layer:?}");
    }
    assert_eq!(sink.0.lock().len(), 4 * 2 * 100);
}
