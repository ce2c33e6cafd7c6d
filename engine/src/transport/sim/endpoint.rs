//! The transport of one peer of a simulated network, and its connections.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Shared;
use super::world::Ended;
use crate::error::Error;
use crate::memory::Region;
use crate::transport::{
    BatchId, BoxFuture, Capabilities, Endpoint, EndpointState, Exchange, Operation, Rail, RailLoad, Transport,
};
use crate::types::{ByteCount, PeerId, RailId, RegionId};

pub(super) const NAME: &str = "sim";

/// What is asked and answered at a connect.
const HELLO: &[u8] = b"sim hello";

/// Operations of one endpoint at once.
const OPERATIONS_MAX: usize = 256;

/// What a peer must name `id` by.
pub(super) fn key_of(id: RegionId) -> [u8; 9] {
    let mut key = [b'k'; 9];
    key[1..].copy_from_slice(&id.0.to_le_bytes());
    key
}

/// One peer of a [`super::SimNetwork`].
#[derive(Debug)]
pub struct SimTransport {
    shared: Arc<Shared>,
    peer: PeerId,
    is_closed: AtomicBool,
}

impl SimTransport {
    pub(super) fn join(shared: &Arc<Shared>, peer: PeerId) -> Arc<Self> {
        shared.change(|world, _| world.join(peer));
        Arc::new(Self { shared: Arc::clone(shared), peer, is_closed: AtomicBool::new(false) })
    }
}

impl Transport for SimTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            operation_bytes_max: ByteCount::mib(4),
            slice_bytes: ByteCount::kib(64),
            operations_max: OPERATIONS_MAX,
            is_local: false,
            needs_target_cpu: false,
            needs_local_registration: false,
        }
    }

    fn rails(&self) -> Vec<Rail> {
        vec![Rail {
            id: RailId(0),
            name: NAME.to_owned(),
            numa: None,
            pci_links: None,
            nominal_bytes_per_second: 0,
        }]
    }

    fn register(&self, id: RegionId, region: &Arc<Region>) -> Result<Vec<u8>, Error> {
        let is_member = self.shared.world.lock().register(self.peer, id, region);
        if is_member { Ok(key_of(id).to_vec()) } else { Err(Error::Closed) }
    }

    fn unregister(&self, id: RegionId) -> BoxFuture<'_, ()> {
        self.shared.world.lock().unregister(self.peer, id);
        Box::pin(async {})
    }

    fn connect<'a>(
        &'a self,
        peer: PeerId,
        exchange: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>> {
        Box::pin(async move {
            if self.is_closed.load(Ordering::Acquire) {
                return Err(Error::Closed);
            }
            let answer = exchange.ask(HELLO.to_vec()).await?;
            if answer != HELLO {
                return Err(Error::protocol("an answer that is no greeting"));
            }
            let mut world = self.shared.world.lock();
            if !world.is_member(peer) {
                return Err(Error::PeerGone { peer, cause: "it is not on this network".into() });
            }
            let line = world.add_line(self.peer, peer);
            Ok(Arc::new(SimEndpoint { shared: Arc::clone(&self.shared), line }) as Arc<dyn Endpoint>)
        })
    }

    fn answer(&self, peer: PeerId, request: &[u8]) -> Result<Vec<u8>, Error> {
        if request != HELLO {
            return Err(Error::protocol("a request that is no greeting"));
        }
        self.shared.world.lock().grant(self.peer, peer);
        Ok(HELLO.to_vec())
    }

    fn forget(&self, peer: PeerId) {
        self.shared.change(|world, _| world.forget(self.peer, peer));
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if !self.is_closed.swap(true, Ordering::AcqRel) {
                let cause = Error::PeerGone { peer: self.peer, cause: "it closed its end".into() };
                self.shared.change(|world, _| world.leave(self.peer, &cause));
            }
        })
    }
}

/// A connection to one peer.
#[derive(Debug)]
struct SimEndpoint {
    shared: Arc<Shared>,
    line: u64,
}

impl Endpoint for SimEndpoint {
    fn post(&self, operations: &mut VecDeque<Operation>) {
        self.shared.change(|world, now| {
            let mut ended: Vec<Ended> = Vec::new();
            while world.load(self.line).0 < OPERATIONS_MAX {
                let Some(operation) = operations.pop_front() else { break };
                let deadline = operation.deadline.saturating_duration_since(self.shared.epoch);
                ended.extend(world.post(self.line, operation, deadline, now));
            }
            ended
        });
    }

    fn cancel(&self, batch: BatchId) {
        self.shared.change(|world, _| world.cancel(self.line, batch));
    }

    fn state(&self) -> EndpointState {
        self.shared.world.lock().state(self.line)
    }

    fn load(&self) -> Vec<RailLoad> {
        let (operations, bytes) = self.shared.world.lock().load(self.line);
        let credits = OPERATIONS_MAX.saturating_sub(operations);
        vec![RailLoad { rail: RailId(0), operations, bytes, credits }]
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.shared.change(|world, _| world.end_line(self.line, EndpointState::Closed));
        })
    }
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        self.shared.change(|world, _| world.remove_line(self.line));
    }
}
