//! Several daemons and a real etcd: one filesystem. Written on one host, read on another; any process may die.
//!
//! The daemons run side by side on one machine, each with its own mount, and reach each other over loopback.
//!
//! `TIDEFS_TEST_LONG=1` has a host stand still for 30 seconds, and etcd be away for 10 minutes: by `cargo test`, as nextest ends
//! what takes so long. `TIDEFS_TEST_SECONDS` sets the length of histories.

#[path = "../common/mod.rs"]
mod common;

// What programs on several hosts see: names, bytes, directories.
mod batches;
mod cases;
mod directories;
mod names;
mod reading;
mod streaming;

// Copies: those that were read, and those that are to be there.
mod copies;
mod placing;

// Hosts that come and go, and those who are not let in.
mod churn;
mod coordination;
mod draining;
mod failed_starts;
mod life;
mod secrets;

// Bad days, and what may be seen in them.
mod bad_days;
mod history;

// What they share.
mod fixture;
mod way;
