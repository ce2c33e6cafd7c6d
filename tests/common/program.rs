//! Runs a program to its end with a deadline, and keeps what it said.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::mount::wait_for;

/// A program that ended.
#[derive(Debug)]
pub(crate) struct Finished {
    /// How it ended.
    pub(crate) status: ExitStatus,
    /// Its standard output.
    pub(crate) output: String,
    /// Its standard error.
    pub(crate) errors: String,
}

impl Finished {
    /// Fails the test with all that the program said when it did not end with 0.
    #[track_caller]
    pub(crate) fn success(self, what: &str) -> Self {
        assert!(self.status.success(), "{what}: {}\n{}\n{}", self.status, self.output, self.errors);
        self
    }
}

/// Starts `command` in a process group of its own; standard output and error go to files, so it never blocks.
///
/// After `deadline` the group is killed and the test fails: the program hangs.
#[track_caller]
pub(crate) fn run(command: &mut Command, deadline: Duration) -> Finished {
    let mut output = tempfile::tempfile().expect("a temporary file");
    let mut errors = tempfile::tempfile().expect("a temporary file");
    command.stdin(Stdio::null()).process_group(0);
    command.stdout(output.try_clone().expect("a descriptor"));
    command.stderr(errors.try_clone().expect("a descriptor"));
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let status = wait_for(&mut child, deadline);
    if status.is_none() {
        kill_group(&mut child);
    }
    let finished = (text(&mut output), text(&mut errors));
    match status {
        Some(status) => Finished { status, output: finished.0, errors: finished.1 },
        None => panic!("{command:?} did not end within {deadline:?}\n{}\n{}", finished.0, finished.1),
    }
}

/// Kills a child and all that it started; a process that does not die within seconds is left behind.
fn kill_group(child: &mut Child) {
    let group = Pid::from_raw(i32::try_from(child.id()).expect("a pid is an i32"));
    let _ = killpg(group, Signal::SIGKILL);
    let _ = wait_for(child, Duration::from_secs(2));
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().expect("a file can be read from its start");
    file.read_to_end(&mut bytes).expect("a temporary file can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}
