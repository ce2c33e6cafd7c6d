//! Hot path: spreads slices over rails so that all are done at the same time.
//!
//! Each slice goes to the rail that would finish it first: (bytes waiting there + its own) / rate. The rate is measured
//! ([`Rate`]) by what is long enough to tell it; before that, it is what the device claims. A far rail is charged for its
//! distance, so that it is used only when the near ones are busy, and for the PCIe links between it and memory, each of
//! which costs a moment whatever the length: of rails that are alike otherwise, a short slice goes by the one with fewer. A
//! rail that takes no more operations is chosen only when none does.

use crate::types::RailId;

pub use crate::transport::Rate;

/// A rail as the plan sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RailView {
    /// Which one.
    pub id: RailId,
    /// Bytes posted and not complete.
    pub waiting_bytes: u64,
    /// Bytes per second, measured or claimed; 0 where unknown.
    pub bytes_per_second: u64,
    /// Distance from the local memory, as NUMA distances go: 10 is local, 20 is twice as far; 0 where unknown.
    pub distance: u32,
    /// PCIe links between the device and the root complex, through which it reaches memory; 0 where unknown.
    pub pci_links: u32,
    /// Operations that it takes beside those that it has.
    pub credits: usize,
}

/// Rate that is assumed where nothing is known; the value matters only against other rails, which then have it too.
const ASSUMED_RATE: u64 = 1 << 30;
/// Distance of memory on the same node, by the ACPI specification's table of distances.
const LOCAL_DISTANCE: u32 = 10;
/// What one more PCIe link costs, there and back: data sheets of switches have 100 to 150 ns for each way.
const PCI_LINK_NS: u128 = 250;

impl RailView {
    /// Nanoseconds until `length` more bytes would be done.
    fn finish_ns(&self, length: u64) -> u128 {
        let rate = if self.bytes_per_second == 0 { ASSUMED_RATE } else { self.bytes_per_second };
        let far = u128::from(self.distance.max(LOCAL_DISTANCE));
        let bytes = u128::from(self.waiting_bytes.saturating_add(length));
        let moving = bytes * 1_000_000_000 * far / u128::from(LOCAL_DISTANCE) / u128::from(rate);
        moving + u128::from(self.pci_links) * PCI_LINK_NS
    }
}

/// The rail for a slice of `length` bytes, which is then counted as waiting there. `None` without rails.
pub fn choose(rails: &mut [RailView], length: u64) -> Option<RailId> {
    let best = rails.iter_mut().min_by_key(|rail| (rail.credits == 0, rail.finish_ns(length), rail.id))?;
    best.waiting_bytes = best.waiting_bytes.saturating_add(length);
    best.credits = best.credits.saturating_sub(1);
    Some(best.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rail(id: u16, bytes_per_second: u64, distance: u32) -> RailView {
        let credits = usize::MAX;
        RailView { id: RailId(id), waiting_bytes: 0, bytes_per_second, distance, pci_links: 0, credits }
    }

    fn spread(rails: &mut [RailView], slices: usize) -> Vec<u64> {
        (0..slices).for_each(|_| assert!(choose(rails, 1 << 20).is_some()));
        rails.iter().map(|rail| rail.waiting_bytes >> 20).collect()
    }

    #[test]
    fn rails_get_slices_in_proportion_to_their_rate() {
        let mut rails = [rail(0, 100 << 20, 10), rail(1, 300 << 20, 10)];
        assert_eq!(spread(&mut rails, 400), [100, 300]);
    }

    #[test]
    fn a_far_rail_is_used_only_when_the_near_one_is_busy() {
        let mut rails = [rail(0, 1 << 30, 10), rail(1, 1 << 30, 20)];
        assert_eq!(choose(&mut rails, 1 << 20), Some(RailId(0)));
        assert_eq!(spread(&mut rails, 299), [200, 100]);
    }

    #[test]
    fn without_rails_there_is_no_choice_and_unknown_rates_are_equal() {
        assert_eq!(choose(&mut [], 1), None);
        assert_eq!(spread(&mut [rail(0, 0, 0), rail(1, 0, 0)], 10), [5, 5]);
    }

    proptest! {
        #[test]
        fn no_full_rail_is_chosen_while_another_has_room(
            rails in proptest::collection::vec((1_u64 << 20..1 << 36, 0_usize..5), 1..8),
            slices in 1_usize..40,
        ) {
            let view = |(id, &(rate, credits))| RailView { credits, ..rail(id, rate, 10) };
            let mut rails: Vec<_> = (0_u16..).zip(&rails).map(view).collect();
            for _ in 0..slices {
                let before = rails.clone();
                let chosen = choose(&mut rails, 1 << 20).unwrap();
                let is_full = before[usize::from(chosen.0)].credits == 0;
                prop_assert!(!is_full || before.iter().all(|rail| rail.credits == 0), "{:?}", before);
            }
        }

        #[test]
        fn of_rails_that_are_alike_an_idle_one_with_the_fewest_pcie_links_is_chosen(
            rate in 1_u64 << 20..1 << 36, length in 1_u64..1 << 26,
            links in proptest::collection::vec(0_u32..8, 1..8),
        ) {
            let view = |(id, &pci_links)| RailView { pci_links, ..rail(id, rate, 10) };
            let mut rails: Vec<_> = (0_u16..).zip(&links).map(view).collect();
            let chosen = choose(&mut rails, length).unwrap();
            prop_assert_eq!(Some(&links[usize::from(chosen.0)]), links.iter().min());
        }

        #[test]
        fn pcie_links_cost_a_moment_and_no_share_of_the_rate(
            rate in 1_u64 << 28..1 << 36, links in proptest::collection::vec(0_u32..8, 2..6),
        ) {
            let view = |(id, &pci_links)| RailView { pci_links, ..rail(id, rate, 10) };
            let mut rails: Vec<_> = (0_u16..).zip(&links).map(view).collect();
            let waiting = spread(&mut rails, 64 * links.len());
            for (a, b) in links.iter().zip(&waiting).flat_map(|a| links.iter().zip(&waiting).map(move |b| (a, b))) {
                // Bytes that pass while the links of the one are gone through more than those of the other.
                let ahead = u128::from(a.0.abs_diff(*b.0)) * PCI_LINK_NS * u128::from(rate) / 1_000_000_000;
                let slices = u64::try_from(ahead >> 20).unwrap() + 2;
                prop_assert!(a.1.abs_diff(*b.1) <= slices, "{:?} {:?}", links, waiting);
                prop_assert!(a.0 >= b.0 || a.1 + 1 >= *b.1, "{:?} {:?}", links, waiting);
            }
        }

        #[test]
        fn no_rail_finishes_later_than_one_slice_after_the_first(
            rates in proptest::collection::vec(1_u64 << 20..1 << 36, 1..8), slices in 1_usize..300,
        ) {
            let mut rails: Vec<_> = (0_u16..).zip(&rates).map(|(id, &rate)| rail(id, rate, 10)).collect();
            spread(&mut rails, slices);
            let first_free = rails.iter().map(|rail| rail.finish_ns(1 << 20)).min().unwrap();
            for rail in &rails {
                prop_assert!(rail.waiting_bytes == 0 || rail.finish_ns(0) <= first_free, "{:?}", rails);
            }
        }
    }
}
