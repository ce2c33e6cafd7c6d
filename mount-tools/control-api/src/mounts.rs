//! What is mounted where, read from `/proc/self/mountinfo` alone.
//!
//! A tidefs mount may be dead or its daemon stopped, and then any `stat` at or below it fails or hangs. So paths
//! are compared, never looked at: [`MountTable::resolve`] follows symbolic links only outside of tidefs mounts.
//! The table is parsed here, from bytes, because one mount point that is not UTF-8 must not hide the others.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// Filesystem type of a tidefs mount.
pub const FSTYPE: &str = "fuse.tidefs";

/// Symbolic links followed in one path; the kernel's own limit.
const LINKS_MAX: usize = 40;

/// One line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Its filesystem type, for example `fuse.tidefs`.
    pub fstype: String,
    /// What is mounted, for example `tidefs`.
    pub source: OsString,
    /// The user who runs its daemon, for a FUSE mount.
    pub user_id: Option<u32>,
    /// The group of that user's process when it mounted.
    pub group_id: Option<u32>,
}

impl Mount {
    /// Whether it is a tidefs mount.
    #[must_use]
    pub fn is_tidefs(&self) -> bool {
        self.fstype == FSTYPE
    }
}

/// All mounts that this process sees, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable {
    mounts: Vec<Mount>,
}

impl MountTable {
    /// Reads the table of this process.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn read() -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read("/proc/self/mountinfo")?))
    }

    /// Reads a table in the format of `proc_pid_mountinfo(5)`. Lines that do not have it are left out.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        Self { mounts: text.split(|byte| *byte == b'\n').filter_map(parse_line).collect() }
    }

    /// The mount on exactly `dir`, the topmost if there are several.
    #[must_use]
    pub fn at(&self, dir: &Path) -> Option<&Mount> {
        self.mounts.iter().rev().find(|mount| mount.mount_point == dir)
    }

    /// The same, if it is a tidefs mount.
    #[must_use]
    pub fn tidefs_at(&self, dir: &Path) -> Option<&Mount> {
        self.at(dir).filter(|mount| mount.is_tidefs())
    }

    /// The mount that `path` is in, if that is a tidefs mount. `path` is absolute and without `.` and `..`.
    #[must_use]
    pub fn tidefs_containing(&self, path: &Path) -> Option<&Mount> {
        let mut deepest: Option<&Mount> = None;
        for mount in self.mounts.iter().filter(|mount| path.starts_with(&mount.mount_point)) {
            let depth = |mount: &Mount| mount.mount_point.components().count();
            if deepest.is_none_or(|other| depth(mount) >= depth(other)) {
                deepest = Some(mount);
            }
        }
        deepest.filter(|mount| mount.is_tidefs())
    }

    /// All tidefs mounts.
    pub fn tidefs(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter().filter(|mount| mount.is_tidefs())
    }

    /// The mounts below `dir`, `dir` itself included, the last made first: the order in which to unmount them.
    pub fn below<'a>(&'a self, dir: &'a Path) -> impl Iterator<Item = &'a Mount> {
        self.mounts.iter().rev().filter(move |mount| mount.mount_point.starts_with(dir))
    }

    /// `path` as an absolute path without `.`, `..` and symbolic links, as far as that is known without touching
    /// a tidefs mount. From a mount point on, and from a part that does not exist on, it is taken by its letters.
    ///
    /// # Errors
    /// There is no current directory, or the path has more than 40 symbolic links.
    pub fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        let absolute = if path.is_absolute() { path.to_owned() } else { std::env::current_dir()?.join(path) };
        let mut left: VecDeque<OsString> = components(&absolute);
        let mut resolved = PathBuf::from("/");
        let mut links = 0;
        while let Some(component) = left.pop_front() {
            if component == ".." {
                resolved.pop();
                continue;
            }
            resolved.push(&component);
            if self.tidefs_containing(&resolved).is_some() {
                continue;
            }
            let Ok(target) = std::fs::read_link(&resolved) else { continue };
            links += 1;
            if links > LINKS_MAX {
                return Err(io::Error::other(format!("{}: too many symbolic links", path.display())));
            }
            if target.is_absolute() {
                resolved = PathBuf::from("/");
            } else {
                resolved.pop();
            }
            for part in components(&target).into_iter().rev() {
                left.push_front(part);
            }
        }
        Ok(resolved)
    }
}

/// The mount on exactly `dir`, a path as [`MountTable::resolve`] returns it.
///
/// # Errors
/// `/proc` is not mounted.
pub fn find_mount(dir: &Path) -> io::Result<Option<Mount>> {
    Ok(MountTable::read()?.at(dir).cloned())
}

/// Takes the topmost mount on `dir` out of the tree at once; processes that are in it keep it until they leave.
///
/// An ordinary user cannot, but may have `fusermount3` do it for a FUSE mount of theirs.
///
/// # Errors
/// Nothing is mounted there, or this user may not unmount it.
pub fn detach(dir: &Path) -> io::Result<()> {
    match umount2(dir, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Err(Errno::EPERM) => {
            // From `/`, so that the helper does not stand inside what it unmounts.
            let output =
                Command::new("fusermount3").args(["-u", "-z", "--"]).arg(dir).current_dir("/").output()?;
            if output.status.success() {
                return Ok(());
            }
            Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
        }
        result => result.map_err(io::Error::from),
    }
}

fn components(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
}

/// `36 35 98:0 /root /mount/point options [tag...] - fstype source superoptions`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mount_point = PathBuf::from(OsString::from_vec(unescape(fields.nth(4)?)));
    fields.find(|field| *field == b"-")?;
    let fstype = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = OsString::from_vec(unescape(fields.next()?));
    let superoptions = fields.next().unwrap_or_default();
    let (user_id, group_id) = (id_of(superoptions, b"user_id="), id_of(superoptions, b"group_id="));
    let is_path = mount_point.as_os_str().as_bytes().starts_with(b"/");
    is_path.then_some(Mount { mount_point, fstype, source, user_id, group_id })
}

/// The number after `key` in the likes of `rw,user_id=0,group_id=0`.
fn id_of(superoptions: &[u8], key: &[u8]) -> Option<u32> {
    let mut options = superoptions.split(|byte| *byte == b',');
    let text = options.find_map(|option| option.strip_prefix(key))?;
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Undoes the kernel's `\ooo` for space, tab, newline and backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        if let (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) = (first, tail) {
            bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = after;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        40 27 0:50 / /mnt/kv rw,nosuid,nodev shared:7 master:1 - fuse.tidefs tidefs rw,user_id=0\n\
        41 40 0:51 / /mnt/kv/inner rw - tmpfs none rw\n\
        42 27 0:52 / /mnt/a\\040b\\134 rw - fuse.tidefs tidefs rw\n\
        43 27 0:53 / /mnt/\xff rw - fuse.tidefs tidefs rw,user_id=1000,group_id=1001,allow_other\n\
        garbage\n\
        44 27 0:54 / /mnt/over rw - fuse.tidefs tidefs rw\n\
        45 44 0:55 / /mnt/over rw - ext4 /dev/vdb rw\n";

    #[test]
    fn mount_points_are_unescaped_and_odd_lines_hide_nothing() {
        let table = MountTable::parse(TABLE);
        let found: Vec<&[u8]> = table.tidefs().map(|m| m.mount_point.as_os_str().as_bytes()).collect();
        assert_eq!(found, [&b"/mnt/kv"[..], b"/mnt/a b\\", b"/mnt/\xff", b"/mnt/over"]);
        assert_eq!(table.at(Path::new("/mnt/kv")).unwrap().source, "tidefs");
        let users: Vec<_> = table.tidefs().map(|mount| (mount.user_id, mount.group_id)).collect();
        assert_eq!(users, [(Some(0), None), (None, None), (Some(1000), Some(1001)), (None, None)]);
    }

    #[test]
    fn a_path_belongs_to_the_deepest_mount_above_it() {
        let table = MountTable::parse(TABLE);
        let mount = |path: &str| table.tidefs_containing(Path::new(path)).map(|m| m.mount_point.clone());
        assert_eq!(mount("/mnt/kv"), Some("/mnt/kv".into()));
        assert_eq!(mount("/mnt/kv/ns/key"), Some("/mnt/kv".into()));
        assert_eq!(mount("/mnt/kvstore"), None, "a longer name is not below");
        assert_eq!(mount("/mnt/kv/inner/x"), None, "another filesystem covers it");
        assert_eq!(mount("/mnt/over/x"), None, "another filesystem lies on top");
        assert_eq!(mount("/home"), None);
    }

    #[test]
    fn links_are_followed_outside_of_tidefs_mounts_only() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("real/kv")).unwrap();
        std::os::unix::fs::symlink("real", root.join("link")).unwrap();
        std::os::unix::fs::symlink("loop", root.join("loop")).unwrap();
        // A link below the mount: following it would mean to ask the mount.
        std::os::unix::fs::symlink("/elsewhere", root.join("real/kv/inside")).unwrap();
        let line = format!("40 27 0:50 / {}/real/kv rw - fuse.tidefs tidefs rw", root.display());
        let table = MountTable::parse(line.as_bytes());

        let resolve = |path: &str| table.resolve(&root.join(path)).unwrap();
        assert_eq!(resolve("link/kv"), root.join("real/kv"));
        assert_eq!(resolve("link/../real/./kv//inside/x"), root.join("real/kv/inside/x"));
        assert_eq!(resolve("absent/../link/kv/a/.."), root.join("real/kv"));
        assert!(table.resolve(&root.join("loop/x")).is_err());
    }

    #[test]
    fn what_is_below_a_folder_is_told_innermost_first() {
        let table = MountTable::parse(TABLE);
        let below: Vec<_> = table.below(Path::new("/mnt/kv")).map(|m| m.mount_point.clone()).collect();
        assert_eq!(below, [PathBuf::from("/mnt/kv/inner"), "/mnt/kv".into()]);
    }
}
