//! The tidefs daemon: a KV cache that is a filesystem.
//!
//! Read top to bottom as the life of a read: [`fuse`] decodes what the kernel asks, [`datapath`] runs the whole
//! flow, [`namespace`] knows names and handles, [`tier`] keeps the bytes, [`cluster`] knows the other hosts. [`app`] puts the parts together.

pub mod app;
pub mod cluster;
pub mod config;
pub mod control;
pub mod datapath;
mod ffi;
pub mod fuse;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod namespace;
mod replace;
pub mod telemetry;
pub mod tier;
