//! Does each step on the system and on the model, and compares what every process then sees.
//!
//! The system has choices that the model cannot foresee: whom it evicts, when exactly something expires, whether an
//! object is rewritten beside or in place. Each is taken from the system and checked to be one that it may make.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;

use super::common::pattern;
use super::operation::{NAMES, Op, Pick, Setting, Target};
use super::reference::{
    DirectoryId, Entry, File, FileId, Handle, Model, Mtime, Phase, ROOT, Rewrite, Slot, footprint,
};
use super::system::{Books, Change, Facts, Open, PROCESSES, Reason, System, Token, WATCHER};

/// Steps between two comparisons of all bytes: each is a use of every object, so not after each step.
const STEPS_BETWEEN_READS: usize = 6;
/// The kernel stamps files with a clock that moves in ticks.
const TICK_NS: i64 = 20_000_000;
/// An object that is open when its time is over is looked at again after this.
const EXPIRY_RETRY_NS: i64 = 1_000_000_000;
/// Most handles at once.
const HANDLES_MAX: usize = 12;

fn real_now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(now.as_nanos()).expect("before 2262")
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
    fn change_file(
        &mut self,
        who: usize,
        name: Name,
        found: Result<(), Errno>,
        change: impl FnOnce(&mut File),
    ) {
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
        let slots = self.model.slots();
        let evictable: Vec<Name> = slots
            .into_iter()
            .filter(|(directory, _, slot)| self.model.is_evictable(*directory, *slot))
            .map(|(directory, name, _)| (directory, name))
            .filter(|name| Some(name) != spared)
            .collect();
        let outcome = action(&mut self.system);
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
        outcome
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

    /// Opens a file. Returns the place of its handle.
    pub(crate) fn open(
        &mut self,
        who: usize,
        directory: DirectoryId,
        name: &str,
        options: Open,
    ) -> Option<usize> {
        let is_directory = matches!(self.model.entry(directory, name), Some(Entry::Directory(_)));
        if (is_directory && !options.write && !options.create) || self.model.handles.len() >= HANDLES_MAX {
            return None;
        }
        let path = self.model.path(directory, name);
        let place = (directory, name.to_owned());
        let size = self.model.visible(who, self.model.slot(directory, name));
        let size = size.map_or(0, |file| self.model.file(file).bytes.len() as u64);
        let opened = self.call(&[&place], |system| system.open(who, &path, options));
        if let Err(error) = opened
            && Self::is_refusal(error)
        {
            self.check_refusal(error, &[&place], directory, footprint(size));
            return None;
        }
        let slot = self.model.slot(directory, name);
        let is_rewritten = opened.is_ok() && options.write && slot.current.is_some() && slot.next.is_none();
        let is_seen = is_rewritten && self.system.stat(WATCHER, &path).is_ok();
        let rewrite = || if is_seen { Rewrite::Beside } else { Rewrite::InPlace };
        let expected = self.model.open(who, (directory, name), options, rewrite);
        match (opened, expected) {
            (Ok(token), Ok((file, is_writer))) => {
                self.model.handles.push(Handle { who, file, options, is_writer, token });
                Some(self.model.handles.len() - 1)
            }
            (Err(found), Err(expected)) => {
                assert_eq!(found, expected, "open {path} by {who} with {options:?}");
                None
            }
            (found, expected) => {
                panic!("open {path} by {who} with {options:?}: {found:?} instead of {expected:?}")
            }
        }
    }

    fn put(&mut self, who: usize, target: Target, length: usize, seed: u64) {
        let (directory, name) = self.pick(target);
        let options = Open { write: true, create: true, truncate: true, ..Open::default() };
        if let Some(handle) = self.open(who, directory, &name, options) {
            self.write(handle, 0, &pattern::bytes(seed, length));
            self.close(handle);
        }
    }

    /// Directory of a file, for quotas; the root for what has no name.
    fn directory_of(&self, file: FileId) -> DirectoryId {
        let has = |slot: &Slot| slot.next == Some(file) || slot.current == Some(file);
        let found = self.model.slots().into_iter().find(|(_, _, slot)| has(slot));
        found.map_or(ROOT, |(directory, _, _)| directory)
    }

    pub(crate) fn write(&mut self, handle: usize, offset: u64, data: &[u8]) {
        if data.is_empty() {
            // The kernel answers that itself.
            return;
        }
        let Handle { who, file, token, .. } = self.model.handles[handle];
        let outcome = self.call(&[], |system| system.write(who, token, offset, data));
        match outcome {
            Ok(()) => self.model.write(file, offset, data),
            Err(error) => {
                self.model.refuse(file);
                let needed = (self.model.file(file).bytes.len() as u64).max(offset + data.len() as u64);
                self.check_refusal(error, &[], self.directory_of(file), footprint(needed));
            }
        }
    }

    fn read(&mut self, handle: usize, offset: u64, length: usize) {
        let Handle { who, file, token, .. } = self.model.handles[handle];
        let found = self.system.read(who, token, offset, length);
        let bytes = &self.model.file(file).bytes;
        let start = usize::try_from(offset).expect("a small offset").min(bytes.len());
        let end = (start + length).min(bytes.len());
        let found = found.unwrap_or_else(|error| panic!("read by {who}: {error}"));
        pattern::assert_same(&found, &bytes[start..end], &format!("read of handle {token} by {who}"));
    }

    fn resize(&mut self, handle: usize, change: Change) {
        let Handle { who, file, token, .. } = self.model.handles[handle];
        match self.call(&[], |system| system.resize(who, token, change)) {
            Ok(()) => self.model.resize(file, change),
            Err(error) => {
                let reach = match change {
                    Change::Set(length) => length,
                    Change::Allocate { offset, length, .. } => offset + length,
                    Change::Punch { .. } => panic!("a hole needs no room: {error}"),
                };
                self.model.refuse(file);
                let needed = footprint(reach.max(self.model.file(file).bytes.len() as u64));
                self.check_refusal(error, &[], self.directory_of(file), needed);
            }
        }
    }

    /// Closes a handle.
    pub(crate) fn close(&mut self, handle: usize) {
        let Handle { who, file, token, .. } = self.model.handles[handle];
        let directory = self.directory_of(file);
        let before = self.system.books();
        self.call(&[], |system| system.close(who, token));
        let facts = self.model.file(file);
        let is_last = self.model.handles[handle].is_writer && facts.writers == 1;
        let is_given_up = is_last && facts.refused && facts.phase == Phase::Writing;
        let is_dropped = before.map_or(is_given_up, |before| self.books().discarded > before.discarded);
        if is_dropped && !is_given_up && facts.phase == Phase::Writing {
            // Else a file is dropped only for its holes, or for a quota that others filled meanwhile.
            let above = self.model.ancestors(directory);
            let has_quota = above.iter().any(|id| self.model.directories[id].policy.quota.is_some());
            assert!(facts.has_holes || has_quota, "a whole file was dropped at its close");
            let error = if has_quota { Errno::EDQUOT } else { Errno::ENOSPC };
            self.check_refusal(error, &[], directory, footprint(facts.bytes.len() as u64));
        }
        assert!(is_dropped || !is_given_up, "a file of which a write was refused is sealed");
        self.model.close(handle, is_dropped);
    }

    fn truncate(&mut self, who: usize, target: Target, length: u64) {
        let (directory, name) = self.pick(target);
        let path = self.model.path(directory, &name);
        if let Some(Entry::Directory(_)) = self.model.entry(directory, &name) {
            return;
        }
        let slot = self.model.slot(directory, &name);
        let visible = self.model.visible(who, slot);
        let size = visible.map_or(0, |file| self.model.file(file).bytes.len() as u64);
        let place = (directory, name.clone());
        let before = self.system.books();
        let outcome = self.call(&[&place], |system| system.truncate(who, &path, length));
        let is_dropped = before.is_some_and(|before| self.books().discarded > before.discarded);
        if is_dropped && self.system.stat(WATCHER, &path).is_err() {
            // Its quota was lowered below its size, and it met that when it was closed.
            self.check_refusal(Errno::EDQUOT, &[&place], directory, footprint(length.max(size)));
            self.model.remove_current(directory, &name);
            return;
        }
        if let Err(error) = outcome
            && Self::is_refusal(error)
        {
            self.check_refusal(error, &[&place], directory, footprint(length.max(size)));
            let slot = self.model.slot(directory, &name);
            let seen = self.model.visible(who, slot);
            if let Some(current) = slot.current {
                // It was opened, and sealed again as it was.
                self.model.sealed_again(current);
            }
            if let Some(written) = seen.filter(|&file| self.model.file(file).writers > 0) {
                self.model.refuse(written);
            } else if let Some(joined) = slot.next.or(slot.current)
                && self.model.file(joined).phase != Phase::Sealed
            {
                // It had joined the writers before it was refused, and they know.
                self.model.file_mut(joined).who.insert(who);
                if self.model.file(joined).writers > 0 {
                    self.model.refuse(joined);
                }
            }
            return;
        }
        let visible = self.model.visible(who, self.model.slot(directory, &name));
        assert_eq!(outcome.err(), visible.is_none().then_some(Errno::ENOENT), "truncate {path} by {who}");
        let Some(file) = visible else { return };
        let is_shared = self.model.file(file).writers > 0;
        if is_shared {
            // Whoever writes the file has it open: it is cut under their hands, as anywhere.
            self.model.resize(file, Change::Set(length));
            return;
        }
        // By nobody opened for writing: as if opened, cut and closed.
        let options = Open { write: true, ..Open::default() };
        let opened = self.model.open(who, (directory, &name), options, || Rewrite::Beside);
        let (file, is_writer) = opened.expect("it is visible");
        self.model.handles.push(Handle { who, file, options, is_writer, token: Token::MAX });
        self.model.resize(file, Change::Set(length));
        self.model.close(self.model.handles.len() - 1, false);
    }

    fn rename(&mut self, who: usize, from: Target, to: Target, keep: bool) {
        let from = self.pick(from);
        let to = self.pick(to);
        if let Some(Entry::Directory(_)) = self.model.entry(from.0, &from.1) {
            return;
        }
        let (source, target) = (self.model.path(from.0, &from.1), self.model.path(to.0, &to.1));
        let moved = self.model.visible(who, self.model.slot(from.0, &from.1));
        let size = moved.map_or(0, |file| self.model.file(file).bytes.len() as u64);
        let is_refused = moved.is_some_and(|file| self.model.is_refused(file, &to.1));
        let outcome =
            self.call_sparing(Some(&from), &[&to], |system| system.rename(who, &source, &target, keep));
        if let Err(error) = outcome
            && Self::is_refusal(error)
        {
            if !is_refused {
                self.check_refusal(error, &[&from, &to], to.0, footprint(size));
            }
            return;
        }
        let expected = self.model.rename(who, (from.0, &from.1), (to.0, &to.1), keep);
        assert_eq!(outcome, expected, "rename {source} to {target} by {who}");
        assert!(
            outcome.is_err() || !is_refused || from == to,
            "a file of which a write was refused is an object by its rename to {target}"
        );
    }

    fn rename_directory(&mut self, who: usize, id: DirectoryId, to: Target) {
        let to = self.pick(to);
        let (source, target) = (self.model.directory_path(id), self.model.path(to.0, &to.1));
        let found = self.system.rename(who, &source, &target, false);
        let expected = self.model.rename_directory(id, (to.0, &to.1));
        assert_eq!(found, expected, "rename of directory {source} to {target} by {who}");
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

    /// Compares what every process sees, and the books.
    pub(crate) fn compare(&mut self) {
        self.take_expired();
        let mut names: Vec<Name> =
            self.model.slots().into_iter().map(|(directory, name, _)| (directory, name)).collect();
        // Also what must not be there.
        names.extend(self.model.directories.keys().flat_map(|&id| NAMES.map(|name| (id, name.to_owned()))));
        for (directory, name) in names {
            if let Some(Entry::Directory(id)) = self.model.entry(directory, &name) {
                let path = self.model.directory_path(id);
                let facts =
                    self.system.stat(WATCHER, &path).unwrap_or_else(|error| panic!("{path}: {error}"));
                assert!(facts.is_directory, "{path}");
                assert_eq!(facts.mode, self.model.directories[&id].mode, "mode of {path}");
                continue;
            }
            for who in 0..PROCESSES {
                self.compare_file(who, directory, &name);
            }
        }
        for id in self.model.directories.keys().copied().collect::<Vec<_>>() {
            let path = self.model.directory_path(id);
            for who in 0..PROCESSES {
                let entries = &self.model.directories[&id].entries;
                let is_shown = |entry: &Entry| match *entry {
                    Entry::Directory(_) => true,
                    Entry::File(slot) => self.model.visible(who, slot).is_some(),
                };
                let expected: Vec<&String> =
                    entries.iter().filter(|(_, entry)| is_shown(entry)).map(|(name, _)| name).collect();
                let found = self.system.list(who, &path).unwrap_or_else(|error| panic!("{path}: {error}"));
                assert_eq!(found.iter().collect::<Vec<_>>(), expected, "listing of {path:?} by {who}");
            }
        }
        self.compare_books();
    }

    fn compare_file(&mut self, who: usize, directory: DirectoryId, name: &str) {
        let path = self.model.path(directory, name);
        let found = self.system.stat(who, &path);
        let Some(id) = self.model.visible(who, self.model.slot(directory, name)) else {
            assert_eq!(found, Err(Errno::ENOENT), "{path} is to be hidden from {who}");
            return;
        };
        let file = self.model.file_mut(id);
        let found =
            found.unwrap_or_else(|error| panic!("{path} as {who} sees it ({:?}): {error}", file.phase));
        let expected = Facts {
            is_directory: false,
            size: file.bytes.len() as u64,
            mode: file.mode,
            mtime_ns: found.mtime_ns,
        };
        assert_eq!(found, expected, "{path} as {who} sees it ({:?})", file.phase);
        if let Some(found) = found.mtime_ns
            && file.phase == Phase::Sealed
            && file.writers == 0
        {
            match file.mtime {
                Mtime::Is(expected) => assert_eq!(found, expected, "mtime of {path}"),
                Mtime::After(since) => {
                    assert!(found + TICK_NS >= since, "mtime of {path} is {found}, written after {since}");
                }
                Mtime::Any => {}
            }
            file.mtime = Mtime::Is(found);
        }
    }

    /// After a restart: takes what it kept of files whose close had been announced into the model.
    fn take_flushed(&mut self) {
        for (directory, name, slot) in self.model.slots() {
            let Some(next) = slot.next else { continue };
            let Some((mode, _)) = self.model.file(next).flushed else { continue };
            let path = self.model.path(directory, &name);
            let Ok(facts) = self.system.stat(WATCHER, &path) else {
                if self.system.reason(&path) == Some(Reason::Expired) {
                    // Kept, and sealed when it was written last, by the machine's clock: so long ago that it expired.
                    self.model.keep_flushed(directory, &name);
                    self.model.remove_current(directory, &name);
                }
                continue;
            };
            let token = self.system.open(WATCHER, &path, Open { read: true, ..Open::default() });
            let token = token.unwrap_or_else(|error| panic!("open {path}: {error}"));
            let file = self.model.file(next);
            let found = self.system.read(WATCHER, token, 0, file.bytes.len() + 1);
            if facts.mode == mode && found.as_ref() == Ok(&file.bytes) {
                self.model.keep_flushed(directory, &name);
            }
            self.system.close(WATCHER, token);
        }
    }

    /// Takes what expired out of the model, where it may have.
    fn take_expired(&mut self) {
        let now = self.model.now_ns;
        for (directory, name, slot) in self.model.slots() {
            let Some(current) = slot.current else { continue };
            let Some((earliest, latest)) = self.model.file(current).expires_ns else { continue };
            if now < earliest {
                continue;
            }
            let path = self.model.path(directory, &name);
            let is_seen = self.system.stat(WATCHER, &path).is_ok();
            let is_held = self.model.file(current).is_open() || slot.next.is_some();
            if is_held {
                self.model.file_mut(current).expires_ns = Some((earliest, latest.max(now + EXPIRY_RETRY_NS)));
            } else if is_seen {
                assert!(now < latest, "{path} outlived its time");
            } else {
                assert_eq!(self.system.reason(&path), Some(Reason::Expired), "{path}");
                self.model.remove_current(directory, &name);
            }
        }
    }

    fn compare_books(&mut self) {
        let Some(books) = self.system.books() else { return };
        assert!(books.used <= self.capacity, "{} bytes used of {}", books.used, self.capacity);
        let space = self.system.space("");
        let slots = self.model.slots();
        let sealed: Vec<&File> = slots
            .iter()
            .filter_map(|(_, _, slot)| slot.current)
            .map(|id| self.model.file(id))
            .filter(|file| file.phase == Phase::Sealed)
            .collect();
        assert_eq!(books.objects, sealed.len() as u64, "objects in the books");
        // What a writer adds after the rename is counted at its close, or when its record is written for another reason.
        let is_settled = sealed.iter().all(|file| file.writers == 0);
        let hidden = slots.iter().filter(|(_, _, slot)| slot.next.is_some()).count() as u64;
        assert_eq!(books.unsealed, hidden, "files being written in the books");
        if is_settled {
            let bytes: u64 = sealed.iter().map(|file| file.counted).sum();
            assert_eq!(books.sealed_bytes, bytes, "bytes in the books");
        }
        let directories: Vec<DirectoryId> = self.model.directories.keys().copied().collect();
        for id in directories {
            let Some(quota) = self.model.directories[&id].policy.quota else { continue };
            if !is_settled {
                // What a writer adds after the rename is counted at its close.
                self.model.directories.get_mut(&id).expect("it lives").excused = true;
                continue;
            }
            let path = self.model.directory_path(id);
            let (used, found) = (self.model.sealed_below(id), self.system.space(&path));
            assert_eq!(found.capacity, quota.min(self.capacity), "statfs of {path}");
            assert_eq!(found.free, found.capacity.saturating_sub(used), "statfs of {path}");
            let is_excused = self.model.directories[&id].excused;
            if used > quota && !is_excused {
                let left = self.model.evictable_below(id);
                assert!(left.is_empty(), "{path} holds {used} of {quota} bytes; can be evicted: {left:?}");
            }
            // Full of what is open or pinned, it stays over its quota until something grows there again.
            self.model.directories.get_mut(&id).expect("it lives").excused = used > quota;
        }
        if self.model.directories[&ROOT].policy.quota.is_none() {
            assert_eq!(space.capacity, self.capacity, "statfs");
            assert_eq!(space.free, self.capacity - books.used, "statfs");
        }
    }

    /// Compares the bytes of everything that can be read.
    pub(crate) fn compare_bytes(&mut self) {
        for handle in 0..self.model.handles.len() {
            if self.model.handles[handle].options.read {
                let length = self.model.file(self.model.handles[handle].file).bytes.len();
                self.read(handle, 0, length + 100);
            }
        }
        let read = Open { read: true, ..Open::default() };
        for (directory, name, slot) in self.model.slots() {
            let Some(current) = slot.current else { continue };
            let path = self.model.path(directory, &name);
            let token =
                self.system.open(WATCHER, &path, read).unwrap_or_else(|error| panic!("open {path}: {error}"));
            let expected = &self.model.file(current).bytes;
            let found = self.system.read(WATCHER, token, 0, expected.len() + 100);
            let found = found.unwrap_or_else(|error| panic!("read {path}: {error}"));
            pattern::assert_same(&found, expected, &path);
            self.system.close(WATCHER, token);
        }
    }
}
