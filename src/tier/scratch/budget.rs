//! How much may be taken of something that is bounded: the bytes of scratch files, and the files themselves.
//!
//! Invariants
//! - What is [claimed](Budget::claim) never passes the bound, however many claim at once. What the kernel wrote without asking is
//!   counted when it is found, and may pass it.
//! - Nobody waits unless what may be given back soon would be enough, and nobody longer than its deadline.
//! - While somebody waits nobody claims more than it needs.
//!
//! Threads: any. The lock is held for moments, also under other locks, and nothing is done under it but to count.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// A bounded quantity.
#[derive(Debug)]
pub(super) struct Budget {
    max: u64,
    /// Changed under the lock of `loose`, so that no two take the same; who looks how much there is reads it without.
    taken: AtomicU64,
    loose: Mutex<Loose>,
    /// Signalled when less is taken, or less is loose.
    changed: Condvar,
}

/// How much of what is taken may be given back soon, and who waits for that.
#[derive(Debug, Default)]
struct Loose {
    /// What is claimed and not counted yet, and what is being freed.
    amount: u64,
    waiting: usize,
}

/// What is taken before it is used. It is given back when this is dropped and was not [settled](Self::settle).
#[derive(Debug)]
#[must_use]
pub(super) struct Claim<'a> {
    budget: &'a Budget,
    amount: u64,
}

impl Budget {
    pub(super) fn new(max: u64) -> Self {
        Self { max, taken: AtomicU64::new(0), loose: Mutex::default(), changed: Condvar::new() }
    }

    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// How much is taken, what is loose of it included.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether so much more may be taken: nothing always may.
    pub(super) fn has_room(&self, more: u64) -> bool {
        more == 0 || self.taken().saturating_add(more) <= self.max
    }

    /// Whether some of what is taken may be given back soon.
    pub(super) fn is_any_loose(&self) -> bool {
        self.loose.lock().amount > 0
    }

    /// Whether who claims `amount` now waits.
    pub(super) fn would_wait(&self, amount: u64) -> bool {
        let loose = self.loose.lock();
        !self.has_room(amount) && self.may_have_room(&loose, amount)
    }

    /// Whether who could not have `amount` may have it now, or soon.
    pub(super) fn may_be_had(&self, amount: u64) -> bool {
        self.may_have_room(&self.loose.lock(), amount)
    }

    /// Takes `amount`, which may be more than is needed, if there is room for it now and nobody waits for that.
    pub(super) fn try_claim(&self, amount: u64) -> Option<Claim<'_>> {
        let mut loose = self.loose.lock();
        if loose.waiting > 0 { None } else { self.take(&mut loose, amount) }
    }

    /// How many wait for what others may give back.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.loose.lock().waiting
    }

    /// Takes `amount`, and waits until `deadline` for what others may give back. `None` when there is no room for it, and none can
    /// be expected.
    pub(super) fn claim(&self, amount: u64, deadline: Instant) -> Option<Claim<'_>> {
        let mut loose = self.loose.lock();
        let mut is_late = false;
        loop {
            let claim = self.take(&mut loose, amount);
            if claim.is_some() || is_late || !self.may_have_room(&loose, amount) {
                return claim;
            }
            loose.waiting += 1;
            is_late = self.changed.wait_until(&mut loose, deadline).timed_out();
            loose.waiting -= 1;
        }
    }

    /// A claim of nothing, to settle what changed without one.
    pub(super) fn nothing(&self) -> Claim<'_> {
        Claim { budget: self, amount: 0 }
    }

    /// `amount` of what is taken will be [given back](Self::give_back) soon.
    pub(super) fn loosen(&self, amount: u64) {
        self.loose.lock().amount += amount;
    }

    /// Gives back what was loosened before.
    pub(super) fn give_back(&self, amount: u64) {
        self.replace(amount, 0, 0);
    }

    fn may_have_room(&self, loose: &Loose, more: u64) -> bool {
        (self.taken() - loose.amount).saturating_add(more) <= self.max
    }

    fn take(&self, loose: &mut Loose, amount: u64) -> Option<Claim<'_>> {
        if !self.has_room(amount) {
            return None;
        }
        self.taken.fetch_add(amount, Ordering::Relaxed);
        loose.amount += amount;
        Some(Claim { budget: self, amount })
    }

    /// In place of what was loose, and of `before`, `now` is taken.
    fn replace(&self, was_loose: u64, before: u64, now: u64) {
        let mut loose = self.loose.lock();
        loose.amount -= was_loose;
        self.taken.store(self.taken() - was_loose - before + now, Ordering::Relaxed);
        drop(loose);
        if was_loose > 0 || now < before {
            self.changed.notify_all();
        }
    }
}

impl Claim<'_> {
    /// What it was claimed for is done and counted: that which took `before` takes `now`, be it more or less than was claimed.
    pub(super) fn settle(mut self, before: u64, now: u64) {
        let claimed = std::mem::take(&mut self.amount);
        self.budget.replace(claimed, before, now);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.budget.give_back(self.amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    #[test]
    fn what_is_claimed_is_taken_until_it_is_given_back_or_counted() {
        let budget = Budget::new(10);
        let claim = budget.try_claim(7).unwrap();
        assert!(budget.try_claim(4).is_none() && budget.try_claim(3).is_some());
        drop(claim);
        assert_eq!(budget.taken(), 0);
        budget.try_claim(7).unwrap().settle(0, 4);
        assert_eq!(budget.taken(), 4);
        budget.nothing().settle(4, 12);
        assert!(!budget.has_room(1) && budget.has_room(0), "the kernel took more than there is");
        budget.loosen(12);
        budget.give_back(12);
        assert_eq!((budget.taken(), budget.is_any_loose()), (0, false));
    }

    #[test]
    fn who_waits_has_what_others_leave_of_their_claims() {
        let budget = Budget::new(10);
        let claim = budget.try_claim(8).unwrap();
        assert!(budget.would_wait(5) && !budget.would_wait(2) && !budget.would_wait(11));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| budget.claim(5, soon()).is_some());
            thread::sleep(Duration::from_millis(5));
            claim.settle(0, 5);
            assert!(waiting.join().unwrap());
        });
        assert_eq!(budget.taken(), 5);
    }

    #[test]
    fn while_somebody_waits_nobody_claims_more_than_it_needs() {
        let budget = Budget::new(10);
        let claim = budget.try_claim(8).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| budget.claim(5, soon()).is_some());
            while budget.waiting() == 0 {
                thread::yield_now();
            }
            assert!(budget.try_claim(2).is_none(), "it may need nothing");
            assert!(budget.claim(2, soon()).is_some(), "it needs that");
            claim.settle(0, 5);
            assert!(waiting.join().unwrap());
        });
        assert!(budget.try_claim(5).is_some(), "nobody waits");
    }

    #[test]
    fn nobody_waits_for_what_would_not_be_enough_nor_longer_than_until_the_deadline() {
        let budget = Budget::new(10);
        budget.try_claim(6).unwrap().settle(0, 6);
        let _claim = budget.try_claim(4).unwrap();
        let began = Instant::now();
        assert!(budget.claim(5, soon()).is_none());
        assert!(began.elapsed() < Duration::from_secs(20));
        assert!(budget.claim(4, Instant::now() + Duration::from_millis(5)).is_none());
    }
}
