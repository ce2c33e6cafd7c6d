//! The reference model: what a name is, to whom, and which bytes it has, by the rules of `docs/SEMANTICS.md` alone.
//!
//! A name holds up to two files: `current`, which everyone sees, and `next`, which only its writers see and which takes
//! its place at the seal. There are no segments, pages or orders here.

use std::collections::{BTreeMap, BTreeSet};

use nix::errno::Errno;

use super::system::{Open, Token};

mod life;
mod names;
mod restart;

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
    /// Whether everyone sees it while it is written: it has, or had, a temporary name and was no object yet.
    pub(crate) shown: bool,
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
    /// Its mode and policy when each of its writers had closed a duplicate: a daemon that dies then may keep the file so, since
    /// it cannot know better.
    pub(crate) flushed: Option<(u32, Policy)>,
    /// Whether somebody wrote to it, or tried to, since each of its writers had closed it.
    pub(crate) changed: bool,
    /// Whether each of its writers had closed it when another file got its name: it is what stood there before, until it is
    /// changed and closed once more.
    pub(crate) overtaken: bool,
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
            shown: false,
            scratch: false,
            was_sealed: false,
            policy: Policy::default(),
            counted: 0,
            sealed_ns: (0, 0),
            expires_ns: None,
            has_holes: false,
            refused: false,
            flushed: None,
            changed: false,
            overtaken: false,
        }
    }

    /// Whether a handle is open.
    pub(crate) fn is_open(&self) -> bool {
        self.readers + self.writers > 0
    }

    fn written(&mut self, now_real_ns: i64) {
        self.changed = true;
        self.mtime = match self.mtime {
            Mtime::Any => Mtime::Any,
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
    /// Whether what is below it may pass its quota: it was filled of what cannot be evicted.
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
    /// Whether a duplicate of it was closed.
    pub(crate) was_flushed: bool,
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

    /// What all had closed before another one took its name, if that is gone: of both nothing is to stand there.
    pub(crate) fn past(&self, slot: Slot) -> Option<FileId> {
        slot.next.filter(|&next| slot.current.is_none() && self.file(next).overtaken)
    }

    /// Takes that from its name.
    pub(crate) fn drop_past(&mut self, directory: DirectoryId, name: &str) {
        let past = self.past(self.slot(directory, name));
        if past.is_some() {
            self.set_slot(directory, name, Slot::default());
            self.bury(past);
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
        let sees = |&next: &FileId| self.file(next).shown || self.is_seen_by(who, next);
        slot.next.filter(sees).or(slot.current)
    }

    /// Whether `who` sees a hidden file: who writes it does, and who alone has written it, unless it was overtaken.
    fn is_seen_by(&self, who: usize, file: FileId) -> bool {
        let mut writing = self
            .handles
            .iter()
            .filter(|handle| handle.file == file && handle.is_writer && !handle.was_flushed);
        let is_whole = writing.clone().next().is_none();
        let File { who: all, overtaken, .. } = self.file(file);
        let is_alone = all.len() == 1 && all.contains(&who) && !overtaken;
        writing.any(|handle| handle.who == who) || (is_whole && is_alone)
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

    /// Least bytes of unfinished files below a directory, in pages, as its quota counts them: their lengths, but for what
    /// the object has whose place one takes. `None` when none is there.
    pub(crate) fn unfinished_below(&self, top: DirectoryId) -> Option<u64> {
        let counted = |current: Option<FileId>| {
            let sealed = current.map(|file| self.file(file)).filter(|file| file.phase == Phase::Sealed);
            sealed.map_or(0, |file| footprint(file.counted))
        };
        let slots = self.slots().into_iter();
        let below = slots.filter(|(directory, _, _)| self.ancestors(*directory).contains(&top));
        below
            .flat_map(|(_, _, slot)| {
                let next = slot.next.map(|file| (file, counted(slot.current)));
                let parked = slot.current.filter(|&file| self.file(file).phase == Phase::Parked);
                [next, parked.map(|file| (file, 0))]
            })
            .flatten()
            .filter(|&(file, _)| !self.file(file).scratch)
            .map(|(file, beside)| footprint(self.file(file).bytes.len() as u64).saturating_sub(beside))
            .reduce(|sum, bytes| sum + bytes)
    }

    /// Takes what everyone sees under a name away: evicted or expired.
    pub(crate) fn remove_current(&mut self, directory: DirectoryId, name: &str) {
        let slot = self.slot(directory, name);
        self.set_slot(directory, name, Slot { current: None, ..slot });
        self.bury(slot.current);
    }
}
