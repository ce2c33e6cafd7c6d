//! Random numbers from a seed, the same on every machine: for simulations, faults and spreading of load.
//!
//! Not for secrets.

use std::time::Duration;

/// A generator of the splitmix64 family: 64 bits of state, a period of 2^64.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The generator whose numbers `seed` decides.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number, any of them equally likely.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 when that is 0. Off from uniform by at most `bound` in 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The upper half of the product, which is below `bound`.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// True with the probability `probability`, of 0 to 1.
    pub fn chance(&mut self, probability: f64) -> bool {
        const STEPS: u64 = 1 << 53;
        // 53 bits are what an f64 holds exactly.
        (self.below(STEPS) as f64) < probability * STEPS as f64
    }

    /// A time below `bound`, in nanoseconds; zero when that is zero.
    pub fn time_below(&mut self, bound: Duration) -> Duration {
        Duration::from_nanos(self.below(u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_all_numbers() {
        let numbers = |seed| {
            let mut rng = Rng::seeded(seed);
            [rng.next_u64(), rng.next_u64()]
        };
        // The first numbers of splitmix64 from 0, as published with it.
        assert_eq!(numbers(0), [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4]);
        assert_ne!(numbers(1), numbers(2));
    }

    #[test]
    fn chances_and_bounds_hold() {
        let mut rng = Rng::seeded(3);
        let mut seen = [0_u32; 5];
        for _ in 0..5000 {
            seen[usize::try_from(rng.below(5)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
        assert!((0..1000).all(|_| !rng.chance(0.0)));
        assert!((0..1000).all(|_| rng.chance(1.0)));
        let hits = (0..10_000).filter(|_| rng.chance(0.25)).count();
        assert!((2200..2800).contains(&hits), "{hits}");
        assert!(rng.time_below(Duration::from_nanos(10)) < Duration::from_nanos(10));
    }
}
