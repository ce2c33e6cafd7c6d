//! What this member knows of each other one: whether it is there, and what it is still to be told.
//!
//! A member is *suspect* while no connection to it stands, after the first attempts to make one; it is not waited for then.
//! What it has to be told is owed, up to a bound; beyond that it is told to ask, and to announce, everything again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tidefs_engine::engine::PeerDescriptor;
use tidefs_engine::types::{MemberId, PeerId};
use tokio::sync::{Semaphore, oneshot};

use super::batcher::{Batcher, Item};
use super::catalog::wire::{Outcome, Revocation};
use super::changing::Sent;
use super::member::Member;
use super::object::Stamp;
use super::shards::KeyId;

/// A key of which the other owner has to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dirty {
    pub(super) key: KeyId,
    /// The version of which the last copy went, if nothing is left.
    pub(super) gone: Stamp,
}

impl Item for Dirty {
    fn weight(&self) -> usize {
        128
    }
}

impl Item for Revocation {
    fn weight(&self) -> usize {
        match self {
            Self::Forget { shards, .. } => 16 + 2 * shards.len(),
            Self::Inherit { keys } => 16 + 20 * keys.len(),
            _ => 32 + self.path().map_or(0, <[u8]>::len),
        }
    }
}

/// How a member is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Not yet, for the first time, since then.
    Connecting(Duration),
    Up,
    /// Lost then.
    Down(Duration),
}

/// Things that a member has to be told when it is back.
#[derive(Debug)]
pub(super) struct Owed<T> {
    pub(super) items: VecDeque<T>,
    /// There was too much: everything.
    pub(super) is_all: bool,
    /// Who waits until it is told. Their channels end without a word when it is not.
    waiting: Vec<oneshot::Sender<()>>,
}

impl<T> Default for Owed<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), is_all: false, waiting: Vec::new() }
    }
}

impl<T> Owed<T> {
    /// Everything.
    pub(super) fn all() -> Self {
        Self { is_all: true, ..Self::default() }
    }

    /// Everything, whatever it was before.
    pub(super) fn add_everything(&mut self) {
        self.items = VecDeque::new();
        self.is_all = true;
    }

    pub(super) fn add(&mut self, item: T, limit: usize) {
        if self.items.len() >= limit {
            self.add_everything();
        }
        if !self.is_all {
            self.items.push_back(item);
        }
    }

    pub(super) fn add_all(&mut self, items: impl IntoIterator<Item = T>, limit: usize) {
        items.into_iter().for_each(|item| self.add(item, limit));
    }

    /// A channel that gets a message when all of this was told, as that of a [`Batcher`].
    pub(super) fn wait(&mut self) -> oneshot::Receiver<()> {
        let (done, receiver) = oneshot::channel();
        self.waiting.push(done);
        receiver
    }

    /// All of it was told.
    pub(super) fn settle(self) {
        for done in self.waiting {
            // Who has given up does not listen.
            let _ = done.send(());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty() && !self.is_all
    }

    pub(super) fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

/// Where that goes which a member is told of one kind: on its way, or owed.
pub(super) type Queues<'a, T> = (&'a Arc<Batcher<T, ()>>, &'a mut Owed<T>);

/// Another member.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    pub(super) descriptor: PeerDescriptor,
    /// Whether it is in the view.
    pub(super) is_registered: bool,
    pub(super) link: Link,
    /// It did not answer in time, though its connection stands.
    pub(super) is_slow: bool,
    /// When it last gave no answer to a reader though it was known to be lost.
    pub(super) silent_at: Option<Duration>,
    /// Why it could not be connected to last.
    pub(super) trouble: Option<String>,
    /// It was asked whether it answers, and did not yet.
    pub(super) is_probed: bool,
    /// Since when it is suspect or out of the view.
    pub(super) lost_at: Option<Duration>,
    /// What it held was dropped since then.
    pub(super) is_dropped: bool,
    /// It said that it leaves, and was not started again since.
    pub(super) has_left: bool,
    /// When it was first lost since all was announced to it.
    pub(super) unheard_since: Option<Duration>,
    /// The same since the last time that this member began to announce all to it.
    pub(super) missed_since: Option<Duration>,
    pub(super) owed: Owed<Revocation>,
    pub(super) debts: Owed<Dirty>,
    /// One pays them at a time: what is on its way is not among them any more, and is not known there yet.
    pub(super) paying: Arc<Semaphore>,
    pub(super) is_settling: bool,
    /// It was started again, and has not announced all that it holds since, nor was it lost.
    pub(super) is_new_start: bool,
    /// It was told everything, or is just being told, and has not announced since what it holds.
    pub(super) is_announcing: bool,
    /// It is just being told everything, and may not have heard that.
    pub(super) is_hearing_all: bool,
    /// What somebody waits for.
    pub(super) changes: Arc<Batcher<Sent, Outcome>>,
    /// What nobody does: in messages of its own, as one that waits for a member that hangs is answered late.
    pub(super) notes: Arc<Batcher<Sent, Outcome>>,
    pub(super) revocations: Arc<Batcher<Revocation, ()>>,
    pub(super) dirty: Arc<Batcher<Dirty, ()>>,
    pub(super) read_rate: f64,
    pub(super) reads_under_way: usize,
}

impl Peer {
    /// A later start of the member is there.
    pub(super) fn start_again(&mut self, descriptor: PeerDescriptor, now: Duration) {
        tracing::info!(old = %self.id, new = %descriptor.id, "a member was started again");
        self.id = descriptor.id;
        self.descriptor = descriptor;
        self.link = Link::Connecting(now);
        self.is_slow = false;
        self.has_left = false;
        self.is_new_start = true;
        self.is_announcing = false;
        // It remembers nothing of what it was answered.
        self.owed = Owed::default();
        self.debts = Owed::default();
    }

    /// Whether `member`, as a view knows it, is this start or a later one.
    pub(super) fn is_it_or_later(&self, member: &Member) -> bool {
        member.engine.id.incarnation >= self.id.incarnation
    }

    /// Whether it is still to be told something.
    pub(super) fn is_owed_anything(&self) -> bool {
        !self.owed.is_empty() || !self.debts.is_empty()
    }

    /// Whether it hears what it is told, as far as is known.
    pub(super) fn is_there(&self) -> bool {
        self.link == Link::Up && !self.is_slow
    }

    /// Whether it is still to be told everything, so that what it has announced by now is not all.
    pub(super) fn has_yet_to_hear_all(&self) -> bool {
        self.owed.is_all || self.is_hearing_all
    }

    /// Whether it is there, and of what was decided here it misses at most what it is just being told.
    pub(super) fn owes_nothing(&self) -> bool {
        self.is_there() && self.debts.is_empty()
    }

    /// Whether it is there, and knows all that this member decided and it is to know, too.
    pub(super) fn has_heard_all(&self) -> bool {
        self.owes_nothing() && self.dirty.is_idle() && self.paying.available_permits() > 0
    }

    /// From `since` on this member may not have heard what that one decided.
    pub(super) fn miss(&mut self, since: Duration) {
        for known in [&mut self.unheard_since, &mut self.missed_since] {
            *known = Some(known.map_or(since, |known| known.min(since)));
        }
    }

    /// All is announced to it from now on.
    pub(super) fn begin_to_announce(&mut self) {
        self.missed_since = None;
    }

    /// All was announced to it. That makes up for nothing that was missed since it began.
    pub(super) fn was_announced(&mut self) {
        self.unheard_since = self.missed_since;
    }

    /// Whether it is not to be waited for.
    pub(super) fn is_suspect(&self, now: Duration, patience: Duration) -> bool {
        self.is_lost(now, patience) || self.is_slow
    }

    /// Whether there is no connection to it, and was none for so long.
    pub(super) fn is_lost(&self, now: Duration, patience: Duration) -> bool {
        match self.link {
            Link::Up => false,
            Link::Connecting(since) => now.saturating_sub(since) > patience,
            Link::Down(_) => true,
        }
    }

    /// It is lost from now on; who was out of the view before, and there, was not lost before either.
    pub(super) fn lose(&mut self, now: Duration) {
        if self.is_only_unregistered() {
            self.lost_at = Some(now);
        }
        self.lost_at.get_or_insert(now);
        // Nobody waits for who is lost.
        self.owed.waiting.clear();
        self.debts.waiting.clear();
    }

    /// Whether only the coordinator has lost it: it answers, and what it holds is there.
    pub(super) fn is_only_unregistered(&self) -> bool {
        !self.is_registered && !self.has_left && self.link == Link::Up && !self.is_slow
    }

    /// Whether what it held is forgotten, and it is not back.
    pub(super) fn is_forgotten(&self) -> bool {
        self.has_left || (self.is_dropped && self.link != Link::Up)
    }
}

/// All that were met and are not gone.
pub(super) type Peers = BTreeMap<MemberId, Peer>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_bounded_and_then_everything() {
        let mut owed = Owed::default();
        for item in 0..3 {
            owed.add(item, 3);
        }
        assert_eq!((owed.items.len(), owed.is_all), (3, false));
        owed.add(3, 3);
        owed.add(4, 3);
        assert_eq!((owed.items.len(), owed.is_all), (0, true));
        assert!(!owed.is_empty() && owed.take().is_all && owed.is_empty());
    }
}
