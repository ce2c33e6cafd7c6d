//! Draining a member, this one or another.

use tidefs_control_api::{ApiError, DrainOrder, DrainPhase, DrainRequest, DrainStatus, ErrorCode};
use tidefs_engine::types::{ByteCount, MemberId};

use crate::cluster::{self, Cluster, ClusterError, DrainReport};
use crate::datapath::ClusterSide;

/// Waits for the member's answer; not on a thread of the cluster's runtime.
pub(super) fn drain(side: &ClusterSide, request: &DrainRequest) -> Result<DrainStatus, ApiError> {
    let cluster = side.cluster();
    let member = member(cluster, &request.member)?;
    let order = match request.order {
        DrainOrder::Ask => cluster::DrainOrder::Ask,
        DrainOrder::Begin => cluster::DrainOrder::Begin { within_ms: request.within_ms },
        DrainOrder::Stop => cluster::DrainOrder::Stop,
    };
    let report = side.runtime().block_on(cluster.drain(member, order));
    report.map(|report| status(member, &report)).map_err(|error| refusal(&request.member, error))
}

/// How far a drain is, as the admin socket tells it.
pub(super) fn status(member: MemberId, report: &DrainReport) -> DrainStatus {
    let phase = match report.phase {
        cluster::DrainPhase::Idle => DrainPhase::Idle,
        cluster::DrainPhase::Copying => DrainPhase::Copying,
        cluster::DrainPhase::Left => DrainPhase::Left,
        cluster::DrainPhase::Late => DrainPhase::Late,
        cluster::DrainPhase::Stuck => DrainPhase::Stuck,
    };
    DrainStatus {
        member: member.to_string(),
        phase,
        objects: report.objects,
        bytes: ByteCount(report.bytes),
        objects_left: report.objects_left,
        bytes_left: ByteCount(report.bytes_left),
    }
}

/// The member that is called so, or that has this identity, also when it has just left.
fn member(cluster: &Cluster, text: &str) -> Result<MemberId, ApiError> {
    let called: Vec<MemberId> =
        cluster.names().into_iter().filter(|(_, name)| name == text).map(|(member, _)| member).collect();
    let identified = || cluster.met().into_iter().find(|id| id.to_string() == text);
    match called.as_slice() {
        [one] => Ok(*one),
        [] => identified().ok_or_else(|| {
            ApiError::new(ErrorCode::UnknownName, format!("no member is called `{text}`"))
                .next_step("`tidefs members` lists them")
        }),
        _ => {
            let text = format!("{} members are called `{text}`", called.len());
            Err(ApiError::new(ErrorCode::Conflict, text)
                .next_step("name its identity; `tidefs members` lists them"))
        }
    }
}

fn refusal(member: &str, error: ClusterError) -> ApiError {
    match error {
        ClusterError::Refused(why) => {
            ApiError::new(ErrorCode::Conflict, format!("{member} cannot drain: {why}"))
        }
        error => ApiError::new(ErrorCode::Unavailable, format!("{member} does not answer: {error}"))
            .next_step(
                "look whether its daemon runs; what only a dead member held is lost, and needs no drain",
            ),
    }
}
