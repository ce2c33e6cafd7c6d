//! The names of the tree: what stands in which directory, under which name, and where a path leads.
//!
//! Invariants
//! - A node with a parent is in that parent's children under its name, once; a node without one is in none.
//! - A directory that was removed is empty, and nothing is hung into it any more.

use super::super::directory::{Children, Cookie, Directory};
use super::super::node::{Body, Name, Node, Slot};
use super::Tree;

/// Why a name cannot be used as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeError {
    /// The name is taken.
    Exists,
    /// A directory would become its own ancestor.
    Loop,
    /// The node is no directory.
    NotDirectory,
    /// The directory was removed, and is kept for who still uses it.
    Removed,
}

/// A path as the directory, empty for the one that it begins at, and the name there.
#[must_use]
pub fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&path[..0], path),
    }
}

impl<F> Tree<F> {
    /// Whether a directory stands in `slot` that was not removed.
    #[must_use]
    pub fn is_living_directory(&self, slot: Slot) -> bool {
        self.directory(slot).is_some() && (slot == Slot::ROOT || !self.node(slot).is_detached())
    }

    fn children_mut(&mut self, slot: Slot) -> Option<&mut Directory> {
        match &mut self.node_mut(slot).body {
            Body::Directory(directory) => Some(directory),
            Body::File(_) => None,
        }
    }

    /// The entry `name` of directory `parent`.
    #[must_use]
    pub fn child(&self, parent: Slot, name: &[u8]) -> Option<Slot> {
        let children: &Children = &self.directory(parent)?.children;
        children.candidates(name).find(|&slot| self.names.is(self.node(slot).name, name))
    }

    /// The name of a live node: where it stands, or where it stood last.
    #[must_use]
    pub fn name(&self, slot: Slot) -> Name {
        self.names.get(self.node(slot).name)
    }

    /// Where a listing of `parent` goes on that has shown the entry at `cookie`: see [`Children::passed`].
    #[must_use]
    pub fn passed(&self, parent: Slot, cookie: Cookie) -> Cookie {
        self.directory(parent).map_or(cookie, |directory| directory.children.passed(cookie))
    }

    /// Entries of `parent` after `cookie`, in cookie order.
    pub fn entries_after(
        &self,
        parent: Slot,
        cookie: Cookie,
    ) -> impl Iterator<Item = (Cookie, Slot, &Node<F>)> {
        self.directory(parent)
            .into_iter()
            .flat_map(move |directory| directory.children.after(cookie))
            .map(|(cookie, slot)| (cookie, slot, self.node(slot)))
    }

    /// Gives a node without a name the name `name` in `parent`.
    ///
    /// # Errors
    /// [`TreeError`] when the name is taken, `parent` is no directory, was removed, or lies below the node.
    pub fn attach(&mut self, slot: Slot, parent: Slot, name: Name) -> Result<(), TreeError> {
        if self.directory(parent).is_none() {
            return Err(TreeError::NotDirectory);
        }
        if self.child(parent, name.as_bytes()).is_some() {
            return Err(TreeError::Exists);
        }
        let is_directory = self.directory(slot).is_some();
        if is_directory && self.ancestors(parent).any(|ancestor| ancestor == slot) {
            return Err(TreeError::Loop);
        }
        if !self.is_living_directory(parent) {
            return Err(TreeError::Removed);
        }
        if let Some(directory) = self.children_mut(parent) {
            directory.children.insert(name.as_bytes(), slot);
            directory.subdirectories += u32::from(is_directory);
        }
        self.names.release(self.node(slot).name);
        let name = self.names.store(&name);
        let node = self.node_mut(slot);
        node.parent = parent;
        node.name = name;
        Ok(())
    }

    /// Takes a node's name away. The node stays, with its last name for messages.
    pub fn detach(&mut self, slot: Slot) {
        let parent = self.node(slot).parent;
        if parent == Slot::NONE {
            return;
        }
        let is_directory = self.directory(slot).is_some();
        let name = self.name(slot);
        if let Some(directory) = self.children_mut(parent) {
            directory.children.remove(name.as_bytes(), slot);
            directory.subdirectories -= u32::from(is_directory);
        }
        self.node_mut(slot).parent = Slot::NONE;
    }

    /// `slot` and the directories above it, nearest first, up to and with the root.
    pub fn ancestors(&self, slot: Slot) -> impl Iterator<Item = Slot> {
        std::iter::successors(Some(slot), |&slot| {
            self.entry(slot).map(|node| node.parent).filter(|&parent| parent != Slot::NONE)
        })
    }

    /// The path of a node below the mount, without a leading slash; the root's is empty.
    #[must_use]
    pub fn path(&self, slot: Slot) -> Vec<u8> {
        let mut names: Vec<Name> =
            self.ancestors(slot).filter(|&slot| slot != Slot::ROOT).map(|slot| self.name(slot)).collect();
        names.reverse();
        names.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/')
    }

    /// The node at a path below the mount. Empty components are skipped.
    #[must_use]
    pub fn by_path(&self, path: &[u8]) -> Option<Slot> {
        path.split(|&byte| byte == b'/')
            .filter(|component| !component.is_empty())
            .try_fold(Slot::ROOT, |parent, name| self.child(parent, name))
    }
}

#[cfg(test)]
mod tests {
    use tidefs_engine::types::DirectoryId;

    use super::super::super::node::Attributes;
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn directory(tree: &mut Tree<u8>, parent: Slot, text: &str) -> Slot {
        let slot =
            tree.make(Attributes::default(), Body::Directory(Box::new(Directory::new(DirectoryId(9)))));
        tree.attach(slot, parent, name(text)).unwrap();
        slot
    }

    #[test]
    fn names_resolve_and_paths_are_whole() {
        let mut tree = Tree::new(Attributes::default());
        let a = directory(&mut tree, Slot::ROOT, "a");
        let b = directory(&mut tree, a, "b");
        let file = tree.make(Attributes::default(), Body::File(1));
        tree.attach(file, b, name("c")).unwrap();
        assert_eq!(tree.by_path(b"/a//b/c"), Some(file));
        assert_eq!(tree.path(file), b"a/b/c");
        assert_eq!(tree.directory(a).unwrap().subdirectories, 1);
        assert_eq!(tree.attach(file, a, name("b")), Err(TreeError::Exists));
    }

    #[test]
    fn a_directory_does_not_move_below_itself() {
        let mut tree = Tree::new(Attributes::default());
        let a = directory(&mut tree, Slot::ROOT, "a");
        let b = directory(&mut tree, a, "b");
        tree.detach(a);
        assert_eq!(tree.attach(a, b, name("a")), Err(TreeError::Loop));
    }

    #[test]
    fn nothing_is_hung_into_a_directory_that_was_removed() {
        let mut tree = Tree::new(Attributes::default());
        let a = directory(&mut tree, Slot::ROOT, "a");
        tree.reference(a);
        tree.detach(a);
        let file = tree.make(Attributes::default(), Body::File(1));
        assert!(tree.by_ino(tree.ino(a)).is_some() && !tree.is_living_directory(a));
        assert_eq!(tree.attach(file, a, name("b")), Err(TreeError::Removed));
        assert_eq!(tree.attach(file, Slot::ROOT, name("b")), Ok(()));
        assert!(tree.is_living_directory(Slot::ROOT) && !tree.is_living_directory(file));
    }
}
