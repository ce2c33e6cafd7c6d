//! The TCP transport over real links and sockets: contents, faults of the way, and peers that are killed.
//!
//! Each test starts the two ends in this process, or one of them in another, on ports of the kernel's choice. Time
//! limits are there to end a test that hangs; no test is decided by how fast something is.

// What the file below names in the engine.
use tidefs_engine::{error, memory, rng, transport, types};

#[path = "../../src/transport/conformance/batch.rs"]
#[expect(dead_code, reason = "the suite that every transport passes uses all of it")]
mod batch;
mod common;
mod faults;
mod kill;
mod silence;
mod transfers;
mod zero_copy;
