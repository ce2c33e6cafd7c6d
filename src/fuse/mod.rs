//! The FUSE edge: decodes what the kernel asks, calls the datapath, replies.
//!
//! Threads: one session thread per configured CPU, pinned to it, each with its own clone of the device. They answer
//! inline; what has to wait is carried on elsewhere, with its reply: for a writer's close by the thread `waiter`, for a part
//! of an object that is written by `follower`, for a disk or what takes long by load threads, for other members by the
//! runtime of the cluster.
//! The daemon never touches a path below its own mount: the kernel would ask the daemon.

// The mount: opened, agreed on with the kernel, served by threads that are looked after.
mod alive;
mod handshake;
mod mount;
mod session;

// Requests about files: each goes to its operation.
mod dispatch;
mod ops;

// What the kernel is told and given: attributes, numbers of errors, backing files, what to forget.
mod attributes;
mod errno;
mod kernel;
mod passthrough;

// Requests that wait, off the threads that answer the kernel.
mod begin;
mod overload;
mod waiter;

// The fast path: ioctls on `.tidefs/control`, and those of them that take long.
mod asked;
mod commands;
mod fast_files;
mod follow;
mod ioctl;
mod leisure;

// What else stands below `.tidefs`: the daemon's facts as files.
mod control_files;

pub use control_files::ControlFiles;
pub use handshake::SessionFacts;
pub use mount::MountError;
pub use session::{Session, SessionSettings};
