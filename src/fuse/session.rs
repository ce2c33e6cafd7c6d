//! A mounted session: how it is opened, with its [handshake](super::handshake), the threads, and the way out.
//!
//! Threads: started here are those that answer the kernel, `notifier`, `waiter`, `follower`, and those that load. The end of any is
//! the end of the session.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use nix::mount::{MntFlags, umount2};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use tidefs_control_api::mounts::{self, MountTable};

use super::alive::Alive;
use super::attributes::Lifetimes;
use super::control_files::ControlFiles;
use super::dispatch::{CONTROL_HANDLES, Dispatcher};
use super::follow::{self, Follower};
use super::handshake::{SessionFacts, facts_of, may_register_backings};
use super::kernel::Kernel;
use super::mount::{self, MountError};
use super::waiter::{self, Waiter};
use crate::datapath::Datapath;

/// How long the mount of a session that ended may be on its way out: an unmount by force ends the session first.
const UNMOUNT_GRACE: Duration = Duration::from_secs(1);
/// How fuser names the threads that answer the kernel, before their numbers.
const THREAD_PREFIX: &str = "fuser-";
/// Between two looks at what is waited for.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// What an operator may choose of a session.
#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// Where to mount.
    pub directory: PathBuf,
    /// Session threads.
    pub threads: usize,
    /// Whether other users may enter.
    pub allow_other: bool,
    /// Whether programs may be run from the mount.
    pub exec: bool,
    /// What mounts are listed with as their device.
    pub source: String,
    /// Whether the kernel should serve files itself if it can.
    pub passthrough: bool,
    /// Whether what the daemon serves goes through the page cache; `None`: where shared mappings need it.
    pub page_cache: Option<bool>,
    /// Whether it is an error if it cannot.
    pub passthrough_required: bool,
    /// How long the kernel may believe names and attributes.
    pub entry_ttl: Duration,
    /// How long it may believe that a name stands for nothing.
    pub negative_ttl: Duration,
    /// Requests that may be in flight without a caller waiting: releases, readahead, asynchronous I/O.
    pub max_background: u16,
    /// Objects that are brought back from the SSD tier, or fetched from other members, at once.
    pub loads: usize,
}

/// A mount that we made, rather than the set-uid helper, whose fuser takes away. It goes with the value.
#[derive(Debug)]
struct OwnMount(PathBuf);

impl OwnMount {
    /// Leaves it to others to take the mount away. There is one in a process, so what it holds may stay.
    fn release(self) {
        std::mem::forget(self);
    }
}

impl Drop for OwnMount {
    fn drop(&mut self) {
        if let Err(error) = umount2(&self.0, MntFlags::MNT_DETACH) {
            tracing::warn!(directory = %self.0.display(), %error, "a mount that serves nothing cannot be taken away");
        }
    }
}

/// A mount that is up. Dropping it without [`Session::stop`] takes the mount away, and waits for nothing.
#[derive(Debug)]
pub struct Session {
    own: Option<OwnMount>,
    background: BackgroundSession,
    directory: PathBuf,
    facts: SessionFacts,
    helpers: Vec<JoinHandle<()>>,
    /// Those that answer the kernel.
    threads: Alive,
    datapath: Arc<Datapath>,
}

impl Session {
    /// Mounts `datapath` and starts serving.
    ///
    /// # Errors
    /// [`MountError`], and then nothing is mounted.
    pub fn start(
        datapath: &Arc<Datapath>,
        control: Arc<ControlFiles>,
        settings: &SessionSettings,
        telemetry: &Arc<crate::telemetry::Telemetry>,
    ) -> Result<Self, MountError> {
        let (kernel, messages) = Kernel::new(Arc::clone(telemetry));
        let (waiter, arrivals) = Waiter::new();
        let (follower, followers) = Follower::new();
        let lifetimes = Lifetimes { settled: settings.entry_ttl, absent: settings.negative_ttl };
        let handshake = Arc::new(OnceLock::new());
        let may_register = may_register_backings();
        let wants_passthrough = settings.passthrough && may_register;
        let dispatcher = Dispatcher {
            datapath: Arc::clone(datapath),
            kernel: Arc::clone(&kernel),
            control,
            fast: super::fast_files::FastFiles::default(),
            waiter,
            follower,
            lifetimes,
            max_background: settings.max_background,
            wants_passthrough,
            wants_page_cache: settings.page_cache,
            handshake: Arc::clone(&handshake),
            control_handles: AtomicU64::new(CONTROL_HANDLES),
        };
        let Opened { own, session, device } = open_session(dispatcher, settings)?;
        let facts = facts_of(handshake.get(), settings, may_register, &session);
        if let (true, Some(reason)) = (settings.passthrough_required, &facts.passthrough_reason) {
            return Err(MountError::NoPassthrough { reason: reason.clone() });
        }
        let notifier = session.notifier();
        kernel.serve_through_page_cache(facts.page_cache);
        if facts.page_cache && settings.page_cache.is_none() {
            tracing::warn!(
                "reads and writes go through the page cache, without which this kernel maps no file shared (Linux 6.6 \
                 does): fuse.passthrough=never reads faster where nobody maps files"
            );
        }
        kernel.connect(notifier.clone(), device.as_ref().and_then(|device| device.try_clone().ok()));
        datapath.attach_kernel(kernel, facts.passthrough);
        let counters = Arc::clone(telemetry);
        let waited_for = Arc::clone(datapath);
        let followed = Arc::clone(datapath);
        let mut helpers = vec![
            helper("notifier", move || messages.run(&notifier, device, &counters))?,
            helper("waiter", move || waiter::run(&waited_for, &arrivals))?,
            helper("follower", move || follow::run(&followed, &followers))?,
        ];
        let has_lower_tier = datapath.ssd().is_some() || datapath.is_in_cluster();
        // With memory alone one is left, for what is not done on a session thread whatever it is of.
        let loads = if has_lower_tier { settings.loads } else { 1 };
        for index in 0..loads {
            let datapath = Arc::clone(datapath);
            helpers.push(helper(&format!("load-{index}"), move || datapath.run_loads())?);
        }
        let background = session.spawn().map_err(MountError::Thread)?;
        let threads = Alive::find(THREAD_PREFIX, facts.threads, || background.guard.is_finished());
        let threads = threads.map_err(MountError::Thread)?;
        Ok(Self {
            own,
            background,
            directory: settings.directory.clone(),
            facts,
            helpers,
            threads,
            datapath: Arc::clone(datapath),
        })
    }

    /// What was agreed with the kernel.
    #[must_use]
    pub fn facts(&self) -> &SessionFacts {
        &self.facts
    }

    /// Whether the session has ended by itself: somebody unmounted the directory, or it failed, be it in one of its threads:
    /// a daemon that lacks one leaves programs waiting.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.background.guard.is_finished() || self.lost().is_some()
    }

    /// The name of a thread that ended before the session did.
    fn lost(&self) -> Option<&str> {
        let helper = self.helpers.iter().find(|helper| helper.is_finished());
        helper.map(|helper| helper.thread().name().unwrap_or_default()).or_else(|| self.threads.lost())
    }

    /// Whether a session that is over failed: its mount is there still, and answers nobody.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let deadline = Instant::now() + UNMOUNT_GRACE;
        while self.is_over() && self.is_mounted() {
            if Instant::now() >= deadline {
                return true;
            }
            thread::sleep(LOOK_INTERVAL);
        }
        false
    }

    /// Whether the mount table has it. No other daemon mounts there: ours holds the lock of the mount point.
    fn is_mounted(&self) -> bool {
        MountTable::read().is_ok_and(|table| table.tidefs_at(&self.directory).is_some())
    }

    /// Leaves the mount of a session that failed as a killed daemon does: until the next one takes it over, programs meet an
    /// error, and write nothing into the directory below it.
    ///
    /// # Errors
    /// What the session ended with.
    pub fn abandon(mut self) -> io::Result<()> {
        if let Some(own) = self.own.take() {
            own.release();
        }
        if let (false, Some(name)) = (self.background.guard.is_finished(), self.lost()) {
            let error = io::Error::other(format!("its thread `{name}` ended"));
            self.datapath.loader().close();
            // The others answer until the process ends, and the mount is left to the next daemon.
            std::mem::forget(self.background);
            return Err(error);
        }
        self.join()
    }

    /// Unmounts and waits at most `patience` until the last open file is closed.
    ///
    /// Programs that still have files open keep those that the kernel serves; others fail with ENOTCONN.
    ///
    /// # Errors
    /// What the session ended with. That files are still open is none.
    pub fn stop(mut self, patience: Duration) -> io::Result<()> {
        if let Some(own) = self.own.take() {
            own.release();
        }
        // What else is mounted there is not ours to take away.
        if self.is_mounted()
            && let Err(error) = mounts::detach(&self.directory)
        {
            tracing::warn!(%error, "the mount cannot be taken away");
        }
        let deadline = Instant::now() + patience;
        while !self.background.guard.is_finished() {
            if Instant::now() >= deadline {
                tracing::warn!("files are still open below the mount; their programs lose it now");
                return Ok(());
            }
            thread::sleep(LOOK_INTERVAL);
        }
        self.join()
    }

    fn join(self) -> io::Result<()> {
        self.datapath.loader().close();
        drop(self.helpers);
        self.background.join()
    }
}

/// A session that nobody serves yet.
struct Opened {
    /// What unmounts it, and a descriptor of its device, where we opened that ourselves.
    own: Option<OwnMount>,
    session: fuser::Session<Dispatcher>,
    device: Option<File>,
}

/// Mounts.
fn open_session(dispatcher: Dispatcher, settings: &SessionSettings) -> Result<Opened, MountError> {
    let mut config = Config::default();
    config.n_threads = Some(settings.threads.max(1));
    config.clone_fd = true;
    config.acl = if settings.allow_other { SessionACL::All } else { SessionACL::Owner };
    let directory = settings.directory.clone();
    let device = mount::open_device()?;
    match mount::mount_device(&device, settings) {
        Ok(()) => {
            let (own, acl) = (Some(OwnMount(directory.clone())), config.acl);
            // Without it the kernel is not asked to drop inodes, which it also does by itself.
            let again = device.try_clone().ok();
            let session = fuser::Session::from_fd(dispatcher, mount::into_descriptor(device), acl, config)
                .map_err(|source| MountError::Handshake { directory, source })?;
            Ok(Opened { own, session, device: again })
        }
        Err(nix::errno::Errno::EPERM) => {
            // Not root: the set-uid helper of fuse3 mounts for us.
            drop(device);
            config.mount_options = vec![
                MountOption::FSName(settings.source.clone()),
                MountOption::Subtype("tidefs".to_owned()),
                MountOption::DefaultPermissions,
                if settings.exec { MountOption::Exec } else { MountOption::NoExec },
            ];
            let session = fuser::Session::new(dispatcher, &directory, &config)
                .map_err(|source| mount::not_mounted(directory, source))?;
            Ok(Opened { own: None, session, device: None })
        }
        Err(errno) => {
            let source = io::Error::from(errno);
            Err(MountError::Refused { hint: mount::hint(&source), directory, source })
        }
    }
}

fn helper(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, MountError> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(MountError::Thread)
}

/// Pins a session thread to a CPU of its own, once: with a thread per CPU that is worth a factor of two.
pub(super) fn pin_this_thread() {
    thread_local! {
        static PINNED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }
    if PINNED.replace(true) {
        return;
    }
    let index = thread::current()
        .name()
        .and_then(|name| name.strip_prefix(THREAD_PREFIX))
        .and_then(|index| index.parse::<usize>().ok());
    let this = Pid::from_raw(0);
    let (Some(index), Ok(allowed)) = (index, sched_getaffinity(this)) else { return };
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap_or(false)).collect();
    let Some(&cpu) = (!cpus.is_empty()).then(|| &cpus[index % cpus.len()]) else { return };
    let mut one = CpuSet::new();
    if one.set(cpu).and_then(|()| sched_setaffinity(this, &one)).is_err() {
        tracing::debug!(cpu, "a session thread could not be pinned");
    }
}

#[cfg(test)]
mod tests {
    use nix::mount::{MsFlags, mount};

    use super::*;

    #[test]
    fn a_mount_of_ours_goes_with_its_value_until_others_are_to_take_it_away() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().canonicalize().unwrap();
        let is_mounted = || MountTable::read().unwrap().at(&path).is_some();
        let make = || mount(Some("none"), &path, Some("tmpfs"), MsFlags::empty(), None::<&str>);
        if let Err(error) = make() {
            eprintln!("SKIPPED: this user may not mount: {error}");
            return;
        }
        assert!(is_mounted());
        drop(OwnMount(path.clone()));
        assert!(!is_mounted());
        make().unwrap();
        OwnMount(path.clone()).release();
        assert!(is_mounted());
        umount2(&path, MntFlags::MNT_DETACH).unwrap();
    }
}
