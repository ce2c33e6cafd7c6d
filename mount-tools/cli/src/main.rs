//! What an operator of tidefs uses: the command `tidefs`, and the mount helper `mount.tidefs`.
//!
//! One binary under two names: called as `mount.tidefs`, which mount(8) does, it mounts and returns the exit
//! codes of mount(8). Else it is `tidefs`, whose commands ask a daemon over its admin socket.
//!
//! Invariants
//! - Nothing here looks at or below a tidefs mount, which may be dead or hang; see `tidefs_control_api::mounts`.
//! - Results go to stdout, and with `--json` nothing else does; messages go to stderr.

// What can be typed: the command line, and the name by which mount(8) calls.
mod args;
mod bench;
mod commands;
mod mount_helper;

// Daemons: found, asked, and started.
mod client;
mod ffi;
mod launch;
mod locate;
mod trial;

// What is shown: results, and what went wrong with the next step.
mod error;
mod next_step;
mod output;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;

use args::Cli;
use output::Output;

fn main() -> ExitCode {
    let called_as = std::env::args_os().next().unwrap_or_default();
    if is_mount_helper(&called_as) {
        return mount_helper::run();
    }
    let cli = Cli::parse();
    let output = Output::new(cli.command.wants_json());
    match commands::run(cli.command, output) {
        Ok(code) => code,
        Err(error) => {
            output.error(&error);
            error.exit.into()
        }
    }
}

/// Whether mount(8) or a link named like its helpers calls.
fn is_mount_helper(called_as: &OsString) -> bool {
    Path::new(called_as).file_name().is_some_and(|name| name == "mount.tidefs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_it_is_called_by_chooses_the_role() {
        let role = |name: &str| is_mount_helper(&OsString::from(name));
        assert!(role("/sbin/mount.tidefs") && role("mount.tidefs"));
        assert!(!role("/usr/bin/tidefs") && !role("") && !role("/mount.tidefs/tidefs"));
    }
}
