//! Areas: segments that a client owns, for large batches and for bytes that are copied. And the files of segments, which
//! clients open to map them.
//!
//! The daemon reads and writes an area through its file, and has the kernel copy between its mapping and segments; it never
//! borrows from it: what the client changes meanwhile is other bytes, not other memory under a borrow.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use tidefs_engine::memory::Mapping;
use tidefs_engine::types::{ByteCount, FileOffset, SegmentId, Version};

use super::segments::{Shared, Use};
use super::session::Area;
use super::{AREAS_MAX, Located, Session};
use crate::datapath::rights::{Credentials, Right};
use crate::datapath::room::{Waits, footprint};
use crate::datapath::{Caller, Datapath, Error, Phase, Place, State};
use crate::namespace::{Ino, Slot};

/// Bytes of a write(2) into a segment that are written before the lock is let go for others.
const WRITTEN_AT_ONCE: usize = 64 << 10;

/// How often an object is looked for that is replaced, or moved, between the look and the copy.
const LOOKS_MAX: usize = 8;

/// Most bytes of one area.
pub const AREA_MAX: ByteCount = ByteCount::mib(64);

/// A part of an object that is to be copied.
#[derive(Clone, Copy, Debug)]
pub struct GetRequest<'n> {
    /// Relative to the scope.
    pub name: &'n [u8],
    /// Where the part starts.
    pub offset: FileOffset,
    /// Its length.
    pub length: ByteCount,
    /// The area.
    pub area: SegmentId,
    /// Where it goes there.
    pub target: FileOffset,
    /// Whether it is a use: not after a look-up, which counted one.
    pub counts: bool,
}

/// What keeps the bytes of an object while they are copied.
enum Kept {
    /// A reference of the session, the first of its batch.
    Used(u64),
    /// One of nobody's, to what lies in a segment.
    Held(Option<Slot>),
}

impl Session {
    /// An area of this session.
    pub(super) fn area(&self, segment: SegmentId) -> Option<Area> {
        self.holdings.lock().areas.get(&segment).cloned()
    }
}

impl Datapath {
    /// Gives a session an area of at least `length` bytes. Returns its segment and its length.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a length that no area may have, or when the session has as many as it may, or users as many
    /// bytes; [`Error::NothingEvictable`].
    pub fn register_area(
        &self,
        session: &Session,
        length: ByteCount,
    ) -> Result<(SegmentId, ByteCount), Error> {
        if length == ByteCount::ZERO || length > AREA_MAX {
            return Err(Error::Invalid("no area may be so long"));
        }
        if session.holdings.lock().areas.len() >= AREAS_MAX {
            return Err(Error::Invalid("the session has as many areas as it may"));
        }
        let (length, uid) = (footprint(length), session.credentials().uid);
        if !self.fast.segments.lock().count_area(uid, length, self.settings.capacity) {
            return Err(Error::Invalid("areas have as many bytes as they may"));
        }
        let (segment, file, memory) = self.make_area(length).inspect_err(|_| {
            self.fast.segments.lock().uncount_area(uid, length);
        })?;
        let purpose = Use::Area { uid, length };
        self.fast.segments.lock().known.insert(segment, Shared::written(purpose, None, length));
        let area = Area { file: Arc::new(file), memory: Arc::new(memory), length };
        session.holdings.lock().areas.insert(segment, area);
        Ok((segment, length))
    }

    fn make_area(&self, length: ByteCount) -> Result<(SegmentId, File, Mapping), Error> {
        let (segment, file) = self.tier.create_segment()?;
        let made = self
            .reserve_beside_headroom(&mut Waits::default(), &file, length, Slot::ROOT)
            .and_then(|()| file.set_len(length.get()).map_err(Error::io("ftruncate of an area")))
            .and_then(|()| Mapping::new(&file, length).map_err(Error::io("mmap of an area")));
        match made {
            Ok(memory) => Ok((segment, file, memory)),
            Err(error) => {
                self.free_place(Place::Solo(segment));
                Err(error)
            }
        }
    }

    /// Takes an area back.
    ///
    /// # Errors
    /// [`Error::BadHandle`] when the session has no such area.
    pub fn unregister_area(&self, session: &Session, segment: SegmentId) -> Result<(), Error> {
        session.holdings.lock().areas.remove(&segment).ok_or(Error::BadHandle)?;
        self.free_area(segment);
        Ok(())
    }

    pub(super) fn free_area(&self, segment: SegmentId) {
        {
            let mut segments = self.fast.segments.lock();
            if let Some(Use::Area { uid, length }) =
                segments.known.get(&segment).map(|shared| &shared.purpose)
            {
                let (uid, length) = (*uid, *length);
                segments.uncount_area(uid, length);
            }
        }
        self.free_place(Place::Solo(segment));
    }

    /// Whether the session has that area, and the range lies in it.
    #[must_use]
    pub fn area_has(
        &self,
        session: &Session,
        segment: SegmentId,
        offset: FileOffset,
        length: ByteCount,
    ) -> bool {
        session.area(segment).is_some_and(|area| length_within(&area, offset, length).is_ok())
    }

    /// Reads `length` bytes of an area.
    ///
    /// # Errors
    /// [`Error::BadHandle`] when the session has no such area, [`Error::Invalid`] when the range leaves it.
    pub fn read_area(
        &self,
        session: &Session,
        segment: SegmentId,
        offset: FileOffset,
        length: ByteCount,
    ) -> Result<Vec<u8>, Error> {
        let area = session.area(segment).ok_or(Error::BadHandle)?;
        let count = length_within(&area, offset, length)?;
        let mut bytes = vec![0; count];
        area.file.read_exact_at(&mut bytes, offset.0).map_err(Error::io("read of an area"))?;
        Ok(bytes)
    }

    /// Writes into an area.
    ///
    /// # Errors
    /// As [`Datapath::read_area`].
    pub fn write_area(
        &self,
        session: &Session,
        segment: SegmentId,
        offset: FileOffset,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let area = session.area(segment).ok_or(Error::BadHandle)?;
        length_within(&area, offset, ByteCount(bytes.len() as u64))?;
        area.file.write_all_at(bytes, offset.0).map_err(Error::io("write of an area"))
    }

    /// Copies a part of an object into an area. Returns what the object is and how many bytes were copied, fewer than asked
    /// for at its end.
    pub fn get_into(
        &self,
        session: &Session,
        caller: &Caller,
        scope: Ino,
        request: &GetRequest<'_>,
    ) -> (Located, ByteCount) {
        let Some(area) = session.area(request.area) else { return (Located::Invalid, ByteCount::ZERO) };
        let Ok(count) = length_within(&area, request.target, request.length) else {
            return (Located::Invalid, ByteCount::ZERO);
        };
        // What is told of an object is told of the bytes that were copied: they are of one version.
        let look = || self.copy_out((session, caller, scope), request, &area, count).transpose();
        let Some(found) = (0..LOOKS_MAX).find_map(|_| look()) else {
            return (Located::AskByFile, ByteCount::ZERO);
        };
        match found {
            Ok((located, copied)) => {
                self.telemetry.copied_bytes.add(copied.get());
                (located, copied)
            }
            Err(error) => (Located::of(&error), ByteCount::ZERO),
        }
    }

    /// What a name stands for, of which up to `count` bytes are copied into the area; how many those were. `None` when it
    /// changed meanwhile.
    fn copy_out(
        &self,
        (session, caller, scope): (&Session, &Caller, Ino),
        request: &GetRequest<'_>,
        area: &Area,
        count: usize,
    ) -> Result<Option<(Located, ByteCount)>, Error> {
        let (located, kept) = if request.counts {
            let mut located = Located::Absent;
            let names = std::iter::once(request.name);
            let first = self.locate(session, caller, scope, names, false, |found| located = found);
            (located, Kept::Used(first))
        } else {
            let (located, held) = self.hold(session, scope, request.name);
            (located, Kept::Held(held))
        };
        // No longer than what there is to copy, however much is asked for.
        let left = match located {
            Located::Here { length, .. } | Located::Packed { length, .. } => {
                length.get().saturating_sub(request.offset.0)
            }
            _ => 0,
        };
        let count = usize::try_from(left).map_or(count, |left| left.min(count));
        // It lies in the area, whose length is that of a mapping.
        let target = usize::try_from(request.target.0).unwrap_or(usize::MAX);
        let copied = match located {
            Located::Here { segment, .. } => {
                self.tier.open_segment(segment).map_err(Error::from).and_then(|file| {
                    let copied = area.memory.copy_from_file(target, count, &file, request.offset.0);
                    copied.map(Some).map_err(Error::io("copy into an area"))
                })
            }
            Located::Packed { version, length } => {
                let mut buffer = vec![0; count];
                let read = self.read_packed(session, scope, request, (version, length), &mut buffer);
                read.and_then(|read| {
                    let write =
                        |count| area.file.write_all_at(&buffer[..count], request.target.0).map(|()| count);
                    read.map(write).transpose().map_err(Error::io("write of an area"))
                })
            }
            _ => Ok(Some(0)),
        };
        match kept {
            Kept::Used(first) => self.free_remains(self.give_back(session, std::iter::once((first, 1)))),
            Kept::Held(held) => self.drop_references(held.as_slice()),
        }
        Ok(copied?.map(|copied| (located, ByteCount(copied as u64))))
    }

    fn copy_solo(&self, segment: SegmentId, offset: FileOffset, buffer: &mut [u8]) -> Result<usize, Error> {
        let file = self.tier.open_segment(segment)?;
        let mut filled = 0;
        while filled < buffer.len() {
            let at = offset.0.saturating_add(filled as u64);
            let count = file.read_at(&mut buffer[filled..], at).map_err(Error::io("read of a segment"))?;
            if count == 0 {
                break;
            }
            filled += count;
        }
        Ok(filled)
    }

    /// The bytes of a packed object, under the lock, so that it is not moved meanwhile. `None` when it is not the version, of the
    /// length, that was found there.
    fn read_packed(
        &self,
        session: &Session,
        scope: Ino,
        request: &GetRequest<'_>,
        found: (Version, ByteCount),
        buffer: &mut [u8],
    ) -> Result<Option<usize>, Error> {
        let mut state = self.lock();
        let mut walk = super::walk::Walk::new(&state, session.credentials(), scope);
        let (within, leaf) = walk.split(&state, request.name);
        let slot = within.ok().and_then(|within| state.tree.child(within.slot, leaf));
        let Some(slot) = slot else { return Ok(None) };
        let object = state.object(slot).filter(|object| (object.version, object.size) == found);
        let Some(&Place::Packed(extent)) = object.map(|object| &object.place) else { return Ok(None) };
        if !session.credentials().may(&state.tree.node(slot).attributes, Right::READ) {
            return Err(Error::NotPermitted("reading it"));
        }
        state.touch(slot);
        self.settle_used(&mut state, slot);
        let count = self.tier.read_packed(&extent, request.offset, buffer)?;
        self.telemetry.packed_read_bytes.add(count as u64);
        Ok(Some(count))
    }

    /// The file of a segment, for a client to map: an object's, that it may read, or write while it is begun; an area's own.
    ///
    /// # Errors
    /// [`Error::NoObject`] when clients may know nothing of such a segment; [`Error::NotPermitted`].
    pub fn open_shared(
        &self,
        credentials: &Credentials,
        segment: SegmentId,
        write: bool,
    ) -> Result<Arc<File>, Error> {
        let clock = self.tier.names_clock();
        if segment == clock.segment() {
            return if write {
                Err(Error::NotPermitted("writing the names clock"))
            } else {
                Ok(clock.file())
            };
        }
        let state = self.lock();
        let owner = match self.fast.segments.lock().known.get(&segment).map(|shared| &shared.purpose) {
            None => return Err(Error::NoObject),
            Some(Use::Area { uid, .. }) if *uid == credentials.uid || credentials.uid == 0 => None,
            Some(Use::Area { .. }) => return Err(Error::NotPermitted("an area of another user")),
            Some(Use::Object(ino)) => Some(*ino),
        };
        if let Some(ino) = owner {
            let slot = state.tree.by_ino(ino).ok_or(Error::NoObject)?;
            let object = state.object(slot).ok_or(Error::NoObject)?;
            if !matches!(object.place, Place::Solo(place) if place == segment) {
                return Err(Error::NoObject);
            }
            let (attributes, is_begun) = (state.tree.node(slot).attributes, object.phase == Phase::Writing);
            let directory = self.readable_in(&state, slot, is_begun);
            let may_read = directory.is_some_and(|directory| {
                state.may_search(credentials, directory) && credentials.may(&attributes, Right::READ)
            });
            let is_own = [0, attributes.uid].contains(&credentials.uid);
            let may = if write { is_begun && is_own } else { may_read || (directory.is_none() && is_own) };
            if !may {
                return Err(Error::NotPermitted("the segment of an object that the caller may not read so"));
            }
            if (!is_begun || may_read)
                && let Some(shared) = self.fast.segments.lock().known.get_mut(&segment)
            {
                // Who maps it now may look at it for as long as it stays mapped: whatever comes into it must be readable
                // by the same users as what is in it now. Of what has no name any more nobody can tell who that is.
                let class = directory
                    .filter(|_| may_read)
                    .map(|directory| state.access_class(directory, &attributes));
                shared.shape = shared.shape.filter(|shape| Some(shape.class) == class);
            }
        }
        Ok(Arc::new(self.tier.open_segment(segment)?))
    }

    /// Up to `length` bytes of a segment that a client opened, fewer at its end; none of one that was given up.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn read_shared(
        &self,
        segment: SegmentId,
        offset: FileOffset,
        length: usize,
    ) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; length];
        let is_shared = self.fast.segments.lock().known.contains_key(&segment);
        let filled = if is_shared { self.copy_solo(segment, offset, &mut bytes)? } else { 0 };
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// Writes into a segment that its client opened to write: within its length, and until it is sealed or given back. A
    /// write behind its end would take room that nobody counts, and that no eviction frees.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for a write that leaves it; [`Error::NotPermitted`] when it is not the client's to write any more.
    pub fn write_shared(&self, segment: SegmentId, offset: FileOffset, bytes: &[u8]) -> Result<(), Error> {
        let no_more = || Error::NotPermitted("writing a segment that is not the client's any more");
        let file = self.tier.open_segment(segment).map_err(|_| no_more())?;
        let size = ByteCount(offset.0).saturating_add(ByteCount(bytes.len() as u64));
        for (part, at) in bytes.chunks(WRITTEN_AT_ONCE).zip((offset.0..).step_by(WRITTEN_AT_ONCE)) {
            // Held while it is written, or it could be given up and cut in between, and be made longer again.
            let segments = self.fast.segments.lock();
            let capacity = segments.known.get(&segment).and_then(|shared| shared.written_max);
            let capacity = capacity.ok_or_else(no_more)?;
            if size > capacity {
                return Err(Error::TooLarge { size, capacity });
            }
            file.write_all_at(part, at).map_err(Error::io("write of a segment"))?;
        }
        Ok(())
    }

    /// The directory that decides who may read the object in `slot`. `None` of one that was begun and is not shown, and of one
    /// that lost its name or its directory: only its owner may look at those, and who did so before.
    fn readable_in(&self, state: &State, slot: Slot, is_begun: bool) -> Option<Slot> {
        if is_begun {
            let parent = self.fast.following.lock().parent_of(slot);
            return parent.and_then(|parent| state.living_directory(parent).ok());
        }
        let node = state.tree.node(slot);
        (!node.is_detached()).then_some(node.parent)
    }

    /// Whether clients may know of a segment: that it is there, which says nothing of what is in it.
    #[must_use]
    pub fn is_shared(&self, segment: SegmentId) -> bool {
        let is_clock = segment == self.tier.names_clock().segment();
        is_clock || self.fast.segments.lock().known.contains_key(&segment)
    }
}

/// `length` as a number of bytes in memory, when the range lies in the area.
fn length_within(area: &Area, offset: FileOffset, length: ByteCount) -> Result<usize, Error> {
    let end = offset.0.checked_add(length.get()).filter(|&end| end <= area.length.get());
    end.and_then(|_| usize::try_from(length.get()).ok()).ok_or(Error::Invalid("the range leaves the area"))
}
