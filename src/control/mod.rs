//! The admin socket: HTTP over a unix socket, for the CLI and for whoever has `curl --unix-socket`.
//!
//! This side decodes, checks who asks and keeps time; what is done is behind [`Operations`], which the datapath
//! implements. Nothing here is on the path of a read.
//!
//! Invariants
//! - Root and the daemon's own user are answered, everybody else is told 403 and nothing more.
//! - A request is refused as a whole or done as a whole: parts that are not understood are errors.
//! - Nothing is begun for a caller that has left (`caller`): it was told that it failed.
//! - The socket's folder has mode 0700, the socket 0600, before the first request is accepted.
//!
//! Limits: `server::CONNECTIONS_MAX` connections (further ones wait), `handlers::BODY_MAX` bytes of request,
//! `handlers::DEADLINE` for an answer or the start of one that is streamed (`stream`), `server::HEADER_DEADLINE` for a
//! request's head.
//! Threads: one, `control`, runs the runtime; operations run on its few blocking threads, never on it.

// The socket: who asks, and how answers and refusals are told.
mod caller;
mod credentials;
mod handlers;
mod refusal;
mod server;
mod stream;

// What is done for an operator.
mod disks;
mod drain;
mod evict;
mod list;
mod operations;
mod verify;
mod why;

// What is shown.
mod cluster;
mod facts;
mod metrics;
mod settings;
mod ssd;
mod status;

use std::fmt;
use std::ops::ControlFlow;

use tidefs_control_api::{
    AddDiskRequest, ApiError, DisksChanged, DrainDiskRequest, DrainProgress, DrainRequest, DrainStatus,
    EffectiveConfig, EvictProgress, EvictTarget, Evicted, KeyPath, ListPart, ListQuery, ListSummary,
    ObjectStat, PinRequest, Pinned, RemoveDiskRequest, Status, VerifyProgress, VerifyRequest, VerifySummary,
    Where, Why,
};

pub use facts::{AddDisk, DaemonFacts, Joining};
pub use operations::DaemonOperations;
pub use server::{ControlServer, StartError};

/// What the admin API can ask of the daemon; one method a route.
///
/// Methods block and are quick (well below the deadline of `handlers::DEADLINE`), but for [`Self::list`],
/// [`Self::evict`], [`Self::verify`] and [`Self::drain_disk`].
/// Paths were checked: [`KeyPath::to_bytes`] does not fail on them. Errors carry the code that the caller sees;
/// [`ApiError::no_object`] is the one for a key that is not here.
pub trait Operations: fmt::Debug + Send + Sync + 'static {
    /// The daemon at a glance.
    ///
    /// # Errors
    /// [`tidefs_control_api::ErrorCode::Unavailable`] while it starts or stops.
    fn status(&self) -> Result<Status, ApiError>;

    /// Tells of the objects below a directory, in the order asked for, part by part. `tell` may wait for the reader; once it
    /// answers `Break`, nobody reads any more, and the list ends.
    ///
    /// # Errors
    /// No such directory; a limit of 0.
    fn list(
        &self,
        query: &ListQuery,
        tell: &mut dyn FnMut(ListPart) -> ControlFlow<()>,
    ) -> Result<ListSummary, ApiError>;

    /// The facts of one object or directory.
    ///
    /// # Errors
    /// [`ApiError::no_object`].
    fn stat(&self, path: &KeyPath) -> Result<ObjectStat, ApiError>;

    /// What became of a key. That it is not here is an answer, not an error.
    ///
    /// # Errors
    /// Only the daemon's own.
    fn why(&self, path: &KeyPath) -> Result<Why, ApiError>;

    /// Which members hold a key.
    ///
    /// # Errors
    /// The host is in no cluster.
    fn locate(&self, path: &KeyPath) -> Result<Where, ApiError>;

    /// Has a member leave the cluster with nothing lost, or tells how far that is.
    ///
    /// # Errors
    /// The host is in no cluster, there is no such member, or it does not answer.
    fn drain(&self, request: &DrainRequest) -> Result<DrainStatus, ApiError>;

    /// Evicts what `target` names, pinned objects only if `force`. `progress` as in [`Self::verify`].
    ///
    /// # Errors
    /// Nothing fits `target`; a glob that is not one. What stays although it fits is told in the answer.
    fn evict(
        &self,
        target: &EvictTarget,
        force: bool,
        progress: &mut dyn FnMut(EvictProgress) -> ControlFlow<()>,
    ) -> Result<Evicted, ApiError>;

    /// Pins or frees an object or directory. `request.validate()` does not fail.
    ///
    /// # Errors
    /// [`ApiError::no_object`]; there is no room to bring an object from its disk; the members of the cluster cannot agree.
    fn pin(&self, request: &PinRequest) -> Result<Pinned, ApiError>;

    /// Compares the bytes of all objects at and below the path of a request (all, if absent) with their checksums.
    ///
    /// Calls `progress` now and then; once it answers `Break`, nobody listens any more and the verification ends soon, with
    /// any result. Where it tells nothing for long, as one does that waits for a disk, the reader is told that it goes on
    /// (`stream`). At most one runs at a time.
    ///
    /// # Errors
    /// [`ApiError::no_object`]; the tier that is asked for is not there. Corrupt objects are a finding, not an error, and so
    /// are those that are not where they are looked for.
    fn verify(
        &self,
        request: &VerifyRequest,
        progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
    ) -> Result<VerifySummary, ApiError>;

    /// Takes a disk into the SSD tier.
    ///
    /// # Errors
    /// There is no tier; the disk cannot be used.
    fn add_disk(&self, request: &AddDiskRequest) -> Result<DisksChanged, ApiError>;

    /// Takes a disk out of the SSD tier.
    ///
    /// # Errors
    /// There is no such disk; it holds objects.
    fn remove_disk(&self, request: &RemoveDiskRequest) -> Result<DisksChanged, ApiError>;

    /// Writes what a disk holds to the others. `progress` as in [`Self::verify`].
    ///
    /// # Errors
    /// There is no such disk, or no other.
    fn drain_disk(
        &self,
        request: &DrainDiskRequest,
        progress: &mut dyn FnMut(DrainProgress) -> ControlFlow<()>,
    ) -> Result<DrainProgress, ApiError>;

    /// Every setting with its origin.
    ///
    /// # Errors
    /// Only the daemon's own.
    fn config(&self) -> Result<EffectiveConfig, ApiError>;

    /// All metrics, as text in the OpenMetrics format.
    ///
    /// # Errors
    /// Only the daemon's own.
    fn metrics(&self) -> Result<String, ApiError>;
}

#[cfg(test)]
mod tests;
