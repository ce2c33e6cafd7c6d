//! New objects of the fast path: begun with a segment to write into, which is sealed later ([`super::sealing`]), or made at once
//! of bytes in an area.

use std::fs::File;
use std::mem;
use std::sync::Arc;

use tidefs_engine::types::{ByteCount, FileOffset, SegmentId, Version};

use super::pool::Shape;
use super::remains::Remains;
use super::segments::{Shared, Use};
use super::session::{Begun, CREATES_MAX};
use super::walk::Walk;
use super::{LOCKED_AT_ONCE, Located, Session};
use crate::datapath::room::{Waits, footprint};
use crate::datapath::{Caller, Datapath, Error, Marks, Object, Place, State};
use crate::namespace::{Attributes, Body, Ino, Name, RESERVED_AT_ROOT, Slot};

/// How often a begin looks for a segment to use again before it makes one.
const EVICTIONS_FOR_REUSE: usize = 4;

/// An object to begin.
#[derive(Clone, Copy, Debug)]
pub struct BeginRequest<'n> {
    /// Relative to the scope.
    pub name: &'n [u8],
    /// How long it may become.
    pub size: ByteCount,
    /// Permissions.
    pub mode: u32,
}

/// An object to make of bytes in an area.
#[derive(Clone, Copy, Debug)]
pub struct PutRequest<'n> {
    /// What is made.
    pub object: BeginRequest<'n>,
    /// The area.
    pub area: SegmentId,
    /// Where its bytes start there.
    pub source: FileOffset,
}

/// Where a new object goes.
struct Target {
    parent: Slot,
    parent_ino: Ino,
    name: Name,
    attributes: Attributes,
    shape: Shape,
}

impl Datapath {
    /// Begins objects: a segment for each, allocated in full. Returns the reference to the first; those to the others follow
    /// it one by one. What the client reads there before it wrote is the bytes of some object that it may read, or zeros.
    pub fn begin<'n>(
        &self,
        session: &Session,
        scope: Ino,
        requests: impl Iterator<Item = BeginRequest<'n>>,
        mut tell: impl FnMut(Located),
    ) -> u64 {
        let (first, mut waits) = (session.next_batch(), Waits::default());
        for (request, reference) in requests.zip(first..) {
            let begun = if session.holdings.lock().begun.len() >= CREATES_MAX {
                Err(Located::TooMany)
            } else {
                self.begin_one(session, &mut waits, scope, &request)
            };
            tell(match begun {
                Err(located) => located,
                Ok(begun) => {
                    let (segment, length) = (begun.segment, begun.size);
                    session.holdings.lock().begun.insert(reference, begun);
                    Located::Here { segment, version: Version::default(), length, lasts: false }
                }
            });
        }
        first
    }

    fn begin_one(
        &self,
        session: &Session,
        waits: &mut Waits,
        scope: Ino,
        request: &BeginRequest<'_>,
    ) -> Result<Begun, Located> {
        let size = request.size;
        if size == ByteCount::ZERO {
            return Err(Located::Invalid);
        }
        if size >= self.settings.scratch_min {
            // A slot file, of which the disk has room.
            return Err(Located::AskByFile);
        }
        if size > self.settings.capacity {
            return Err(Located::NoRoom);
        }
        let target = self.target_of(&self.lock(), session, scope, request)?;
        let failed = |error: Error| Located::of(&error);
        // Before it has pages: what leaves for its quota leaves them to it.
        self.make_room_for_begun(waits, &target, size, |_| ()).map_err(failed)?;
        let (segment, file) = self.segment_for(waits, &target, size).map_err(failed)?;
        let made = || -> Result<Slot, Error> {
            if file.metadata().map_err(Error::io("stat of a segment"))?.len() != size.get() {
                file.set_len(size.get()).map_err(Error::io("ftruncate of a segment"))?;
            }
            let mut begun = None;
            // Others may have taken the room meanwhile.
            self.make_room_for_begun(waits, &target, size, |state| {
                begun = Some(self.enter_begun(state, &target, (segment, &file), size));
            })?;
            begun.ok_or(Error::Stale)
        };
        let slot = made().map_err(|error| {
            // One that was used before is mapped by clients, who are told that it is given up.
            let nobody = || Shared::new(Use::Area { uid: 0, length: ByteCount::ZERO }, None, false);
            self.fast.segments.lock().known.entry(segment).or_insert_with(nobody);
            self.free_place(Place::Solo(segment));
            Located::of(&error)
        })?;
        self.telemetry.fast_creates.increment();
        Ok(Begun { slot, segment, parent: target.parent_ino, name: target.name, size, file })
    }

    /// Makes room in the quotas above an object that is to be begun, for what it has more than the one whose place it takes, and
    /// does `enter` as soon as there is, before anybody else takes it; not at all when its directory was removed.
    fn make_room_for_begun(
        &self,
        waits: &Waits,
        target: &Target,
        size: ByteCount,
        mut enter: impl FnMut(&mut State),
    ) -> Result<(), Error> {
        let whole = footprint(size);
        let in_the_way = |state: &mut State| {
            let parent = state.living_directory(target.parent_ino).ok()?;
            let more = whole.saturating_sub(state.counted_for_begun(parent, &target.name));
            let in_the_way = state.quota_in_the_way(parent, more, None);
            if in_the_way.is_none() {
                enter(state);
            }
            in_the_way
        };
        if waits.are_of_trial() {
            self.look_for_room_below(whole, in_the_way)
        } else {
            self.make_room_below(whole, in_the_way)
        }
    }

    /// Enters an object that is begun into the tables, and into the quotas above it.
    fn enter_begun(
        &self,
        state: &mut State,
        target: &Target,
        (segment, file): (SegmentId, &Arc<File>),
        size: ByteCount,
    ) -> Slot {
        let mut object = Object::writing(Place::Solo(segment));
        object.marks.set(Marks::SHARED, true);
        let open = object.open_mut();
        open.file = Some(Arc::clone(file));
        open.reserved = footprint(size);
        open.sized = size;
        open.writers = 1;
        open.was_opened = true;
        let slot = state.tree.make(target.attributes, Body::File(object));
        state.writing.insert(slot);
        state.charge_in(slot, target.parent, &target.name);
        let shared = Shared::written(Use::Object(state.tree.ino(slot)), Some(target.shape), size);
        self.fast.segments.lock().known.insert(segment, shared);
        slot
    }

    /// Where a name that is to be made stands, if the session may make it.
    fn target_of(
        &self,
        state: &State,
        session: &Session,
        scope: Ino,
        request: &BeginRequest<'_>,
    ) -> Result<Target, Located> {
        session.check_write()?;
        let credentials = session.credentials();
        let (within, leaf) = Walk::new(state, credentials, scope).split(state, request.name);
        let parent = within?.slot;
        if parent == Slot::ROOT && leaf == RESERVED_AT_ROOT {
            return Err(Located::AskByFile);
        }
        let name = Name::new(leaf).map_err(|_| Located::Invalid)?;
        let present = state.tree.child(parent, leaf);
        if !state.may_put(credentials, parent, present) {
            return Err(Located::Denied);
        }
        if present.is_some_and(|present| state.tree.directory(present).is_some()) {
            return Err(Located::AskByFile);
        }
        let policy = state.effective_policy(parent).record;
        // What is to be on a disk before its name is told waits for that in rename(2).
        let is_durable = policy.durable == Some(true) && self.ssd.get().is_some();
        if policy.scratch == Some(true) || is_durable {
            return Err(Located::AskByFile);
        }
        let (gid, _) = state.inherited_group(parent, credentials.gid);
        let attributes = Attributes::new(request.mode, credentials.uid, gid, self.now_ns());
        let class = state.access_class(parent, &attributes);
        let shape = Shape { class, pages: footprint(request.size) };
        Ok(Target { parent, parent_ino: state.tree.ino(parent), name, attributes, shape })
    }

    /// A segment for a new object: one that waits, else one that an eviction gives up, else a fresh one.
    fn segment_for(
        &self,
        waits: &mut Waits,
        target: &Target,
        size: ByteCount,
    ) -> Result<(SegmentId, Arc<File>), Error> {
        let waiting = self.fast.segments.lock().pool.take(target.shape);
        if let Some(waiting) = waiting {
            self.telemetry.fast_reuses.increment();
            return Ok((waiting.segment, waiting.file));
        }
        // As every writer, it leaves the headroom to those that the kernel serves.
        let needed = footprint(size).saturating_add(self.settings.write_headroom);
        for _ in 0..EVICTIONS_FOR_REUSE {
            let free = self.tier.usage()?.free;
            if free >= needed || self.evict_round_for_reuse(needed.saturating_sub(free), target.parent) == 0 {
                break;
            }
            let picked = self.fast.segments.lock().pool.pick(target.shape);
            if let Some(waiting) = picked {
                self.telemetry.fast_reuses.increment();
                return Ok((waiting.segment, waiting.file));
            }
        }
        let (segment, file) = self.tier.create_segment()?;
        match self.reserve_beside_headroom(waits, &file, footprint(size), target.parent) {
            Ok(()) => Ok((segment, Arc::new(file))),
            Err(error) => {
                self.free_place(Place::Solo(segment));
                Err(error)
            }
        }
    }

    /// Allocates a segment in full, and leaves the headroom to writers that the kernel serves, or one of them would be cut
    /// short. When nothing can be evicted any more it takes of that too, as a write through the daemon does.
    pub(super) fn reserve_beside_headroom(
        &self,
        waits: &mut Waits,
        file: &File,
        pages: ByteCount,
        directory: Slot,
    ) -> Result<(), Error> {
        let wanted = pages.saturating_add(self.settings.write_headroom);
        if let Err(error) = self.make_room_within(waits, wanted, directory) {
            if waits.are_of_trial() {
                return Err(error);
            }
            tracing::debug!(%error, "a begun object takes of the headroom");
        }
        self.reserve_within(waits, file, ByteCount::ZERO, pages, directory)
    }

    /// Makes objects of bytes in areas of the session; of one that is not to be tried the request says why. `tell` is called once
    /// for each, in order. They are published together, as many as may be kept from being evicted meanwhile, and
    /// before one that finds no room beside them, which is tried again then.
    pub fn put_from<'n>(
        &self,
        session: &Session,
        caller: &Caller,
        scope: Ino,
        requests: impl Iterator<Item = Result<PutRequest<'n>, Located>>,
        mut tell: impl FnMut(Result<Version, Located>),
    ) -> Remains {
        let (mut waits, mut prepared, mut bytes) = (Waits::default(), Vec::new(), ByteCount::ZERO);
        let mut remains = Remains::default();
        for request in requests {
            let copy_in =
                |waits: &mut Waits| request.and_then(|request| self.copy_in(session, waits, scope, &request));
            let is_full = prepared.len() == LOCKED_AT_ONCE || bytes >= self.kept_back_max();
            let tried = (bytes > ByteCount::ZERO && !is_full).then(|| copy_in(&mut Waits::none()));
            let begun = match tried {
                Some(begun) if !matches!(begun, Err(Located::NoRoom | Located::OverQuota)) => begun,
                // Those that were prepared before it make place for it when they are published.
                _ => {
                    if !prepared.is_empty() {
                        let prepared = mem::take(&mut prepared);
                        let published = self.publish_all(session, caller, prepared, &mut remains);
                        published.into_iter().for_each(&mut tell);
                        // Its room is needed now.
                        self.free_remains(mem::take(&mut remains));
                    }
                    bytes = ByteCount::ZERO;
                    copy_in(&mut waits)
                }
            };
            bytes = begun.as_ref().map_or(bytes, |begun| bytes.saturating_add(begun.size));
            prepared.push(begun);
        }
        self.publish_all(session, caller, prepared, &mut remains).into_iter().for_each(tell);
        self.free_what_is_little(remains)
    }

    /// Begins an object and copies its bytes into it.
    fn copy_in(
        &self,
        session: &Session,
        waits: &mut Waits,
        scope: Ino,
        request: &PutRequest<'_>,
    ) -> Result<Begun, Located> {
        let PutRequest { object, area, source } = request;
        let area = session.area(*area).ok_or(Located::Invalid)?;
        let end = source.0.checked_add(object.size.get()).ok_or(Located::Invalid)?;
        if end > area.length.get() {
            return Err(Located::Invalid);
        }
        let begun = self.begin_one(session, waits, scope, object)?;
        self.fast.segments.lock().end_writes(begun.segment);
        // Both lie in the area, whose length is that of a mapping.
        let (start, length) = (usize::try_from(source.0), usize::try_from(object.size.get()));
        let (start, length) = (start.unwrap_or(usize::MAX), length.unwrap_or(usize::MAX));
        let copied = area.memory.copy_to_file(start, length, &begun.file, 0);
        let claimed = copied
            .map_err(Error::io("copy out of an area"))
            .and_then(|()| self.claim_all(begun.slot, object.size));
        if let Err(error) = claimed {
            self.give_up(&begun);
            return Err(Located::of(&error));
        }
        self.telemetry.copied_bytes.add(object.size.get());
        Ok(begun)
    }
}
