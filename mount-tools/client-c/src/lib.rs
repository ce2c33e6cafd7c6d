//! `libtidefs.so`: the client library behind a C interface. `include/tidefs.h` is made of these files.
//!
//! Invariants
//! - No panic leaves a function: it is caught and told as `-ENOTRECOVERABLE`, with a message.
//! - Each pointer is looked at before it is used; one that may not be NULL and is gives `-EINVAL` and changes nothing.
//! - An out parameter is written on each path that is not refused for a NULL pointer.
//! - Values of Rust leave only behind pointers that come back to the function that ends them.

mod cache;
mod ffi;
mod outcome;
mod register;
mod view;
mod writer;

pub use cache::*;
pub use outcome::*;
pub use register::*;
pub use view::*;
pub use writer::*;
