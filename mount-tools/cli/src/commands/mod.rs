//! The commands, one file each: ask, then show.

mod cluster;
mod cluster_dev;
mod config;
pub(crate) mod disks;
mod drain;
mod evict;
mod generate;
mod list;
mod mount;
mod object;
mod pin;
mod status;
mod tier;
mod topology;
mod umount;
mod verify;

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
