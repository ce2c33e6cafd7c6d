//! The rate at which a rail moves bytes, as it is measured.

/// Measured rate of a rail: an exponentially weighted mean over the bytes that it carried.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    bytes_per_second: f64,
}

impl Rate {
    /// Weight of one more sample.
    const WEIGHT: f64 = 0.125;

    /// Counts `bytes` that took `nanos` while the rail had nothing else to do, or its share of the time.
    #[expect(clippy::cast_precision_loss, reason = "a mean of rates needs no 53rd bit")]
    pub fn sample(&mut self, bytes: u64, nanos: u64) {
        if nanos == 0 || bytes == 0 {
            return;
        }
        let found = bytes as f64 * 1e9 / nanos as f64;
        let weight = if self.bytes_per_second == 0.0 { 1.0 } else { Self::WEIGHT };
        self.bytes_per_second += weight * (found - self.bytes_per_second);
    }

    /// Bytes per second; 0 before the first sample.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate is finite and not negative"
    )]
    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_follows_what_is_measured() {
        let mut rate = Rate::default();
        rate.sample(1000, 1_000_000_000);
        assert_eq!(rate.bytes_per_second(), 1000);
        rate.sample(0, 5);
        rate.sample(5, 0);
        assert_eq!(rate.bytes_per_second(), 1000);
        (0..100).for_each(|_| rate.sample(500, 1_000_000_000));
        assert!((500..=501).contains(&rate.bytes_per_second()));
    }
}
