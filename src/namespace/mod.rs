//! Names and attributes: which inode stands under which name, and what the kernel still knows of it.
//!
//! The tree is generic over what a file *is* (`F`): the datapath hangs its objects there, and this module stays
//! free of tiers. All of it is plain data behind one lock that the datapath owns; nothing here does I/O.

mod directory;
mod names;
mod node;
mod ordered_set;
mod processes;
mod tree;

pub use directory::{Children, Cookie, Directory};
pub use node::{
    Attributes, Body, Ino, NAME_LENGTH_MAX, Name, NameError, Node, RESERVED_AT_ROOT, Slot, nanos_of,
    permissions, time_of,
};
pub use processes::{
    ProcessId, Processes, ThreadId, WriterFate, has_memory, supplementary_groups, writer_fate,
};
pub use tree::{Tree, TreeError, split_path};
