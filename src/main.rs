//! `tidefsd DIR`: mounts the cache and serves it in the foreground until SIGTERM or SIGINT.

use std::process::ExitCode;

use clap::Parser;
use tidefs::app;
use tidefs::config::DaemonArgs;

fn main() -> ExitCode {
    let status = app::run(&DaemonArgs::parse());
    ExitCode::from(status)
}
