//! Several daemons and a real etcd: one filesystem. Written on one host, read on another; any process may die.
//!
//! The daemons run side by side on one machine, each with its own mount, and reach each other over loopback.
//!
//! `TIDEFS_TEST_LONG=1` has a host stand still for 30 seconds, and etcd be away for 10 minutes: by `cargo test`, as nextest ends
//! what takes so long. `TIDEFS_TEST_SECONDS` sets the length of histories.

#[path = "../common/mod.rs"]
mod common;

mod bad_days;
mod batches;
mod cases;
mod churn;
mod coordination;
mod copies;
mod directories;
mod draining;
mod failed_starts;
mod fixture;
mod history;
mod life;
mod names;
mod placing;
mod reading;
mod secrets;
mod streaming;
mod way;
