//! Hot path: the ioctls of the fast path: decode, call, answer.
//!
//! What is not understood is refused as a whole, before anything is done; what fails is told entry by entry.

use std::cell::RefCell;
use std::sync::{Arc, Once};

use fuser::{Errno, FileHandle, ReplyIoctl, Request as KernelRequest};
use tidefs_control_api::ioctl::{
    ABI_VERSION, AREA_REQUEST_MAX, AreaCall, AreaGrant, Body, Command, ENTRY_LASTS, Entry, Features, Flags,
    HEADER_BYTES, Header, Outcome, PIN_HARD, PIN_NONE, PIN_SOFT, Pin, Refusal, Request, Status, VersionReply,
};
use tidefs_engine::types::{ByteCount, FileOffset, SegmentId, Version};
use zerocopy::IntoBytes;

use super::asked::Asked;
use super::dispatch::Dispatcher;
use super::errno::errno;
use super::follow::follow;
use super::leisure::is_long;
use super::ops::caller;
use crate::datapath::{
    AREA_MAX, BeginRequest, CREATES_MAX, Caller, Datapath, Error, GetRequest, Located, REFERENCES_MAX,
    ReadyRequest, SealRequest, Session, Waits,
};
use crate::namespace::Ino;

/// Segments that one reply of RETIRED names at most.
const RETIRED_AT_ONCE: usize = 1024;

/// Why a request gets no reply but an error.
pub(super) enum Fault {
    Refused(Refusal),
    Failed(Error),
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A reply, apart from its results, which are bytes already.
pub(super) struct Reply {
    /// Number of results, or what the command says instead.
    pub(super) count: usize,
    /// See [`Header::scope`].
    pub(super) first: u64,
    /// Some names are to be asked for by a file call: perhaps only because other members were not asked for them.
    has_unknown: bool,
}

/// How many bytes one request has copied so far: others wait for the thread that copies.
#[derive(Default)]
struct Copies {
    bytes: ByteCount,
}

impl Copies {
    /// Counts a copy, if the request may have one more.
    fn may_have(&mut self, length: ByteCount) -> bool {
        let bytes = self.bytes.saturating_add(length);
        if bytes > AREA_MAX {
            return false;
        }
        self.bytes = bytes;
        true
    }
}

thread_local! {
    /// Where this thread puts its replies together, each after its header.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Answers an ioctl on a control file.
pub(super) fn ioctl(
    dispatcher: &Dispatcher,
    request: &KernelRequest,
    handle: FileHandle,
    number: u32,
    payload: &[u8],
    room: usize,
    reply: ReplyIoctl,
) {
    let Some((command, _)) = Command::of_request(number) else { return reply.error(Errno::ENOTTY) };
    let Some(session) = dispatcher.fast.session(handle) else { return reply.error(Errno::EBADF) };
    if command == Command::Follow && room >= HEADER_BYTES + size_of::<Entry>() {
        // It may wait, so it takes its reply along.
        return match Request::parse(command, payload) {
            Ok(request) => follow(&dispatcher.datapath, &dispatcher.follower, session, &request, reply),
            Err(refusal) => refuse(&dispatcher.datapath, command, refusal, reply),
        };
    }
    if !fits(command, payload, room) {
        return match Request::parse(command, payload) {
            Ok(_) => reply.error(Errno::EINVAL),
            Err(refusal) => refuse(&dispatcher.datapath, command, refusal, reply),
        };
    }
    if is_long(command, payload) {
        let (datapath, caller) = (Arc::clone(&dispatcher.datapath), caller(request));
        let payload = Box::<[u8]>::from(payload);
        return dispatcher.at_leisure(move || {
            let mut bytes = vec![0; HEADER_BYTES];
            let answered = answer(&datapath, &session, &caller, command, (&*payload, room), &mut bytes);
            reply_with(&datapath, command, answered.map(drop), &bytes, room, reply);
        });
    }
    BYTES.with_borrow_mut(|bytes| {
        bytes.clear();
        bytes.resize(HEADER_BYTES, 0);
        let (datapath, caller) = (&dispatcher.datapath, caller(request));
        let answered = answer(datapath, &session, &caller, command, (payload, room), bytes);
        match &answered {
            Ok(first) if first.has_unknown && datapath.cluster().is_some() => {
                let asked = Asked { session, caller, command, payload: payload.into(), room };
                asked.answer_later(datapath, first, bytes, reply);
            }
            _ => reply_with(datapath, command, answered.map(drop), bytes, room, reply),
        }
    });
}

/// Whether the results of a request fit into its reply, as far as its header says: looked at before anything is done.
fn fits(command: Command, payload: &[u8], room: usize) -> bool {
    Header::of_request(command, payload).map_or(true, |header| {
        let in_area = Flags(header.flags.get()).has(Flags::IN_AREA);
        let results = if in_area { 0 } else { header.records().saturating_mul(result_bytes(command)) };
        let least = match command {
            Command::Register => size_of::<AreaGrant>(),
            // That none is told says that there are no more.
            Command::Retired => size_of::<u64>(),
            _ => 0,
        };
        HEADER_BYTES.saturating_add(results).saturating_add(least) <= room
    })
}

pub(super) fn reply_with(
    datapath: &Datapath,
    command: Command,
    answered: Result<(), Fault>,
    bytes: &[u8],
    room: usize,
    reply: ReplyIoctl,
) {
    match answered {
        Ok(()) if bytes.len() <= room => reply.ioctl(0, bytes),
        Ok(()) => reply.error(Errno::EINVAL),
        Err(Fault::Failed(error)) => reply.error(errno(&error)),
        Err(Fault::Refused(refusal)) => refuse(datapath, command, refusal, reply),
    }
}

fn refuse(datapath: &Datapath, command: Command, refusal: Refusal, reply: ReplyIoctl) {
    datapath.telemetry().fast_refusals.increment();
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(%refusal, ?command, "a request of the fast path is refused; further ones are counted in tidefs_fast_refusals_total");
    });
    reply.error(Errno::EINVAL);
}

/// Does `call` with the request that `payload` is, or says where it lies; in the second case with that, too.
pub(super) fn with_request<T>(
    datapath: &Datapath,
    session: &Session,
    command: Command,
    payload: &[u8],
    call: impl FnOnce(&Request<'_>, Option<&AreaCall>) -> Result<T, Fault>,
) -> Result<T, Fault> {
    let header = Header::of_request(command, payload)?;
    if !Flags(header.flags.get()).has(Flags::IN_AREA) {
        return call(&Request::parse(command, payload)?, None);
    }
    let place = AreaCall::of_request(payload)?;
    let (area, offset) = (SegmentId(place.area.get()), FileOffset(place.request_offset.get()));
    let length = ByteCount(place.request_length.get());
    if length.get() > AREA_REQUEST_MAX as u64 {
        return Err(Refusal::Count { count: header.count.get() }.into());
    }
    // A copy: what the client changes there from now on is not what was understood.
    let records = datapath.read_area(session, area, offset, length)?;
    let request = Request::with_records(command, &header, &records)?;
    // Known to fit before anything is done.
    let expected = ByteCount(header.records().saturating_mul(result_bytes(command)) as u64);
    let target = FileOffset(place.reply_offset.get());
    if expected.get() > place.reply_length.get() || !datapath.area_has(session, area, target, expected) {
        return Err(Error::Invalid("the results do not fit into their place").into());
    }
    call(&request, Some(&place))
}

/// Does what `payload` asks for and puts its reply together in `bytes`, for which there are `room` bytes.
pub(super) fn answer(
    datapath: &Arc<Datapath>,
    session: &Session,
    caller: &Caller,
    command: Command,
    (payload, room): (&[u8], usize),
    bytes: &mut Vec<u8>,
) -> Result<Reply, Fault> {
    with_request(datapath, session, command, payload, |request, place| {
        let reply = carry_out(datapath, session, caller, request, (&mut *bytes, room))?;
        if let Some(place) = place {
            let (area, target) = (SegmentId(place.area.get()), FileOffset(place.reply_offset.get()));
            if let Err(error) = datapath.write_area(session, area, target, &bytes[HEADER_BYTES..]) {
                take_back(datapath, session, reply.first, reply.count);
                return Err(error.into());
            }
            bytes.truncate(HEADER_BYTES);
        }
        finish(datapath, session, &reply, bytes);
        Ok(reply)
    })
}

/// Takes back what a request gave of which nobody learns: references, and what was begun.
fn take_back(datapath: &Datapath, session: &Session, first: u64, count: usize) {
    let unknown = std::iter::once((first, count as u64));
    datapath.give_back(session, unknown.clone());
    datapath.abort(session, unknown);
}

fn result_bytes(command: Command) -> usize {
    match command {
        Command::Lookup | Command::Create | Command::Prefetch | Command::GetInto => size_of::<Entry>(),
        Command::Seal | Command::PutFrom | Command::Ready | Command::Pin => size_of::<Outcome>(),
        _ => 0,
    }
}

/// Writes the header at the start of `bytes`.
fn finish(datapath: &Datapath, session: &Session, reply: &Reply, bytes: &mut [u8]) {
    let flags = if datapath.has_retired_for(session) { Flags::RETIRED } else { Flags::NONE };
    let header = Header {
        version: ABI_VERSION.into(),
        flags: flags.0.into(),
        // The count is that of results, wherever they are.
        count: u32::try_from(reply.count).unwrap_or(u32::MAX).into(),
        scope: reply.first.into(),
    };
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
}

pub(super) fn scope_of(request: &Request<'_>) -> Ino {
    if request.scope == 0 { Ino::ROOT } else { Ino(request.scope) }
}

/// Does what is asked, and appends the results to `bytes`.
///
/// # Errors
/// [`Error::Stale`] when the directory to which the names are relative was removed, be it meanwhile: whatever stands at its
/// path now, this is another one, and its client is to look for that. What else fails as a whole.
fn carry_out(
    datapath: &Arc<Datapath>,
    session: &Session,
    caller: &Caller,
    request: &Request<'_>,
    (bytes, room): (&mut Vec<u8>, usize),
) -> Result<Reply, Fault> {
    let scope = scope_of(request);
    let (mut count, mut first, mut has_unknown, mut has_no_scope) = (0, 0, false, false);
    // Appends one result.
    let mut put = |result: &[u8]| {
        bytes.extend_from_slice(result);
        count += 1;
    };
    match &request.body {
        Body::Version => {
            bytes.extend(version(datapath).as_bytes());
        }
        Body::Lookup(names) => {
            let probe = request.flags.has(Flags::PROBE);
            let asks_others = !request.flags.has(Flags::HERE);
            let names = names.iter().map(|name| name.0);
            first = datapath.locate(session, caller, scope, names, probe, |found| {
                has_unknown |= asks_others && found == Located::AskByFile;
                has_no_scope |= found == Located::NoScope;
                put(entry(found).as_bytes());
            });
        }
        Body::Prefix(names) => {
            let run = datapath.run_length(session, caller, scope, names.iter().map(|name| name.0));
            count = run.length;
            has_unknown = run.end == Some(Located::AskByFile);
            has_no_scope = run.end == Some(Located::NoScope);
            first = run.end.map_or(Status::Ok, status) as u64;
        }
        Body::Release(ranges) => {
            let ranges = ranges.iter().map(|range| (range.first, range.count));
            if request.flags.has(Flags::USED) {
                datapath.give_back_used(session, ranges);
            } else {
                datapath.give_back(session, ranges);
            }
        }
        Body::Abort(ranges) => {
            datapath.abort(session, ranges.iter().map(|range| (range.first, range.count)));
        }
        Body::Create(requests) => {
            must_tell_names(datapath)?;
            let requests = requests.iter().map(|create| BeginRequest {
                name: create.name.0,
                size: ByteCount(create.size),
                mode: create.mode,
            });
            first = datapath.begin(session, scope, requests, |begun| {
                has_no_scope |= begun == Located::NoScope;
                put(entry(begun).as_bytes());
            });
        }
        Body::Seal(requests) => {
            let requests = requests
                .iter()
                .map(|seal| SealRequest { reference: seal.reference, length: ByteCount(seal.length) });
            datapath.seal_begun(session, caller, requests, |sealed| put(outcome(sealed).as_bytes()));
        }
        Body::Prefetch(names) => {
            let mut below = Vec::new();
            let names = names.iter().map(|name| name.0);
            datapath.find_below(session, scope, names, |found, ino| {
                has_unknown |= found == Located::AskByFile;
                has_no_scope |= found == Located::NoScope;
                put(entry(found).as_bytes());
                below.extend(ino);
            });
            datapath.prefetch(&below);
        }
        Body::GetInto(requests) => {
            let mut copies = Copies::default();
            for get in requests.iter() {
                let request = GetRequest {
                    name: get.name.0,
                    offset: FileOffset(get.offset),
                    length: ByteCount(get.length),
                    area: SegmentId(get.area),
                    target: FileOffset(get.target),
                };
                let (found, copied) = if copies.may_have(request.length) {
                    datapath.get_into(session, caller, scope, &request)
                } else {
                    (Located::TooMany, ByteCount::ZERO)
                };
                has_no_scope |= found == Located::NoScope;
                put(copied_entry(found, copied).as_bytes());
            }
        }
        Body::PutFrom(requests) => {
            must_tell_names(datapath)?;
            let (mut copies, mut waits) = (Copies::default(), Waits::default());
            for one in requests.iter() {
                let (size, mode) = (ByteCount(one.length), one.mode);
                let request = BeginRequest { name: one.name.0, size, mode };
                let source = (SegmentId(one.area), FileOffset(one.source));
                let done = if copies.may_have(size) {
                    datapath.put_from((session, &mut waits), caller, scope, &request, source)
                } else {
                    Err(Located::TooMany)
                };
                has_no_scope |= done == Err(Located::NoScope);
                put(outcome(done).as_bytes());
            }
        }
        Body::Register => {
            let (segment, length) = datapath.register_area(session, ByteCount(request.scope))?;
            let grant = AreaGrant { segment: segment.0.into(), length: length.get().into() };
            bytes.extend(grant.as_bytes());
        }
        Body::Unregister => datapath.unregister_area(session, SegmentId(request.scope))?,
        Body::Ready(requests) => {
            let requests = requests.iter().map(|ready| ReadyRequest {
                reference: ready.reference,
                offset: FileOffset(ready.offset),
                length: ByteCount(ready.length),
            });
            datapath.make_ready(session, requests, |done| put(outcome(done).as_bytes()));
        }
        Body::Pin(requests) => {
            for pin in requests.iter() {
                let done = match pin_text(&pin) {
                    Some(text) => datapath.pin_object(session, scope, pin.name.0, &text),
                    None => Err(Located::Invalid),
                };
                has_no_scope |= done == Err(Located::NoScope);
                put(outcome(done.map(|()| Version::default())).as_bytes());
            }
        }
        // Its reply has no room for a result.
        Body::Follow(_) => return Err(Error::Invalid("a wait needs room for its result").into()),
        Body::Retired => {
            // What its client has no room for it is told next time.
            let fitting = room.saturating_sub(HEADER_BYTES) / size_of::<u64>();
            let retired = datapath.retired_segments(session.retired_seen(), fitting.min(RETIRED_AT_ONCE));
            session.set_retired_seen(retired.seen);
            first = retired.forgotten;
            retired.segments.iter().for_each(|segment| put(&segment.0.to_le_bytes()));
        }
    }
    if has_no_scope {
        if matches!(request.body, Body::Lookup(_) | Body::Create(_)) {
            take_back(datapath, session, first, count);
        }
        return Err(Error::Stale.into());
    }
    Ok(Reply { count, first, has_unknown })
}

/// A pin as the attribute is written.
fn pin_text(pin: &Pin<'_>) -> Option<String> {
    match (pin.pin, pin.ttl_s) {
        (PIN_NONE, 0) => Some("none".to_owned()),
        (PIN_HARD, 0) => Some("hard".to_owned()),
        (PIN_SOFT, 0) => Some("soft".to_owned()),
        (PIN_SOFT, ttl_s) => Some(format!("soft:{ttl_s}s")),
        _ => None,
    }
}

fn must_tell_names(datapath: &Arc<Datapath>) -> Result<(), Error> {
    if datapath.can_tell_names() {
        Ok(())
    } else {
        Err(Error::Unsupported("this kernel cannot be told of names that it did not ask for"))
    }
}

fn version(datapath: &Datapath) -> VersionReply {
    let mapping = if datapath.is_passthrough() { Features::MAPPING.0 } else { 0 };
    let create = if datapath.can_tell_names() { Features::CREATE.0 } else { 0 };
    VersionReply {
        oldest: ABI_VERSION.into(),
        newest: ABI_VERSION.into(),
        features: (mapping | create | Features::FOLLOW.0 | Features::CLOCK.0 | Features::HERE.0).into(),
        packed_max: datapath.packed_max().get().into(),
        area_max: AREA_MAX.get().into(),
        references_max: u32::try_from(REFERENCES_MAX).unwrap_or(u32::MAX).into(),
        kept_back_max: datapath.kept_back_max().get().into(),
        creates_max: u32::try_from(CREATES_MAX).unwrap_or(u32::MAX).into(),
        clock: datapath.tier().names_clock().segment().0.into(),
    }
}

fn status(located: Located) -> Status {
    match located {
        Located::Here { .. } => Status::Ok,
        Located::Below => Status::Loadable,
        Located::Packed { .. } => Status::CopyOnly,
        Located::Absent | Located::NoScope => Status::Absent,
        Located::AskByFile => Status::AskByFile,
        Located::Denied => Status::Denied,
        Located::Invalid => Status::Invalid,
        Located::TooMany => Status::TooMany,
        Located::NoRoom => Status::NoRoom,
        Located::OverQuota => Status::OverQuota,
        Located::Failed => Status::Failed,
    }
}

pub(super) fn entry(located: Located) -> Entry {
    let bare = Entry::bare(status(located));
    match located {
        Located::Here { segment, version, length, lasts } => Entry {
            segment: segment.0.into(),
            version: version.0.into(),
            length: length.get().into(),
            marks: if lasts { ENTRY_LASTS } else { 0 }.into(),
            ..bare
        },
        Located::Packed { version, length } => {
            Entry { version: version.0.into(), length: length.get().into(), ..bare }
        }
        _ => bare,
    }
}

/// The result of a copy: done, or why not.
fn copied_entry(located: Located, copied: ByteCount) -> Entry {
    match located {
        Located::Here { version, .. } | Located::Packed { version, .. } => {
            Entry { version: version.0.into(), length: copied.get().into(), ..Entry::bare(Status::Ok) }
        }
        other => entry(other),
    }
}

fn outcome(sealed: Result<Version, Located>) -> Outcome {
    match sealed {
        Ok(version) => Outcome::new(Status::Ok, version.0),
        Err(located) => Outcome::new(status(located), 0),
    }
}
