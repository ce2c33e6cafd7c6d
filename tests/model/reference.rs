//! The reference model: what a name is, to whom, and which bytes it has, by the rules of `docs/SEMANTICS.md` alone.
//!
//! A name holds up to two files: `current`, which everyone sees, and `next`, which only its writers see and which takes
//! its place at the seal. There are no segments, pages or orders here.

use std::collections::{BTreeMap, BTreeSet};

use nix::errno::Errno;

use super::system::{Change, Open, Token};

/// A directory of the model.
pub(crate) type DirectoryId = usize;
/// A file of the model.
pub(crate) type FileId = usize;
/// The root.
pub(crate) const ROOT: DirectoryId = 0;

const PAGE: u64 = 4096;

/// Bytes of the pages that `length` bytes need.
pub(crate) fn footprint(length: u64) -> u64 {
    length.next_multiple_of(PAGE)
}

/// Policy set on one file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Seconds.
    pub(crate) ttl: Option<u64>,
    /// As the attribute spells it.
    pub(crate) pin: Option<&'static str>,
    /// Bytes.
    pub(crate) quota: Option<u64>,
    /// Whether new files below are slot files.
    pub(crate) scratch: Option<bool>,
}

/// Station in the life of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Hidden from all but its writers.
    Writing,
    /// Closed under a temporary name, or a slot file: visible, lost at a restart.
    Parked,
    /// An object.
    Sealed,
    /// Without a name.
    Gone,
}

/// What is known of a modification time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mtime {
    /// It has this value.
    Is(i64),
    /// It was set by the clock at some moment after this one, and is learned when it is first seen.
    After(i64),
    /// Anything: written after it was set by hand, which has no promise.
    Any,
}

/// A file.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// Its mode.
    pub(crate) mode: u32,
    /// Its modification time.
    pub(crate) mtime: Mtime,
    /// Its station.
    pub(crate) phase: Phase,
    /// Handles that read only.
    pub(crate) readers: u32,
    /// Handles that may write.
    pub(crate) writers: u32,
    /// Processes that see it while it is hidden.
    pub(crate) who: BTreeSet<usize>,
    /// Whether it is a slot file.
    pub(crate) scratch: bool,
    /// Whether it was an object before it was opened for writing again: then it is one again at the close.
    pub(crate) was_sealed: bool,
    /// Its own policy.
    pub(crate) policy: Policy,
    /// Length that the books have it with.
    pub(crate) counted: u64,
    /// When it was sealed, between which moments: its time to live counts from there.
    pub(crate) sealed_ns: (i64, i64),
    /// When it may be gone, and when it must.
    pub(crate) expires_ns: Option<(i64, i64)>,
    /// Whether pages were taken out of it since it was opened for writing.
    pub(crate) has_holes: bool,
    /// Whether a write to it was refused for lack of room: it is not what its writer meant, and goes at the close.
    pub(crate) refused: bool,
    /// Its mode and policy when its only writer closed a duplicate: a daemon that dies then may keep the file so, since
    /// it cannot know better.
    pub(crate) flushed: Option<(u32, Policy)>,
}

impl File {
    fn new(now_real_ns: i64) -> Self {
        Self {
            bytes: Vec::new(),
            mode: 0o644,
            mtime: Mtime::After(now_real_ns),
            phase: Phase::Writing,
            readers: 0,
            writers: 0,
            who: BTreeSet::new(),
            scratch: false,
            was_sealed: false,
            policy: Policy::default(),
            counted: 0,
            sealed_ns: (0, 0),
            expires_ns: None,
            has_holes: false,
            refused: false,
            flushed: None,
        }
    }

    /// Whether a handle is open.
    pub(crate) fn is_open(&self) -> bool {
        self.readers + self.writers > 0
    }

    fn written(&mut self, now_real_ns: i64) {
        self.mtime = match self.mtime {
            Mtime::Any => Mtime::Any,
            // A hidden file whose time was set by hand: its owner set it to stay.
            Mtime::Is(_) if self.phase == Phase::Writing => Mtime::Any,
            _ => Mtime::After(now_real_ns),
        };
    }
}

/// What stands under a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    /// What everyone sees.
    pub(crate) current: Option<FileId>,
    /// What its writers see.
    pub(crate) next: Option<FileId>,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A directory.
    Directory(DirectoryId),
    /// A file.
    File(Slot),
}

/// A directory.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    /// Where it stands; the root in itself.
    pub(crate) parent: DirectoryId,
    /// Its entries.
    pub(crate) entries: BTreeMap<String, Entry>,
    /// Its mode.
    pub(crate) mode: u32,
    /// Its own policy.
    pub(crate) policy: Policy,
    /// Whether what is below it may pass its quota: it was filled by renaming a directory, or of what cannot be evicted.
    pub(crate) excused: bool,
}

/// An open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle {
    /// Whose it is.
    pub(crate) who: usize,
    /// Of which file.
    pub(crate) file: FileId,
    /// How it was opened.
    pub(crate) options: Open,
    /// Whether its close counts as a writer's: it may write, or made the file.
    pub(crate) is_writer: bool,
    /// What the system calls it.
    pub(crate) token: Token,
}

/// How an open of a sealed object for writing turned out, which is the system's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rewrite {
    /// A hidden new version beside it.
    Beside,
    /// The object itself, which is hidden again.
    InPlace,
}

/// The whole filesystem.
#[derive(Debug)]
pub(crate) struct Model {
    /// All directories by id.
    pub(crate) directories: BTreeMap<DirectoryId, Directory>,
    /// All files that have a name or a handle.
    pub(crate) files: BTreeMap<FileId, File>,
    /// Open handles, the oldest first.
    pub(crate) handles: Vec<Handle>,
    /// From this length on a file is a slot file.
    pub(crate) scratch_min: u64,
    next_id: usize,
    /// Wall clock of the system.
    pub(crate) now_ns: i64,
    /// Clock of the machine, which stamps writes.
    pub(crate) now_real_ns: i64,
}

fn is_temporary(name: &str) -> bool {
    name.ends_with(".tmp")
}

impl Model {
    /// An empty filesystem.
    pub(crate) fn new(scratch_min: u64) -> Self {
        let root = Directory {
            parent: ROOT,
            entries: BTreeMap::new(),
            mode: 0o755,
            policy: Policy::default(),
            excused: false,
        };
        Self {
            directories: BTreeMap::from([(ROOT, root)]),
            files: BTreeMap::new(),
            handles: Vec::new(),
            scratch_min,
            next_id: 1,
            now_ns: 0,
            now_real_ns: 0,
        }
    }

    fn fresh_id(&mut self) -> usize {
        self.next_id += 1;
        self.next_id
    }

    /// A file.
    pub(crate) fn file(&self, id: FileId) -> &File {
        &self.files[&id]
    }

    /// A file, to change it.
    pub(crate) fn file_mut(&mut self, id: FileId) -> &mut File {
        self.files.get_mut(&id).expect("the id of a file that lives")
    }

    /// The entry under a name.
    pub(crate) fn entry(&self, directory: DirectoryId, name: &str) -> Option<Entry> {
        self.directories[&directory].entries.get(name).copied()
    }

    /// The files under a name.
    pub(crate) fn slot(&self, directory: DirectoryId, name: &str) -> Slot {
        match self.entry(directory, name) {
            Some(Entry::File(slot)) => slot,
            _ => Slot::default(),
        }
    }

    /// Everything that has a name, for messages.
    pub(crate) fn describe(&self) -> String {
        let show = |file: FileId| {
            let file = self.file(file);
            let File { phase, readers, writers, who, .. } = file;
            format!("{phase:?} {} bytes, {readers} readers, {writers} writers of {who:?}", file.bytes.len())
        };
        let lines = self.slots().into_iter().map(|(directory, name, slot)| {
            let path = self.path(directory, &name);
            format!("  {path}: {:?}, next {:?}\n", slot.current.map(show), slot.next.map(show))
        });
        lines.collect()
    }

    /// Puts files under a name, or takes the name away when there are none.
    pub(crate) fn set_slot(&mut self, directory: DirectoryId, name: &str, slot: Slot) {
        let entries = &mut self.directories.get_mut(&directory).expect("a directory that lives").entries;
        if slot == Slot::default() {
            entries.remove(name);
        } else {
            entries.insert(name.to_owned(), Entry::File(slot));
        }
    }

    /// The file that `who` sees there.
    pub(crate) fn visible(&self, who: usize, slot: Slot) -> Option<FileId> {
        slot.next.filter(|&next| self.file(next).who.contains(&who)).or(slot.current)
    }

    /// Path of a directory below the mount; the root's is empty.
    pub(crate) fn directory_path(&self, id: DirectoryId) -> String {
        if id == ROOT {
            return String::new();
        }
        let parent = self.directories[&id].parent;
        let is_this = |entry: &&Entry| **entry == Entry::Directory(id);
        let entries = &self.directories[&parent].entries;
        let name = entries.iter().find(|(_, entry)| is_this(entry)).expect("a directory has a name").0;
        self.path(parent, name)
    }

    /// Path of a name in a directory.
    pub(crate) fn path(&self, directory: DirectoryId, name: &str) -> String {
        let above = self.directory_path(directory);
        if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") }
    }

    /// A directory and those above it, nearest first.
    pub(crate) fn ancestors(&self, directory: DirectoryId) -> Vec<DirectoryId> {
        let mut found = vec![directory];
        while let Some(&last) = found.last()
            && last != ROOT
        {
            found.push(self.directories[&last].parent);
        }
        found
    }

    /// Every name of a file: directory, name and what stands there.
    pub(crate) fn slots(&self) -> Vec<(DirectoryId, String, Slot)> {
        let mut found = Vec::new();
        for (&id, directory) in &self.directories {
            for (name, entry) in &directory.entries {
                if let Entry::File(slot) = *entry {
                    found.push((id, name.clone(), slot));
                }
            }
        }
        found
    }

    /// The pin in force for a file in `directory`.
    fn is_hard_pinned(&self, directory: DirectoryId, file: FileId) -> bool {
        let above = self.ancestors(directory).into_iter().find_map(|id| self.directories[&id].policy.pin);
        self.file(file).policy.pin.or(above) == Some("hard")
    }

    fn ttl(&self, directory: DirectoryId, file: FileId) -> Option<u64> {
        let above = self.ancestors(directory).into_iter().find_map(|id| self.directories[&id].policy.ttl);
        self.file(file).policy.ttl.or(above)
    }

    /// Whether the cache may evict what everyone sees under this name.
    pub(crate) fn is_evictable(&self, directory: DirectoryId, slot: Slot) -> bool {
        let Some(current) = slot.current else { return false };
        let file = self.file(current);
        !file.is_open() && !file.scratch && slot.next.is_none() && !self.is_hard_pinned(directory, current)
    }

    /// Names of objects that the cache may evict, at or below `top`. Closed temporary files are left out: they are
    /// given a while to be renamed in.
    pub(crate) fn evictable_below(&self, top: DirectoryId) -> Vec<String> {
        let slots = self.slots().into_iter();
        slots
            .filter(|(directory, _, slot)| {
                let is_object = slot.current.is_some_and(|file| self.file(file).phase == Phase::Sealed);
                is_object && self.ancestors(*directory).contains(&top) && self.is_evictable(*directory, *slot)
            })
            .map(|(directory, name, _)| self.path(directory, &name))
            .collect()
    }

    /// Bytes of sealed objects below a directory, in pages, as its quota counts them.
    pub(crate) fn sealed_below(&self, top: DirectoryId) -> u64 {
        let slots = self.slots().into_iter();
        slots
            .filter(|(directory, _, _)| self.ancestors(*directory).contains(&top))
            .filter_map(|(_, _, slot)| slot.current)
            .filter(|&file| self.file(file).phase == Phase::Sealed)
            .map(|file| footprint(self.file(file).counted))
            .sum()
    }

    /// The file loses its name.
    pub(crate) fn bury(&mut self, file: Option<FileId>) {
        let Some(id) = file else { return };
        let file = self.file_mut(id);
        file.phase = Phase::Gone;
        if !file.is_open() {
            self.files.remove(&id);
        }
    }

    /// Takes what everyone sees under a name away: evicted or expired.
    pub(crate) fn remove_current(&mut self, directory: DirectoryId, name: &str) {
        let slot = self.slot(directory, name);
        self.set_slot(directory, name, Slot { current: None, ..slot });
        self.bury(slot.current);
    }

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
                    let file = File { scratch: scratch == Some(true), ..File::new(self.now_real_ns) };
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
        if entry.phase == Phase::Writing && (options.write || options.create) {
            entry.who.insert(who);
        }
        if is_writer {
            entry.writers += 1;
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
    fn reopen(
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
        if let Some(next) = slot.next {
            return next;
        }
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
        match (change, file.mtime) {
            // Pages that hold nothing new: whether that is a change is left open.
            (Change::Allocate { .. }, Mtime::Is(_)) => file.mtime = Mtime::Any,
            (Change::Allocate { .. }, _) => {}
            _ => file.written(now),
        }
    }

    fn place_of(&self, file: FileId) -> Option<(DirectoryId, String)> {
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
    fn seal(&mut self, directory: DirectoryId, id: FileId) {
        let now = self.now_ns;
        let file = self.file_mut(id);
        file.phase = Phase::Sealed;
        file.was_sealed = true;
        (file.refused, file.flushed) = (false, None);
        file.sealed_ns = (now, now);
        file.counted = file.bytes.len() as u64;
        if file.writers == 0 {
            self.finish(id);
        }
        self.renew_expiry(directory, id);
    }

    fn finish(&mut self, id: FileId) {
        let file = self.file_mut(id);
        file.counted = file.bytes.len() as u64;
        file.who.clear();
        file.has_holes = false;
    }

    /// Counts the time to live of a sealed file anew.
    fn renew_expiry(&mut self, directory: DirectoryId, id: FileId) {
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

    /// A write or a change of length was refused for lack of room.
    pub(crate) fn refuse(&mut self, id: FileId) {
        let file = self.file_mut(id);
        file.refused |= file.phase == Phase::Writing;
    }

    /// Whether a rename of the file to `name` would make an object of what its writer did not mean.
    pub(crate) fn is_refused(&self, id: FileId, name: &str) -> bool {
        let file = self.file(id);
        file.refused && file.phase == Phase::Writing && !file.scratch && !is_temporary(name)
    }

    /// Closes a duplicate of a handle.
    pub(crate) fn flush(&mut self, handle: usize) {
        let handle = self.handles[handle];
        let is_temporary = self.place_of(handle.file).is_none_or(|(_, name)| is_temporary(&name));
        let file = self.file_mut(handle.file);
        let is_last = handle.is_writer && file.writers == 1 && file.phase == Phase::Writing;
        if is_last && !is_temporary && !file.scratch {
            file.flushed = Some((file.mode, file.policy));
        }
    }

    /// A restart kept the hidden file under this name.
    pub(crate) fn keep_flushed(&mut self, directory: DirectoryId, name: &str) {
        let slot = self.slot(directory, name);
        let Some(next) = slot.next else { return };
        for above in self.ancestors(directory) {
            // Nobody looked whether it fits.
            self.directories.get_mut(&above).expect("it lives").excused = true;
        }
        let file = self.file_mut(next);
        if let Some((mode, policy)) = file.flushed {
            (file.mode, file.policy) = (mode, policy);
        }
        self.bury(slot.current);
        self.set_slot(directory, name, Slot { current: Some(next), next: None });
        self.seal(directory, next);
        // When it was sealed is when it was written last, by the machine's clock.
        let now = self.now_ns.max(self.now_real_ns);
        self.file_mut(next).sealed_ns = (0, now);
        self.file_mut(next).mtime = Mtime::Any;
    }

    /// Renames a file.
    pub(crate) fn rename(
        &mut self,
        who: usize,
        from: (DirectoryId, &str),
        to: (DirectoryId, &str),
        keep: bool,
    ) -> Result<(), Errno> {
        let source = self.slot(from.0, from.1);
        let file = self.visible(who, source).ok_or(Errno::ENOENT)?;
        let target = match self.entry(to.0, to.1) {
            Some(Entry::Directory(_)) if keep => return Err(Errno::EEXIST),
            Some(Entry::Directory(_)) => return Err(Errno::EISDIR),
            Some(Entry::File(slot)) => slot,
            None => Slot::default(),
        };
        if keep && target != Slot::default() {
            return Err(Errno::EEXIST);
        }
        if from == to {
            return Ok(());
        }
        let was_current = source.current == Some(file);
        let stays_unsealed = self.file(file).scratch || is_temporary(to.1);
        let is_object = self.file(file).phase == Phase::Sealed;
        self.set_slot(from.0, from.1, Slot::default());
        self.bury(target.current);
        if was_current {
            // Whoever rewrites it goes on under the new name; else whoever rewrites what stood there does.
            let heir = target.next.filter(|_| target.current.is_some() && (is_object || !stays_unsealed));
            let next = source.next.or(heir);
            if target.next != next {
                self.bury(target.next);
            }
            self.set_slot(to.0, to.1, Slot { current: Some(file), next });
            if is_object {
                self.renew_expiry(to.0, file);
            } else if !stays_unsealed {
                self.seal(to.0, file);
            }
            return Ok(());
        }
        self.bury(source.current);
        if stays_unsealed {
            self.file_mut(file).flushed = None;
            self.bury(target.next);
            self.set_slot(to.0, to.1, Slot { current: None, next: Some(file) });
            return Ok(());
        }
        let heir = target.next.filter(|_| target.current.is_some());
        if heir.is_none() {
            self.bury(target.next);
        }
        self.set_slot(to.0, to.1, Slot { current: Some(file), next: heir });
        self.seal(to.0, file);
        Ok(())
    }

    /// Unlinks a name.
    pub(crate) fn unlink(&mut self, who: usize, (directory, name): (DirectoryId, &str)) -> Result<(), Errno> {
        if let Some(Entry::Directory(_)) = self.entry(directory, name) {
            return Err(Errno::EISDIR);
        }
        let slot = self.slot(directory, name);
        self.visible(who, slot).ok_or(Errno::ENOENT)?;
        self.set_slot(directory, name, Slot::default());
        self.bury(slot.current);
        self.bury(slot.next);
        Ok(())
    }

    /// Makes a directory.
    pub(crate) fn mkdir(&mut self, directory: DirectoryId, name: &str) -> Result<(), Errno> {
        if self.entry(directory, name).is_some() {
            return Err(Errno::EEXIST);
        }
        let id = self.fresh_id();
        let made = Directory {
            parent: directory,
            entries: BTreeMap::new(),
            mode: 0o755,
            policy: Policy::default(),
            excused: false,
        };
        self.directories.insert(id, made);
        let above = self.directories.get_mut(&directory).expect("a directory that lives");
        above.entries.insert(name.to_owned(), Entry::Directory(id));
        Ok(())
    }

    /// Removes a directory other than the root.
    pub(crate) fn rmdir(&mut self, id: DirectoryId) -> Result<(), Errno> {
        if !self.directories[&id].entries.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.detach_directory(id);
        self.directories.remove(&id);
        Ok(())
    }

    fn detach_directory(&mut self, id: DirectoryId) {
        let parent = self.directories[&id].parent;
        let above = self.directories.get_mut(&parent).expect("a directory that lives");
        above.entries.retain(|_, entry| *entry != Entry::Directory(id));
    }

    /// Renames a directory other than the root.
    pub(crate) fn rename_directory(
        &mut self,
        id: DirectoryId,
        (to, name): (DirectoryId, &str),
    ) -> Result<(), Errno> {
        if self.ancestors(to).contains(&id) {
            return Err(Errno::EINVAL);
        }
        match self.entry(to, name) {
            Some(Entry::Directory(same)) if same == id => return Ok(()),
            Some(Entry::Directory(other)) if !self.directories[&other].entries.is_empty() => {
                return Err(Errno::ENOTEMPTY);
            }
            Some(Entry::Directory(other)) => self.rmdir(other)?,
            Some(Entry::File(_)) => return Err(Errno::ENOTDIR),
            None => {}
        }
        self.detach_directory(id);
        self.directories.get_mut(&id).expect("it lives").parent = to;
        let above = self.directories.get_mut(&to).expect("a directory that lives");
        above.entries.insert(name.to_owned(), Entry::Directory(id));
        for ancestor in self.ancestors(to) {
            self.directories.get_mut(&ancestor).expect("it lives").excused = true;
        }
        self.renew_expiries(id);
        Ok(())
    }

    /// Counts every time to live below a directory anew.
    pub(crate) fn renew_expiries(&mut self, top: DirectoryId) {
        for (directory, _, slot) in self.slots() {
            if let Some(file) = slot.current
                && self.ancestors(directory).contains(&top)
                && self.file(file).phase == Phase::Sealed
            {
                self.renew_expiry(directory, file);
            }
        }
    }

    /// chmod, utimensat or a policy of a file.
    pub(crate) fn change_file(
        &mut self,
        who: usize,
        (directory, name): (DirectoryId, &str),
        change: impl FnOnce(&mut File),
    ) -> Result<(), Errno> {
        let file = self.visible(who, self.slot(directory, name)).ok_or(Errno::ENOENT)?;
        change(self.file_mut(file));
        if self.file(file).phase == Phase::Sealed {
            self.renew_expiry(directory, file);
        }
        Ok(())
    }

    /// Everything that is not sealed is gone, and every handle. Returns the names of objects whose length their writers
    /// changed after the rename, and had not closed: what they added since the record was written is not there, and
    /// there may have been no room to keep the rest.
    pub(crate) fn restart(&mut self) -> Vec<(DirectoryId, String)> {
        self.handles.clear();
        for (directory, name, slot) in self.slots() {
            let kept = slot.current.filter(|&file| self.file(file).phase == Phase::Sealed);
            self.set_slot(directory, &name, Slot { current: kept, next: None });
        }
        let named: BTreeSet<FileId> =
            self.slots().into_iter().filter_map(|(_, _, slot)| slot.current).collect();
        self.files.retain(|id, _| named.contains(id));
        let is_unfinished = |file: &File| file.writers > 0 && file.counted != file.bytes.len() as u64;
        let slots = self.slots().into_iter();
        let unfinished =
            slots.filter(|(_, _, slot)| slot.current.is_some_and(|id| is_unfinished(self.file(id))));
        let unfinished = unfinished.map(|(directory, name, _)| (directory, name)).collect();
        for file in self.files.values_mut() {
            if file.writers > 0 {
                // What was written after the seal is there; when, was not noted yet.
                file.mtime = Mtime::Any;
            }
            (file.readers, file.writers) = (0, 0);
            file.who.clear();
        }
        self.renew_expiries(ROOT);
        unfinished
    }

    /// A restart found the object under this name with `length` bytes.
    pub(crate) fn found_after_restart(&mut self, directory: DirectoryId, name: &str, length: u64) {
        let id = self.slot(directory, name).current.expect("an object has its name");
        let file = self.file_mut(id);
        let written = file.bytes.len() as u64;
        assert!(
            (file.counted.min(written)..=written).contains(&length),
            "{name} has {length} bytes, and had {} at its rename and {written} at the end",
            file.counted
        );
        file.bytes.truncate(usize::try_from(length).expect("a small length"));
        file.counted = length;
    }
}
