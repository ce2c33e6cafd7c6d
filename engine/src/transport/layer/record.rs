//! Remembers what was done, for tests and for people who look for a fault: a ring of the last operations.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::follow::{Follow, Followed};
use super::{Layer, Then, Wrap};
use crate::error::Error;
use crate::transport::{BatchId, Direction, Endpoint, Operation, Transport};
use crate::types::{PeerId, RailId, RegionId};

/// One operation that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Whom it was done with.
    pub peer: PeerId,
    /// Which submission.
    pub batch: BatchId,
    /// Number within the submission.
    pub index: u32,
    /// Which way.
    pub direction: Direction,
    /// The peer's region.
    pub region: RegionId,
    /// Start there in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: usize,
    /// Rail it went by.
    pub rail: RailId,
    /// Time from its posting to its end.
    pub took: Duration,
    /// How it ended.
    pub result: Result<(), Error>,
}

/// The last operations, of all peers, in the order in which they ended.
#[derive(Debug)]
pub struct Record {
    entries: Mutex<VecDeque<Entry>>,
    entries_max: usize,
}

impl Record {
    /// Keeps the last `entries_max`.
    #[must_use]
    pub fn new(entries_max: usize) -> Arc<Self> {
        Arc::new(Self { entries: Mutex::default(), entries_max })
    }

    /// What is remembered, the oldest first.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.entries.lock().iter().cloned().collect()
    }

    fn add(&self, entry: Entry) {
        let mut entries = self.entries.lock();
        while entries.len() >= self.entries_max.max(1) {
            entries.pop_front();
        }
        entries.push_back(entry);
    }
}

/// `inner`, with each operation put into `record` before its ticket ends.
#[must_use]
pub fn recorded(inner: Arc<dyn Transport>, record: &Arc<Record>) -> Arc<dyn Transport> {
    Arc::new(Layer { inner, wrap: Recorder(Arc::clone(record)) })
}

#[derive(Debug)]
struct Recorder(Arc<Record>);

impl Wrap for Recorder {
    fn wrap(&self, peer: PeerId, inner: Arc<dyn Endpoint>) -> Arc<dyn Endpoint> {
        let follow = Noting { peer, record: Arc::clone(&self.0) };
        Arc::new(Followed { inner, follow })
    }
}

/// Notes the operations of one connection.
#[derive(Debug)]
struct Noting {
    peer: PeerId,
    record: Arc<Record>,
}

impl Follow for Noting {
    fn follow(&self, operation: &Operation) -> Then {
        let (start, record) = (Instant::now(), Arc::clone(&self.record));
        let mut entry = Entry {
            peer: self.peer,
            batch: operation.ticket.batch(),
            index: operation.ticket.index(),
            direction: operation.direction,
            region: operation.remote.region,
            offset: operation.remote.offset,
            length: operation.local.length(),
            rail: operation.rail,
            took: Duration::ZERO,
            result: Ok(()),
        };
        Box::new(move |ticket, result| {
            entry.took = start.elapsed();
            entry.result = result.clone();
            record.add(entry);
            ticket.complete(result);
        })
    }
}
