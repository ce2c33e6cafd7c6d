//! A region as one NIC has it: one registration, or several side by side where it is longer than one may be.
//!
//! Invariants
//! - Where every rail has all of a region, its registrations are each as long as the first but for the last; where the
//!   boundaries are follows from the region's length and the configuration alone.
//! - What this NIC is to have of it is registered whole or not at all.

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::NAME;
use super::keys::Keys;
use super::port::ffi::Port;
use super::registration::ffi::Registration;
use super::shares::Share;
use crate::error::Error;
use crate::memory::{MemorySlice, Region};
use crate::types::ByteCount;

/// Most registrations of one region at one NIC: each has a key, which all peers are told.
pub(super) const REGISTRATIONS_MAX: u64 = 16;
/// Registrations meet at multiples of the usual huge page: one between two would take an entry of each.
const HUGE_PAGE: u64 = 2 << 20;
const BASE_PAGE: u64 = 4096;

/// Bytes from each start of a registration of `region` to the next, where none may be longer than `longest`. `None`
/// when there is one only.
///
/// # Errors
/// [`Error::TransportFailed`] when the region would take too many.
pub(super) fn chunk_bytes(region: &Region, longest: Option<ByteCount>) -> Result<Option<u64>, Error> {
    let Some(longest) = longest else { return Ok(None) };
    let page = if longest.get() < HUGE_PAGE { BASE_PAGE } else { HUGE_PAGE };
    distance(region.length().get(), longest.get(), page).ok_or_else(|| {
        let length = region.length();
        let few = format!("more than {REGISTRATIONS_MAX} registrations of at most {longest}");
        Error::transport(NAME, format!("a region of {length} takes {few}: allow longer ones"))
    })
}

/// Cuts `bytes` between pages into as few pieces of at most `longest` bytes as can be, and as even: returns their
/// length, or `None` inside when nothing is to be cut. `None` when there would be more than [`REGISTRATIONS_MAX`].
fn distance(bytes: u64, longest: u64, page: u64) -> Option<Option<u64>> {
    if bytes <= longest {
        return Some(None);
    }
    let pages = bytes.div_ceil(page);
    let count = match longest / page {
        0 => return None,
        most => pages.div_ceil(most),
    };
    (count <= REGISTRATIONS_MAX).then(|| Some(pages.div_ceil(count) * page))
}

/// What one NIC is to register of a region.
#[derive(Clone)]
pub(super) struct Portion {
    pub(super) region: Arc<Region>,
    /// In order; not empty.
    pub(super) ranges: Vec<Range<u64>>,
    /// The pages that it takes, where they are counted.
    pub(super) share: Option<Arc<Share>>,
}

impl Portion {
    /// All of it, in one registration.
    pub(super) fn whole(region: &Arc<Region>) -> Self {
        let range = 0..region.length().get();
        Self { region: Arc::clone(region), ranges: std::iter::once(range).collect(), share: None }
    }
}

/// A registered region, or what this NIC has of it.
pub(super) struct Registered {
    portion: Portion,
    /// One for each range.
    parts: Vec<Arc<Registration>>,
}

impl Registered {
    /// Registers `portion` with `port`, by fresh `keys`.
    pub(super) fn new(port: &Port, portion: Portion, keys: &mut Keys) -> Result<Self, Error> {
        let part = |range: &Range<u64>| keys.register(port, &portion, range.clone()).map(Arc::new);
        let parts: Result<Vec<_>, _> = portion.ranges.iter().map(part).collect();
        let parts = parts.map_err(|failure| Error::transport(NAME, failure.to_string()))?;
        Ok(Self { portion, parts })
    }

    /// What peers name it by, in order.
    pub(super) fn keys(&self) -> Vec<u64> {
        self.parts.iter().map(|part| part.key()).collect()
    }

    /// The registration that holds all of `local`, a slice of this region; `None` when a boundary lies inside, or another
    /// NIC has it.
    pub(super) fn holding(&self, local: &MemorySlice) -> Option<&Arc<Registration>> {
        let (from, to) = (local.offset(), local.offset() + local.length() as u64);
        let index = self.portion.ranges.partition_point(|range| range.start <= from).checked_sub(1)?;
        self.parts.get(index).filter(|_| to <= self.portion.ranges[index].end)
    }

    /// Lets it go. `done` is dropped when nobody can touch it any more. `is_in_use`: peers may have operations under way in
    /// it.
    pub(super) fn withdraw_then(self, done: oneshot::Sender<()>, is_in_use: bool) {
        let done = Arc::new(done);
        self.parts.iter().for_each(|part| part.notify_withdrawn(Arc::clone(&done), is_in_use));
    }

    /// Takes everybody's right to it at once, and returns what it was.
    pub(super) fn withdraw(self) -> Portion {
        self.parts.iter().for_each(|part| {
            part.withdraw();
        });
        self.portion
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Access, PageKind};
    use proptest::prelude::*;

    #[test]
    fn registrations_meet_between_huge_pages_where_they_are_that_long() {
        let region = Region::anonymous(ByteCount(10 << 20), PageKind::Base, Access::Read).unwrap();
        let chunk = |longest| chunk_bytes(&region, longest);
        assert_eq!(chunk(None), Ok(None));
        assert_eq!(chunk(Some(ByteCount(10 << 20))), Ok(None));
        assert_eq!(chunk(Some(ByteCount((5 << 20) + 1))), Ok(Some(4 << 20)));
        assert_eq!(chunk(Some(ByteCount(1 << 20))), Ok(Some(1 << 20)));
        let refused = chunk(Some(ByteCount(64 << 10))).unwrap_err();
        assert!(refused.to_string().contains("more than 16 registrations"), "{refused}");
    }

    #[test]
    fn a_region_is_cut_only_where_it_must_be() {
        assert_eq!(distance(8192, 8192, 4096), Some(None));
        assert_eq!(distance(5, 5, 4096), Some(None));
        assert_eq!(distance(8193, 8192, 4096), Some(Some(8192)));
        // Even pieces: not four pages and one.
        assert_eq!(distance(5 * 4096, 4 * 4096, 4096), Some(Some(3 * 4096)));
        assert_eq!(distance(16 * 4096, 4096, 4096), Some(Some(4096)));
        assert_eq!(distance(16 * 4096 + 1, 4096, 4096), None);
        assert_eq!(distance(5, 4, 4096), None);
    }

    proptest! {
        #[test]
        fn registrations_side_by_side_are_few_and_short_and_meet_between_pages(
            bytes in 0_u64..1 << 40, share in 1_u64..20, more in 0_u64..1 << 30, page in 0_u32..31,
        ) {
            let (longest, page) = (bytes / share + more, 1_u64 << page);
            match distance(bytes, longest, page) {
                Some(None) => prop_assert!(bytes <= longest),
                Some(Some(distance)) => {
                    prop_assert!(distance <= longest && distance % page == 0);
                    prop_assert!((2..=REGISTRATIONS_MAX).contains(&bytes.div_ceil(distance)));
                }
                None => prop_assert!(bytes > longest / page * page * REGISTRATIONS_MAX),
            }
        }
    }
}
