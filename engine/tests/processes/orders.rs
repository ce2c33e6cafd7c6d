//! What a peer process is told and what it answers: a line of JSON each.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tidefs_engine::engine::EngineStatus;
use tidefs_engine::types::PeerId;

/// Starts the line of an answer; other lines are the test runner's.
pub(crate) const MARK: &str = "tidefs ";
/// Where a peer process finds its [`Setup`].
pub(crate) const ROLE: &str = "TIDEFS_TEST_PEER";

/// How a peer process starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) id: PeerId,
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) transports: String,
    /// Silence that ends a link.
    pub(crate) silence_ms: u64,
    pub(crate) faults: Option<Faults>,
}

/// Faults that a layer around its transports injects.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Faults {
    pub(crate) seed: u64,
    pub(crate) delay_ms_max: u64,
    pub(crate) loss: f64,
    pub(crate) failure: f64,
}

/// A peer that load goes to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) id: PeerId,
    /// Its descriptor, as bytes.
    pub(crate) descriptor: Vec<u8>,
}

/// Random batches, until told to stop.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) targets: Vec<Target>,
    pub(crate) seed: u64,
    /// Batches at once.
    pub(crate) depth: u64,
    pub(crate) requests_max: u64,
    pub(crate) batch_bytes_max: u64,
    pub(crate) deadline_ms: u64,
    pub(crate) ways: Ways,
    /// Probability that a batch is cancelled soon after its submission.
    pub(crate) cancelled: f64,
}

/// Which requests a load makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ways {
    Reads,
    Writes,
    Both,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    Connect {
        descriptor: Vec<u8>,
        within_ms: u64,
    },
    Load(Load),
    /// What the load has come to so far.
    Look,
    /// Ends the load, and says what it came to.
    Stop,
    Status,
    /// Starts that many engines more in this process. Each connects to the target, if there is one, and uses it.
    Crowd {
        first_member: u64,
        count: u64,
        target: Option<Target>,
    },
    /// Connects to each of these, and uses it.
    Greet {
        targets: Vec<Target>,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The first line: the peer serves, and this is its descriptor.
    Serving(Vec<u8>),
    Done,
    Failed(String),
    Outcome(Outcome),
    Status(Box<Status>),
    /// The engines that were started.
    Crowd(Vec<Target>),
}

/// What a load has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) submitted: u64,
    /// Ends that were told; as many as were submitted when the load has stopped.
    pub(crate) ended: u64,
    pub(crate) succeeded: u64,
    /// Batches whose contents were compared.
    pub(crate) verified: u64,
    pub(crate) bytes: u64,
    /// How long after its deadline a batch ended, at most.
    pub(crate) late_ms_max: u64,
    /// Bytes that are not what they should be: the first few, in words.
    pub(crate) wrong: Vec<String>,
    /// Errors in words without numbers, and how often.
    pub(crate) errors: BTreeMap<String, u64>,
}

/// What a peer process holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) engine: EngineStatus,
    pub(crate) resident_bytes: u64,
    pub(crate) descriptors: u64,
    /// What those are, by kind.
    pub(crate) kinds: BTreeMap<String, u64>,
    pub(crate) threads: u64,
    /// Processor time since its start.
    pub(crate) cpu_us: u64,
    /// How often a thread of it waited, since its start.
    pub(crate) wakes: u64,
}
