//! The life of one file: opened, written, cut, closed, sealed.

use super::super::system::{Change, Open};
use super::{DirectoryId, Entry, Errno, File, FileId, Model, Mtime, Phase, Rewrite, Slot, is_temporary};

impl Model {
    /// Opens a file. `rewrite` is asked how an open of a sealed object for writing turned out.
    pub(crate) fn open(
        &mut self,
        who: usize,
        (directory, name): (DirectoryId, &str),
        options: Open,
        rewrite: impl FnOnce() -> Rewrite,
    ) -> Result<(FileId, bool), Errno> {
        if let Some(Entry::Directory(_)) = self.entry(directory, name) {
            let error = if options.create && options.exclusive { Errno::EEXIST } else { Errno::EISDIR };
            return Err(error);
        }
        if options.create {
            self.drop_past(directory, name);
        }
        let slot = self.slot(directory, name);
        let is_writer = options.write || (slot == Slot::default() && options.create);
        let file = match self.visible(who, slot) {
            None if !options.create => return Err(Errno::ENOENT),
            None => match slot.next {
                Some(_) if options.exclusive => return Err(Errno::EEXIST),
                Some(hidden) => hidden,
                None => {
                    let id = self.fresh_id();
                    let above = self.ancestors(directory).into_iter();
                    let scratch = above.filter_map(|id| self.directories[&id].policy.scratch).next();
                    let shown = is_temporary(name);
                    let file = File { scratch: scratch == Some(true), shown, ..File::new(self.now_real_ns) };
                    self.files.insert(id, file);
                    self.set_slot(directory, name, Slot { current: None, next: Some(id) });
                    id
                }
            },
            Some(_) if options.create && options.exclusive => return Err(Errno::EEXIST),
            Some(seen) if options.write && Some(seen) == slot.current => {
                self.reopen((directory, name), slot, options.truncate, rewrite)
            }
            Some(seen) => seen,
        };
        let now_real_ns = self.now_real_ns;
        let entry = self.file_mut(file);
        if entry.phase == Phase::Writing && is_writer {
            entry.who.insert(who);
        }
        if is_writer {
            entry.writers += 1;
            entry.overtaken = false;
        } else {
            entry.readers += 1;
        }
        if options.write && options.truncate {
            entry.written(now_real_ns);
            entry.refused = false;
            entry.bytes.clear();
        }
        Ok((file, is_writer))
    }

    /// What a writer gets who opens what everyone sees.
    pub(super) fn reopen(
        &mut self,
        (directory, name): (DirectoryId, &str),
        slot: Slot,
        truncate: bool,
        rewrite: impl FnOnce() -> Rewrite,
    ) -> FileId {
        let current = slot.current.expect("what is opened is there");
        if self.file(current).phase == Phase::Parked {
            self.file_mut(current).phase = Phase::Writing;
            self.set_slot(directory, name, Slot { current: None, next: Some(current) });
            return current;
        }
        let overtaken = slot.next.filter(|&next| self.file(next).overtaken);
        if let Some(next) = slot.next.filter(|_| overtaken.is_none()) {
            return next;
        }
        // What stood there before gives way to what is begun now.
        self.bury(overtaken);
        if rewrite() == Rewrite::InPlace {
            let file = self.file_mut(current);
            assert!(!file.is_open(), "{name} is open, and changed in place");
            file.phase = Phase::Writing;
            file.who.clear();
            file.expires_ns = None;
            self.set_slot(directory, name, Slot { current: None, next: Some(current) });
            return current;
        }
        let mut copy = self.file(current).clone();
        copy.phase = Phase::Writing;
        (copy.readers, copy.writers, copy.expires_ns) = (0, 0, None);
        copy.who.clear();
        (copy.has_holes, copy.was_sealed, copy.refused, copy.flushed) = (false, false, false, None);
        (copy.shown, copy.changed, copy.overtaken) = (false, false, false);
        if truncate {
            copy.bytes.clear();
            copy.mtime = Mtime::After(self.now_real_ns);
        }
        let id = self.fresh_id();
        self.files.insert(id, copy);
        self.set_slot(directory, name, Slot { current: Some(current), next: Some(id) });
        id
    }

    /// Writes bytes.
    pub(crate) fn write(&mut self, file: FileId, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let (now, scratch_min) = (self.now_real_ns, self.scratch_min);
        let file = self.file_mut(file);
        let start = usize::try_from(offset).expect("a small offset");
        let end = start + data.len();
        if file.bytes.len() < end {
            file.bytes.resize(end, 0);
        }
        file.bytes[start..end].copy_from_slice(data);
        file.scratch |= end as u64 >= scratch_min && file.phase != Phase::Sealed;
        file.written(now);
    }

    /// Changes length or pages.
    pub(crate) fn resize(&mut self, file: FileId, change: Change) {
        let (now, scratch_min) = (self.now_real_ns, self.scratch_min);
        let file = self.file_mut(file);
        let place = |value: u64| usize::try_from(value).expect("a small length");
        let reach = match change {
            Change::Set(length) => {
                file.bytes.resize(place(length), 0);
                length
            }
            Change::Allocate { offset, length, keep_size } => {
                let end = place(offset + length);
                if !keep_size && file.bytes.len() < end {
                    file.bytes.resize(end, 0);
                }
                offset + length
            }
            Change::Punch { offset, length } => {
                let size = file.bytes.len();
                let (start, end) = (place(offset).min(size), place(offset + length).min(size));
                file.bytes[start..end].fill(0);
                file.has_holes = true;
                0
            }
        };
        file.scratch |= reach >= scratch_min && file.phase != Phase::Sealed;
        file.changed = true;
        if file.phase == Phase::Sealed && !matches!(change, Change::Punch { .. }) {
            // Its writer goes on after the rename: the record is written anew, with this length.
            file.counted = file.bytes.len() as u64;
        }
        match (change, file.mtime) {
            // Pages that hold nothing new: whether that is a change is left open.
            (Change::Allocate { .. }, Mtime::Is(_)) => file.mtime = Mtime::Any,
            (Change::Allocate { .. }, _) => {}
            _ => file.written(now),
        }
    }

    /// Another file gets the name of the hidden file `id`, which goes on over that one.
    pub(super) fn overtake(&mut self, id: FileId) {
        let is_closed = self.is_closed_by_all(id);
        let file = self.file_mut(id);
        file.overtaken = is_closed && !file.changed;
    }

    /// Whether somebody writes the file, and each who does has closed a descriptor of his.
    fn is_closed_by_all(&self, id: FileId) -> bool {
        let mut writers =
            self.handles.iter().filter(|handle| handle.file == id && handle.is_writer).peekable();
        writers.peek().is_some() && writers.all(|handle| handle.was_flushed)
    }

    /// truncate(2) has opened the file beside its writers, and closed it.
    pub(crate) fn closed_by_name(&mut self, id: FileId) {
        let is_closed = self.is_closed_by_all(id);
        self.file_mut(id).changed &= !is_closed;
    }

    pub(super) fn place_of(&self, file: FileId) -> Option<(DirectoryId, String)> {
        let found = self.slots().into_iter().find(|(_, _, slot)| slot.next == Some(file));
        found.map(|(directory, name, _)| (directory, name))
    }

    /// Closes a handle. `is_dropped`: the system had no room for the holes of the file and gave it up.
    pub(crate) fn close(&mut self, handle: usize, is_dropped: bool) {
        let handle = self.handles.remove(handle);
        let id = handle.file;
        let file = self.file_mut(id);
        if handle.is_writer {
            file.writers -= 1;
        } else {
            file.readers -= 1;
        }
        let ends = handle.is_writer && file.writers == 0;
        // Nothing comes of what stood there before.
        let is_dropped = is_dropped || file.overtaken;
        match file.phase {
            Phase::Writing if ends => {
                let (directory, name) = self.place_of(id).expect("a hidden file has a name");
                let slot = self.slot(directory, &name);
                if is_dropped {
                    self.set_slot(directory, &name, Slot { next: None, ..slot });
                    self.bury(Some(id));
                } else {
                    self.set_slot(directory, &name, Slot { current: Some(id), next: None });
                    self.bury(slot.current);
                    if self.file(id).scratch
                        || (is_temporary(&name) && slot.current.is_none() && !self.file(id).was_sealed)
                    {
                        self.file_mut(id).phase = Phase::Parked;
                    } else {
                        self.seal(directory, id);
                    }
                }
            }
            Phase::Sealed if ends => self.finish(id),
            Phase::Gone => self.bury(Some(id)),
            Phase::Writing | Phase::Parked | Phase::Sealed => {}
        }
    }

    /// The file, which stands in `directory`, is an object from now on.
    pub(super) fn seal(&mut self, directory: DirectoryId, id: FileId) {
        let now = self.now_ns;
        let file = self.file_mut(id);
        file.phase = Phase::Sealed;
        file.shown = false;
        file.was_sealed = true;
        (file.refused, file.changed, file.flushed) = (false, false, None);
        file.sealed_ns = (now, now);
        file.counted = file.bytes.len() as u64;
        if file.writers == 0 {
            self.finish(id);
        }
        self.renew_expiry(directory, id);
    }

    pub(super) fn finish(&mut self, id: FileId) {
        let file = self.file_mut(id);
        file.counted = file.bytes.len() as u64;
        file.who.clear();
        file.has_holes = false;
    }

    /// Counts the time to live of a sealed file anew.
    pub(super) fn renew_expiry(&mut self, directory: DirectoryId, id: FileId) {
        let ttl_ns = self.ttl(directory, id).map(|ttl| i64::try_from(ttl).expect("seconds") * 1_000_000_000);
        let file = self.file_mut(id);
        let (earliest, latest) = file.sealed_ns;
        file.expires_ns = ttl_ns.map(|ttl_ns| (earliest + ttl_ns, latest + ttl_ns));
    }

    /// A sealed file may have been opened for writing in place, and sealed again as it was.
    pub(crate) fn sealed_again(&mut self, id: FileId) {
        let now = self.now_ns;
        let file = self.file_mut(id);
        file.sealed_ns.1 = now;
        if let Some(expires) = &mut file.expires_ns {
            expires.1 = expires.1.max(expires.0 + (now - file.sealed_ns.0));
        }
    }

    /// A write was refused for lack of room.
    pub(crate) fn refuse(&mut self, id: FileId) {
        let file = self.file_mut(id);
        file.refused |= file.phase == Phase::Writing;
        file.changed = true;
    }

    /// Whether a rename of the file to `name` would make an object of what its writer did not mean.
    pub(crate) fn is_refused(&self, id: FileId, name: &str) -> bool {
        let file = self.file(id);
        file.refused && file.phase == Phase::Writing && !file.scratch && !is_temporary(name)
    }

    /// Closes a duplicate of a handle.
    pub(crate) fn flush(&mut self, handle: usize) {
        self.handles[handle].was_flushed = true;
        let handle = self.handles[handle];
        let is_last = handle.is_writer && self.is_closed_by_all(handle.file);
        let is_temporary = self.place_of(handle.file).is_none_or(|(_, name)| is_temporary(&name));
        let file = self.file_mut(handle.file);
        if is_last {
            // Who closes what nobody changed since adds nothing to it.
            file.overtaken &= !file.changed;
            file.changed = false;
        }
        if is_last && file.phase == Phase::Writing && !is_temporary && !file.scratch {
            file.flushed = Some((file.mode, file.policy));
        }
    }
}
