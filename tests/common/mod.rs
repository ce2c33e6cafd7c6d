//! What every black-box test shares: a mount whose daemon is a separate process, other processes to look at it
//! from, deterministic bytes, and thin wrappers that give the errno of a call.
//!
//! A test target takes it in with `#[path = "../common/mod.rs"] mod common;`.
//!
//! Invariants
//! - A [`Mount`] leaves nothing behind: no daemon, no mount, no private tmpfs, also when the test panics.
//! - No test passes when its daemon did not stop cleanly, unless it said so ([`Mount::kill9`], [`Mount::expect_failure`]).
//! - Whatever proves what *others* see runs in a [`Peer`], which is another process.
//!
//! Run these tests with `cargo nextest run`: it gives each test its own process. Under `cargo test` the tests of a
//! target share one process, and a test that starts a process at the wrong moment holds a neighbour's descriptor
//! open for the microseconds between fork and exec, which delays the seal of the neighbour's file.
//!
//! With `TIDEFS_TEST_DIR=DIR` the tests run in fresh directories below `DIR` without any daemon: a way to see
//! whether a test that states plain POSIX is right, on tmpfs or ext4.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "each test target uses its own part of this module"
)]

pub(crate) mod control;
mod daemon_process;
pub(crate) mod etcd;
pub(crate) mod faulty_disk;
pub(crate) mod growth;
pub(crate) mod kernel;
pub(crate) mod modes;
pub(crate) mod mount;
pub(crate) mod pattern;
pub(crate) mod peer;
mod peer_process;
pub(crate) mod place;
pub(crate) mod program;
pub(crate) mod small_disk;
pub(crate) mod sys;
pub(crate) mod wait;

pub(crate) use modes::Mode;
pub(crate) use mount::Mount;
pub(crate) use peer::Peer;
