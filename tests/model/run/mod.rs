//! Does each step on the system and on the model, and compares what every process then sees.
//!
//! The system has choices that the model cannot foresee: whom it evicts, when exactly something expires, whether an
//! object is rewritten beside or in place. Each is taken from the system and checked to be one that it may make.

use std::time::Duration;

use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use super::common::pattern;
use super::operation::{NAMES, Op, Pick, Setting, Target};
use super::reference::{
    DirectoryId, Entry, File, FileId, Handle, Model, Mtime, Phase, ROOT, Rewrite, Slot, footprint,
};
use super::system::{Books, Change, Facts, Open, PROCESSES, Reason, System, Token, WATCHER};

mod compare;
mod files;

/// Steps between two comparisons of all bytes: each is a use of every object, so not after each step.
const STEPS_BETWEEN_READS: usize = 6;
/// The kernel stamps files with a clock that moves in ticks.
const TICK_NS: i64 = 20_000_000;
/// An object that is open when its time is over is looked at again after this.
const EXPIRY_RETRY_NS: i64 = 1_000_000_000;
/// Most handles at once.
const HANDLES_MAX: usize = 12;

/// Of the clock that files are stamped with.
fn real_now_ns() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_REALTIME_COARSE).expect("a clock");
    i64::try_from(Duration::from(now).as_nanos()).expect("before 2262")
}

/// A system and the model of it, side by side.
#[derive(Debug)]
pub(crate) struct Run<S> {
    pub(crate) system: S,
    pub(crate) model: Model,
    capacity: u64,
    steps: usize,
}

type Name = (DirectoryId, String);

impl<S: System> Run<S> {
    /// Both empty.
    pub(crate) fn new(system: S, capacity: u64, scratch_min: u64) -> Self {
        let mut run = Self { system, model: Model::new(scratch_min), capacity, steps: 0 };
        run.tell_time();
        run
    }

    fn tell_time(&mut self) {
        self.model.now_ns = self.system.now_ns();
        self.model.now_real_ns = real_now_ns();
    }

    /// Does one step and compares.
    pub(crate) fn step(&mut self, op: &Op) {
        self.tell_time();
        self.steps += 1;
        match *op {
            Op::Open { who, target, options } => {
                let (directory, name) = self.pick(target);
                self.open(who, directory, &name, options);
            }
            Op::Put { who, target, length, seed } => self.put(who, target, length, seed),
            Op::Write { handle, offset, length, seed } => {
                if let Some(handle) = self.handle(handle, |handle| handle.options.write) {
                    self.write(handle, offset, &pattern::bytes(seed, length));
                }
            }
            Op::Read { handle, offset, length } => {
                if let Some(handle) = self.handle(handle, |handle| handle.options.read) {
                    self.read(handle, offset, length);
                }
            }
            Op::Resize { handle, change } => {
                let is_length = matches!(change, Change::Set(_));
                let can = |who: usize| is_length || self.system.can_allocate(who);
                let handle = self.handle(handle, |handle| handle.options.write && can(handle.who));
                if let Some(handle) = handle {
                    self.resize(handle, change);
                }
            }
            Op::Close { handle } => {
                if let Some(handle) = self.handle(handle, |_| true) {
                    self.close(handle);
                }
            }
            Op::Flush { handle } => {
                if let Some(handle) = self.handle(handle, |_| true) {
                    let Handle { who, token, .. } = self.model.handles[handle];
                    self.call(&[], |system| system.flush(who, token));
                    self.model.flush(handle);
                }
            }
            Op::Truncate { who, target, length } => self.truncate(who, target, length),
            Op::Rename { who, from, to, keep } => self.rename(who, from, to, keep),
            Op::RenameDirectory { who, directory, to } => {
                if let Some(id) = self.directory(directory) {
                    self.rename_directory(who, id, to);
                }
            }
            Op::Unlink { who, target } => {
                let (directory, name) = self.pick(target);
                let path = self.model.path(directory, &name);
                let found = self.system.unlink(who, &path);
                let expected = self.model.unlink(who, (directory, &name));
                assert_eq!(found, expected, "unlink {path} by {who}");
            }
            Op::Mkdir { who, target } => {
                let (directory, name) = self.pick(target);
                let path = self.model.path(directory, &name);
                let found = self.system.mkdir(who, &path);
                let expected = self.model.mkdir(directory, &name);
                assert_eq!(found, expected, "mkdir {path} by {who}");
            }
            Op::Rmdir { who, directory } => {
                if let Some(id) = self.directory(directory) {
                    let path = self.model.directory_path(id);
                    let found = self.system.rmdir(who, &path);
                    assert_eq!(found, self.model.rmdir(id), "rmdir {path} by {who}");
                }
            }
            Op::Chmod { who, target, mode } => {
                let (directory, name) = self.pick(target);
                let path = self.model.path(directory, &name);
                let found = self.call(&[], |system| system.chmod(who, &path, mode));
                if let Some(Entry::Directory(id)) = self.model.entry(directory, &name) {
                    assert_eq!(found, Ok(()), "chmod {path}");
                    self.model.directories.get_mut(&id).expect("it lives").mode = mode;
                } else {
                    self.change_file(who, (directory, name), found, |file| file.mode = mode);
                }
            }
            Op::Utimens { who, target, mtime_ns } => {
                let (directory, name) = self.pick(target);
                if let Some(Entry::Directory(_)) = self.model.entry(directory, &name) {
                    return;
                }
                let path = self.model.path(directory, &name);
                let found = self.call(&[], |system| system.utimens(who, &path, mtime_ns));
                let set = |file: &mut File| file.mtime = Mtime::Is(mtime_ns);
                self.change_file(who, (directory, name), found, set);
            }
            Op::FilePolicy { who, target, setting } => self.file_policy(who, target, setting),
            Op::DirectoryPolicy { who, directory, setting } => self.directory_policy(who, directory, setting),
            Op::DropCaches => self.system.drop_caches(),
            Op::Advance { seconds, expires } => {
                self.system.advance(Duration::from_secs(seconds), expires);
                self.tell_time();
            }
            Op::Restart => {
                self.system.restart();
                self.take_flushed();
                for (directory, name) in self.model.restart() {
                    let path = self.model.path(directory, &name);
                    match self.system.stat(WATCHER, &path) {
                        Ok(facts) => self.model.found_after_restart(directory, &name, facts.size),
                        Err(_) => self.model.remove_current(directory, &name),
                    }
                }
                // What was being written on is copied, for which others leave.
                for (directory, name) in self.evictable(None) {
                    if self.system.reason(&self.model.path(directory, &name)) == Some(Reason::Evicted) {
                        self.model.remove_current(directory, &name);
                    }
                }
                self.compare();
                self.compare_bytes();
            }
        }
        self.compare();
        if self.steps.is_multiple_of(STEPS_BETWEEN_READS) {
            self.compare_bytes();
        }
    }

    /// Takes the outcome of a change of attributes into the model.
    fn change_file(&mut self, who: usize, name: Name, found: Result<(), Errno>, change: impl Fn(&mut File)) {
        let path = self.model.path(name.0, &name.1);
        let is_there = self.model.visible(who, self.model.slot(name.0, &name.1)).is_some();
        match found {
            // A record of a packed object needs room; for that, the object itself may have been evicted.
            Ok(()) if !is_there && self.system.reason(&path) == Some(Reason::Evicted) => {}
            Err(Errno::ENOSPC) => self.check_refusal(Errno::ENOSPC, &[&name], name.0, 0),
            found => {
                let expected = self.model.change_file(who, (name.0, &name.1), change);
                assert_eq!(found, expected, "attributes of {path} by {who}");
            }
        }
    }

    fn pick(&self, target: Target) -> Name {
        match target {
            Target::Named { directory, name } => {
                let directories: Vec<DirectoryId> = self.model.directories.keys().copied().collect();
                (*directory.of(&directories).expect("the root is there"), NAMES[name].to_owned())
            }
            Target::Existing(index) => {
                let slots = self.model.slots();
                let found = index.of(&slots).map(|(directory, name, _)| (*directory, name.clone()));
                found.unwrap_or_else(|| (ROOT, NAMES[0].to_owned()))
            }
        }
    }

    fn directory(&self, index: Pick) -> Option<DirectoryId> {
        let directories: Vec<DirectoryId> =
            self.model.directories.keys().copied().filter(|&id| id != ROOT).collect();
        index.of(&directories).copied()
    }

    fn handle(&self, index: Pick, fits: impl Fn(&Handle) -> bool) -> Option<usize> {
        let fitting: Vec<usize> =
            (0..self.model.handles.len()).filter(|&place| fits(&self.model.handles[place])).collect();
        index.of(&fitting).copied()
    }

    /// Calls the system, and takes what it evicted meanwhile out of the model. `names`: what the call is about, where a
    /// new file may stand already in place of one that was evicted.
    fn call<T>(&mut self, names: &[&Name], action: impl FnOnce(&mut S) -> T) -> T {
        self.call_sparing(None, names, action)
    }

    /// As [`Run::call`]; `spared` must not be evicted meanwhile.
    fn call_sparing<T>(
        &mut self,
        spared: Option<&Name>,
        names: &[&Name],
        action: impl FnOnce(&mut S) -> T,
    ) -> T {
        let Some(before) = self.system.books() else { return action(&mut self.system) };
        let evictable = self.evictable(spared);
        let outcome = action(&mut self.system);
        self.take_evicted(before, &evictable, names);
        outcome
    }

    /// Names of what the cache may evict now, but for `spared`.
    fn evictable(&self, spared: Option<&Name>) -> Vec<Name> {
        let slots = self.model.slots();
        slots
            .into_iter()
            .filter(|(directory, _, slot)| self.model.is_evictable(*directory, *slot))
            .map(|(directory, name, _)| (directory, name))
            .filter(|name| Some(name) != spared)
            .collect()
    }

    /// Takes what of `evictable` was evicted since `before` out of the model. `names`: as for [`Run::call`].
    fn take_evicted(&mut self, before: Books, evictable: &[Name], names: &[&Name]) {
        let evicted = self.books().evictions - before.evictions;
        let mut found = 0;
        for name in evictable.iter().filter(|_| evicted > 0) {
            let path = self.model.path(name.0, &name.1);
            if self.system.reason(&path) == Some(Reason::Evicted) {
                self.model.remove_current(name.0, &name.1);
                found += 1;
            }
        }
        for &name in names {
            if found < evicted && evictable.contains(name) {
                self.model.remove_current(name.0, &name.1);
                found += 1;
            }
        }
        assert_eq!(found, evicted, "something was evicted that is open or pinned, or twice");
    }

    fn books(&self) -> Books {
        self.system.books().expect("asked only where there are books")
    }

    /// Whether the system may refuse for lack of room; `needed` is how large the file would be, and `names` what the
    /// call was about, which is in use while it runs.
    #[track_caller]
    fn check_refusal(&self, error: Errno, names: &[&Name], directory: DirectoryId, needed: u64) {
        let in_use: Vec<String> = names.iter().map(|name| self.model.path(name.0, &name.1)).collect();
        let evictable_below = |top: DirectoryId| {
            let mut left = self.model.evictable_below(top);
            left.retain(|path| !in_use.contains(path));
            left
        };
        let quotas = self.model.ancestors(directory).into_iter();
        let mut quotas = quotas.filter_map(|id| Some((id, self.model.directories[&id].policy.quota?)));
        match error {
            Errno::ENOSPC => {
                let left = evictable_below(ROOT);
                assert!(left.is_empty(), "ENOSPC though these can be evicted: {left:?}");
            }
            Errno::EDQUOT => {
                let is_full = quotas.any(|(id, quota)| needed > quota || evictable_below(id).is_empty());
                assert!(is_full, "EDQUOT though a smaller file would do or something can be evicted");
            }
            Errno::EFBIG => assert!(needed > self.capacity, "EFBIG for {needed} bytes"),
            other => panic!("refused with {other}"),
        }
    }

    fn is_refusal(error: Errno) -> bool {
        matches!(error, Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG)
    }

    fn file_policy(&mut self, who: usize, target: Target, setting: Setting) {
        let (directory, name) = self.pick(target);
        let slot = self.model.slot(directory, &name);
        let Some(file) = self.model.visible(who, slot) else { return };
        let path = self.model.path(directory, &name);
        let own = self.model.file(file).policy;
        let (found, expected) = match setting {
            Setting::Ttl(ttl) => (self.set(who, &path, "ttl", ttl), ttl.is_some() || own.ttl.is_some()),
            Setting::Pin(pin) => (self.set(who, &path, "pin", pin), pin.is_some() || own.pin.is_some()),
            Setting::Quota(_) | Setting::Scratch(_) => return,
        };
        if expected {
            let change = |file: &mut File| match setting {
                Setting::Ttl(ttl) => file.policy.ttl = ttl,
                Setting::Pin(pin) => file.policy.pin = pin,
                Setting::Quota(_) | Setting::Scratch(_) => {}
            };
            self.change_file(who, (directory, name), found, change);
        } else {
            assert_eq!(found, Err(Errno::ENODATA), "{setting:?} of {path}");
        }
    }

    fn directory_policy(&mut self, who: usize, index: Pick, setting: Setting) {
        let directories: Vec<DirectoryId> = self.model.directories.keys().copied().collect();
        let id = *index.of(&directories).expect("the root is there");
        let path = self.model.directory_path(id);
        let own = self.model.directories[&id].policy;
        let (found, expected) = match setting {
            Setting::Ttl(ttl) => (self.set(who, &path, "ttl", ttl), ttl.is_some() || own.ttl.is_some()),
            Setting::Pin(pin) => (self.set(who, &path, "pin", pin), pin.is_some() || own.pin.is_some()),
            Setting::Quota(kib) => {
                let bytes = kib.map(|kib| kib << 10);
                let found = self.set(who, &path, "quota", bytes);
                (found, kib.is_some() || own.quota.is_some())
            }
            Setting::Scratch(scratch) => {
                (self.set(who, &path, "scratch", scratch), scratch.is_some() || own.scratch.is_some())
            }
        };
        assert_eq!(found.err(), (!expected).then_some(Errno::ENODATA), "{setting:?} of {path:?}");
        let directory = self.model.directories.get_mut(&id).expect("it lives");
        match setting {
            Setting::Ttl(ttl) => directory.policy.ttl = ttl,
            Setting::Pin(pin) => directory.policy.pin = pin,
            Setting::Quota(kib) => {
                directory.policy.quota = kib.map(|kib| kib << 10);
                directory.excused = false;
            }
            Setting::Scratch(scratch) => directory.policy.scratch = scratch,
        }
        if expected && matches!(setting, Setting::Ttl(_)) {
            self.model.renew_expiries(id);
        }
    }

    fn set(&mut self, who: usize, path: &str, key: &str, value: Option<impl ToString>) -> Result<(), Errno> {
        let value = value.map(|value| value.to_string());
        self.call(&[], |system| system.policy(who, path, key, value.as_deref()))
    }
}
