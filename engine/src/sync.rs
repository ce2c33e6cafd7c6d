//! The locks and atomics of the queues and of shared memory, in one place: `tests/interleavings` compiles the same
//! code over others, which try the orders in which threads may run.

pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(crate) use parking_lot::{Condvar, Mutex};
