//! The composition root: the one place that names the concrete parts and puts them together (`daemon`).
//!
//! A start goes: configuration -> lock -> memory tier -> recovery -> disks -> capacity -> cluster -> mount -> control socket ->
//! "mounted". A stop goes the other way round. Every error on the way says what to do, and leaves nothing behind that was not there.

// What a start looks at first: whether it may, where it says what, and how much it may take.
mod check;
mod limits;
mod log_file;
mod logging;
mod memory_groups;
mod mount_point;
mod progress;
mod secrets;

// The parts, from their sections of the configuration.
mod cluster;
mod scratch;
mod settings;
mod ssd;

// The daemon while it runs, and what ends it.
mod background;
mod daemon;
mod stop_signal;

use std::fmt::Display;
use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use tidefs_control_api::instance::Instance;
use tidefs_control_api::lock::{InstanceLock, LockError};
use tidefs_control_api::mounts::MountTable;
use tidefs_control_api::shell::quoted;
use tidefs_control_api::{ApiError, ErrorBody, ErrorCode};

use crate::config::{Config, DaemonArgs, Effective, ExitStatus, Host, OnStop, Sources};

use daemon::Daemon;
use mount_point::{check_mount_point, mount_point_failure, refuse_other_state};
use progress::Starting;
use secrets::Secrets;
use stop_signal::StopSignal;

/// How often a start makes its state directory anew when another daemon's end removes it.
const LOCK_ATTEMPTS_MAX: u32 = 3;

/// A failure of the daemon as a whole, with the status it ends with.
#[derive(Debug)]
struct Failure {
    status: ExitStatus,
    message: String,
}

impl Failure {
    fn new(status: ExitStatus, message: impl Display) -> Self {
        Self { status, message: message.to_string() }
    }

    /// As the commands of `tidefs` tell theirs.
    fn json(&self) -> String {
        let code = match self.status {
            ExitStatus::Configuration => ErrorCode::BadRequest,
            _ => ErrorCode::Internal,
        };
        let body = ErrorBody { error: ApiError::new(code, self.message.clone()) };
        serde_json::to_string_pretty(&body).expect("text has a JSON form")
    }
}

/// Runs the daemon until it is told to stop. Returns its exit status; errors were told on stderr.
#[must_use]
pub fn run(arguments: &DaemonArgs) -> ExitStatus {
    match serve(arguments) {
        Ok(()) => ExitStatus::Done,
        Err(failure) => {
            match arguments.json {
                true => tell(io::stdout(), failure.json()),
                false => {
                    for line in failure.message.lines() {
                        tell(io::stderr(), format_args!("tidefsd: {line}"));
                    }
                }
            }
            failure.status
        }
    }
}

/// Writes a line, and goes on when it cannot be written: that a reader left or a disk is full is no reason to end a mount.
fn tell(mut stream: impl Write, line: impl Display) {
    let _ = writeln!(stream, "{line}").and_then(|()| stream.flush());
}

fn serve(arguments: &DaemonArgs) -> Result<(), Failure> {
    let table = MountTable::read().map_err(|error| {
        Failure::new(ExitStatus::Environment, format!("cannot read the mount table: {error}; mount /proc"))
    })?;
    let mount_dir = table
        .resolve(&arguments.mount_dir)
        .map_err(|error| mount_point_failure(&arguments.mount_dir, &error))?;
    let host = Host::of_this_process().map_err(|error| Failure::new(ExitStatus::Environment, error))?;
    let effective = Config::load(&Sources::of_process(arguments, mount_dir.clone(), host))
        .map_err(|errors| Failure::new(ExitStatus::Configuration, errors))?;
    if arguments.check_config {
        check::check(&effective, &table, &mount_dir)?;
        let (settings, instance) = (effective.entries.len(), &effective.instance);
        let line = match arguments.json {
            true => format!("{:#}", serde_json::json!({ "settings": settings, "instance": instance })),
            false => format!("the configuration is sound: {settings} settings, instance {instance}"),
        };
        tell(io::stdout(), line);
        return Ok(());
    }
    let secrets = Secrets::read(&effective)?;
    logging::start(&effective.config);
    limits::raise();
    for ignored in &effective.ignored_options {
        tracing::info!(option = ?ignored, "a mount option means nothing here and is ignored");
    }
    crate::ffi::keep_tables_in_mappings();
    let lock = take_lock(&effective, &mount_dir)?;
    let usable = match table.tidefs_at(&mount_dir) {
        Some(mount) => refuse_other_state(&lock, mount),
        None => check_mount_point(&mount_dir),
    };
    usable.inspect_err(|_| {
        // A mount that is there is not taken for one of this directory at the next start.
        if !lock.had_predecessor() {
            remove_state(&effective.state.directory, &lock);
        }
    })?;
    let stop = StopSignal::install()?;
    let discards = effective.config.runtime.on_stop == OnStop::Discard;
    let state = effective.state.clone();
    let starting = Starting::begin();
    let started = Daemon::start(effective, secrets, &mount_dir, lock.had_predecessor());
    drop(starting);
    let outcome = started.and_then(|daemon| daemon.run_until(&stop));
    let leaves_nothing = discards || (outcome.is_err() && !lock.had_predecessor());
    if leaves_nothing && !state.memory.exists() {
        remove_state(&state.directory, &lock);
    }
    outcome
}

/// Removes the state directory of this mount, which holds nothing but the lock any more, a log, or what later starts need.
fn remove_state(directory: &Path, lock: &InstanceLock) {
    if let Err(error) = Instance::of_folder(directory).remove(lock) {
        tracing::debug!(directory = %directory.display(), %error, "the state directory stays");
    }
}

/// Takes the lock of this mount point, so that one daemon serves it.
fn take_lock(effective: &Effective, mount_dir: &Path) -> Result<InstanceLock, Failure> {
    let directory = &effective.state.directory;
    let mut attempts = 0;
    loop {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| {
            let text = format!(
                "cannot make the state directory `{}`: {error}; choose a writable one with -o state_dir=DIR",
                directory.display()
            );
            Failure::new(ExitStatus::Environment, text)
        })?;
        match InstanceLock::acquire(&effective.state.lock) {
            // A daemon that ended just now took the directory away.
            Err(LockError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound && attempts < LOCK_ATTEMPTS_MAX =>
            {
                attempts += 1;
            }
            Err(error @ LockError::Held { .. }) => {
                let text = format!(
                    "`{}` is in use: {error}; stop it with `tidefs umount {}{}`",
                    mount_dir.display(),
                    quoted(mount_dir),
                    effective.state_dir_option()
                );
                return Err(Failure::new(ExitStatus::MountPoint, text));
            }
            Err(error) => {
                let text = format!("{error}; choose a state directory of your own with -o state_dir=DIR");
                return Err(Failure::new(ExitStatus::Environment, text));
            }
            Ok(lock) => return Ok(lock),
        }
    }
}
