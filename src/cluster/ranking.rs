//! Which source of an object is asked first, and how long one is waited for: by where it is, how busy it is, and what reading from
//! it has shown.
//!
//! Invariant: a lost member that was asked in vain a moment ago is not waited for.

use std::time::Duration;

use tidefs_engine::types::{ByteCount, MemberId};

use super::core::Core;
use super::object::Copy;

/// Weight of the latest measurement in a peer's rate.
const RATE_GAIN: f64 = 0.25;

/// How long a member is waited for to which there is no connection: it may have been started again a moment ago.
const LOST_PATIENCE: Duration = Duration::from_millis(250);
/// How soon a lost member that gave no answer is asked again.
const LOST_PAUSE: Duration = Duration::from_secs(1);

impl Core {
    /// How long a source is waited for. `None` for one that is lost, and that answered nobody a moment ago: a thousand objects of
    /// a dead member are a thousand misses, not a thousand waits.
    pub(super) fn patience_with(&self, member: MemberId, patience: Duration) -> Option<Duration> {
        let (now, first_patience) = (self.now(), self.first_patience());
        let peers = self.peers.lock();
        let Some(peer) = peers.get(&member).filter(|peer| peer.is_lost(now, first_patience)) else {
            return Some(patience);
        };
        let was_silent = peer.silent_at.is_some_and(|at| now.saturating_sub(at) < LOST_PAUSE);
        (!was_silent).then(|| patience.min(LOST_PATIENCE))
    }

    /// A source gave no answer.
    pub(super) fn note_silence(&self, member: MemberId) {
        let (now, first_patience) = (self.now(), self.first_patience());
        if let Some(peer) = self.peers.lock().get_mut(&member)
            && peer.is_lost(now, first_patience)
        {
            peer.silent_at = Some(now);
        }
    }

    /// The source that is asked first for one of these.
    pub(super) fn first_source(&self, copies: &[Copy]) -> Option<MemberId> {
        self.rank(copies).first().copied()
    }

    /// The sources, the best first: those that are there before those that are lost, memory before SSD, near ones before far
    /// ones, idle ones before busy ones, fast ones before slow ones.
    pub(super) fn rank(&self, copies: &[Copy]) -> Vec<MemberId> {
        let me = self.me.member;
        let seen = self.seen();
        let here = seen.view.member(me);
        let distance = |member: MemberId| {
            here.zip(seen.view.member(member)).map_or(0, |(here, there)| here.distance(there))
        };
        let mut ranked: Vec<(bool, u8, usize, usize, u64, MemberId)> = copies
            .iter()
            .filter(|copy| copy.member != me)
            .map(|&Copy { member, medium }| {
                (self.is_suspect(member), medium.distance(), distance(member), 0, 0, member)
            })
            .collect();
        let peers = self.peers.lock();
        for (_, _, _, under_way, slowness, member) in &mut ranked {
            if let Some(peer) = peers.get(member) {
                *under_way = peer.reads_under_way;
                // What was never measured is tried before what is known to be slow.
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a rate in MB/s fits, and is not negative"
                )]
                let rate = (peer.read_rate / 1e6) as u64;
                *slowness = if rate == 0 { 0 } else { u64::MAX - rate };
            }
        }
        drop(peers);
        ranked.sort_unstable();
        ranked.into_iter().map(|(.., member)| member).collect()
    }

    /// `length` bytes came from that member within `time`.
    pub(super) fn note_rate(&self, member: MemberId, length: ByteCount, time: Duration) {
        // Short transfers measure round trips.
        if length < ByteCount::kib(256) {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = length.get() as f64 / time.as_secs_f64().max(1e-6);
        if let Some(peer) = self.peers.lock().get_mut(&member) {
            let old = peer.read_rate;
            peer.read_rate = if old == 0.0 { rate } else { old + RATE_GAIN * (rate - old) };
        }
    }
}
