//! The commands, one file each: ask, then show.

// Mounts: begun and ended.
mod mount;
mod umount;

// What a daemon shows.
mod config;
mod list;
mod object;
mod status;
mod topology;

// What is done with objects.
mod evict;
mod pin;
mod verify;

// The SSD tier, and its disks.
pub(crate) mod disks;
mod tier;

// The cluster.
mod cluster;
mod cluster_dev;
mod drain;

// Files for shells and for man(1).
mod generate;

use std::process::ExitCode;

use self::disks::TierCommand;
use crate::args::{CatalogCommand, ClusterCommand, Command, ConfigCommand};
use crate::error::CliError;
use crate::output::Output;

/// Runs `command`. What it found may be a failure by itself: then it is shown, and the code says so.
pub(crate) fn run(command: Command, output: Output) -> Result<ExitCode, CliError> {
    match command {
        Command::Verify(args) => return verify::run(&args, output),
        Command::Evict(args) => return evict::run(&args, output),
        Command::List(args) => return list::run(&args, output),
        Command::Drain(args) => return drain::run(&args, output),
        Command::Bench(args) => return crate::bench::run(args),
        Command::Status(args) => status::run(&args, output)?,
        Command::Tier(TierCommand::Status(args)) => tier::status(&args, output)?,
        Command::Tier(TierCommand::Add(args)) => disks::add(&args, output)?,
        Command::Tier(TierCommand::Drain(args)) => return disks::drain(&args, output),
        Command::Tier(TierCommand::Remove(args)) => disks::remove(&args, output)?,
        Command::Members(args) => cluster::members(&args, output)?,
        Command::Catalog(CatalogCommand::Stats(args)) => cluster::catalog(&args, output)?,
        Command::Where(args) => cluster::locate(&args, output)?,
        Command::Cluster(ClusterCommand::Dev(args)) => cluster_dev::run(&args, output)?,
        Command::Stat(args) => object::stat(&args, output)?,
        Command::Why(args) => object::why(&args, output)?,
        Command::Pin(args) => pin::run(&args, output)?,
        Command::Config(ConfigCommand::Show(args)) => config::show(&args, output)?,
        Command::Mount(args) => mount::run(args, output)?,
        Command::Umount(args) => umount::run(&args, output)?,
        Command::Topology(args) => topology::run(&args, output)?,
        Command::Completions(args) => generate::completions(&args, output)?,
        Command::Manpages(args) => generate::manpages(&args, output)?,
    }
    Ok(ExitCode::SUCCESS)
}
