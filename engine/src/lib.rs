//! The transfer engine of tidefs, and the vocabulary that every other part shares.
//!
//! The engine knows no file and no coordinator: it has bytes in registered memory, and moves them between two
//! processes. Beside that it holds what every part needs: quantities with their units, clocks, and mapped memory.
//!
//! Imports go one way: `engine -> {request, batch} -> queue -> plan -> transport -> {memory, topology} -> {types, error,
//! config, time, rng}`; nothing here imports from the daemon.

pub mod engine;
pub mod error;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod link;
pub mod memory;
pub mod metrics;
pub mod plan;
pub mod queue;
pub mod request;
pub mod rng;
pub(crate) mod sync;
pub mod time;
pub mod topology;
pub mod transport;
pub mod types;
