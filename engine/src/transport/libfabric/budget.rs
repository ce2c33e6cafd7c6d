//! Shares memory out among NICs.
//!
//! A NIC translates addresses by a table of limited size, one entry a page; beyond it, registration fails or every
//! access misses the NIC's cache. Where a region fits beside what is registered already, every rail registers it and any rail
//! can carry any byte. Where it does not, rails register disjoint parts of it, as few as can be; where even that does not
//! fit, the plan says what is missing instead of registering a part.

use super::layout::Part;
use crate::types::RailId;

/// A region to register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Length in bytes.
    pub(super) bytes: u64,
    /// Size of its pages in bytes; at least 1.
    pub(super) page_bytes: u64,
}

impl Wanted {
    /// Entries of a table that `bytes` of it take, from the start of a page on.
    pub(super) fn pages_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.page_bytes.max(1))
    }
}

/// A rail and the pages that it can translate beside those that are registered with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// Which rail.
    pub(super) rail: RailId,
    /// Pages.
    pub(super) pages: u64,
}

/// What is registered where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Registration {
    /// Every rail registers all of it.
    Everywhere,
    /// Each part is on one rail, and each rail has one at most. In the order of the region.
    Divided(Vec<Part>),
}

/// The rails cannot translate all of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyPages {
    /// Pages of the region.
    pub(super) wanted: u64,
    /// Pages that all rails together have left.
    pub(super) left: u64,
}

/// Plans the registration of `region` on `rails`.
///
/// # Errors
/// [`TooManyPages`] when the rails together are too small. Without rails that is the case for any memory.
pub(super) fn plan(region: Wanted, rails: &[Budget]) -> Result<Registration, TooManyPages> {
    let wanted = region.pages_of(region.bytes);
    if rails.iter().all(|rail| rail.pages >= wanted) && !(rails.is_empty() && wanted > 0) {
        return Ok(Registration::Everywhere);
    }
    share_out(region, rails).map(Registration::Divided)
}

/// The same where not all rails of the host are among `rails`, so that each byte is to be at one of these.
///
/// # Errors
/// As [`plan`].
pub(super) fn share_out(region: Wanted, rails: &[Budget]) -> Result<Vec<Part>, TooManyPages> {
    let wanted = region.pages_of(region.bytes);
    let left = rails.iter().map(|rail| rail.pages).fold(0, u64::saturating_add);
    if left < wanted {
        return Err(TooManyPages { wanted, left });
    }
    Ok(divide(region, rails))
}

/// Fills the rails one after the other, those with the most room first. `rails` have room for all pages.
fn divide(region: Wanted, rails: &[Budget]) -> Vec<Part> {
    let page = region.page_bytes.max(1);
    let mut rails = rails.to_vec();
    rails.sort_by_key(|rail| std::cmp::Reverse(rail.pages));
    let mut from = 0;
    let part = |rail: Budget| {
        let bytes = rail.pages.saturating_mul(page).min(region.bytes - from);
        let part = Part { from, bytes, rail: rail.rail };
        from += bytes;
        (bytes > 0).then_some(part)
    };
    rails.into_iter().map_while(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn wanted(bytes: u64) -> Wanted {
        Wanted { bytes, page_bytes: 4096 }
    }

    const fn budget(rail: u16, pages: u64) -> Budget {
        Budget { rail: RailId(rail), pages }
    }

    const fn part(from: u64, bytes: u64, rail: u16) -> Part {
        Part { from, bytes, rail: RailId(rail) }
    }

    #[test]
    fn what_fits_is_registered_everywhere() {
        assert_eq!(plan(wanted(8192), &[budget(0, 2), budget(1, 2)]), Ok(Registration::Everywhere));
        assert_eq!(plan(wanted(0), &[]), Ok(Registration::Everywhere));
    }

    #[test]
    fn too_small_rails_share_the_memory() {
        let divided = vec![part(0, 8192, 0), part(8192, 4097, 1)];
        assert_eq!(plan(wanted(12_289), &[budget(0, 2), budget(1, 2)]), Ok(Registration::Divided(divided)));
    }

    #[test]
    fn what_fits_one_rail_alone_is_whole_there() {
        let one = Registration::Divided(vec![part(0, 8192, 1)]);
        assert_eq!(plan(wanted(8192), &[budget(0, 1), budget(1, 3), budget(2, 2)]), Ok(one));
        assert_eq!(share_out(wanted(8192), &[budget(1, 2), budget(2, 2)]), Ok(vec![part(0, 8192, 1)]));
    }

    #[test]
    fn memory_that_no_rails_can_translate_is_an_error_with_numbers() {
        let refused = plan(wanted(12_289), &[budget(0, 2), budget(1, 1)]);
        assert_eq!(refused, Err(TooManyPages { wanted: 4, left: 3 }));
        assert_eq!(plan(wanted(1), &[]), Err(TooManyPages { wanted: 1, left: 0 }));
    }

    proptest! {
        /// Regions come one after the other, as they do where they are registered: each takes of what is left.
        #[test]
        fn parts_cover_all_memory_once_and_keep_every_budget(
            lengths in proptest::collection::vec(0_u64..200_000, 0..8),
            pages in proptest::collection::vec(0_u64..100, 1..6),
        ) {
            let mut rails: Vec<_> = (0_u16..).zip(&pages).map(|(rail, &pages)| budget(rail, pages)).collect();
            for region in lengths.into_iter().map(wanted) {
                let whole = region.pages_of(region.bytes);
                match plan(region, &rails) {
                    Ok(Registration::Everywhere) => {
                        prop_assert!(rails.iter().all(|rail| rail.pages >= whole));
                        rails.iter_mut().for_each(|rail| rail.pages -= whole);
                    }
                    Ok(Registration::Divided(parts)) => {
                        let mut covered = 0;
                        for part in &parts {
                            prop_assert_eq!(part.from, covered);
                            prop_assert!(part.from % 4096 == 0 && part.bytes > 0);
                            covered += part.bytes;
                            let taken = region.pages_of(part.bytes);
                            let rail = &mut rails[usize::from(part.rail.0)];
                            prop_assert!(rail.pages >= taken);
                            rail.pages -= taken;
                        }
                        prop_assert_eq!(covered, region.bytes);
                        // In one piece wherever there is a rail that has room for all of it.
                        prop_assert!(parts.len() == 1 || rails.iter().all(|rail| rail.pages < whole));
                    }
                    Err(refused) => {
                        let left = rails.iter().map(|rail| rail.pages).sum();
                        prop_assert_eq!(refused, TooManyPages { wanted: whole, left });
                        prop_assert!(left < whole);
                    }
                }
            }
        }

        #[test]
        fn no_rail_has_two_parts(
            bytes in 0_u64..1 << 24, page in 0_u32..22, pages in proptest::collection::vec(any::<u64>(), 0..8),
        ) {
            let rails: Vec<_> = (0_u16..).zip(&pages).map(|(rail, &pages)| budget(rail, pages % 2000)).collect();
            if let Ok(Registration::Divided(parts)) = plan(Wanted { bytes, page_bytes: 1 << page }, &rails) {
                let mut rails: Vec<_> = parts.iter().map(|part| part.rail).collect();
                rails.sort_unstable();
                rails.dedup();
                prop_assert_eq!(rails.len(), parts.len());
            }
        }
    }
}
