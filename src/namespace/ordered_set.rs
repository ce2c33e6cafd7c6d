//! An ordered set of 64-bit numbers in sorted runs: about 9 bytes for each, where a B-tree of the standard library
//! takes 18.
//!
//! A run is a sorted array of a few hundred numbers, so a look-up is one search among the firsts of the runs and one inside
//! a run: two places in memory instead of one for each level of a tree. The numbers are hashes: where one stands follows from
//! its value, but for a line of the processor's cache or two, while each step of a binary search would wait for memory.
//!
//! Invariants
//! - No run is empty or longer than [`RUN_MAX`]; all numbers of a run are smaller than those of the next.
//! - `firsts[i]` is the first number of `runs[i]`.
//!
//! Cost: an insertion or removal moves at most a run, 4 KiB; once in a few hundred it moves the tables of runs, 32
//! bytes for every few hundred numbers. Numbers that lie unevenly cost a look-up twice the steps of a binary search.

use std::ops::RangeInclusive;

/// Longest run.
const RUN_MAX: usize = 512;
/// How far from where it is looked for first a number stands most often: a line of the processor's cache.
const NEAR: usize = 8;

/// See the module page.
#[derive(Debug, Default)]
pub(super) struct OrderedSet {
    firsts: Vec<u64>,
    runs: Vec<Vec<u64>>,
    len: usize,
}

impl OrderedSet {
    /// Adds a number. Returns whether it was not there.
    pub(super) fn insert(&mut self, number: u64) -> bool {
        if self.runs.is_empty() {
            self.firsts.push(number);
            self.runs.push(vec![number]);
            self.len = 1;
            return true;
        }
        let (index, place) = self.find(number);
        let run = &mut self.runs[index];
        if run.get(place) == Some(&number) {
            return false;
        }
        if run.len() == run.capacity() {
            // Doubling would waste a quarter of all runs.
            run.reserve_exact((run.len() / 8).max(4));
        }
        run.insert(place, number);
        self.firsts[index] = run[0];
        self.len += 1;
        if run.len() > RUN_MAX {
            let upper = run.split_off(RUN_MAX / 2);
            run.shrink_to_fit();
            self.firsts.insert(index + 1, upper[0]);
            self.runs.insert(index + 1, upper);
        }
        true
    }

    /// Takes a number out. Returns whether it was there.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        if self.runs.is_empty() {
            return false;
        }
        let (index, place) = self.find(number);
        let run = &mut self.runs[index];
        if run.get(place) != Some(&number) {
            return false;
        }
        run.remove(place);
        self.len -= 1;
        if let Some(&first) = run.first() {
            self.firsts[index] = first;
        }
        if run.len() < RUN_MAX / 4 {
            self.fold(index);
        }
        true
    }

    /// Merges a short run with the one behind it if both together are short, and drops an empty one.
    fn fold(&mut self, index: usize) {
        let next = self.runs.get(index + 1).map_or(RUN_MAX, Vec::len);
        if self.runs[index].is_empty() {
            self.runs.remove(index);
            self.firsts.remove(index);
        } else if self.runs[index].len() + next <= RUN_MAX / 2 {
            let next = self.runs.remove(index + 1);
            self.firsts.remove(index + 1);
            self.runs[index].reserve_exact(next.len());
            self.runs[index].extend(next);
        } else if self.runs[index].capacity() > self.runs[index].len() * 2 {
            self.runs[index].shrink_to_fit();
        }
    }

    /// Numbers of a range, in order.
    pub(super) fn range(&self, range: RangeInclusive<u64>) -> impl Iterator<Item = u64> {
        let (start, end) = range.into_inner();
        let (index, skipped) = self.find(start);
        let rest = self.runs.get(index..).unwrap_or_default();
        rest.iter().flatten().copied().skip(skipped).take_while(move |&number| number <= end)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The run in which a number stands if it stands anywhere, and how many of that are smaller; 0 also when there is no run.
    fn find(&self, number: u64) -> (usize, usize) {
        let (Some(&first), Some(&last)) = (self.firsts.first(), self.firsts.last()) else { return (0, 0) };
        // A first that is equal is the one of its run.
        let later = number
            .checked_add(1)
            .map_or(self.firsts.len(), |next| place_in(&self.firsts, first..=last, next));
        let index = later.saturating_sub(1);
        let run = &self.runs[index];
        // What is known of its ends beside it is not read from it: that would be two more places in memory.
        let end = self.firsts.get(later.max(1)).or(run.last()).copied().unwrap_or(u64::MAX);
        (index, place_in(run, self.firsts[index]..=end, number))
    }
}

/// How many in a sorted list are smaller than `number`. They lie within `bounds`, about as far from each other everywhere.
fn place_in(sorted: &[u64], bounds: RangeInclusive<u64>, number: u64) -> usize {
    let (from, to) = bounds.into_inner();
    let count = u64::try_from(sorted.len()).unwrap_or(u64::MAX);
    if count == 0 || number <= from {
        return 0;
    }
    let apart = ((to - from) / count).saturating_add(1);
    let guess = usize::try_from((number - from) / apart).unwrap_or(usize::MAX).min(sorted.len() - 1);
    let mut reach = NEAR;
    let (mut low, mut high);
    if sorted[guess] < number {
        (low, high) = (guess + 1, guess + 1 + reach);
        while high < sorted.len() && sorted[high] < number {
            reach *= 2;
            (low, high) = (high + 1, high + 1 + reach);
        }
        high = high.min(sorted.len());
    } else {
        (low, high) = (guess.saturating_sub(reach), guess);
        while low > 0 && sorted[low] >= number {
            reach *= 2;
            (low, high) = (low.saturating_sub(reach), low);
        }
    }
    low + sorted[low..high].partition_point(|&other| other < number)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::SmallRng;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;

    fn assert_sound(set: &OrderedSet) {
        assert_eq!(set.len, set.runs.iter().map(Vec::len).sum::<usize>());
        assert!(set.runs.iter().flatten().is_sorted());
        for (first, run) in set.firsts.iter().zip(&set.runs) {
            assert_eq!(Some(first), run.first());
            assert!(run.len() <= RUN_MAX);
        }
        assert_eq!(set.firsts.len(), set.runs.len());
    }

    /// Grows, churns and shrinks to nothing, beside the ordered set of the standard library.
    #[test]
    fn it_is_the_set_that_the_standard_library_has() {
        let mut random = SmallRng::seed_from_u64(7);
        let (mut set, mut reference) = (OrderedSet::default(), BTreeSet::new());
        for step in 0..60_000 {
            let number = random.random_range(0..20_000);
            if random.random_range(0..60_000) > step {
                assert_eq!(set.insert(number), reference.insert(number));
            } else {
                assert_eq!(set.remove(number), reference.remove(&number));
            }
            if step % 500 == 0 {
                assert_sound(&set);
                let from = random.random_range(0..20_000);
                let range = from..=from + random.random_range(0..3_000);
                assert!(set.range(range.clone()).eq(reference.range(range).copied()));
                assert_eq!(set.len(), reference.len());
            }
        }
        for number in reference {
            assert!(set.remove(number));
        }
        assert_eq!((set.len(), set.runs.len()), (0, 0));
        assert_eq!(set.range(0..=u64::MAX).next(), None);
    }

    #[test]
    fn numbers_at_the_ends_of_runs_and_of_all_numbers_are_as_any_other() {
        let mut random = SmallRng::seed_from_u64(6);
        let (mut set, mut reference) = (OrderedSet::default(), BTreeSet::new());
        for number in (0..5_000).map(|_| random.random()).chain([0, 1, u64::MAX - 1, u64::MAX]) {
            assert_eq!(set.insert(number), reference.insert(number));
        }
        let near = |number: u64| [number.saturating_sub(1), number, number.saturating_add(1)];
        let ends: Vec<u64> = set.runs.iter().flat_map(|run| [run[0], run[run.len() - 1]]).collect();
        for number in ends.into_iter().flat_map(near) {
            assert!(set.range(number..=number).eq(reference.range(number..=number).copied()), "{number}");
            let after = set.range(number..=u64::MAX).take(3);
            assert!(after.eq(reference.range(number..).copied().take(3)), "after {number}");
            assert_eq!(set.insert(number), reference.insert(number), "{number}");
            assert_eq!(set.remove(number), reference.remove(&number), "{number}");
        }
        assert_sound(&set);
        assert!(set.range(0..=u64::MAX).eq(reference.iter().copied()));
    }

    #[test]
    fn a_place_is_found_however_the_numbers_lie() {
        let mut random = SmallRng::seed_from_u64(8);
        for round in 0..2_000 {
            let bits = random.random_range(1..64);
            let mut sorted: Vec<u64> = (0..round % 600).map(|_| random.random::<u64>() >> bits).collect();
            sorted.extend([0, 1, u64::MAX].iter().take(round % 4));
            sorted.sort_unstable();
            sorted.dedup();
            let near = |number: u64| [number.saturating_sub(1), number, number.saturating_add(1)];
            let others = [random.random::<u64>() >> bits, 0, u64::MAX];
            for number in sorted.iter().step_by(7).copied().chain(others).flat_map(near) {
                let expected = sorted.partition_point(|&other| other < number);
                let (first, last) =
                    (sorted.first().copied().unwrap_or(5), sorted.last().copied().unwrap_or(9));
                for bounds in [first..=last, 0..=u64::MAX, first.saturating_sub(9)..=last.saturating_add(9)] {
                    assert_eq!(place_in(&sorted, bounds, number), expected, "{number} in {sorted:?}");
                }
            }
        }
    }

    #[test]
    fn a_number_takes_about_nine_bytes_however_many_there_are_and_were() {
        let mut random = SmallRng::seed_from_u64(9);
        let (mut set, mut all) = (OrderedSet::default(), Vec::new());
        let bytes = |set: &OrderedSet| {
            let runs: usize = set.runs.iter().map(|run| run.capacity() * size_of::<u64>()).sum();
            (runs + set.runs.capacity() * (size_of::<Vec<u64>>() + size_of::<u64>())) as f64
        };
        for count in 1..=100_000 {
            let number = random.random();
            set.insert(number);
            all.push(number);
            if count > 1000 && count % 1000 == 0 {
                let each = bytes(&set) / f64::from(count);
                assert!(each < 9.5, "{each} bytes for each of {count}");
            }
        }
        all.iter().skip(1000).for_each(|&number| assert!(set.remove(number)));
        let each = bytes(&set) / 1000.0;
        assert!(each < 40.0, "{each} bytes for each of the 1,000 that are left");
    }
}
