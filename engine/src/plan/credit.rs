//! Cuts a list to what a provider takes at once.

/// Lengths of the pieces in which `count` things are handed over when at most `limit` are taken at a time.
///
/// The pieces are as even as can be, so that the last is not a crumb that costs a round trip of its own: 65 in
/// portions of at most 64 are 33 and 32. `limit` 0 is taken as 1.
pub fn portions(count: usize, limit: usize) -> impl Iterator<Item = usize> {
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
