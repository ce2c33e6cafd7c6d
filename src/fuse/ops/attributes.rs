//! Attributes of files, and of the whole mount.
//!
//! Hot path: getattr.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileHandle, INodeNo, ReplyAttr, ReplyStatfs, Request, TimeOrNow};
use tidefs_engine::types::{ByteCount, PAGE};

use super::{Dispatcher, caller, fail};
use crate::datapath::{AttributeChange, Error, HandleId, News, SizeChange, Stat};
use crate::fuse::attributes::{Lifetimes, file_attr, ino};
use crate::fuse::control_files::ControlFiles;
use crate::fuse::dispatch::after_telling;
use crate::fuse::fast_files;
use crate::namespace::{NAME_LENGTH_MAX, nanos_of};
use crate::tier::scratch::Wait;

fn reply_attr(
    lifetimes: &Lifetimes,
    outcome: Result<Stat, Error>,
    operation: &'static str,
    reply: ReplyAttr,
) {
    match outcome {
        Ok(stat) => reply.attr(&lifetimes.attributes(&stat), &file_attr(&stat)),
        Err(error) => reply.error(fail(operation, &error)),
    }
}

pub(in crate::fuse) fn getattr(
    dispatcher: &Dispatcher,
    request: &Request,
    number: INodeNo,
    reply: ReplyAttr,
) {
    if fast_files::segment_of(number).is_some() {
        let found = fast_files::segment_attributes(&dispatcher.control, &dispatcher.datapath, number);
        return match found {
            Some(attributes) => reply.attr(&Duration::MAX, &attributes),
            None => reply.error(Errno::ESTALE),
        };
    }
    if ControlFiles::owns(number) {
        return reply.attr(&dispatcher.lifetimes.settled, &dispatcher.control.attributes(number));
    }
    let outcome = dispatcher.datapath.getattr_by_name(&caller(request), ino(number));
    reply_attr(&dispatcher.lifetimes, outcome, "getattr", reply);
}

/// What setattr changes, from what the kernel sends.
pub(in crate::fuse) fn change_of(
    (mode, uid, gid, size): (Option<u32>, Option<u32>, Option<u32>, Option<u64>),
    (atime, mtime): (Option<TimeOrNow>, Option<TimeOrNow>),
    handle: Option<FileHandle>,
) -> AttributeChange {
    let nanos = |time: TimeOrNow| match time {
        TimeOrNow::SpecificTime(time) => nanos_as_sent(time),
        TimeOrNow::Now => nanos_of(SystemTime::now()),
    };
    AttributeChange {
        mode,
        uid,
        gid,
        size: size.map(ByteCount),
        atime_ns: atime.map(nanos),
        mtime_ns: mtime.map(nanos),
        through: handle.map(|handle| HandleId(handle.0)),
    }
}

/// The time that the kernel sent: seconds, and nanoseconds that count upwards from them also before 1970. fuser 0.18 takes them
/// off there.
fn nanos_as_sent(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(_) => nanos_of(time),
        Err(before) => {
            let before = before.duration();
            let seconds_ns = i64::try_from(before.as_secs()).ok().and_then(|s| s.checked_mul(-1_000_000_000));
            seconds_ns.map_or(i64::MIN, |ns| ns.saturating_add(before.subsec_nanos().into()))
        }
    }
}

pub(in crate::fuse) fn setattr(
    dispatcher: &Dispatcher,
    request: &Request,
    number: INodeNo,
    change: &AttributeChange,
    reply: ReplyAttr,
) {
    if ControlFiles::owns(number) {
        return reply.error(Errno::EPERM);
    }
    let (datapath, lifetimes) = (Arc::clone(&dispatcher.datapath), dispatcher.lifetimes);
    let (caller, change) = (caller(request), *change);
    let is_shared = change.is_of_access() && datapath.is_in_cluster();
    if is_shared && datapath.is_agreed_on(ino(number)) {
        let Some(runtime) = datapath.cluster().map(|side| side.runtime().clone()) else {
            // It is to be a member, and is none yet.
            return reply_attr(&lifetimes, Err(Error::NotAgreed), "setattr", reply);
        };
        runtime.spawn(async move {
            let outcome = datapath.agree_on_access(&caller, ino(number), &change).await;
            reply_attr(&lifetimes, outcome, "setattr", reply);
        });
        return;
    }
    let is_long_to = |size| match change.through {
        Some(_) => datapath.is_long_to_change(ino(number), SizeChange::Set(size)),
        None => datapath.is_long_to_truncate(ino(number), size),
    };
    let is_long = change.size.is_some_and(is_long_to);
    if change.size == Some(ByteCount::ZERO) && !is_shared && !is_long {
        match datapath.setattr(&caller, ino(number), &change) {
            // Others were faster, and it is cut where it is.
            Err(Error::NoObject) if datapath.must_load(ino(number)) => {}
            outcome => return reply_attr(&lifetimes, outcome, "setattr", reply),
        }
    }
    let wait = if is_long { datapath.slot_file_wait() } else { Wait::Patiently };
    let rest = move |reply: ReplyAttr, is_here: bool| {
        if is_shared && !is_here {
            // Its attributes are those of its bytes, which are on other members and cannot be had.
            return reply_attr(&lifetimes, Err(Error::NoObject), "setattr", reply);
        }
        let outcome = datapath.setattr_within(&caller, ino(number), &change, wait);
        let news = match &outcome {
            Ok(_) if is_shared => datapath.news_of_access(ino(number)),
            _ => News::default(),
        };
        after_telling(&datapath, news, move || reply_attr(&lifetimes, outcome, "setattr", reply));
    };
    // What is brought back is cut by the thread that waited for it.
    if is_long && !dispatcher.datapath.must_load(ino(number)) {
        dispatcher.at_leisure("setattr", reply, move |reply| rest(reply, true));
    } else {
        dispatcher.with_object(ino(number), "setattr", reply, rest);
    }
}

pub(in crate::fuse) fn statfs(dispatcher: &Dispatcher, number: INodeNo, reply: ReplyStatfs) {
    match dispatcher.datapath.statfs(ino(number)) {
        Ok(space) => {
            let blocks = space.capacity.get() / PAGE.get();
            let free = space.free.get() / PAGE.get();
            let page = u32::try_from(PAGE.get()).unwrap_or(4096);
            let name_length = u32::try_from(NAME_LENGTH_MAX).unwrap_or(255);
            // A node costs no page of its own, so as many more can be made as there are free pages.
            reply.statfs(blocks, free, free, space.nodes + free, free, page, name_length, page);
        }
        Err(error) => reply.error(fail("statfs", &error)),
    }
}
