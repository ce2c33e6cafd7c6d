//! Whose a disk is: superblocks, and what stands in the way of using a directory or device.
//!
//! A disk belongs to a pool and counts its epochs, which grow at each start on all disks that are there. A disk whose
//! epoch is behind was missing in some life of the pool: keys may have been removed or replaced meanwhile without its
//! knowledge, so its content is given up. Giving up is drawing a new identity for the disk: every structure on it names
//! the old one and is void at once.
//!
//! Invariants
//! - A disk that holds anything but a superblock of ours, or nothing, is not written.
//! - No two daemons use one file: it is locked while it is open.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tidefs_engine::types::ByteCount;

use super::super::roots::{Roots, is_unmounted};
use super::disk::{Disk, Request, Ticket};
use super::format::{BLOCK, BLOCK_BYTES, FormatError, Superblock, Uuid, decode, encode};
use super::memory::{Buffer, Memory, Piece};
use super::side_by_side::side_by_side;

/// How long a start waits for one answer of a disk.
pub(super) const START_LIMIT: Duration = Duration::from_secs(30);

/// How long a start waits for whoever has the file of a place locked, and how often it looks.
const LET_GO: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(20);

/// Bytes at the start of a new disk that are zeros. Some file systems begin with as little as 64 KiB of them.
const NEW_BYTES: u64 = 1 << 20;

/// The tier's file in a directory.
pub(crate) const FILE_NAME: &str = "tidefs.ssd";

/// Why a directory or device is not used. Never stops the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It does not exist.
    Missing,
    /// It is a directory below this mount point, where its disk was mounted and is not.
    Unmounted(PathBuf),
    /// It belongs to somebody else: another pool, another format, another program.
    Foreign(String),
    /// It cannot be written.
    ReadOnly,
    /// It has no room for the smallest tier.
    Full,
    /// The system reports errors.
    Failing(String),
    /// Its answers come later than the limit.
    Slow,
    /// It is being emptied.
    Leaving,
    /// So many zones gave I/O errors, or were not read in time by the start, and are not used.
    Damaged(u64),
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => f.write_str("it does not exist; make the directory, or attach the device"),
            Self::Unmounted(root) => write!(
                f,
                "nothing is mounted on {}, where its disk was: mount that, and start again, which still gives up what it holds; if \
                 the tier is to lie where it does now, make an empty file `{FILE_NAME}` in it",
                root.display()
            ),
            Self::Foreign(what) => write!(f, "{what}; it was not touched"),
            Self::ReadOnly => f.write_str("it cannot be written; mount it writable"),
            Self::Full => f.write_str("it has no room; free some, or lower ssd.capacity"),
            Self::Failing(error) => write!(f, "{error}"),
            Self::Slow => f.write_str(
                "requests took longer than ssd.deadline_ms within the last minute, and what they were for was a miss; look for \
                 what else uses the disk, or replace it",
            ),
            Self::Leaving => f.write_str("it is being emptied and takes nothing; then remove it"),
            Self::Damaged(zones) => {
                write!(f, "{zones} zones gave errors or no answer and are not used until the next start; replace the disk")
            }
        }
    }
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Self {
        Self::from(&error)
    }
}

impl From<&io::Error> for Unusable {
    fn from(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => Self::ReadOnly,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Self::Full
            }
            _ => Self::Failing(error.to_string()),
        }
    }
}

/// Where the disk of a directory was mounted at an earlier start, when nothing is mounted there now. A directory with the tier's file
/// is used as it is: who wants the tier there makes an empty one.
pub(crate) fn unmounted(roots: &Roots, place: &Path) -> Option<PathBuf> {
    let root = roots.root_of(place)?;
    let has_file = place.join(FILE_NAME).try_exists().unwrap_or(true);
    let is_away = !has_file && place.is_dir() && is_unmounted(place, root);
    is_away.then(|| root.to_owned())
}

/// Opens the tier's file in a directory, or a device, for direct I/O, and locks it.
///
/// # Errors
/// What stands in the way.
pub(super) fn open_file(place: &Path) -> Result<File, Unusable> {
    let kind = std::fs::metadata(place)?.file_type();
    let path: PathBuf = if kind.is_dir() { place.join(FILE_NAME) } else { place.to_owned() };
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    // Of a device, exclusive use: it is refused while it is mounted.
    let mut exclusive = 0;
    if kind.is_dir() {
        options.create(true);
    } else if kind.is_block_device() {
        exclusive = libc::O_EXCL;
    } else {
        return Err(Unusable::Foreign("it is neither a directory nor a block device".to_owned()));
    }
    options.custom_flags(libc::O_CLOEXEC | exclusive);
    let direct = options.clone().custom_flags(libc::O_DIRECT | libc::O_CLOEXEC | exclusive).open(&path);
    let file = match direct {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(Unusable::Foreign("it is mounted, or another program has it for itself".to_owned()));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && kind.is_dir() => {
            return Err(Unusable::Failing(format!("no file can be made in it: {error}")));
        }
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            tracing::warn!(
                path = %path.display(),
                "the filesystem has no direct I/O: what the SSD tier writes takes page cache too"
            );
            options.open(&path)?
        }
        outcome => outcome?,
    };
    lock(&file)?;
    if kind.is_dir()
        && let Err(error) = close_to_others(&file)
    {
        tracing::warn!(path = %path.display(), %error, "others may read or write what the SSD tier keeps here");
    }
    Ok(file)
}

/// An empty file that was there before, and says that the tier is to be here, is nobody else's from now on. Others are as they were
/// made: they may not be the tier's.
fn close_to_others(file: &File) -> io::Result<()> {
    let metadata = file.metadata()?;
    let is_open_to_others = metadata.permissions().mode() & 0o077 != 0;
    if metadata.is_file() && metadata.len() == 0 && is_open_to_others {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(())
}

/// Locks the file of a place. Waits a while for who has it: a daemon that was killed lets go of its disks once what it had
/// left to the kernel to write has ended, which may be after its end.
fn lock(file: &File) -> Result<(), Unusable> {
    let given_up_at = Instant::now() + LET_GO;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < given_up_at => thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => {
                return Err(Unusable::Foreign("another daemon uses it".to_owned()));
            }
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
}

/// Draws an identity.
///
/// # Errors
/// When the system has no random numbers.
pub(super) fn draw_uuid() -> io::Result<Uuid> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Uuid(bytes))
}

/// Reads `blocks` blocks from `offset`.
///
/// # Errors
/// What the disk says; `TimedOut` after `limit`.
pub(super) fn read_blocks(
    disk: &dyn Disk,
    offset: u64,
    blocks: u64,
    limit: Duration,
) -> io::Result<Arc<Buffer>> {
    let length = usize::try_from(blocks).map_or(usize::MAX, |blocks| blocks.saturating_mul(BLOCK));
    if length > isize::MAX as usize / 2 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let buffer = Arc::new(Buffer::zeroed(length));
    disk.submit(vec![Request::read(offset, Piece::of_buffer(&buffer))]).wait(limit)?;
    Ok(buffer)
}

/// Writes whole blocks at `offset` and waits.
///
/// # Errors
/// What the disk says; `TimedOut` after `limit`.
pub(super) fn write_blocks(disk: &dyn Disk, offset: u64, bytes: &[u8], limit: Duration) -> io::Result<()> {
    let memory = Memory::Buffer(Arc::new(Buffer::holding(bytes)));
    let length = bytes.len().max(1).next_multiple_of(BLOCK);
    let piece = Piece::new(&memory, 0, length).ok_or(io::ErrorKind::InvalidInput)?;
    disk.submit(vec![Request::write(offset, piece)]).wait(limit)
}

/// Makes durable what was written, and waits.
///
/// # Errors
/// What the disk says; `TimedOut` after `limit`.
pub(super) fn flush(disk: &dyn Disk, limit: Duration) -> io::Result<()> {
    disk.submit(vec![Request::Flush]).wait(limit)
}

/// The superblock of a disk; `None` when it is new.
///
/// # Errors
/// [`Unusable::Foreign`] when something else stands there.
pub(super) fn read_superblock(disk: &dyn Disk) -> Result<Option<Superblock>, Unusable> {
    const FOREIGN: &str = "it holds something that this tier did not write";
    let length = disk.length()?.get();
    let mut best: Option<Superblock> = None;
    let mut refusal = (1..BLOCK_BYTES).contains(&length).then(|| FOREIGN.to_owned());
    for copy in 0..2 {
        let bytes = match read_blocks(disk, copy * BLOCK_BYTES, 1, START_LIMIT) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => continue,
            Err(error) => return Err(error.into()),
        };
        match decode::<Superblock>(bytes.bytes()) {
            Ok(found) => {
                if best.as_ref().is_none_or(|best| best.epoch < found.epoch) {
                    best = Some(found);
                }
            }
            Err(_) if bytes.bytes().iter().all(|&byte| byte == 0) => {}
            Err(FormatError::Foreign) => {
                refusal = Some(FOREIGN.to_owned());
            }
            Err(error) => refusal = Some(error.to_string()),
        }
    }
    match (best, refusal) {
        // A copy that was being written when the power went is damaged; the other one counts.
        (Some(best), _) => Ok(Some(best)),
        (None, Some(refusal)) => Err(Unusable::Foreign(refusal)),
        (None, None) => {
            // Ours begins with its superblock from the first: zeros with something behind them are another's.
            let blocks = length.min(NEW_BYTES) / BLOCK_BYTES;
            if blocks > 0 && read_blocks(disk, 0, blocks, START_LIMIT)?.bytes().iter().any(|&byte| byte != 0)
            {
                return Err(Unusable::Foreign(format!(
                    "{FOREIGN}; a device that nobody needs is given to it by clearing its first MiB"
                )));
            }
            Ok(None)
        }
    }
}

/// The superblocks of several disks as [`read_superblock`] tells them, all at once: those that hang cost a start as long as one.
pub(super) fn read_superblocks(of: &[&dyn Disk]) -> Vec<Result<Option<Superblock>, Unusable>> {
    side_by_side(of, |disk| read_superblock(*disk))
}

/// Writes a superblock, durably, over the older of the two copies.
///
/// # Errors
/// What the disk says; `TimedOut` after `limit`.
pub(super) fn write_superblock(disk: &dyn Disk, superblock: &Superblock, limit: Duration) -> io::Result<()> {
    let bytes = encode(superblock).ok_or(io::ErrorKind::InvalidInput)?;
    write_blocks(disk, superblock.epoch % 2 * BLOCK_BYTES, &bytes, limit)?;
    flush(disk, limit)
}

/// Writes the superblocks of several disks as [`write_superblock`] does, all at once: of the disks of a pool none is to be
/// ahead of the others for longer than that takes.
pub(super) fn write_superblocks(of: &[(&dyn Disk, Superblock)]) -> Vec<io::Result<()>> {
    let start = |(disk, superblock): &(&dyn Disk, Superblock)| {
        let bytes = encode(superblock).ok_or(io::ErrorKind::InvalidInput)?;
        let memory = Memory::Buffer(Arc::new(Buffer::holding(&bytes)));
        let piece = Piece::new(&memory, 0, bytes.len()).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(disk.submit(vec![Request::write(superblock.epoch % 2 * BLOCK_BYTES, piece)]))
    };
    let written = wait_for_all(of.iter().map(start).collect());
    let flush = |(disk, written): (&(&dyn Disk, Superblock), io::Result<()>)| {
        written.map(|()| disk.0.submit(vec![Request::Flush]))
    };
    wait_for_all(of.iter().zip(written).map(flush).collect())
}

/// Waits for what several disks do at once, together as long as for one.
fn wait_for_all(begun: Vec<io::Result<Ticket>>) -> Vec<io::Result<()>> {
    let deadline = Instant::now() + START_LIMIT;
    let left = || deadline.saturating_duration_since(Instant::now());
    begun.into_iter().map(|ticket| ticket?.wait(left())).collect()
}

/// Bytes of a zone for a disk of `capacity`: `wanted`, or less so that there are enough of them.
pub(super) fn zone_bytes_for(capacity: ByteCount, wanted: ByteCount) -> ByteCount {
    let mut zone = wanted.get();
    while zone > ZONE_BYTES_MIN && capacity.get() / zone < ZONES_WANTED {
        zone /= 2;
    }
    ByteCount((zone / BLOCK_BYTES * BLOCK_BYTES).max(ZONE_BYTES_MIN))
}

/// Smaller zones hold too few records beside header and footer.
pub(super) const ZONE_BYTES_MIN: u64 = 64 * BLOCK_BYTES;
/// With fewer, reclaim gives up too large a part of the tier at once.
const ZONES_WANTED: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regular_file_is_no_place_and_keeps_what_it_holds() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("precious");
        std::fs::write(&file, b"mine").unwrap();
        assert!(matches!(open_file(&file), Err(Unusable::Foreign(_))));
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    }

    #[test]
    fn a_place_that_is_let_go_of_late_is_used_and_one_that_is_not_is_not() {
        let place = tempfile::tempdir().unwrap();
        let before = open_file(place.path()).unwrap();
        let ends = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            drop(before);
        });
        let held = open_file(place.path());
        ends.join().unwrap();
        assert!(held.is_ok(), "{held:?}");
        let refused = open_file(place.path());
        assert!(matches!(refused, Err(Unusable::Foreign(_))), "{refused:?}");
    }
}
