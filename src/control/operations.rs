//! The admin API over the datapath: translates its facts into the API's types.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use tidefs_control_api::{
    AddDiskRequest, ApiError, ChecksumHex, DisksChanged, DrainDiskRequest, DrainProgress, DrainRequest,
    DrainStatus, EffectiveConfig, ErrorCode, EvictProgress, EvictTarget, Evicted, KeyPath, ListPart,
    ListQuery, ListSummary, ObjectKind, ObjectStat, Pin, PinRequest, Pinned, RemoveDiskRequest, Status, Tier,
    Timestamp, VerifyProgress, VerifyRequest, VerifySummary, Where, Why,
};

use super::Operations;
use super::facts::{AddDisk, DaemonFacts, Joining, started_at};
use super::refusal::{internal, refusal};
use crate::config::Effective;
use crate::datapath::{ClusterSide, Datapath, Kind};
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
        super::status::status(&self.datapath, self.facts.get(), &self.mount_dir, self.waits_for())
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
        let started_at = Timestamp(started_at(self.facts.get()));
        super::why::why(&self.datapath, started_at, path)
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
