//! A daemon that starts: its log, what it says until its mount answers, and its end when it does not get that far.
//!
//! Limits: it is given its time anew whenever it says that it gets on, or its log has grown; one that is stopped has
//! [`END_PATIENCE`] to end, and is killed then.
//! Threads: one of its own reads what it says, until it closes its stdout or nobody listens any more.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidefs_control_api::log::{create_log, earlier_log, has_writer, refused_log};

use super::LaunchError;
use crate::output::tell;

/// What a daemon writes when its mount answers.
const MOUNTED: &str = "tidefs: mounted on ";

/// Time for a daemon to end that has said its last word, or was told to.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Time between two looks at the log of a daemon that starts: an earlier version said nothing but there.
const NEWS_INTERVAL: Duration = Duration::from_millis(200);

/// Waits for the mount of the daemon that `child` is, until `deadline`, or for `timeout` from each sign on that it gets on. Its
/// standard output is a pipe, and its standard error `log`.
///
/// # Errors
/// See [`LaunchError`]; it may still run then.
pub(crate) fn wait_for_mount(
    child: &mut Child,
    log: &Path,
    timeout: Duration,
    mut deadline: Instant,
) -> Result<(), LaunchError> {
    let lines = lines_of(child);
    let mut logged = 0;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left.min(NEWS_INTERVAL)) {
            Ok(line) if line.starts_with(MOUNTED) => return Ok(()),
            Ok(_) => deadline = Instant::now() + timeout,
            Err(RecvTimeoutError::Timeout) => {
                let length = fs::metadata(log).map_or(logged, |metadata| metadata.len());
                if length > logged {
                    (logged, deadline) = (length, Instant::now() + timeout);
                } else if left.is_zero() {
                    return Err(LaunchError::TimedOut { timeout, log: read_log(log) });
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(match wait_for_end(child, END_PATIENCE) {
                    Some(status) => LaunchError::Ended { status, log: read_log(log) },
                    None => LaunchError::Odd { log: read_log(log) },
                });
            }
        }
    }
}

/// The lines of the child's stdout, read by a thread so that waiting for them can end.
fn lines_of(child: &mut Child) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    let stdout = child.stdout.take().expect("the child was given a pipe as stdout");
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    receiver
}

/// How a child ended, if it does within `patience`.
pub(crate) fn wait_for_end(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            _ => return None,
        }
    }
}

/// Stops a child that may still run: asked first, so that it can unmount.
pub(super) fn end(child: &mut Child) {
    if wait_for_end(child, Duration::ZERO).is_some() {
        return;
    }
    if let Ok(pid) = i32::try_from(child.id()) {
        // It is our child and not waited for, so the id is still its own; that it just ended is no fault.
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
    }
    if wait_for_end(child, END_PATIENCE).is_none()
        && child.kill().is_ok()
        && wait_for_end(child, END_PATIENCE).is_none()
    {
        tell(format_args!("tidefs: process {} was killed, and the kernel does not end it yet", child.id()));
    }
}

/// An empty log at `path`; the end of the one of the start before stays beside it as `log.1`, or as `log.refused` while that is the
/// log of a daemon that is still to have its name back from a start.
pub(super) fn open_log(path: &Path) -> io::Result<File> {
    let folder = path.parent().expect("a log lies in its instance's folder");
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let earlier = earlier_log(path);
    let aside = if is_written(&earlier) { refused_log(path) } else { earlier };
    match fs::rename(path, aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    create_log(path)
}

/// Puts the log back whose place that of a start took which failed, and names that `log.refused`, if a daemon writes to the other
/// still: one that starts, or serves the mount, where a configuration file names another directory for the rest of its state. With
/// `is_served` a daemon serves that may be of an earlier version, which does not lock its log. Of several starts at once the last
/// one that fails finds the log of the one that mounts. Where this cannot be done the daemon goes on with it under the name that it
/// has now.
pub(super) fn put_log_back(path: &Path, is_served: bool) {
    let (earlier, refused) = (earlier_log(path), refused_log(path));
    let is_free = !is_written(path);
    let (anothers, aside) = if is_written(&earlier) {
        (earlier, refused)
    } else if is_free && is_written(&refused) {
        (refused, earlier)
    } else if is_free && is_served && earlier.exists() {
        (earlier, refused)
    } else {
        return;
    };
    let _ = fs::rename(path, aside).and_then(|()| fs::rename(anothers, path));
}

/// Whether a daemon is known to write to `log`.
fn is_written(log: &Path) -> bool {
    has_writer(log).unwrap_or(false)
}

/// The end of a log, for the message of a failure.
pub(crate) fn read_log(path: &Path) -> String {
    const LINES: usize = 20;
    let text = match fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return format!("  (its log {} cannot be read: {error})", path.display()),
    };
    if text.trim().is_empty() {
        return format!("  (its log {} is empty)", path.display());
    }
    let lines: Vec<&str> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(LINES)..];
    tail.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_start_keeps_the_log_of_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("instance/log");
        for text in ["first", "second", "third"] {
            use std::io::Write as _;
            writeln!(open_log(&log).unwrap(), "{text}").unwrap();
        }
        assert_eq!(fs::read_to_string(&log).unwrap(), "third\n");
        assert_eq!(fs::read_to_string(dir.path().join("instance/log.1")).unwrap(), "second\n");
        assert_eq!(read_log(&log), "  third");
    }

    #[test]
    fn the_log_of_a_daemon_that_writes_to_it_is_put_back_when_a_further_start_fails() {
        use std::io::Write as _;
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("instance/log");
        let mut living = open_log(&log).unwrap();
        let at_once = open_log(&log).unwrap();
        writeln!(open_log(&log).unwrap(), "refused").unwrap();
        put_log_back(&log, false);
        drop(at_once);
        put_log_back(&log, true);
        writeln!(living, "served").unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "served\n");
        assert_eq!(fs::read_to_string(refused_log(&log)).unwrap(), "refused\n");
        assert!(!earlier_log(&log).exists());
        drop(living);
        writeln!(open_log(&log).unwrap(), "failed").unwrap();
        put_log_back(&log, false);
        assert_eq!(fs::read_to_string(&log).unwrap(), "failed\n", "nobody writes to the other any more");
        assert_eq!(fs::read_to_string(earlier_log(&log)).unwrap(), "served\n");
    }

    #[test]
    fn the_log_of_the_start_that_mounts_is_put_back_when_another_fails_after_the_daemon_before_has_ended() {
        use std::io::Write as _;
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("instance/log");
        let before = open_log(&log).unwrap();
        let mut mounts = open_log(&log).unwrap();
        writeln!(open_log(&log).unwrap(), "refused").unwrap();
        drop(before);
        put_log_back(&log, false);
        writeln!(mounts, "served").unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "served\n");
        assert_eq!(fs::read_to_string(earlier_log(&log)).unwrap(), "refused\n");
    }

    #[test]
    fn a_log_that_its_daemon_does_not_lock_is_put_back_where_a_mount_answers() {
        use std::io::Write as _;
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        fs::write(&log, "served\n").unwrap();
        writeln!(open_log(&log).unwrap(), "refused").unwrap();
        for _ in 0..2 {
            put_log_back(&log, true);
            assert_eq!(fs::read_to_string(&log).unwrap(), "served\n");
        }
        assert_eq!(fs::read_to_string(refused_log(&log)).unwrap(), "refused\n");
    }
}
