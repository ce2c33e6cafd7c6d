//! Counters of the daemon, one row each: name, what it counts, and the same row in `docs/METRICS.md`.
//!
//! Counters are relaxed atomics: a reader sees each of them some moment ago, never torn.

mod family;
mod histogram;

use std::sync::atomic::{AtomicU64, Ordering};

pub use family::{Family, Value, render};
pub use histogram::{Distribution, Histogram};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Counts `amount`.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// The count so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($field:ident: $name:literal, $help:literal;)*) => {
        /// Everything the daemon counts.
        #[derive(Debug, Default)]
        pub struct Telemetry {
            $(#[doc = $help] pub $field: Counter,)*
        }

        impl Telemetry {
            /// Name, help and value of each counter.
            pub fn rows(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$(($name, $help, self.$field.get()),)*].into_iter()
            }
        }
    };
}

counters! {
    hits: "tidefs_hits_total", "Opens of sealed objects to read.";
    misses: "tidefs_misses_total", "Look-ups that found nothing, but for those of the targets of renames.";
    creates: "tidefs_creates_total", "Files created.";
    seals: "tidefs_seals_total", "Objects sealed.";
    sealed_bytes: "tidefs_sealed_bytes_total", "Bytes of objects sealed.";
    evictions: "tidefs_evictions_total", "Objects that left memory for room, to a disk or for good.";
    evicted_bytes: "tidefs_evicted_bytes_total", "Bytes of objects that left memory for room, to a disk or for good.";
    expirations: "tidefs_expirations_total", "Objects removed because their ttl passed.";
    unlinks: "tidefs_unlinks_total", "Objects removed by name.";
    replacements: "tidefs_replacements_total", "Objects replaced by a newer version.";
    discarded_writes: "tidefs_discarded_writes_total", "Files dropped because their writer was killed, or what it wrote found no room or could not be sealed.";
    unknown_writers: "tidefs_unknown_writers_total", "Opens to write by processes outside of the daemon's pid namespace.";
    copied_bytes: "tidefs_copied_bytes_total", "Bytes of solo objects that the daemon copied: through its memory, or between a segment and an area of the fast path.";
    packed_bytes: "tidefs_packed_bytes_total", "Bytes of small objects copied into packed segments.";
    packed_read_bytes: "tidefs_packed_read_bytes_total", "Bytes of packed objects read through the daemon.";
    pack_refusals: "tidefs_pack_refusals_total", "Small objects left in segments of their own for lack of room.";
    copy_ups: "tidefs_copy_ups_total", "New versions begun over sealed objects that are in use, or may be.";
    unseals: "tidefs_unseals_total", "Sealed objects reopened for writing in place.";
    no_room: "tidefs_no_room_total", "Requests refused because nothing could be evicted.";
    over_quota: "tidefs_over_quota_total", "Requests refused because a quota is full.";
    overloads: "tidefs_overloads_total", "Requests that found too many others waiting for a thread, and were answered without what they would have waited for, or refused.";
    corrupt_objects: "tidefs_corrupt_objects_total", "Objects dropped because their bytes do not match their checksum.";
    hidden_waits: "tidefs_hidden_waits_total", "Look-ups and listings that waited for a writer's close to arrive.";
    hidden_wait_timeouts: "tidefs_hidden_wait_timeouts_total", "Such waits that ended without it.";
    invalidations: "tidefs_invalidations_total", "Inodes whose attributes the kernel was told to forget.";
    invalidations_coalesced: "tidefs_invalidations_coalesced_total", "Such messages that were waiting already.";
    invalidation_failures: "tidefs_invalidation_failures_total", "Such messages the kernel refused.";
    inode_prunes: "tidefs_inode_prunes_total", "Idle inodes the kernel was asked to drop.";
    passthrough_opens: "tidefs_passthrough_opens_total", "Opens served by the kernel from segments.";
    passthrough_failures: "tidefs_passthrough_failures_total", "Opens served by the daemon because passthrough failed.";
    direct_opens: "tidefs_direct_opens_total", "Opens served by the daemon.";
    scratch_conversions: "tidefs_scratch_conversions_total", "Files that became scratch.";
    ssd_demotions: "tidefs_ssd_demotions_total", "Objects that left memory for the SSD tier.";
    ssd_demoted_bytes: "tidefs_ssd_demoted_bytes_total", "Bytes of objects that were written to the SSD tier as they left.";
    ssd_refusals: "tidefs_ssd_refusals_total", "Objects that were to leave memory for the SSD tier, or to be durable there, and that it did not store.";
    epochs: "tidefs_kernel_epochs_total", "Times the kernel was made to look up every name again, because another member made one that was absent.";
    catalog_lookups: "tidefs_catalog_lookups_total", "Names that other members were asked for.";
    catalog_unknown: "tidefs_catalog_unknown_total", "Names that nobody could be asked for in time: misses that are not remembered.";
    catalog_publications: "tidefs_catalog_publications_total", "Objects and directories that other members were told of.";
    catalog_removals: "tidefs_catalog_removals_total", "Removals that other members were told of.";
    catalog_failures: "tidefs_catalog_failures_total", "Publications and removals that the cluster did not hear of in time.";
    agreements_refused: "tidefs_agreements_refused_total", "Changes of directories that all members are to agree on and that were refused: the coordinator was away, or too much is agreed on.";
    agreements_late: "tidefs_agreements_late_total", "Members that did not go by such a change when its caller was answered, each once.";
    remote_fetches: "tidefs_remote_fetches_total", "Objects fetched from other members.";
    remote_fetched_bytes: "tidefs_remote_fetched_bytes_total", "Bytes of objects fetched from other members.";
    remote_misses: "tidefs_remote_misses_total", "Objects that no member gave though one was said to hold them, which is a miss.";
    remote_streams: "tidefs_remote_streams_total", "Opens of objects that were still arriving from another member.";
    remote_stream_failures: "tidefs_remote_stream_failures_total", "Objects whose rest no member gave after they were opened: their readers got EIO.";
    remote_stream_refusals: "tidefs_remote_stream_refusals_total", "Reads of objects that were still arriving from another member that got EIO, as too many waited for one of these.";
    remote_lends: "tidefs_remote_lends_total", "Objects lent to other members.";
    soft_evictions: "tidefs_soft_evictions_total", "Of the evicted objects, copies that another member has too.";
    withdrawals: "tidefs_withdrawals_total", "Objects dropped because another member removed or replaced them.";
    ssd_promotions: "tidefs_ssd_promotions_total", "Objects brought back from the SSD tier.";
    ssd_promoted_bytes: "tidefs_ssd_promoted_bytes_total", "Bytes of objects brought back from the SSD tier.";
    ssd_promotion_misses: "tidefs_ssd_promotion_misses_total", "Objects that could not be brought back, which is a miss.";
    ssd_prefetches: "tidefs_ssd_prefetches_total", "Objects brought into memory ahead of their use, along a chain or because a client named them.";
    ssd_prefetches_useful: "tidefs_ssd_prefetches_useful_total", "Of these, those that were used then.";
    ssd_prefetches_wasted: "tidefs_ssd_prefetches_wasted_total", "Of these, those that left memory without, or were not used within a minute.";
    ssd_too_slow: "tidefs_ssd_too_slow_total", "Opens told that there is nothing, because loading would have taken longer than computing.";
    ssd_durability_failures: "tidefs_ssd_durability_failures_total", "Objects that were to be durable and are in memory only.";
    blanks_made: "tidefs_blanks_made_total", "Segments whose pages were made before an object that is brought back needed one.";
    blanks_taken: "tidefs_blanks_taken_total", "Of these, those that an object was brought back into.";
    fast_hits: "tidefs_fast_hits_total", "Objects found by requests of the fast path.";
    fast_misses: "tidefs_fast_misses_total", "Names that requests of the fast path found nothing under.";
    fast_creates: "tidefs_fast_creates_total", "Objects begun by the fast path.";
    fast_reuses: "tidefs_fast_reuses_total", "Such objects that got a segment which had held another one.";
    fast_abandoned: "tidefs_fast_abandoned_total", "Such objects that were dropped with the session that had begun them.";
    fast_name_resets: "tidefs_fast_name_resets_total", "Times the kernel was told to ask again for every name, because of such an object.";
    fast_refusals: "tidefs_fast_refusals_total", "Requests of the fast path that this version does not understand.";
    surprise_growth_bytes: "tidefs_surprise_growth_bytes_total", "Bytes evicted for writers larger than was reserved for them.";
}

impl Telemetry {
    /// The counters as metrics.
    pub fn families(&self) -> impl Iterator<Item = Family> {
        self.rows().map(|(name, help, value)| Family::counter(name, help, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_md_has_a_row_for_each_counter_and_no_other() {
        let document = include_str!("../docs/METRICS.md");
        let (_, table) = document.split_once("## Counters").unwrap();
        let (table, _) = table.split_once("## Gauges").unwrap();
        let written: Vec<&str> = table.lines().filter(|line| line.starts_with("| `tidefs_")).collect();
        let telemetry = Telemetry::default();
        let expected: Vec<String> =
            telemetry.rows().map(|(name, help, _)| format!("| `{name}` | {help} |")).collect();
        assert_eq!(written, expected);
    }
}
