//! Requests of the fast path with names that nothing is known of here: other members are asked for all of them at once, and the
//! request is answered then.
//!
//! Limits: [`LEVELS_MAX`] questions one after the other, each as long as a look-up waits for other members; clients wait for
//! their request, so that there are no more of these than threads of clients.
//!
//! Threads: a session thread sends a question of up to [`BEGUN_MAX`] names itself. As soon as there is an answer to wait for, or a
//! longer question to ask, the runtime goes on; when there is neither, as this member decides about all of the names, the
//! session thread answers.

use std::sync::Arc;

use fuser::ReplyIoctl;
use tidefs_control_api::ioctl::{Body, Command, Flags, HEADER_BYTES, Header, Request};
use tokio::task::yield_now;

use super::begin::begin;
use super::commands::{Reply, scope_of};
use super::ioctl::{answer, reply_with, with_request};
use crate::datapath::{Caller, Datapath, Session, UnknownNames};
use crate::namespace::{Ino, Name};

/// Levels of directories of other members that one request finds its way through.
const LEVELS_MAX: usize = 8;
/// Names in one question that a session thread asks itself, having others to serve, and whose objects are loaded then: who asks
/// for more says which come first.
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
    /// Asks for all of the names at once and answers then; or at once with `bytes`, when there is nothing to ask. Waits for
    /// nothing.
    pub(super) fn answer_later(
        self,
        datapath: &Arc<Datapath>,
        first: &Reply,
        bytes: &[u8],
        reply: ReplyIoctl,
    ) {
        let unknown = self.unknown(datapath);
        let runtime = datapath.cluster().map(|side| side.runtime().clone());
        let Some(runtime) = runtime.filter(|_| !unknown.parts.is_empty()) else {
            return reply_with(datapath, self.command, Ok(()), bytes, self.room, reply);
        };
        if self.command == Command::Lookup {
            // They are taken again.
            let again = std::iter::once((first.first, first.count as u64));
            datapath.free_remains(datapath.give_back(&self.session, again));
        }
        let datapath = Arc::clone(datapath);
        begin(&runtime, async move {
            let asked = self.ask(&datapath, unknown).await;
            self.load_ahead(&datapath, &asked);
            let mut bytes = vec![0; HEADER_BYTES];
            let request = (&*self.payload, self.room);
            let answered = answer(&datapath, &self.session, &self.caller, self.command, request, &mut bytes);
            reply_with(&datapath, self.command, answered.map(drop), &bytes, self.room, reply);
        });
    }

    /// Asks for names, and for what comes to light behind them: a directory first, then what is in it. Returns all that was
    /// asked for; nothing when it was too much at once to be loaded.
    async fn ask(&self, datapath: &Datapath, mut unknown: UnknownNames) -> Vec<(Ino, Name)> {
        let (mut asked, mut are_few) = (Vec::new(), true);
        for _ in 0..LEVELS_MAX {
            let UnknownNames { parts, hides_more } = unknown;
            if parts.len() > BEGUN_MAX {
                are_few = false;
                // From here on it is for the runtime.
                yield_now().await;
            }
            let mut before = parts.clone();
            let are_settled = datapath.ask(parts).await;
            // Nothing is behind what was asked for, and all of it is known.
            let is_over = are_settled && !hides_more;
            unknown = if is_over { UnknownNames::default() } else { self.unknown(datapath) };
            let is_over = unknown.parts.is_empty() || unknown.parts == before;
            asked.append(&mut before);
            if is_over {
                break;
            }
        }
        if are_few { asked } else { Vec::new() }
    }

    /// Who looks up objects of other members opens their files next: they are on their way when that comes. What was known
    /// before is left where it is, and who asks for more than a few says which come first.
    fn load_ahead(&self, datapath: &Datapath, asked: &[(Ino, Name)]) {
        let is_probe = Header::of_request(self.command, &self.payload)
            .is_ok_and(|header| Flags(header.flags.get()).has(Flags::PROBE));
        if self.command != Command::Lookup || is_probe {
            return;
        }
        let shown = datapath.shown_elsewhere(&self.session, asked);
        if shown.len() <= BEGUN_MAX {
            datapath.prefetch(&shown);
        }
    }

    fn unknown(&self, datapath: &Datapath) -> UnknownNames {
        let names = |request: &Request<'_>| match &request.body {
            Body::Lookup(names) | Body::Prefix(names) | Body::Prefetch(names) => {
                let names = names.iter().map(|name| name.0);
                datapath.unknown_elsewhere(&self.session, scope_of(request), names)
            }
            _ => UnknownNames::default(),
        };
        // It was understood before.
        with_request(datapath, &self.session, self.command, &self.payload, |request, _| Ok(names(request)))
            .unwrap_or_default()
    }
}
