//! Members of one cluster in one process.

mod host;
mod members;
mod network;
mod simulation;
