//! Names: given, moved and taken away, and the attributes and policies that files have by them.

use super::{
    BTreeMap, Directory, DirectoryId, Entry, Errno, File, FileId, Model, Phase, Policy, Slot, is_temporary,
};

impl Model {
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
        if keep && target != Slot::default() && self.past(target).is_none() {
            return Err(Errno::EEXIST);
        }
        if from == to {
            return Ok(());
        }
        let was_current = source.current == Some(file);
        let ttl_before = self.ttl(from.0, file);
        let stays_unsealed = self.file(file).scratch || is_temporary(to.1);
        let is_object = self.file(file).phase == Phase::Sealed;
        let moved = self.file_mut(file);
        moved.shown |= is_temporary(to.1) && !moved.was_sealed;
        moved.overtaken = false;
        self.set_slot(from.0, from.1, Slot::default());
        self.bury(target.current);
        if was_current {
            // Whoever rewrites it goes on under the new name; else whoever rewrites what stood there does.
            let heir = target.next.filter(|_| target.current.is_some() && (is_object || !stays_unsealed));
            // But not what was closed before the object took the name that it had: that stands in nobody's way.
            let is_spent = |next: FileId| self.file(next).overtaken && !self.file(next).changed;
            let spent = source.next.filter(|&next| heir.is_some() && is_spent(next));
            let kept = source.next.filter(|_| spent.is_none());
            self.bury(spent);
            let next = kept.or(heir);
            if target.next != next {
                self.bury(target.next);
            }
            self.set_slot(to.0, to.1, Slot { current: Some(file), next });
            if let (None, Some(heir)) = (kept, heir) {
                self.overtake(heir);
            }
            if is_object {
                // An object that was in use when its time had come goes a second later, whatever its name is by then.
                if self.ttl(to.0, file) != ttl_before {
                    self.renew_expiry(to.0, file);
                }
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
        match heir {
            Some(heir) => self.overtake(heir),
            None => self.bury(target.next),
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
        self.drop_past(directory, name);
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

    pub(super) fn detach_directory(&mut self, id: DirectoryId) {
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
        self.drop_past(to, name);
        match self.entry(to, name) {
            Some(Entry::Directory(same)) if same == id => return Ok(()),
            Some(Entry::Directory(other)) if !self.directories[&other].entries.is_empty() => {
                return Err(Errno::ENOTEMPTY);
            }
            Some(Entry::Directory(other)) => self.rmdir(other)?,
            Some(Entry::File(_)) => return Err(Errno::ENOTDIR),
            None => {}
        }
        let before = self.times_to_live_below(id);
        self.detach_directory(id);
        self.directories.get_mut(&id).expect("it lives").parent = to;
        let above = self.directories.get_mut(&to).expect("a directory that lives");
        above.entries.insert(name.to_owned(), Entry::Directory(id));
        for ((directory, file, ttl), (_, _, old)) in self.times_to_live_below(id).into_iter().zip(before) {
            // As for a file that is renamed: what was in use when its time had come goes later.
            if ttl != old {
                self.renew_expiry(directory, file);
            }
        }
        Ok(())
    }

    /// The sealed files below a directory, in an order that does not change with its place, and their times to live.
    fn times_to_live_below(&self, top: DirectoryId) -> Vec<(DirectoryId, FileId, Option<u64>)> {
        let mut files: Vec<_> = self
            .slots()
            .into_iter()
            .filter(|(directory, _, _)| self.ancestors(*directory).contains(&top))
            .filter_map(|(directory, _, slot)| Some((directory, slot.current?)))
            .filter(|&(_, file)| self.file(file).phase == Phase::Sealed)
            .map(|(directory, file)| (directory, file, self.ttl(directory, file)))
            .collect();
        files.sort_by_key(|&(_, file, _)| file);
        files
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
        change: impl Fn(&mut File),
    ) -> Result<(), Errno> {
        let slot = self.slot(directory, name);
        let file = self.visible(who, slot).ok_or(Errno::ENOENT)?;
        let ttl_before = self.ttl(directory, file);
        change(self.file_mut(file));
        if let Some(next) = slot.next.filter(|_| slot.current == Some(file)) {
            // What is set for everyone holds for the version that takes its place, too, also what was set before.
            let mut changed = self.file(next).clone();
            change(&mut changed);
            let next = self.file_mut(next);
            (next.mode, next.policy) = (changed.mode, changed.policy);
        }
        if self.file(file).phase == Phase::Sealed && self.ttl(directory, file) != ttl_before {
            self.renew_expiry(directory, file);
        }
        Ok(())
    }
}
