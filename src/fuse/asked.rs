//! Requests of the fast path with names that nothing is known of here: other members are asked for all of them at once, and the
//! request is answered then, off the session threads.
//!
//! Limits: [`LEVELS_MAX`] questions one after the other, each as long as a look-up waits for other members; clients wait for
//! their request, so that there are no more of these than threads of clients.

use std::sync::Arc;

use fuser::ReplyIoctl;
use tidefs_control_api::ioctl::{Body, Command, Flags, HEADER_BYTES, Request};

use super::begin::begin;
use super::ioctl::{Reply, answer, reply_with, scope_of, with_request};
use crate::datapath::{Caller, Datapath, Session};
use crate::namespace::{Ino, Name};

/// Levels of directories of other members that one request finds its way through.
const LEVELS_MAX: usize = 8;
/// Names that a session thread begins to ask for itself, having others to serve, and whose objects are loaded then: who asks for
/// more says which come first.
const BEGUN_MAX: usize = 64;

/// A request with names that other members have to be asked for.
pub(super) struct Asked {
    pub(super) session: Arc<Session>,
    pub(super) caller: Caller,
    pub(super) command: Command,
    pub(super) payload: Box<[u8]>,
    pub(super) room: usize,
}

impl Asked {
    /// Asks for all of the names at once and answers then, off the session threads; or at once with `bytes`, when there is
    /// nothing to ask.
    pub(super) fn answer_later(
        self,
        datapath: &Arc<Datapath>,
        first: &Reply,
        bytes: &[u8],
        reply: ReplyIoctl,
    ) {
        let unknown = self.unknown(datapath);
        let runtime = datapath.cluster().map(|side| side.runtime().clone());
        let Some(runtime) = runtime.filter(|_| !unknown.is_empty()) else {
            return reply_with(datapath, self.command, Ok(()), bytes, self.room, reply);
        };
        if self.command == Command::Lookup {
            // They are taken again.
            datapath.give_back(&self.session, std::iter::once((first.first, first.count as u64)));
        }
        let datapath = Arc::clone(datapath);
        let are_few = unknown.len() <= BEGUN_MAX;
        let work = async move {
            let mut unknown = unknown;
            // A directory first, then what is in it.
            for _ in 0..LEVELS_MAX {
                datapath.ask(unknown.clone()).await;
                let left = self.unknown(&datapath);
                if left.is_empty() || left == unknown {
                    break;
                }
                unknown = left;
            }
            if are_few {
                self.load_ahead(&datapath);
            }
            let mut bytes = vec![0; HEADER_BYTES];
            let answered =
                answer(&datapath, &self.session, &self.caller, self.command, &self.payload, &mut bytes);
            reply_with(&datapath, self.command, answered.map(drop), &bytes, self.room, reply);
        };
        if are_few {
            begin(&runtime, work);
        } else {
            runtime.spawn(work);
        }
    }

    /// Who looks up objects that are below memory opens their files next: they are on their way when that comes.
    fn load_ahead(&self, datapath: &Arc<Datapath>) {
        let find = |request: &Request<'_>| {
            let mut below = Vec::new();
            if let Body::Lookup(names) = &request.body
                && !request.flags.has(Flags::PROBE)
            {
                let names = names.iter().map(|name| name.0);
                datapath.find_below(&self.session, scope_of(request), names, |_, ino| below.extend(ino));
            }
            below
        };
        // It was understood before.
        let below = with_request(datapath, &self.session, self.command, &self.payload, |request, _| {
            Ok(find(request))
        });
        datapath.prefetch(&below.unwrap_or_default());
    }

    fn unknown(&self, datapath: &Datapath) -> Vec<(Ino, Name)> {
        let names = |request: &Request<'_>| match &request.body {
            Body::Lookup(names) | Body::Prefix(names) | Body::Prefetch(names) => {
                let names = names.iter().map(|name| name.0);
                datapath.unknown_elsewhere(&self.session, scope_of(request), names)
            }
            _ => Vec::new(),
        };
        // It was understood before.
        with_request(datapath, &self.session, self.command, &self.payload, |request, _| Ok(names(request)))
            .unwrap_or_default()
    }
}
