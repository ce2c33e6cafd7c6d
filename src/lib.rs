//! The tidefs daemon: a KV cache that is a filesystem.
//!
//! The life of a read: [`fuse`] decodes what the kernel asks, [`datapath`] runs the whole flow, [`namespace`] knows names and
//! inodes, [`tier`] keeps the bytes, [`cluster`] knows the other hosts. [`app`] puts the parts together. See
//! docs/ARCHITECTURE.md.

// The edges, where the kernel and operators ask, and what puts all parts together.
pub mod app;
pub mod control;
pub mod fuse;

// Whole flows, and the parts that they go through, none of which sees another.
pub mod cluster;
pub mod datapath;
pub mod namespace;
pub mod tier;

// What all parts use.
pub mod config;
mod ffi;
mod replace;
pub mod telemetry;

// The parsers, for fuzzing.
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
