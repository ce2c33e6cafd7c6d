//! Evictions at an operator's word, which may take long: the disks below take what leaves at their own rate.
//!
//! Threads: the one of the request, until all is evicted or nobody listens any more.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use tidefs_control_api::{
    ApiError, ErrorCode, EvictProgress, EvictTarget, Evicted, KeyPath, SkipReason, Skipped,
};
use tidefs_engine::types::{ByteCount, ObjectCount};

use super::operations::bytes_of;
use super::refusal::refusal;
use crate::datapath::{Datapath, EvictionProgress, Obstacle, OperatorEviction};

/// How often an eviction reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// See [`super::Operations::evict`].
pub(super) fn evict(
    datapath: &Datapath,
    target: &EvictTarget,
    force: bool,
    progress: &mut dyn FnMut(EvictProgress) -> ControlFlow<()>,
) -> Result<Evicted, ApiError> {
    let mut reported = Instant::now();
    let tell = |so_far: &EvictionProgress| {
        if reported.elapsed() < PROGRESS_INTERVAL {
            return ControlFlow::Continue(());
        }
        reported = Instant::now();
        progress(EvictProgress {
            objects: ObjectCount(so_far.objects),
            bytes: so_far.bytes,
            looked_at: ObjectCount(so_far.looked_at),
            total: ObjectCount(so_far.total),
        })
    };
    let mut missing_bytes = ByteCount::ZERO;
    let outcome = match target {
        EvictTarget::Path(path) => datapath
            .evict_below(&bytes_of(path)?, |_| true, force, tell)
            .map_err(|error| refusal(path, &error))?,
        EvictTarget::Bytes(wanted) => {
            let outcome = datapath.evict_coldest(*wanted, tell);
            missing_bytes = wanted.saturating_sub(outcome.bytes.saturating_sub(outcome.held));
            outcome
        }
        EvictTarget::Pattern(pattern) => {
            let glob = globset::GlobBuilder::new(pattern)
                .literal_separator(true)
                .build()
                .map_err(|error| ApiError::new(ErrorCode::BadRequest, error.to_string()))?
                .compile_matcher();
            let fits = |path: &[u8]| glob.is_match(OsStr::from_bytes(path));
            datapath.evict_below(b"", fits, force, tell).map_err(|error| refusal(&KeyPath::root(), &error))?
        }
    };
    Ok(evicted(outcome, missing_bytes))
}

fn evicted(outcome: OperatorEviction, missing_bytes: ByteCount) -> Evicted {
    let skipped = outcome.named.into_iter().map(|(path, obstacle)| Skipped {
        path: KeyPath::from_bytes(&path),
        reason: match obstacle {
            Obstacle::Pinned => SkipReason::Pinned,
            Obstacle::Open => SkipReason::Referenced,
            Obstacle::Written => SkipReason::BeingWritten,
            Obstacle::Scratch => SkipReason::Scratch,
        },
    });
    Evicted {
        objects: ObjectCount(outcome.objects),
        bytes: outcome.bytes.saturating_sub(outcome.held),
        held_bytes: outcome.held,
        elsewhere_bytes: outcome.elsewhere,
        missing_bytes,
        skipped_objects: ObjectCount(outcome.stayed),
        skipped: skipped.collect(),
    }
}
