//! `tidefsd DIR`: mounts the cache and serves it in the foreground until a signal ends it (`app`).

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use tidefs::app;
use tidefs::config::{DaemonArgs, MAN_PAGE};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == MAN_PAGE) {
        let written = DaemonArgs::man_page().and_then(|page| io::stdout().write_all(&page));
        return if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let status = app::run(&DaemonArgs::parse());
    ExitCode::from(status)
}
