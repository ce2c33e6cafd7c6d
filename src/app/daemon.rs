//! The running parts of the daemon: how they are put together over the configuration, what is done while they serve, and how they
//! end.
//!
//! Invariants
//! - A start that fails takes back what it did: its mount, its threads, its membership, and memory with nothing in it.
//! - The session ends before what serves it, and a member leaves its cluster before its disks stop.
//!
//! Threads: that of the process, which removes what has expired and the like until a signal comes, or the session ends.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tidefs_control_api::shell::quoted;
use tidefs_engine::time::SystemClock;
use tidefs_engine::types::ByteCount;

use super::background::Background;
use super::log_file::LogFile;
use super::mount_point::clear_stale_mount;
use super::progress::Progress;
use super::scratch::scratch_of;
use super::secrets::Secrets;
use super::settings::{session_settings, settings_of};
use super::stop_signal::StopSignal;
use super::{Failure, cluster, memory_groups, ssd, tell};
use crate::config::{Effective, ExitStatus, HugePages as HugePagesChoice, OnStop};
use crate::control::{ControlServer, DaemonFacts, DaemonOperations, Joining};
use crate::datapath::{Datapath, Unsettled};
use crate::fuse::{ControlFiles, MountError, Session};
use crate::telemetry::Telemetry;
use crate::tier::memory::{HugePages, MemoryConfig, MemoryTier};
use crate::tier::ssd::Unnamed;

/// How long a stop waits for programs to close their files.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// How often expired objects are looked for.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(250);

/// The running parts.
#[derive(Debug)]
pub(super) struct Daemon {
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
    let scratch = scratch_of(effective);
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
        MountError::NoDevice { .. } | MountError::NoRight { .. } | MountError::NoPassthrough { .. } => {
            ExitStatus::Environment
        }
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
    pub(super) fn start(
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
        let settings = session_settings(&effective.config, mount_dir, datapath.ssd().is_some());
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
            started: Instant::now(),
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
    pub(super) fn run_until(self, stop: &StopSignal) -> Result<(), Failure> {
        tell(io::stdout(), format_args!("tidefs: mounted on {}", self.mount_dir.display()));
        // Without a service manager there is nobody to tell.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        let mut log = LogFile::of(&self.effective.instance);
        let mut may_shrink = true;
        while !stop.is_set() && !self.session.is_over() {
            self.datapath.tier().names_clock().beat();
            if may_shrink && let Err(error) = self.datapath.tier().retry_resize() {
                tracing::warn!(%error, "the memory stays larger than its capacity");
                may_shrink = false;
            }
            self.datapath.expire_until(|| stop.is_set());
            self.datapath.count_growth();
            self.datapath.sweep();
            self.datapath.bound_kernel_inodes();
            log.iter_mut().for_each(LogFile::bound);
            stop.wait(HOUSEKEEPING_INTERVAL);
        }
        let has_failed = !stop.is_set() && self.session.has_failed();
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        self.stop(has_failed)
    }

    fn stop(self, has_failed: bool) -> Result<(), Failure> {
        let failure = if has_failed {
            Some(session_failure(&self.mount_dir, self.session.abandon().err()))
        } else {
            if let Err(error) = self.session.stop(STOP_PATIENCE) {
                tracing::warn!(%error, "the session ended with an error");
            }
            None
        };
        // Until then programs write, and need the room that is kept for them.
        self.background.ask_to_stop();
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
