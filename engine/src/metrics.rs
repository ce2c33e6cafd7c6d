//! Counters of the engine, as data; who embeds it gives them their names.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        /// Counters since the engine started.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[doc = $doc])* pub $name: Counter,)*
        }

        /// The values of [`Metrics`] at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct MetricsSnapshot {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl MetricsSnapshot {
            /// Name, help and value of each counter, as the daemon shows them.
            pub fn rows(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                let rows = [$((
                    concat!("tidefs_transfer_", stringify!($name)),
                    concat!($($doc),*),
                    self.$name,
                ),)*];
                rows.into_iter().map(|(name, help, value)| (name, help.trim_start(), value))
            }
        }

        impl Metrics {
            /// All values now.
            #[must_use]
            pub fn snapshot(&self) -> MetricsSnapshot {
                MetricsSnapshot { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters!(
    /// Bytes that arrived here by reads.
    read_bytes_total,
    /// Bytes that arrived at peers by writes.
    written_bytes_total,
    /// Requests that succeeded.
    requests_succeeded_total,
    /// Requests that ended with an error, deadlines included.
    requests_failed_total,
    /// Requests that were given up at their deadline.
    deadlines_passed_total,
    /// Slices that were tried again after an error.
    slices_retried_total,
    /// Slices that went by another transport than the best that the peer has in common with this host.
    slices_fallen_back_total,
    /// Connections of a transport that could not be made, to peers that it can reach at all.
    connects_failed_total,
    /// Connections of a transport that failed while they were used.
    endpoints_failed_total,
    /// Of these, those that one NIC has ended, which is left out for a while.
    rails_failed_total,
    /// NICs that libfabric offers and that could not be opened.
    nics_left_out_total,
    /// Sends of tcp that left their bytes where they lie.
    zero_copy_sends_total,
    /// Of these, those that the kernel is done with.
    zero_copy_done_total,
    /// Of these, those that the kernel copied all the same.
    zero_copy_copied_total,
    /// Sends of tcp that were copied because the kernel had no room to note that they are not, and connections of which it
    /// takes none.
    zero_copy_refused_total,
    /// Connections of tcp that were found to copy, so that they leave it.
    zero_copy_left_total,
);

/// A number that grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Its value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names_words_and_values() {
        let snapshot = MetricsSnapshot { read_bytes_total: 7, ..MetricsSnapshot::default() };
        let first = snapshot.rows().next();
        let help = "Bytes that arrived here by reads.";
        assert_eq!(first, Some(("tidefs_transfer_read_bytes_total", help, 7)));
    }

    #[test]
    fn a_snapshot_has_every_value() {
        let metrics = Metrics::default();
        metrics.read_bytes_total.add(5);
        metrics.read_bytes_total.add(2);
        let wanted = MetricsSnapshot { read_bytes_total: 7, ..MetricsSnapshot::default() };
        assert_eq!(metrics.snapshot(), wanted);
    }
}
