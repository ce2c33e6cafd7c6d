//! `--check-config` beyond the settings themselves: whether what they name is there and can be used.
//!
//! Nothing is changed: a start that follows makes what it may make, and works without a disk that is missing, which here is a
//! problem like the others. All are told together.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use nix::unistd::{AccessFlags, eaccess};
use tidefs_control_api::mounts::MountTable;

use super::Failure;
use super::mount_point::check_mount_point;
use super::secrets::Secrets;
use super::{scratch, ssd};
use crate::config::{Cause, Effective, ExitStatus, Origin, Problem};
use crate::tier::roots::Roots;
use crate::tier::ssd::unmounted;

/// Looks at files, disks and the mount point.
///
/// # Errors
/// Everything that a start with `effective` would not be able to use, with the exit status of the first.
pub(super) fn check(effective: &Effective, table: &MountTable, mount_dir: &Path) -> Result<(), Failure> {
    let mut failures: Vec<Failure> = Secrets::read(effective).err().into_iter().collect();
    let roots = ssd::roots_of(effective);
    let disks = effective.config.ssd.dirs.paths().iter();
    let of_disks = disks.filter_map(|place| problem_of_disk(effective, &roots, place));
    let of_slot_files = scratch::unmounted(effective).into_iter().map(|(directory, root)| {
        let reason = away(&directory, &root);
        contradiction(effective, "scratch.dir", reason, "mount it, or name another directory")
    });
    let problems = of_disks.chain(of_slot_files);
    failures.extend(problems.map(|problem| Failure::new(ExitStatus::Configuration, problem)));
    // What is served there now may be the daemon that is to be started anew.
    if table.tidefs_at(mount_dir).is_none() {
        failures.extend(check_mount_point(mount_dir).err());
    }
    let Some(first) = failures.first() else { return Ok(()) };
    let lines: Vec<&str> = failures.iter().map(|failure| failure.message.as_str()).collect();
    Err(Failure::new(first.status, lines.join("\n")))
}

/// That the value of `key` cannot be used for `reason`.
pub(super) fn contradiction(effective: &Effective, key: &str, reason: String, next_step: &str) -> Problem {
    let entry = effective.entries.iter().find(|entry| entry.key == key);
    Problem {
        key: key.to_owned(),
        value: entry.map(|entry| entry.value.clone()),
        origin: entry.map_or(Origin::Default, |entry| entry.origin.clone()),
        cause: Cause::Contradiction { reason, next_step: next_step.to_owned() },
    }
}

/// That the disk of a directory was mounted on `root`, and nothing is.
fn away(directory: &Path, root: &Path) -> String {
    format!("{}: nothing is mounted on {}, where its disk was", directory.display(), root.display())
}

fn problem_of_disk(effective: &Effective, roots: &Roots, place: &Path) -> Option<Problem> {
    if let Some(root) = unmounted(roots, place) {
        let next_step = "mount it, or take the directory out of ssd.dirs; one that is to be used without that disk \
                         needs an empty file `tidefs.ssd`";
        return Some(contradiction(effective, "ssd.dirs", away(place, &root), next_step));
    }
    let wrong = |what: String, next_step| {
        contradiction(effective, "ssd.dirs", format!("{}: {what}", place.display()), next_step)
    };
    let kind = match fs::metadata(place) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some(wrong("it does not exist".to_owned(), "make the directory, or attach the device"));
        }
        Err(error) => return Some(wrong(error.to_string(), "correct the path or its permissions")),
    };
    let rights = match kind.is_dir() {
        true => AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK,
        false if kind.is_block_device() => AccessFlags::R_OK | AccessFlags::W_OK,
        false => {
            let what = "it is neither a directory nor a block device".to_owned();
            return Some(wrong(what, "name a directory on the disk, or the device"));
        }
    };
    let refused = eaccess(place, rights).err()?;
    let what = format!("it cannot be written: {}", refused.desc());
    Some(wrong(what, "mount it writable, or correct its permissions"))
}
