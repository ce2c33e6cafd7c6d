//! The command `tidefs` as scripts see it: exit codes, JSON, and what it asks of a daemon.
//!
//! The daemon is a fake: a thread behind a real unix socket, or a shell script named `tidefsd`. What a real one
//! does is shown elsewhere; what is shown here holds without a mount.

mod benches;
mod dead_mounts;
mod disks;
mod fake_daemon;
mod host;
mod mounting;
mod queries;
mod topology;
mod trials;
mod unmounting;
mod wording;
