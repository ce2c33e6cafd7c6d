//! The SSD tier, put together from its section of the configuration.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidefs_engine::types::ByteCount;

use super::Failure;
use crate::config::{Config, Effective, ExitStatus};
use crate::datapath::Datapath;
use crate::tier::scratch::Scratch;
use crate::tier::ssd::{Budget, SsdConfig, SsdTier, Unnamed};

/// Removals that are not on disk yet, in the state directory of the mount.
const REMOVALS: &str = "ssd-removals";

/// Disks that were added and removed, there too.
const CHANGES: &str = "ssd-changes.json";

/// Where slot files live: on the disks of the SSD tier unless the configuration says otherwise.
pub(super) fn scratch_of(config: &Config) -> Arc<Scratch> {
    let directories = config.scratch.dir.paths().to_vec();
    let disks = config.ssd.dirs.paths();
    let is_on_disks = directories.iter().any(|home| disks.iter().any(|disk| home.parent() == Some(disk)));
    Scratch::new(directories, !is_on_disks, config.scratch.capacity)
}

/// Takes the SSD tier into use, if one is configured. A disk that cannot be used is told in `status`. Returns the objects
/// that are to get their names when the mount is served.
pub(super) fn attach(datapath: &Arc<Datapath>, effective: &Effective) -> Result<Option<Unnamed>, Failure> {
    let config = &effective.config.ssd;
    if config.dirs.paths().is_empty() {
        return Ok(None);
    }
    let limit = |bytes: ByteCount| (bytes > ByteCount::ZERO).then_some(bytes);
    let tier = SsdTier::open(&SsdConfig {
        places: config.dirs.paths().to_vec(),
        capacity: config.capacity,
        zone_bytes: config.zone,
        budget: Budget {
            bytes_per_second: limit(config.write_bytes_per_second),
            bytes_per_day: limit(config.write_bytes_per_day),
            queue: Duration::from_millis(config.queue_ms),
            queue_bytes_max: config.queue_max,
        },
        io_uring: config.io_uring,
        intents: Some(effective.state.directory.join(REMOVALS)),
        changes: Some(effective.state.directory.join(CHANGES)),
        limit: Duration::from_millis(config.deadline_ms),
    })
    .map_err(|error| Failure::new(ExitStatus::Environment, format!("the SSD tier cannot start: {error}")))?;
    let (found, unnamed) =
        datapath.attach_ssd(tier).map_err(|error| Failure::new(ExitStatus::Failed, error))?;
    tracing::info!(
        objects = found.objects,
        zones = found.zones,
        scanned_zones = found.scanned_zones,
        lost_zones = found.lost_zones,
        "the SSD tier is in use"
    );
    if effective.config.cluster.is_clustered() {
        // Who joins a cluster tells it all that it holds.
        datapath.name_objects(unnamed, || false);
        return Ok(None);
    }
    Ok(Some(unnamed))
}

/// Removes the file of removals when there are none, before the state directory goes.
pub(super) fn remove_empty_removals(directory: &Path) {
    let removals = directory.join(REMOVALS);
    if fs::metadata(&removals).is_ok_and(|metadata| metadata.len() == 0)
        && let Err(error) = fs::remove_file(&removals)
    {
        tracing::debug!(path = %removals.display(), %error, "an empty file stays");
    }
}
