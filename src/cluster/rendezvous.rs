//! Weighted rendezvous hashing: who is responsible for something, computed alike on every host from the members alone.
//!
//! Each member draws a number for each item, and the lowest cost wins: `-log2(hash / 2^64) / weight`, an exponential
//! variable whose rate is the weight, so that the chance to win is the member's share of all weights (Schindelhauer and
//! Schomaker, "Weighted Distributed Hash Tables", SPAA 2005). A member that leaves gives away only what was its own; one
//! that joins takes from each what is due to it.
//!
//! Everything is done in integers: hosts with different CPUs and mathematical libraries must agree to the last bit.

use tidefs_engine::types::MemberId;
use twox_hash::XxHash3_64;

/// Bits behind the point of [`log2`].
const FRACTION_BITS: u32 = 32;

/// What a member is weighted by: its capacity in GiB, at least 1. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight(u32);

impl Weight {
    /// The weight of a member that caches this much.
    #[must_use]
    pub fn of(capacity: tidefs_engine::types::ByteCount) -> Self {
        Self(u32::try_from(capacity.get() >> 30).unwrap_or(u32::MAX).max(1))
    }
}

/// How much a member pays for an item: the cheapest is responsible. Compares exactly; ties go to the smaller id.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// `-log2` of the drawn number, [`FRACTION_BITS`] behind the point.
    depth: u64,
    weight: Weight,
    member: MemberId,
}

impl Cost {
    /// What `member` pays for the item that hashes to `item`.
    #[must_use]
    pub fn new(item: u64, member: MemberId, weight: Weight) -> Self {
        let drawn = XxHash3_64::oneshot_with_seed(member.0, &item.to_le_bytes());
        // The hash is a number of 64 bits and never more than 2^64, so the difference is not negative.
        let depth = (64 << FRACTION_BITS) - log2(drawn.max(1));
        Self { depth, weight, member }
    }

    /// Whose cost it is.
    #[must_use]
    pub fn member(&self) -> MemberId {
        self.member
    }
}

impl PartialEq for Cost {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Cost {}

impl PartialOrd for Cost {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Cost {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // depth / weight, compared without dividing: 38 bits times 32.
        let left = u128::from(self.depth) * u128::from(other.weight.0);
        let right = u128::from(other.depth) * u128::from(self.weight.0);
        left.cmp(&right).then(self.member.cmp(&other.member))
    }
}

/// log2 of `x`, which is not 0, with [`FRACTION_BITS`] behind the point, rounded down.
fn log2(x: u64) -> u64 {
    let whole = x.ilog2();
    // x / 2^whole, in [1, 2), with 63 bits behind the point.
    let mut mantissa = x << (63 - whole);
    let mut fraction = 0;
    for _ in 0..FRACTION_BITS {
        // Squaring doubles the logarithm; its next bit is whether the square reached 2.
        let square = (u128::from(mantissa) * u128::from(mantissa)) >> 63;
        fraction <<= 1;
        if square >> 64 == 0 {
            mantissa = low(square);
        } else {
            fraction |= 1;
            mantissa = low(square >> 1);
        }
    }
    (u64::from(whole) << FRACTION_BITS) | fraction
}

/// The low 64 bits.
fn low(x: u128) -> u64 {
    u64::try_from(x & u128::from(u64::MAX)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidefs_engine::types::ByteCount;

    fn winner(item: u64, members: &[(u64, u32)]) -> u64 {
        let costs = members.iter().map(|&(id, weight)| Cost::new(item, MemberId(id), Weight(weight)));
        costs.min().unwrap().member().0
    }

    #[test]
    fn powers_of_two_have_whole_logarithms() {
        for bit in 0..64 {
            assert_eq!(log2(1 << bit), bit << FRACTION_BITS);
        }
    }

    #[test]
    fn everyone_wins_as_often_as_it_weighs() {
        let members = [(1, 1), (2, 2), (3, 5), (4, 8)];
        let mut wins = [0_u32; 5];
        for item in 0..64_000 {
            wins[usize::try_from(winner(item, &members)).unwrap()] += 1;
        }
        for (id, weight) in members {
            let (expected, found) = (4000 * weight, wins[usize::try_from(id).unwrap()]);
            // Six standard deviations of the narrowest.
            assert!(found.abs_diff(expected) < 6 * expected.isqrt(), "{id}: {found}, expected {expected}");
        }
    }

    #[test]
    fn the_winner_of_an_item_is_the_same_in_every_build() {
        // Golden: a change of these moves every key of every running cluster.
        let members = [(0x11, 4), (0x22, 4), (0x33, 16)];
        let winners: Vec<u64> = (0..12).map(|item| winner(item, &members)).collect();
        assert_eq!(winners, GOLDEN);
    }

    const GOLDEN: [u64; 12] = [0x33, 0x33, 0x33, 0x33, 0x33, 0x33, 0x33, 0x22, 0x33, 0x33, 0x11, 0x33];

    #[test]
    fn a_weight_is_the_capacity_in_gib_and_never_nothing() {
        assert_eq!(Weight::of(ByteCount(0)), Weight(1));
        assert_eq!(Weight::of(ByteCount::gib(64)), Weight(64));
        assert_eq!(Weight::of(ByteCount(u64::MAX)), Weight(u32::MAX));
    }

    proptest! {
        #[test]
        fn the_integer_logarithm_is_that_of_real_numbers(x in 1_u64..) {
            let exact = (x as f64).log2() * 2_f64.powi(32);
            prop_assert!((log2(x) as f64 - exact).abs() < 4096.0, "{} {exact}", log2(x));
        }

        #[test]
        fn who_leaves_gives_away_only_its_own(
            item: u64,
            members in proptest::collection::btree_map(any::<u64>(), 1_u32..1000, 2..12),
            left: proptest::sample::Index,
        ) {
            let members: Vec<(u64, u32)> = members.into_iter().collect();
            let before = winner(item, &members);
            let mut rest = members.clone();
            let (gone, _) = rest.remove(left.index(members.len()));
            prop_assert!(before == gone || winner(item, &rest) == before);
        }

        #[test]
        fn who_grows_loses_nothing(
            item: u64,
            members in proptest::collection::btree_map(any::<u64>(), 1_u32..1000, 2..12),
            grown: proptest::sample::Index,
        ) {
            let mut members: Vec<(u64, u32)> = members.into_iter().collect();
            let before = winner(item, &members);
            let index = grown.index(members.len());
            members[index].1 *= 3;
            let after = winner(item, &members);
            prop_assert!(after == before || after == members[index].0);
        }
    }
}
