//! Starts of the daemon that are meant to fail: what it says and how it ends.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::common::program::{self, Finished};

/// Longest time for the daemon to find out that it cannot start.
const REFUSAL: Duration = Duration::from_secs(20);

/// Exit code: it failed, and may not the next time.
pub(crate) const EXIT_FAILED: i32 = 1;
/// Exit code: the command line or the configuration is wrong.
pub(crate) const EXIT_USAGE: i32 = 2;
/// Exit code: the mount point cannot be used.
pub(crate) const EXIT_MOUNT_POINT: i32 = 3;
/// Exit code: the machine lacks something that the daemon needs.
pub(crate) const EXIT_ENVIRONMENT: i32 = 4;

/// The daemon on `point` with its state in `state`, and nothing else said.
pub(crate) fn daemon(point: &Path, state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidefsd"));
    command.arg(point).arg("-o").arg(state_option(state));
    command
}

/// The option that puts the daemon's state into `state`.
pub(crate) fn state_option(state: &Path) -> String {
    format!("runtime.state_dir={}", state.display())
}

/// Runs a start that must be refused with `code`; standard error must mention each of `words`.
#[track_caller]
pub(crate) fn refused(command: &mut Command, code: i32, words: &[&str]) -> Finished {
    let finished = program::run(command, REFUSAL);
    let arguments: Vec<&OsStr> = command.get_args().collect();
    assert_eq!(
        finished.status.code(),
        Some(code),
        "{arguments:?} said:\n{}\n{}",
        finished.output,
        finished.errors
    );
    for word in words {
        assert!(
            finished.errors.to_lowercase().contains(&word.to_lowercase()),
            "{arguments:?}: `{word}` is not mentioned in:\n{}",
            finished.errors
        );
    }
    assert!(
        !finished.output.contains("mounted on"),
        "a refused start says that it mounted: {}",
        finished.output
    );
    finished
}
