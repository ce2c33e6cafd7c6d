//! The pages that each NIC may still translate, where that has a limit ([`FabricConfig::pages_max`]).
//!
//! Invariants
//! - What is registered at a NIC takes no more pages than the limit.
//! - The pages of a registration are free again when the library has closed it, and not before.
//!
//! [`FabricConfig::pages_max`]: super::FabricConfig::pages_max

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::NAME;
use super::budget::{self, Budget, Registration, TooManyPages, Wanted};
use super::layout::{Layout, Part};
use crate::error::Error;
use crate::types::RailId;

/// The pages of all NICs of a transport.
#[derive(Debug)]
pub(super) struct Pages {
    /// Pages that each NIC may translate.
    most: u64,
    /// Those that are left, by rail. Held for a plan; never across a call of a NIC's thread.
    left: Mutex<Vec<u64>>,
    /// Whether the last region that came had no place.
    is_short: AtomicBool,
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
        self.of.left.lock()[self.rail] += self.pages;
    }
}

impl Pages {
    pub(super) fn new(most: u64, rails: usize) -> Arc<Self> {
        let left = Mutex::new(vec![most; rails]);
        Arc::new(Self { most, left, is_short: AtomicBool::new(false) })
    }

    /// Takes the pages of a region.
    ///
    /// # Errors
    /// [`Error::OverBudget`] when all rails together have too few pages left.
    pub(super) fn take(self: &Arc<Self>, wanted: Wanted) -> Result<Taken, Error> {
        let mut left = self.left.lock();
        let budgets: Vec<Budget> =
            (0..).zip(left.iter()).map(|(rail, &pages)| Budget { rail: RailId(rail), pages }).collect();
        let planned = budget::plan(wanted, &budgets);
        let mut take = |rail: RailId, pages: u64| {
            let place = usize::from(rail.0);
            left[place] -= pages;
            (rail, Arc::new(Share { of: Arc::clone(self), rail: place, pages }))
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
                drop(left);
                return Err(self.refuse(refused, wanted, budgets.len()));
            }
        };
        drop(left);
        if self.is_short.swap(false, Ordering::Relaxed) {
            tracing::info!("the NICs have pages left again");
        }
        Ok(taken)
    }

    /// Says so once, and not for each region that comes while it is so.
    fn refuse(
        &self,
        TooManyPages { wanted: need, left }: TooManyPages,
        region: Wanted,
        rails: usize,
    ) -> Error {
        let budget = self.most.saturating_mul(rails as u64);
        let error = Error::OverBudget { transport: NAME, need, left, budget, page_bytes: region.page_bytes };
        if !self.is_short.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "regions go by other transports until the NICs have pages left again");
        }
        error
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
        let whole = pages.take(wanted(6)).unwrap();
        assert!(whole.parts.is_none() && whole.shares.len() == 2);
        let divided = pages.take(wanted(7)).unwrap();
        assert_eq!(divided.parts.as_ref().unwrap().len(), 2);
        let refused = pages.take(wanted(2)).unwrap_err();
        let numbers = Error::OverBudget { transport: NAME, need: 2, left: 1, budget: 20, page_bytes: 4096 };
        assert_eq!(refused, numbers);
        let held = divided.share(RailId(0)).unwrap();
        drop((whole, divided));
        assert_eq!(*pages.left.lock(), [6, 10]);
        drop(held);
        assert_eq!(*pages.left.lock(), [10, 10]);
        assert!(pages.take(wanted(10)).is_ok());
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
