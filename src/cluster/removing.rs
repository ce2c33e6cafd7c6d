//! Removals, and those that nobody who decides could be told of: they are told again until somebody is.
//!
//! Invariants
//! - Until then this member itself does not find what it removed, whatever the others still say.
//! - What is removed has a version, also a directory: its remover asks for that first, as it was shown none, and its own clock
//!   may be behind. Where nobody says it, the directory goes all the same, and what was made there since may go with it.
//!
//! Limits: those of [`super::told_again`]. What comes beyond is counted.

use std::convert::identity;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::types::MemberId;
use tokio::task::JoinSet;

use super::catalog::owner::Expired;
use super::catalog::wire::Change;
use super::changing::again;
use super::core::Core;
use super::error::ClusterError;
use super::gone::Gone;
use super::object::Stamp;
use super::shards::KeyId;
use super::told_again::{OWED_MAX, ToldAgain};

/// Removals that are told at once.
const PAGE: usize = 256;

/// Removals that are to be told again.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    removals: Mutex<Removals>,
    is_under_way: AtomicBool,
}

#[derive(Debug, Default)]
struct Removals {
    /// Up to which version each name was removed.
    through: ToldAgain<Stamp>,
}

impl Removals {
    fn next_page(&mut self) -> Vec<(Vec<u8>, Stamp)> {
        self.through.next_page(PAGE)
    }

    fn is_told(&mut self, path: &[u8], through: Stamp) {
        if self.of(path).is_some_and(|known| known <= through) {
            self.through.names.remove(path);
        }
    }

    fn of(&self, path: &[u8]) -> Option<Stamp> {
        self.through.names.get(path).copied()
    }
}

impl Unheard {
    /// Notes a removal. Returns `false` when there are too many.
    fn add(&self, path: Vec<u8>, through: Stamp) -> bool {
        let mut removals = self.removals.lock();
        let Some(known) = removals.through.place_of(path) else { return false };
        *known = through.max(*known);
        true
    }

    /// As [`ToldAgain::warns`].
    fn warns(&self) -> bool {
        self.removals.lock().through.warns()
    }

    /// What stands under the name now is not what was removed.
    pub(super) fn forget(&self, path: &[u8]) {
        self.removals.lock().through.names.remove(path);
    }

    /// The version of what is published under the name now: later than what was removed there, whatever the clock says. Who
    /// holds it gives it that before it is told to anybody, as it is announced with that if nobody hears of it now.
    pub(super) fn above(&self, path: &[u8], proposed: Stamp) -> Stamp {
        let removed = self.removals.lock().of(path);
        removed.map_or(proposed, |through| proposed.max(Stamp(through.0.saturating_add(1))))
    }

    /// All of them, with up to which version each name was removed.
    pub(super) fn all(&self) -> Vec<(Vec<u8>, Stamp)> {
        let removals = self.removals.lock();
        removals.through.names.iter().map(|(path, through)| (path.clone(), *through)).collect()
    }

    /// Removals that are still to be told.
    pub(super) fn len(&self) -> usize {
        self.removals.lock().through.names.len()
    }

    /// Whether this version of the name was removed here, and those who decide do not know yet.
    pub(super) fn covers(&self, path: &[u8], stamp: Stamp) -> bool {
        self.removals.lock().of(path).is_some_and(|through| stamp <= through)
    }
}

/// What is removed everywhere.
#[derive(Clone, Debug)]
pub struct Removal {
    /// Its name.
    pub path: Vec<u8>,
    /// The version up to which it is removed; `spares_later` says whether what is later when that is decided stays.
    pub through: Stamp,
    /// Whether it is a directory, of which nobody but who decides knows the version.
    pub is_directory: bool,
    /// Whether what has a later version when that is decided stays: the remover has given what it removes another name.
    pub spares_later: bool,
}

impl Core {
    pub(super) async fn remove(
        self: &Arc<Self>,
        Removal { path, through, is_directory, spares_later }: Removal,
        deadline: Instant,
    ) -> Result<(), ClusterError> {
        self.counters.removals.increment();
        if self.seen().is_alone {
            // Who is away may come back with it.
            self.remove_later(path, through);
            return Ok(());
        }
        let version = if is_directory {
            // Whether or not that is answered, the removal has its time.
            let soon = self.within(self.until(deadline) / 2);
            self.directory_version(&path, soon).await
        } else {
            Some(through)
        };
        let through = version.map_or(through, |version| version.max(through));
        let shard = KeyId::of(&path).shard();
        let change = if spares_later {
            Change::RemoveThrough { path: path.clone(), through }
        } else {
            Change::Remove { path: path.clone(), at: through }
        };
        let again = if version.is_none() { identity } else { again };
        let result = self.change_while(change, again, deadline, || true).await;
        if result.is_err() {
            self.remove_later(path, through);
        }
        self.note_revocation(shard);
        result.map(|_| ())
    }

    /// Has a removal told when somebody who decides is reached.
    pub(super) fn remove_later(&self, path: Vec<u8>, through: Stamp) {
        if self.unheard.add(path, through) {
            self.counters.removals_later.increment();
            return;
        }
        self.counters.removals_lost.increment();
        if self.unheard.warns() {
            tracing::warn!(
                "{OWED_MAX} removals wait to be told already; copies of one more may live on elsewhere, and are found \
                 again when who has them comes back (tidefs_cluster_removals_lost_total counts them)"
            );
        }
    }

    /// Forgets what was removed, or ended, long ago.
    pub(super) fn expire_removals(&self, now: Duration) {
        let ends_lost = {
            let mut owner = self.owner.lock();
            let Expired { ends_lost, disbelieved } = owner.expire(now);
            let (peers, gone) = (self.peers.lock(), self.gone.lock());
            for member in disbelieved {
                let peer = peers.get(&member).map(|peer| peer.has_left);
                let has_left = peer.or_else(|| gone.get(&member).map(Gone::has_left));
                self.tell_of_disbelief(member, has_left);
            }
            ends_lost
        };
        if ends_lost > 0 {
            self.counters.ends_lost.add(ends_lost);
            tracing::warn!(
                lost = ends_lost,
                "more was let go of while members are away than is remembered; one that comes back may bring an earlier version"
            );
        }
    }

    /// Says that `member` is not believed any more in what it alone holds. `has_left`: whether it said that it leaves, if it was
    /// met here.
    fn tell_of_disbelief(&self, member: MemberId, has_left: Option<bool>) {
        let minutes = self.config.timings.tombstones.as_secs() / 60;
        match has_left {
            Some(false) => tracing::warn!(
                %member,
                minutes,
                "a member is away for longer than it is remembered what was removed; what it alone holds is dropped when it is back"
            ),
            // It may have been drained, and for good.
            Some(true) => tracing::info!(
                %member,
                minutes,
                "a member left for longer than it is remembered what was removed; if it is back, what it alone kept is dropped"
            ),
            None => tracing::debug!(%member, minutes, "a member that was never met is not expected any more"),
        }
    }

    /// Tells some of the removals that nobody has heard of, unless that is under way.
    pub(super) fn tell_removals_again(self: &Arc<Self>) {
        let is_idle = self.seen().is_alone || self.unheard.len() == 0;
        if is_idle || self.unheard.is_under_way.swap(true, Ordering::AcqRel) {
            return;
        }
        let core = Arc::clone(self);
        self.spawn(async move {
            let page = core.unheard.removals.lock().next_page();
            let mut tellings = JoinSet::new();
            for (path, at) in page {
                let core = Arc::clone(&core);
                tellings.spawn(async move {
                    let change = Change::RemoveThrough { path: path.clone(), through: at };
                    // A directory that was made anew here is not to be removed: that was forgotten then.
                    let is_wanted = || core.unheard.covers(&path, at);
                    if core.change_while(change, identity, core.in_background(), is_wanted).await.is_ok() {
                        core.unheard.removals.lock().is_told(&path, at);
                    }
                });
            }
            while tellings.join_next().await.is_some() {}
            core.unheard.is_under_way.store(false, Ordering::Release);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_removal_has_its_turn_and_is_forgotten_when_it_is_told() {
        let unheard = Unheard::default();
        for number in 0..PAGE + 10 {
            assert!(unheard.add(format!("kv/{number:05}").into_bytes(), Stamp(5)));
        }
        let first = unheard.removals.lock().next_page();
        let second = unheard.removals.lock().next_page();
        assert_eq!(first.len(), PAGE);
        // Behind the first page, and then from the beginning again.
        assert_eq!(second[0].0, format!("kv/{PAGE:05}").into_bytes());
        assert_eq!(second[10].0, b"kv/00000");
        for (path, at) in first {
            unheard.removals.lock().is_told(&path, at);
        }
        assert_eq!(unheard.len(), 10);
    }

    #[test]
    fn a_later_removal_of_the_name_outlives_what_is_told_of_an_earlier_one() {
        let unheard = Unheard::default();
        unheard.add(b"kv/a".to_vec(), Stamp(5));
        unheard.add(b"kv/a".to_vec(), Stamp(9));
        unheard.removals.lock().is_told(b"kv/a", Stamp(5));
        assert!(unheard.covers(b"kv/a", Stamp(9)) && !unheard.covers(b"kv/a", Stamp(10)));
    }

    #[test]
    fn what_is_owed_is_bounded() {
        let unheard = Unheard::default();
        let is_taken = |number: usize| unheard.add(number.to_be_bytes().to_vec(), Stamp(1));
        assert!((0..OWED_MAX).all(is_taken));
        assert!(!is_taken(OWED_MAX) && is_taken(0));
    }

    #[test]
    fn it_is_warned_once_of_removals_that_are_not_told_later_and_again_when_half_of_them_were_told() {
        let unheard = Unheard::default();
        let is_lost = |number: &usize| !unheard.add(number.to_be_bytes().to_vec(), Stamp(1));
        let fill = || (0..=OWED_MAX).filter(is_lost).count();
        assert_eq!(fill(), 1);
        assert_eq!([(); 3].map(|()| unheard.warns()), [true, false, false]);
        let tell = |numbers: std::ops::Range<usize>| {
            numbers.for_each(|number| unheard.removals.lock().is_told(&number.to_be_bytes(), Stamp(1)));
        };
        // Little by little, as while somebody goes on removing.
        tell(0..OWED_MAX / 4);
        assert_eq!((fill(), unheard.warns()), (1, false));
        tell(0..OWED_MAX / 2);
        assert_eq!((fill(), unheard.warns()), (1, true));
    }
}
