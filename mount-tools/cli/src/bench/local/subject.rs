//! The mount that `tidefs bench local` measures: one of daemons of its own, or one that is there and that others use.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use tidefs_engine::types::ByteCount;

use super::{BASELINE_SIZE, FULL, LocalArgs, NAMESPACE, placements};
use crate::bench::affinity::Placement;
use crate::bench::cleanup::Directory;
use crate::bench::daemon::{self, Daemon};
use crate::bench::error::Error;
use crate::bench::mount::{PrivateTmpfs, make_directory};

/// Capacity of the daemon whose cache is never full. Only the bytes in use take memory.
const ROOMY: ByteCount = ByteCount::gib(3);
/// How the directory of the bench on a mount of others begins, where the name may be taken.
const NAMESPACE_PREFIX: &str = "bench-";

/// The mounts under test and who serves them.
#[derive(Debug)]
pub(super) struct Subject {
    /// Root of the mount.
    pub(super) root: PathBuf,
    /// Process that serves it, where the bench moves or stops that.
    pub(super) pid: Option<Pid>,
    /// Whether that process is stopped while some samples are read.
    pub(super) is_stopped: bool,
    /// A daemon with a small capacity.
    pub(super) full: Option<Daemon>,
    /// A daemon that may not use passthrough.
    pub(super) direct: Option<Daemon>,
    /// The daemon of `root`, when the bench started it.
    _daemon: Option<Daemon>,
    /// The stand-in for a mount in a self-check.
    pub(super) stand_in: Option<PrivateTmpfs>,
}

impl Subject {
    /// The mount that `args` name, else one of a daemon of its own, with others beside it.
    ///
    /// # Errors
    /// When a daemon does not start, or that of a mount is not known and is to be touched.
    pub(super) fn new(args: &LocalArgs, notes: &mut Vec<String>) -> Result<Self, Error> {
        let mut subject = Self {
            root: PathBuf::new(),
            pid: None,
            is_stopped: false,
            full: None,
            direct: None,
            _daemon: None,
            stand_in: None,
        };
        if args.self_check {
            let stand_in = PrivateTmpfs::mount(BASELINE_SIZE)?;
            subject.root = stand_in.path().to_owned();
            subject.stand_in = Some(stand_in);
            notes.push("self-check: the mount is a second tmpfs".to_owned());
        } else if let Some(mount) = &args.mount {
            subject.take_as_it_is(args, mount, notes)?;
        } else {
            let binary = args.daemons.binary();
            let start = |capacity, more: &[&str]| {
                let more = more.iter().map(|option| (*option).to_owned());
                let options: Vec<_> = args.daemons.options.iter().cloned().chain(more).collect();
                Daemon::start(&binary, capacity, &options)
            };
            let daemon = start(ROOMY, &[])?;
            subject.root = daemon.mount().to_owned();
            subject.pid = Some(daemon.pid());
            subject.is_stopped = true;
            subject.full = Some(start(FULL, &[])?);
            subject.direct = Some(start(ROOMY, &["passthrough=never"])?);
            subject._daemon = Some(daemon);
        }
        Ok(subject)
    }

    /// Measures `mount`, whose daemon serves others, too.
    fn take_as_it_is(
        &mut self,
        args: &LocalArgs,
        mount: &Path,
        notes: &mut Vec<String>,
    ) -> Result<(), Error> {
        mount.clone_into(&mut self.root);
        let status = daemon::status_of(mount)?;
        let left_out = "the full cache, the mode without passthrough and the packed objects";
        notes.push(format!("--mount: {left_out} are left out, they need daemons of their own"));
        let is_pinned = placements(args).contains(&Placement::Pinned);
        if is_pinned || args.stop_daemon {
            self.pid = Some(daemon::pid_of_mount(mount, &status)?);
        }
        if !is_pinned {
            notes.push("--mount: pinned rows are left out, --both has them; they pin its daemon".to_owned());
        }
        self.is_stopped = args.stop_daemon && status.fuse.passthrough;
        if args.stop_daemon && !self.is_stopped {
            notes.push(
                "reads from a stopped daemon are left out: without passthrough it serves each".to_owned(),
            );
        } else if !self.is_stopped {
            notes
                .push("--mount: reads from a stopped daemon are left out, --stop-daemon has them".to_owned());
        }
        Ok(())
    }

    /// The processes that are pinned.
    pub(super) fn pids(&self) -> Vec<Pid> {
        let others = [&self.full, &self.direct].into_iter().flatten().map(Daemon::pid);
        self.pid.into_iter().chain(others).collect()
    }
}

/// The directory of the bench on the mount under test.
#[derive(Debug)]
pub(super) enum Place {
    /// Goes with its mount.
    OnOwnMount(PathBuf),
    /// Removed with what is in it.
    AmongOthers(Directory),
}

impl Place {
    /// Makes it.
    ///
    /// # Errors
    /// What mkdir(2) says.
    pub(super) fn on(subject: &Subject, args: &LocalArgs) -> Result<Self, Error> {
        if args.mount.is_none() {
            return make_directory(&subject.root, NAMESPACE).map(Self::OnOwnMount);
        }
        let made = Directory::new_in(NAMESPACE_PREFIX, &subject.root);
        made.map(Self::AmongOthers).map_err(Error::file("make a directory on", &subject.root))
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::OnOwnMount(path) => path,
            Self::AmongOthers(directory) => directory.path(),
        }
    }

    /// Its name, which the directory of the baseline has too: a longer one takes the kernel longer.
    pub(super) fn name(&self) -> &str {
        self.path().file_name().and_then(OsStr::to_str).unwrap_or(NAMESPACE)
    }
}
