//! Hot path: the ioctls of the fast path: decode, call, answer.
//!
//! What is not understood is refused as a whole, before anything is done; what fails is told entry by entry.

use std::sync::{Arc, Once};

use fuser::{Errno, FileHandle, ReplyIoctl, Request as KernelRequest};
use tidefs_control_api::ioctl::{
    ABI_VERSION, AREA_REQUEST_MAX, AreaCall, AreaGrant, Body, Command, Entry, Features, Flags, Header,
    Outcome, Refusal, Request, Status, VersionReply, results_bytes,
};
use tidefs_engine::types::{ByteCount, FileOffset, SegmentId, Version};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::dispatch::Dispatcher;
use super::errno::errno;
use super::ops::caller;
use crate::datapath::{
    AREA_MAX, BeginRequest, CREATES_MAX, Caller, Datapath, Error, GetRequest, Located, REFERENCES_MAX,
    SealRequest, Session,
};
use crate::namespace::Ino;

/// Segments that one reply of RETIRED names at most.
const RETIRED_AT_ONCE: usize = 1024;

/// Why a request gets no reply but an error.
enum Fault {
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

/// The results of a request, of one kind.
enum Results {
    Entries(Vec<Entry>),
    Outcomes(Vec<Outcome>),
    /// As many of these as they are.
    Numbers(Vec<U64>),
    /// One structure of fixed length.
    Bytes(Vec<u8>),
}

impl Results {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Entries(entries) => entries.as_bytes(),
            Self::Outcomes(outcomes) => outcomes.as_bytes(),
            Self::Numbers(numbers) => numbers.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::Entries(entries) => entries.len(),
            Self::Outcomes(outcomes) => outcomes.len(),
            Self::Numbers(numbers) => numbers.len(),
            Self::Bytes(_) => 0,
        }
    }
}

/// A reply before it is put into bytes.
struct Reply {
    /// Number of results, or what the command says instead.
    count: usize,
    /// See [`Header::scope`].
    first: u64,
    results: Results,
}

impl Reply {
    fn new(first: u64, results: Results) -> Self {
        Self { count: results.count(), first, results }
    }
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
    match answer(dispatcher, &session, &caller(request), command, payload) {
        Ok(bytes) if bytes.len() <= room => reply.ioctl(0, &bytes),
        Ok(_) => reply.error(Errno::EINVAL),
        Err(Fault::Failed(error)) => reply.error(errno(&error)),
        Err(Fault::Refused(refusal)) => {
            dispatcher.datapath.telemetry().fast_refusals.increment();
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                tracing::warn!(%refusal, ?command, "a request of the fast path is refused; further ones are counted in tidefs_fast_refusals_total");
            });
            reply.error(Errno::EINVAL);
        }
    }
}

fn answer(
    dispatcher: &Dispatcher,
    session: &Session,
    caller: &Caller,
    command: Command,
    payload: &[u8],
) -> Result<Vec<u8>, Fault> {
    let datapath = &dispatcher.datapath;
    let header = Header::of_request(command, payload)?;
    if !Flags(header.flags.get()).has(Flags::IN_AREA) {
        let request = Request::parse(command, payload)?;
        let reply = carry_out(dispatcher, session, caller, &request)?;
        return Ok(finish(datapath, session, &reply, reply.results.bytes()));
    }
    let call = AreaCall::of_request(payload)?;
    let (area, room) = (SegmentId(call.area.get()), call.reply_length.get());
    let length = ByteCount(call.request_length.get());
    if length.get() > AREA_REQUEST_MAX as u64 {
        return Err(Refusal::Count { count: header.count.get() }.into());
    }
    // A copy: what the client changes there from now on is not what was understood.
    let records = datapath.read_area(session, area, FileOffset(call.request_offset.get()), length)?;
    let request = Request::with_records(command, &header, &records)?;
    // Known to fit before anything is done.
    let expected = header.records().saturating_mul(result_bytes(command)) as u64;
    if expected > room {
        return Err(Error::Invalid("the results do not fit into their place").into());
    }
    let reply = carry_out(dispatcher, session, caller, &request)?;
    let written =
        datapath.write_area(session, area, FileOffset(call.reply_offset.get()), reply.results.bytes());
    if let Err(error) = written {
        // Nobody learns of these references.
        datapath.give_back(session, std::iter::once((reply.first, reply.count as u64)));
        return Err(error.into());
    }
    Ok(finish(datapath, session, &reply, &[]))
}

fn result_bytes(command: Command) -> usize {
    match command {
        Command::Lookup | Command::Create | Command::Prefetch | Command::GetInto => size_of::<Entry>(),
        Command::Seal | Command::PutFrom => size_of::<Outcome>(),
        _ => 0,
    }
}

fn finish(datapath: &Datapath, session: &Session, reply: &Reply, results: &[u8]) -> Vec<u8> {
    let flags = if datapath.has_retired_for(session) { Flags::RETIRED } else { Flags::NONE };
    let mut bytes = results_bytes::<u8>(flags, reply.first, &[]);
    // The count is that of results, wherever they are.
    let count = u32::try_from(reply.count).unwrap_or(u32::MAX);
    bytes[4..8].copy_from_slice(&count.to_le_bytes());
    bytes.extend(results);
    bytes
}

fn scope_of(request: &Request<'_>) -> Ino {
    if request.scope == 0 { Ino::ROOT } else { Ino(request.scope) }
}

fn carry_out(
    dispatcher: &Dispatcher,
    session: &Session,
    caller: &Caller,
    request: &Request<'_>,
) -> Result<Reply, Fault> {
    let (datapath, scope) = (&dispatcher.datapath, scope_of(request));
    Ok(match &request.body {
        Body::Version => Reply::new(0, Results::Bytes(version(datapath).as_bytes().to_vec())),
        Body::Lookup(names) => {
            let mut entries = Vec::with_capacity(names.len());
            let probe = request.flags.has(Flags::PROBE);
            let names = names.iter().map(|name| name.0);
            let first =
                datapath.locate(session, caller, scope, names, probe, |found| entries.push(entry(found)));
            Reply::new(first, Results::Entries(entries))
        }
        Body::Prefix(names) => {
            let run = datapath.run_length(session, caller, scope, names.iter().map(|name| name.0));
            let end = run.end.map_or(Status::Ok, status);
            Reply { count: run.length, first: end as u64, results: Results::Bytes(Vec::new()) }
        }
        Body::Release(ranges) => {
            datapath.give_back(session, ranges.iter().map(|range| (range.first, range.count)));
            Reply::new(0, Results::Bytes(Vec::new()))
        }
        Body::Abort(ranges) => {
            datapath.abort(session, ranges.iter().map(|range| (range.first, range.count)));
            Reply::new(0, Results::Bytes(Vec::new()))
        }
        Body::Create(requests) => {
            must_tell_names(datapath)?;
            let mut entries = Vec::with_capacity(requests.len());
            let requests = requests.iter().map(|create| BeginRequest {
                name: create.name.0,
                size: ByteCount(create.size),
                mode: create.mode,
            });
            let first = datapath.begin(session, scope, requests, |begun| entries.push(entry(begun)));
            Reply::new(first, Results::Entries(entries))
        }
        Body::Seal(requests) => {
            let mut outcomes = Vec::with_capacity(requests.len());
            let requests = requests
                .iter()
                .map(|seal| SealRequest { reference: seal.reference, length: ByteCount(seal.length) });
            datapath.seal_begun(session, caller, requests, |sealed| outcomes.push(outcome(sealed)));
            Reply::new(0, Results::Outcomes(outcomes))
        }
        Body::Prefetch(names) => {
            let mut entries = Vec::with_capacity(names.len());
            let mut below = Vec::new();
            let names = names.iter().map(|name| name.0);
            datapath.find_below(session, caller, scope, names, |found, ino| {
                entries.push(entry(found));
                below.extend(ino);
            });
            for ino in below {
                // What waits for it is nothing: its coming is all.
                dispatcher.datapath.loader().leave(ino, Box::new(|_| ()));
            }
            Reply::new(0, Results::Entries(entries))
        }
        Body::GetInto(requests) => {
            let copied = requests.iter().map(|get| {
                let request = GetRequest {
                    name: get.name.0,
                    offset: FileOffset(get.offset),
                    length: ByteCount(get.length),
                    area: SegmentId(get.area),
                    target: FileOffset(get.target),
                };
                let (found, copied) = datapath.get_into(session, caller, scope, &request);
                copied_entry(found, copied)
            });
            Reply::new(0, Results::Entries(copied.collect()))
        }
        Body::PutFrom(requests) => {
            must_tell_names(datapath)?;
            let put = requests.iter().map(|put| {
                let request = BeginRequest { name: put.name.0, size: ByteCount(put.length), mode: put.mode };
                let source = (SegmentId(put.area), FileOffset(put.source));
                outcome(datapath.put_from(session, caller, scope, &request, source))
            });
            Reply::new(0, Results::Outcomes(put.collect()))
        }
        Body::Register => {
            let (segment, length) = datapath.register_area(session, ByteCount(request.scope))?;
            let grant = AreaGrant { segment: segment.0.into(), length: length.get().into() };
            Reply::new(0, Results::Bytes(grant.as_bytes().to_vec()))
        }
        Body::Unregister => {
            datapath.unregister_area(session, SegmentId(request.scope))?;
            Reply::new(0, Results::Bytes(Vec::new()))
        }
        Body::Retired => {
            let retired = datapath.retired_segments(session.retired_seen(), RETIRED_AT_ONCE);
            session.set_retired_seen(retired.seen);
            let numbers = retired.segments.iter().map(|segment| segment.0.into()).collect();
            Reply::new(0, Results::Numbers(numbers))
        }
    })
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
        features: (mapping | create).into(),
        packed_max: datapath.packed_max().get().into(),
        area_max: AREA_MAX.get().into(),
        references_max: u32::try_from(REFERENCES_MAX).unwrap_or(u32::MAX).into(),
        kept_back_max: datapath.kept_back_max().get().into(),
        creates_max: u32::try_from(CREATES_MAX).unwrap_or(u32::MAX).into(),
        ..VersionReply::default()
    }
}

fn status(located: Located) -> Status {
    match located {
        Located::Here { .. } => Status::Ok,
        Located::Below => Status::Loadable,
        Located::Packed { .. } => Status::CopyOnly,
        Located::Absent => Status::Absent,
        Located::AskByFile => Status::AskByFile,
        Located::Denied => Status::Denied,
        Located::Invalid => Status::Invalid,
        Located::TooMany => Status::TooMany,
        Located::NoRoom => Status::NoRoom,
        Located::OverQuota => Status::OverQuota,
        Located::Failed => Status::Failed,
    }
}

fn entry(located: Located) -> Entry {
    let bare = Entry::bare(status(located));
    match located {
        Located::Here { segment, version, length } => Entry {
            segment: segment.0.into(),
            version: version.0.into(),
            length: length.get().into(),
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
