//! What other members lent, on its way back to them: gathered, and after what was noted of it.
//!
//! A lender may evict an object when it gets its loan back. Who read the object has noted by then that it is there, too, and
//! a note is gathered for [`GATHERED_FOR`] before it leaves. If the loan were back before that, the last copy that the catalog
//! knows might go, and the fresh one would be withdrawn.
//!
//! Invariants
//! - A loan leaves no sooner than [`ROUND`] after it ended, and no later than two rounds after.
//! - What was lent over a connection that has ended is not given back: its lender has ended the loan with it.
//!
//! Limits: time is all that orders the two. A note that waits for an owner that is slow to answer, or far away, may be later
//! than the loan, and then the fresh copy may be withdrawn. The lender bounds what it lends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidefs_engine::types::PeerId;

use super::batcher::GATHERED_FOR;
use super::catalog::wire::{ITEMS_MAX, Message, RELEASE, Release};
use super::core::Core;

/// How long loans are gathered: longer than notes, by what timers are exact to.
const ROUND: Duration = GATHERED_FOR.saturating_add(Duration::from_millis(1));

/// Loans, for each lender.
type Ended = BTreeMap<PeerId, Vec<u64>>;

/// Loans that have ended, and of which their lenders are not told yet.
#[derive(Debug, Default)]
pub(super) struct GivingBack {
    /// Held for a look-up.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Those of this round.
    ended: Ended,
    /// Whether there are rounds.
    is_going: bool,
}

impl GivingBack {
    /// Notes a loan that has ended. Returns whether rounds are to begin.
    fn add(&self, lender: PeerId, loan: u64) -> bool {
        let mut state = self.state.lock();
        state.ended.entry(lender).or_default().push(loan);
        !std::mem::replace(&mut state.is_going, true)
    }

    /// A round is over: those that leave with the next one. There is none when there are none.
    fn next(&self) -> Ended {
        let mut state = self.state.lock();
        let ended = std::mem::take(&mut state.ended);
        state.is_going = !ended.is_empty();
        ended
    }
}

impl Core {
    /// Gives back what `lender` lent, soon. Waits for nothing.
    pub(super) fn give_back(self: &Arc<Self>, lender: PeerId, loan: u64) {
        if self.giving_back.add(lender, loan) {
            let core = Arc::clone(self);
            // Not among the tasks of this member, whose lock the caller may hold: it ends by itself.
            self.runtime.spawn(async move { core.give_back_all().await });
        }
    }

    async fn give_back_all(&self) {
        let mut leaving = Ended::new();
        loop {
            tokio::time::sleep(ROUND).await;
            for (lender, loans) in leaving {
                for loans in loans.chunks(ITEMS_MAX) {
                    self.carrier.notify(lender, RELEASE, Release { loans: loans.to_vec() }.encode());
                }
            }
            leaving = self.giving_back.next();
            if leaving.is_empty() {
                return;
            }
        }
    }
}
