//! Host memory that files back: what a transport registers, what the daemon reads and writes by pointer.

mod mapping;
mod node;
mod region;

pub use mapping::Mapping;
pub use region::{Access, MemorySlice, PageKind, Region};
