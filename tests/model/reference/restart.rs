//! What is left after the daemon was killed and started again.

use super::{BTreeSet, DirectoryId, FileId, Model, Mtime, Phase, ROOT, Slot};

impl Model {
    /// Everything that is not sealed is gone, and every handle. Returns the names of objects that their writers had not closed:
    /// what they added since the record was written is not there, and there may have been no room to copy the rest.
    pub(crate) fn restart(&mut self) -> Vec<(DirectoryId, String)> {
        self.handles.clear();
        for (directory, name, slot) in self.slots() {
            let kept = slot.current.filter(|&file| self.file(file).phase == Phase::Sealed);
            self.set_slot(directory, &name, Slot { current: kept, next: None });
        }
        let named: BTreeSet<FileId> =
            self.slots().into_iter().filter_map(|(_, _, slot)| slot.current).collect();
        self.files.retain(|id, _| named.contains(id));
        let slots = self.slots().into_iter();
        let unfinished =
            slots.filter(|(_, _, slot)| slot.current.is_some_and(|id| self.file(id).writers > 0));
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
        // When it was sealed is when its close was announced, by the machine's clock.
        let now = self.now_ns.max(self.now_real_ns);
        self.file_mut(next).sealed_ns = (0, now);
        self.file_mut(next).mtime = Mtime::Any;
    }
}
