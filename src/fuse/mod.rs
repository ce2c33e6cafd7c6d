//! The FUSE edge: decodes what the kernel asks, calls the datapath, replies.
//!
//! Threads: one session thread per configured CPU, pinned to it, each with its own clone of the device. They answer
//! inline; a look-up or listing that has to wait for a writer's close is carried on by the `waiter` thread, with its reply.
//! The daemon never touches a path below its own mount: the kernel would ask the daemon.

mod alive;
mod asked;
mod attributes;
mod begin;
mod commands;
mod control_files;
mod dispatch;
mod errno;
mod fast_files;
mod follow;
mod handshake;
mod ioctl;
mod kernel;
mod leisure;
mod mount;
mod ops;
mod overload;
mod passthrough;
mod session;
mod waiter;

pub use control_files::ControlFiles;
pub use handshake::SessionFacts;
pub use mount::MountError;
pub use session::{Session, SessionSettings};
