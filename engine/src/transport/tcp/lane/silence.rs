//! Whether something is under way on a data connection, and nothing comes by it.

use super::super::frame::{Header, Kind};
use super::super::outbox::{Outgoing, Payload};
use super::Lane;
use crate::error::Error;
use crate::transport::Direction;
use crate::types::RegionId;

/// What was seen of a connection at the last look.
#[derive(Debug, Default)]
pub(super) struct Silence {
    received_bytes: u64,
    /// Looks that were counted since it was not silent.
    looks: u32,
}

/// What a look at a connection has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Look {
    /// Whether anything has come since the look before.
    pub(in super::super) is_heard: bool,
    /// Whether an operation is under way.
    pub(in super::super) is_waiting: bool,
}

impl Look {
    pub(in super::super) fn is_silent(self) -> bool {
        self.is_waiting && !self.is_heard
    }
}

impl Silence {
    fn look(&mut self, received_bytes: u64, is_waiting: bool) -> Look {
        // The count begins anew when the connection ends, which is no word of the peer.
        let look = Look { is_heard: received_bytes > self.received_bytes, is_waiting };
        self.received_bytes = received_bytes;
        if !look.is_silent() {
            self.looks = 0;
        }
        look
    }

    fn count(&mut self) -> u32 {
        self.looks = self.looks.saturating_add(1);
        self.looks
    }
}

impl Lane {
    /// Looks whether anything comes.
    pub(in super::super) fn look(&self) -> Look {
        let received_bytes = self.inbox.lock().received_bytes();
        let is_waiting = !self.state.lock().pending.is_empty();
        self.silence.lock().look(received_bytes, is_waiting)
    }

    /// Whether something has come that is not read yet: then it is this process that is slow.
    pub(in super::super) fn has_unread(&self) -> bool {
        self.stream.has_unread()
    }

    /// It was silent at a look that counts; returns how many that makes since it was not.
    pub(in super::super) fn count_silent_look(&self) -> u32 {
        self.silence.lock().count()
    }

    /// Has the peer say something: it is asked for nothing of a region that nobody has, and nobody waits for the answer.
    /// `operation` is the number of no other.
    pub(in super::super) fn probe(&self, operation: u64) {
        let nothing = Header {
            kind: Kind::Read,
            reason: None,
            is_checked: false,
            operation,
            region: RegionId(u64::MAX),
            registration: 0,
            offset: 0,
            length: 0,
            checksum: 0,
        };
        {
            let mut state = self.state.lock();
            if state.over.is_some() {
                return;
            }
            state.entry.push_back(Outgoing::new(&nothing, Payload::None));
        }
        self.wake();
    }

    /// Ends the lane if all that is under way on it is read: what was sent of a write may still reach the peer, where its memory
    /// may be another's by then. Returns whether it did.
    pub(in super::super) fn leave(&self, error: &Error) -> bool {
        self.fail_if(error, |pending| {
            pending.values().all(|operation| operation.direction == Direction::Read)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The looks at a connection, each with how many count, where each counts at which it is silent.
    fn counts(looks: &[(u64, bool)]) -> Vec<u32> {
        let mut silence = Silence::default();
        let count = |&(received_bytes, is_waiting): &(u64, bool)| {
            if silence.look(received_bytes, is_waiting).is_silent() { silence.count() } else { 0 }
        };
        looks.iter().map(count).collect()
    }

    #[test]
    fn a_connection_is_silent_while_it_waits_and_nothing_comes() {
        assert_eq!(counts(&[(0, true), (0, true), (0, true)]), [1, 2, 3]);
        assert_eq!(counts(&[(0, true), (64, true), (64, true)]), [1, 0, 1]);
        assert_eq!(counts(&[(0, true), (0, false), (0, true)]), [1, 0, 1]);
        assert_eq!(counts(&[(64, true), (0, true)]), [0, 1]);
    }
}
