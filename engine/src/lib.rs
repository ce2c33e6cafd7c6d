//! The transfer engine of tidefs, and the vocabulary that every other part shares.
//!
//! The engine knows no file and no coordinator: it has bytes in registered memory, and moves them between two
//! processes. Beside that it holds what every part needs: quantities with their units, clocks, and mapped memory.
//!
//! Imports go one way: `engine -> request -> queue -> plan -> transport -> link -> {memory, topology} -> {types, error,
//! metrics, time, rng, sync}`; nothing here imports from the daemon.

// A transfer on its way down, and the link on which two engines know each other.
pub mod engine;
pub mod link;
pub mod plan;
pub mod queue;
pub mod request;
pub mod transport;

// Memory that is moved, and the machine that it is in.
pub mod memory;
pub mod topology;

// What every part shares.
pub mod error;
pub mod metrics;
pub mod rng;
pub(crate) mod sync;
pub mod time;
pub mod types;

// The parsers, for fuzzing.
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
