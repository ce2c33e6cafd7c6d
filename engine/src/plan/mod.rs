//! Decisions about transfers: plain functions over values, without clocks, sockets or locks.
//!
//! [`mod@slice`] cuts a request, [`route`] spreads the slices over rails, [`cool_down`] keeps a failed rail out for a
//! while, and [`registration`] shares memory out among NICs whose tables are too small for all of it.

pub mod cool_down;
pub mod registration;
pub mod route;
pub mod slice;
