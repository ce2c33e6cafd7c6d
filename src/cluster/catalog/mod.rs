//! The catalog: who holds which version of which key. Soft state, served by the members, rebuilt from what they hold.

pub mod wire;
