//! Decisions about transfers: plain functions over values, without clocks, sockets or locks.
//!
//! [`mod@slice`] cuts a request, [`route`] spreads the slices over rails, and [`cool_down`] keeps a failed rail out for a
//! while.

pub mod cool_down;
pub mod route;
pub mod slice;
