//! Scratch, put together from its section of the configuration: where slot files live, and whether the disks there are mounted.
//!
//! Beside the tier's file in a directory of `ssd.dirs` slot files go by what is known of that directory, and by the tier's file.
//! Of other directories it is noted here where their disks are mounted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ssd;
use crate::config::{Config, Effective};
use crate::tier::roots::{Roots, is_unmounted};
use crate::tier::scratch::{Home, Scratch};
use crate::tier::ssd::FILE_NAME;

/// Where disks of slot files are mounted, in a directory that outlives a restart of the machine.
const ROOTS: &str = "scratch-mounts.json";

/// Where slot files live: on the disks of the SSD tier unless the configuration says otherwise.
pub(super) fn scratch_of(effective: &Effective) -> Arc<Scratch> {
    let config = &effective.config;
    let directories = config.scratch.dir.paths();
    let mut roots = roots_of(effective);
    let homes = homes_of(effective, &roots);
    let mut used = Vec::new();
    for home in &homes {
        let directory = home.directory();
        if let Some(root) = home.unmounted() {
            tracing::warn!(
                directory = %directory.display(), root = %root.display(),
                "no slot file is made in a directory: its disk is not mounted there"
            );
        } else if disk_of(config, directory).is_none() {
            used.push(directory);
        }
    }
    roots.note(directories, &used);
    let is_on_disks = directories.iter().any(|directory| disk_of(config, directory).is_some());
    Scratch::in_homes(homes, !is_on_disks, config.scratch.capacity)
}

/// Directories of slot files, other than those on disks of the SSD tier, that lie below the mount point of a disk that is not
/// mounted; each with that mount point.
pub(super) fn unmounted(effective: &Effective) -> Vec<(PathBuf, PathBuf)> {
    let roots = roots_of(effective);
    let of = |directory: &PathBuf| {
        let is_own = disk_of(&effective.config, directory).is_none();
        let root = roots.root_of(directory).filter(|root| is_own && is_unmounted(directory, root))?;
        Some((directory.clone(), root.to_owned()))
    };
    effective.config.scratch.dir.paths().iter().filter_map(of).collect()
}

fn roots_of(effective: &Effective) -> Roots {
    Roots::load(Some(&ssd::lasting_directory(effective).join(ROOTS)))
}

/// The directories with what is known of their disks.
fn homes_of(effective: &Effective, roots: &Roots) -> Vec<Home> {
    let of_tier = ssd::roots_of(effective);
    let home = |directory: &PathBuf| {
        let (root, sign) = match disk_of(&effective.config, directory) {
            Some(disk) => (of_tier.root_of(disk), Some(disk.join(FILE_NAME))),
            None => (roots.root_of(directory), None),
        };
        Home::on_disk(directory.clone(), root, sign)
    };
    effective.config.scratch.dir.paths().iter().map(home).collect()
}

/// The directory of the SSD tier in which slot files of `directory` live.
fn disk_of<'a>(config: &'a Config, directory: &Path) -> Option<&'a Path> {
    let mut disks = config.ssd.dirs.paths().iter().map(PathBuf::as_path);
    disks.find(|disk| directory.parent() == Some(*disk))
}
