//! A connection whose operations are followed to their end, and which is else the one below.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::{Poster, Then, post_relayed};
use crate::transport::{BatchId, BoxFuture, Endpoint, EndpointState, Operation, Progress, RailLoad};
use crate::types::{ByteCount, RailId};

/// What a decorator does that holds no operation back.
pub(super) trait Follow: Send + Sync + fmt::Debug {
    /// What is to be done when `operation` has ended below.
    fn follow(&self, operation: &Operation) -> Then;

    /// A batch was cancelled below.
    fn cancelled(&self, _batch: BatchId) {}

    /// Closes the connection below. Resolves when this layer touches no memory either.
    fn close<'a>(&'a self, inner: &'a dyn Endpoint) -> BoxFuture<'a, ()> {
        inner.close()
    }
}

/// The connection `inner`, whose operations `follow` follows.
#[derive(Debug)]
pub(super) struct Followed<F> {
    pub(super) inner: Arc<dyn Endpoint>,
    pub(super) follow: F,
}

impl<F: Follow> Followed<F> {
    fn relay(&self, operations: &mut VecDeque<Operation>, poster: Poster) {
        post_relayed(&*self.inner, operations, poster, |operation| self.follow.follow(operation));
    }
}

impl<F: Follow> Endpoint for Followed<F> {
    fn post(&self, operations: &mut VecDeque<Operation>) {
        self.relay(operations, Poster::Works);
    }

    fn hand_over(&self, operations: &mut VecDeque<Operation>) {
        self.relay(operations, Poster::HandsOver);
    }

    fn cancel(&self, batch: BatchId) {
        self.inner.cancel(batch);
        self.follow.cancelled(batch);
    }

    fn state(&self) -> EndpointState {
        self.inner.state()
    }

    fn failed_rail(&self) -> Option<RailId> {
        self.inner.failed_rail()
    }

    fn progress(&self, batch: BatchId) -> Option<Arc<dyn Progress>> {
        self.inner.progress(batch)
    }

    fn operation_bytes_max(&self) -> ByteCount {
        self.inner.operation_bytes_max()
    }

    fn load(&self) -> Vec<RailLoad> {
        self.inner.load()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.follow.close(&*self.inner)
    }
}
