//! Room on a guess: pages for a file that is expected to need them, before a byte of it is written.
//!
//! A guess may be wrong: what most programs create first are small files beside large ones. It may cost others something
//! only where it was right several times, and all that is not written yet is bounded, or a few idle writers hold a whole
//! cache (docs/adr/0004-room-for-passthrough-writers.md, point 7).
//!
//! Invariants
//! - What all guesses take that are not written, as far as is known, is at most `ALL_SHARE` of the capacity, and of each
//!   quota above.
//! - Nothing is evicted for a guess whose size is not settled ([`ExpectedSize`]).
//!
//! Limits: a guess of more than `ONE_SHARE` is none. It is its file's until the last writer closes: who pauses goes on.

use tidefs_engine::types::ByteCount;

use super::guess::ExpectedSize;
use super::room::footprint;
use super::{Datapath, State};
use crate::namespace::Slot;

/// Part of the capacity, and of a quota, that is reserved for one writer at most on the strength of a guess: an eighth.
const ONE_SHARE: u64 = 8;
/// The same for all of them together: a quarter.
const ALL_SHARE: u64 = 4;

/// What is about to be reserved on a guess. It counts until this is dropped, which must not be under the state's lock.
#[derive(Debug)]
pub(super) struct Guess<'datapath> {
    datapath: &'datapath Datapath,
    bytes: ByteCount,
    may_evict: bool,
}

impl<'datapath> Guess<'datapath> {
    /// Nothing is expected.
    pub(super) fn nothing(datapath: &'datapath Datapath) -> Self {
        Self { datapath, bytes: ByteCount::ZERO, may_evict: true }
    }

    /// Bytes that are expected, in whole pages; zero when nothing is, or may not be reserved.
    pub(super) fn bytes(&self) -> ByteCount {
        self.bytes
    }
}

impl Drop for Guess<'_> {
    fn drop(&mut self) {
        if self.bytes > ByteCount::ZERO {
            let mut state = self.datapath.lock();
            state.guessing = state.guessing.saturating_sub(self.bytes);
        }
    }
}

impl Datapath {
    /// What a new file in `directory` may have before it is written.
    pub(super) fn take_guess(&self, directory: Slot) -> Guess<'_> {
        let mut state = self.lock();
        let expected = state.expected_size(directory);
        let may_have = |expected: &ExpectedSize| {
            state.may_guess(directory, footprint(expected.size), self.settings.capacity)
        };
        let Some(ExpectedSize { size, is_settled }) = expected.filter(may_have) else {
            drop(state);
            return Guess::nothing(self);
        };
        let bytes = footprint(size);
        state.guessing = state.guessing.saturating_add(bytes);
        Guess { datapath: self, bytes, may_evict: is_settled }
    }

    /// Makes room for a guess, and beyond it for the headroom from which a larger file grows. Returns whether there is.
    ///
    /// When there is none the file starts with nothing: whoever writes is told then, as POSIX programs expect.
    pub(super) fn make_room_for_guess(&self, directory: Slot, guess: &Guess<'_>) -> bool {
        let headroom = self.settings.write_headroom;
        let whole = guess.bytes.saturating_add(headroom);
        if guess.may_evict {
            let in_quota = self.look_for_room_in_quota(guess.bytes, directory);
            return in_quota.and_then(|()| self.make_room(whole, directory)).is_ok();
        }
        let is_in_quota = self.lock().quota_in_the_way(directory, guess.bytes, None).is_none();
        self.make_room(headroom, directory).is_ok()
            && is_in_quota
            && self.tier.usage().is_ok_and(|usage| usage.free >= whole)
    }
}

impl State {
    /// Whether `more` bytes may be reserved in `directory` on a guess: within the share of one and of all.
    fn may_guess(&self, directory: Slot, more: ByteCount, capacity: ByteCount) -> bool {
        let all = self.guessing.saturating_add(more);
        self.tree.ancestors(directory).all(|above| {
            let Some(folder) = self.folders.get(above) else { return true };
            let whole = if above == Slot::ROOT { Some(capacity) } else { None };
            let limit = folder.policy.quota.into_iter().chain(whole).min();
            limit.is_none_or(|limit| {
                more.get() <= limit.get() / ONE_SHARE
                    && folder.guessed.saturating_add(all).get() <= limit.get() / ALL_SHARE
            })
        })
    }
}
