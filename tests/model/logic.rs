//! The daemon's logic on a real private tmpfs, with a clock moved by hand and this file in the place of the kernel:
//! it resolves paths, counts references, and looks a name up again when it is told that it is stale.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;
use tidefs::datapath::{Caller, Datapath, Error, HandleId, Kind, Lookup, News, Patience};
use tidefs::namespace::{Ino, ThreadId};
use tidefs::telemetry::Telemetry;
use tidefs::tier::memory::{HugePages, MemoryConfig, MemoryTier};
use tidefs::tier::scratch::Scratch;
use tidefs_engine::time::{Clock, SimClock};
use tidefs_engine::types::ByteCount;

use super::setup::Setup;
use super::system::{Facts, Token};

mod again;
mod ahead;
mod below;
mod calls;
mod counting;
mod depth;
mod expected;
mod expiry;
mod fate;
mod interleaved;
mod late_close;
mod leftover;
mod made_anew;
mod meanwhile;
mod member;
mod member_closes;
mod member_removes;
mod packed;
mod policy;
mod resent;
mod restarted;
mod rewriting;
mod soft;
mod ssd;
mod ssd_records;

/// Thread ids above any that Linux gives out: each stands for a process of its own.
const FIRST_THREAD: u32 = 4_200_001;
/// Disk space for slot files.
const SCRATCH_CAPACITY: ByteCount = ByteCount::mib(64);

/// A daemon without a kernel.
#[derive(Debug)]
pub(crate) struct Logic {
    setup: Setup,
    base: TempDir,
    clock: Arc<SimClock>,
    datapath: Option<Arc<Datapath>>,
    references: BTreeMap<Ino, u64>,
    handles: HashMap<Token, (HandleId, Ino)>,
    next: Token,
    /// What the disk takes in a day.
    bytes_per_day: Option<ByteCount>,
    /// What the other members are to be told of the old name of what was renamed last.
    left: News,
}

fn errno(error: Error) -> Errno {
    match error {
        Error::NoObject => Errno::ENOENT,
        Error::Stale => Errno::ESTALE,
        Error::Exists => Errno::EEXIST,
        Error::NotDirectory => Errno::ENOTDIR,
        Error::IsDirectory => Errno::EISDIR,
        Error::NotEmpty => Errno::ENOTEMPTY,
        Error::NameTooLong | Error::TooDeep => Errno::ENAMETOOLONG,
        Error::Invalid(_) => Errno::EINVAL,
        Error::Unsupported(_) => Errno::EOPNOTSUPP,
        Error::NotPermitted(_) => Errno::EPERM,
        Error::Denied => Errno::EACCES,
        Error::OverQuota { .. } => Errno::EDQUOT,
        Error::NothingEvictable { .. } | Error::ScratchFull(_) | Error::AttributesFull => Errno::ENOSPC,
        Error::TooLarge { .. } | Error::TooLong => Errno::EFBIG,
        Error::OtherPlace => Errno::EXDEV,
        Error::NoAttribute => Errno::ENODATA,
        Error::BadHandle => Errno::EBADF,
        Error::NotAgreed | Error::AgreementsFull | Error::Unanswered => panic!("there is no cluster"),
        Error::Overloaded => panic!("too few wait for a thread in these tests"),
        // No disk fails in these tests, so this is always a bug.
        Error::Io { operation, source } => panic!("EIO: {operation}: {source}"),
    }
}

fn caller(who: usize) -> Caller {
    Caller { uid: 0, gid: 0, thread: ThreadId(FIRST_THREAD + u32::try_from(who).expect("a small index")) }
}

impl Logic {
    /// An empty cache on a tmpfs of its own.
    pub(crate) fn new(setup: Setup) -> Self {
        let base = tempfile::Builder::new().prefix("tidefs-model-").tempdir().expect("a temporary directory");
        std::fs::create_dir(base.path().join("memory")).expect("a directory for the tmpfs");
        let clock = Arc::new(SimClock::default());
        let mut logic = Self {
            setup,
            base,
            clock,
            datapath: None,
            references: BTreeMap::new(),
            handles: HashMap::new(),
            next: 1,
            bytes_per_day: None,
            left: News::default(),
        };
        logic.keep_up();
        logic.start();
        logic
    }

    /// Moves the clock to the time that it is, unless it is ahead: the kernel stamps the files of the tier with that.
    fn keep_up(&self) {
        let behind = SystemTime::now().duration_since(self.clock.wall());
        self.clock.advance(behind.unwrap_or_default());
    }

    fn memory(&self) -> PathBuf {
        self.base.path().join("memory").canonicalize().expect("the directory exists")
    }

    fn start(&mut self) {
        self.start_and_name(true);
    }

    /// `names`: whether what is on disk has its names from the start on, and not when it is asked for first.
    fn start_and_name(&mut self, names: bool) {
        let tier = MemoryTier::open(&MemoryConfig {
            directory: self.memory(),
            capacity: self.setup.capacity,
            huge_pages: HugePages::Never,
            prefault_max: ByteCount::ZERO,
        })
        .expect("the tier opens");
        let settings = self.setup.settings(&*self.clock);
        let scratch = Scratch::new(vec![self.base.path().join("scratch")], true, SCRATCH_CAPACITY);
        let clock: Arc<dyn Clock> = Arc::<SimClock>::clone(&self.clock);
        let datapath = Datapath::new(tier, scratch, clock, settings, Arc::new(Telemetry::default()));
        let unsettled = datapath.recover().expect("recovery");
        let datapath = Arc::new(datapath);
        let has_ssd = self.setup.has_ssd;
        let attached = has_ssd.then(|| datapath.attach_ssd(self.open_ssd()).expect("the disk is in use"));
        // As a daemon does where memory has to give something up before it is mounted.
        let usage = datapath.tier().usage().expect("the tier answers");
        let is_outgrown = usage.used > usage.capacity;
        let mut unnamed = attached.map(|(_, unnamed)| unnamed);
        if let Some(unnamed) = unnamed.take_if(|_| is_outgrown) {
            datapath.name_objects(unnamed, || false);
        }
        datapath.settle(unsettled, || false).expect("the tier answers");
        if let Some(unnamed) = unnamed {
            datapath.name_objects(unnamed, || !names);
        }
        self.datapath = Some(datapath);
    }

    fn datapath(&self) -> &Arc<Datapath> {
        self.datapath.as_ref().expect("the daemon runs")
    }

    fn lookup(&mut self, who: usize, parent: Ino, name: &str) -> Result<(Ino, Kind, Facts), Errno> {
        self.look_up_as(&caller(who), parent, name)
    }

    fn look_up_as(&mut self, caller: &Caller, parent: Ino, name: &str) -> Result<(Ino, Kind, Facts), Errno> {
        match self.datapath().lookup(caller, parent, name.as_bytes(), Patience::None).map_err(errno)? {
            Lookup::Found { stat, .. } => {
                *self.references.entry(stat.ino).or_default() += 1;
                let facts = Facts {
                    is_directory: stat.kind == Kind::Directory,
                    size: stat.size.get(),
                    mode: stat.attributes.mode.into(),
                    mtime_ns: Some(stat.attributes.mtime_ns),
                };
                Ok((stat.ino, stat.kind, facts))
            }
            Lookup::Absent { .. } | Lookup::Ask => Err(Errno::ENOENT),
            Lookup::Wait | Lookup::Name | Lookup::Long => panic!("a look-up waits though it was told not to"),
        }
    }

    /// The directory that holds `path`, and the last name.
    fn parent<'a>(&mut self, who: usize, path: &'a str) -> Result<(Ino, &'a str), Errno> {
        let (directories, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.resolve(who, directories)?, name))
    }

    fn resolve(&mut self, who: usize, path: &str) -> Result<Ino, Errno> {
        let mut ino = Ino::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            ino = self.lookup(who, ino, name)?.0;
        }
        Ok(ino)
    }

    fn note(&mut self, handle: HandleId, ino: Ino) -> Token {
        self.next += 1;
        self.handles.insert(self.next, (handle, ino));
        self.next
    }

    fn handle(&self, token: Token) -> (HandleId, Ino) {
        self.handles[&token]
    }

    fn forget_closed(&mut self) {
        let open: Vec<Ino> = self.handles.values().map(|&(_, ino)| ino).collect();
        let closed: Vec<(Ino, u64)> = self
            .references
            .iter()
            .filter(|(ino, _)| !open.contains(ino))
            .map(|(&ino, &count)| (ino, count))
            .collect();
        for (ino, count) in closed {
            self.references.remove(&ino);
            self.datapath().forget(ino, count);
        }
    }

    fn done<T>(&mut self, outcome: T) -> T {
        if self.setup.forgets_at_once {
            self.forget_closed();
        }
        outcome
    }
}

impl Drop for Logic {
    fn drop(&mut self) {
        self.handles.clear();
        self.datapath = None;
        while umount2(&self.base.path().join("memory"), MntFlags::MNT_DETACH).is_ok() {}
    }
}
