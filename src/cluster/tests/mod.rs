//! Members of one cluster in one process.

// Over real sockets: what one member does, the others see.
mod coming_and_going;
mod copies;
mod leaving;
mod members;
mod placing;
mod recalled;
mod removals;
mod unregistered;
mod unwatched;

// One thing that goes wrong, or is late.
mod deaf;
mod early;
mod gone;
mod late;
mod lending;
mod racing;
mod versions;

// In virtual time, over a network that is made up.
mod faults;
mod giving_back;
mod history;
mod network;
mod notes;
mod repairing;
mod simulation;

// What they share.
mod host;
mod memory;
