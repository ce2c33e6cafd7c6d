//! Following the members: who serves what from now on, and what that asks of this member.
//!
//! Invariants
//! - A view counts only if its number is larger than that of the last. One without this member says only that it is out.
//! - What a view has announced is planned in the moment in which it counts: who looks sees both, or neither.
//! - Who answers for a shard first has all others forget what they were answered about it before.
//! - What others serve from now on is forgotten here when it is handed over, and not before.
//!
//! Threads: one task of the runtime follows the views; others hand over and wait for who is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tidefs_engine::engine::PeerDescriptor;
use tidefs_engine::types::{MemberId, PeerId};
use tokio::sync::{Semaphore, watch};

use super::batcher::Batcher;
use super::catalog::owner::Owner;
use super::catalog::wire::Revocation;
use super::core::{Core, Seen, Takeover};
use super::deciding::Wait;
use super::member::{Member, View};
use super::peers::{Link, Owed, Peer, Peers};
use super::shards::{Shard, ShardMap};

/// What a change of the view asks of this member.
#[derive(Debug, Default)]
struct Moves {
    /// Shards that it serves and did not.
    gained: Vec<Shard>,
    /// Of these and others, those that it answers for first now.
    taken: BTreeSet<Shard>,
    /// Shards that others answer for now than before.
    moved: Vec<Shard>,
    /// To whom it announces what it holds.
    announced: BTreeMap<MemberId, Vec<Shard>>,
    /// To whom it hands over what it knows.
    handed: BTreeMap<MemberId, Vec<Shard>>,
}

/// A start of a member, for as long as it stays registered: what happens while it is not it does not hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stay {
    start: PeerId,
    since: u64,
}

impl Stay {
    fn of(view: &View, member: MemberId) -> Option<Self> {
        view.member(member).map(|member| Self { start: member.engine.id, since: member.since })
    }
}

/// Who serves `shard`: primary, backup.
fn stays(seen: &Seen, shard: Shard) -> [Option<Stay>; 2] {
    let owners = seen.map.owners(shard);
    let stay = |member: MemberId| Stay::of(&seen.view, member);
    [owners.and_then(|owners| stay(owners.primary)), owners.and_then(|owners| owners.backup).and_then(stay)]
}

impl Moves {
    /// `is_new`: this member knows nothing of what happened before; of the shards in `passed` neither.
    fn new(me: PeerId, (old, new): (&Seen, &Seen), is_new: bool, passed: &BTreeSet<Shard>) -> Self {
        let mut moves = Self::default();
        let is_me = |stay: Option<Stay>| stay.is_some_and(|stay| stay.start == me);
        let is_known = |stay: &Stay| Stay::of(&new.view, stay.start.member) == Some(*stay);
        for shard in Shard::all() {
            let (before, after) = (stays(old, shard), stays(new, shard));
            // Who was alone has told its own catalog nothing, and who was out has missed what happened.
            let before = if is_new || passed.contains(&shard) { [None, None] } else { before };
            if before == after {
                continue;
            }
            let added: Vec<PeerId> = after
                .into_iter()
                .flatten()
                .filter(|stay| !before.contains(&Some(*stay)))
                .map(|stay| stay.start)
                .collect();
            if added.contains(&me) {
                moves.gained.push(shard);
            }
            moves.moved.push(shard);
            if before[0] != after[0] && is_me(after[0]) {
                moves.taken.insert(shard);
            }
            let tells = is_me(before.into_iter().flatten().find(is_known));
            for start in added {
                moves.announced.entry(start.member).or_default().push(shard);
                if tells && start != me {
                    moves.handed.entry(start.member).or_default().push(shard);
                }
            }
        }
        moves
    }
}

/// A view was adopted, and not all that it moves is handed over.
struct HandingOver(Arc<Core>);

impl HandingOver {
    fn begin(core: &Arc<Core>) -> Self {
        core.handing_over.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(core))
    }
}

impl Drop for HandingOver {
    fn drop(&mut self) {
        self.0.handing_over.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Core {
    /// Follows the coordinator's views, for ever.
    pub(super) async fn follow_views(self: Arc<Self>) {
        let mut views = self.coordinator.views();
        loop {
            let view = views.borrow_and_update().clone();
            self.adopt_view(view);
            if views.changed().await.is_err() {
                return;
            }
        }
    }

    /// Goes by `view` from now on.
    pub(super) fn adopt_view(self: &Arc<Self>, view: View) {
        let old = self.seen();
        let is_first = old.view.members().is_empty();
        let is_known = view.number <= old.view.number && !is_first;
        if is_known || self.is_out_for_good.load(Ordering::Acquire) {
            return;
        }
        let me = view.member(self.me.member).map(|me| me.engine.id);
        if me != Some(self.me) {
            // Not registered yet, or not any more: until it is again, the members are as they were.
            if !view.members().is_empty() {
                self.go_out(me);
            }
            return;
        }
        let is_back = self.is_registered_anew(&old.view, &view);
        let was_out = self.was_out.swap(false, Ordering::AcqRel) || is_back;
        let are_others = view.members().iter().any(|member| member.id != self.me.member);
        let is_alone = old.is_alone && !are_others;
        let new = Arc::new(Seen { view: view.clone(), map: Arc::new(ShardMap::new(&view)), is_alone });
        let passed = self.passed_over(&new.map);
        let moves = Moves::new(self.me, (&old, &new), was_out || old.is_alone, &passed);
        self.carrier.meet(&view);
        self.meet_members(&view);
        let under_way = HandingOver::begin(self);
        let was_passed_over = |shard: &Shard| was_out || passed.contains(shard);
        self.have_catalog_adopt(&new, &moves.gained, was_passed_over);
        let announced = if is_alone { BTreeMap::new() } else { moves.announced };
        self.plan.add_all(&announced, || *self.seen.write() = new);
        self.note_move();
        tracing::info!(
            view = view.number,
            members = view.members().len(),
            moved = moves.moved.len(),
            "a new view"
        );
        if is_alone {
            return;
        }
        self.forget_answers(&moves.moved);
        if was_out || !passed.is_empty() {
            // Who has not seen this member go does not see it come.
            let others = view.members().iter().filter(|member| member.id != self.me.member);
            others.for_each(|member| drop(self.tell(member.id, Revocation::AnnounceAgain)));
        }
        self.take_over(moves.taken, view.number);
        self.hand_over_all(under_way, moves.handed);
        self.plan.wake();
        self.copying.walk();
    }

    /// Has the catalog go by a view in which this member serves the shards `gained`, which it did not before. What it knows of
    /// those for which `was_passed_over` holds does not count.
    fn have_catalog_adopt(&self, new: &Seen, gained: &[Shard], was_passed_over: impl Fn(&Shard) -> bool) {
        let mut owner = self.owner.lock();
        let peers = self.peers.lock();
        let is_forgotten = |member: &&Member| peers.get(&member.id).is_some_and(Peer::is_forgotten);
        for member in new.view.members().iter().filter(|member| !is_forgotten(member)) {
            owner.meet(member.engine.id);
        }
        for (&member, peer) in &*peers {
            let is_there = peer.is_registered && peer.is_there();
            if !peer.is_registered || is_there {
                owner.set_suspect(member, !is_there);
            }
        }
        owner.set_out(self.is_out_for_good.load(Ordering::Acquire));
        owner.forget_passed(gained.iter().copied().filter(was_passed_over));
        let map = Arc::clone(&new.map);
        if new.is_alone {
            // There is nobody to learn from.
            owner.set_map(map, &[], BTreeSet::new());
        } else {
            owner.set_map(map, gained, new.view.members().iter().map(|member| member.id).collect());
        }
    }

    /// Whether this member was registered no more after `old`, and is again, whether or not a view in between came here.
    fn is_registered_anew(&self, old: &View, new: &View) -> bool {
        let before = Stay::of(old, self.me.member);
        let is_it = before.is_some() && before != Stay::of(new, self.me.member);
        if is_it && !self.is_out() {
            tracing::warn!(
                "this member was not registered for a while, which it did not hear of; it learns what happened"
            );
        }
        is_it
    }

    /// Others serve what this member served, if there are any. `me`: the start of this member that they know.
    pub(super) fn go_out(&self, me: Option<PeerId>) {
        if let Some(later) = me.filter(|me| me.incarnation > self.me.incarnation)
            && self.successor.set((later.incarnation, Instant::now())).is_ok()
        {
            tracing::error!(
                ours = %self.me.incarnation,
                latest = %later.incarnation,
                "another daemon runs as this member, which takes part no more: set cluster.member to another number on one of \
                 them, or give a cloned machine an /etc/machine-id of its own"
            );
            self.forget_all_answers();
        }
        if !self.was_out.swap(true, Ordering::AcqRel) {
            self.note_move();
            tracing::warn!("this member is not registered; others answer for what it served until it is");
        }
        self.owner.lock().set_out(true);
    }

    /// Shards that this member answers for in the view of `map`, and for which somebody else did in one that never came here.
    fn passed_over(&self, map: &ShardMap) -> BTreeSet<Shard> {
        let is_mine =
            |shard: &Shard| map.owners(*shard).is_some_and(|owners| owners.primary == self.me.member);
        let owner = self.owner.lock();
        Shard::all().filter(is_mine).filter(|&shard| owner.is_claimed(shard)).collect()
    }

    /// Keeps what is known of the members, and meets new ones.
    fn meet_members(self: &Arc<Self>, view: &View) {
        let now = self.now();
        let mut peers = self.peers.lock();
        for (id, peer) in peers.iter_mut() {
            if peer.is_registered && !view.member(*id).is_some_and(|member| peer.is_it_or_later(member)) {
                peer.is_registered = false;
                peer.lost_at.get_or_insert(now);
            }
        }
        for member in view.members().iter().filter(|member| member.id != self.me.member) {
            self.bring_back(&mut peers, member.id, |_| true);
            match peers.get_mut(&member.id) {
                // A later start of it came before the view that says so.
                Some(peer) if !peer.is_it_or_later(member) => {}
                Some(peer) => {
                    if peer.id != member.engine.id {
                        peer.start_again(member.engine.clone(), now);
                    }
                    peer.is_registered = true;
                    if peer.link == Link::Up {
                        peer.lost_at = None;
                        // It announces all that it holds, as everyone does who was out.
                        peer.is_dropped = false;
                    }
                    if peer.descriptor != member.engine {
                        peer.descriptor = member.engine.clone();
                        if peer.link == Link::Up {
                            // It came by itself. How it is reached is known now, and its connection told so.
                            peer.link = Link::Connecting(now);
                        }
                    }
                }
                None => {
                    peers.insert(member.id, self.meet(&member.engine));
                }
            }
        }
    }

    /// A start of a member is connected that no view was with yet: the coordinator may be heard late, or have lost it. What it
    /// is answered it may remember, so it is a peer from now on, and told like any other.
    pub(super) fn meet_early(self: &Arc<Self>, peers: &mut Peers, start: PeerId) {
        if start.member == self.me.member {
            return;
        }
        let descriptor = PeerDescriptor { id: start, addresses: Vec::new(), transports: Vec::new() };
        if let Some(peer) = peers.get_mut(&start.member) {
            if peer.id.incarnation < start.incarnation {
                peer.start_again(descriptor, self.now());
                peer.is_registered = false;
            }
            return;
        }
        let mut gone = self.gone.lock();
        if gone.get(&start.member).is_some_and(|gone| gone.id().incarnation > start.incarnation) {
            return;
        }
        gone.remove(&start.member);
        drop(gone);
        let peer = Peer { is_registered: false, lost_at: Some(self.now()), ..self.meet(&descriptor) };
        peers.insert(start.member, peer);
    }

    /// A peer that was never reached, with the tasks that see to it.
    pub(super) fn meet(self: &Arc<Self>, descriptor: &PeerDescriptor) -> Peer {
        let limit = self.config.limits.queued;
        let peer = Peer {
            id: descriptor.id,
            descriptor: descriptor.clone(),
            is_registered: true,
            link: Link::Connecting(self.now()),
            is_slow: false,
            silent_at: None,
            trouble: None,
            is_probed: false,
            lost_at: None,
            is_dropped: false,
            has_left: false,
            unheard_since: None,
            missed_since: None,
            owed: Owed::default(),
            debts: Owed::default(),
            paying: Arc::new(Semaphore::new(1)),
            is_settling: false,
            is_new_start: false,
            is_announcing: false,
            is_hearing_all: false,
            changes: Batcher::new(limit),
            notes: Batcher::new(limit),
            revocations: Batcher::new(limit),
            dirty: Batcher::new(limit),
            read_rate: 0.0,
            reads_under_way: 0,
        };
        let id = descriptor.id.member;
        let core = Arc::downgrade(self);
        for changes in [&peer.changes, &peer.notes] {
            let sender = core.clone();
            self.spawn(Arc::clone(changes).run(Box::new(move |items| {
                let core = sender.upgrade();
                Box::pin(async move { core?.send_changes(id, items).await })
            })));
        }
        let sender = core.clone();
        self.spawn(Arc::clone(&peer.revocations).run(Box::new(move |items| {
            let core = sender.upgrade();
            Box::pin(async move { core?.send_revocations(id, items).await })
        })));
        let sender = core;
        self.spawn(Arc::clone(&peer.dirty).run(Box::new(move |items| {
            let core = sender.upgrade();
            Box::pin(async move { core?.send_dirty(id, items).await })
        })));
        self.spawn(Arc::clone(self).keep_connected(id, Arc::clone(&peer.changes)));
        peer
    }

    /// Has all others forget what was answered about `shards` before this member answered for them.
    pub(super) fn take_over(self: &Arc<Self>, shards: BTreeSet<Shard>, view: u64) {
        if shards.is_empty() {
            return;
        }
        self.counters.takeovers.increment();
        let numbers: Vec<u16> = shards.iter().map(|shard| shard.number()).collect();
        let (over, is_over) = watch::channel(false);
        self.takeovers.lock().push(Takeover { shards, is_over });
        let members: Vec<MemberId> = self.peers.lock().keys().copied().collect();
        let mut waits = Vec::new();
        for member in members {
            let revocation = Revocation::Forget { shards: numbers.clone(), view };
            waits.extend(self.tell(member, revocation).map(Wait::Told));
        }
        let core = Arc::clone(self);
        self.spawn(async move {
            Self::settle(waits, core.in_background()).await;
            over.send_replace(true);
            core.takeovers.lock().retain(|takeover| !*takeover.is_over.borrow());
        });
    }

    /// Hands over what others serve now, and forgets what this member serves no more.
    fn hand_over_all(self: &Arc<Self>, under_way: HandingOver, handed: BTreeMap<MemberId, Vec<Shard>>) {
        let core = Arc::clone(self);
        self.spawn(async move {
            let mut tasks = tokio::task::JoinSet::new();
            for (member, shards) in handed {
                tasks.spawn(Arc::clone(&core).hand_over(member, shards));
            }
            while tasks.join_next().await.is_some() {}
            drop(under_way);
            core.forget_unserved();
        });
    }

    /// Forgets what only others serve, unless some of it is still to be handed over.
    fn forget_unserved(&self) {
        // What a later view wants handed over counts before the catalog goes by that view.
        let is_settled = |_: &Owner| self.handing_over.load(Ordering::Acquire) == 0;
        for shard in Shard::all() {
            let mut owner = self.owner.lock();
            if !is_settled(&owner) {
                return;
            }
            owner.forget_unserved(shard);
        }
        let mut owner = self.owner.lock();
        if is_settled(&owner) {
            owner.forget_unserved_names();
        }
    }
}
