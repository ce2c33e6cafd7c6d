//! Hot path: finding the objects of a batch and taking references to them.
//!
//! Invariant: a reference is taken in the step in which the object is found: nothing evicts it in between.
//!
//! Threads: any; the lock is let go now and then in a long batch ([`super`]).

use tidefs_engine::types::{KeyHash, SegmentId};

use super::batch::Batch;
use super::pool::Shape;
use super::segments::{Shared, Use};
use super::walk::Walk;
use super::{LOCKED_AT_ONCE, Located, Session};
use crate::datapath::rights::{Credentials, Right};
use crate::datapath::room::footprint;
use crate::datapath::{Caller, Datapath, Marks, Object, Phase, Place, State, key_hash};
use crate::namespace::{Ino, Name, Slot};

/// How many names of a batch are there, from the first on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// How many.
    pub length: usize,
    /// What the one after them is, if there is one.
    pub end: Option<Located>,
}

/// What other members are to be asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnknownNames {
    /// Names in directories.
    pub parts: Vec<(Ino, Name)>,
    /// Whether some of them are directories on the way to what is looked for.
    pub hides_more: bool,
}

/// What a name of a batch stands for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    /// [`Slot::NONE`] when nothing stands there.
    pub(super) slot: Slot,
    key: KeyHash,
}

/// What a batch found so far, for the accounts.
#[derive(Default)]
pub(super) struct Tally {
    hits: u64,
    misses: u64,
    /// The directory that these were counted in.
    directory: Option<Slot>,
}

impl Datapath {
    /// Finds objects, and unless `probe` takes a reference to each that is told as [`Located::Here`]. Returns the reference
    /// to the first; those to the others follow it one by one, with gaps where there is none.
    ///
    /// `scope`: the directory to which names are relative. `tell` is called once for each name, in order, under the lock.
    pub fn locate<'n>(
        &self,
        session: &Session,
        caller: &Caller,
        scope: Ino,
        names: impl Iterator<Item = &'n [u8]>,
        probe: bool,
        mut tell: impl FnMut(Located),
    ) -> u64 {
        let first = session.next_batch();
        let expected = if probe { 0 } else { names.size_hint().1.unwrap_or(0) };
        let (mut batch, mut left) =
            (Batch::with_capacity(expected), if probe { 0 } else { session.references_left() });
        let (mut names, mut readmitted) = (names.peekable(), Vec::new());
        while names.peek().is_some() {
            let mut state = self.lock();
            let mut walk = Walk::new(&state, session.credentials(), scope);
            let (mut tally, now_ns) = (Tally::default(), self.now_ns());
            for name in names.by_ref().take(LOCKED_AT_ONCE) {
                let (found, mut located) = self.find(&mut state, &mut walk, name, Some(&mut tally));
                let mut held = Slot::NONE;
                if let (false, Located::Here { segment, .. }, Some(Spot { slot, .. })) =
                    (probe, located, found)
                {
                    if left == 0 {
                        located = Located::TooMany;
                    } else if let Some(is_readmitted) = self.refer(&mut state, slot, segment, now_ns) {
                        left -= 1;
                        held = slot;
                        if is_readmitted {
                            readmitted.push(state.tree.ino(slot));
                        }
                    } else {
                        located = Located::AskByFile;
                    }
                }
                // The order of a batch is that of a chain.
                match found {
                    Some(Spot { key, .. }) if held != Slot::NONE => {
                        state.chains.opened(caller.thread.0, key);
                    }
                    Some(Spot { key, .. }) => state.chains.probed(caller.thread.0, key),
                    None => {}
                }
                if !probe {
                    batch.push(held);
                }
                tell(located);
            }
            self.settle_tally(&mut state, &mut tally, None);
            drop(state);
            readmitted.drain(..).for_each(|ino| self.settle_quota(ino));
        }
        session.enter(first, batch);
        first
    }

    /// What a name stands for, and the object in a segment that keeps its bytes until [`Datapath::drop_references`], on nobody's account.
    /// Counts nothing.
    pub(super) fn hold(&self, session: &Session, scope: Ino, name: &[u8]) -> (Located, Option<Slot>) {
        let mut state = self.lock();
        let mut walk = Walk::new(&state, session.credentials(), scope);
        let (found, located) = self.find(&mut state, &mut walk, name, None);
        let (Some(Spot { slot, .. }), Located::Here { .. }) = (found, located) else {
            return (located, None);
        };
        let is_readmitted = state.readmit(slot);
        let held = state.object_mut(slot).and_then(|object| {
            object.references = object.references.checked_add(1)?;
            Some(slot)
        });
        let ino = state.tree.ino(slot);
        drop(state);
        if is_readmitted {
            self.settle_quota(ino);
        }
        if held.is_some() { (located, held) } else { (Located::AskByFile, None) }
    }

    /// How many names are there, from the first on. Takes no reference and counts no use.
    pub fn run_length<'n>(
        &self,
        session: &Session,
        caller: &Caller,
        scope: Ino,
        names: impl Iterator<Item = &'n [u8]>,
    ) -> Run {
        let (mut names, mut length) = (names.peekable(), 0);
        while names.peek().is_some() {
            let mut state = self.lock();
            let mut walk = Walk::new(&state, session.credentials(), scope);
            for name in names.by_ref().take(LOCKED_AT_ONCE) {
                let (found, located) = self.find(&mut state, &mut walk, name, None);
                if let Some(Spot { key, .. }) = found {
                    state.chains.probed(caller.thread.0, key);
                }
                match located {
                    Located::Here { .. } | Located::Below | Located::Packed { .. } => length += 1,
                    end => return Run { length, end: Some(end) },
                }
            }
        }
        Run { length, end: None }
    }

    /// What other members are to be asked before names are looked up here: of each the first part that is not known, none
    /// twice. Nothing on a host without others.
    pub fn unknown_elsewhere<'n>(
        &self,
        session: &Session,
        scope: Ino,
        names: impl Iterator<Item = &'n [u8]>,
    ) -> UnknownNames {
        let (mut names, mut unknown) = (names.peekable(), UnknownNames::default());
        while names.peek().is_some() {
            let state = self.lock();
            if !state.has_members() {
                break;
            }
            let mut walk = Walk::new(&state, session.credentials(), scope);
            for name in names.by_ref().take(LOCKED_AT_ONCE) {
                let Some((parent, part, is_last)) = walk.unknown(&state, name) else { continue };
                unknown.hides_more |= !is_last;
                // A directory of many names comes many times in a row.
                let is_same = |(within, last): &(Ino, Name)| *within == parent && *last == part;
                if !unknown.parts.last().is_some_and(is_same) {
                    unknown.parts.push((parent, part));
                }
            }
        }
        unknown
    }

    /// Which of `asked`, names that [`Self::unknown_elsewhere`] told, turned out to be objects of other members that the session may
    /// read. Counts nothing.
    #[must_use]
    pub fn shown_elsewhere(&self, session: &Session, asked: &[(Ino, Name)]) -> Vec<Ino> {
        let mut shown = Vec::new();
        for asked in asked.chunks(LOCKED_AT_ONCE) {
            let state = self.lock();
            for (parent, name) in asked {
                let parent = state.tree.by_ino(*parent);
                let slot = parent.and_then(|parent| state.tree.child(parent, name.as_bytes()));
                let Some(slot) = slot.filter(|&slot| state.remote_size(slot).is_some()) else { continue };
                let ino = state.tree.ino(slot);
                // What was overtaken by a change was asked for twice.
                let is_new = !shown.contains(&ino);
                if is_new && self.condition(&state, session.credentials(), slot) == Located::Below {
                    shown.push(ino);
                }
            }
        }
        shown
    }

    /// The inode of an object that is below memory, to be brought into it.
    pub fn find_below<'n>(
        &self,
        session: &Session,
        scope: Ino,
        names: impl Iterator<Item = &'n [u8]>,
        mut tell: impl FnMut(Located, Option<Ino>),
    ) {
        let mut names = names.peekable();
        while names.peek().is_some() {
            let mut state = self.lock();
            let mut walk = Walk::new(&state, session.credentials(), scope);
            for name in names.by_ref().take(LOCKED_AT_ONCE) {
                let (found, located) = self.find(&mut state, &mut walk, name, None);
                let below = found.filter(|_| located == Located::Below);
                tell(located, below.map(|spot| state.tree.ino(spot.slot)));
            }
        }
    }

    /// What a name stands for. Counts in `tally`, or not at all.
    pub(super) fn find<'n>(
        &self,
        state: &mut State,
        walk: &mut Walk<'_, 'n>,
        name: &'n [u8],
        mut tally: Option<&mut Tally>,
    ) -> (Option<Spot>, Located) {
        let (within, leaf) = walk.split(state, name);
        let within = match within {
            Ok(within) => within,
            Err(located) => return (None, located),
        };
        if let Some(tally) = tally.as_deref_mut()
            && tally.directory != Some(within.slot)
        {
            self.settle_tally(state, tally, Some(within.slot));
        }
        let key = key_hash(within.id, leaf);
        let Some(slot) = state.tree.child(within.slot, leaf) else {
            let may_be_elsewhere = state.is_unnamed(within.id, leaf)
                || (state.has_members() && !state.is_key_absent(walk.key(state, within.slot, leaf)));
            if may_be_elsewhere {
                // A disk or another member may have it, and a file call asks.
                return (None, Located::AskByFile);
            }
            if let Some(tally) = tally {
                tally.misses += 1;
            }
            return (Some(Spot { slot: Slot::NONE, key }), Located::Absent);
        };
        let located = self.condition(state, walk.credentials, slot);
        match (located, tally) {
            (Located::Here { .. } | Located::Packed { .. }, Some(tally)) => tally.hits += 1,
            (Located::Absent, Some(tally)) => tally.misses += 1,
            _ => {}
        }
        (Some(Spot { slot, key }), located)
    }

    /// What the node in `slot` is to a reader.
    fn condition(&self, state: &State, credentials: &Credentials, slot: Slot) -> Located {
        let Some(object) = state.object(slot) else { return Located::AskByFile };
        if object.phase != Phase::Sealed {
            let is_closing = object.open.as_ref().is_some_and(|open| open.closing);
            let may_show = object.phase == Phase::Parked || object.marks.has(Marks::SHOWN) || is_closing;
            let is_lock = state.tree.name(slot).as_bytes().ends_with(b".lock");
            return if may_show || is_lock { Located::AskByFile } else { Located::Absent };
        }
        if state.is_due(slot, self.now_ns()) {
            return Located::AskByFile;
        }
        if !credentials.may(&state.tree.node(slot).attributes, Right::READ) {
            return Located::Denied;
        }
        let is_settled = object.marks.has(Marks::FINAL)
            && !object.marks.has(Marks::UNVERIFIED)
            && object.writers() == 0
            && object.next_version().is_none();
        let (version, length) = (object.version, object.size);
        match &object.place {
            _ if !is_settled => Located::AskByFile,
            Place::Solo(segment) => {
                // No clock is needed to see that a time has come.
                let lasts = !state.expiry_of.contains_key(&slot);
                Located::Here { segment: *segment, version, length, lasts }
            }
            Place::Packed(_) => Located::Packed { version, length },
            Place::Ssd | Place::Remote => Located::Below,
            Place::Scratch(_) | Place::Freed => Located::AskByFile,
        }
    }

    /// Takes a reference to the object in `slot`. Returns whether it was on its way out of memory, for [`Datapath::settle_quota`];
    /// `None` when it has as many references as can be counted.
    pub(super) fn refer(
        &self,
        state: &mut State,
        slot: Slot,
        segment: SegmentId,
        now_ns: i64,
    ) -> Option<bool> {
        let is_readmitted = state.readmit(slot);
        let object = state.object_mut(slot)?;
        let references = object.references.checked_add(1)?;
        object.references = references;
        object.uses = object.uses.saturating_add(1);
        let is_shared = object.marks.has(Marks::SHARED);
        state.touch(slot);
        self.settle_used(state, slot);
        state.tree.node_mut(slot).attributes.atime_ns = now_ns;
        if !is_shared {
            self.share(state, slot, segment);
        }
        Some(is_readmitted)
    }

    /// From now on clients may map the segment of the object in `slot`.
    pub(super) fn share(&self, state: &mut State, slot: Slot, segment: SegmentId) {
        let node = state.tree.node(slot);
        let (parent, attributes, is_known) = (node.parent, node.attributes, node.lookups > 0);
        let (ino, class) = (state.tree.ino(slot), state.access_class(parent, &attributes));
        let Some(object) = state.object_mut(slot) else { return };
        object.marks.set(Marks::SHARED, true);
        let shape = Shape { class, pages: footprint(object.size) };
        // A peer reads through a handle of an object that the kernel may not know.
        let is_read = object.readers() + object.writers() > 0;
        let is_tainted = object.marks.has(Marks::ADOPTED) || is_read || (is_known && may_be_mapped(object));
        let mut segments = self.fast.segments.lock();
        match segments.known.get_mut(&segment) {
            None => {
                let shared = Shared::new(Use::Object(ino), Some(shape), is_tainted);
                segments.known.insert(segment, shared);
            }
            Some(shared) => {
                shared.purpose = Use::Object(ino);
                shared.shape = shared.shape.filter(|before| *before == shape);
                shared.is_tainted |= is_tainted;
            }
        }
    }

    /// Enters what was counted in one directory; `next` is counted in from now on.
    fn settle_tally(&self, state: &mut State, tally: &mut Tally, next: Option<Slot>) {
        let Tally { hits, misses, directory } =
            std::mem::replace(tally, Tally { directory: next, ..Tally::default() });
        let Some(directory) = directory.filter(|_| hits + misses > 0) else { return };
        self.telemetry.fast_hits.add(hits);
        self.telemetry.fast_misses.add(misses);
        let namespace = state.namespace_of(directory);
        if let Some(folder) = state.folders.get_mut(namespace) {
            folder.hits += hits;
            folder.misses += misses;
        }
    }
}

/// Whether somebody may have the object mapped through the file of its key, while the kernel knows its inode.
fn may_be_mapped(object: &Object) -> bool {
    object.marks.has(Marks::READ)
        || object.marks.has(Marks::WRITABLE_MAPPING)
        || object.readers() + object.writers() > 0
}
