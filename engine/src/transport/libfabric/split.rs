//! An operation across a boundary between two registrations, as several that cross none.
//!
//! Invariants
//! - The operation ends when the last of its parts has ended, with the first error among them.
//! - The parts belong to its batch, so that they are cancelled with it.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::layout::Layout;
use crate::error::Error;
use crate::transport::{Operation, RemoteSlice, Ticket, TicketSink};

/// An operation whose parts are under way.
#[derive(Debug)]
struct Whole {
    /// Guards what its parts change when they end; held for moments.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    open_parts: usize,
    error: Option<Error>,
    /// Taken by the last part.
    operation: Option<Operation>,
}

impl TicketSink for Whole {
    fn completed(&self, _: u32, result: Result<(), Error>) {
        let ended = {
            let mut state = self.state.lock();
            if let Err(error) = result {
                state.error.get_or_insert(error);
            }
            state.open_parts = state.open_parts.saturating_sub(1);
            let is_over = state.open_parts == 0;
            is_over.then(|| state.operation.take().map(|operation| (operation, state.error.take()))).flatten()
        };
        if let Some((operation, error)) = ended {
            operation.complete(error.map_or(Ok(()), Err));
        }
    }
}

/// Cuts `operation` where a registration ends at either end. One that crosses no boundary comes back as it is.
pub(super) fn split(operation: Operation, here: &Layout, there: &Layout) -> Vec<Operation> {
    let ends = [(operation.local.offset(), here), (operation.remote.offset, there)];
    let ranges = cut(operation.local.length() as u64, ends);
    if ranges.len() < 2 {
        return vec![operation];
    }
    let (direction, rail, deadline) = (operation.direction, operation.rail, operation.deadline);
    let (local, remote, batch) =
        (operation.local.clone(), operation.remote.clone(), operation.ticket.batch());
    let state = State { open_parts: ranges.len(), error: None, operation: Some(operation) };
    let whole: Arc<dyn TicketSink> = Arc::new(Whole { state: Mutex::new(state) });
    let as_usize = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let part = |(index, range): (u32, &Range<u64>)| Operation {
        direction,
        local: local.part(as_usize(range.start), as_usize(range.end - range.start)),
        remote: RemoteSlice { offset: remote.offset.saturating_add(range.start), ..remote.clone() },
        rail,
        deadline,
        ticket: Ticket::new(Arc::clone(&whole), batch, index),
    };
    (0..).zip(&ranges).map(part).collect()
}

/// The ranges of `length` bytes between boundaries of both ends, each from an offset of its region on.
fn cut(length: u64, ends: [(u64, &Layout); 2]) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    let mut from = 0;
    while from < length {
        let to_boundary = |(offset, layout): (u64, &Layout)| layout.to_boundary(offset.saturating_add(from));
        let nearest = ends.into_iter().map(to_boundary).min().unwrap_or(u64::MAX);
        let to = from + nearest.min(length - from);
        ranges.push(from..to);
        from = to;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::memory::{Access, MemorySlice, PageKind, Region};
    use crate::transport::operation::testing::Seen;
    use crate::transport::{BatchId, Direction};
    use crate::types::{ByteCount, RailId, RegionId};
    use proptest::prelude::*;

    fn operation(seen: &Arc<Seen>, offset: u64, remote: u64, length: u64) -> (Operation, Weak<Region>) {
        let region = Region::anonymous(ByteCount(1 << 20), PageKind::Base, Access::ReadWrite).unwrap();
        let region = Arc::new(region);
        let operation = Operation {
            direction: Direction::Read,
            local: MemorySlice::new(&region, RegionId(1), offset, ByteCount(length)).unwrap(),
            remote: RemoteSlice { region: RegionId(2), key: Vec::new().into(), offset: remote },
            rail: RailId(3),
            deadline: Instant::now() + Duration::from_secs(1),
            ticket: Ticket::new(Arc::clone(seen) as Arc<dyn TicketSink>, BatchId::next(), 9),
        };
        (operation, Arc::downgrade(&region))
    }

    #[test]
    fn parts_meet_at_the_boundaries_of_both_ends_and_end_as_one() {
        let seen = Arc::new(Seen::default());
        let (whole, region) = operation(&seen, 4000, 100, 9000);
        let batch = whole.ticket.batch();
        let parts = split(whole, &Layout::Everywhere(Some(8192)), &Layout::Everywhere(Some(4096)));
        let places: Vec<_> =
            parts.iter().map(|part| (part.local.offset(), part.remote.offset, part.local.length())).collect();
        assert_eq!(places, [(4000, 100, 3996), (7996, 4096, 196), (8192, 4292, 3900), (12_092, 8192, 908)]);
        assert!(parts.iter().all(|part| part.ticket.batch() == batch && part.rail == RailId(3)));
        let results = [Ok(()), Err(Error::Cancelled), Err(Error::Closed), Ok(())];
        for (part, result) in parts.into_iter().zip(results) {
            assert!(seen.0.lock().is_empty());
            part.complete(result);
        }
        assert_eq!(*seen.0.lock(), [(9, Err(Error::Cancelled))]);
        assert!(region.upgrade().is_none(), "nobody holds the memory any more");
    }

    proptest! {
        #[test]
        fn ranges_cover_all_bytes_and_cross_no_boundary(
            length in 1_u64..10_000, offsets in any::<[u32; 2]>(),
            chunks in (proptest::option::of(500_u64..20_000), proptest::option::of(500_u64..20_000)),
        ) {
            let ends = [(u64::from(offsets[0]), chunks.0), (u64::from(offsets[1]), chunks.1)];
            let layouts = ends.map(|(_, chunk)| Layout::Everywhere(chunk));
            let ranges = cut(length, [(ends[0].0, &layouts[0]), (ends[1].0, &layouts[1])]);
            let mut at = 0;
            for range in &ranges {
                prop_assert!(range.start == at && range.end > at);
                for (offset, chunk) in ends.iter().filter_map(|(offset, chunk)| Some((offset, (*chunk)?))) {
                    prop_assert_eq!((offset + range.start) / chunk, (offset + range.end - 1) / chunk);
                }
                at = range.end;
            }
            prop_assert_eq!(at, length);
            let boundaries: u64 = [chunks.0, chunks.1].into_iter().flatten().map(|chunk| length / chunk + 1).sum();
            prop_assert!(ranges.len() as u64 <= 1 + boundaries);
        }
    }

    #[test]
    fn what_crosses_no_boundary_stays_what_it_is() {
        let seen = Arc::new(Seen::default());
        for (local, remote) in [(None, None), (Some(8192), Some(4096)), (Some(4096), None)] {
            let (local, remote) = (Layout::Everywhere(local), Layout::Everywhere(remote));
            let parts = split(operation(&seen, 4096, 8192, 4096).0, &local, &remote);
            assert_eq!((parts.len(), parts[0].ticket.index(), parts[0].local.length()), (1, 9, 4096));
        }
        let pieces = Layout::Everywhere(Some(4096));
        assert_eq!(split(operation(&seen, 4096, 4096, 0).0, &pieces, &pieces).len(), 1);
    }

    #[test]
    fn parts_that_are_dropped_end_their_operation() {
        let seen = Arc::new(Seen::default());
        let (here, there) = (Layout::Everywhere(Some(4096)), Layout::Everywhere(None));
        drop(split(operation(&seen, 0, 0, 8192).0, &here, &there));
        assert_eq!(*seen.0.lock(), [(9, Err(Error::Closed))]);
    }
}
