//! The daemon's logic on a real private tmpfs, with a clock moved by hand and this file in the place of the kernel:
//! it resolves paths, counts references, and looks a name up again when it is told that it is stale.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;
use tidefs::datapath::{
    AttributeChange, Caller, Datapath, Error, Fate, HandleId, Kind, Lookup, OpenOptions, Page, Paged,
    Patience, SizeChange,
};
use tidefs::namespace::{Cookie, Ino, ThreadId, nanos_of};
use tidefs::telemetry::Telemetry;
use tidefs::tier::memory::{HugePages, MemoryConfig, MemoryTier};
use tidefs::tier::scratch::Scratch;
use tidefs_engine::time::{Clock, SimClock};
use tidefs_engine::types::ByteCount;

use super::setup::Setup;
use super::system::{Books, Change, Facts, Open, Reason, Space, System, Token};

mod again;
mod ahead;
mod below;
mod counting;
mod depth;
mod expiry;
mod fate;
mod interleaved;
mod late_close;
mod leftover;
mod meanwhile;
mod member;
mod packed;
mod policy;
mod resent;
mod restarted;
mod soft;
mod ssd;

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
        Error::NotAgreed | Error::Unanswered => panic!("there is no cluster"),
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

impl System for Logic {
    fn open(&mut self, who: usize, path: &str, options: Open) -> Result<Token, Errno> {
        let wanted = OpenOptions {
            read: options.read,
            write: options.write,
            truncate: options.truncate,
            exclusive: options.exclusive,
            cut_to: None,
        };
        let (parent, name) = self.parent(who, path)?;
        match self.lookup(who, parent, name) {
            Err(Errno::ENOENT) if options.create => {}
            Err(error) => return Err(error),
            Ok(_) if options.create && options.exclusive => return Err(Errno::EEXIST),
            Ok((_, Kind::Directory, _)) => return Err(Errno::EISDIR),
            Ok(_) => {
                let open = |datapath: &Datapath, ino| datapath.open(&caller(who), ino, wanted);
                let opened = self.retried_on(who, path, !wanted.wants_nothing(), open);
                match opened {
                    Ok(opened) => {
                        let token = self.note(opened.handle, opened.ino);
                        return Ok(self.done(token));
                    }
                    // Gone since the look-up, by the eviction that this very open asked for.
                    Err(Errno::ENOENT) if options.create => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let token = self.create_or_open(who, parent, name, wanted)?;
        Ok(self.done(token))
    }

    fn inode(&mut self, path: &str) -> Option<u64> {
        self.resolve(super::system::WATCHER, path).ok().map(|ino| ino.0)
    }

    fn close(&mut self, who: usize, token: Token) {
        self.flush(who, token);
        let (handle, _) = self.handle(token);
        self.datapath().release(handle);
        self.handles.remove(&token);
        self.done(());
    }

    fn flush(&mut self, who: usize, token: Token) {
        let (handle, _) = self.handle(token);
        let told = self.datapath().flush(&caller(who), handle);
        // What finds no room as an object is dropped at its release.
        let is_known = matches!(told, Ok(()) | Err(Error::OverQuota { .. } | Error::NothingEvictable { .. }));
        assert!(is_known, "{told:?}");
    }

    fn write(&mut self, _who: usize, token: Token, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.datapath().write(self.handle(token).0, offset, bytes).map_err(errno)
    }

    fn read(&mut self, _who: usize, token: Token, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0xa5; length];
        let count = self.datapath().read(self.handle(token).0, offset, &mut bytes).map_err(errno)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn resize(&mut self, who: usize, token: Token, change: Change) -> Result<(), Errno> {
        let (handle, ino) = self.handle(token);
        let through = Some(handle);
        let outcome = match change {
            Change::Set(length) => {
                let size = Some(ByteCount(length));
                let change = AttributeChange { size, through, ..AttributeChange::default() };
                self.datapath().setattr(&caller(who), ino, &change).map(drop)
            }
            Change::Allocate { offset, length, keep_size } => {
                let (offset, length) = (ByteCount(offset), ByteCount(length));
                let change = SizeChange::Allocate { offset, length, keep_size };
                self.datapath().change_size(&caller(who), ino, through, change)
            }
            Change::Punch { offset, length } => {
                let change = SizeChange::Punch { offset: ByteCount(offset), length: ByteCount(length) };
                self.datapath().change_size(&caller(who), ino, through, change)
            }
        };
        outcome.map_err(errno)
    }

    fn can_allocate(&self, _who: usize) -> bool {
        true
    }

    fn truncate(&mut self, who: usize, path: &str, length: u64) -> Result<(), Errno> {
        let change = AttributeChange { size: Some(ByteCount(length)), ..AttributeChange::default() };
        let cut = |datapath: &Datapath, ino| datapath.setattr(&caller(who), ino, &change).map(drop);
        let outcome = self.retried_on(who, path, length > 0, cut);
        self.done(outcome)
    }

    fn rename(&mut self, who: usize, from: &str, to: &str, keep: bool) -> Result<(), Errno> {
        let (parent, name) = self.parent(who, from)?;
        let (new_parent, new_name) = self.parent(who, to)?;
        let moved = self.lookup(who, parent, name)?;
        // What the kernel refuses before it asks.
        if to.strip_prefix(from).is_some_and(|below| below.starts_with('/')) {
            return Err(Errno::EINVAL);
        }
        if let Ok((target, kind, _)) = self.lookup(who, new_parent, new_name) {
            match (moved.1, kind) {
                _ if keep => return Err(Errno::EEXIST),
                _ if target == moved.0 => return Ok(()),
                (Kind::Directory, Kind::File) => return Err(Errno::ENOTDIR),
                (Kind::File, Kind::Directory) => return Err(Errno::EISDIR),
                _ => {}
            }
        }
        let (source, target) = ((parent, name.as_bytes()), (new_parent, new_name.as_bytes()));
        if let Some(away) = self.datapath().must_load_child(source.0, source.1) {
            self.load(away);
        }
        let outcome = self.datapath().rename(&caller(who), source, target, keep).map_err(errno);
        self.done(outcome)
    }

    fn unlink(&mut self, who: usize, path: &str) -> Result<(), Errno> {
        let (parent, name) = self.parent(who, path)?;
        let outcome = self.datapath().unlink(&caller(who), parent, name.as_bytes()).map_err(errno);
        self.done(outcome)
    }

    fn mkdir(&mut self, who: usize, path: &str) -> Result<(), Errno> {
        let (parent, name) = self.parent(who, path)?;
        let stat =
            self.datapath().make_directory(&caller(who), parent, name.as_bytes(), 0o755).map_err(errno)?;
        *self.references.entry(stat.ino).or_default() += 1;
        self.done(());
        Ok(())
    }

    fn rmdir(&mut self, who: usize, path: &str) -> Result<(), Errno> {
        let (parent, name) = self.parent(who, path)?;
        let outcome = self.datapath().remove_directory(parent, name.as_bytes()).map_err(errno);
        self.done(outcome)
    }

    fn stat(&mut self, who: usize, path: &str) -> Result<Facts, Errno> {
        let (parent, name) = self.parent(who, path)?;
        let facts = self.lookup(who, parent, name).map(|(_, _, facts)| facts);
        self.done(facts)
    }

    fn list(&mut self, who: usize, path: &str) -> Result<Vec<String>, Errno> {
        let directory = self.resolve(who, path)?;
        let (mut names, mut cookie) = (Vec::new(), Cookie::START);
        loop {
            // In pieces, as the kernel asks.
            let before = names.len();
            let page =
                Page { caller: caller(who), directory, after: cookie, holds: false, asked_at_ms: None };
            let paged = self
                .datapath()
                .list(&page, |entry| {
                    if names.len() == before + 3 {
                        return false;
                    }
                    names.push(String::from_utf8_lossy(entry.name.as_bytes()).into_owned());
                    cookie = entry.cookie;
                    true
                })
                .map_err(errno)?;
            assert_eq!(paged, Paged::Done, "a listing waits though it was told not to");
            if names.len() == before {
                break;
            }
        }
        names.sort();
        Ok(self.done(names))
    }

    fn chmod(&mut self, who: usize, path: &str, mode: u32) -> Result<(), Errno> {
        let change = AttributeChange { mode: Some(mode), ..AttributeChange::default() };
        self.retried(who, path, |datapath, ino| datapath.setattr(&caller(who), ino, &change).map(drop))
    }

    fn utimens(&mut self, who: usize, path: &str, mtime_ns: i64) -> Result<(), Errno> {
        let change = AttributeChange { mtime_ns: Some(mtime_ns), ..AttributeChange::default() };
        self.retried(who, path, |datapath, ino| datapath.setattr(&caller(who), ino, &change).map(drop))
    }

    fn policy(&mut self, who: usize, path: &str, key: &str, value: Option<&str>) -> Result<(), Errno> {
        let name = format!("user.tidefs.{key}");
        let outcome = self.retried(who, path, |datapath, ino| match value {
            Some(value) => datapath.set_attribute(ino, name.as_bytes(), value.as_bytes(), None),
            None => datapath.remove_attribute(ino, name.as_bytes()),
        });
        self.done(outcome)
    }

    fn drop_caches(&mut self) {
        self.forget_closed();
    }

    fn advance(&mut self, by: Duration, expires: bool) {
        self.clock.advance(by);
        if expires {
            self.datapath().expire();
        }
    }

    fn restart(&mut self) {
        self.references.clear();
        self.handles.clear();
        self.datapath = None;
        self.start();
    }

    fn space(&mut self, path: &str) -> Space {
        let ino = self.resolve(super::system::WATCHER, path).expect("it exists");
        let space = self.datapath().statfs(ino).expect("it answers");
        self.done(self.without_disk(Space { capacity: space.capacity.get(), free: space.free.get() }))
    }

    fn now_ns(&self) -> i64 {
        self.keep_up();
        nanos_of(self.clock.wall())
    }

    fn reason(&self, path: &str) -> Option<Reason> {
        Some(match self.datapath().fate(path.as_bytes()) {
            Fate::Evicted { .. } => Reason::Evicted,
            Fate::Expired { .. } => Reason::Expired,
            _ => Reason::Other,
        })
    }

    fn check_tables(&self) {
        self.datapath().check_charges();
        self.datapath().check_domains();
    }

    fn books(&self) -> Option<Books> {
        let overview = self.datapath().overview().expect("the tier answers");
        Some(Books {
            objects: overview.objects,
            sealed_bytes: overview.sealed_bytes.get(),
            unsealed: overview.unsealed_files,
            used: overview.usage.used.get(),
            evictions: self.datapath().telemetry().evictions.get(),
            discarded: self.datapath().telemetry().discarded_writes.get(),
        })
    }
}

impl Drop for Logic {
    fn drop(&mut self) {
        self.handles.clear();
        self.datapath = None;
        while umount2(&self.base.path().join("memory"), MntFlags::MNT_DETACH).is_ok() {}
    }
}
