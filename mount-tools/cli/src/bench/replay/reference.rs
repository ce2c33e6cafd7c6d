//! The yardstick: the same requests through an exact LRU of N objects in memory.

use std::num::NonZeroUsize;

use lru::LruCache;

use super::trace::Request;

/// Share of the look-ups that lie before the first absent block of their request, with exact LRU of `capacity`
/// objects. Blocks before the first absent one are touched in order, the rest is written in order.
pub(super) fn lru_hit_ratio(requests: &[Request], capacity: NonZeroUsize) -> f64 {
    let mut cache = LruCache::new(capacity);
    let (mut hits, mut lookups) = (0_usize, 0_usize);
    for Request { blocks } in requests {
        let prefix = blocks.iter().take_while(|block| cache.contains(*block)).count();
        for block in &blocks[..prefix] {
            cache.promote(block);
        }
        for block in &blocks[prefix..] {
            cache.put(*block, ());
        }
        hits += prefix;
        lookups += blocks.len();
    }
    hits as f64 / lookups.max(1) as f64
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::trace::read_trace;
    use super::*;

    fn capacity(objects: usize) -> NonZeroUsize {
        NonZeroUsize::new(objects).unwrap()
    }

    #[test]
    fn only_blocks_before_the_first_absent_one_are_hits() {
        let request = |blocks: &[u64]| Request { blocks: blocks.to_vec() };
        let requests = [request(&[1, 2, 3]), request(&[1, 9, 3])];
        assert_eq!(lru_hit_ratio(&requests, capacity(10)), 1.0 / 6.0);
    }

    #[test]
    fn the_least_recently_used_block_leaves_first() {
        let request = |block: u64| Request { blocks: vec![block] };
        // 1 is touched before 3 comes, so 2 leaves, 1 is a hit and 2 is not.
        let requests = [1, 2, 1, 3, 1, 2].map(request);
        assert_eq!(lru_hit_ratio(&requests, capacity(2)), 2.0 / 6.0);
    }

    /// The published figures of the trace that lies beside the project where it is developed.
    #[test]
    fn the_public_trace_has_its_known_hit_ratios() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces/synthetic_trace.jsonl");
        let Ok(file) = std::fs::File::open(&path) else {
            eprintln!("skipped: {} is not there", path.display());
            return;
        };
        let requests = read_trace(std::io::BufReader::new(file)).unwrap();
        for (objects, expected) in [(3_000, 0.188), (10_000, 0.424), (30_000, 0.624)] {
            let ratio = lru_hit_ratio(&requests, capacity(objects));
            assert!((ratio - expected).abs() < 0.0006, "{objects} objects: {ratio}, expected {expected}");
        }
    }
}
