//! The locks and atomics of the queues, in one place: `tests/interleavings` compiles the same queues over others, which try
//! the orders in which threads may run.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use parking_lot::{Condvar, Mutex};
