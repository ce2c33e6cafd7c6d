//! What a mounted tidefs does with files, seen from outside: each test mounts one and uses it as programs do.

#[path = "../common/mod.rs"]
mod common;

// The three shapes in which clients write, and what becomes of a key that is replaced.
mod concurrent_writers;
mod hidden;
mod publish;
mod replace;
mod scratch;
mod scratch_disk;

// Reading and writing in every way, and what is refused.
mod async_io;
mod long_work;
mod read_paths;
mod refused;
mod unseen;
mod write_paths;

// Names, directories and what stands beside a name.
mod attributes;
mod listing;
mod names;
mod permissions;
mod rename;
mod unlink;
mod whole_mount;
mod xattrs;

// Room.
mod eviction;
mod full;
mod guessed;
mod quota;

// The fast path: the client library, and its ioctls byte by byte.
mod batches;
mod copied;
mod fastpath;
mod follow;
mod ioctl;
mod kept;
mod late;
mod moved;
mod read_only;
mod registered;
mod restarted;
mod strangers;

// What they share.
mod fixture;
