//! Real processes and bad days: daemons that are killed, stopped, started twice or on nonsense; writers that are
//! killed; more bytes than there is room for.
//!
//! Faults are what the operating system can do to a process, nothing is built into the daemon for them.
//! `TIDEFS_TEST_LONG=1` runs the fault test 50 times instead of 10, and `TIDEFS_TEST_SECONDS` sets the length of the
//! stress.

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod big_write;
mod child;
mod containers;
mod daemon;
mod fastpath;
mod fault;
mod few_files;
mod invalidations;
mod log;
mod long_files;
mod memory_groups;
mod prefault;
mod restart;
mod restart_speed;
mod session_end;
mod shutdown;
mod side_by_side;
mod smaller;
mod ssd;
mod ssd_clients;
mod ssd_disks;
mod ssd_faults;
mod ssd_first_disk;
mod ssd_soak;
mod ssd_start;
mod stopped;
mod stress;
mod unheard;
mod worker;
