//! `tidefs bench`: what the mount reaches, measured against the machine it runs on.
//!
//! `local` compares a mount with a private tmpfs, `fastpath` the client library with memcpy, `replay` sends a trace of
//! requests through a mount, `cluster` reads on one host what another holds, `ssd` compares the SSD tier with fio, `transfer` measures the transfer engine between processes.
//! A bare
//! number of a shared machine says little, so every number comes as a ratio to a baseline that was measured
//! within the same second, with the spread over the rounds.
//!
//! Invariants
//! - What a bench mounts and starts goes away with it: its mounts live in a mount namespace of its own, and a
//!   daemon it started is told to stop when the bench dies. Ctrl-C, SIGTERM and SIGHUP take its directories along, and undo
//!   what it changed of others (`cleanup`).
//! - Progress goes to stderr, results to stdout, so that a pipe sees results only.

// The benches.
mod cluster;
mod fastpath;
mod local;
mod replay;
mod ssd;
mod transfer;

// What they set up, and take away again.
mod affinity;
mod cleanup;
mod daemon;
mod mount;
mod rpc;

// What they report.
mod error;
mod machine;
mod report;
mod statistics;

// What they read and write with.
mod buffer;
mod ffi;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::error::{CliError, Exit};

/// Exit code of `--check` when everything ran and a target was missed.
const EXIT_BELOW_TARGET: u8 = 3;

/// Arguments of `tidefs bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

/// What to measure.
#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure reads, writes and latencies of a mount as ratios to a private tmpfs and to memcpy (needs root).
    Local(Box<local::LocalArgs>),
    /// Measure reads of what another host holds against the transfer engine alone (needs root and etcd).
    Cluster(cluster::ClusterArgs),
    /// Measure the client library against memcpy from mapped memory (needs root).
    Fastpath(fastpath::FastpathArgs),
    /// Replay a trace of requests through a mount and compare its hit ratio with exact LRU.
    Replay(replay::ReplayArgs),
    /// Measure the SSD tier against fio on the same disk (needs root and fio).
    Ssd(ssd::SsdArgs),
    /// Measure the transfer engine against plain sockets and memcpy, on this host or between two.
    Transfer(transfer::TransferArgs),
}

impl BenchArgs {
    /// Whether the result is for a program.
    pub(crate) fn wants_json(&self) -> bool {
        let result = match &self.command {
            BenchCommand::Local(args) => &args.result,
            BenchCommand::Cluster(args) => &args.result,
            BenchCommand::Fastpath(args) => &args.result,
            BenchCommand::Replay(args) => &args.result,
            BenchCommand::Ssd(args) => &args.result,
            BenchCommand::Transfer(args) => &args.result,
        };
        result.is_for_programs()
    }
}

/// Runs one bench. The exit code is 0 when it ran, 1 when it could not, and 3 when `--check` was given and a
/// target was missed.
///
/// # Errors
/// It could not.
pub(crate) fn run(args: BenchArgs) -> Result<ExitCode, CliError> {
    if cfg!(debug_assertions) {
        eprintln!("tidefs bench: this is a debug build, so its figures are worthless: build with --release");
    }
    let watched = cleanup::watch_for_signals();
    let outcome = watched.and_then(|()| match args.command {
        BenchCommand::Local(args) => local::run(&args),
        BenchCommand::Cluster(args) => cluster::run(&args),
        BenchCommand::Fastpath(args) => fastpath::run(&args),
        BenchCommand::Replay(args) => replay::run(&args),
        BenchCommand::Ssd(args) => ssd::run(&args),
        BenchCommand::Transfer(args) => transfer::run(&args),
    });
    cleanup::let_signals_end();
    match outcome {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::from(EXIT_BELOW_TARGET)),
        Err(error) => Err(CliError::new(Exit::Failed, error::with_causes(&error))),
    }
}
