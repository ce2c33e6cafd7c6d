//! The catalog: who holds which version of which key. Soft state, served by the members, rebuilt from what they hold.

pub mod entry;
pub mod owner;
pub mod slots;
pub mod table;
pub mod tombstones;
pub mod watches;
pub mod wire;
