//! FOLLOW: clients that wait for a part of an object, off the session threads.
//!
//! Limits: one request waits at most `WAIT_MAX`, after which its client asks again, so that one that was killed ends soon; at
//! most `WAITING_MAX` wait, further ones are answered at once, as if their time were over.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use fuser::{Errno, ReplyIoctl};
use tidefs_control_api::ioctl::{ABI_VERSION, Entry, Flags, Header, Request, Status};
use tidefs_engine::types::{ByteCount, FileOffset};
use zerocopy::IntoBytes;

use super::commands::{entry, scope_of};
use super::errno::errno;
use super::waiter::next_round;
use crate::datapath::{Datapath, Error, FollowRequest, Followed, Located, Session};
use crate::namespace::Ino;

const WAIT_MAX: Duration = Duration::from_millis(200);
const WAITING_MAX: usize = 1024;

/// One wait with its reply.
#[derive(Debug)]
pub(super) struct Waiting {
    session: Arc<Session>,
    scope: Ino,
    name: Box<[u8]>,
    offset: FileOffset,
    length: ByteCount,
    deadline: Instant,
    reply: ReplyIoctl,
}

/// Where waits are left.
#[derive(Clone, Debug)]
pub(super) struct Follower(SyncSender<Waiting>);

impl Follower {
    /// The two ends: the first for session threads, the second for [`run`].
    pub(super) fn new() -> (Self, Receiver<Waiting>) {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        (Self(sender), receiver)
    }
}

/// Answers a request that is known to be one of FOLLOW, at once if there is something to say.
pub(super) fn follow(
    datapath: &Datapath,
    follower: &Follower,
    session: Arc<Session>,
    request: &Request<'_>,
    reply: ReplyIoctl,
) {
    let tidefs_control_api::ioctl::Body::Follow(records) = &request.body else {
        return reply.error(Errno::EINVAL);
    };
    let Some(record) = records.iter().next() else { return answer(datapath, &session, None, reply) };
    let wait = Duration::from_millis(u64::from(record.wait_ms)).min(WAIT_MAX);
    let waiting = Waiting {
        session,
        scope: scope_of(request),
        name: record.name.0.into(),
        offset: FileOffset(record.offset),
        length: ByteCount(record.length),
        deadline: Instant::now() + wait,
        reply,
    };
    let Some(still) = look(datapath, waiting) else { return };
    if wait.is_zero() {
        return give_up(datapath, still);
    }
    if let Err(TrySendError::Full(still) | TrySendError::Disconnected(still)) = follower.0.try_send(still) {
        give_up(datapath, still);
    }
}

/// Answers if there is something to say; else gives the wait back.
fn look(datapath: &Datapath, waiting: Waiting) -> Option<Waiting> {
    let request = FollowRequest { name: &waiting.name, offset: waiting.offset, length: waiting.length };
    let (found, first) = match datapath.follow(&waiting.session, waiting.scope, &request) {
        Followed::NotYet => return Some(waiting),
        Followed::Here(located, first) => (entry(located), first),
        Followed::Else(Located::NoScope) => {
            waiting.reply.error(errno(&Error::Stale));
            return None;
        }
        Followed::Else(located) => (entry(located), 0),
    };
    answer(datapath, &waiting.session, Some((found, first)), waiting.reply);
    None
}

fn give_up(datapath: &Datapath, waiting: Waiting) {
    answer(datapath, &waiting.session, Some((Entry::bare(Status::Absent), 0)), waiting.reply);
}

fn answer(datapath: &Datapath, session: &Session, result: Option<(Entry, u64)>, reply: ReplyIoctl) {
    let flags = if datapath.has_retired_for(session) { Flags::RETIRED } else { Flags::NONE };
    let header = Header {
        version: ABI_VERSION.into(),
        flags: flags.0.into(),
        count: u32::from(result.is_some()).into(),
        scope: result.map_or(0, |(_, first)| first).into(),
    };
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(result.iter().flat_map(|(entry, _)| entry.as_bytes()));
    reply.ioctl(0, &bytes);
}

/// Answers waits until every [`Follower`] is gone.
pub(super) fn run(datapath: &Datapath, arrivals: &Receiver<Waiting>) {
    let mut waiting: Vec<Waiting> = Vec::new();
    while let Some(arrived) = next_round(datapath, arrivals, waiting.len(), WAITING_MAX) {
        waiting.extend(arrived);
        let now = Instant::now();
        let mut still = Vec::with_capacity(waiting.len());
        for one in waiting.drain(..) {
            match look(datapath, one) {
                Some(one) if now < one.deadline => still.push(one),
                Some(one) => give_up(datapath, one),
                None => {}
            }
        }
        waiting = still;
    }
}
