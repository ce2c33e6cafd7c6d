//! Leaving: when a member that has [drained](super::draining) may go, and how the others hear that one goes.
//!
//! Invariants
//! - One that has drained leaves only when what was published since its last walk began is copied, too ([`super::parting`]), and
//!   who serves its shards with it is there and has heard of all that it decided: removals are known to these two alone.
//! - What one that is stopped decided while it left, and nobody else knows, its next start knows.
//! - When it could not leave it has the coordinator keep it.
//!
//! Limits: who has not heard within [`HEARD_WITHIN`] that it left forgets what it held when it is given up; the coordinator is asked
//! [`REGISTER_TRIES`] times to keep a member, after which it is an error in the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidefs_engine::types::MemberId;
use tokio::task::JoinSet;

use super::catalog::wire::{Done, FAREWELL, Message, REVOKE, Revoke};
use super::coordinator::{CoordinatorError, Reachability};
use super::core::Core;
use super::draining::PAUSE;
use super::error::ClusterError;
use super::peers::Peer;

/// How often the coordinator is asked to keep a member that could not leave.
const REGISTER_TRIES: u32 = 5;
/// Between two looks whether all have heard what was decided last.
const HEARING: Duration = Duration::from_millis(5);
/// How long a member that leaves waits until the others have heard that. Who has not forgets what it held when it is given up.
const HEARD_WITHIN: Duration = Duration::from_secs(1);

impl Core {
    /// Leaves, unless something is in the way. A walk that began a moment ago found nothing left to copy; what was published
    /// since is copied first. Returns whether it has left.
    pub(super) async fn leave_after_walk(self: &Arc<Self>) -> bool {
        // Most of it while more may be published. Somebody is always just being told of that, who waits for nobody that is away.
        if !self.may_leave(Peer::is_there) || !self.drain_most_noted().await {
            return false;
        }
        let shut = self.parting.shut();
        let is_ready = async {
            shut.is_idle().await;
            let are_held = self.drain_noted().await.is_some();
            while are_held && self.who_is_not(Peer::has_heard_all).is_some() {
                tokio::time::sleep(HEARING).await;
            }
            are_held
        };
        let is_ready = tokio::time::timeout(self.config.timings.background, is_ready).await.unwrap_or(false);
        if !is_ready || self.is_out_of_time() {
            return false;
        }
        match self.leave(self.in_background()).await {
            Ok(()) => {
                // Who waits to publish learns that it is too late.
                self.draining.note_left();
                self.forget_all_answers();
                true
            }
            Err(error) => {
                tracing::warn!(%error, "a drained member cannot leave yet");
                drop(shut);
                self.stay_registered().await;
                false
            }
        }
    }

    /// Has the coordinator keep this member, which it was asked in vain to take out: one that is away would do so as soon as it
    /// is back, whether the member still wants to leave by then or not.
    async fn stay_registered(&self) {
        let Some(member) = self.registration.get() else { return };
        for _ in 0..REGISTER_TRIES {
            let is_reached = || matches!(self.coordinator.reachability(), Reachability::Reached);
            match self.coordinator.register(member.clone(), self.in_background()).await {
                Ok(()) | Err(CoordinatorError::Superseded { .. }) => return,
                // What it was asked last is done when it is back.
                Err(error) if error.is_away() && !is_reached() => return,
                Err(error) => tracing::warn!(%error, "who could not leave is not registered again yet"),
            }
            tokio::time::sleep(PAUSE).await;
        }
        tracing::error!("whether this member is still registered is not known; a restart registers it");
    }

    /// Whether all others are as this member needs them to leave, and the coordinator answers.
    fn may_leave(&self, is_ready: fn(&Peer) -> bool) -> bool {
        let is_reached = matches!(self.coordinator.reachability(), Reachability::Reached);
        is_reached && self.who_is_not(is_ready).is_none()
    }

    /// Waits for the coordinator, and for members that are to know what this one decided. Returns whether the time is not
    /// over.
    pub(super) async fn wait_to_leave(&self) -> bool {
        let mut awaited = None;
        loop {
            tokio::time::sleep(PAUSE).await;
            if self.is_out_of_time() {
                return false;
            }
            if self.may_leave(Peer::owes_nothing) {
                return true;
            }
            let ignorant = self.who_is_not(Peer::owes_nothing);
            if let Some(member) = ignorant.filter(|_| awaited != ignorant) {
                tracing::warn!(
                    member = member.0,
                    "a drained member stays until that one has heard what it decided"
                );
            }
            awaited = ignorant;
        }
    }

    /// A member of the view that is not `ready`; any while shards are being handed over.
    fn who_is_not(&self, ready: fn(&Peer) -> bool) -> Option<MemberId> {
        let is_handing_over = self.handing_over.load(Ordering::Acquire) > 0;
        let peers = self.peers.lock();
        let mut members = peers.values().filter(|peer| peer.is_registered);
        members.find(|peer| is_handing_over || !ready(peer)).map(|peer| peer.id.member)
    }

    /// As [`Core::leave`], of a member whose daemon ends: it decides nothing more when this returns, whether or not the coordinator
    /// has heard that and whatever view still comes, and what it decided until then is kept, where nobody else knows of it.
    pub(super) async fn leave_for_good(&self, deadline: std::time::Instant) -> Result<(), ClusterError> {
        let left = self.leave(deadline).await;
        // First: a view that is being adopted just now has the catalog go by it before this member goes out, or sees this.
        self.is_out_for_good.store(true, Ordering::Release);
        self.owner.lock().set_out(true);
        self.keep_removals();
        left
    }

    /// Tells everyone that this member goes, and takes it out of the view.
    pub(super) async fn leave(&self, deadline: std::time::Instant) -> Result<(), ClusterError> {
        let others = self.others();
        self.coordinator.leave(deadline).await?;
        let patience = deadline.min(self.within(HEARD_WITHIN));
        let mut heard = JoinSet::new();
        for peer in others {
            self.carrier.notify(peer, FAREWELL, Done {}.encode());
            // Messages to a peer arrive in order, and what nobody answers may be lost with the connection: who answers this,
            // which takes nothing back, has heard that.
            let question = Revoke { items: Vec::new() }.encode();
            heard.spawn(self.carrier.call(peer, REVOKE, question, patience));
        }
        self.go_out(None);
        while let Some(answer) = heard.join_next().await {
            if let Ok(Err(error)) = answer {
                tracing::warn!(%error, "a member may learn late that this one has left");
            }
        }
        Ok(())
    }
}
