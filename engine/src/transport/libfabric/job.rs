//! An operation on its way through a NIC.

use std::time::{Duration, Instant};

use libfabric_sys as fi;

use super::NAME;
use super::endpoint::Counted;
use super::nic::ffi::Failure;
use crate::error::Error;
use crate::transport::Operation;

/// How a NIC is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// Operations in flight.
    pub(super) slots: usize,
    /// Flags of a write: `FI_DELIVERY_COMPLETE` where the provider has it.
    pub(super) write_flags: u64,
    /// How long an operation that was given up may take to end by itself.
    pub(super) settle: Duration,
    /// Shortest time without a word of a peer after which the way to it counts as broken.
    pub(super) silence: Duration,
    /// Rate that the NIC claims, in bytes per second; 0 where unknown.
    pub(super) bytes_per_second: u64,
}

/// An operation in the provider's terms.
pub(super) struct Job {
    /// The peer's place in the address vector.
    pub(super) peer: u64,
    pub(super) address: u64,
    pub(super) key: u64,
    /// Its connection, where it counts. Goes before the ticket of the operation, also where a job is dropped: that may post the
    /// next.
    pub(super) counted: Counted,
    pub(super) operation: Operation,
}

impl Job {
    /// Ends it.
    pub(super) fn complete(self, result: Result<(), Error>) {
        let Self { counted, operation, .. } = self;
        drop(counted);
        operation.complete(result);
    }

    /// Its connection takes nothing more, because of the rail that it goes by.
    pub(super) fn fail_connection(&self, error: &Error) {
        self.counted.connection.fail_on(self.counted.rail, error);
    }
}

/// A job that the provider has.
pub(super) struct Flight {
    pub(super) job: Job,
    /// When it was started.
    pub(super) began: Instant,
    /// How long its peer may be silent.
    pub(super) patience: Duration,
    /// Whether the last byte of a write is being read back.
    pub(super) is_confirming: bool,
    /// Why it was given up, and when it must have ended.
    pub(super) given_up: Option<(Error, Instant)>,
}

/// What a failed call means for the operation.
pub(super) fn error_of(failure: &Failure, job: &Job) -> Error {
    match failure.code {
        fi::FI_EKEYREJECTED | fi::FI_ENOKEY | fi::FI_EACCES => {
            Error::NoSuchRegion { region: job.operation.remote.region }
        }
        _ => Error::transport(NAME, format!("{failure}, talking to {}", job.counted.connection.peer)),
    }
}
