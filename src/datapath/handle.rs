//! Open handles: what is known of each, and who moves its bytes.
//!
//! Invariant: while a handle of an inode is served by passthrough, every further one that the kernel opens is; while one that the
//! daemon serves may have mapped the file, none is: the kernel refuses the mix with EIO (fs/fuse/iomode.c).

use std::sync::atomic::Ordering;

use super::{Caller, Datapath, Marks, OpenOptions, Opened, Phase, Place, State};
use crate::namespace::{Name, ProcessId, Slot};

/// Identity of an open handle, as the kernel carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandleId(pub u64);

/// Who moves the bytes of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPath {
    /// The kernel, from and to the backing file.
    Passthrough,
    /// The daemon, request by request, without the page cache.
    Direct,
    /// The kernel's page cache, filled by the daemon: packed objects, which never change.
    Cached,
}

/// What an operator is told of [`crate::telemetry::Telemetry::unknown_writers`].
pub const UNKNOWN_WRITERS: &str = "programs of another pid namespace write: they do not see their own files before the close, and \
     what a killed one leaves is kept; have the daemon share the pid namespace of the host (hostPID, --pid=host)";

/// One open file.
#[derive(Debug)]
pub struct Handle {
    pub(super) slot: Slot,
    pub(super) options: OpenOptions,
    pub(super) path: IoPath,
    pub(super) process: ProcessId,
    /// Whether its close is announced, and was.
    pub(super) announces_close: bool,
    pub(super) was_flushed: bool,
    /// Whether it made its file and cannot write it: its close seals that, and its process leaves no half of it.
    pub(super) only_creates: bool,
}

impl Datapath {
    /// Who moves the bytes of a file that is being created.
    ///
    /// A file opened to read *and* write under a final name may turn out to be a slot file, which lives on disk: the
    /// daemon serves it, so that it can still be moved there. Everything else goes by passthrough.
    pub(super) fn path_of_new_file(&self, name: &Name, options: OpenOptions) -> IoPath {
        let may_become_scratch = options.read && options.write && !self.is_temporary(name);
        if !self.is_passthrough() || may_become_scratch { IoPath::Direct } else { IoPath::Passthrough }
    }

    pub(super) fn path_of(&self, state: &State, slot: Slot, options: OpenOptions) -> IoPath {
        let Some(object) = state.object(slot) else { return IoPath::Direct };
        if matches!(object.place, Place::Packed(_)) {
            return IoPath::Cached;
        }
        let (passthrough, mappable) =
            object.open.as_ref().map_or((0, 0), |open| (open.passthrough, open.direct_mappable));
        if passthrough > 0 {
            return IoPath::Passthrough;
        }
        if !self.is_passthrough() || mappable > 0 {
            return IoPath::Direct;
        }
        match object.phase {
            Phase::Writing if !object.is_slot_file() => {
                self.path_of_new_file(&state.tree.name(slot), options)
            }
            _ => IoPath::Passthrough,
        }
    }

    /// Enters a handle into the tables. The caller settled every question before.
    pub(super) fn open_handle(
        &self,
        state: &mut State,
        caller: &Caller,
        slot: Slot,
        options: OpenOptions,
        path: IoPath,
    ) -> Opened {
        let needs_process = options.write;
        let process = if needs_process {
            let process = state.process(caller, self.clock.monotonic());
            if !process.is_known() {
                self.note_unknown_writer();
            }
            process
        } else {
            ProcessId(caller.thread.0)
        };
        let handle = HandleId(state.next_handle);
        state.next_handle += 1;
        let ino = state.tree.ino(slot);
        if options.write {
            state.tell_clients(slot);
        }
        let mut announces_close = false;
        if let Some(object) = state.object_mut(slot) {
            let is_sealed = object.phase == Phase::Sealed;
            let is_visible = is_sealed || object.phase == Phase::Parked;
            announces_close = options.write && object.phase == Phase::Writing;
            // Who has references to it did not take it out of the order of eviction.
            let is_first = object.readers() + object.writers() == 0;
            let is_first_passthrough = object.open.as_ref().is_none_or(|open| open.passthrough == 0);
            // Who read it before its seal may have it mapped still. Who can only write it, as to cut it by name, maps nothing.
            let may_be_mapped = !options.write || (is_sealed && options.read);
            object.marks.set(Marks::READ, object.marks.has(Marks::READ) || may_be_mapped);
            if let (Place::Solo(segment), true) = (&object.place, object.marks.has(Marks::SHARED)) {
                self.fast.segments.lock().taint(*segment);
            }
            if options.write && options.read {
                object.marks.set(Marks::WRITABLE_MAPPING, true);
            }
            let open = object.open_mut();
            if options.write {
                open.writers += 1;
                (open.closing, open.is_overtaken) = (false, false);
                open.was_opened = true;
                open.expected.retain(|expected| !expected.is_thread(caller.thread));
                open.writer(process).writing += 1;
            } else {
                open.readers += 1;
            }
            if is_first_passthrough {
                open.ends_of_room = self.ends_of_room.load(Ordering::Relaxed);
            }
            match path {
                IoPath::Passthrough => open.passthrough += 1,
                IoPath::Direct | IoPath::Cached if options.read => open.direct_mappable += 1,
                IoPath::Direct | IoPath::Cached => {}
            }
            if is_first && is_visible {
                state.update_hold(slot);
            }
        }
        if path == IoPath::Passthrough && options.write {
            self.count_passthrough_writer(true);
        }
        state.handles.insert(
            handle,
            Handle { slot, options, path, process, announces_close, was_flushed: false, only_creates: false },
        );
        let is_cacheable = state.is_cacheable(slot);
        Opened { ino, handle, path, announces_close, is_cacheable, backing: None, is_readmitted: false }
    }

    /// A writer is in another pid namespace: it cannot be told from others, and how it ends is not seen.
    fn note_unknown_writer(&self) {
        static WARNED: std::sync::Once = std::sync::Once::new();
        self.telemetry.unknown_writers.increment();
        WARNED.call_once(|| tracing::warn!("{UNKNOWN_WRITERS}; tidefs_unknown_writers_total counts them"));
    }
}
