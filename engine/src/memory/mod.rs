//! Host memory that files back: what a transport registers, what the daemon reads and writes by pointer.

mod mapping;

pub use mapping::Mapping;
