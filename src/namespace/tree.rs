//! The tree of one mount. Here is its table of inodes; which name stands where, and where a path leads, is in [`paths`].
//!
//! Invariants
//! - A slot is freed when the node has no name, no kernel look-up and no user in the datapath, in that call.
//! - Generations grow per slot, so an inode number is never given out twice in one life of the daemon.

mod paths;

use tidefs_engine::types::DirectoryId;

use super::directory::Directory;
use super::names::{NameRef, Names};
use super::node::{Attributes, Body, Ino, Node, Slot};

pub use self::paths::{TreeError, split_path};

enum Entry<F> {
    Used(Node<F>),
    Free { generation: u32 },
}

/// How often a slot is used: inode numbers of more generations would be those of control files.
const GENERATIONS: u32 = 1 << 31;

/// All inodes of the mount. `F` is what a file is.
pub struct Tree<F> {
    entries: Vec<Entry<F>>,
    names: Names,
    free: Vec<Slot>,
    /// Slots that are not used again.
    retired: usize,
    /// Nodes of which the kernel holds a reference, the root not counted.
    referenced: u64,
}

impl<F> std::fmt::Debug for Tree<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree").field("slots", &self.entries.len()).field("free", &self.free.len()).finish()
    }
}

impl<F> Tree<F> {
    /// A tree that holds only its root.
    #[must_use]
    pub fn new(root: Attributes) -> Self {
        let root = Node {
            generation: 0,
            parent: Slot::NONE,
            name: NameRef::NONE,
            attributes: root,
            lookups: 1,
            body: Body::Directory(Box::new(Directory::new(DirectoryId::ROOT))),
        };
        Self {
            entries: vec![Entry::Free { generation: 0 }, Entry::Used(root)],
            names: Names::new(),
            free: Vec::new(),
            retired: 0,
            referenced: 0,
        }
    }

    fn entry(&self, slot: Slot) -> Option<&Node<F>> {
        match self.entries.get(slot.0 as usize) {
            Some(Entry::Used(node)) => Some(node),
            _ => None,
        }
    }

    /// The node that an inode number names, if it still lives.
    #[must_use]
    pub fn by_ino(&self, ino: Ino) -> Option<Slot> {
        self.entry(ino.slot()).filter(|node| node.generation == ino.generation()).map(|_| ino.slot())
    }

    /// The node in `slot`, if there is one.
    #[must_use]
    pub fn get(&self, slot: Slot) -> Option<&Node<F>> {
        self.entry(slot)
    }

    /// The node in `slot`, which the caller knows to live.
    ///
    /// # Panics
    /// When the slot is free: a broken invariant of ours, never a user's input.
    #[must_use]
    pub fn node(&self, slot: Slot) -> &Node<F> {
        self.entry(slot).unwrap_or_else(|| panic!("slot {} holds no node", slot.0))
    }

    /// Like [`Tree::node`], to change it. Name and parent are changed only by the tree itself.
    ///
    /// # Panics
    /// When the slot is free.
    pub fn node_mut(&mut self, slot: Slot) -> &mut Node<F> {
        match self.entries.get_mut(slot.0 as usize) {
            Some(Entry::Used(node)) => node,
            _ => panic!("slot {} holds no node", slot.0),
        }
    }

    /// Inode number of a live slot.
    #[must_use]
    pub fn ino(&self, slot: Slot) -> Ino {
        Ino::new(slot, self.node(slot).generation)
    }

    /// The directory in `slot`, or `None` when it is a file.
    #[must_use]
    pub fn directory(&self, slot: Slot) -> Option<&Directory> {
        match &self.entry(slot)?.body {
            Body::Directory(directory) => Some(directory),
            Body::File(_) => None,
        }
    }

    /// Makes a node without a name.
    pub fn make(&mut self, attributes: Attributes, body: Body<F>) -> Slot {
        let node = |generation| Node {
            generation,
            parent: Slot::NONE,
            name: NameRef::NONE,
            attributes,
            lookups: 0,
            body,
        };
        if let Some(slot) = self.free.pop() {
            let entry = &mut self.entries[slot.0 as usize];
            let Entry::Free { generation } = *entry else { unreachable!("a slot on the free list is free") };
            *entry = Entry::Used(node(generation));
            return slot;
        }
        let slot = Slot(
            u32::try_from(self.entries.len()).expect("fewer than 2^32 inodes: each costs over 100 bytes"),
        );
        self.entries.push(Entry::Used(node(0)));
        slot
    }

    /// The kernel holds one more reference of the node.
    pub fn reference(&mut self, slot: Slot) {
        let lookups = &mut self.node_mut(slot).lookups;
        *lookups += 1;
        if *lookups == 1 {
            self.referenced += 1;
        }
    }

    /// The kernel gave `count` references back. Returns whether it holds none any more.
    pub fn dereference(&mut self, slot: Slot, count: u64) -> bool {
        let lookups = &mut self.node_mut(slot).lookups;
        let before = *lookups;
        *lookups = before.saturating_sub(count);
        let is_forgotten = *lookups == 0;
        if is_forgotten && before > 0 {
            self.referenced = self.referenced.saturating_sub(1);
        }
        is_forgotten
    }

    /// Nodes that the kernel holds: each costs it about a kilobyte.
    #[must_use]
    pub fn referenced(&self) -> u64 {
        self.referenced
    }

    /// Up to `limit` named nodes from slot `from` on that the kernel holds and `is_idle` says may go, and the slot
    /// after the last one looked at, which wraps to the first.
    pub fn idle_after(
        &self,
        from: Slot,
        limit: usize,
        is_idle: impl Fn(&Node<F>) -> bool,
    ) -> (Vec<Slot>, Slot) {
        const LOOKED_AT_MAX: usize = 65_536;
        let start = usize::try_from(from.0).unwrap_or(0);
        let mut idle = Vec::new();
        for (entry, index) in self.entries.iter().skip(start).take(LOOKED_AT_MAX).zip(from.0..) {
            if idle.len() == limit {
                return (idle, Slot(index));
            }
            if let Entry::Used(node) = entry
                && node.lookups > 0
                && !node.is_detached()
                && is_idle(node)
            {
                idle.push(Slot(index));
            }
        }
        let next = from.0.saturating_add(u32::try_from(LOOKED_AT_MAX).unwrap_or(u32::MAX));
        let wraps = usize::try_from(next).map_or(true, |next| next >= self.entries.len());
        (idle, if wraps { Slot(0) } else { Slot(next) })
    }

    /// Frees a node that has no name. Returns what it was.
    ///
    /// # Panics
    /// When it still has a name, or the slot is free.
    pub fn free(&mut self, slot: Slot) -> Node<F> {
        let generation = self.node(slot).generation.wrapping_add(1);
        assert!(self.node(slot).is_detached() && slot != Slot::ROOT, "a node with a name is not freed");
        let entry = std::mem::replace(&mut self.entries[slot.0 as usize], Entry::Free { generation });
        if generation < GENERATIONS {
            self.free.push(slot);
        } else {
            self.retired += 1;
        }
        match entry {
            Entry::Used(mut node) => {
                self.names.release(std::mem::replace(&mut node.name, NameRef::NONE));
                node
            }
            Entry::Free { .. } => unreachable!("checked by node() above"),
        }
    }

    /// Live slots from `first` on, in the order of their numbers.
    pub fn slots_from(&self, first: Slot) -> impl Iterator<Item = (Slot, &Node<F>)> {
        let rest = self.entries.get(first.0 as usize..).unwrap_or_default();
        rest.iter().zip(first.0..).filter_map(|(entry, index)| match entry {
            Entry::Used(node) => Some((Slot(index), node)),
            Entry::Free { .. } => None,
        })
    }

    /// All live slots, in no order that means anything.
    pub fn slots(&self) -> impl Iterator<Item = (Slot, &Node<F>)> {
        self.entries.iter().zip(0u32..).filter_map(|(entry, index)| match entry {
            Entry::Used(node) => Some((Slot(index), node)),
            Entry::Free { .. } => None,
        })
    }

    /// Number of live nodes, the root included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - 1 - self.free.len() - self.retired
    }

    /// Never: the root is always there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_inode_number_becomes_that_of_a_control_file_however_often_a_slot_is_used() {
        let mut tree = Tree::new(Attributes::default());
        let slot = tree.make(Attributes::default(), Body::File(1));
        tree.node_mut(slot).generation = GENERATIONS - 2;
        tree.free(slot);
        let last = tree.make(Attributes::default(), Body::File(2));
        assert_eq!((last, tree.ino(last).0 >> 63), (slot, 0));
        tree.free(last);
        assert_eq!(tree.len(), 1);
        let next = tree.make(Attributes::default(), Body::File(3));
        assert_ne!(next, slot, "its next number would be one");
        assert_eq!((tree.len(), tree.ino(next).0 >> 63), (2, 0));
    }

    #[test]
    fn a_reused_slot_has_another_inode_number() {
        let mut tree = Tree::<u8>::new(Attributes::default());
        let first = tree.make(Attributes::default(), Body::File(1));
        let old = tree.ino(first);
        tree.free(first);
        let second = tree.make(Attributes::default(), Body::File(2));
        assert_eq!(first, second);
        assert_eq!(tree.by_ino(old), None);
        assert_ne!(tree.ino(second), old);
    }
}
