//! How many operations a NIC is given, and in what portions.
//!
//! A provider says how many it holds, and some take fewer: what a connection or a work request needs besides is
//! counted nowhere. So the number is learned: a refusal shows it, and each operation that ends allows one more, up to
//! what was said.

/// Operations that a NIC may be given.
///
/// Invariant: `used <= working <= limit`, and `working` is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Credits {
    limit: usize,
    working: usize,
    used: usize,
}

impl Credits {
    /// All of `limit`, which is at least 1.
    pub(super) fn new(limit: usize) -> Self {
        let limit = limit.max(1);
        Self { limit, working: limit, used: 0 }
    }

    /// Takes one for an operation. False when all are in use.
    pub(super) fn take(&mut self) -> bool {
        let is_free = self.used < self.working;
        self.used += usize::from(is_free);
        is_free
    }

    /// The operation was not started, for no reason of the NIC's.
    pub(super) fn give_back(&mut self) {
        self.used = self.used.saturating_sub(1);
    }

    /// The operation was not started: the NIC has no room for more than it has.
    pub(super) fn refused(&mut self) {
        self.give_back();
        self.working = self.used.max(1);
    }

    /// The operation has ended.
    pub(super) fn ended(&mut self) {
        self.give_back();
        self.working = self.limit.min(self.working + 1);
    }

    /// How many are left.
    pub(super) fn left(&self) -> usize {
        self.working - self.used
    }
}

/// Lengths of the pieces in which `count` things are handed over when at most `limit` are taken at a time.
///
/// The pieces are as even as can be, so that the last is not a crumb that costs a round trip of its own: 65 in
/// portions of at most 64 are 33 and 32. `limit` 0 is taken as 1.
pub(super) fn portions(count: usize, limit: usize) -> impl Iterator<Item = usize> {
    let pieces = count.div_ceil(limit.max(1));
    let (even, longer) = count.checked_div(pieces).map_or((0, 0), |even| (even, count % pieces));
    (0..pieces).map(move |piece| even + usize::from(piece < longer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(count: usize, limit: usize) -> Vec<usize> {
        portions(count, limit).collect()
    }

    #[test]
    fn lists_around_the_limit_are_cut_where_they_must_be() {
        assert_eq!(all(0, 64), []);
        assert_eq!(all(63, 64), [63]);
        assert_eq!(all(64, 64), [64]);
        assert_eq!(all(65, 64), [33, 32]);
        assert_eq!(all(129, 64), [43, 43, 43]);
        assert_eq!(all(2, 0), [1, 1]);
    }

    proptest! {
        /// A NIC that says `limit` and holds `room` is given operations, of which any may end at any time.
        #[test]
        fn credits_stay_within_what_was_said_and_come_back(
            limit in 1_usize..200,
            room in 1_usize..200,
            steps in proptest::collection::vec(any::<bool>(), 0..400),
        ) {
            let mut credits = Credits::new(limit);
            let mut held = 0;
            for starts in steps {
                if starts && credits.take() {
                    if held < room {
                        held += 1;
                    } else {
                        credits.refused();
                    }
                } else if held > 0 {
                    held -= 1;
                    credits.ended();
                }
                prop_assert_eq!(credits.used, held);
                prop_assert!(credits.used <= credits.working && (1..=limit).contains(&credits.working));
            }
            // One that holds all again gets all again.
            for _ in 0..limit + held {
                prop_assert!(held > 0 || credits.take());
                held = held.saturating_sub(1);
                credits.ended();
            }
            prop_assert_eq!(credits.left(), limit);
        }

        #[test]
        fn portions_are_even_and_as_few_as_possible(count in 0_usize..10_000, limit in 1_usize..500) {
            let portions = all(count, limit);
            prop_assert_eq!(portions.iter().sum::<usize>(), count);
            prop_assert_eq!(portions.len(), count.div_ceil(limit));
            prop_assert!(portions.iter().all(|&portion| portion <= limit && portion > 0));
            let (least, most) = (portions.iter().min(), portions.iter().max());
            prop_assert!(most.zip(least).is_none_or(|(most, least)| most - least <= 1));
        }
    }
}
