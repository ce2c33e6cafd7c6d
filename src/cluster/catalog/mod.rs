//! The catalog: who holds which version of which key. Soft state, served by the members, rebuilt from what they hold.
//!
//! Neither I/O nor clocks: times are passed in, and who has to be told of something is returned, so that a simulation in virtual
//! time runs all of it.

// What an owner of shards answers and decides.
pub mod owner;

// What it knows: who holds what, what was removed, and who was told what.
pub mod entry;
pub mod slots;
pub mod table;
pub mod tombstones;
pub mod watches;

// What members send each other about it.
pub mod wire;
