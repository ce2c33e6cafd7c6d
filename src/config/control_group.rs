//! Control groups that limit memory, of both versions: which one a process is in, and what limits it there.
//!
//! Pages of a file in memory count against the group of whoever made them, until they are freed; what is over the limit ends
//! a process of the group. That is this daemon for what it allocates, and a program that writes without the daemon for what it
//! writes.

use std::fs;
use std::path::{Path, PathBuf};

use tidefs_engine::types::ByteCount;

/// Where groups are mounted.
const ROOT: &str = "/sys/fs/cgroup";
/// Larger ones are no limits: version 1 writes the largest number of pages.
const LIMIT_MAX: u64 = 1 << 62;

/// The group of a process that counts its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryGroup {
    /// The folder of the topmost group that can be seen.
    hierarchy: PathBuf,
    /// The folder of the group, which need not be there: a container sees no groups outside of its own.
    folder: PathBuf,
    files: Files,
}

/// Where a group of one version says what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Files {
    limit: &'static str,
    used: &'static str,
    /// Of the file `memory.stat`: pages of files that the kernel takes back before anything else.
    idle: &'static str,
}

const VERSION_1: Files =
    Files { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", idle: "total_inactive_file" };
const VERSION_2: Files = Files { limit: "memory.max", used: "memory.current", idle: "inactive_file" };

impl MemoryGroup {
    /// That of this process.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        Self::of("self")
    }

    /// That of a thread, by its number here; `None` when there is none, or no such thread.
    #[must_use]
    pub fn of_thread(thread: u32) -> Option<Self> {
        Self::of(&thread.to_string())
    }

    fn of(process: &str) -> Option<Self> {
        let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
        Self::among(&groups, Path::new(ROOT))
    }

    /// Finds it among lines as `/proc/PID/cgroup` has them: number, controllers and path, with colons between.
    fn among(groups: &str, root: &Path) -> Option<Self> {
        let path_of = |controller: &str| {
            groups.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (controllers, path) = rest.split_once(':')?;
                controllers.split(',').any(|named| named == controller).then_some(path)
            })
        };
        // Version 2 is the hierarchy that names no controller. Where both are mounted, one of them counts memory.
        let (hierarchy, path, files) = match path_of("memory") {
            Some(path) => (root.join("memory"), path, VERSION_1),
            None => (root.to_owned(), path_of("")?, VERSION_2),
        };
        Some(Self { folder: hierarchy.join(path.trim_start_matches('/')), hierarchy, files })
    }

    /// The smallest limit on the way from the group to the top.
    #[must_use]
    pub fn limit(&self) -> Option<ByteCount> {
        self.way_up().filter_map(|folder| self.limit_in(folder)).min()
    }

    /// Whether each limit on the way from the group to the top leaves more than this part of it unused.
    #[must_use]
    pub fn leaves(&self, part: u64) -> bool {
        self.way_up().all(|folder| {
            let Some(limit) = self.limit_in(folder) else { return true };
            self.used_in(folder)
                .is_some_and(|used| limit.saturating_sub(used) > ByteCount(limit.get() / part))
        })
    }

    /// Whether something limits this group that does not limit `other`. Also true for a group that cannot be seen.
    #[must_use]
    pub fn is_limited_apart_from(&self, other: &Self) -> bool {
        if self == other {
            return false;
        }
        let is_apart = |folder: &&Path| !other.folder.starts_with(folder);
        !self.folder.is_dir() || self.way_up().filter(is_apart).any(|folder| self.limit_in(folder).is_some())
    }

    fn way_up(&self) -> impl Iterator<Item = &Path> {
        self.folder.ancestors().take_while(|folder| folder.starts_with(&self.hierarchy))
    }

    fn limit_in(&self, folder: &Path) -> Option<ByteCount> {
        // "max" is no limit, and the topmost group of version 2 has no file.
        number(&folder.join(self.files.limit)).filter(|limit| *limit < LIMIT_MAX).map(ByteCount)
    }

    fn used_in(&self, folder: &Path) -> Option<ByteCount> {
        let used = number(&folder.join(self.files.used))?;
        let stat = fs::read_to_string(folder.join("memory.stat")).ok()?;
        let idle = stat.lines().find_map(|line| line.strip_prefix(self.files.idle)?.trim().parse().ok());
        Some(ByteCount(used.saturating_sub(idle?)))
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "outer/inner/memory.max", "max\n");
        write(root, "outer/memory.max", "1073741824\n");
        let group = MemoryGroup::among("1:cpu:/x\n0::/outer/inner\n", root).unwrap();
        assert_eq!(group.limit(), Some(ByteCount::gib(1)));
        assert_eq!(MemoryGroup::among("1:cpu:/x\nnonsense\n", root), None);
        assert_eq!(MemoryGroup::among("0::/elsewhere\n", root).unwrap().limit(), None);
    }

    #[test]
    fn in_version_1_the_group_of_the_memory_controller_counts() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "memory/pod/memory.limit_in_bytes", "4096\n");
        write(root, "memory/memory.limit_in_bytes", "9223372036854771712\n");
        let limit = |groups| MemoryGroup::among(groups, root).unwrap().limit();
        assert_eq!(limit("5:cpu,memory:/pod\n0::/\n"), Some(ByteCount(4096)));
        assert_eq!(limit("5:memory:/\n"), None);
        // A container that sees its own group as the topmost one, and is told of it by another name.
        write(root, "memory/memory.limit_in_bytes", "8192\n");
        assert_eq!(limit("5:memory:/docker/0123\n"), Some(ByteCount(8192)));
    }

    #[test]
    fn what_is_used_of_each_limit_counts_but_for_pages_of_files_that_are_idle() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "outer/inner/memory.max", "max\n");
        write(root, "outer/memory.max", "1600\n");
        write(root, "outer/memory.stat", "inactive_anon 7\ninactive_file 100\n");
        let group = MemoryGroup::among("0::/outer/inner\n", root).unwrap();
        for (used, leaves) in [("1499", true), ("1500", false), ("1600", false), ("1700", false)] {
            write(root, "outer/memory.current", used);
            assert_eq!(group.leaves(8), leaves, "{used}");
        }
        fs::remove_file(root.join("outer/memory.stat")).unwrap();
        assert!(!group.leaves(8), "what is not known is not free");
        write(root, "outer/memory.max", "max\n");
        assert!(group.leaves(8));
        write(root, "memory/pod/memory.limit_in_bytes", "1600\n");
        write(root, "memory/pod/memory.usage_in_bytes", "1500\n");
        write(root, "memory/pod/memory.stat", "inactive_file 5\ntotal_inactive_file 101\n");
        assert!(MemoryGroup::among("5:memory:/pod\n", root).unwrap().leaves(8));
    }

    #[test]
    fn only_limits_that_others_do_not_share_set_a_group_apart() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        write(root, "shared/memory.max", "4096\n");
        write(root, "shared/daemon/memory.max", "max\n");
        write(root, "shared/free/memory.max", "max\n");
        write(root, "shared/tight/memory.max", "1024\n");
        let group = |path: &str| MemoryGroup::among(&format!("0::{path}\n"), root).unwrap();
        let daemon = group("/shared/daemon");
        for (path, is_apart) in [
            ("/shared/daemon", false),
            ("/shared/free", false),
            ("/shared/tight", true),
            ("/", false),
            ("/../hidden", true),
            ("/gone", true),
        ] {
            assert_eq!(group(path).is_limited_apart_from(&daemon), is_apart, "{path}");
        }
        // What holds for the group of the daemon is no limit of its own for one above it.
        assert!(!group("/shared").is_limited_apart_from(&daemon));
    }
}
