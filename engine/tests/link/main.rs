//! Links over real sockets: proof, calls, deadlines, bounds, faults.
//!
//! Each test starts engines' links in this process on ports of the kernel's choice. Time limits are there to end a
//! test that hangs; no test is decided by how fast something is.

mod calls;
mod common;
mod faults;
mod idle;
mod panics;
mod proof;
mod tls;
