//! What an operator may choose, as one typed tree that is checked before anything is mounted.
//!
//! A setting has one name everywhere: `memory.capacity` is `[memory] capacity` in a file,
//! `TIDEFS_MEMORY_CAPACITY` in the environment and `-o memory.capacity=` on the command line. `settings`
//! declares each once, with its type, default, range and reason; the struct [`Config`], the lookup of names,
//! `--help` and the tables of `docs/CONFIGURATION.md` all come from that declaration.
//!
//! A start runs: [`DaemonArgs`] -> [`Sources`] (what was written where) -> [`Config::load`] -> [`Effective`].
//!
//! Invariants
//! - default < file < environment < flags, per setting; a later file or option wins over an earlier one.
//! - A name that is not known is an error that tells the nearest known one, wherever it stands.
//! - Every written value is checked, also one that a later source overrides.
//! - All problems are reported together ([`ConfigErrors`]), each with its place, cause and next step.
//! - [`Config::load`] is a function of [`Sources`]: it reads no file, no variable and no clock by itself; the
//!   only question it asks the machine is [`Host::free_space`].
//!
//! Threads: called once by the main thread, before any other starts.

// The settings, each declared once, and the types that they have.
mod choice;
mod cluster;
mod limits;
mod log_filter;
mod mode;
mod patterns;
mod schema;
mod settings;
mod ssd;
mod value;

// Where they are written.
mod args;
mod environment;
mod file;
mod options;
mod sources;

// One configuration from all of it: defaults of this machine, merged, and checked as a whole.
mod control_group;
mod defaults;
mod error;
mod host;
mod merge;
mod validate;

// What else the daemon promises by name: its folder, its exit codes, the page of settings.
mod exit;
mod instance;
mod reference;

#[cfg(test)]
mod tests;

pub use args::{DaemonArgs, MAN_PAGE};
pub use choice::{EvictionPolicy, HugePages, LogFormat, OnStop, Passthrough, ZeroCopy};
pub use cluster::{Addresses, Endpoints, Labels, OptionalAddress, OptionalFile, Transports, Word};
pub use control_group::MemoryGroup;
pub use error::{Cause, ConfigErrors, Problem};
pub use exit::ExitStatus;
pub use host::Host;
pub use instance::{StatePaths, instance_name};
pub use log_filter::LogFilter;
pub use merge::{Effective, EffectiveEntry};
pub use mode::FileMode;
pub use options::{Flag, IgnoredOption, MountOptions};
pub use patterns::NamePatterns;
pub use reference::reference_markdown;
pub use schema::{Range, Setting, Shape, find_setting};
pub use settings::{
    ClusterSettings, Config, EvictionSettings, FuseSettings, LogSettings, MemorySettings, NamesSettings,
    RootSettings, RuntimeSettings, SETTINGS, ScratchSettings, SsdSettings,
};
pub use sources::{ConfigFile, Origin, Sources};
pub use ssd::PathList;
pub use value::SettingValue;
