//! `tidefs umount`: the orderly end of a mount, and the burial of a dead one.
//!
//! The daemon is told to stop and does the rest; its lock tells when it is gone. Whatever mount is left then is taken away,
//! unless it answers: a daemon of another state directory serves it. `--discard` frees the kept memory under the lock, so
//! that no daemon starts on it meanwhile.
//!
//! Invariant: no process is signalled but the one that holds the lock.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tidefs_control_api::instance::Instance;
use tidefs_control_api::lock::{self, Daemon, InstanceLock, LockError};
use tidefs_control_api::log::{earlier_log, refused_log};
use tidefs_control_api::mounts;

use crate::args::UmountArgs;
use crate::error::{CliError, Exit};
use crate::launch::LOOK_INTERVAL;
use crate::locate::{self, mount_table, probe};
use crate::output::{Output, shown};

/// For how long the number in a held lock may be nobody's here: a daemon that just took it has yet to write its own.
const UNPROVEN: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &UmountArgs, output: Output) -> Result<(), CliError> {
    let table = mount_table()?;
    let dir = locate::resolve(&table, &args.dir)?;
    let state = locate::state_dir_of(&args.common, &table, Some(&dir))?;
    let instance = state.instance(&dir);
    let mount = table.tidefs_at(&dir);
    let daemon = match (probe(&instance)?, mount) {
        (Daemon::Alive { .. }, _) => {
            stop(&instance, &dir, Duration::from_secs(args.timeout))?;
            "stopped"
        }
        (Daemon::Gone, Some(mount)) => {
            locate::refuse_served(&instance, mount)?;
            output.note("its daemon was gone already; taking the mount away");
            "gone"
        }
        (Daemon::NoRecord, Some(mount)) => return Err(locate::no_record(&state, mount, locate::caller())),
        _ if args.discard && instance.dir().exists() => "none",
        _ => {
            let error = CliError::new(Exit::NoDaemon, format!("{} is not a tidefs mount", dir.display()));
            return Err(if instance.memory().exists() && !args.discard {
                error.next_step("objects of an earlier mount are kept in memory; --discard frees them")
            } else {
                error
            });
        }
    };
    take_away(&instance, &dir, args.discard)?;
    let kept = !args.discard && instance.memory().exists();
    let value = json!({
        "mount_point": shown(&dir),
        "daemon": daemon,
        "discarded": args.discard,
        "kept": kept,
    });
    output.result(&value, || match (args.discard, kept) {
        (true, _) => format!("unmounted {}, its memory is free", dir.display()),
        (false, true) => {
            format!("unmounted {}; its objects stay in memory for the next mount", dir.display())
        }
        (false, false) => format!("unmounted {}", dir.display()),
    })
}

/// Takes away what a daemon that is gone left on `dir`, and frees what it keeps when it `discards`.
///
/// # Errors
/// [`CliError`] when a mount cannot be taken away, or when another daemon serves `dir`.
pub(super) fn take_away(instance: &Instance, dir: &Path, discards: bool) -> Result<(), CliError> {
    while let Some(mount) = mount_table()?.tidefs_at(dir) {
        locate::refuse_served(instance, mount)?;
        mounts::detach(dir)
            .map_err(|error| CliError::system(format!("cannot unmount {}", dir.display()), &error))?;
    }
    if discards { discard(instance) } else { Ok(()) }
}

pub(super) fn is_mounted(dir: &Path) -> Result<bool, CliError> {
    Ok(mount_table()?.tidefs_at(dir).is_some())
}

/// Tells the daemon to stop and waits until it is gone.
fn stop(instance: &Instance, dir: &Path, timeout: Duration) -> Result<(), CliError> {
    let began = Instant::now();
    let mut told = false;
    loop {
        match probe(instance)? {
            Daemon::Gone | Daemon::NoRecord => return Ok(()),
            Daemon::Alive { pid: Some(pid) } if !told && is_here(instance, pid)? => {
                told = true;
                terminate(pid)?;
            }
            Daemon::Alive { pid: Some(pid) } if !told && began.elapsed() >= UNPROVEN => {
                return Err(elsewhere(dir, pid));
            }
            Daemon::Alive { pid } if began.elapsed() >= timeout => {
                let pid = pid.map_or("unknown".to_owned(), |pid| pid.to_string());
                let message = format!(
                    "process {pid}, which serves {}, did not stop within {} s",
                    dir.display(),
                    timeout.as_secs()
                );
                return Err(CliError::new(Exit::Failed, message).next_step(format!(
                    "it was told, and stops when it can; look at its log {}; if it is stuck, `kill -9 {pid}` and unmount \
                     again: no object is lost",
                    instance.log().display()
                )));
            }
            Daemon::Alive { .. } => std::thread::sleep(LOOK_INTERVAL),
        }
    }
}

/// Whether the process with this number here holds the lock.
fn is_here(instance: &Instance, pid: u32) -> Result<bool, CliError> {
    lock::is_held_by(&instance.lock(), pid)
        .map_err(|error| CliError::system(format!("cannot tell whether process {pid} is the daemon"), &error))
}

/// That the daemon of `dir` is `pid` in a container alone: here that number is nobody's, or another process's.
fn elsewhere(dir: &Path, pid: u32) -> CliError {
    let message =
        format!("the daemon of {} runs in another pid namespace, as process {pid} of that", dir.display());
    CliError::new(Exit::Failed, message)
        .next_step("stop its container, or run this command where the daemon runs")
}

/// Tells a process to end that held the lock a moment ago, so that it is the daemon and not one that inherited its number. In a
/// container it may be the first process.
fn terminate(pid: u32) -> Result<(), CliError> {
    let wrong = || CliError::new(Exit::Failed, format!("the lock names {pid}, which cannot be a daemon"));
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0).ok_or_else(wrong)?;
    match kill(Pid::from_raw(pid), Signal::SIGTERM) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(CliError::system(format!("cannot stop process {pid}"), &error.into())),
    }
}

/// Frees what an instance without a daemon keeps in memory, and removes its folder unless a later start needs more of it.
fn discard(instance: &Instance) -> Result<(), CliError> {
    if !instance.dir().exists() {
        return Ok(());
    }
    let failed = |step: &str, error: &io::Error| {
        CliError::system(format!("cannot {step} {}", instance.dir().display()), error)
    };
    let lock = match InstanceLock::acquire(&instance.lock()) {
        Ok(lock) => lock,
        // The daemon that just ended took all of it away.
        Err(LockError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(LockError::Io { source, .. }) => return Err(failed("lock", &source)),
        Err(error @ LockError::Held { .. }) => {
            return Err(CliError::new(Exit::Failed, error.to_string())
                .next_step("a daemon just started on it; unmount again"));
        }
    };
    let dir = as_mounted(instance)?;
    while let Some(mount) = mount_table()?.below(&dir).next() {
        mounts::detach(&mount.mount_point).map_err(|error| failed("free the memory of", &error))?;
    }
    // No mount is left below, so this removes files of the state directory alone.
    gone(fs::remove_dir_all(instance.memory())).map_err(|error| failed("free the memory of", &error))?;
    let log = instance.log();
    for file in [instance.control_socket(), earlier_log(&log), refused_log(&log), log] {
        gone(fs::remove_file(file)).map_err(|error| failed("clear", &error))?;
    }
    instance.remove(&lock).map_err(|error| failed("remove", &error))
}

/// The folder of `instance` as the mount table names it, where there are no links and no relative paths. A link in its
/// own place is none of the daemon's, and is not followed to what others mounted.
fn as_mounted(instance: &Instance) -> Result<PathBuf, CliError> {
    let dir = instance.dir();
    match (dir.parent(), dir.file_name()) {
        (Some(state), Some(name)) => Ok(locate::resolve(&mount_table()?, state)?.join(name)),
        _ => Ok(dir.to_owned()),
    }
}

/// The outcome of a removal, which is well when there was nothing.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}
