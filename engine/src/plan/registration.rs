//! Shares memory out among NICs.
//!
//! A NIC translates addresses by a table of limited size, one entry a page; beyond it, registration fails or every
//! access misses the NIC's cache. Where all regions fit, every rail registers everything and any rail can carry any
//! byte. Where they do not, rails register disjoint chunks, so that together they reach all of it; where even that does
//! not fit, the plan says what is missing instead of registering a part.

use crate::types::RailId;

/// A region to register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Length in bytes.
    pub bytes: u64,
    /// Size of its pages in bytes; at least 1.
    pub page_bytes: u64,
}

/// A rail and the pages that it can translate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Which rail.
    pub rail: RailId,
    /// Pages.
    pub pages: u64,
}

/// A part of a region on one rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Index in the list of regions.
    pub region: usize,
    /// Start in bytes, a multiple of the region's page.
    pub from: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Rail that registers it.
    pub rail: RailId,
}

/// What is registered where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Every rail registers everything.
    Everywhere,
    /// Each chunk is on one rail.
    Divided(Vec<Chunk>),
}

/// The rails cannot translate all of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the regions have {wanted} pages and all rails together translate {budget}: use larger pages (hugetlb), a \
     smaller capacity, or raise the NIC's limit"
)]
pub struct TooManyPages {
    /// Pages of all regions.
    pub wanted: u64,
    /// Pages of all rails.
    pub budget: u64,
}

/// Plans the registration of `regions` on `rails`.
///
/// # Errors
/// [`TooManyPages`] when the rails together are too small. Without rails that is the case for any memory.
pub fn plan(regions: &[Wanted], rails: &[Budget]) -> Result<Registration, TooManyPages> {
    let pages_of = |region: &Wanted| region.bytes.div_ceil(region.page_bytes.max(1));
    let wanted = regions.iter().map(pages_of).fold(0, u64::saturating_add);
    if rails.iter().all(|rail| rail.pages >= wanted) && !(rails.is_empty() && wanted > 0) {
        return Ok(Registration::Everywhere);
    }
    let budget = rails.iter().map(|rail| rail.pages).fold(0, u64::saturating_add);
    if budget < wanted {
        return Err(TooManyPages { wanted, budget });
    }
    Ok(Registration::Divided(divide(regions, rails, pages_of)))
}

/// Fills the rails one after the other. `rails` have room for all pages.
fn divide(regions: &[Wanted], rails: &[Budget], pages_of: impl Fn(&Wanted) -> u64) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut rails = rails.iter().copied();
    let mut rail = rails.next();
    for (index, region) in regions.iter().enumerate() {
        let page = region.page_bytes.max(1);
        let (mut first, pages) = (0, pages_of(region));
        while first < pages {
            let Some(current) = &mut rail else { return chunks };
            if current.pages == 0 {
                rail = rails.next();
                continue;
            }
            let count = current.pages.min(pages - first);
            let from = first * page;
            chunks.push(Chunk {
                region: index,
                from,
                bytes: (count * page).min(region.bytes - from),
                rail: current.rail,
            });
            current.pages -= count;
            first += count;
        }
    }
    chunks
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

    #[test]
    fn what_fits_is_registered_everywhere() {
        assert_eq!(plan(&[wanted(8192)], &[budget(0, 2), budget(1, 2)]), Ok(Registration::Everywhere));
        assert_eq!(plan(&[], &[]), Ok(Registration::Everywhere));
    }

    #[test]
    fn too_small_rails_share_the_memory() {
        let chunk = |from, bytes, rail| Chunk { region: 0, from, bytes, rail: RailId(rail) };
        let divided = vec![chunk(0, 8192, 0), chunk(8192, 4097, 1)];
        assert_eq!(
            plan(&[wanted(12_289)], &[budget(0, 2), budget(1, 2)]),
            Ok(Registration::Divided(divided))
        );
    }

    #[test]
    fn memory_that_no_rails_can_translate_is_an_error_with_numbers() {
        let refused = plan(&[wanted(12_289)], &[budget(0, 2), budget(1, 1)]);
        assert_eq!(refused, Err(TooManyPages { wanted: 4, budget: 3 }));
        assert_eq!(plan(&[wanted(1)], &[]), Err(TooManyPages { wanted: 1, budget: 0 }));
    }

    proptest! {
        #[test]
        fn chunks_cover_all_memory_once_and_keep_every_budget(
            lengths in proptest::collection::vec(0_u64..200_000, 0..8),
            pages in proptest::collection::vec(0_u64..100, 1..6),
        ) {
            let regions: Vec<_> = lengths.iter().map(|&bytes| wanted(bytes)).collect();
            let rails: Vec<_> = (0_u16..).zip(&pages).map(|(rail, &pages)| budget(rail, pages)).collect();
            if let Ok(Registration::Divided(chunks)) = plan(&regions, &rails) {
                let mut covered = vec![0; regions.len()];
                let mut used = vec![0; rails.len()];
                for chunk in &chunks {
                    prop_assert_eq!(chunk.from, covered[chunk.region]);
                    prop_assert!(chunk.from % 4096 == 0 && chunk.bytes > 0);
                    covered[chunk.region] += chunk.bytes;
                    used[usize::from(chunk.rail.0)] += chunk.bytes.div_ceil(4096);
                }
                prop_assert_eq!(&covered, &lengths);
                prop_assert!(used.iter().zip(&pages).all(|(used, budget)| used <= budget));
            }
        }
    }
}
