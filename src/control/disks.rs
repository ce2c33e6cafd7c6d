//! Disks of the SSD tier that are added, emptied and removed while the daemon runs.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use tidefs_control_api::mounts::MountTable;
use tidefs_control_api::{
    AddDiskRequest, ApiError, DisksChanged, DrainDiskRequest, DrainProgress, ErrorCode, RemoveDiskRequest,
};
use tidefs_engine::types::{ByteCount, ObjectCount};

use super::AddDisk;
use crate::config::Effective;
use crate::datapath::Datapath;
use crate::tier::ssd::{ChangeError, Drained, SsdTier, Unusable};

/// The SSD tier, or the refusal of whoever needs one.
pub(super) fn tier(datapath: &Datapath) -> Result<&SsdTier, ApiError> {
    let none = || {
        ApiError::new(ErrorCode::Conflict, "this daemon has no SSD tier")
            .next_step("`tidefs tier add` gives it a disk")
    };
    datapath.ssd().map(AsRef::as_ref).ok_or_else(none)
}

/// The directory or device that `path` names, without a slash at its end: as the tier calls it, if it is one of its disks.
fn place(datapath: &Datapath, path: &str) -> Result<PathBuf, ApiError> {
    if !Path::new(path).is_absolute() {
        return Err(ApiError::new(ErrorCode::BadRequest, format!("`{path}` is not an absolute path")));
    }
    let place: PathBuf = Path::new(path).components().collect();
    // An earlier version kept such a slash in the name. Paths are equal all the same.
    let devices = datapath.ssd().map(|tier| tier.status().devices).unwrap_or_default();
    let known = devices.into_iter().map(|device| PathBuf::from(device.name)).find(|known| *known == place);
    Ok(known.unwrap_or(place))
}

/// The daemon must not touch what is in its mount, by whatever way a path leads there: it would wait for itself.
pub(super) fn check_outside_of_mount(path: &str, mount_dir: &Path) -> Result<(), ApiError> {
    let resolved = MountTable::read().and_then(|table| table.resolve(Path::new(path)));
    let resolved = resolved
        .map_err(|error| ApiError::new(ErrorCode::BadRequest, format!("`{path}` leads nowhere: {error}")))?;
    if !resolved.starts_with(mount_dir) {
        return Ok(());
    }
    let text = format!("{path}: it is in the mount {}", mount_dir.display());
    Err(ApiError::new(ErrorCode::BadRequest, text).next_step("name a directory outside of the mount"))
}

fn refusal(path: &str, error: &ChangeError) -> ApiError {
    let (code, next) = match error {
        ChangeError::Unusable(Unusable::Missing) => {
            (ErrorCode::UnknownName, "make the directory, or attach the device")
        }
        ChangeError::Unusable(_) => (ErrorCode::Conflict, "mend that, or name another directory or device"),
        ChangeError::TooMuch { .. } => (
            ErrorCode::BadRequest,
            "ask for less of it, or for none: then it is as much as is said in `tidefs tier add --help`",
        ),
        ChangeError::Unknown => (ErrorCode::UnknownName, "`tidefs tier status` lists them"),
        ChangeError::InUse => {
            (ErrorCode::Conflict, "one that is leaving can be added again when it was removed")
        }
        ChangeError::NoOther => {
            (ErrorCode::Conflict, "add another disk, or give up its objects: `tidefs tier remove --force`")
        }
        ChangeError::TooMany => {
            (ErrorCode::Conflict, "those that were removed count: restart the daemon, then add it again")
        }
        ChangeError::HoldsObjects(_) => {
            (ErrorCode::Conflict, "move them first, `tidefs tier drain`, or give them up with `--force`")
        }
        ChangeError::Starting => {
            (ErrorCode::Conflict, "try again when `tidefs tier status` says that all names are back")
        }
        ChangeError::CannotStart(_) => {
            (ErrorCode::Internal, "the daemon goes on without; mend that, then add the disk again")
        }
        ChangeError::Stuck(_) => {
            (ErrorCode::Conflict, "look at the daemon's log; try again, or remove it with `--force`")
        }
    };
    ApiError::new(code, format!("{path}: {error}")).next_step(next)
}

/// What is in use now, and whether it lasts.
fn changed(tier: &SsdTier, effective: &Effective) -> DisksChanged {
    let mut disks: Vec<String> = tier.status().devices.into_iter().map(|device| device.name).collect();
    let configured = effective.config.ssd.dirs.paths().iter().map(|path| path.display().to_string());
    let mut configured: Vec<String> = configured.collect();
    let setting = format!("ssd.dirs = {disks:?}");
    disks.sort();
    configured.sort();
    let as_configured = disks == configured;
    DisksChanged { capacity: None, disks, as_configured, setting }
}

pub(super) fn add(
    disks: &dyn AddDisk,
    datapath: &Datapath,
    effective: &Effective,
    request: &AddDiskRequest,
) -> Result<DisksChanged, ApiError> {
    let place = place(datapath, &request.path)?;
    let added = disks.add_disk(&place, request.capacity);
    added.map_err(|error| refusal(&request.path, &error))?;
    let tier = tier(datapath)?;
    let device = tier.status().devices.into_iter().find(|device| Path::new(&device.name) == place);
    Ok(DisksChanged { capacity: device.map(|device| device.capacity), ..changed(tier, effective) })
}

pub(super) fn remove(
    datapath: &Datapath,
    effective: &Effective,
    request: &RemoveDiskRequest,
) -> Result<DisksChanged, ApiError> {
    let tier = tier(datapath)?;
    let removed = tier.remove_disk(&place(datapath, &request.path)?, request.force);
    removed.map_err(|error| refusal(&request.path, &error))?;
    Ok(changed(tier, effective))
}

pub(super) fn drain(
    datapath: &Datapath,
    request: &DrainDiskRequest,
    progress: &mut dyn FnMut(DrainProgress) -> ControlFlow<()>,
) -> Result<DrainProgress, ApiError> {
    let told = |drained: Drained| DrainProgress {
        moved: ObjectCount(drained.moved),
        moved_bytes: ByteCount(drained.moved_bytes),
        in_memory: ObjectCount(drained.in_memory),
        lost: ObjectCount(drained.lost),
        left: ObjectCount(drained.left),
    };
    let place = place(datapath, &request.path)?;
    let mut goes_on = |drained| progress(told(drained)).is_continue();
    let drained = tier(datapath)?.drain(&place, request.bytes_per_second, &mut goes_on);
    drained.map(told).map_err(|error| refusal(&request.path, &error))
}
