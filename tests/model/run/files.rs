//! Steps on files and names: each done on both, with the choices of the system taken into the model.

use super::{
    Change, DirectoryId, Entry, Errno, FileId, HANDLES_MAX, Handle, Open, Phase, ROOT, Rewrite, Run, Slot,
    System, Target, Token, WATCHER, footprint, pattern,
};

impl<S: System> Run<S> {
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
        let is_joined = slot.next.is_some_and(|next| !self.model.file(next).overtaken);
        let is_rewritten = opened.is_ok() && options.write && slot.current.is_some() && !is_joined;
        let is_seen = is_rewritten && self.system.stat(WATCHER, &path).is_ok();
        let rewrite = || if is_seen { Rewrite::Beside } else { Rewrite::InPlace };
        let expected = self.model.open(who, (directory, name), options, rewrite);
        match (opened, expected) {
            (Ok(token), Ok((file, is_writer))) => {
                self.model.handles.push(Handle { who, file, options, is_writer, was_flushed: false, token });
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

    pub(super) fn put(&mut self, who: usize, target: Target, length: usize, seed: u64) {
        let (directory, name) = self.pick(target);
        let options = Open { write: true, create: true, truncate: true, ..Open::default() };
        if let Some(handle) = self.open(who, directory, &name, options) {
            self.write(handle, 0, &pattern::bytes(seed, length));
            self.close(handle);
        }
    }

    /// Directory of a file, for quotas; the root for what has no name.
    pub(super) fn directory_of(&self, file: FileId) -> DirectoryId {
        let has = |slot: &Slot| slot.next == Some(file) || slot.current == Some(file);
        let found = self.model.slots().into_iter().find(|(_, _, slot)| has(slot));
        found.map_or(ROOT, |(directory, _, _)| directory)
    }

    /// Whether the system may refuse to let a file grow. One that lost its name while it was written counts where it stood.
    #[track_caller]
    fn check_refusal_of(&self, file: FileId, error: Errno, needed: u64) {
        if error == Errno::EDQUOT && self.model.file(file).phase == Phase::Gone {
            let has_quota = self.model.directories.values().any(|directory| directory.policy.quota.is_some());
            assert!(has_quota, "EDQUOT without any quota");
        } else {
            self.check_refusal(error, &[], self.directory_of(file), needed);
        }
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
                self.check_refusal_of(file, error, footprint(needed));
            }
        }
    }

    pub(super) fn read(&mut self, handle: usize, offset: u64, length: usize) {
        let Handle { who, file, token, .. } = self.model.handles[handle];
        let found = self.system.read(who, token, offset, length);
        let bytes = &self.model.file(file).bytes;
        let start = usize::try_from(offset).expect("a small offset").min(bytes.len());
        let end = (start + length).min(bytes.len());
        let found = found.unwrap_or_else(|error| panic!("read by {who}: {error}"));
        pattern::assert_same(&found, &bytes[start..end], &format!("read of handle {token} by {who}"));
    }

    pub(super) fn resize(&mut self, handle: usize, change: Change) {
        let Handle { who, file, token, .. } = self.model.handles[handle];
        match self.call(&[], |system| system.resize(who, token, change)) {
            Ok(()) => self.model.resize(file, change),
            Err(error) => {
                let reach = match change {
                    Change::Set(length) => length,
                    Change::Allocate { offset, length, .. } => offset + length,
                    Change::Punch { .. } => panic!("a hole needs no room: {error}"),
                };
                let needed = footprint(reach.max(self.model.file(file).bytes.len() as u64));
                self.check_refusal_of(file, error, needed);
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
        self.model.flush(handle);
        self.model.close(handle, is_dropped);
    }

    pub(super) fn truncate(&mut self, who: usize, target: Target, length: u64) {
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
        // Writers who kept an object open after its rename are joined, unless others have read it: readers that have closed it may
        // have it mapped, which the system alone knows.
        let kept = visible.filter(|&file| {
            let file = self.model.file(file);
            file.phase == Phase::Sealed && file.writers > 0
        });
        let overtaken = slot.next.filter(|&next| self.model.file(next).overtaken);
        let has_next = slot.next.is_some() && overtaken.is_none();
        let is_read = kept.is_some_and(|file| self.model.file(file).readers > 0);
        if kept.is_some() && has_next && length == size {
            return; // it would not show which of the two was cut
        }
        let inode = kept.and_then(|_| self.system.inode(&path));
        let outcome = self.call(&[&place], |system| system.truncate(who, &path, length));
        let is_dropped = before.is_some_and(|before| self.books().discarded > before.discarded);
        if is_dropped && self.system.stat(WATCHER, &path).is_err() {
            // Its quota was lowered below its size, and it met that when it was closed.
            self.check_refusal(Errno::EDQUOT, &[&place], directory, footprint(length.max(size)));
            // A temporary file was cut where it is before that: who has it open reads what is left.
            let cut = visible.filter(|&file| length < size && self.model.file(file).phase != Phase::Sealed);
            if let Some(file) = cut {
                self.model.resize(file, Change::Set(length));
            }
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
            let written = seen.filter(|&file| self.model.file(file).writers > 0);
            if let Some(file) = written {
                self.model.closed_by_name(file);
            }
            if overtaken.is_some() {
                if is_dropped {
                    // It gave way to a version that is gone, too, as it was refused its length.
                    self.model.set_slot(directory, &name, Slot { next: None, ..slot });
                    self.model.bury(overtaken);
                }
            } else if written.is_none()
                && let Some(joined) = slot.next.or(slot.current)
                && self.model.file(joined).phase != Phase::Sealed
            {
                // It had joined the writers before it was refused.
                self.model.file_mut(joined).who.insert(who);
            }
            return;
        }
        let visible = self.model.visible(who, self.model.slot(directory, &name));
        assert_eq!(outcome.err(), visible.is_none().then_some(Errno::ENOENT), "truncate {path} by {who}");
        let Some(file) = visible else { return };
        let is_beside = kept.is_some() && {
            if has_next {
                self.system.stat(WATCHER, &path).is_ok_and(|facts| facts.size != length)
            } else {
                self.system.inode(&path) != inode
            }
        };
        assert!(is_beside || !is_read, "{path} is cut under who reads it");
        let is_shared = self.model.file(file).writers > 0 && !is_beside;
        if is_shared {
            // Whoever writes the file has it open: it is cut under their hands, as anywhere.
            self.model.resize(file, Change::Set(length));
            self.model.closed_by_name(file);
            return;
        }
        // By nobody opened for writing: as if opened, cut and closed.
        let options = Open { write: true, ..Open::default() };
        let opened = self.model.open(who, (directory, &name), options, || Rewrite::Beside);
        let (file, is_writer) = opened.expect("it is visible");
        self.model.handles.push(Handle {
            who,
            file,
            options,
            is_writer,
            was_flushed: false,
            token: Token::MAX,
        });
        self.model.resize(file, Change::Set(length));
        self.model.close(self.model.handles.len() - 1, false);
    }

    pub(super) fn rename(&mut self, who: usize, from: Target, to: Target, keep: bool) {
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
        // That the target holds the source is what the kernel finds before it asks what the two are.
        let holds_source = source.strip_prefix(&target).is_some_and(|below| below.starts_with('/'));
        let outcome = if holds_source && outcome == Err(Errno::ENOTEMPTY) { expected } else { outcome };
        assert_eq!(outcome, expected, "rename {source} to {target} by {who}");
        assert!(
            outcome.is_err() || !is_refused || from == to,
            "a file of which a write was refused is an object by its rename to {target}"
        );
    }

    pub(super) fn rename_directory(&mut self, who: usize, id: DirectoryId, to: Target) {
        let to = self.pick(to);
        let (source, target) = (self.model.directory_path(id), self.model.path(to.0, &to.1));
        let before = self.system.books();
        let found = self.system.rename(who, &source, &target, false);
        let expected = self.model.rename_directory(id, (to.0, &to.1));
        assert_eq!(found, expected, "rename of directory {source} to {target} by {who}");
        if let Some(before) = before {
            // What leaves for a quota above the new place does so from there.
            let evictable = self.evictable(None);
            self.take_evicted(before, &evictable, &[]);
        }
    }
}
