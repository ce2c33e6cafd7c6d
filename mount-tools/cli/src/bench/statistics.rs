//! Medians and spreads of the few samples that the rounds of a bench give.

use serde::Serialize;

/// Median, smallest and largest of some samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// The middle sample, or the mean of the two middle ones.
    pub(crate) median: f64,
    /// The smallest sample.
    pub(crate) minimum: f64,
    /// The largest sample.
    pub(crate) maximum: f64,
    /// How many samples there were.
    pub(crate) samples: usize,
}

impl Spread {
    /// The spread of `samples`, or `None` without samples.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let upper = *sorted.get(middle)?;
        let median =
            if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[middle - 1], upper) } else { upper };
        Some(Self { median, minimum: sorted[0], maximum: sorted[sorted.len() - 1], samples: sorted.len() })
    }

    /// A figure that was measured once.
    pub(crate) fn single(value: f64) -> Self {
        Self { median: value, minimum: value, maximum: value, samples: 1 }
    }
}

/// The ratios of samples that were taken in the same round: `numerators[i] / denominators[i]`.
///
/// Dividing within a round keeps what a neighbour on the machine did in another round out of the ratio.
pub(crate) fn paired_ratios(numerators: &[f64], denominators: &[f64]) -> Vec<f64> {
    assert_eq!(numerators.len(), denominators.len(), "both sides are sampled in each round");
    numerators.iter().zip(denominators).map(|(numerator, denominator)| numerator / denominator).collect()
}

/// Median of `values` in place, in their own unit. Zero without values.
pub(crate) fn median_of(values: &mut [u64]) -> u64 {
    let middle = values.len() / 2;
    if values.is_empty() { 0 } else { *values.select_nth_unstable(middle).1 }
}

/// The value below which the part `share` of the sorted `values` lies; 0 without values.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "an index"
)]
pub(crate) fn percentile(values: &[f64], share: f64) -> f64 {
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let values: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!((percentile(&values, 0.5), percentile(&values, 0.99)), (50.0, 99.0));
        let more: Vec<f64> = (0..=200).map(f64::from).collect();
        assert_eq!((percentile(&more, 0.5), percentile(&more, 0.99)), (100.0, 198.0));
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    #[test]
    fn the_median_of_an_odd_number_of_samples_is_the_middle_one() {
        let spread = Spread::of(&[3.0, 1.0, 9.0]).unwrap();
        assert_eq!(spread, Spread { median: 3.0, minimum: 1.0, maximum: 9.0, samples: 3 });
    }

    #[test]
    fn the_median_of_an_even_number_of_samples_is_the_mean_of_the_middle_two() {
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 100.0]).unwrap().median, 3.0);
    }

    #[test]
    fn no_samples_have_no_spread() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(median_of(&mut []), 0);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        assert_eq!(paired_ratios(&[2.0, 30.0], &[1.0, 10.0]), [2.0, 3.0]);
    }

    #[test]
    fn one_outlier_does_not_move_a_median_of_latencies() {
        assert_eq!(median_of(&mut [7, 1_000_000, 8, 6, 7]), 7);
    }
}
