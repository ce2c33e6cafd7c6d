//! Who is there: connections to all members, what happens when one is lost or comes back, and what is done now and then.
//!
//! Invariants
//! - A member counts as back only when it was told all that it is owed, and need not announce once more what it holds. That it was
//!   told everything, and in how many attempts, ends with what it announces once it has heard that.
//! - What a lost member held is forgotten when its grace is over, unless it is back.
//! - Who stood still itself announces everything again, and catches up with who decided in its place.
//!
//! Limits: of what is forgotten others are served after each [`DROPPED_AT_ONCE`] copies.
//! Threads: tasks of the runtime, one for each connection and one for what is done now and then.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidefs_engine::error::Error;
use tidefs_engine::types::{MemberId, PeerId};
use tokio::time::sleep;

use super::batcher::Batcher;
use super::catalog::owner::Owner;
use super::catalog::wire::{Outcome, Revocation};
use super::changing::Sent;
use super::core::{Core, host_slept};
use super::peers::{Link, Owed, Peer};
use super::revoking::messages_of;
use super::shards::{Owners, Shard};

/// Pause after the first failed attempt to connect; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Shards that are looked through in each round for keys whose copies would all leave first.
const LOOKED_THROUGH: usize = 128;
/// Copies of a lost member that are forgotten before others are served for a [`BREATH`]: nobody waits for that, and a thread
/// on which something is always ready looks at its sockets now and then only.
const DROPPED_AT_ONCE: usize = 2048;
const BREATH: Duration = Duration::from_millis(1);

impl Core {
    /// Keeps a connection to a member, for as long as the peer with these `changes` stands for it.
    pub(super) async fn keep_connected(
        self: Arc<Self>,
        member: MemberId,
        changes: Arc<Batcher<Sent, Outcome>>,
    ) {
        let mut pause = FIRST_PAUSE;
        loop {
            let (descriptor, is_wanted) = match self.peers.lock().get(&member) {
                Some(peer) if Arc::ptr_eq(&peer.changes, &changes) => {
                    (peer.descriptor.clone(), peer.is_registered && peer.link != Link::Up)
                }
                // It is gone, or was, and another one sees to that.
                _ => return,
            };
            if is_wanted {
                let deadline = self.within(self.config.timings.silence);
                match self.carrier.connect(descriptor.clone(), deadline).await {
                    Ok(()) => {
                        self.link_found(descriptor.id);
                        pause = FIRST_PAUSE;
                    }
                    Err(error) => {
                        self.note_trouble(descriptor.id, &error.to_string());
                        self.still_down(descriptor.id);
                    }
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(self.config.timings.reconnect);
        }
    }

    /// Remembers why a peer is not connected to, for operators, and tells a cause that is new.
    fn note_trouble(&self, peer: PeerId, cause: &str) {
        let mut peers = self.peers.lock();
        let Some(known) = peers.get_mut(&peer.member).filter(|known| known.id == peer) else { return };
        if known.trouble.as_deref() != Some(cause) {
            known.trouble = Some(cause.to_owned());
            drop(peers);
            tracing::warn!(member = %peer.member, cause, "a member cannot be connected to");
        }
    }

    /// An attempt to connect failed: who was never reached is lost, too.
    fn still_down(self: &Arc<Self>, peer: PeerId) {
        let now = self.now();
        let is_news = match self.peers.lock().get_mut(&peer.member) {
            Some(known) if known.id == peer && matches!(known.link, Link::Connecting(_)) => {
                known.link = Link::Down(now);
                known.lose(now);
                true
            }
            _ => false,
        };
        if is_news {
            self.lose(peer.member);
        }
    }

    /// A connection to a peer stands, and was told of before its end.
    pub(super) fn link_up(self: &Arc<Self>, peer: PeerId) {
        self.note_link(peer, || true);
    }

    /// A connection to a peer was made or found, and may have ended since, which was told already then.
    pub(super) fn link_found(self: &Arc<Self>, peer: PeerId) {
        self.note_link(peer, || self.carrier.is_connected(peer));
    }

    fn note_link(self: &Arc<Self>, peer: PeerId, still_stands: impl FnOnce() -> bool) {
        let (is_back, was_dropped, is_registered) = {
            // Who is told of its end waits for this.
            let mut peers = self.peers.lock();
            if !still_stands() {
                return;
            }
            self.bring_back(&mut peers, peer.member, |gone| gone.id() == peer);
            self.meet_early(&mut peers, peer);
            let Some(known) = peers.get_mut(&peer.member).filter(|known| known.id == peer) else { return };
            if known.link == Link::Up {
                return;
            }
            let is_back = matches!(known.link, Link::Down(_));
            known.link = Link::Up;
            known.is_slow = false;
            known.trouble = None;
            if known.is_registered {
                known.lost_at = None;
            }
            let was_dropped = std::mem::take(&mut known.is_dropped);
            if was_dropped {
                known.owed = Owed::all();
            }
            (is_back, was_dropped, known.is_registered)
        };
        tracing::info!(%peer, is_back, was_dropped, "a member is there");
        if is_back {
            self.regain(peer);
        } else if is_registered {
            // An earlier start of it may have been lost.
            self.trust(&mut self.owner.lock(), peer);
        }
    }

    /// A member is not held for lost any more, unless it was lost again meanwhile.
    fn trust(&self, owner: &mut Owner, peer: PeerId) {
        let is_it = |known: &Peer| known.id == peer && known.link == Link::Up && !known.is_slow;
        if self.peers.lock().get(&peer.member).is_some_and(is_it) {
            owner.set_suspect(peer.member, false);
        }
    }

    /// A member that was lost answers again.
    pub(super) fn regain(self: &Arc<Self>, peer: PeerId) {
        let member = peer.member;
        if self.peers.lock().get(&member).is_some_and(|known| known.id == peer && known.has_left) {
            // Its connection stands for a moment more. What it held is forgotten.
            return;
        }
        let is_backup_of_mine = {
            let map = Arc::clone(&self.seen().map);
            let me = self.me.member;
            Shard::all()
                .filter_map(|shard| map.owners(shard))
                .any(|owners| owners.primary == me && owners.backup == Some(member))
        };
        let fall = {
            let mut owner = self.owner.lock();
            owner.meet(peer);
            self.trust(&mut owner, peer);
            is_backup_of_mine.then(|| owner.fall_behind(member))
        };
        if let Some(fall) = fall {
            self.spawn(Arc::clone(self).catch_up(member, fall));
        }
        self.spawn(Arc::clone(self).settle_up(member));
    }

    /// The connection to a peer is gone.
    pub(super) fn link_down(self: &Arc<Self>, peer: PeerId, cause: &Error) {
        let now = self.now();
        let is_news = match self.peers.lock().get_mut(&peer.member) {
            Some(known) if known.id == peer && !matches!(known.link, Link::Down(_)) => {
                // While it is known how it was before.
                known.lose(now);
                known.link = Link::Down(now);
                known.is_new_start = false;
                known.miss(now);
                true
            }
            _ => false,
        };
        // Once the link is down: what is lent from here on is taken back by who lends it.
        self.drop_loans_of(peer);
        if !is_news {
            return;
        }
        tracing::warn!(%peer, %cause, "a member is lost");
        self.lose(peer.member);
    }

    /// A member is not waited for any more. What it answered may be wrong from now on.
    pub(super) fn lose(self: &Arc<Self>, member: MemberId) {
        self.note_move();
        let seen = self.seen();
        let owned = |is_wanted: &dyn Fn(Owners) -> bool| -> Vec<Shard> {
            Shard::all().filter(|&shard| seen.map.owners(shard).is_some_and(is_wanted)).collect()
        };
        let now = self.now();
        {
            let mut owner = self.owner.lock();
            owner.set_suspect(member, true);
            owner.note_contact(member, now);
            owner.give_up_on(member);
        }
        self.forget_answers(&owned(&|owners| owners.contains(member)));
        let me = Some(self.me.member);
        let mine = owned(&|owners| owners.primary == member && owners.backup == me);
        self.take_over(mine.into_iter().collect(), seen.view.number);
    }

    /// Tells a member what it is owed, and what it missed.
    pub(super) async fn settle_up(self: Arc<Self>, member: MemberId) {
        {
            let mut peers = self.peers.lock();
            let Some(peer) = peers.get_mut(&member).filter(|peer| !peer.is_settling) else { return };
            peer.is_settling = true;
        }
        let is_paid = self.pay_debts(member).await;
        let mut is_all_told = false;
        loop {
            let mut owed = match self.peers.lock().get_mut(&member) {
                Some(peer) if !peer.owed.is_empty() && peer.link == Link::Up => {
                    // Until its answer is heard it is not believed to have announced all.
                    peer.is_hearing_all = peer.owed.is_all;
                    peer.is_announcing |= peer.owed.is_all;
                    peer.owed.take()
                }
                // It, or another start of it, has to announce what it holds first.
                Some(peer) => {
                    let is_to_announce = peer.is_new_start || peer.is_announcing;
                    is_all_told = is_paid && peer.link == Link::Up && !is_to_announce;
                    break;
                }
                None => break,
            };
            let mut items: Vec<Revocation> = std::mem::take(&mut owed.items).into();
            if owed.is_all {
                let shards = self.seen().map.served_by(self.me.member).map(Shard::number).collect();
                items = vec![Revocation::Forget { shards, view: 0 }, Revocation::AnnounceAgain];
            }
            let mut is_told = true;
            for part in messages_of(items) {
                // What is not told is owed again.
                is_told &= self.send_owed(member, part).await.is_some();
            }
            if let Some(peer) = self.peers.lock().get_mut(&member) {
                peer.is_hearing_all = false;
                if owed.is_all && !is_told {
                    // Which says more than the items that it is told in.
                    peer.owed.add_everything();
                }
            }
            if !is_told {
                break;
            }
            owed.settle();
        }
        if let Some(peer) = self.peers.lock().get_mut(&member) {
            peer.is_settling = false;
        }
        if is_all_told {
            self.owner.lock().note_back(member);
            // Somebody may have been asked for copies while members did not agree on what there is.
            self.copying.walk_at_ease();
        }
    }

    /// A member said that it leaves: what it holds is forgotten at once.
    pub(super) fn bid_farewell(self: &Arc<Self>, peer: PeerId) {
        tracing::info!(%peer, "a member leaves");
        if let Some(known) = self.peers.lock().get_mut(&peer.member).filter(|known| known.id == peer) {
            known.has_left = true;
        }
        self.copying.walk();
        self.spawn(Arc::clone(self).drop_member(peer));
    }

    /// Forgets all that a start of a member held, a shard at a time, unless it is back.
    pub(super) async fn drop_member(self: Arc<Self>, peer: PeerId) {
        let slots = {
            let mut owner = self.owner.lock();
            let peers = self.peers.lock();
            let is_it = |known: &&Peer| known.id == peer;
            // Who is back was met, and would have no number until the next view. It is told what it is owed, which is everything.
            if peers.get(&peer.member).filter(is_it).is_some_and(|it| !it.is_dropped && !it.has_left) {
                return;
            }
            owner.forget_start(peer)
        };
        self.drop_slots(slots).await;
    }

    async fn drop_slots(self: &Arc<Self>, slots: Vec<super::catalog::entry::Slot>) {
        for slot in slots {
            let mut dropped = 0;
            for shard in Shard::all() {
                let (tell, count) = self.owner.lock().drop_copies(shard, slot, self.now());
                self.counters.dropped_copies.add(count as u64);
                for (member, revocation) in tell {
                    drop(self.tell(member, revocation));
                }
                dropped += count;
                if dropped >= DROPPED_AT_ONCE {
                    dropped = 0;
                    sleep(BREATH).await;
                }
            }
            self.owner.lock().free_slot(slot);
        }
    }

    /// What is done now and then, for ever.
    pub(super) async fn tick_for_ever(self: Arc<Self>) {
        let timings = self.config.timings;
        let mut last = self.now();
        let is_dropping = Arc::new(AtomicBool::new(false));
        let mut shards = Shard::all().cycle();
        loop {
            sleep(timings.tick).await;
            self.note_sleep(host_slept());
            let now = self.now();
            if now.saturating_sub(last) > timings.silence / 2 + timings.tick {
                self.stood_still(now.saturating_sub(last));
            }
            last = now;
            self.expire_removals(now);
            self.expire_loans(now);
            let patience = self.first_patience();
            let (mut slow, mut owing, mut gone) = (Vec::new(), Vec::new(), Vec::new());
            self.let_members_go(now);
            for (&member, peer) in self.peers.lock().iter_mut() {
                if peer.is_slow && peer.link == Link::Up {
                    slow.push(member);
                } else if !peer.is_suspect(now, patience) && peer.is_owed_anything() {
                    owing.push(member);
                }
                let is_over = peer.lost_at.is_some_and(|at| now.saturating_sub(at) > timings.grace);
                if is_over && !peer.is_dropped && !peer.is_only_unregistered() {
                    peer.is_dropped = true;
                    // Which it is told when it is back.
                    peer.owed = Owed::all();
                    gone.push(peer.id);
                }
            }
            slow.into_iter().for_each(|member| self.probe_slow(member));
            owing.into_iter().for_each(|member| self.spawn(Arc::clone(&self).settle_up(member)));
            for peer in gone {
                tracing::warn!(%peer, "what a lost member held is forgotten");
                self.copying.walk();
                self.spawn(Arc::clone(&self).drop_member(peer));
            }
            self.drop_stale(&is_dropping);
            self.tell_removals_again();
            self.tell_let_go_again();
            self.tell_moves().await;
            for shard in shards.by_ref().take(LOOKED_THROUGH) {
                let heirs = self.owner.lock().find_heirs(shard);
                heirs.into_iter().for_each(|(member, revocation)| drop(self.tell(member, revocation)));
            }
        }
    }

    /// What an earlier start of a member held counts until the later one has announced what it found again. It is forgotten in
    /// the background, unless that is under way (`is_dropping`): it may take longer than this member may stand still.
    fn drop_stale(self: &Arc<Self>, is_dropping: &Arc<AtomicBool>) {
        if is_dropping.load(Ordering::Acquire) {
            return;
        }
        let stale = self.owner.lock().take_stale();
        if stale.is_empty() {
            return;
        }
        is_dropping.store(true, Ordering::Release);
        let (core, is_dropping) = (Arc::clone(self), Arc::clone(is_dropping));
        self.spawn(async move {
            core.drop_slots(stale).await;
            is_dropping.store(false, Ordering::Release);
        });
    }

    /// This member itself was stopped for `time`, until now, and may have been passed over.
    pub(super) fn stood_still(self: &Arc<Self>, time: Duration) {
        tracing::warn!(seconds = time.as_secs(), "this member stood still; it catches up with the others");
        self.counters.stalls.increment();
        let since = self.now().saturating_sub(time);
        for peer in self.peers.lock().values_mut() {
            // Whether it was lost meanwhile is not known yet; what it decided was not heard of since then.
            peer.miss(since);
        }
        // Which ends when all was announced to them once more.
        self.plan_everything();
        let map = Arc::clone(&self.seen().map);
        let me = self.me.member;
        let mine =
            || Shard::all().filter_map(|shard| map.owners(shard)).filter(|owners| owners.primary == me);
        let backups: BTreeSet<MemberId> = mine().filter_map(|owners| owners.backup).collect();
        for backup in backups {
            let fall = self.owner.lock().fall_behind(backup);
            self.spawn(Arc::clone(self).catch_up(backup, fall));
        }
    }
}
