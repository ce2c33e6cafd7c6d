//! A tidefsd of the bench's own, and what any daemon says about itself.
//!
//! Invariants
//! - A started daemon is stopped when its value is dropped, and killed when it does not stop in time.
//! - It discards its objects when it stops (`on_stop=discard`), so that no memory stays taken, unless it is told to
//!   keep them for [`Daemon::restart`].
//! - It goes by its command line alone, not by what this host is configured for.
//! - The thread that starts it outlives it: its death is what stops the daemon when the bench is killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidefs_control_api::Status;
use tidefs_control_api::instance::{Instance, STATE_DIR_VARIABLE, StateDir, state_dir_of_environment};
use tidefs_control_api::mounts::MountTable;
use tidefs_engine::types::ByteCount;

use super::cleanup::{Directory, Program};
use super::error::Error;
use super::{ffi, machine, mount};
use crate::launch::{LaunchError, daemon_program, read_log, wait_for_end, wait_for_mount};
use crate::locate;
use crate::trial::set_apart;

/// How long a daemon may take until its mount answers, or says that it gets on.
const MOUNT_DEADLINE: Duration = Duration::from_secs(30);
/// How long a daemon may take to unmount and end.
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// How a bench starts its daemons.
#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// The tidefsd to start. Default: the one beside this program, else in PATH.
    #[arg(long, value_name = "PATH")]
    daemon: Option<PathBuf>,
    /// Mount options for the daemons that the bench starts. Files in /etc/tidefs and variables do not count for them.
    #[arg(short = 'o', value_name = "KEY=VALUE", value_delimiter = ',')]
    pub(crate) options: Vec<String>,
}

impl DaemonArgs {
    /// The tidefsd that was given, else the one that `tidefs mount` starts.
    pub(crate) fn binary(&self) -> PathBuf {
        self.daemon.clone().unwrap_or_else(|| daemon_program().get_program().into())
    }
}

/// A running daemon that this bench started.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    _program: Program,
    mount: PathBuf,
    directory: Arc<Directory>,
}

impl Daemon {
    /// Starts `binary` on a new directory with `capacity` and `options`, and waits until it says it mounted.
    ///
    /// # Errors
    /// When the binary cannot be run, ends, or says nothing within [`MOUNT_DEADLINE`].
    pub(crate) fn start(binary: &Path, capacity: ByteCount, options: &[String]) -> Result<Self, Error> {
        let fail = || Error::system::<std::io::Error>("make a directory for a daemon");
        let directory = Directory::new("tidefs-bench-").map_err(fail())?;
        fs::create_dir(directory.path().join("mount")).map_err(fail())?;
        Self::spawn(Arc::new(directory), binary, capacity, options)
    }

    /// Stops the daemon, which was started with `on_stop=keep`, and starts another on what it left. Returns it and how
    /// long it took from its start until it was mounted.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub(crate) fn restart(
        self,
        binary: &Path,
        capacity: ByteCount,
        options: &[String],
    ) -> Result<(Self, Duration), Error> {
        let directory = Arc::clone(&self.directory);
        drop(self);
        let started = Instant::now();
        Ok((Self::spawn(directory, binary, capacity, options)?, started.elapsed()))
    }

    fn spawn(
        directory: Arc<Directory>,
        binary: &Path,
        capacity: ByteCount,
        options: &[String],
    ) -> Result<Self, Error> {
        let mount = directory.path().join("mount");
        let log = directory.path().join("log");
        let log_file =
            File::create(&log).map_err(Error::system::<std::io::Error>("make the log of a daemon"))?;
        let mut command = Command::new(binary);
        command.arg(&mount).arg("--capacity").arg(capacity.get().to_string());
        set_apart(&mut command);
        // Its state lies beside its mount, so that nothing of it stays behind.
        let state = format!("state_dir={}", directory.path().join("state").display());
        command.arg("-o").arg("on_stop=discard").arg("-o").arg(state);
        for option in options {
            command.arg("-o").arg(option);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
        ffi::stop_with_parent(&mut command);
        let child =
            command.spawn().map_err(|source| Error::DaemonNotStarted { path: binary.to_owned(), source })?;
        // From here on it is stopped with the value.
        let mut daemon = Self { _program: Program::of(&child), child, mount, directory };
        let deadline = Instant::now() + MOUNT_DEADLINE;
        match wait_for_mount(&mut daemon.child, &log, MOUNT_DEADLINE, deadline) {
            Ok(()) => Ok(daemon),
            Err(error) => {
                let what = match error {
                    LaunchError::TimedOut { .. } => format!("silent for {MOUNT_DEADLINE:?}"),
                    _ => "it ended".to_owned(),
                };
                Err(Error::DaemonNotMounted { what, log: read_log(&log) })
            }
        }
    }

    /// Where it is mounted.
    pub(crate) fn mount(&self) -> &Path {
        &self.mount
    }

    /// Where it keeps its state.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid of Linux is below 2^22"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Who was waited for has given its number back.
        if wait_for_end(&mut self.child, Duration::ZERO).is_some() {
            return;
        }
        let pid = self.pid();
        // A stopped process takes no other signal. One that has ended meanwhile takes none, and keeps its number.
        let _ = kill(pid, Signal::SIGCONT);
        let _ = kill(pid, Signal::SIGTERM);
        if wait_for_end(&mut self.child, STOP_DEADLINE).is_none() {
            eprintln!("tidefs bench: the daemon {pid} did not stop in {STOP_DEADLINE:?}, it is killed");
            let _ = self.child.kill();
            wait_for_end(&mut self.child, STOP_DEADLINE);
            mount::detach(&self.mount);
        }
    }
}

/// The sum of the series of metric `name` on the mount `mount`, `None` when the mount does not have it.
///
/// # Errors
/// When the metrics cannot be read.
pub(crate) fn metric(mount: &Path, name: &str) -> Result<Option<f64>, Error> {
    let path = mount.join(".tidefs/metrics");
    let text = fs::read_to_string(&path).map_err(Error::file("read the metrics", &path))?;
    Ok(metric_in(&text, name))
}

fn metric_in(text: &str, name: &str) -> Option<f64> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let metric = series.split_once('{').map_or(series, |(metric, _)| metric);
            (metric == name).then(|| value.parse::<f64>().ok())?
        })
        .reduce(|sum, value| sum + value)
}

/// What the daemon of a mount that the bench did not start says of itself.
///
/// # Errors
/// When it is no mount of tidefs.
pub(crate) fn status_of(mount: &Path) -> Result<Status, Error> {
    let path = mount.join(".tidefs/status");
    let text = fs::read_to_string(&path).map_err(Error::file("read the status", &path))?;
    serde_json::from_str(&text)
        .map_err(|error| Error::Invalid(format!("{} is not a status: {error}", path.display())))
}

/// The process that serves a mount which the bench did not start, for who is to stop or move it.
///
/// # Errors
/// Unless it is known for sure: what a status says is the number in the daemon's own pid namespace, which may be that of
/// another process here.
pub(crate) fn pid_of_mount(mount: &Path, status: &Status) -> Result<Pid, Error> {
    let dir = MountTable::read().and_then(|table| table.resolve(mount));
    let dir = dir.map_err(Error::file("find the mount", mount))?;
    let state = match state_dir_of_environment() {
        Some(named) => StateDir::new(named),
        None => StateDir::of_this_user().map_err(|error| Error::Argument(error.to_string()))?,
    };
    let instance = state.instance(&dir);
    known_daemon(&instance, status.pid).ok_or_else(|| {
        Error::Argument(format!(
            "process {} is not known to serve {}: nothing is stopped or pinned that does not listen on {}; name its state \
             directory with {STATE_DIR_VARIABLE}, run this in its pid namespace, or leave out --pinned, --both and \
             --stop-daemon",
            status.pid,
            dir.display(),
            instance.control_socket().display(),
        ))
    })
}

/// The process `pid`, if it is the one that listens on the admin socket of `instance`.
fn known_daemon(instance: &Instance, pid: u32) -> Option<Pid> {
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 1)?;
    (locate::listener(instance) == Some(pid)).then(|| Pid::from_raw(pid))
}

/// Anonymous memory of a process: what a daemon needs beyond the bytes of its objects, which are shared memory.
///
/// # Errors
/// When the process is gone.
pub(crate) fn anonymous_memory(pid: Pid) -> Result<ByteCount, Error> {
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
    Ok(machine::kib_of(&text, "RssAnon"))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn the_series_of_a_metric_are_added_and_others_are_not() {
        let text = "# TYPE tidefs_copied_bytes counter\n\
                    tidefs_copied_bytes_total{path=\"read\"} 5\n\
                    tidefs_copied_bytes_total{path=\"write\"} 7\n\
                    tidefs_copied_bytes_total_created 9\n# EOF\n";
        assert_eq!(metric_in(text, "tidefs_copied_bytes_total"), Some(12.0));
        assert_eq!(metric_in(text, "tidefs_evictions_total"), None);
    }

    #[test]
    fn a_process_that_does_not_listen_on_the_admin_socket_is_no_daemon() {
        let directory = TempDir::new().unwrap();
        let instance = StateDir::new(directory.path()).instance(Path::new("/mnt/kv"));
        let own = std::process::id();
        assert_eq!(known_daemon(&instance, own), None, "nobody listens");
        fs::create_dir_all(instance.dir()).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(instance.control_socket()).unwrap();
        assert_eq!(known_daemon(&instance, own), Some(Pid::this()));
        let parent = u32::try_from(Pid::parent().as_raw()).unwrap();
        assert_eq!(known_daemon(&instance, parent), None, "as a daemon in a container may be numbered");
    }

    /// A program that behaves as `body` says.
    fn script(directory: &TempDir, body: &str) -> PathBuf {
        let path = directory.path().join("daemon");
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_daemon_runs_until_it_is_dropped() {
        let directory = TempDir::new().unwrap();
        let body = "trap 'exit 0' TERM; echo \"tidefs: mounted on $1\"; while :; do sleep 0.02; done";
        let daemon = Daemon::start(&script(&directory, body), ByteCount::mib(64), &[]).unwrap();
        let pid = daemon.pid();
        assert!(daemon.mount().is_dir());
        assert!(anonymous_memory(pid).unwrap() > ByteCount::ZERO);
        drop(daemon);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_daemon_that_ends_without_mounting_is_an_error_that_shows_its_words() {
        let directory = TempDir::new().unwrap();
        let binary = script(&directory, "echo no /dev/fuse here >&2; exit 1");
        let error = Daemon::start(&binary, ByteCount::mib(64), &[]).unwrap_err().to_string();
        assert!(error.contains("it ended") && error.contains("no /dev/fuse here"), "{error}");
    }

    #[test]
    fn a_missing_daemon_is_an_error_that_says_where_it_was_looked_for() {
        let error = Daemon::start(Path::new("/nowhere/tidefsd"), ByteCount::mib(64), &[]).unwrap_err();
        assert!(error.to_string().contains("/nowhere/tidefsd"), "{error}");
    }
}
