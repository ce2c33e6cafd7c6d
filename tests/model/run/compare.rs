//! The comparison: what every process sees of every name, the books, and all bytes.

use std::time::{Duration, Instant};

use super::{
    DirectoryId, EXPIRY_RETRY_NS, Entry, Errno, Facts, File, Mtime, NAMES, Name, Open, PROCESSES, Phase,
    ROOT, Reason, Run, System, TICK_NS, WATCHER, pattern,
};

/// How long the message of a last close may be on its way.
const LAST_CLOSE: Duration = Duration::from_secs(5);

impl<S: System> Run<S> {
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

    pub(super) fn compare_file(&mut self, who: usize, directory: DirectoryId, name: &str) {
        let path = self.model.path(directory, name);
        let found = self.system.stat(who, &path);
        let Some(id) = self.model.visible(who, self.model.slot(directory, name)) else {
            let mut found = found;
            let began = Instant::now();
            // A temporary file shows itself until the last close of it has reached the daemon.
            while found.is_ok() && name.ends_with(".tmp") && began.elapsed() < LAST_CLOSE {
                std::thread::sleep(Duration::from_millis(1));
                found = self.system.stat(who, &path);
            }
            assert_eq!(found, Err(Errno::ENOENT), "{path} is to be hidden from {who}");
            return;
        };
        let file = self.model.file_mut(id);
        let (size, mode, began) = (file.bytes.len() as u64, file.mode, Instant::now());
        let is_written = file.phase == Phase::Writing;
        let mut found = found;
        // The kernel moves what it knows of a temporary name with its rename, and is told a moment later that a writer has
        // another version under the new one.
        while is_written
            && found.as_ref().is_ok_and(|found| found.size != size)
            && began.elapsed() < LAST_CLOSE
        {
            std::thread::sleep(Duration::from_millis(1));
            found = self.system.stat(who, &path);
        }
        let found =
            found.unwrap_or_else(|error| panic!("{path} as {who} sees it ({:?}): {error}", file.phase));
        let expected = Facts { is_directory: false, size, mode, mtime_ns: found.mtime_ns };
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
    pub(super) fn take_flushed(&mut self) {
        for (directory, name, slot) in self.model.slots() {
            let Some(next) = slot.next else { continue };
            let Some((mode, _)) = self.model.file(next).flushed else { continue };
            let path = self.model.path(directory, &name);
            let Ok(facts) = self.system.stat(WATCHER, &path) else {
                if self.system.reason(&path) == Some(Reason::Expired) {
                    // Kept, and sealed when its close was announced, by the machine's clock: so long ago that it expired.
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
    pub(super) fn take_expired(&mut self) {
        let now = self.model.now_ns;
        for (directory, name, slot) in self.model.slots() {
            let Some(current) = slot.current else { continue };
            let Some((earliest, latest)) = self.model.file(current).expires_ns else { continue };
            if now < earliest {
                continue;
            }
            let path = self.model.path(directory, &name);
            let is_seen = self.system.stat(WATCHER, &path).is_ok();
            let is_held = self.model.file(current).writers > 0 || slot.next.is_some();
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

    pub(super) fn compare_books(&mut self) {
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
            let (sealed, found) = (self.model.sealed_below(id), self.system.space(&path));
            // What was unlinked while it was written counts until it is closed.
            let is_any_gone = self.model.files.values().any(|file| file.phase == Phase::Gone);
            let (unfinished, used) = (self.model.unfinished_below(id), found.capacity - found.free);
            let least = (sealed + unfinished.unwrap_or(0)).min(found.capacity);
            assert_eq!(found.capacity, quota.min(self.capacity), "statfs of {path}");
            // Pages may be reserved beyond the end of what is written.
            assert!(used >= least, "{path} uses {used}, of which {sealed} sealed and {unfinished:?} not");
            assert!(
                used == least || unfinished.is_some() || is_any_gone,
                "{path} uses {used} instead of {sealed}"
            );
            let used = sealed;
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
