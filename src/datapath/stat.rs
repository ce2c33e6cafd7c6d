//! Attributes of nodes, and of the space they live in.

use std::os::unix::fs::MetadataExt;

use tidefs_engine::types::{ByteCount, Version};

use super::open_state::OpenState;
use super::room::footprint;
use super::{Caller, Datapath, Error, Marks, Object, Phase, Place, State};
use crate::namespace::{Attributes, Ino, Slot};

/// What kind of node it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file.
    File,
}

/// Attributes as `stat` shows them.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// Inode number.
    pub ino: Ino,
    /// Directory or file.
    pub kind: Kind,
    /// Length.
    pub size: ByteCount,
    /// Bytes that it occupies.
    pub occupied: ByteCount,
    /// Links.
    pub links: u32,
    /// Owner, mode and times.
    pub attributes: Attributes,
    /// Whether the kernel may believe all this until it is told otherwise.
    pub is_settled: bool,
}

/// Space as statfs(2) shows it.
#[derive(Clone, Copy, Debug)]
pub struct SpaceStat {
    /// Capacity of the cache or of the namespace.
    pub capacity: ByteCount,
    /// What is free of it.
    pub free: ByteCount,
    /// Nodes that exist.
    pub nodes: u64,
}

/// When a backing file was last written, in nanoseconds since 1970.
pub(super) fn written_ns(metadata: &std::fs::Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

/// When a file that is not finished was written last: as its owner says (`stored_ns`), unless its backing file, which was
/// stamped with that, was written since. A time that lies ahead is no later than what is written.
pub(super) fn last_written_ns(stored_ns: i64, metadata: &std::fs::Metadata, now_ns: i64) -> i64 {
    let written_ns = written_ns(metadata);
    if stored_ns > now_ns { written_ns } else { stored_ns.max(written_ns) }
}

/// When a file that is not finished changed last: by its owner (`stored_ns`), or by a write. What the daemon does to its backing
/// file, as it gives it a record, is no change of the file; a time that its owner set ahead is none either.
pub(super) fn last_changed_ns(stored_ns: i64, metadata: &std::fs::Metadata, now_ns: i64) -> i64 {
    let written_ns = written_ns(metadata);
    if written_ns > now_ns { stored_ns } else { stored_ns.max(written_ns) }
}

/// When the attributes of a backing file last changed, in nanoseconds since 1970.
pub(super) fn changed_ns(metadata: &std::fs::Metadata) -> i64 {
    metadata.ctime().saturating_mul(1_000_000_000).saturating_add(metadata.ctime_nsec())
}

impl State {
    /// Whether the kernel still gets attributes of an inode that may have lost its name: who has it open reads on, and what a
    /// name stands for that the kernel knows is asked of the inode.
    pub(super) fn still_answers(&self, ino: Ino) -> bool {
        let object = self.tree.by_ino(ino).and_then(|slot| self.object(slot));
        object.is_some_and(|object| object.is_open() || object.is_readable())
    }
}

impl Datapath {
    /// Whether an inode is a directory.
    #[must_use]
    pub fn is_directory(&self, ino: Ino) -> bool {
        let state = self.lock();
        state.tree.by_ino(ino).is_some_and(|slot| state.tree.directory(slot).is_some())
    }

    /// Whether `name` in `parent` is a directory.
    #[must_use]
    pub fn is_directory_child(&self, parent: Ino, name: &[u8]) -> bool {
        let state = self.lock();
        let child = state.tree.by_ino(parent).and_then(|parent| state.tree.child(parent, name));
        child.is_some_and(|child| state.tree.directory(child).is_some())
    }

    /// Attributes of a live slot. Asks the backing file while the file is written: the daemon sees no passthrough
    /// write, the file does.
    pub(super) fn stat_of(&self, state: &State, slot: Slot) -> Stat {
        let node = state.tree.node(slot);
        let mut attributes = node.attributes;
        let ino = state.tree.ino(slot);
        if let Some(directory) = state.tree.directory(slot) {
            let is_removed = node.is_detached() && slot != Slot::ROOT;
            return Stat {
                ino,
                kind: Kind::Directory,
                size: ByteCount::ZERO,
                occupied: ByteCount::ZERO,
                links: if is_removed { 0 } else { 2 + directory.subdirectories },
                attributes,
                is_settled: true,
            };
        }
        let Some(object) = state.object(slot) else { unreachable!("a node is a directory or a file") };
        let (mut size, mut occupied) = (object.size, footprint(object.size));
        // What had its last writer before it lost its name has no other one after that.
        let is_object = matches!(object.phase, Phase::Sealed | Phase::Gone);
        let is_final = is_object && object.marks.has(Marks::FINAL);
        // While it is rewritten, its name stands for another file to some.
        let is_settled = is_final && object.phase == Phase::Sealed && object.next_version().is_none();
        if !is_final {
            let file = match &object.place {
                Place::Scratch(scratch) => Some(scratch.file()),
                _ => object.file(),
            };
            if let Some(metadata) = file.and_then(|file| file.metadata().ok()) {
                size = ByteCount(metadata.len());
                occupied = ByteCount(metadata.blocks() * 512);
                // The bytes of one without a name may be from before its owner set a time.
                let Attributes { mtime_ns, ctime_ns, .. } = attributes;
                (attributes.mtime_ns, attributes.ctime_ns) = match object.phase {
                    // It went with its name.
                    Phase::Gone => (mtime_ns.max(written_ns(&metadata)), ctime_ns.max(changed_ns(&metadata))),
                    Phase::Writing | Phase::Parked | Phase::Sealed => {
                        let now_ns = self.now_ns();
                        let written_ns = last_written_ns(mtime_ns, &metadata, now_ns);
                        (written_ns, last_changed_ns(ctime_ns, &metadata, now_ns))
                    }
                };
            }
        }
        let links = u32::from(!node.is_detached() || object.phase == Phase::Writing);
        Stat { ino, kind: Kind::File, size, occupied, links, attributes, is_settled }
    }

    /// Attributes of `ino`.
    ///
    /// # Errors
    /// [`Error::Stale`] when the inode is gone.
    pub fn getattr(&self, ino: Ino) -> Result<Stat, Error> {
        let state = self.lock();
        let slot = state.slot_of(ino)?;
        Ok(self.stat_of(&state, slot))
    }

    /// Attributes of `ino` for the kernel, which got there by a name that it may believe for too long.
    ///
    /// # Errors
    /// [`Error::Stale`] when nothing stands under that name any more, or another file to the caller, and nobody has this
    /// one open; [`Error::NoObject`] when the caller was told so a moment ago.
    pub fn getattr_by_name(&self, caller: &Caller, ino: Ino) -> Result<Stat, Error> {
        let mut state = self.lock();
        let slot = state.slot_of(ino)?;
        // The old version of a name that was just replaced is as good an answer as the new one.
        let is_gone = state.object(slot).is_some_and(Object::has_left);
        // A hidden file is shown: whoever inherited its descriptor asks in the same way. One whose writer was killed is not.
        // A close that was announced counts as made for a while: its RELEASE may come late, or not at all when it was of one of
        // several descriptors.
        let first_ms = self.first_expected_close_ms();
        let is_open = state.object(slot).is_some_and(|object| {
            let is_closing =
                object.open.as_ref().is_some_and(|open| open.closing && open.announced_at_ms >= first_ms);
            object.readers() > 0 || object.references > 0 || (object.writers() > 0 && !is_closing)
        });
        // Its other writers see it until they have closed it, though nothing comes of it.
        let is_doomed = state.object(slot).is_some_and(|object| {
            let is_left = |open: &OpenState| {
                let Some(killed) = open.writer_killed.filter(|_| !open.was_child_killed) else {
                    return false;
                };
                !open.writer_processes.iter().any(|writer| writer.id != killed && writer.writing > 0)
            };
            object.phase == Phase::Writing && object.open.as_deref().is_some_and(is_left)
        });
        if is_gone || is_doomed || (!is_open && self.meets_next_version(&mut state, caller, slot)) {
            return Err(self.stale_attributes(&mut state, caller, slot));
        }
        Ok(self.stat_of(&state, slot))
    }

    /// Space of the namespace that `ino` is in: its nearest quota, which is of memory, else the whole cache on both tiers.
    ///
    /// Programs that make room themselves unlink what is oldest until this moves; that is where most of it is on disk.
    ///
    /// # Errors
    /// [`Error::Io`] when the memory tier cannot be asked.
    pub fn statfs(&self, ino: Ino) -> Result<SpaceStat, Error> {
        let usage = self.tier.usage()?;
        let on_disk = self.ssd.get().map(|tier| tier.space()).unwrap_or_default();
        let state = self.lock();
        let in_memory = usage.free.saturating_add(self.pooled()).saturating_add(self.blank_bytes());
        let in_memory = in_memory.min(self.settings.capacity);
        let mut space = SpaceStat {
            capacity: self.settings.capacity.saturating_add(on_disk.capacity),
            free: in_memory.saturating_add(on_disk.capacity.saturating_sub(on_disk.used)),
            nodes: state.tree.len() as u64,
        };
        let Some(slot) = state.tree.by_ino(ino) else { return Ok(space) };
        let limited = state.tree.ancestors(slot).find_map(|ancestor| {
            let folder = state.folders.get(ancestor)?;
            folder.policy.quota.map(|quota| (quota, folder.bytes.saturating_add(folder.unsealed)))
        });
        if let Some((quota, used)) = limited {
            space.capacity = quota.min(self.settings.capacity);
            space.free = space.capacity.saturating_sub(used);
        }
        Ok(space)
    }

    /// Whether the caller is to meet the next version of the file in `slot` under its name: its process writes that, or
    /// everybody sees it.
    pub(super) fn meets_next_version(&self, state: &mut State, caller: &Caller, slot: Slot) -> bool {
        let Some(next) = state.object(slot).and_then(Object::next_version) else { return false };
        if state.shown_next_version(slot).is_some() {
            return true;
        }
        let process = state.process(caller, self.clock.monotonic());
        let next = state.object(next).filter(|next| next.phase == Phase::Writing);
        next.is_some_and(|next| next.is_seen_by(process))
    }

    /// Whether the file in `slot` is hidden from the caller's process, which `writes` it or only looks.
    pub(super) fn is_hidden_from(
        &self,
        state: &mut State,
        caller: &Caller,
        slot: Slot,
        writes: bool,
    ) -> bool {
        let Some(object) = state.object(slot) else { return false };
        let may_hide = object.phase == Phase::Writing && !state.is_shown_while_written(slot);
        if !writes && !caller.thread.is_known() {
            // It may be anybody, and not who was sent to write this, which may have lost its name meanwhile.
            let is_begun = object.writers() > 0 || object.version == Version::default();
            return may_hide || (object.phase == Phase::Gone && is_begun);
        }
        if !may_hide {
            return false;
        }
        let process = state.process(caller, self.clock.monotonic());
        state.object(slot).is_some_and(|object| !object.is_seen_by(process))
    }
}
