//! The private tmpfs: mounted once, found again by its path after a restart, resized in place.
//!
//! Limits: an option that this kernel does not know is left out, said in the log and in the report; only `size`
//! and `mode` must work.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tidefs_engine::types::ByteCount;
use tracing::warn;

use super::open::HugePages;

/// What stands as the source of the mount, by which it is known again.
const SOURCE: &str = "tidefs-memory";

/// The mount table of this process.
const TABLE: &str = "/proc/self/mountinfo";

fn flags() -> MsFlags {
    MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC
}

/// Options of the tmpfs at `path` if it is mounted there and is the tier's own.
pub(super) fn options_of_own(path: &Path) -> io::Result<Option<String>> {
    let table = std::fs::read(TABLE)?;
    Ok(find_own(&table, path))
}

/// The last mount on `path` in the table decides, since it hides the ones below it.
fn find_own(table: &[u8], path: &Path) -> Option<String> {
    let mut mounts =
        table.split(|byte| *byte == b'\n').filter_map(parse).filter(|entry| entry.target == path);
    mounts
        .next_back()
        .filter(|entry| entry.fstype == "tmpfs" && entry.source == SOURCE)
        .map(|entry| entry.options)
}

struct Entry {
    target: PathBuf,
    fstype: String,
    source: String,
    options: String,
}

/// One line of the table.
///
/// # Source
/// proc_pid_mountinfo(5): `id parent major:minor root target options [optional...] - fstype source options`,
/// with space, tab, newline and backslash written as octal escapes.
fn parse(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let target = unescape(fields.nth(4)?);
    let mut tail = fields.skip_while(|field| field != b"-").skip(1);
    let mut text = || tail.next().map(|field| String::from_utf8_lossy(field).into_owned());
    Some(Entry {
        target: PathBuf::from(OsString::from_vec(target)),
        fstype: text()?,
        source: text()?,
        options: text()?,
    })
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = (byte == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(value) => {
                bytes.push(value);
                rest = &tail[3..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    bytes
}

/// Mounts the tmpfs on `path`. Returns the options that the kernel refused and that were left out.
///
/// # Errors
/// What mount(2) says with `size` and `mode` alone; `PermissionDenied` without the right to mount.
pub(super) fn mount_private(
    path: &Path,
    capacity: ByteCount,
    huge_pages: HugePages,
) -> io::Result<Vec<String>> {
    let mut wished = vec!["nr_inodes=0", "noswap", "mpol=local"];
    wished.extend(huge_pages.option());
    mount_with(path, capacity, &wished)
}

fn mount_with(path: &Path, capacity: ByteCount, wished: &[&str]) -> io::Result<Vec<String>> {
    match attempt(path, capacity, wished) {
        Err(Errno::EINVAL) => {}
        outcome => return outcome.map(|()| Vec::new()).map_err(io::Error::from),
    }
    // mount(2) does not say which option it refuses, so each is tried on top of those that worked.
    let mut accepted: Vec<&str> = Vec::new();
    let mut refused = Vec::new();
    for option in wished {
        accepted.push(option);
        match attempt(path, capacity, &accepted) {
            Ok(()) => umount2(path, MntFlags::MNT_DETACH)?,
            Err(error) => {
                warn!(option, error = %error, "the kernel refuses a tmpfs option; going on without it");
                accepted.pop();
                refused.push((*option).to_owned());
            }
        }
    }
    attempt(path, capacity, &accepted)?;
    Ok(refused)
}

fn attempt(path: &Path, capacity: ByteCount, options: &[&str]) -> nix::Result<()> {
    let mut data = format!("size={},mode=0700", capacity.get());
    for option in options {
        data.push(',');
        data.push_str(option);
    }
    mount(Some(SOURCE), path, Some("tmpfs"), flags(), Some(data.as_str()))
}

/// Gives the mounted tmpfs another size, and keeps its other options (`current`).
///
/// # Errors
/// `InvalidInput` when more than `capacity` is in use.
pub(super) fn resize(path: &Path, capacity: ByteCount, current: &str) -> io::Result<()> {
    let mut data = format!("size={}", capacity.get());
    if current.split(',').any(|option| option == "noswap") {
        data.push_str(",noswap"); // a remount without it asks for swap, which a tmpfs refuses once it is off
    }
    remount(path, &data)
}

/// Gives the mounted tmpfs another policy for huge pages, for what is allocated from now on.
///
/// # Errors
/// `InvalidInput` when the kernel does not know huge pages here.
pub(super) fn set_huge_pages(path: &Path, huge_pages: HugePages, current: &str) -> io::Result<()> {
    let found = current.split(',').find(|option| option.starts_with("huge="));
    let wished = huge_pages.option().unwrap_or("huge=never");
    if found.unwrap_or("huge=never") == wished {
        return Ok(());
    }
    let noswap = if current.split(',').any(|option| option == "noswap") { ",noswap" } else { "" };
    remount(path, &format!("{wished}{noswap}"))
}

fn remount(path: &Path, data: &str) -> io::Result<()> {
    Ok(mount(Some(SOURCE), path, Some("tmpfs"), flags() | MsFlags::MS_REMOUNT, Some(data))?)
}

/// Takes the tmpfs away from `path`; it lives on until its last open file is closed.
pub(super) fn unmount(path: &Path) -> io::Result<()> {
    Ok(umount2(path, MntFlags::MNT_DETACH)?)
}

/// Whether a path lies on a tmpfs.
pub(super) fn on_tmpfs(path: &Path) -> io::Result<bool> {
    let kind = nix::sys::statfs::statfs(path)?;
    Ok(kind.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Workplace;
    use super::*;

    const TABLE: &[u8] = b"\
22 1 0:21 / / rw,relatime - ext4 /dev/vda rw
40 22 0:39 / /run/a\\040b rw,nosuid shared:7 master:1 - tmpfs tidefs-memory rw,size=64k,noswap
41 22 0:40 / /run/other rw - tmpfs tmpfs rw
42 22 0:41 / /run/hidden rw - tmpfs tidefs-memory rw
43 42 0:42 / /run/hidden rw - tmpfs tmpfs rw
";

    #[test]
    fn the_own_mount_is_found_by_path_source_and_type() {
        assert_eq!(find_own(TABLE, Path::new("/run/a b")).as_deref(), Some("rw,size=64k,noswap"));
        assert_eq!(find_own(TABLE, Path::new("/run/other")), None);
        assert_eq!(find_own(TABLE, Path::new("/")), None);
        assert_eq!(find_own(TABLE, Path::new("/run/none")), None);
    }

    #[test]
    fn a_mount_that_something_else_hides_is_not_found() {
        assert_eq!(find_own(TABLE, Path::new("/run/hidden")), None);
    }

    #[test]
    fn lines_cut_short_are_passed_over() {
        assert_eq!(find_own(b"40 22 0:39 / /run\n\n40 22 0:39 / /run rw - tmpfs\n", Path::new("/run")), None);
        assert_eq!(unescape(b"a\\0"), b"a\\0");
        assert_eq!(unescape(b"\\134\\012"), b"\\\n");
    }

    #[test]
    fn an_option_that_the_kernel_refuses_is_left_out_and_named() {
        let place = Workplace::new();
        let path = place.path();
        let refused = mount_with(path, ByteCount::mib(4), &["nr_inodes=0", "tide=high", "noswap"]).unwrap();
        assert_eq!(refused, ["tide=high"]);
        let options = options_of_own(path).unwrap().unwrap();
        assert!(options.contains("size=4096k") && options.contains("noswap"), "{options}");
        unmount(path).unwrap();
        assert_eq!(options_of_own(path).unwrap(), None);
    }
}
