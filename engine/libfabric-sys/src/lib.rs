//! The part of libfabric's C ABI that tidefs uses, declared by hand and found at run time.
//!
//! Nothing is linked: a program that uses this crate builds without libfabric's headers and starts without its
//! library. [`Library::open`] looks for `libfabric.so.1` and takes the six functions that the library exports for
//! applications; everything else of libfabric's interface goes through tables of function pointers in its objects, and
//! [`call`] holds those calls, which C programs take from inline functions of the headers.
//!
//! Which versions: the declarations are what 1.17 and 2.x share. libfabric only ever adds to the end of a structure, so
//! - an `fi_info` and the attributes inside it are never allocated here, only by [`Library::allocate_info`];
//! - structures that are passed in are zeroed by their `Default`, and end with room for fields of later versions where
//!   the library writes into them;
//! - a function behind the end of a table is not called: [`call`] compares with the table's `size` where the entry is
//!   younger than 1.17.
//!
//! `tests/abi.rs` compares sizes, offsets and constants with the headers, where a C compiler and the headers are. The
//! engine's tests ran with 1.17.0 (Debian 12) and 2.1.0 (Debian 13), on `tcp;ofi_rxm` and on a provider with EFA's rules;
//! not on EFA itself.
//!
//! Names are libfabric's own; its manual pages say what each means. All structures are plain C data: creating one is
//! safe, and every use of a pointer in it is not.

mod attributes;
pub mod call;
mod constants;
mod data;
mod library;
mod objects;
mod operations;
mod signals;

pub use attributes::*;
pub use constants::*;
pub use data::*;
pub use library::{Library, LibraryError, SEARCH_VARIABLE};
pub use objects::*;
pub use operations::*;
