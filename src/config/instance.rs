//! Where the state of this mount lives: one folder per mount, named after the mount point.
//!
//! The naming itself is [`tidefs_control_api::instance`], because tools must find the same folder without asking
//! a daemon that may be dead. Here it becomes the paths that the daemon opens.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tidefs_control_api::instance::StateDir;
pub use tidefs_control_api::instance::instance_name;

/// The mount that is being configured.
#[derive(Clone, Debug)]
pub(super) struct MountPlace {
    /// Canonical path of the mount point.
    pub(super) dir: PathBuf,
    /// Name of the mount among those of the host.
    pub(super) instance: String,
}

impl MountPlace {
    pub(super) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), instance: instance_name(dir) }
    }

    /// Whether `path` is in the mount. The daemon must not touch such a path: it would wait for itself.
    pub(super) fn contains(&self, path: &Path) -> bool {
        path.starts_with(&self.dir)
    }
}

/// Paths of the state of one mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StatePaths {
    /// `<state_dir>/<instance>`, holds the others.
    pub directory: PathBuf,
    /// Locked by the live daemon, with its process id as content.
    pub lock: PathBuf,
    /// Admin HTTP over a unix socket. May be longer than a socket address; see `tidefs_control_api::socket`.
    pub control_socket: PathBuf,
    /// Mount point of the private tmpfs that holds the segments and outlives the daemon.
    pub memory: PathBuf,
}

impl StatePaths {
    /// The paths of the mount at `mount_dir` (canonical) below `state_dir`.
    #[must_use]
    pub fn new(state_dir: &Path, mount_dir: &Path) -> Self {
        let instance = StateDir::new(state_dir).instance(mount_dir);
        Self {
            directory: instance.dir().to_owned(),
            lock: instance.lock(),
            control_socket: instance.control_socket(),
            memory: instance.memory(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_instance_is_its_path_and_eight_digits_of_its_hash() {
        let hash = twox_hash::XxHash3_64::oneshot(b"/mnt/kv cache") & 0xffff_ffff;
        assert_eq!(instance_name(Path::new("/mnt/kv cache")), format!("mnt-kv-cache-{hash:08x}"));
    }

    #[test]
    fn mount_points_that_read_alike_have_different_instances() {
        assert_ne!(instance_name(Path::new("/mnt/a b")), instance_name(Path::new("/mnt/a-b")));
        assert_ne!(instance_name(Path::new("/mnt/a/b")), instance_name(Path::new("/mnt/a-b")));
    }

    #[test]
    fn state_paths_are_the_files_of_one_folder() {
        let paths = StatePaths::new(Path::new("/run/tidefs"), Path::new("/mnt/kv"));
        let directory = Path::new("/run/tidefs").join(instance_name(Path::new("/mnt/kv")));
        assert_eq!(paths.directory, directory);
        assert_eq!(paths.lock, directory.join("lock"));
        assert_eq!(paths.control_socket, directory.join("control.sock"));
        assert_eq!(paths.memory, directory.join("memory"));
    }

    #[test]
    fn a_sibling_with_the_mount_points_name_as_prefix_is_not_in_the_mount() {
        let place = MountPlace::new(Path::new("/mnt/kv"));
        assert!(place.contains(Path::new("/mnt/kv/scratch")));
        assert!(!place.contains(Path::new("/mnt/kv-scratch")));
    }
}
