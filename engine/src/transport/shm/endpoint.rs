//! The connection to one peer, as the engine holds it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::line::Line;
use crate::transport::{BatchId, BoxFuture, Endpoint, EndpointState, Operation, RailLoad};
use crate::types::RailId;

/// A connection; it ends when the value is dropped.
#[derive(Debug)]
pub(super) struct ShmEndpoint {
    line: Arc<Line>,
}

impl ShmEndpoint {
    pub(super) fn new(line: Arc<Line>) -> Self {
        Self { line }
    }
}

impl Endpoint for ShmEndpoint {
    fn post(&self, operations: &mut VecDeque<Operation>) {
        self.line.post(operations);
    }

    fn cancel(&self, batch: BatchId) {
        self.line.cancel(batch);
    }

    fn state(&self) -> EndpointState {
        self.line.state()
    }

    fn load(&self) -> Vec<RailLoad> {
        let (operations, bytes) = self.line.load();
        vec![RailLoad { rail: RailId(0), operations, bytes }]
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.line.end(EndpointState::Closed);
            self.line.drained().await;
        })
    }
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        self.line.end(EndpointState::Closed);
    }
}
