//! Runs the `tidefs` binary.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::common::Mount;
use super::common::program::{self, Finished};

/// Exit code: the command line is wrong.
pub(crate) const EXIT_USAGE: i32 = 2;
/// Exit code: no such daemon or mount.
pub(crate) const EXIT_NO_DAEMON: i32 = 3;
/// Exit code: no such object.
pub(crate) const EXIT_NOT_FOUND: i32 = 4;

/// Longest time for a command.
const COMMAND: Duration = Duration::from_secs(60);
/// Longest time for the build of the binary.
const BUILD: Duration = Duration::from_secs(600);

/// The `tidefs` binary beside the daemon; it is another package's, so it is built here if nobody built it.
pub(crate) fn binary() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_tidefsd")).with_file_name("tidefs");
    if !path.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--package", "tidefs-cli"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        program::run(&mut cargo, BUILD).success("cargo build --package tidefs-cli");
    }
    assert!(path.exists(), "{} is not there after its build", path.display());
    path
}

/// `tidefs` with these arguments and the state directory of `mount`.
pub(crate) fn tidefs<S: AsRef<OsStr>>(mount: &Mount, arguments: &[S]) -> Finished {
    let mut command = Command::new(binary());
    command.args(arguments).arg("--state-dir").arg(mount.state_dir());
    program::run(&mut command, COMMAND)
}

/// What `tidefs ... --json` prints when it succeeds.
#[track_caller]
pub(crate) fn json<S: AsRef<OsStr>>(mount: &Mount, arguments: &[S]) -> Value {
    let mut arguments: Vec<&OsStr> = arguments.iter().map(AsRef::as_ref).collect();
    arguments.push(OsStr::new("--json"));
    let finished = tidefs(mount, &arguments).success(&format!("tidefs {arguments:?}"));
    parse(&finished.output)
}

/// One JSON document.
#[track_caller]
pub(crate) fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("not one JSON document ({error}):\n{text}"))
}

/// What `tidefs` prints for people when it succeeds.
#[track_caller]
pub(crate) fn text<S: AsRef<OsStr>>(mount: &Mount, arguments: &[S]) -> String {
    let what: Vec<&OsStr> = arguments.iter().map(AsRef::as_ref).collect();
    tidefs(mount, arguments).success(&format!("tidefs {what:?}")).output
}

/// A command line that must be refused before any daemon is asked; standard error names `word`.
#[track_caller]
pub(crate) fn wrong_usage<S: AsRef<OsStr>>(mount: &Mount, arguments: &[S], word: &str) {
    let what: Vec<&OsStr> = arguments.iter().map(AsRef::as_ref).collect();
    let finished = tidefs(mount, arguments);
    assert_eq!(finished.status.code(), Some(EXIT_USAGE), "{what:?}: {finished:?}");
    assert!(finished.errors.contains(word), "{what:?}: `{word}` is not in {finished:?}");
}

/// A command that must fail with `code`, for people and with `--json`; standard error or the document name `word`.
#[track_caller]
pub(crate) fn fails<S: AsRef<OsStr>>(mount: &Mount, arguments: &[S], code: i32, word: &str) {
    let mut arguments: Vec<&OsStr> = arguments.iter().map(AsRef::as_ref).collect();
    let finished = tidefs(mount, &arguments);
    assert_eq!(finished.status.code(), Some(code), "{arguments:?}: {finished:?}");
    assert!(finished.errors.contains(word), "{arguments:?}: `{word}` is not in {finished:?}");
    assert_eq!(finished.output, "", "{arguments:?}: a failure prints nothing on standard output");
    arguments.push(OsStr::new("--json"));
    let finished = tidefs(mount, &arguments);
    assert_eq!(finished.status.code(), Some(code), "{arguments:?}: {finished:?}");
    let message = parse(&finished.output)["error"]["message"].to_string();
    assert!(message.contains(word), "{arguments:?}: `{word}` is not in {message}");
}

/// A path as an argument.
pub(crate) fn argument(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
