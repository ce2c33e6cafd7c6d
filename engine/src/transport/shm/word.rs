//! Hot path: the word that two processes share for each grant: one bit is the owner's leave, the others count the
//! peer's copies under way.
//!
//! Invariant: a word without leave is never changed by who enters. The owner may give its page back at any moment, and
//! what is undone later would leave another value there than zero.

use crate::sync::{AtomicU64, Ordering};

/// Set while the owner lets the peer touch the region.
const GRANTED: u64 = 1 << 63;

/// Owner: lets the peer touch what the word stands for.
pub(super) fn grant(word: &AtomicU64) {
    word.store(GRANTED, Ordering::Release);
}

/// Owner: no new copy begins. Returns how many are under way.
pub(super) fn revoke(word: &AtomicU64) -> u64 {
    word.fetch_and(!GRANTED, Ordering::AcqRel) & !GRANTED
}

/// Owner: copies under way.
pub(super) fn copies(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire) & !GRANTED
}

/// Peer: begins a copy. False when there is no leave; then nothing may be touched.
pub(super) fn enter(word: &AtomicU64) -> bool {
    let begun = |word: u64| (word & GRANTED != 0).then(|| word + 1);
    word.fetch_update(Ordering::AcqRel, Ordering::Acquire, begun).is_ok()
}

/// Peer: the copy has ended.
pub(super) fn leave(word: &AtomicU64) {
    word.fetch_sub(1, Ordering::AcqRel);
}
