//! What is done with everything below a directory, or with all that is due: in parts, with the lock let go after each, so that
//! nobody waits for longer than a part takes, however many keys there are.
//!
//! Names may change while a way leads through a directory. What keeps its path all the time is met once. What comes, goes
//! or gets another name meanwhile is met or not, and told of once at most; of a directory that is moved away from below
//! nothing more is met.
//!
//! Threads: whoever asks goes through it. Who waits for the lock meanwhile gets it after each part.

mod evicting;

use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use hashbrown::HashSet;
use parking_lot::MutexGuard;

use super::domains::object_slot;
use super::inspect::NodeFacts;
use super::{Datapath, Error, Phase, State};
use crate::namespace::{Cookie, Ino, Slot, Tree};
use crate::tier::eviction::standing::{Standing, last_to_leave_first};

/// Nodes that are gone through under the lock at once: about a tenth of a millisecond.
pub(super) const PART: usize = 64;
/// How long a processor is kept on the way: the kernel may have put a thread that answers requests on the same one, though
/// another is idle, and let it wait there until all is gone through. Shorter turns would make the way far longer where all
/// processors are busy.
const TURN: Duration = Duration::from_millis(1);

/// A way through a directory and all that is below.
#[derive(Debug)]
pub(super) struct Descent {
    /// Directories that it still has to come to.
    waiting: Vec<Ino>,
    /// The one that it is in, and how far.
    at: Option<(Ino, Cookie)>,
}

/// What a way comes to next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A directory, or the file that it began with.
    Enter(Slot),
    /// Files directly in a directory, and whether they are its last.
    Files { directory: Slot, files: Vec<Slot>, is_end: bool },
    /// A directory that is no more.
    Gone,
}

impl Descent {
    /// From the top down.
    pub(super) fn from(top: Ino) -> Self {
        Self { waiting: vec![top], at: None }
    }

    /// Goes on, by up to `limit` nodes. `None` at the end.
    pub(super) fn next<F>(&mut self, tree: &Tree<F>, limit: usize) -> Option<Part> {
        let Some((ino, cookie)) = self.at.take() else {
            let ino = self.waiting.pop()?;
            let Some(slot) = tree.by_ino(ino) else { return Some(Part::Gone) };
            self.at = Some((ino, Cookie::START));
            return Some(Part::Enter(slot));
        };
        let Some(directory) = tree.by_ino(ino) else { return Some(Part::Gone) };
        let (mut files, mut seen, mut last) = (Vec::new(), 0, cookie);
        for (cookie, slot, _) in tree.entries_after(directory, cookie).take(limit) {
            if tree.directory(slot).is_some() {
                self.waiting.push(tree.ino(slot));
            } else {
                files.push(slot);
            }
            (seen, last) = (seen + 1, cookie);
        }
        let is_end = seen < limit;
        if !is_end {
            self.at = Some((ino, last));
        }
        Some(Part::Files { directory, files, is_end })
    }

    /// Like [`Descent::next`], for a way that passes by what is not below `top` any more. Returns the files alone.
    fn next_below<F>(&mut self, tree: &Tree<F>, top: Ino, limit: usize) -> Option<Vec<Slot>> {
        let part = self.next(tree, limit)?;
        let is_below = |slot| tree.ancestors(slot).any(|above| tree.ino(above) == top);
        Some(match part {
            Part::Enter(slot) if !is_below(slot) => {
                self.at = None;
                Vec::new()
            }
            Part::Enter(slot) if tree.directory(slot).is_none() => vec![slot],
            Part::Files { directory, files, .. } if is_below(directory) => files,
            Part::Files { .. } => {
                self.at = None;
                Vec::new()
            }
            Part::Enter(_) | Part::Gone => Vec::new(),
        })
    }
}

/// Order of a listing. Equal ones stand in the order of their inode numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Last to be evicted first.
    Heat,
    /// By path.
    Name,
    /// Largest first.
    Size,
    /// Oldest seal first.
    Age,
}

impl Datapath {
    /// Does `part` under the lock, again and again until it says `None`; and with what it made each time, `after`, when
    /// others may have the lock.
    pub(super) fn in_parts<T>(&self, part: impl FnMut(&mut State) -> Option<T>, mut after: impl FnMut(T)) {
        self.in_parts_while(part, |made| {
            after(made);
            ControlFlow::Continue(())
        });
    }

    /// The same, until `after` breaks it off.
    fn in_parts_while<T>(
        &self,
        mut part: impl FnMut(&mut State) -> Option<T>,
        mut after: impl FnMut(T) -> ControlFlow<()>,
    ) {
        let mut turn = Instant::now();
        loop {
            let mut state = self.lock();
            let Some(made) = part(&mut state) else { return };
            // Who waits comes first, or it would wait for many parts.
            MutexGuard::unlock_fair(state);
            if turn.elapsed() >= TURN {
                std::thread::yield_now();
                turn = Instant::now();
            }
            if after(made).is_break() {
                return;
            }
        }
    }

    /// Hands every file at and below `path` to `each`, under the lock and in parts; and what that made of each part to
    /// `after`, when others may have the lock, until that breaks it off.
    fn in_parts_below<T>(
        &self,
        path: &[u8],
        mut each: impl FnMut(&mut State, Slot) -> Option<T>,
        after: impl FnMut(Vec<T>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let top = {
            let state = self.lock();
            state.tree.by_path(path).map(|slot| state.tree.ino(slot)).ok_or(Error::NoObject)?
        };
        let mut descent = Descent::from(top);
        let part = |state: &mut State| {
            let files = descent.next_below(&state.tree, top, PART)?;
            Some(files.into_iter().filter_map(|slot| each(state, slot)).collect())
        };
        self.in_parts_while(part, after);
        Ok(())
    }

    /// Hands the facts of every visible file at and below `path` to `each`, in `order`, until that breaks it off. Returns how
    /// many files there were.
    ///
    /// The order is that of the moment at which they were met; the facts are those of when they are told. Until then only
    /// inode numbers are kept, and while the order is made what it goes by. The lock is free while `each` runs, which may wait.
    ///
    /// # Errors
    /// [`Error::NoObject`].
    pub fn list_below(
        &self,
        path: &[u8],
        order: Order,
        mut each: impl FnMut(NodeFacts) -> ControlFlow<()>,
    ) -> Result<u64, Error> {
        let files = match order {
            Order::Heat => {
                self.met_below(path, |state, slot| (object_slot(slot), state.standing(slot))).map(|files| {
                    let standings: Vec<_> =
                        files.into_iter().map(|(ino, (slot, standing))| (ino, slot, standing)).collect();
                    last_to_leave_first(&standings)
                })
            }
            Order::Name => self.sorted_below(path, |state, slot| state.tree.path(slot)),
            Order::Size => self.sorted_below(path, |state, slot| Reverse(self.stat_of(state, slot).size)),
            Order::Age => self.sorted_below(path, State::sealed_at_ns),
        }?;
        let is_below = |facts: &NodeFacts| {
            let rest = facts.path.strip_prefix(path);
            rest.is_some_and(|rest| path.is_empty() || rest.is_empty() || rest.starts_with(b"/"))
        };
        let mut parts = files.chunks(PART);
        let part = |state: &mut State| {
            let slots = parts.next()?.iter().filter_map(|ino| state.tree.by_ino(*ino));
            let shown = slots.filter(|&slot| state.is_shown(slot));
            Some(shown.map(|slot| self.facts_of(state, slot)).filter(is_below).collect::<Vec<_>>())
        };
        self.in_parts_while(part, |facts| facts.into_iter().try_for_each(&mut each));
        Ok(files.len() as u64)
    }

    /// Inode numbers of the visible files at and below `path`, in ascending order of what `key` says of each.
    fn sorted_below<K: Ord>(&self, path: &[u8], key: impl Fn(&State, Slot) -> K) -> Result<Vec<Ino>, Error> {
        let mut files = self.met_below(path, key)?;
        // It is stable: equal ones stand by their numbers.
        files.sort_by(|(_, one), (_, other)| one.cmp(other));
        Ok(files.into_iter().map(|(ino, _)| ino).collect())
    }

    /// Inode numbers of the visible files at and below `path`, in ascending order, with what `key` says of each.
    fn met_below<K>(&self, path: &[u8], key: impl Fn(&State, Slot) -> K) -> Result<Vec<(Ino, K)>, Error> {
        let mut files = Vec::new();
        let met =
            |state: &mut State, slot| state.is_shown(slot).then(|| (state.tree.ino(slot), key(state, slot)));
        self.in_parts_below(path, met, |part| {
            files.extend(part);
            ControlFlow::Continue(())
        })?;
        // It is stable: of one that was met twice the first stays.
        files.sort_by_key(|(ino, _)| *ino);
        files.dedup_by_key(|(ino, _)| *ino);
        Ok(files)
    }

    /// Inode numbers of the sealed objects at and below `path`.
    ///
    /// # Errors
    /// [`Error::NoObject`].
    pub fn sealed_below(&self, path: &[u8]) -> Result<Vec<Ino>, Error> {
        let sealed = |state: &mut State, slot| {
            let is_sealed = state.object(slot).is_some_and(|object| object.phase == Phase::Sealed);
            is_sealed.then(|| state.tree.ino(slot))
        };
        let mut objects = Vec::new();
        self.in_parts_below(path, sealed, |part| {
            objects.extend(part);
            ControlFlow::Continue(())
        })?;
        keep_once(&mut objects, |ino| *ino);
        Ok(objects)
    }
}

impl State {
    /// Whether everybody sees the file in `slot`, and by a name.
    fn is_shown(&self, slot: Slot) -> bool {
        let is_whole = self.object(slot).is_some_and(|object| object.phase != Phase::Writing);
        is_whole && !self.tree.node(slot).is_detached()
    }

    /// Where the object in `slot` stands in the order of eviction of its domain.
    pub(super) fn standing(&self, slot: Slot) -> Option<Standing> {
        let domain = self.domains.get(self.domain_of(slot));
        domain.order.standing(object_slot(slot))
    }

    /// When the object in `slot` was sealed; before all others if it is not.
    fn sealed_at_ns(&self, slot: Slot) -> Option<i64> {
        let object = self.object(slot).filter(|object| object.phase == Phase::Sealed)?;
        Some(object.sealed_at_ns)
    }
}

/// Leaves the first of what was met twice, having been moved ahead meanwhile.
fn keep_once<T>(met: &mut Vec<T>, ino: impl Fn(&T) -> Ino) {
    let mut seen = HashSet::with_capacity(met.len());
    met.retain(|one| seen.insert(ino(one)));
}

#[cfg(test)]
mod tests {
    use tidefs_engine::types::DirectoryId;

    use super::*;
    use crate::namespace::{Attributes, Body, Directory, Name};

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).expect("a name")
    }

    fn directory(tree: &mut Tree<()>, parent: Slot, text: &str) -> Slot {
        let body = Body::Directory(Box::new(Directory::new(DirectoryId(9))));
        let slot = tree.make(Attributes::default(), body);
        tree.attach(slot, parent, name(text)).expect("the name is free");
        slot
    }

    fn file(tree: &mut Tree<()>, parent: Slot, text: &str) -> Slot {
        let slot = tree.make(Attributes::default(), Body::File(()));
        tree.attach(slot, parent, name(text)).expect("the name is free");
        slot
    }

    /// A directory of 10 files and one of 3 below it.
    fn tree() -> (Tree<()>, Slot, Slot) {
        let mut tree = Tree::new(Attributes::default());
        let top = directory(&mut tree, Slot::ROOT, "top");
        let below = directory(&mut tree, top, "below");
        for (parent, count) in [(top, 10), (below, 3)] {
            for index in 0..count {
                file(&mut tree, parent, &format!("k{index}"));
            }
        }
        (tree, top, below)
    }

    #[test]
    fn a_way_comes_to_everything_in_parts_of_what_is_allowed() {
        let (tree, top, _) = tree();
        let top = tree.ino(top);
        let mut descent = Descent::from(top);
        let mut met = Vec::new();
        while let Some(files) = descent.next_below(&tree, top, 4) {
            assert!(files.len() <= 4);
            met.extend(files);
        }
        keep_once(&mut met, |&slot| tree.ino(slot));
        assert_eq!(met.len(), 13);
    }

    #[test]
    fn a_way_that_begins_with_a_file_comes_to_that() {
        let (tree, top, _) = tree();
        let file = tree.child(top, b"k7").expect("it is there");
        let mut descent = Descent::from(tree.ino(file));
        assert_eq!(descent.next_below(&tree, tree.ino(file), 4), Some(vec![file]));
        assert_eq!(descent.next_below(&tree, tree.ino(file), 4), Some(Vec::new()));
        assert_eq!(descent.next_below(&tree, tree.ino(file), 4), None);
    }

    #[test]
    fn nothing_is_met_of_a_directory_that_was_moved_away_meanwhile() {
        for parts_before in 0..8 {
            let (mut tree, top, below) = tree();
            let ino = tree.ino(top);
            let mut descent = Descent::from(ino);
            (0..parts_before).for_each(|_| drop(descent.next_below(&tree, ino, 2)));
            tree.detach(below);
            tree.attach(below, Slot::ROOT, name("away")).expect("the name is free");
            while let Some(files) = descent.next_below(&tree, ino, 2) {
                assert!(files.iter().all(|&slot| tree.node(slot).parent == top), "{parts_before}");
            }
        }
    }

    #[test]
    fn a_way_ends_with_the_directory_that_it_leads_through() {
        let (mut tree, top, _) = tree();
        let ino = tree.ino(top);
        let mut descent = Descent::from(ino);
        assert_eq!(descent.next_below(&tree, ino, 2), Some(Vec::new()));
        let below = tree.child(top, b"below").expect("it is there");
        for slot in [below, top] {
            let files: Vec<Slot> = tree.entries_after(slot, Cookie::START).map(|(_, file, _)| file).collect();
            for file in files {
                tree.detach(file);
                tree.free(file);
            }
            tree.detach(slot);
        }
        tree.free(top);
        while let Some(files) = descent.next_below(&tree, ino, 2) {
            assert_eq!(files, []);
        }
    }
}
