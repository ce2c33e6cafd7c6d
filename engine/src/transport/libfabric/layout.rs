//! Which rail has which bytes of a region.
//!
//! Invariants
//! - Registrations lie side by side and cover the region, in order.
//! - All rails have all of it, but for those whose endpoints are closed, or each byte is at one rail.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::types::{RailId, RegionId};

/// A registration of a region of which each rail has a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// The rail that has it.
    pub(super) rail: RailId,
    /// Start in bytes from that of the region.
    pub(super) from: u64,
    /// Length in bytes.
    pub(super) bytes: u64,
}

/// The registrations of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// At every rail that is open, one registration each so many bytes, or a single one.
    Everywhere(Option<u64>),
    /// Each at one rail.
    Divided(Vec<Part>),
}

/// Regions of which each rail has a part. Read for each operation where there may be some.
pub(super) type Layouts = RwLock<HashMap<RegionId, Arc<Layout>>>;

impl Layout {
    /// Cuts each part into pieces of at most `longest` bytes, a multiple of a page.
    pub(super) fn divided(parts: impl IntoIterator<Item = Part>, longest: u64) -> Self {
        let mut all = Vec::new();
        for Part { rail, from, bytes } in parts {
            let mut at = 0;
            while at < bytes {
                let length = longest.max(1).min(bytes - at);
                all.push(Part { rail, from: from + at, bytes: length });
                at += length;
            }
        }
        Self::Divided(all)
    }

    /// The ranges that `rail` registers of a region of `length` bytes.
    pub(super) fn ranges(&self, rail: RailId, length: u64) -> Vec<Range<u64>> {
        match self {
            Self::Everywhere(None) => std::iter::once(0..length).collect(),
            Self::Everywhere(Some(chunk)) => {
                let chunk = (*chunk).max(1);
                let range = |index: u64| index * chunk..length.min((index + 1).saturating_mul(chunk));
                (0..length.div_ceil(chunk)).map(range).collect()
            }
            Self::Divided(parts) => {
                let of_rail = parts.iter().filter(|part| part.rail == rail);
                of_rail.map(|part| part.from..part.from + part.bytes).collect()
            }
        }
    }

    /// Bytes from `offset` to the next start of a registration; all there are when there is none.
    pub(super) fn to_boundary(&self, offset: u64) -> u64 {
        match self {
            Self::Everywhere(chunk) => {
                chunk.filter(|&chunk| chunk > 0).map_or(u64::MAX, |chunk| chunk - offset % chunk)
            }
            Self::Divided(parts) => {
                let next = parts.partition_point(|part| part.from <= offset);
                parts.get(next).map_or(u64::MAX, |part| part.from - offset)
            }
        }
    }

    /// Index of the part that has the byte at `offset`, and the part; the last for what lies at the end. `None` where every
    /// rail has it.
    pub(super) fn part_at(&self, offset: u64) -> Option<(usize, Part)> {
        let Self::Divided(parts) = self else { return None };
        let index = parts.partition_point(|part| part.from <= offset).checked_sub(1)?;
        parts.get(index).map(|&part| (index, part))
    }

    /// Whether no registration ends within the region.
    pub(super) fn is_one(&self) -> bool {
        *self == Self::Everywhere(None)
    }

    /// The keys as peers get them: all of the first rail, then those of the next, or one for each part. `of_rail` has those
    /// of a rail, in order. `None` when one is missing.
    pub(super) fn collect_keys(
        &self,
        rails: impl Iterator<Item = RailId>,
        of_rail: impl Fn(RailId) -> Option<Vec<u64>>,
    ) -> Option<Vec<u64>> {
        let Self::Divided(parts) = self else {
            return rails.map(of_rail).collect::<Option<Vec<_>>>().map(|keys| keys.concat());
        };
        let mut keys = vec![None; parts.len()];
        for rail in rails {
            let places =
                parts.iter().enumerate().filter(|(_, part)| part.rail == rail).map(|(place, _)| place);
            let places: Vec<usize> = places.collect();
            if !places.is_empty() {
                places.into_iter().zip(of_rail(rail)?).for_each(|(place, key)| keys[place] = Some(key));
            }
        }
        keys.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn part(rail: u16, from: u64, bytes: u64) -> Part {
        Part { rail: RailId(rail), from, bytes }
    }

    #[test]
    fn parts_are_cut_to_what_one_registration_may_be() {
        let layout = Layout::divided([part(1, 0, 8192), part(0, 8192, 5)], 4096);
        let parts = vec![part(1, 0, 4096), part(1, 4096, 4096), part(0, 8192, 5)];
        assert_eq!(layout, Layout::Divided(parts));
        assert_eq!(layout.ranges(RailId(1), 8197), [0..4096, 4096..8192]);
        assert_eq!(layout.ranges(RailId(0), 8197), std::slice::from_ref(&(8192..8197)));
        assert_eq!(layout.ranges(RailId(2), 8197), []);
    }

    #[test]
    fn each_key_comes_to_its_part() {
        let layout = Layout::Divided(vec![part(1, 0, 5), part(0, 5, 5), part(1, 10, 5)]);
        let rails = || [0, 1, 2].map(RailId).into_iter();
        let of_rail = |rail: RailId| (rail.0 < 2).then(|| if rail.0 == 0 { vec![7] } else { vec![8, 9] });
        assert_eq!(layout.collect_keys(rails(), of_rail), Some(vec![8, 7, 9]));
        assert_eq!(layout.collect_keys(rails(), |_| Some(vec![1])), None, "a key is missing");
        assert_eq!(layout.collect_keys(rails(), |_| None), None);
        assert_eq!(
            Layout::Everywhere(None).collect_keys([0, 1].map(RailId).into_iter(), of_rail),
            Some(vec![7, 8, 9])
        );
    }

    proptest! {
        #[test]
        fn ranges_of_all_rails_lie_between_boundaries_and_cover_the_region(
            lengths in proptest::collection::vec((0_u16..4, 1_u64..10_000), 1..20), longest in 500_u64..20_000,
            is_divided: bool, at in any::<u64>(),
        ) {
            let mut length = 0;
            let mut parts = Vec::new();
            for (rail, bytes) in lengths {
                parts.push(part(rail, length, bytes));
                length += bytes;
            }
            let layout =
                if is_divided { Layout::divided(parts, longest) } else { Layout::Everywhere(Some(longest)) };
            let rails = if is_divided { 4 } else { 1 };
            let mut ranges: Vec<_> =
                (0..rails).flat_map(|rail| layout.ranges(RailId(rail), length)).collect();
            ranges.sort_by_key(|range| range.start);
            prop_assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, length));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(ranges.iter().all(|range| range.end - range.start <= longest));
            let offset = at % length;
            let of = ranges.iter().find(|range| range.contains(&offset)).unwrap();
            prop_assert!(of.end - offset <= layout.to_boundary(offset));
            prop_assert!(of.end == length || of.end - offset == layout.to_boundary(offset));
            let place = layout.part_at(offset);
            prop_assert_eq!(place.is_some(), is_divided);
            prop_assert!(place.is_none_or(|(_, part)| part.from == of.start && part.bytes == of.end - of.start));
            prop_assert_eq!(layout.part_at(length).map(|(index, _)| index + 1), is_divided.then_some(ranges.len()));
        }
    }
}
