//! The daemon at a glance, as `tidefs status` and `.tidefs/status` tell it.

use std::path::Path;

use tidefs_control_api::{
    API_VERSION, ApiError, Counters, EvictionStatus, FuseStatus, KeyPath, MemoryStatus, NamespaceStatus,
    PackedStatus, ScratchStatus, Status, Timestamp,
};
use tidefs_engine::types::{ByteCount, ObjectCount};

use super::facts::{DaemonFacts, started_at, uptime};
use super::refusal::internal;
use crate::datapath::{Datapath, NamespaceFacts, Overview, UNKNOWN_WRITERS};

/// See [`super::Operations::status`]. `facts` are not known before the mount is up.
pub(super) fn status(
    datapath: &Datapath,
    facts: Option<&DaemonFacts>,
    mount_dir: &Path,
    cluster_waits_for: Option<String>,
) -> Result<Status, ApiError> {
    let overview = datapath.overview().map_err(|error| internal(&error))?;
    let telemetry = datapath.telemetry();
    let started_at = started_at(facts);
    let memory = memory(&overview);
    let ssd = datapath.ssd().map(|tier| super::ssd::status(tier, datapath.naming()));
    let cluster = datapath.cluster().map(|side| super::cluster::status(side.cluster()));
    let mut warnings = memory.warnings.clone();
    if let Some(reason) = facts.and_then(|facts| facts.passthrough_reason.as_ref()) {
        warnings.push(format!("files are served by the daemon: {reason}"));
    }
    if telemetry.unknown_writers.get() > 0 {
        warnings.push(UNKNOWN_WRITERS.to_owned());
    }
    if let Some(reason) = &cluster_waits_for {
        warnings.push(format!("this host serves alone, it has not joined its cluster yet: {reason}"));
    }
    warnings.extend(overview.scratch_troubles.iter().cloned());
    warnings.extend(ssd.iter().flat_map(super::ssd::warnings));
    warnings.extend(cluster.iter().flat_map(super::cluster::warnings));
    Ok(Status {
        api_version: API_VERSION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        mount_point: mount_dir.to_string_lossy().into_owned(),
        pid: std::process::id(),
        started_at: Timestamp(started_at),
        uptime_s: uptime(facts).as_secs(),
        capacity: overview.usage.capacity,
        used: overview.usage.used,
        free: overview.usage.free,
        objects: ObjectCount(overview.objects),
        sealed_bytes: overview.sealed_bytes,
        unsealed_files: overview.unsealed_files,
        unsealed_bytes: overview.unsealed_bytes,
        packed: PackedStatus {
            objects: overview.packed.objects,
            bytes: overview.packed.bytes_live,
            segments: overview.packed.segments,
            segment_bytes: overview.packed.bytes_allocated,
        },
        scratch: ScratchStatus {
            files: overview.scratch_files,
            bytes: overview.scratch_used,
            capacity: Some(overview.scratch_capacity),
        },
        ssd,
        cluster,
        cluster_waits_for,
        eviction: EvictionStatus {
            policy: overview.policy.to_owned(),
            evicted_objects: ObjectCount(telemetry.evictions.get()),
            evicted_bytes: ByteCount(telemetry.evicted_bytes.get()),
            order_bytes: ByteCount(overview.policy_memory as u64),
        },
        fuse: facts.map_or_else(FuseStatus::default, fuse),
        memory,
        counters: Counters {
            hits: telemetry.hits.get(),
            misses: telemetry.misses.get(),
            opens: telemetry.passthrough_opens.get() + telemetry.direct_opens.get(),
            creates: telemetry.creates.get(),
        },
        namespaces: overview.namespaces.into_iter().map(namespace).collect(),
        warnings,
    })
}

fn memory(overview: &Overview) -> MemoryStatus {
    let report = &overview.report;
    let mut warnings = Vec::new();
    if !report.private_mount {
        warnings.push("segments share a tmpfs with others: its space can be taken away".to_owned());
    }
    warnings.extend(
        report.refused_options.iter().map(|option| format!("the kernel refused tmpfs option {option}")),
    );
    warnings.extend(report.page_size_unknown.iter().map(|why| format!("the page size is unknown: {why}")));
    if report.shrink_pending {
        warnings.push("the memory tier still holds more than its new capacity".to_owned());
    }
    MemoryStatus {
        page_size: report.page_size,
        private_mount: report.private_mount,
        prefaulted: overview.prefaulted,
        waiting: overview.waiting,
        held: overview.held,
        warnings,
    }
}

fn fuse(facts: &DaemonFacts) -> FuseStatus {
    FuseStatus {
        passthrough: facts.passthrough,
        passthrough_reason: facts.passthrough_reason.clone(),
        threads: facts.threads,
        kernel_abi: facts.kernel_abi.clone(),
        flags: facts.flags.clone(),
    }
}

fn namespace(facts: NamespaceFacts) -> NamespaceStatus {
    NamespaceStatus {
        name: KeyPath::from_bytes(&facts.name).to_string(),
        bytes: facts.bytes,
        unsealed_bytes: facts.unsealed_bytes,
        objects: facts.objects,
        quota: facts.quota,
        floor: facts.floor,
        policy: facts.policy.to_owned(),
        evicted: ObjectCount(facts.evicted),
        hits: facts.hits,
        misses: facts.misses,
    }
}
