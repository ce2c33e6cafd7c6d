//! What is under way: operations that wait for room ([`lane`]), the rails that they go by ([`rails`]), and the ends of
//! submissions ([`transfer`]).
//!
//! Threads: posted from any thread, completed from the transports' threads; no lock is held while a transport is called,
//! because a transport may complete operations from inside the call.

pub mod lane;
pub mod rails;
pub mod transfer;

pub use lane::{Lane, Priority};
pub use transfer::{Report, Transfer, TransferHandle};
