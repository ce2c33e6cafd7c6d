//! How large the next object of a directory will be, by those before: so many pages are allocated when one is created
//! ([`guessed`](super::guessed) says how many of all those).
//!
//! A guess that is too small has writers ask for room with each write; one that is far too large has the kernel clear huge
//! pages for nothing. So the largest size counts, which a few smaller objects in between (the last part of a prompt) do not
//! change, until only much smaller ones come.

use tidefs_engine::types::ByteCount;

/// Share of the guess that is forgotten with each smaller object: 1/256.
const DECAY: u64 = 256;
/// Part of the guess by which an object may pass it and is no surprise: smaller ones in between made it fade a little.
const SLACK: u64 = 8;
/// Objects that have to be no larger than expected before sizes count as known again.
const SURPRISE_MEMORY: u8 = 8;
/// So many objects in a row of less than half the size are what is written now.
const SMALLER_RUN: u8 = 4;
/// So many objects of about the size make it worth what is evicted for one more: one alone may have been the only one.
const SETTLED: u8 = 4;

/// What is expected of the next object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpectedSize {
    /// Its size.
    pub(super) size: ByteCount,
    /// Whether several had about that size.
    pub(super) is_settled: bool,
}

/// What is expected in one directory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SizeGuess {
    /// The decayed maximum of the sizes so far; zero when there were none.
    size: ByteCount,
    /// Above zero while objects were recently larger than expected.
    surprises: u8,
    /// Objects since the last that was at least half as large as expected.
    smaller: u8,
    /// The largest of these.
    largest_smaller: ByteCount,
    /// Objects of about the size, since it is what it is; stops at `SETTLED`.
    alike: u8,
}

impl SizeGuess {
    /// Whether anything is known.
    pub(super) fn has_met_any(&self) -> bool {
        self.size > ByteCount::ZERO
    }

    /// What is expected; `None` when no size is known, or when sizes vary.
    pub(super) fn expected(&self) -> Option<ExpectedSize> {
        let expected = ExpectedSize { size: self.size, is_settled: self.alike >= SETTLED };
        (self.has_met_any() && self.surprises == 0).then_some(expected)
    }

    /// An object of this size was sealed.
    pub(super) fn learn(&mut self, size: ByteCount) {
        let is_first = !self.has_met_any();
        let is_surprise = !is_first && size.0 > self.size.0 + self.size.0 / SLACK;
        if is_first || is_surprise {
            self.alike = 1;
        } else if size.0 >= self.size.0 - self.size.0 / SLACK {
            self.alike = (self.alike + 1).min(SETTLED);
        }
        self.surprises = if is_surprise { SURPRISE_MEMORY } else { self.surprises.saturating_sub(1) };
        if size.0 >= self.size.0 / 2 {
            (self.smaller, self.largest_smaller) = (0, ByteCount::ZERO);
        } else {
            self.smaller += 1;
            self.largest_smaller = self.largest_smaller.max(size);
        }
        let faded = self.size.0 - self.size.0 / DECAY;
        self.size = ByteCount(faded.max(size.0));
        if self.smaller == SMALLER_RUN {
            let (size, surprises) = (self.largest_smaller, self.surprises);
            *self = Self { size, surprises, alike: 1, ..Self::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected_after(sizes: &[u64]) -> Option<ExpectedSize> {
        let mut guess = SizeGuess::default();
        sizes.iter().for_each(|&kib| guess.learn(ByteCount::kib(kib)));
        guess.expected()
    }

    fn after(sizes: &[u64]) -> Option<u64> {
        expected_after(sizes).map(|expected| expected.size.0 >> 10)
    }

    #[test]
    fn a_size_is_settled_when_four_objects_had_it() {
        let is_settled = |sizes: &[u64]| expected_after(sizes).is_some_and(|expected| expected.is_settled);
        assert!(!is_settled(&[4096; 3]));
        assert!(is_settled(&[4096; 4]));
        // The last part of a prompt changes nothing of that, in either direction.
        assert!(!is_settled(&[4096, 64, 4096, 64, 64, 4096]));
        assert!(is_settled(&[4096, 64, 4096, 64, 64, 4096, 4096]));
        assert!(is_settled(&[4096, 4096, 4096, 4096, 64, 64, 64]));
        // One large object among small ones, and small ones after large ones, are new sizes.
        assert!(!is_settled(&[&[64; 100][..], &[4096], &[64; 3]].concat()));
        assert!(!is_settled(&[4096, 4096, 4096, 4096, 64, 64, 64, 64]));
        assert!(is_settled(&[4096, 64, 64, 64, 64, 64, 64, 64]));
    }

    #[test]
    fn the_largest_size_is_expected_though_some_are_smaller() {
        assert_eq!(after(&[]), None);
        assert_eq!(after(&[4096]), Some(4096));
        assert_eq!(after(&[4096, 100, 100, 100, 4096, 100, 100]), Some(4064));
        assert_eq!(after(&[4096; 100]), Some(4096));
    }

    #[test]
    fn when_only_smaller_ones_come_these_are_expected() {
        assert_eq!(after(&[4096, 64, 80, 64, 64]), Some(80));
        // Not for a little less: a guess that is somewhat too large costs little.
        assert_eq!(after(&[4096, 3000, 3000, 3000, 3000]), Some(4032));
        assert_eq!(after(&[[4096, 64].as_slice(); 50].concat()), Some(4080));
    }

    #[test]
    fn a_larger_one_makes_sizes_unknown_for_a_while() {
        let larger = [64, 4096];
        assert_eq!(after(&larger), None);
        assert_eq!(after(&[&larger[..], &[4096; 7]].concat()), None);
        assert_eq!(after(&[&larger[..], &[4096; 8]].concat()), Some(4096));
        assert_eq!(after(&[&larger[..], &[64; 8]].concat()), Some(64));
    }
}
