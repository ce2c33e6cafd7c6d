//! Comparing objects with their checksums at an operator's word, at a rate that readers do not feel.
//!
//! Threads: the one of the request, until all is compared or nobody listens any more.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tidefs_control_api::{ApiError, ErrorCode, KeyPath, Tier, VerifyProgress, VerifyRequest, VerifySummary};
use tidefs_engine::types::{ByteCount, ObjectCount};

use super::operations::bytes_of;
use super::refusal::refusal;
use crate::datapath::{self, Datapath};
use crate::namespace::Ino;

/// How often a verification reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// See [`super::Operations::verify`].
pub(super) fn verify(
    datapath: &Datapath,
    request: &VerifyRequest,
    progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
) -> Result<VerifySummary, ApiError> {
    let mut pace = Pace::new(request.bytes_per_second);
    let root = KeyPath::root();
    let path = request.path.as_ref().unwrap_or(&root);
    let is_on_disk = match request.tier {
        None => false,
        Some(Tier::Ssd) => {
            super::disks::tier(datapath)?;
            true
        }
        Some(_) => {
            return Err(ApiError::new(ErrorCode::BadRequest, "only the tier `ssd` is verified by itself"));
        }
    };
    let objects = datapath.sealed_below(&bytes_of(path)?).map_err(|error| refusal(path, &error))?;
    let mut seen = VerifyProgress { total: ObjectCount(objects.len() as u64), ..VerifyProgress::default() };
    let mut summary = VerifySummary::default();
    for ino in objects {
        let path = datapath.path_of_ino(ino).unwrap_or_default();
        let size = datapath.getattr(ino).map(|stat| stat.size).unwrap_or_default();
        let verdict = if is_on_disk { datapath.verify_on_ssd(ino) } else { datapath.verify_object(ino) };
        match verdict {
            Ok(datapath::Verdict::Sound) => {
                seen.checked.0 += 1;
                seen.checked_bytes = seen.checked_bytes.saturating_add(size);
            }
            Ok(datapath::Verdict::Corrupt) => {
                seen.checked.0 += 1;
                seen.corrupt.0 += 1;
                if summary.corrupt_paths.len() < tidefs_control_api::verify::CORRUPT_LISTED_MAX {
                    summary.corrupt_paths.push(KeyPath::from_bytes(&path));
                }
            }
            Ok(datapath::Verdict::Unreadable) => {
                seen.passed_by.0 += 1;
                summary.unreadable.0 += 1;
            }
            Err(error) if tier_of(datapath, ino).is_some() => {
                let path = KeyPath::from_bytes(&path);
                tracing::warn!(%path, %error, "an object could not be read: nothing is known of its bytes");
                seen.passed_by.0 += 1;
                summary.unreadable.0 += 1;
            }
            Ok(datapath::Verdict::Skipped) | Err(_) => {
                seen.passed_by.0 += 1;
                count_passed_by(datapath, ino, is_on_disk, &mut summary);
            }
        }
        if pace.keep(seen, progress).is_break() {
            break;
        }
    }
    summary.checked = seen.checked;
    summary.checked_bytes = seen.checked_bytes;
    summary.corrupt = seen.corrupt;
    summary.elapsed_ms = u64::try_from(pace.started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(summary)
}

/// How fast a verification goes, and when it reports.
struct Pace {
    started: Instant,
    reported: Instant,
    bytes_per_second: Option<u64>,
}

impl Pace {
    fn new(rate: Option<ByteCount>) -> Self {
        let now = Instant::now();
        let bytes_per_second = rate.map(ByteCount::get).filter(|rate| *rate > 0);
        Self { started: now, reported: now, bytes_per_second }
    }

    /// Waits until as many bytes may have been read as were. `Break`: nobody listens any more.
    fn keep(
        &mut self,
        seen: VerifyProgress,
        progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let due = self.bytes_per_second.map_or(0.0, |rate| seen.checked_bytes.get() as f64 / rate as f64);
        loop {
            if self.reported.elapsed() >= PROGRESS_INTERVAL {
                self.reported = Instant::now();
                progress(seen)?;
            }
            let early = due - self.started.elapsed().as_secs_f64();
            if early <= 0.0 {
                return ControlFlow::Continue(());
            }
            std::thread::sleep(Duration::from_secs_f64(early.min(PROGRESS_INTERVAL.as_secs_f64())));
        }
    }
}

/// Where an object is now. `None` for one that is gone.
fn tier_of(datapath: &Datapath, ino: Ino) -> Option<&'static str> {
    let facts = datapath.path_of_ino(ino).and_then(|path| datapath.facts(&path))?;
    Some(facts.tier)
}

/// Counts an object that was not read by where it is instead. `is_on_disk`: those on disks are verified, else those in memory.
fn count_passed_by(datapath: &Datapath, ino: Ino, is_on_disk: bool, summary: &mut VerifySummary) {
    let count = match (is_on_disk, tier_of(datapath, ino)) {
        (false, Some("ssd")) => &mut summary.only_on_disk,
        (true, Some("memory" | "packed")) => &mut summary.only_in_memory,
        (_, Some("remote")) => &mut summary.only_elsewhere,
        // Not final yet, or written again since the list was made.
        (_, Some("memory" | "packed" | "writing")) => &mut summary.being_written,
        // Evicted or removed since then.
        _ => &mut summary.gone,
    };
    count.0 += 1;
}
