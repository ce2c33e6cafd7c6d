//! The transfer engine of tidefs, and the vocabulary that every other part shares.
//!
//! The engine knows no file and no coordinator: it has bytes in registered memory, and moves them between two
//! processes. Beside that it holds what every part needs: quantities with their units, clocks, and mapped memory.
//!
//! Imports go one way: `engine -> {request, batch} -> queue -> plan -> transport -> {memory, topology} -> {types, error,
//! config, time, rng}`; nothing here imports from the daemon.

pub mod error;
#[expect(dead_code, unused_imports, reason = "streams are for the transport that follows")]
pub mod link;
pub mod memory;
pub mod plan;
pub mod queue;
pub mod time;
pub mod transport;
pub mod types;
