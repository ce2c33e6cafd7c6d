//! Hot path: cuts a request into slices.
//!
//! Invariants, as properties in the tests
//! - The slices cover the request, in order, without gap or overlap.
//! - None is longer than the transport's longest operation, none is empty unless the request is.
//! - None crosses a registration boundary at either end.
//! - The last of a run is not a crumb: a tail of at most a sixteenth of a slice is merged into its neighbour where the
//!   longest operation allows.

/// What bounds a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Wanted length in bytes; at least 1.
    pub slice_bytes: u64,
    /// Longest operation in bytes; at least 1.
    pub operation_bytes_max: u64,
    /// Distance between registration boundaries of the local region in bytes; `None` when it is one registration.
    pub local_chunk_bytes: Option<u64>,
    /// The same of the remote region.
    pub remote_chunk_bytes: Option<u64>,
}

/// A part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Start in bytes from the start of the request.
    pub from: u64,
    /// Length in bytes.
    pub length: u64,
}

/// A tail of at most this part of a slice is merged into the slice before it.
const CRUMB: u64 = 16;

/// Slices that are to wait before those that follow are longer than they must be: cutting is for connections that would have
/// nothing to do.
const ENOUGH: u64 = 8;
/// How many times as long as they must be slices may get: what is urgent waits for the one that is under way.
const STRETCH: u64 = 4;

/// The length to want for slices that join `waiting_bytes` of others, where `least` is what pays: each costs a message, an
/// answer and a ticket.
#[must_use]
pub fn wanted_bytes(least: u64, waiting_bytes: u64) -> u64 {
    (waiting_bytes / ENOUGH).clamp(least, least.saturating_mul(STRETCH))
}

/// Cuts `length` bytes that start at `local_offset` of one region and `remote_offset` of the other.
///
/// A request of no bytes is one slice of no bytes, so that it too is checked and answered by the peer.
pub fn cut(
    length: u64,
    local_offset: u64,
    remote_offset: u64,
    limits: Limits,
) -> impl Iterator<Item = Slice> {
    let mut from = 0;
    let mut is_first = true;
    std::iter::from_fn(move || {
        if from >= length && !is_first {
            return None;
        }
        is_first = false;
        let rest = length - from;
        let longest = limits.operation_bytes_max.max(1);
        let run = rest
            .min(to_boundary(local_offset.saturating_add(from), limits.local_chunk_bytes))
            .min(to_boundary(remote_offset.saturating_add(from), limits.remote_chunk_bytes));
        let wanted = limits.slice_bytes.clamp(1, longest);
        let merges = run <= wanted.saturating_add(wanted / CRUMB) && run <= longest;
        let slice = Slice { from, length: if merges { run } else { wanted.min(run) } };
        from += slice.length;
        Some(slice)
    })
}

/// Bytes from `offset` to the next boundary; all there are when there is none.
fn to_boundary(offset: u64, chunk: Option<u64>) -> u64 {
    chunk.filter(|&chunk| chunk > 0).map_or(u64::MAX, |chunk| chunk - offset % chunk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slices_are_longer_where_enough_of_them_wait() {
        let wanted = [0, 799, 1600, 3200, u64::MAX].map(|waiting| wanted_bytes(100, waiting));
        assert_eq!(wanted, [100, 100, 200, 400, 400]);
    }

    const PLAIN: Limits = Limits {
        slice_bytes: 100,
        operation_bytes_max: 1000,
        local_chunk_bytes: None,
        remote_chunk_bytes: None,
    };

    fn lengths(length: u64, limits: Limits) -> Vec<u64> {
        cut(length, 0, 0, limits).map(|slice| slice.length).collect()
    }

    #[test]
    fn a_request_is_cut_into_equal_slices_and_a_tail() {
        assert_eq!(lengths(0, PLAIN), [0]);
        assert_eq!(lengths(99, PLAIN), [99]);
        assert_eq!(lengths(250, PLAIN), [100, 100, 50]);
    }

    #[test]
    fn a_crumb_is_merged_into_the_slice_before_it() {
        assert_eq!(lengths(206, PLAIN), [100, 106]);
        assert_eq!(lengths(207, PLAIN), [100, 100, 7]);
        assert_eq!(lengths(206, Limits { operation_bytes_max: 100, ..PLAIN }), [100, 100, 6]);
    }

    proptest! {
        #[test]
        fn slices_cover_the_request_within_every_limit(
            length in 0_u64..100_000, local in 0_u64..10_000, remote in 0_u64..10_000,
            slice_bytes in 1_u64..5_000, operation_bytes_max in 1_u64..9_000,
            local_chunk_bytes in proptest::option::of(1_u64..20_000),
            remote_chunk_bytes in proptest::option::of(1_u64..20_000),
        ) {
            let limits = Limits { slice_bytes, operation_bytes_max, local_chunk_bytes, remote_chunk_bytes };
            let mut at = 0;
            let mut count = 0;
            for slice in cut(length, local, remote, limits) {
                prop_assert_eq!(slice.from, at);
                prop_assert!(slice.length > 0 || length == 0);
                prop_assert!(slice.length <= operation_bytes_max);
                for (start, chunk) in [(local, local_chunk_bytes), (remote, remote_chunk_bytes)] {
                    let (first, last) = (start + slice.from, (start + slice.from + slice.length).max(1) - 1);
                    prop_assert!(chunk.is_none_or(|chunk| slice.length == 0 || first / chunk == last / chunk));
                }
                at += slice.length;
                count += 1;
            }
            prop_assert_eq!(at, length);
            let wanted = slice_bytes.min(operation_bytes_max);
            let boundaries: u64 = [local_chunk_bytes, remote_chunk_bytes].into_iter().flatten().map(|c| length / c + 1).sum();
            prop_assert!(count <= length / wanted + 2 + boundaries, "{} slices", count);
        }
    }
}
