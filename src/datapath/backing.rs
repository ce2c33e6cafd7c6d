//! Backing files: what the kernel, or the daemon itself, reads and writes an open object by.

use std::fs::File;
use std::sync::Arc;

use tidefs_engine::types::SegmentId;

use super::handle::{HandleId, IoPath};
use super::{Datapath, Error, Object, Place, State};
use crate::namespace::{Ino, Slot};
use crate::tier::memory::MemoryError;

impl Datapath {
    /// The bytes that the kernel is to be given with an open. Under the same lock as the open: a segment file of which the
    /// kernel has none yet may be anybody's to free as soon as its object has lost its name.
    pub(super) fn backing_for_kernel(
        &self,
        state: &State,
        slot: Slot,
        path: IoPath,
    ) -> Result<Option<Arc<File>>, Error> {
        let is_lacking = path == IoPath::Passthrough
            && self.kernel.get().is_some_and(|kernel| !kernel.has_backing(state.tree.ino(slot)));
        is_lacking.then(|| self.backing_file_of(state, slot)).transpose()
    }

    /// Makes sure that the object's backing file is open.
    pub(super) fn open_backing(&self, state: &mut State, slot: Slot) -> Result<(), Error> {
        let Some(object) = state.object_mut(slot) else { return Err(Error::IsDirectory) };
        if object.file().is_some() {
            return Ok(());
        }
        match object.place {
            Place::Solo(segment) => object.open_mut().file = Some(Arc::new(self.segment_file(segment)?)),
            Place::Freed => return Err(Error::Stale),
            Place::Packed(_) | Place::Scratch(_) | Place::Ssd | Place::Remote => {}
        }
        Ok(())
    }

    /// The file of a segment. One that is gone is another object's by now; that the system refuses to open it, for want of
    /// descriptors perhaps, says nothing of the object.
    fn segment_file(&self, segment: SegmentId) -> Result<File, Error> {
        let of = |error: MemoryError| if error.is_gone() { Error::Stale } else { error.into() };
        self.tier.open_segment(segment).map_err(of)
    }

    /// The backing file of `ino`, for the kernel to serve it from.
    ///
    /// # Errors
    /// [`Error::Stale`] when there is none any more; [`Error::Unsupported`] for packed objects; [`Error::Io`].
    pub fn backing_file(&self, ino: Ino) -> Result<Arc<File>, Error> {
        let state = self.lock();
        self.backing_file_of(&state, state.slot_of(ino)?)
    }

    /// The same for the file in `slot`.
    pub(super) fn backing_file_of(&self, state: &State, slot: Slot) -> Result<Arc<File>, Error> {
        let object = state.object(slot).ok_or(Error::IsDirectory)?;
        if let Some(file) = object.file() {
            return Ok(Arc::clone(file));
        }
        match &object.place {
            Place::Solo(segment) => Ok(Arc::new(self.segment_file(*segment)?)),
            Place::Scratch(scratch) => Ok(Arc::clone(scratch.file())),
            Place::Packed(_) => Err(Error::Unsupported("packed objects have no backing file")),
            Place::Ssd | Place::Remote | Place::Freed => Err(Error::Stale),
        }
    }

    /// The kernel did not take the backing file: the daemon serves the handle itself.
    ///
    /// # Errors
    /// [`Error::Io`] when another handle of the inode is served by passthrough, which cannot be mixed.
    pub fn fall_back_to_direct(&self, handle: HandleId) -> Result<(), Error> {
        self.telemetry.passthrough_failures.increment();
        let mut state = self.lock();
        let Some(known) = state.handles.get(&handle) else { return Err(Error::BadHandle) };
        let (slot, options, path) = (known.slot, known.options, known.path);
        if path != IoPath::Passthrough {
            return Ok(());
        }
        // Before anything is counted: where it fails the handle is released as what it was.
        self.open_backing(&mut state, slot)?;
        if let Some(known) = state.handles.get_mut(&handle) {
            known.path = IoPath::Direct;
        }
        if options.write {
            self.count_passthrough_writer(false);
        }
        let Some(open) = state.object_mut(slot).map(Object::open_mut) else { return Err(Error::BadHandle) };
        open.passthrough -= 1;
        open.direct_mappable += u32::from(options.read);
        let others = open.passthrough;
        let ino = state.tree.ino(slot);
        // Others may be about to fall back as well.
        if others > 0 && self.kernel.get().is_some_and(|kernel| kernel.has_backing(ino)) {
            let source = std::io::Error::other("another handle of the file is served by the kernel");
            return Err(Error::Io { operation: "open without passthrough", source });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::super::testing::{caller, make, unprivileged};
    use super::super::{KernelCache, OpenOptions};
    use super::*;

    /// A kernel that keeps each file that it was given.
    #[derive(Debug)]
    struct Keeping;

    impl KernelCache for Keeping {
        fn forget_attributes(&self, _: Ino) {}
        fn forget_attributes_now(&self, _: Ino) {}
        fn drop_idle(&self, _: &[Ino]) {}
        fn has_backing(&self, _: Ino) -> bool {
            true
        }
        fn release_backing(&self, _: Ino) {}
        fn forget_names(&self) -> bool {
            false
        }
    }

    #[test]
    fn what_the_kernel_serves_is_opened_once_more_after_its_unlink() {
        let (_place, datapath) = unprivileged();
        let ino = make(&datapath, Ino::ROOT, "key");
        datapath.attach_kernel(Arc::new(Keeping), true);
        let open = |options| datapath.open(&caller(), ino, options);
        let read = OpenOptions { read: true, ..OpenOptions::default() };
        let first = open(read).unwrap();
        datapath.unlink(&caller(), Ino::ROOT, b"key").unwrap();
        let second = open(read).unwrap();
        assert_eq!((first.path, second.path), (IoPath::Passthrough, IoPath::Passthrough));
        datapath.release(first.handle);
        datapath.release(second.handle);
        assert!(open(read).is_err(), "nobody has it open");
    }

    #[test]
    fn a_handle_that_neither_the_kernel_nor_the_daemon_can_serve_leaves_the_counts_of_others_as_they_are() {
        let (_place, datapath) = unprivileged();
        let ino = make(&datapath, Ino::ROOT, "key");
        datapath.passthrough.store(true, Ordering::Relaxed);
        let options = OpenOptions { read: true, ..OpenOptions::default() };
        let [failing, other] = [(); 2].map(|()| datapath.open(&caller(), ino, options).unwrap());
        assert_eq!((failing.path, other.path), (IoPath::Passthrough, IoPath::Passthrough));
        datapath.unlink(&caller(), Ino::ROOT, b"key").unwrap();
        assert!(matches!(datapath.fall_back_to_direct(failing.handle), Err(Error::Stale)));
        datapath.release(failing.handle);
        {
            let state = datapath.lock();
            let open = state.object(ino.slot()).and_then(|object| object.open.as_deref()).unwrap();
            assert_eq!((open.readers, open.passthrough, open.direct_mappable), (1, 1, 0));
        }
        datapath.release(other.handle);
    }
}
