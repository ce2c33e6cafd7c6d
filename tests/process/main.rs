//! Real processes and bad days: daemons that are killed, stopped, started twice or on nonsense; writers that are
//! killed; more bytes than there is room for.
//!
//! Faults are what the operating system can do to a process, nothing is built into the daemon for them.
//! `TIDEFS_TEST_LONG=1` runs the fault test 50 times instead of 10, and `TIDEFS_TEST_SECONDS` sets the length of the
//! stress.

#[path = "../common/mod.rs"]
mod common;

// Starts and ends: what is kept, what is refused, and who else is there.
mod bad_input;
mod containers;
mod daemon;
mod log;
mod restart;
mod restart_speed;
mod rootless;
mod session_end;
mod shutdown;
mod side_by_side;
mod smaller;
mod unheard;

// Daemons and clients that are killed or stopped, at any moment.
mod fastpath;
mod fault;
mod invalidations;
mod stopped;
mod stress;

// Machines that give little: memory, files, room.
mod big_write;
mod few_files;
mod long_files;
mod memory_groups;
mod prefault;

// The SSD tier, and the disks of slot files.
mod slot_disks;
mod ssd;
mod ssd_clients;
mod ssd_disks;
mod ssd_faults;
mod ssd_first_disk;
mod ssd_soak;
mod ssd_start;

// Processes that tests start.
mod child;
mod worker;
