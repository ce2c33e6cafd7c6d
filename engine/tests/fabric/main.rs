//! The transport over libfabric, for real: two ends in one process or two, over a provider of the installed library.
//!
//! `TIDEFS_TEST_FABRIC` names provider and address, for example `verbs;ofi_rxm@10.8.0.1` in the guest with soft-RoCE;
//! default is `tcp;ofi_rxm@127.0.0.1`. The strict provider is built with these tests and found beside them. Where there is no libfabric, each test says so and passes.

mod budget;
mod death;
mod engines;
mod harness;
mod missing;
mod panics;
mod pieces;
mod strict;
mod transfers;
