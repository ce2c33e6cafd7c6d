//! Where the state of one mount lives on its host: `<state dir>/<instance>/`.
//!
//! The name of the instance follows from the mount point alone, so the daemon, the mount helper and the CLI
//! find the same folder without asking each other.
//!
//! Limits: a name has at most [`SLUG_MAX`] + 9 bytes, which leaves room for the folder and the socket's name in
//! the 107 bytes of a unix socket's address; what is cut is told apart by the hash.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::lock::InstanceLock;

/// Environment variable that names the state directory.
pub const STATE_DIR_VARIABLE: &str = "TIDEFS_RUNTIME_STATE_DIR";

/// The state directory that [`STATE_DIR_VARIABLE`] names. A variable that is empty names none.
#[must_use]
pub fn state_dir_of_environment() -> Option<PathBuf> {
    std::env::var_os(STATE_DIR_VARIABLE).filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

/// File of an instance: what was removed from its SSD tier and is not noted on the disks yet. Empty when there is nothing.
pub const REMOVALS: &str = "ssd-removals";

/// Longest readable part of an instance's name, in bytes. The end of the path says more than its start.
pub const SLUG_MAX: usize = 48;

/// The name of the instance mounted on `mount_dir`, an absolute path without `.`, `..` and symbolic links (see
/// [`crate::mounts::MountTable::resolve`]).
///
/// The path without its leading slash, each byte outside `[A-Za-z0-9._-]` turned to `-`, its last [`SLUG_MAX`]
/// bytes; then `-` and the low 32 bits of its xxh3-64 in 8 hex digits.
#[must_use]
pub fn instance_name(mount_dir: &Path) -> String {
    let bytes = mount_dir.as_os_str().as_bytes();
    let path = bytes.strip_prefix(b"/").unwrap_or(bytes);
    let tail = &path[path.len().saturating_sub(SLUG_MAX)..];
    let slug: String = tail
        .iter()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' => char::from(*byte),
            _ => '-',
        })
        .collect();
    format!("{slug}-{:08x}", twox_hash::XxHash3_64::oneshot(bytes) & 0xffff_ffff)
}

/// The folder that holds the state of all mounts of one user on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir(PathBuf);

/// Why there is no default state directory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no place for runtime state: XDG_RUNTIME_DIR is not set; pass --state-dir DIR or set \
     {STATE_DIR_VARIABLE}"
)]
pub struct NoStateDir;

impl StateDir {
    /// The folder at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The folder for whoever runs this process: `/run/tidefs` for root, else `$XDG_RUNTIME_DIR/tidefs`.
    ///
    /// # Errors
    /// [`NoStateDir`] for an ordinary user without `XDG_RUNTIME_DIR`.
    pub fn of_this_user() -> Result<Self, NoStateDir> {
        Self::default_for(nix::unistd::geteuid().is_root(), std::env::var_os("XDG_RUNTIME_DIR").as_deref())
    }

    fn default_for(is_root: bool, runtime_dir: Option<&std::ffi::OsStr>) -> Result<Self, NoStateDir> {
        if is_root {
            return Ok(Self::new("/run/tidefs"));
        }
        match runtime_dir {
            Some(dir) if Path::new(dir).is_absolute() => Ok(Self(Path::new(dir).join("tidefs"))),
            _ => Err(NoStateDir),
        }
    }

    /// Path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The state of the mount on `mount_dir`, a path as [`instance_name`] takes it.
    #[must_use]
    pub fn instance(&self, mount_dir: &Path) -> Instance {
        Instance { dir: self.0.join(instance_name(mount_dir)) }
    }

    /// All instances that left a folder, in the order of their names.
    ///
    /// # Errors
    /// The folder cannot be read. That it does not exist is not an error: there are no instances.
    pub fn instances(&self) -> io::Result<Vec<Instance>> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut instances = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                instances.push(Instance { dir: entry.path() });
            }
        }
        instances.sort_by(|a, b| a.dir.cmp(&b.dir));
        Ok(instances)
    }
}

/// The state of one mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    dir: PathBuf,
}

impl Instance {
    /// The instance whose folder is `dir`.
    #[must_use]
    pub fn of_folder(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Its folder, mode 0700.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its name, see [`instance_name`].
    #[must_use]
    pub fn name(&self) -> String {
        self.dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// The lock of its daemon, see [`crate::lock`].
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    /// Its admin socket.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    /// The private memory filesystem that holds its segments.
    #[must_use]
    pub fn memory(&self) -> PathBuf {
        self.dir.join("memory")
    }

    /// What a daemon in the background writes to its standard error, see [`crate::log`].
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Removes the lock, which is `_held`, and the folder if nothing else is in it. While the lock is held nobody else starts
    /// here; who waits for it finds that it is gone, and makes a new one.
    ///
    /// What a later start needs beside objects stays, and the folder with it: what a cluster agreed on at this host, disks that
    /// were added, how often they were used, where they and those of slot files are mounted, removals that are not on them yet. So
    /// does a log.
    ///
    /// # Errors
    /// A file or the folder cannot be removed. That the folder holds more is not an error.
    pub fn remove(&self, _held: &InstanceLock) -> io::Result<()> {
        let removals = self.dir.join(REMOVALS);
        if fs::metadata(&removals).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0) {
            fs::remove_file(&removals)?;
        }
        fs::remove_file(self.lock())?;
        match fs::remove_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            outcome => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_readable_path_and_a_hash_of_all_of_it() {
        assert_eq!(instance_name(Path::new("/mnt/kv cache")), "mnt-kv-cache-5fa4a747");
        assert_ne!(instance_name(Path::new("/mnt/kv-cache")), instance_name(Path::new("/mnt/kv cache")));
    }

    #[test]
    fn a_name_has_no_byte_that_a_shell_or_a_path_cares_about() {
        let name = instance_name(Path::new("/a/../b;rm -rf $HOME/\u{e4}\n"));
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)), "{name}");
    }

    #[test]
    fn long_paths_keep_their_end_and_stay_distinct() {
        let path = |last| PathBuf::from(format!("/{}/{last}", "d".repeat(3000)));
        let (a, b) = (instance_name(&path("a/kv")), instance_name(&path("b/kv")));
        assert_eq!(a.len(), SLUG_MAX + 9);
        assert!(a.contains("-a-kv-") && a != b, "{a} {b}");
    }

    #[test]
    fn the_default_folder_depends_on_who_asks() {
        let default =
            |is_root, dir: Option<&str>| StateDir::default_for(is_root, dir.map(std::ffi::OsStr::new));
        assert_eq!(default(true, Some("/run/user/0")), Ok(StateDir::new("/run/tidefs")));
        assert_eq!(default(false, Some("/run/user/7")), Ok(StateDir::new("/run/user/7/tidefs")));
        assert_eq!(default(false, None), Err(NoStateDir));
        assert_eq!(default(false, Some("relative")), Err(NoStateDir));
    }

    #[test]
    fn an_instance_is_removed_unless_it_holds_more_than_a_lock_and_an_empty_file_of_removals() {
        let dir = tempfile::tempdir().unwrap();
        let instance = Instance::of_folder(dir.path().join("instance"));
        let removals = instance.dir().join(REMOVALS);
        for (text, stays) in [("", false), ("a removal", true)] {
            fs::create_dir_all(instance.dir()).unwrap();
            fs::write(&removals, text).unwrap();
            let held = InstanceLock::acquire(&instance.lock()).unwrap();
            instance.remove(&held).unwrap();
            assert_eq!((removals.exists(), instance.dir().exists()), (stays, stays), "{text}");
            assert!(!instance.lock().exists());
        }
    }

    #[test]
    fn instances_are_the_folders_and_none_without_a_state_dir() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::new(dir.path().join("absent"));
        assert_eq!(state.instances().unwrap(), []);
        fs::create_dir_all(state.path().join("b")).unwrap();
        fs::create_dir_all(state.path().join("a")).unwrap();
        fs::write(state.path().join("file"), "").unwrap();
        let names: Vec<String> = state.instances().unwrap().iter().map(Instance::name).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
