//! What defaults depend on: the machine and the user, read once.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use nix::unistd::{getegid, geteuid};
use tidefs_engine::types::ByteCount;

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
            memory_usable: control_group_limit().map_or(memory, |limit| limit.min(memory)),
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

/// The smallest `memory.max` on the way from this process's control group (version 2) to the top.
fn control_group_limit() -> Option<ByteCount> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    smallest_limit(&groups, Path::new("/sys/fs/cgroup"))
}

fn smallest_limit(groups: &str, hierarchy: &Path) -> Option<ByteCount> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let group = hierarchy.join(group.trim_start_matches('/'));
    group
        .ancestors()
        .take_while(|directory| directory.starts_with(hierarchy))
        .filter_map(|directory| std::fs::read_to_string(directory.join("memory.max")).ok())
        .filter_map(|text| text.trim().parse().ok().map(ByteCount)) // "max" is no limit
        .min()
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
    fn the_smallest_limit_on_the_way_up_counts() {
        let hierarchy = tempfile::tempdir().unwrap();
        let leaf = hierarchy.path().join("outer/inner");
        std::fs::create_dir_all(&leaf).unwrap();
        std::fs::write(leaf.join("memory.max"), "max\n").unwrap();
        std::fs::write(hierarchy.path().join("outer/memory.max"), "1073741824\n").unwrap();
        let groups = "1:cpu:/x\n0::/outer/inner\n";
        assert_eq!(smallest_limit(groups, hierarchy.path()), Some(ByteCount::gib(1)));
        assert_eq!(smallest_limit("1:cpu:/x\n", hierarchy.path()), None);
    }

    #[test]
    fn the_free_space_of_a_directory_to_be_made_is_that_of_its_parent() {
        let directory = tempfile::tempdir().unwrap();
        assert!(free_space(&directory.path().join("a/b/c")).is_some());
    }
}
