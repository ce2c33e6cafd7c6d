//! Hot path: what each command of the fast path does, and what is told of each of its entries.
//!
//! A command fails as a whole when the directory to which its names are relative was removed, when an area is not to be had or is
//! not its session's, when a wait has no room for its result, or when this kernel cannot do it. Else the entries have a result
//! each, in the order in which they came; of a prefix its length is told, and what gives back or aborts has none.
//!
//! Limits: a reply of RETIRED names [`RETIRED_AT_ONCE`] segments; one request copies [`AREA_MAX`] bytes, and an entry beyond
//! that is told so.
//! Threads: session threads, and those that take from them what may take long or what other members were asked for.

use std::sync::Arc;

use tidefs_control_api::ioctl::{
    ABI_VERSION, AreaGrant, Body, ENTRY_LASTS, Entry, Features, Flags, Get, HEADER_BYTES, Outcome, PIN_HARD,
    PIN_NONE, PIN_SOFT, Pin, Put, Records, Refusal, Request, Status, VersionReply,
};
use tidefs_engine::types::{ByteCount, FileOffset, SegmentId, Version};
use zerocopy::IntoBytes;

use crate::datapath::{
    AREA_MAX, BeginRequest, CREATES_MAX, Caller, Datapath, Error, GetRequest, Located, PutRequest,
    REFERENCES_MAX, ReadyRequest, Remains, SealRequest, Session,
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
#[derive(Default)]
pub(super) struct Reply {
    /// Number of results, or what the command says instead.
    pub(super) count: usize,
    /// See [`Header::scope`](tidefs_control_api::ioctl::Header::scope).
    pub(super) first: u64,
    /// Some names are to be asked for by a file call: perhaps only because other members were not asked for them.
    pub(super) has_unknown: bool,
    /// What is to be freed before its client has it, and takes long.
    pub(super) remains: Remains,
}

/// What is told of the entries so far.
struct Results<'a> {
    bytes: &'a mut Vec<u8>,
    reply: Reply,
    /// Whether the directory to which the names are relative was removed.
    has_no_scope: bool,
}

impl Results<'_> {
    fn put(&mut self, result: &[u8]) {
        self.bytes.extend_from_slice(result);
        self.reply.count += 1;
    }

    /// What was found under a name, told as `entry`.
    fn put_entry(&mut self, found: Located, entry: Entry) {
        self.has_no_scope |= found == Located::NoScope;
        self.put(entry.as_bytes());
    }

    fn put_outcome(&mut self, done: Result<Version, Located>) {
        self.has_no_scope |= done == Err(Located::NoScope);
        self.put(outcome(done).as_bytes());
    }
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

pub(super) fn scope_of(request: &Request<'_>) -> Ino {
    if request.scope == 0 { Ino::ROOT } else { Ino(request.scope) }
}

/// Does what is asked, and appends the results to `bytes`.
///
/// # Errors
/// [`Error::Stale`] when the directory to which the names are relative was removed, be it meanwhile: whatever stands at its
/// path now, this is another one, and its client is to look for that. What else fails as a whole.
pub(super) fn carry_out(
    datapath: &Arc<Datapath>,
    session: &Session,
    caller: &Caller,
    request: &Request<'_>,
    (bytes, room): (&mut Vec<u8>, usize),
) -> Result<Reply, Fault> {
    let scope = scope_of(request);
    let mut results = Results { bytes, reply: Reply::default(), has_no_scope: false };
    match &request.body {
        Body::Version => results.bytes.extend(version(datapath).as_bytes()),
        Body::Lookup(names) => {
            let probe = request.flags.has(Flags::PROBE);
            let asks_others = !request.flags.has(Flags::HERE);
            let names = names.iter().map(|name| name.0);
            results.reply.first = datapath.locate(session, caller, scope, names, probe, |found| {
                results.reply.has_unknown |= asks_others && found == Located::AskByFile;
                results.put_entry(found, entry(found));
            });
        }
        Body::Prefix(names) => {
            let run = datapath.run_length(session, caller, scope, names.iter().map(|name| name.0));
            results.reply = Reply {
                count: run.length,
                first: run.end.map_or(Status::Ok, status) as u64,
                has_unknown: run.end == Some(Located::AskByFile),
                ..Reply::default()
            };
            results.has_no_scope = run.end == Some(Located::NoScope);
        }
        Body::Release(ranges) => {
            let ranges = ranges.iter().map(|range| (range.first, range.count));
            results.reply.remains = if request.flags.has(Flags::USED) {
                datapath.give_back_used(session, ranges)
            } else {
                datapath.give_back(session, ranges)
            };
        }
        Body::Abort(ranges) => {
            let ranges = ranges.iter().map(|range| (range.first, range.count));
            results.reply.remains = datapath.abort(session, ranges);
        }
        Body::Create(requests) => {
            must_tell_names(datapath)?;
            let requests = requests.iter().map(|create| BeginRequest {
                name: create.name.0,
                size: ByteCount(create.size),
                mode: create.mode,
            });
            results.reply.first = datapath.begin(session, scope, requests, |begun| {
                results.put_entry(begun, entry(begun));
            });
        }
        Body::Seal(requests) => {
            let requests = requests
                .iter()
                .map(|seal| SealRequest { reference: seal.reference, length: ByteCount(seal.length) });
            let remains =
                datapath.seal_begun(session, caller, requests, |sealed| results.put_outcome(sealed));
            results.reply.remains = remains;
        }
        Body::Prefetch(names) => {
            let mut below = Vec::new();
            let names = names.iter().map(|name| name.0);
            datapath.find_below(session, scope, names, |found, ino| {
                results.reply.has_unknown |= found == Located::AskByFile;
                results.put_entry(found, entry(found));
                below.extend(ino);
            });
            datapath.prefetch(&below);
        }
        Body::GetInto(requests) => {
            let counts = !request.flags.has(Flags::PROBE);
            get_each(datapath, (session, counts), caller, scope, requests, &mut results);
        }
        Body::PutFrom(requests) => {
            must_tell_names(datapath)?;
            put_each(datapath, session, caller, scope, requests, &mut results);
        }
        Body::Register => {
            let (segment, length) = datapath.register_area(session, ByteCount(request.scope))?;
            let grant = AreaGrant { segment: segment.0.into(), length: length.get().into() };
            results.bytes.extend(grant.as_bytes());
        }
        Body::Unregister => datapath.unregister_area(session, SegmentId(request.scope))?,
        Body::Ready(requests) => {
            let requests = requests.iter().map(|ready| ReadyRequest {
                reference: ready.reference,
                offset: FileOffset(ready.offset),
                length: ByteCount(ready.length),
            });
            datapath.make_ready(session, requests, |done| results.put_outcome(done));
        }
        Body::Pin(requests) => {
            for pin in requests.iter() {
                let done = match pin_text(&pin) {
                    Some(text) => datapath.pin_object(session, scope, pin.name.0, &text),
                    None => Err(Located::Invalid),
                };
                results.put_outcome(done.map(|()| Version::default()));
            }
        }
        // Its reply has no room for a result.
        Body::Follow(_) => return Err(Error::Invalid("a wait needs room for its result").into()),
        Body::Retired => {
            // What its client has no room for it is told next time.
            let fitting = room.saturating_sub(HEADER_BYTES) / size_of::<u64>();
            let retired = datapath.retired_segments(session.retired_seen(), fitting.min(RETIRED_AT_ONCE));
            session.set_retired_seen(retired.seen);
            results.reply.first = retired.forgotten;
            retired.segments.iter().for_each(|segment| results.put(&segment.0.to_le_bytes()));
        }
    }
    let Results { reply, has_no_scope, .. } = results;
    if has_no_scope {
        if matches!(request.body, Body::Lookup(_) | Body::Create(_)) {
            take_back(datapath, session, reply.first, reply.count);
        }
        datapath.free_remains(reply.remains);
        return Err(Error::Stale.into());
    }
    Ok(reply)
}

/// Copies parts of objects out. `counts`: each is a use.
fn get_each<'a>(
    datapath: &Datapath,
    (session, counts): (&Session, bool),
    caller: &Caller,
    scope: Ino,
    requests: &Records<'a, Get<'a>>,
    results: &mut Results<'_>,
) {
    let mut copies = Copies::default();
    for get in requests.iter() {
        let request = GetRequest {
            name: get.name.0,
            offset: FileOffset(get.offset),
            length: ByteCount(get.length),
            area: SegmentId(get.area),
            target: FileOffset(get.target),
            counts,
        };
        let (found, copied) = if copies.may_have(request.length) {
            datapath.get_into(session, caller, scope, &request)
        } else {
            (Located::TooMany, ByteCount::ZERO)
        };
        results.put_entry(found, copied_entry(found, copied));
    }
}

/// Makes objects of what lies in areas.
fn put_each<'a>(
    datapath: &Datapath,
    session: &Session,
    caller: &Caller,
    scope: Ino,
    requests: &Records<'a, Put<'a>>,
    results: &mut Results<'_>,
) {
    let mut copies = Copies::default();
    let requests = requests.iter().map(|put| {
        let object = BeginRequest { name: put.name.0, size: ByteCount(put.length), mode: put.mode };
        let (area, source) = (SegmentId(put.area), FileOffset(put.source));
        let request = PutRequest { object, area, source };
        if copies.may_have(object.size) { Ok(request) } else { Err(Located::TooMany) }
    });
    let remains = datapath.put_from(session, caller, scope, requests, |put| results.put_outcome(put));
    results.reply.remains = remains;
}

/// Takes back what a request gave of which nobody learns: references, and what was begun.
pub(super) fn take_back(datapath: &Datapath, session: &Session, first: u64, count: usize) {
    let unknown = std::iter::once((first, count as u64));
    datapath.free_remains(datapath.give_back(session, unknown.clone()));
    datapath.free_remains(datapath.abort(session, unknown));
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
    let always = Features(Features::FOLLOW.0 | Features::CLOCK.0 | Features::HERE.0 | Features::PROBE.0);
    VersionReply {
        oldest: ABI_VERSION.into(),
        newest: ABI_VERSION.into(),
        features: (mapping | create | always.0).into(),
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
