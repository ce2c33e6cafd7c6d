//! Areas: segments of this session's own. One is for batches that do not fit into one ioctl, and for views of small objects; one for
//! objects that are copied in and out, so that nobody who looks something up waits for who stores.

use std::time::{Duration, Instant};

use parking_lot::{MappedMutexGuard, MutexGuard};
use tidefs_control_api::ioctl::{
    AREA_BATCH_MAX, AreaCall, AreaGrant, Command, Encoder, Flags, HEADER_BYTES, Header, Record, results,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Error;
use crate::memory::Mapping;
use crate::session::Session;

/// Bytes of the area for requests: records in its first half, results in the second.
pub(crate) const AREA_BYTES: usize = 4 << 20;

/// Bytes of the area for copies.
pub(crate) const COPY_BYTES: usize = 1 << 20;

/// How long one that was refused is not asked for again.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// A segment of one's own.
#[derive(Debug)]
pub(crate) struct Area {
    pub(crate) segment: u64,
    pub(crate) mapping: Mapping,
}

/// Where an area is, which is made when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Place {
    area: Option<Area>,
    /// Whether it was asked for before.
    is_wanted: bool,
    refused_at: Option<Instant>,
}

impl Place {
    pub(crate) fn take(&mut self) -> Option<Area> {
        self.area.take()
    }

    /// Has an area of so many bytes registered, if there is none, and none was refused a moment ago.
    fn fill(&mut self, session: &Session, bytes: usize) {
        let is_refused = self.refused_at.is_some_and(|refused_at| refused_at.elapsed() < REFUSED_FOR);
        if self.area.is_none() && !is_refused {
            self.area = session.register(bytes).ok();
            self.refused_at = self.area.is_none().then(Instant::now);
        }
    }
}

impl Session {
    /// The area for requests. `None` when the daemon has no room for one, or had none a moment ago, or another thread has it and this
    /// one may not wait.
    pub(crate) fn area(&self, may_wait: bool) -> Option<MappedMutexGuard<'_, Area>> {
        if self.is_inherited() {
            return None;
        }
        let mut place = if may_wait { self.area.lock() } else { self.area.try_lock()? };
        place.fill(self, AREA_BYTES);
        MutexGuard::try_map(place, |place| place.area.as_mut()).ok()
    }

    /// The area for copies. `None` while another thread has it, when the daemon has no room for one, and, for who can do without it,
    /// the first time: many programs store or read one object and end.
    pub(crate) fn copy_area(&self, is_needed: bool) -> Option<MappedMutexGuard<'_, Area>> {
        if self.is_inherited() {
            return None;
        }
        let mut place = self.copies.try_lock()?;
        if std::mem::replace(&mut place.is_wanted, true) || is_needed {
            place.fill(self, COPY_BYTES);
        }
        MutexGuard::try_map(place, |place| place.area.as_mut()).ok()
    }

    fn register(&self, wanted: usize) -> Result<Area, Error> {
        let request = Encoder::new(Flags::NONE, wanted as u64, 0);
        let reply = self.call(Command::Register, request, HEADER_BYTES + size_of::<AreaGrant>())?;
        let bytes = reply.get(HEADER_BYTES..).ok_or(Error::BadReply)?;
        let grant = AreaGrant::read_from_prefix(bytes).map_err(|_| Error::BadReply)?.0;
        let segment = grant.segment.get();
        match self.segments.map_apart(segment, wanted, self.may_write) {
            Ok(mapping) => Ok(Area { segment, mapping }),
            Err(error) => {
                self.unregister(segment);
                Err(Error::io("map an area")(error))
            }
        }
    }

    /// Takes an area back. It goes with the session at the latest.
    pub(crate) fn unregister(&self, segment: u64) {
        let _ = self.call(Command::Unregister, Encoder::new(Flags::NONE, segment, 0), 0);
    }

    /// Makes one request with as many records as fit into the area. Returns how many those were, the first reference and the
    /// results; `None` when there is no area that they can be written into.
    pub(crate) fn call_in_area<
        'a,
        R: Record<'a>,
        T: FromBytes + KnownLayout + Immutable + Unaligned + Copy,
    >(
        &self,
        command: Command,
        flags: Flags,
        records: &[R],
    ) -> Result<Option<(usize, u64, Vec<T>)>, Error> {
        if !self.may_write {
            return Ok(None);
        }
        let Some(area) = self.area(true) else { return Ok(None) };
        let half = AREA_BYTES / 2;
        let mut request =
            Encoder::with_room(Flags(flags.0 | Flags::IN_AREA.0), self.scope, size_of::<T>(), half);
        let taken = records.iter().take(AREA_BATCH_MAX).take_while(|record| request.push(*record)).count();
        let written = request.records();
        if taken == 0 || !area.mapping.copy_in(0, written) {
            return Ok(None);
        }
        let call = AreaCall {
            area: area.segment.into(),
            request_offset: 0.into(),
            request_length: (written.len() as u64).into(),
            reply_offset: (half as u64).into(),
            reply_length: (half as u64).into(),
        };
        let mut payload = [request.header().as_bytes(), call.as_bytes()].concat();
        self.exchange(command, &mut payload)?;
        let header = Header::read_from_prefix(&payload).map_err(|_| Error::BadReply)?.0;
        if header.records() != taken {
            return Err(Error::BadReply);
        }
        // A reply as it comes in a payload: its header, then the results.
        let mut reply = vec![0; HEADER_BYTES + taken * size_of::<T>()];
        reply[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        if !area.mapping.copy_out(half, &mut reply[HEADER_BYTES..]) {
            return Err(Error::BadReply);
        }
        let (header, found) = results::<T>(&reply).ok_or(Error::BadReply)?;
        Ok(Some((taken, header.scope.get(), found.to_vec())))
    }
}
