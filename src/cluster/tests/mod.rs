//! Members of one cluster in one process.

mod coming_and_going;
mod copies;
mod deaf;
mod early;
mod faults;
mod giving_back;
mod gone;
mod history;
mod host;
mod late;
mod leaving;
mod lending;
mod members;
mod memory;
mod network;
mod notes;
mod placing;
mod racing;
mod recalled;
mod removals;
mod simulation;
mod unregistered;
mod versions;
