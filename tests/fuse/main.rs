//! What a mounted tidefs does with files, seen from outside: each test mounts one and uses it as programs do.

#[path = "../common/mod.rs"]
mod common;

mod async_io;
mod attributes;
mod batches;
mod concurrent_writers;
mod eviction;
mod fastpath;
mod fixture;
mod follow;
mod full;
mod guessed;
mod hidden;
mod ioctl;
mod kept;
mod late;
mod listing;
mod long_work;
mod moved;
mod names;
mod permissions;
mod publish;
mod quota;
mod read_only;
mod read_paths;
mod refused;
mod registered;
mod rename;
mod replace;
mod restarted;
mod scratch;
mod scratch_disk;
mod strangers;
mod unlink;
mod unseen;
mod whole_mount;
mod write_paths;
mod xattrs;
