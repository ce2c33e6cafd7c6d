//! Hot path: the ioctls of the fast path: decode, call, answer.
//!
//! What is not understood is refused as a whole, before anything is done; what fails is told entry by entry. What each command
//! does is in [`super::commands`].

use std::cell::RefCell;
use std::mem;
use std::sync::{Arc, Once};

use fuser::{Errno, FileHandle, ReplyIoctl, Request as KernelRequest};
use tidefs_control_api::ioctl::{
    ABI_VERSION, AREA_REQUEST_MAX, AreaCall, AreaGrant, Command, Entry, Flags, HEADER_BYTES, Header, Outcome,
    Refusal, Request,
};
use tidefs_engine::types::{ByteCount, FileOffset, SegmentId};
use zerocopy::IntoBytes;

use super::asked::Asked;
use super::commands::{Fault, Reply, carry_out, take_back};
use super::dispatch::Dispatcher;
use super::errno::errno;
use super::follow::follow;
use super::leisure::{cuts_much, is_long};
use super::ops::caller;
use crate::datapath::{Caller, Datapath, Error, Remains, Session};

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
        return dispatcher.at_leisure("ioctl", reply, move |reply| {
            answer_at_leisure(&datapath, &session, &caller, command, (&*payload, room), reply);
        });
    }
    BYTES.with_borrow_mut(|bytes| {
        bytes.clear();
        bytes.resize(HEADER_BYTES, 0);
        let (datapath, caller) = (&dispatcher.datapath, caller(request));
        let answered = with_request(datapath, &session, command, payload, |request, place| {
            if cuts_much(&session, request) {
                return Ok(None);
            }
            carry_out_in_place(datapath, &session, &caller, (request, place), room, bytes).map(Some)
        });
        match answered {
            Ok(None) => {
                let (this, payload) = (Arc::clone(datapath), Box::<[u8]>::from(payload));
                datapath.answer_when_freed(Remains::default(), move |is_stopping| {
                    if is_stopping {
                        // What is begun is given up with the mount.
                        return reply.error(errno(&Error::Overloaded));
                    }
                    answer_at_leisure(&this, &session, &caller, command, (&*payload, room), reply);
                });
            }
            Ok(Some(first)) if first.has_unknown && datapath.cluster().is_some() => {
                let asked = Asked { session, caller, command, payload: payload.into(), room };
                asked.answer_later(datapath, &first, bytes, reply);
            }
            Ok(Some(mut done)) if !done.remains.is_empty() => {
                let (this, mut bytes) = (Arc::clone(datapath), bytes.clone());
                datapath.answer_when_freed(mem::take(&mut done.remains), move |_| {
                    // Segments may have gone with that of which its client is to be told.
                    finish(&this, &session, &done, &mut bytes);
                    reply_with(&this, command, Ok(()), &bytes, room, reply);
                });
            }
            answered => reply_with(datapath, command, answered.map(drop), bytes, room, reply),
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
        carry_out_in_place(datapath, session, caller, (request, place), room, bytes)
    })
}

/// Does a request, of which `place` says where its results lie if not behind its header, and puts its reply together.
fn carry_out_in_place(
    datapath: &Arc<Datapath>,
    session: &Session,
    caller: &Caller,
    (request, place): (&Request<'_>, Option<&AreaCall>),
    room: usize,
    bytes: &mut Vec<u8>,
) -> Result<Reply, Fault> {
    let reply = carry_out(datapath, session, caller, request, (&mut *bytes, room))?;
    // What has no results tells none in an area that may be gone by now.
    if let Some(place) = place.filter(|_| bytes.len() > HEADER_BYTES) {
        let (area, target) = (SegmentId(place.area.get()), FileOffset(place.reply_offset.get()));
        if let Err(error) = datapath.write_area(session, area, target, &bytes[HEADER_BYTES..]) {
            take_back(datapath, session, reply.first, reply.count);
            datapath.free_remains(reply.remains);
            return Err(error.into());
        }
        bytes.truncate(HEADER_BYTES);
    }
    finish(datapath, session, &reply, bytes);
    Ok(reply)
}

/// Does what `payload` asks for, frees what that leaves, and answers. By a thread that others do not wait for.
fn answer_at_leisure(
    datapath: &Arc<Datapath>,
    session: &Session,
    caller: &Caller,
    command: Command,
    (payload, room): (&[u8], usize),
    reply: ReplyIoctl,
) {
    let mut bytes = vec![0; HEADER_BYTES];
    let answered = answer(datapath, session, caller, command, (payload, room), &mut bytes);
    let answered = answered.map(|mut done| {
        datapath.free_remains(mem::take(&mut done.remains));
        // Segments may have gone with that of which its client is to be told.
        finish(datapath, session, &done, &mut bytes);
    });
    reply_with(datapath, command, answered, &bytes, room, reply);
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
