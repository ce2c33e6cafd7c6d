//! The transfer engine of tidefs, and the vocabulary that every other part shares.
//!
//! The engine knows no file and no coordinator: it has bytes in registered memory, and moves them. What
//! stands here so far is what a single host needs: quantities with their units, clocks, and mapped memory.
//!
//! Imports go one way, `memory -> {types, time}`; nothing here imports from the daemon.

pub mod memory;
pub mod time;
pub mod types;
