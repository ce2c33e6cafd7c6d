//! What defaults depend on: the machine and the user, read once.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use nix::unistd::{getegid, geteuid};
use tidefs_engine::types::ByteCount;

use super::control_group::MemoryGroup;

/// The machine and the user a daemon runs on and as.
#[derive(Clone, Debug)]
pub struct Host {
    /// Memory of the machine.
    pub memory: ByteCount,
    /// Memory that this process may use: that of the machine, or less if its control group says so.
    pub memory_usable: ByteCount,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// `$XDG_RUNTIME_DIR`, if it is set to an absolute path.
    pub runtime_dir: Option<PathBuf>,
    /// `$XDG_STATE_HOME`, or `~/.local/state`.
    pub state_home: PathBuf,
    /// Free bytes for this user on the disk that holds a path, which need not exist yet. `None` if unknown.
    pub free_space: fn(&Path) -> Option<ByteCount>,
}

impl Host {
    /// Reads the facts of this machine and process.
    ///
    /// # Errors
    /// The kernel does not tell the size of its memory.
    pub fn of_this_process() -> std::io::Result<Self> {
        let memory = ByteCount(nix::sys::sysinfo::sysinfo()?.ram_total());
        let uid = geteuid().as_raw();
        Ok(Self {
            memory,
            memory_usable: MemoryGroup::of_this_process()
                .and_then(|group| group.limit())
                .map_or(memory, |limit| limit.min(memory)),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            uid,
            gid: getegid().as_raw(),
            runtime_dir: absolute_variable("XDG_RUNTIME_DIR"),
            state_home: absolute_variable("XDG_STATE_HOME").unwrap_or_else(|| {
                std::env::home_dir().unwrap_or_else(|| PathBuf::from("/")).join(".local/state")
            }),
            free_space,
        })
    }

    /// Whether the daemon runs as root.
    #[must_use]
    pub const fn is_root(&self) -> bool {
        self.uid == 0
    }
}

/// A directory from the environment. The XDG specification says to ignore one that is not absolute.
fn absolute_variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Asks the nearest existing ancestor, because the directory itself is made later.
fn free_space(path: &Path) -> Option<ByteCount> {
    let existing = path.ancestors().find(|ancestor| ancestor.exists())?;
    let answer = statvfs(existing).ok()?;
    Some(ByteCount(answer.blocks_available().saturating_mul(answer.fragment_size())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_and_cpus() {
        let host = Host::of_this_process().unwrap();
        assert!(host.memory >= ByteCount::mib(64) && host.cpus >= 1);
        assert!(host.memory_usable <= host.memory);
    }

    #[test]
    fn the_free_space_of_a_directory_to_be_made_is_that_of_its_parent() {
        let directory = tempfile::tempdir().unwrap();
        assert!(free_space(&directory.path().join("a/b/c")).is_some());
    }
}
