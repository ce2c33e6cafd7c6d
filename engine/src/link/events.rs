//! What a link tells whoever owns it.

use std::fmt;
use std::sync::Arc;

use super::Link;
use crate::error::Error;
use crate::types::{BoxFuture, PeerId};

/// Which component a message is for. Both ends give the numbers the same meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel(pub u16);

/// What becomes of a request. The words of an `Err` reach the caller as [`Error::Refused`].
pub enum Answer {
    /// It is answered already: the cheap way, for what needs no waiting.
    Now(Result<Vec<u8>, String>),
    /// It is answered by a task of its own. Dropped when the link goes down.
    Later(BoxFuture<'static, Result<Vec<u8>, String>>),
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(result) => f.debug_tuple("Now").field(result).finish(),
            Self::Later(_) => f.write_str("Later(..)"),
        }
    }
}

/// Called from the task that reads the link, so an implementation neither blocks nor waits: what takes long is
/// [`Answer::Later`], or handed to another task.
pub trait LinkEvents: Send + Sync + fmt::Debug {
    /// A link to a peer is up, whoever made it. Before anything of it is received.
    fn connected(&self, link: &Arc<Link>);

    /// The link to `peer` is down, once for each [`LinkEvents::connected`]; a link that follows has a new one.
    fn disconnected(&self, peer: PeerId, cause: &Error);

    /// The peer asks.
    fn request(&self, link: &Arc<Link>, channel: Channel, body: Vec<u8>) -> Answer;

    /// The peer tells, and waits for nothing.
    fn notified(&self, link: &Arc<Link>, channel: Channel, body: Vec<u8>);
}
