//! What became of a key: what is noted on this host, else what its cluster knows.

use tidefs_control_api::{ApiError, KeyPath, Tier, Timestamp, Verdict, Why};

use super::operations::{bytes_of, stamp, tier};
use crate::datapath::{Datapath, Fate};

/// See [`super::Operations::why`]. Waits for other members; not on a thread of the cluster's runtime.
pub(super) fn why(datapath: &Datapath, started_at: Timestamp, path: &KeyPath) -> Result<Why, ApiError> {
    let bytes = bytes_of(path)?;
    let side = datapath.cluster();
    let noted = verdict(datapath.fate(&bytes), started_at, side.is_some());
    let is_unknown = matches!(noted, Verdict::NeverWritten { .. } | Verdict::UnknownHistoryTooOld { .. });
    let elsewhere = side.filter(|_| is_unknown).and_then(|side| super::cluster::verdict(side, path, bytes));
    Ok(Why::new(path.clone(), elsewhere.unwrap_or(noted)))
}

/// What is noted here, from when the daemon started on.
fn verdict(fate: Fate, started_at: Timestamp, of_several_hosts: bool) -> Verdict {
    match fate {
        Fate::Present { tier: text } => Verdict::Present { tier: tier(text).unwrap_or(Tier::Other) },
        Fate::BeingWritten { process } => Verdict::BeingWritten { by_pid: process },
        Fate::Evicted { at_ns, for_whom, cause, reason } => {
            Verdict::Evicted { at: stamp(at_ns), for_whom, cause, reason: reason.to_owned() }
        }
        Fate::Withdrawn { at_ns } => Verdict::Withdrawn { at: stamp(at_ns) },
        Fate::Unreachable { at_ns } => Verdict::Unreachable { at: stamp(at_ns) },
        Fate::Expired { at_ns } => Verdict::Expired { at: stamp(at_ns) },
        Fate::Deleted { at_ns, process } => {
            Verdict::Deleted { at: stamp(at_ns), by_pid: Some(process).filter(|process| *process != 0) }
        }
        Fate::Renamed { at_ns, to } => Verdict::Renamed { at: stamp(at_ns), to: KeyPath::from_bytes(&to) },
        Fate::OverQuota { at_ns, directory, quota } => {
            Verdict::Quota { at: stamp(at_ns), namespace: directory, quota }
        }
        Fate::ScratchFull { at_ns } => Verdict::ScratchFull { at: stamp(at_ns) },
        Fate::WriterKilled { at_ns, process } => Verdict::WriterDied { at: stamp(at_ns), pid: process },
        Fate::Corrupt { at_ns } => Verdict::Corrupt { at: stamp(at_ns) },
        Fate::Unknown { history_is_whole: true } => {
            Verdict::NeverWritten { since: Some(started_at), of_several_hosts }
        }
        Fate::Unknown { history_is_whole: false } => Verdict::UnknownHistoryTooOld { since: started_at },
    }
}
