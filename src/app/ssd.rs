//! The SSD tier, put together from its section of the configuration.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use parking_lot::Mutex;
use tidefs_control_api::instance::REMOVALS;
use tidefs_engine::types::ByteCount;

use super::Failure;
use super::background::Background;
use super::progress::Progress;
use super::settings::load_threads;
use crate::config::{Effective, ExitStatus};
use crate::control::AddDisk;
use crate::datapath::Datapath;
use crate::tier::roots::Roots;
use crate::tier::ssd::{Budget, ChangeError, SsdConfig, SsdTier, Unnamed};

/// Disks that were added and removed, in the state directory of the mount.
const CHANGES: &str = "ssd-changes.json";

/// What was written of the budget of the day, there too.
const DAYS: &str = "ssd-days.json";

/// How often the disks were used, in a directory that outlives a restart of the machine.
const EPOCHS: &str = "ssd-epochs.json";

/// Where they are mounted, there too.
const ROOTS: &str = "ssd-mounts.json";

/// The state directory of the mount, or another where that is lost with a restart of the machine.
pub(super) fn lasting_directory(effective: &Effective) -> &Path {
    lasting_of(&effective.state.directory, &effective.lasting)
}

/// `state`, or `lasting` where that is on a tmpfs.
fn lasting_of<'a>(state: &'a Path, lasting: &'a Path) -> &'a Path {
    // Before the first start after one it is not made yet.
    let facts = state.ancestors().find_map(|there| statfs(there).ok());
    let is_lost = facts.is_some_and(|stat| stat.filesystem_type() == TMPFS_MAGIC);
    if is_lost { lasting } else { state }
}

/// Where directories of the tier were mounted at earlier starts.
pub(super) fn roots_of(effective: &Effective) -> Roots {
    Roots::load(Some(&roots_file(effective)))
}

fn roots_file(effective: &Effective) -> PathBuf {
    lasting_directory(effective).join(ROOTS)
}

fn config_of(effective: &Effective) -> SsdConfig {
    let config = &effective.config.ssd;
    let limit = |bytes: ByteCount| (bytes > ByteCount::ZERO).then_some(bytes);
    SsdConfig {
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
        epochs: Some(lasting_directory(effective).join(EPOCHS)),
        days: Some(lasting_directory(effective).join(DAYS)),
        roots: Some(roots_file(effective)),
        limit: Duration::from_millis(config.deadline_ms),
    }
}

/// Takes the SSD tier into use, if a disk is configured, or was added to an earlier daemon. A disk that cannot be used is
/// told in `status`. `is_stopping`: whether the start is not wanted any more. Returns the objects that are to get their names when the mount is served.
pub(super) fn attach(
    datapath: &Arc<Datapath>,
    effective: &Effective,
    is_stopping: impl Fn() -> bool,
) -> Result<Option<Unnamed>, Failure> {
    let config = config_of(effective);
    if !config.has_places() {
        SsdTier::pass_by(&config);
        return Ok(None);
    }
    let tier = SsdTier::open(&config).map_err(|error| {
        Failure::new(ExitStatus::Environment, format!("the SSD tier cannot start: {error}"))
    })?;
    let (found, unnamed) =
        datapath.attach_ssd(tier).map_err(|error| Failure::new(ExitStatus::Failed, error))?;
    if found.objects > 0 {
        datapath.follows_another();
    }
    tracing::info!(
        objects = found.objects,
        zones = found.zones,
        scanned_zones = found.scanned_zones,
        lost_zones = found.lost_zones,
        "the SSD tier is in use"
    );
    let is_outgrown = datapath.tier().usage().is_ok_and(|usage| usage.used > usage.capacity);
    if effective.config.cluster.is_clustered() || is_outgrown {
        // Who joins a cluster tells it all that it holds, and what memory has no room for may stand on a disk already. A disk that
        // hangs ends that, too, or a signal.
        let progress = Progress::begin();
        datapath.name_objects(unnamed, || {
            if progress.is_due() {
                tell_progress(datapath);
            }
            is_stopping()
        });
        return Ok(None);
    }
    Ok(Some(unnamed))
}

/// Who waits for the mount sees by its log that the daemon gets on.
fn tell_progress(datapath: &Datapath) {
    if let Some((named, objects)) = datapath.naming() {
        tracing::info!(
            named = named.0,
            objects = objects.0,
            "objects on disk get their names before the mount"
        );
    }
}

/// The disks of a running daemon. One that was started without any has no SSD tier, nor a thread for one, before it gets
/// its first disk; from then on it is as if it had been started with it, but for slot files, which stay where they are.
#[derive(Debug)]
pub(super) struct Disks {
    datapath: Arc<Datapath>,
    effective: Arc<Effective>,
    background: Arc<Background>,
    /// Guards nothing but that one thread at a time makes a tier.
    turn: Mutex<()>,
}

impl Disks {
    pub(super) fn new(
        datapath: &Arc<Datapath>,
        effective: &Arc<Effective>,
        background: &Arc<Background>,
    ) -> Self {
        let (datapath, effective) = (Arc::clone(datapath), Arc::clone(effective));
        Self { datapath, effective, background: Arc::clone(background), turn: Mutex::new(()) }
    }

    /// Makes a tier of one disk and takes it into use. Nothing of it is left when that fails.
    fn add_first(&self, place: &Path, capacity: Option<ByteCount>) -> Result<(), ChangeError> {
        let cannot_start = |error: io::Error| ChangeError::CannotStart(error.to_string());
        let tier = SsdTier::without_disks(&config_of(&self.effective)).map_err(cannot_start)?;
        let loads = load_threads(&self.effective.config, true);
        let no_thread = |error| ChangeError::CannotStart(format!("no threads for it: {error}"));
        let crew = self.background.crew_for_disks(&self.datapath, loads).map_err(no_thread)?;
        tier.start(self.datapath.ssd_owner()).map_err(no_thread)?;
        tier.add(place, capacity)?;
        self.datapath.attach_new_ssd(Arc::new(tier));
        crew.begin();
        tracing::info!("the SSD tier is in use");
        Ok(())
    }
}

impl AddDisk for Disks {
    fn add_disk(&self, place: &Path, capacity: Option<ByteCount>) -> Result<(), ChangeError> {
        let _turn = self.turn.lock();
        match self.datapath.ssd() {
            Some(tier) => tier.add(place, capacity),
            None => self.add_first(place, capacity),
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::mount::MsFlags;

    use super::*;
    use crate::tier::small_disk::SmallDisk;

    #[test]
    fn a_state_directory_that_is_to_be_made_is_lost_with_a_restart_where_what_is_above_it_is() {
        let (disk, lasting) = (SmallDisk::new("1m", MsFlags::empty()), Path::new("/var/lib/tidefs/mount"));
        let on_tmpfs = disk.path().join("to be/made");
        assert_eq!(lasting_of(&on_tmpfs, lasting), lasting);
        let elsewhere = Path::new("/proc/to be/made");
        assert_eq!(lasting_of(elsewhere, lasting), elsewhere);
    }
}
