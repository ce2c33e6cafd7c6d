//! The admin API over the datapath: translates its facts into the API's types.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use tidefs_control_api::{
    API_VERSION, AddDiskRequest, ApiError, ChecksumHex, Counters, DisksChanged, DrainDiskRequest,
    DrainProgress, DrainRequest, DrainStatus, EffectiveConfig, ErrorCode, EvictProgress, EvictTarget,
    Evicted, EvictionStatus, FuseStatus, KeyPath, ListPart, ListQuery, ListSummary, MemoryStatus,
    NamespaceStatus, ObjectKind, ObjectStat, PackedStatus, Pin, PinRequest, Pinned, RemoveDiskRequest,
    ScratchStatus, Status, Tier, Timestamp, Verdict, VerifyProgress, VerifyRequest, VerifySummary, Where,
    Why,
};
use tidefs_engine::types::{ByteCount, ObjectCount};

use super::Operations;
use super::facts::{AddDisk, DaemonFacts, Joining};
use super::refusal::{internal, refusal};
use crate::config::Effective;
use crate::datapath::{self, ClusterSide, Datapath, Fate, Kind, UNKNOWN_WRITERS};
use crate::namespace::time_of;
use crate::telemetry;
use crate::tier::memory;

/// How far into the order of eviction `stat` looks for an object's rank.
const RANK_MAX: usize = 100_000;

/// The daemon, as the admin API sees it.
#[derive(Debug)]
pub struct DaemonOperations {
    datapath: Arc<Datapath>,
    effective: Arc<Effective>,
    mount_dir: PathBuf,
    disks: Box<dyn AddDisk>,
    facts: OnceLock<DaemonFacts>,
    joining: OnceLock<Arc<dyn Joining>>,
}

/// Name and source of a file of `.tidefs`.
type ControlFile = (&'static str, Box<dyn Fn() -> String + Send + Sync>);

impl DaemonOperations {
    /// Operations on `datapath`, which is or will be mounted on `mount_dir` and gets its disks by `disks`.
    #[must_use]
    pub fn new(
        datapath: Arc<Datapath>,
        effective: Arc<Effective>,
        mount_dir: PathBuf,
        disks: Box<dyn AddDisk>,
    ) -> Self {
        Self { datapath, effective, mount_dir, disks, facts: OnceLock::new(), joining: OnceLock::new() }
    }

    /// Tells who knows whether the host takes part in its cluster. Once.
    pub fn set_joining(&self, joining: Arc<dyn Joining>) {
        let _ = self.joining.set(joining);
    }

    /// Tells what is known now that the mount is up. Once.
    pub fn set_facts(&self, facts: DaemonFacts) {
        // A second call would be a bug of the composition root; the first facts stay.
        let _ = self.facts.set(facts);
    }

    /// The files of `.tidefs`.
    #[must_use]
    pub fn control_files(self: &Arc<Self>) -> Vec<ControlFile> {
        fn json<T: serde::Serialize>(outcome: Result<T, ApiError>) -> String {
            let text = match outcome {
                Ok(value) => serde_json::to_string_pretty(&value),
                Err(error) => serde_json::to_string_pretty(&error),
            };
            text.map_or_else(|error| format!("{{\"error\":\"{error}\"}}\n"), |text| text + "\n")
        }
        let (status, metrics, config) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        vec![
            ("status", Box::new(move || json(status.status()))),
            ("metrics", Box::new(move || metrics.metrics().unwrap_or_else(|error| format!("# {error}\n")))),
            ("config", Box::new(move || json(config.config()))),
        ]
    }

    fn cluster_side(&self) -> Result<&ClusterSide, ApiError> {
        let alone = || {
            let text = self.waits_for().map_or_else(
                || {
                    "this host is in no cluster; it joins one with cluster.etcd or cluster.coordinator"
                        .to_owned()
                },
                |reason| format!("this host has not joined its cluster yet: {reason}"),
            );
            ApiError::new(ErrorCode::Conflict, text)
        };
        self.datapath.cluster().ok_or_else(alone)
    }

    /// Why this host has not joined its cluster yet; `None` when it has, or there is none.
    fn waits_for(&self) -> Option<String> {
        self.joining.get().and_then(|joining| joining.waits_for())
    }

    fn warnings(&self, overview: &datapath::Overview) -> (Vec<String>, Vec<String>) {
        let report = &overview.report;
        let mut memory = Vec::new();
        if !report.private_mount {
            memory.push("segments share a tmpfs with others: its space can be taken away".to_owned());
        }
        memory.extend(
            report.refused_options.iter().map(|option| format!("the kernel refused tmpfs option {option}")),
        );
        memory.extend(report.page_size_unknown.iter().map(|why| format!("the page size is unknown: {why}")));
        if report.shrink_pending {
            memory.push("the memory tier still holds more than its new capacity".to_owned());
        }
        let mut all = memory.clone();
        if let Some(reason) = self.facts.get().and_then(|facts| facts.passthrough_reason.as_ref()) {
            all.push(format!("files are served by the daemon: {reason}"));
        }
        if self.datapath.telemetry().unknown_writers.get() > 0 {
            all.push(UNKNOWN_WRITERS.to_owned());
        }
        if let Some(reason) = self.waits_for() {
            all.push(format!("this host serves alone, it has not joined its cluster yet: {reason}"));
        }
        (memory, all)
    }
}

pub(super) fn tier(text: &str) -> Option<Tier> {
    Some(match text {
        "memory" => Tier::Memory,
        "packed" => Tier::Packed,
        "scratch" => Tier::Scratch,
        "ssd" => Tier::Ssd,
        "remote" => Tier::Remote,
        "writing" => Tier::Writing,
        _ => return None,
    })
}

pub(super) fn pin(pin: Option<memory::Pin>) -> Pin {
    match pin {
        Some(memory::Pin::Hard) => Pin::Hard,
        Some(memory::Pin::Soft { .. }) => Pin::Soft,
        Some(memory::Pin::None) | None => Pin::None,
    }
}

pub(super) fn stamp(nanos: i64) -> Timestamp {
    Timestamp(time_of(nanos))
}

pub(super) fn bytes_of(path: &KeyPath) -> Result<Vec<u8>, ApiError> {
    path.to_bytes().map_err(|error| ApiError::new(ErrorCode::BadRequest, error.to_string()))
}

impl Operations for DaemonOperations {
    fn status(&self) -> Result<Status, ApiError> {
        let overview = self.datapath.overview().map_err(|error| internal(&error))?;
        let telemetry = self.datapath.telemetry();
        let facts = self.facts.get();
        let (memory_warnings, mut warnings) = self.warnings(&overview);
        let ssd = self.datapath.ssd().map(|tier| super::ssd::status(tier, self.datapath.naming()));
        warnings.extend(ssd.iter().flat_map(super::ssd::warnings));
        let cluster = self.datapath.cluster().map(|side| super::cluster::status(side.cluster()));
        warnings.extend(cluster.iter().flat_map(super::cluster::warnings));
        let started_at = facts.map_or_else(SystemTime::now, |facts| facts.started_at);
        Ok(Status {
            api_version: API_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mount_point: self.mount_dir.to_string_lossy().into_owned(),
            pid: std::process::id(),
            started_at: Timestamp(started_at),
            uptime_s: started_at.elapsed().unwrap_or_default().as_secs(),
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
            cluster_waits_for: self.waits_for(),
            eviction: EvictionStatus {
                policy: overview.policy.to_owned(),
                evicted_objects: ObjectCount(telemetry.evictions.get()),
                evicted_bytes: ByteCount(telemetry.evicted_bytes.get()),
                order_bytes: ByteCount(overview.policy_memory as u64),
            },
            fuse: facts.map_or_else(FuseStatus::default, |facts| FuseStatus {
                passthrough: facts.passthrough,
                passthrough_reason: facts.passthrough_reason.clone(),
                threads: facts.threads,
                kernel_abi: facts.kernel_abi.clone(),
                flags: facts.flags.clone(),
            }),
            memory: MemoryStatus {
                page_size: overview.report.page_size,
                private_mount: overview.report.private_mount,
                prefaulted: overview.prefaulted,
                waiting: overview.waiting,
                held: overview.held,
                warnings: memory_warnings,
            },
            counters: Counters {
                hits: telemetry.hits.get(),
                misses: telemetry.misses.get(),
                opens: telemetry.passthrough_opens.get() + telemetry.direct_opens.get(),
                creates: telemetry.creates.get(),
            },
            namespaces: overview
                .namespaces
                .into_iter()
                .map(|facts| NamespaceStatus {
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
                })
                .collect(),
            warnings,
        })
    }

    fn list(
        &self,
        query: &ListQuery,
        tell: &mut dyn FnMut(ListPart) -> ControlFlow<()>,
    ) -> Result<ListSummary, ApiError> {
        super::list::list(&self.datapath, query, tell)
    }

    fn stat(&self, path: &KeyPath) -> Result<ObjectStat, ApiError> {
        let facts = self.datapath.facts(&bytes_of(path)?).ok_or_else(|| ApiError::no_object(path))?;
        let now = SystemTime::now();
        let left = |at_ns: i64| time_of(at_ns).duration_since(now).unwrap_or_default().as_secs();
        Ok(ObjectStat {
            path: path.clone(),
            kind: match facts.kind {
                Kind::Directory => ObjectKind::Directory,
                Kind::File => ObjectKind::File,
            },
            size: facts.size,
            version: facts.version,
            checksum: facts.checksum.map(ChecksumHex),
            tier: tier(facts.tier),
            sealed_at: facts.sealed_at_ns.map(stamp),
            last_used: Some(stamp(facts.used_at_ns)),
            hits: facts.uses,
            references: facts.references,
            pin: pin(facts.policy.pin),
            pin_ttl_left_s: facts.pin_ends_at_ns.map(left),
            priority: i32::from(facts.policy.priority.unwrap_or(0)),
            ttl_left_s: facts.expires_at_ns.map(left),
            predecessor: facts.predecessor.as_deref().map(KeyPath::from_bytes),
            eviction_rank: self.datapath.eviction_rank(facts.ino, RANK_MAX),
            segment: facts.segment,
        })
    }

    fn locate(&self, path: &KeyPath) -> Result<Where, ApiError> {
        Ok(super::cluster::locate(self.cluster_side()?, path, bytes_of(path)?))
    }

    fn drain(&self, request: &DrainRequest) -> Result<DrainStatus, ApiError> {
        super::drain::drain(self.cluster_side()?, request)
    }

    fn why(&self, path: &KeyPath) -> Result<Why, ApiError> {
        let side = self.cluster_side().ok();
        let verdict = match self.datapath.fate(&bytes_of(path)?) {
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
            Fate::Renamed { at_ns, to } => {
                Verdict::Renamed { at: stamp(at_ns), to: KeyPath::from_bytes(&to) }
            }
            Fate::OverQuota { at_ns, directory, quota } => {
                Verdict::Quota { at: stamp(at_ns), namespace: directory, quota }
            }
            Fate::ScratchFull { at_ns } => Verdict::ScratchFull { at: stamp(at_ns) },
            Fate::WriterKilled { at_ns, process } => Verdict::WriterDied { at: stamp(at_ns), pid: process },
            Fate::Corrupt { at_ns } => Verdict::Corrupt { at: stamp(at_ns) },
            Fate::Unknown { history_is_whole } => {
                let since =
                    Timestamp(self.facts.get().map_or_else(SystemTime::now, |facts| facts.started_at));
                match history_is_whole {
                    true => Verdict::NeverWritten { since: Some(since), of_several_hosts: side.is_some() },
                    false => Verdict::UnknownHistoryTooOld { since },
                }
            }
        };
        let is_unknown =
            matches!(verdict, Verdict::NeverWritten { .. } | Verdict::UnknownHistoryTooOld { .. });
        let elsewhere = match side.filter(|_| is_unknown) {
            Some(side) => super::cluster::verdict(side, path, bytes_of(path)?),
            None => None,
        };
        Ok(Why::new(path.clone(), elsewhere.unwrap_or(verdict)))
    }

    fn evict(
        &self,
        target: &EvictTarget,
        force: bool,
        progress: &mut dyn FnMut(EvictProgress) -> ControlFlow<()>,
    ) -> Result<Evicted, ApiError> {
        super::evict::evict(&self.datapath, target, force, progress)
    }

    fn pin(&self, request: &PinRequest) -> Result<Pinned, ApiError> {
        request.validate()?;
        let value = match (request.pin, request.ttl_s) {
            (Pin::None, _) => None,
            // Validated above: it has no time.
            (Pin::Hard, _) => Some("hard".to_owned()),
            (Pin::Soft, None) => Some("soft".to_owned()),
            (Pin::Soft, Some(ttl_s)) => Some(format!("soft:{ttl_s}s")),
        };
        let path = bytes_of(&request.path)?;
        let now =
            self.datapath.pin(&path, value.as_deref()).map_err(|error| refusal(&request.path, &error))?;
        Ok(Pinned { path: request.path.clone(), pin: pin(now), ttl_left_s: request.ttl_s })
    }

    fn verify(
        &self,
        request: &VerifyRequest,
        progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
    ) -> Result<VerifySummary, ApiError> {
        super::verify::verify(&self.datapath, request, progress)
    }

    fn config(&self) -> Result<EffectiveConfig, ApiError> {
        Ok(super::settings::of(&self.effective))
    }

    fn add_disk(&self, request: &AddDiskRequest) -> Result<DisksChanged, ApiError> {
        super::disks::check_outside_of_mount(&request.path, &self.mount_dir)?;
        super::disks::add(&*self.disks, &self.datapath, &self.effective, request)
    }

    fn remove_disk(&self, request: &RemoveDiskRequest) -> Result<DisksChanged, ApiError> {
        super::disks::remove(&self.datapath, &self.effective, request)
    }

    fn drain_disk(
        &self,
        request: &DrainDiskRequest,
        progress: &mut dyn FnMut(DrainProgress) -> ControlFlow<()>,
    ) -> Result<DrainProgress, ApiError> {
        super::disks::drain(&self.datapath, request, progress)
    }

    fn metrics(&self) -> Result<String, ApiError> {
        let families = super::metrics::families(&self.datapath).map_err(|error| internal(&error))?;
        telemetry::render(families).map_err(|error| ApiError::new(ErrorCode::Internal, error.to_string()))
    }
}
