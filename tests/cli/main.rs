//! The commands of `tidefs` against a real daemon: what they print for programs and for people, what they change, and
//! how they end.

#[path = "../common/mod.rs"]
mod common;

mod cluster_dev;
mod config;
mod developing;
mod evict_and_pin;
mod installing;
mod look;
mod mount_and_umount;
mod tool;
mod verify;
mod why;
