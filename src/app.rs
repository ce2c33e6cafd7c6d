//! The composition root: the one place that names the concrete parts and puts them together.
//!
//! A start goes: configuration -> lock -> memory tier -> recovery -> disks -> capacity -> cluster -> mount -> control socket ->
//! "mounted". A stop goes the other way round. Every error on the way says what to do, and leaves nothing behind that was not there.

mod background;
mod check;
mod cluster;
mod limits;
mod logging;
mod memory_groups;
mod mount_point;
mod progress;
mod secrets;
mod settings;
mod ssd;
mod stop_signal;

use std::fmt::Display;
use std::fs::DirBuilder;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use tidefs_control_api::instance::Instance;
use tidefs_control_api::lock::{InstanceLock, LockError};
use tidefs_control_api::mounts::MountTable;
use tidefs_control_api::shell::quoted;
use tidefs_control_api::{ApiError, ErrorBody, ErrorCode};
use tidefs_engine::time::SystemClock;
use tidefs_engine::types::ByteCount;

use crate::config::{
    Config, DaemonArgs, Effective, ExitStatus, Host, HugePages as HugePagesChoice, OnStop, Sources,
};
use crate::control::{ControlServer, DaemonFacts, DaemonOperations, Joining};
use crate::datapath::{Datapath, Unsettled};
use crate::fuse::{ControlFiles, MountError, Session};
use crate::telemetry::Telemetry;
use crate::tier::memory::{HugePages, MemoryConfig, MemoryTier};
use crate::tier::ssd::Unnamed;

use background::Background;
use mount_point::{check_mount_point, clear_stale_mount, mount_point_failure, refuse_other_state};
use progress::Progress;
use secrets::Secrets;
use settings::{session_settings, settings_of};
use stop_signal::StopSignal;

/// How long a stop waits for programs to close their files.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// How often a start makes its state directory anew when another daemon's end removes it.
const LOCK_ATTEMPTS_MAX: u32 = 3;
/// How often expired objects are looked for.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(250);

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
    let outcome = Daemon::start(effective, secrets, &mount_dir, lock.had_predecessor())
        .and_then(|daemon| daemon.run_until(&stop));
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
            outcome => return outcome.map_err(|error| Failure::new(ExitStatus::Environment, error)),
        }
    }
}

/// The running parts.
#[derive(Debug)]
struct Daemon {
    datapath: Arc<Datapath>,
    session: Session,
    control: Option<ControlServer>,
    background: Arc<Background>,
    membership: Option<cluster::Membership>,
    mount_dir: PathBuf,
    effective: Arc<Effective>,
}

/// The memory tier with what an earlier daemon left in it, and the flows over it.
fn open_datapath(
    effective: &Effective,
    telemetry: &Arc<Telemetry>,
) -> Result<(Arc<Datapath>, Unsettled), Failure> {
    let config = &effective.config;
    memory_groups::warn_of_own_limit(config.memory.capacity);
    let tier = MemoryTier::open(&MemoryConfig {
        directory: effective.state.memory.clone(),
        capacity: config.memory.capacity,
        huge_pages: match config.memory.huge_pages {
            HugePagesChoice::Auto => HugePages::Auto,
            HugePagesChoice::Never => HugePages::Never,
        },
        prefault_max: config.memory.prefault_max,
    })
    .map_err(|error| Failure::new(ExitStatus::Environment, error))?;
    let scratch = ssd::scratch_of(config);
    let clock = Arc::new(SystemClock::default());
    let datapath = Datapath::new(tier, scratch, clock, settings_of(config), Arc::clone(telemetry));
    let datapath = Arc::new(datapath);
    let unsettled = datapath.recover().map_err(|error| Failure::new(ExitStatus::Failed, error))?;
    Ok((datapath, unsettled))
}

/// What was found is made to fit, with the disks to take what does not.
fn settle(datapath: &Datapath, unsettled: Unsettled) -> Result<(), Failure> {
    let progress = Progress::begin();
    let settled = datapath.settle(unsettled, || {
        if progress.is_due() {
            tracing::info!("what there is no room for any more leaves memory before the mount");
        }
        StopSignal.is_set()
    });
    let recovered = settled.map_err(|error| Failure::new(ExitStatus::Failed, error))?;
    if recovered.objects + recovered.removed + recovered.corrupt > 0 {
        tracing::info!(
            objects = recovered.objects,
            bytes = %recovered.bytes,
            directories = recovered.directories,
            removed = recovered.removed,
            corrupt = recovered.corrupt,
            "took over what an earlier daemon sealed"
        );
    }
    Ok(())
}

/// Whether this start mounted the memory, and nothing is in it: what an earlier daemon kept is not.
fn is_new_and_empty(tier: &MemoryTier) -> bool {
    let report = tier.report();
    let is_new = report.private_mount && !report.adopted;
    is_new && tier.usage().is_ok_and(|usage| usage.used == ByteCount::ZERO)
}

fn mount_failure(error: MountError) -> Failure {
    let status = match error {
        MountError::NoDevice { .. } | MountError::NoPassthrough { .. } => ExitStatus::Environment,
        MountError::Refused { .. } => ExitStatus::MountPoint,
        MountError::Handshake { .. } | MountError::Thread(_) => ExitStatus::Failed,
    };
    Failure::new(status, error)
}

/// What is told of a session that ended though nobody asked for it.
fn session_failure(mount_dir: &Path, error: Option<io::Error>) -> Failure {
    let cause = error.map_or("the kernel aborted its connection".to_owned(), |error| error.to_string());
    let text =
        format!("the session on `{}` ended by itself: {cause}; start the daemon again", mount_dir.display());
    Failure::new(ExitStatus::Failed, text)
}

impl Daemon {
    /// `follows_another`: an earlier daemon used this state directory.
    fn start(
        effective: Effective,
        secrets: Secrets,
        mount_dir: &Path,
        follows_another: bool,
    ) -> Result<Self, Failure> {
        let telemetry = Arc::new(Telemetry::default());
        let (datapath, unsettled) = open_datapath(&effective, &telemetry)?;
        if follows_another {
            datapath.follows_another();
        }
        let discards = effective.config.runtime.on_stop == OnStop::Discard;
        Self::start_on(&datapath, unsettled, effective, secrets, mount_dir, &telemetry).inspect_err(|_| {
            if discards || is_new_and_empty(datapath.tier()) {
                // Nothing was served, so what cannot be freed here is an empty tmpfs.
                let _ = datapath.tier().discard();
            }
        })
    }

    /// A member whose mount fails leaves its cluster at once: nobody waits for what it does not serve.
    fn start_on(
        datapath: &Arc<Datapath>,
        unsettled: Unsettled,
        effective: Effective,
        secrets: Secrets,
        mount_dir: &Path,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Self, Failure> {
        let unnamed = ssd::attach(datapath, &effective, || StopSignal.is_set())?;
        settle(datapath, unsettled)?;
        let membership = cluster::join(datapath, &effective, secrets)?;
        let joining = membership.as_ref().map(cluster::Membership::joining);
        match Self::mount(datapath, effective, mount_dir, telemetry, joining, unnamed) {
            Ok(daemon) => Ok(Self { membership, ..daemon }),
            Err(failure) => {
                if let Some(membership) = membership {
                    membership.end();
                }
                Err(failure)
            }
        }
    }

    /// Mounts and starts all that serves. A failure leaves no mount.
    fn mount(
        datapath: &Arc<Datapath>,
        effective: Effective,
        mount_dir: &Path,
        telemetry: &Arc<Telemetry>,
        joining: Option<Arc<dyn Joining>>,
        unnamed: Option<Unnamed>,
    ) -> Result<Self, Failure> {
        let effective = Arc::new(effective);
        let background = Arc::new(Background::default());
        let disks = ssd::Disks::new(datapath, &effective, &background);
        let operations = Arc::new(DaemonOperations::new(
            Arc::clone(datapath),
            Arc::clone(&effective),
            mount_dir.to_owned(),
            Box::new(disks),
        ));
        if let Some(joining) = joining {
            operations.set_joining(joining);
        }
        let files = ControlFiles::new(operations.control_files());
        clear_stale_mount(mount_dir)?;
        let settings = session_settings(&effective.config, mount_dir);
        let session =
            Session::start(datapath, Arc::new(files), &settings, telemetry).map_err(mount_failure)?;
        let facts = session.facts();
        operations.set_facts(DaemonFacts {
            passthrough: facts.passthrough,
            passthrough_reason: facts.passthrough_reason.clone(),
            threads: u32::try_from(facts.threads).unwrap_or(u32::MAX),
            kernel_abi: facts.kernel_abi.clone(),
            flags: facts.flags.clone(),
            started_at: SystemTime::now(),
        });
        if let Some(reason) = &session.facts().passthrough_reason {
            tracing::warn!(
                reason,
                "files are served by the daemon, not by the kernel: expect a third of the speed"
            );
        }
        // Before anybody can add a disk, which has its own threads.
        if let Err(error) = background.start(datapath, unnamed) {
            background.ask_to_stop();
            // Whatever it ends with, the failure is that of the thread.
            let _ = session.stop(STOP_PATIENCE);
            background.join();
            return Err(Failure::new(ExitStatus::Failed, format!("cannot start a thread: {error}")));
        }
        let control = match ControlServer::start(&effective.state.control_socket, operations) {
            Ok(control) => Some(control),
            Err(error) => {
                tracing::warn!(%error, "the admin socket is not available; `tidefs status` and the like will not work");
                None
            }
        };
        let (datapath, mount_dir) = (Arc::clone(datapath), mount_dir.to_owned());
        Ok(Self { datapath, session, control, background, membership: None, mount_dir, effective })
    }

    /// Says that the mount is up, serves until a signal or an unmount from outside, and stops. That the session fails ends it
    /// too, as a failure, so that a service manager starts the daemon again.
    fn run_until(self, stop: &StopSignal) -> Result<(), Failure> {
        tell(io::stdout(), format_args!("tidefs: mounted on {}", self.mount_dir.display()));
        // Without a service manager there is nobody to tell.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        let mut may_shrink = true;
        while !stop.is_set() && !self.session.is_over() {
            self.datapath.tier().names_clock().beat();
            if may_shrink && let Err(error) = self.datapath.tier().retry_resize() {
                tracing::warn!(%error, "the memory stays larger than its capacity");
                may_shrink = false;
            }
            self.datapath.expire();
            self.datapath.count_growth();
            self.datapath.sweep();
            self.datapath.bound_kernel_inodes();
            thread::sleep(HOUSEKEEPING_INTERVAL);
        }
        let has_failed = !stop.is_set() && self.session.has_failed();
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        self.stop(has_failed)
    }

    fn stop(self, has_failed: bool) -> Result<(), Failure> {
        self.background.ask_to_stop();
        let failure = if has_failed {
            Some(session_failure(&self.mount_dir, self.session.abandon().err()))
        } else {
            if let Err(error) = self.session.stop(STOP_PATIENCE) {
                tracing::warn!(%error, "the session ended with an error");
            }
            None
        };
        if let Some(control) = self.control {
            control.stop();
        }
        self.background.join();
        if let Some(membership) = self.membership {
            membership.end();
        }
        if let Some(ssd) = self.datapath.ssd() {
            ssd.stop();
        }
        let usage = self.datapath.tier().usage().ok();
        match self.effective.config.runtime.on_stop {
            // The next daemon goes on with it, as after one that was killed.
            _ if failure.is_some() => {}
            OnStop::Discard => {
                self.datapath.tier().discard().map_err(|error| Failure::new(ExitStatus::Failed, error))?
            }
            OnStop::Keep => {
                if let Some(used) = usage.map(|usage| usage.used).filter(|used| *used > ByteCount::ZERO) {
                    let (directory, option) = (quoted(&self.mount_dir), self.effective.state_dir_option());
                    let what = "of objects in memory for the next start; free them with";
                    let command = format_args!("`tidefs umount {directory} --discard{option}`");
                    tell(io::stderr(), format_args!("tidefsd: keeps {used} {what} {command}"));
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }
}
