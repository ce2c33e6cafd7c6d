//! The pages that each NIC may still translate, where that has a limit ([`FabricConfig::pages_max`]).
//!
//! Invariants
//! - What is registered at a NIC takes no more pages than the limit.
//! - The pages of a registration are free again when the library has closed it, and not before.
//!
//! [`FabricConfig::pages_max`]: super::FabricConfig::pages_max

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::NAME;
use super::budget::{self, Budget, Registration, TooManyPages, Wanted};
use super::layout::{Layout, Part};
use crate::error::Error;
use crate::types::RailId;

/// How long no region is refused before there are pages again: at the edge of a budget, some have a place and others not.
const QUIET: Duration = Duration::from_secs(60);

/// The pages of all NICs of a transport.
#[derive(Debug)]
pub(super) struct Pages {
    /// Pages that each NIC may translate.
    most: u64,
    /// Held for a plan; never across a call of a NIC's thread.
    left: Mutex<Left>,
}

#[derive(Debug)]
struct Left {
    /// Pages, by rail.
    pages: Vec<u64>,
    shortage: Shortage,
}

/// A time in which regions have no place, so that it is told once when it begins, and once when it is over.
#[derive(Debug, Default)]
struct Shortage {
    /// Regions that had none, and when the last of them came. `None` while there is no shortage.
    refused: Option<(u64, Instant)>,
}

impl Shortage {
    /// A region has no place. Returns whether that is the first.
    fn refused(&mut self, now: Instant) -> bool {
        let before = self.refused.map_or(0, |(count, _)| count);
        self.refused = Some((before + 1, now));
        before == 0
    }

    /// A region has a place. Returns how many had none, where that is over.
    fn taken(&mut self, now: impl FnOnce() -> Instant) -> Option<u64> {
        let (count, last) = self.refused?;
        if now().saturating_duration_since(last) < QUIET {
            return None;
        }
        self.refused = None;
        Some(count)
    }
}

/// Pages of one region at one NIC.
#[derive(Debug)]
pub(super) struct Share {
    of: Arc<Pages>,
    rail: usize,
    pages: u64,
}

/// What a region was given.
#[derive(Debug)]
pub(super) struct Taken {
    /// Which rail has which part of it; `None` when all rails have all.
    pub(super) parts: Option<Vec<Part>>,
    /// Of each rail that has any.
    pub(super) shares: Vec<(RailId, Arc<Share>)>,
}

impl Taken {
    /// The share of `rail`.
    pub(super) fn share(&self, rail: RailId) -> Option<Arc<Share>> {
        self.shares.iter().find(|(of, _)| *of == rail).map(|(_, share)| Arc::clone(share))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.left.lock().pages[self.rail] += self.pages;
    }
}

impl Pages {
    pub(super) fn new(most: u64, rails: usize) -> Arc<Self> {
        let left = Left { pages: vec![most; rails], shortage: Shortage::default() };
        Arc::new(Self { most, left: Mutex::new(left) })
    }

    /// Takes the pages of a region at `rails`: where those are not all, each byte is at one of them.
    ///
    /// # Errors
    /// [`Error::OverBudget`] when all of them together have too few pages left.
    pub(super) fn take(self: &Arc<Self>, wanted: Wanted, rails: &[RailId]) -> Result<Taken, Error> {
        let mut left = self.left.lock();
        let Left { pages, shortage } = &mut *left;
        let all = (0..).zip(pages.iter()).map(|(rail, &pages)| Budget { rail: RailId(rail), pages });
        let budgets: Vec<Budget> = all.filter(|budget| rails.contains(&budget.rail)).collect();
        let planned = if budgets.len() == pages.len() {
            budget::plan(wanted, &budgets)
        } else {
            budget::share_out(wanted, &budgets).map(Registration::Divided)
        };
        let mut take = |rail: RailId, count: u64| {
            let place = usize::from(rail.0);
            pages[place] -= count;
            (rail, Arc::new(Share { of: Arc::clone(self), rail: place, pages: count }))
        };
        let taken = match planned {
            Ok(Registration::Everywhere) => {
                let pages = wanted.pages_of(wanted.bytes);
                Taken { parts: None, shares: budgets.iter().map(|budget| take(budget.rail, pages)).collect() }
            }
            Ok(Registration::Divided(parts)) => {
                let share = |part: &Part| take(part.rail, wanted.pages_of(part.bytes));
                let shares = parts.iter().map(share).collect();
                Taken { parts: Some(parts), shares }
            }
            Err(refused) => {
                let is_news = shortage.refused(Instant::now());
                drop(left);
                let error = self.refusal(refused, wanted, budgets.len());
                if is_news {
                    tracing::warn!(%error, "regions go by other transports until the NICs have pages left again");
                }
                return Err(error);
            }
        };
        let over = shortage.taken(Instant::now);
        drop(left);
        if let Some(refused) = over {
            tracing::info!(refused, "the NICs have pages left again");
        }
        Ok(taken)
    }

    fn refusal(
        &self,
        TooManyPages { wanted: need, left }: TooManyPages,
        region: Wanted,
        rails: usize,
    ) -> Error {
        let budget = self.most.saturating_mul(rails as u64);
        Error::OverBudget { transport: NAME, need, left, budget, page_bytes: region.page_bytes }
    }
}

/// The layout of a region that was divided into `parts`, in registrations of at most `longest` bytes.
///
/// # Errors
/// [`Error::TransportFailed`] when there are more than `parts_max`.
pub(super) fn layout(
    parts: Vec<Part>,
    longest: Option<u64>,
    page_bytes: u64,
    parts_max: usize,
) -> Result<Layout, Error> {
    let longest = longest.map_or(u64::MAX, |longest| longest / page_bytes.max(1) * page_bytes.max(1));
    let count: u64 = parts.iter().map(|part| part.bytes.div_ceil(longest.max(1))).sum();
    if longest == 0 || count > parts_max as u64 {
        let few = format!("more than {parts_max} registrations");
        return Err(Error::transport(
            NAME,
            format!("a region that is shared out takes {few}: allow longer ones"),
        ));
    }
    Ok(Layout::divided(parts, longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(pages: u64) -> Wanted {
        Wanted { bytes: pages * 4096, page_bytes: 4096 }
    }

    #[test]
    fn pages_are_free_again_when_the_last_who_holds_them_lets_go() {
        let pages = Pages::new(10, 2);
        let take = |count| pages.take(wanted(count), &[RailId(0), RailId(1)]);
        let whole = take(6).unwrap();
        assert!(whole.parts.is_none() && whole.shares.len() == 2);
        let divided = take(7).unwrap();
        assert_eq!(divided.parts.as_ref().unwrap().len(), 2);
        let refused = take(2).unwrap_err();
        let numbers = Error::OverBudget { transport: NAME, need: 2, left: 1, budget: 20, page_bytes: 4096 };
        assert_eq!(refused, numbers);
        let held = divided.share(RailId(0)).unwrap();
        drop((whole, divided));
        assert_eq!(pages.left.lock().pages, [6, 10]);
        drop(held);
        assert_eq!(pages.left.lock().pages, [10, 10]);
        assert!(take(10).is_ok());
    }

    #[test]
    fn a_rail_that_is_not_open_is_given_no_pages() {
        let pages = Pages::new(10, 3);
        let take = |count| pages.take(wanted(count), &[RailId(1), RailId(2)]);
        let one = take(4).unwrap();
        assert_eq!(one.parts, Some(vec![Part { rail: RailId(1), from: 0, bytes: 4 * 4096 }]));
        assert_eq!(pages.left.lock().pages, [10, 6, 10]);
        assert!(one.share(RailId(0)).is_none());
        let refused = take(17).unwrap_err();
        let numbers = Error::OverBudget { transport: NAME, need: 17, left: 16, budget: 20, page_bytes: 4096 };
        assert_eq!(refused, numbers);
        assert_eq!(take(16).unwrap().shares.len(), 2);
        assert_eq!(pages.left.lock().pages, [10, 6, 10]);
    }

    #[test]
    fn a_shortage_is_told_when_it_begins_and_when_nothing_was_refused_for_a_while() {
        let mut shortage = Shortage::default();
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let taken = |shortage: &mut Shortage, seconds| shortage.taken(|| after(seconds));
        assert_eq!(taken(&mut shortage, 0), None, "there was none");
        // At the edge of the budget, a region has a place now and then.
        let mut told = 0;
        for seconds in 0..1000 {
            told += u32::from(shortage.refused(after(seconds)));
            assert_eq!(taken(&mut shortage, seconds), None);
        }
        assert_eq!(told, 1);
        assert_eq!(taken(&mut shortage, 999 + 59), None);
        assert_eq!(taken(&mut shortage, 999 + 60), Some(1000));
        assert_eq!(taken(&mut shortage, 2000), None, "it is told already");
        assert!(shortage.refused(after(2001)));
    }

    #[test]
    fn a_region_in_too_many_registrations_is_refused() {
        let part = |from, bytes| Part { rail: RailId(0), from, bytes };
        let parts = || vec![part(0, 8192), part(8192, 100)];
        assert!(layout(parts(), Some(4096), 4096, 3).is_ok());
        assert!(layout(parts(), Some(4096), 4096, 2).is_err());
        assert!(layout(parts(), Some(4095), 4096, 100).is_err());
        assert_eq!(layout(parts(), None, 4096, 2), Ok(Layout::Divided(parts())));
    }
}
