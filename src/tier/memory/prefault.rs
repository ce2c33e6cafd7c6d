//! Free memory that is touched before an object needs it, where the first touch of memory is slow: a virtual machine gets a
//! page from its host when it touches it, which takes some milliseconds for each MiB, and gives back what was free for some
//! seconds.
//!
//! It is held as files of a tmpfs of its own, which has no path and goes with the daemon. Who allocates pages of a segment
//! frees as many of these first: the kernel hands out what was freed last, so the segment gets pages that the host has given.
//! In the same way a file gets the page that was touched in a [`HugePage`]; where there is none, the file itself is written.
//!
//! Invariants
//! - What is held is in no account of the tier: whoever holds more sees to it that both stay within the capacity.
//! - Freeing waits for nobody who touches: each chunk is a file of its own.
//!
//! Limits: `bytes_max`, rounded down to chunks.
//! Threads: one touches; any frees.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::fcntl::{FallocateFlags, OFlag, fallocate, openat};
use nix::sys::stat::Mode;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{UnlinkatFlags, unlinkat};
use parking_lot::Mutex;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen,
};
use tidefs_engine::types::ByteCount;

use super::huge_page::{self, HugePage};
use super::open::HugePages;
use super::zeros::write_zeros;
use crate::ffi::IdlePriority;

/// How much is touched, and freed, at once: a huge page.
pub const CHUNK: ByteCount = ByteCount(huge_page::BYTES as u64);

/// Touched memory that no object has.
#[derive(Debug)]
pub struct Prefault {
    /// The root of the tmpfs.
    root: OwnedFd,
    bytes_max: ByteCount,
    /// Guards what there is; held for moments.
    stock: Mutex<Stock>,
}

#[derive(Debug, Default)]
struct Stock {
    /// Names of the chunks, those that were touched last at the end.
    chunks: Vec<u64>,
    /// The name of the next one.
    next: u64,
    /// Bytes that were freed beyond what was allocated since.
    ahead: ByteCount,
}

impl Stock {
    fn bytes(&self) -> ByteCount {
        ByteCount(self.chunks.len() as u64 * CHUNK.get())
    }

    /// Takes out the chunks that are to be freed before `length` bytes are allocated.
    fn take(&mut self, length: ByteCount) -> Vec<u64> {
        let missing = length.saturating_sub(self.ahead);
        let freed = self.take_chunks(missing.get().div_ceil(CHUNK.get()));
        let bytes = ByteCount(freed.len() as u64 * CHUNK.get());
        self.ahead = self.ahead.saturating_add(bytes).saturating_sub(length);
        freed
    }

    fn take_chunks(&mut self, count: u64) -> Vec<u64> {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.chunks.len());
        self.chunks.split_off(self.chunks.len() - count)
    }
}

impl Prefault {
    /// Makes the tmpfs. Nothing is touched yet.
    ///
    /// # Errors
    /// What fsopen(2), fsconfig(2) and fsmount(2) say: without the right to mount, or before Linux 5.2, there is none.
    pub(super) fn open(bytes_max: ByteCount, huge_pages: HugePages) -> io::Result<Self> {
        let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&tmpfs, "size", bytes_max.get().to_string())?;
        fsconfig_set_string(&tmpfs, "mode", "0700")?;
        // The tier says which options this kernel does not know.
        let _ = fsconfig_set_string(&tmpfs, "nr_inodes", "0");
        let _ = fsconfig_set_flag(&tmpfs, "noswap");
        if let Some((key, value)) = huge_pages.option().and_then(|option| option.split_once('=')) {
            let _ = fsconfig_set_string(&tmpfs, key, value);
        }
        fsconfig_create(&tmpfs)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let root = fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        Ok(Self { root, bytes_max, stock: Mutex::default() })
    }

    /// Most bytes that are to be held.
    #[must_use]
    pub fn bytes_max(&self) -> ByteCount {
        self.bytes_max
    }

    /// Bytes that are held.
    #[must_use]
    pub fn bytes(&self) -> ByteCount {
        self.stock.lock().bytes()
    }

    /// Touches a chunk and holds it. Returns the processor time that the touch took. `page`: the place where it is touched; none
    /// any more when the kernel gives no huge pages.
    ///
    /// # Errors
    /// What the system says, when there is no memory or [`Self::bytes_max`] is held already. Then nothing changed.
    pub(crate) fn touch(&self, page: &mut Option<HugePage>, idle: &IdlePriority) -> io::Result<Duration> {
        let mut began = processor_time();
        let is_touched = page.as_mut().is_some_and(HugePage::touch);
        let mut took = processor_time().saturating_sub(began);
        // Whoever is not let run in the middle of the rest would keep locks from everybody.
        let (name, file) = idle.suspended(|| {
            page.as_mut().map_or(Ok(()), HugePage::give_back)?;
            page.take_if(|_| !is_touched);
            self.create()
        })?;
        let made = if is_touched {
            idle.suspended(|| allocate(&file))
        } else {
            began = processor_time();
            let written = write_zeros(&file, CHUNK);
            took = processor_time().saturating_sub(began);
            written
        };
        idle.suspended(|| match made {
            Ok(()) => {
                self.stock.lock().chunks.push(name);
                Ok(took)
            }
            Err(error) => {
                self.remove(name);
                Err(error)
            }
        })
    }

    fn create(&self) -> io::Result<(u64, File)> {
        let name = {
            let mut stock = self.stock.lock();
            stock.next += 1;
            stock.next
        };
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_RDWR | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.root, name.to_string().as_str(), flags, Mode::S_IRUSR)?);
        match file.set_len(CHUNK.get()) {
            Ok(()) => Ok((name, file)),
            Err(error) => {
                self.remove(name);
                Err(error)
            }
        }
    }

    /// Frees as much as somebody is about to allocate, or what there is.
    pub(super) fn give(&self, length: ByteCount) {
        let freed = self.stock.lock().take(length);
        freed.into_iter().for_each(|name| self.remove(name));
    }

    /// Frees `bytes` for whoever wants them, in whole chunks.
    pub fn give_up(&self, bytes: ByteCount) {
        let freed = self.stock.lock().take_chunks(bytes.get().div_ceil(CHUNK.get()));
        freed.into_iter().for_each(|name| self.remove(name));
    }

    fn remove(&self, name: u64) {
        if let Err(error) = unlinkat(&self.root, name.to_string().as_str(), UnlinkatFlags::NoRemoveDir) {
            tracing::warn!(%error, "memory that was touched ahead of its use stays allocated");
        }
    }
}

/// Takes the pages of a chunk, which are zeroed when they are used.
fn allocate(file: &File) -> io::Result<()> {
    let length = i64::try_from(CHUNK.get()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    Ok(fallocate(file, FallocateFlags::empty(), 0, length)?)
}

/// Processor time of the calling thread: whatever else runs does not count.
fn processor_time() -> Duration {
    // The clock of the calling thread is there on every Linux; without it nothing would be slow.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use nix::sys::statvfs::fstatvfs;

    use super::*;

    fn allocated(prefault: &Prefault) -> ByteCount {
        let stat = fstatvfs(&prefault.root).unwrap();
        ByteCount((stat.blocks() - stat.blocks_free()) * stat.fragment_size())
    }

    fn chunks(count: u64) -> ByteCount {
        ByteCount(count * CHUNK.get())
    }

    #[test]
    fn what_is_touched_stands_and_goes_in_whole_chunks_as_others_allocate() {
        let prefault = Prefault::open(chunks(8), HugePages::Auto).unwrap();
        let (idle, mut page) = (IdlePriority::enter(), HugePage::new());
        for number in 0..6 {
            let place = if number % 2 == 0 { &mut None } else { &mut page };
            assert!(prefault.touch(place, &idle).unwrap() > Duration::ZERO);
        }
        assert_eq!((prefault.bytes(), allocated(&prefault)), (chunks(6), chunks(6)));
        prefault.give(ByteCount(1));
        assert_eq!((prefault.bytes(), allocated(&prefault)), (chunks(5), chunks(5)));
        prefault.give(ByteCount(CHUNK.get() - 1));
        assert_eq!(prefault.bytes(), chunks(5), "the rest of the first one was free already");
        prefault.give(ByteCount(CHUNK.get() + 1));
        assert_eq!((prefault.bytes(), allocated(&prefault)), (chunks(3), chunks(3)));
        prefault.give_up(CHUNK);
        assert_eq!(prefault.bytes(), chunks(2));
        prefault.give(chunks(9));
        assert_eq!((prefault.bytes(), allocated(&prefault)), (ByteCount::ZERO, ByteCount::ZERO));
        prefault.touch(&mut page, &idle).unwrap();
        prefault.give(ByteCount(1));
        assert_eq!(prefault.bytes(), ByteCount::ZERO, "what was not there was not given");
    }

    #[test]
    fn more_than_may_be_held_is_refused_and_leaves_nothing() {
        let prefault = Prefault::open(CHUNK, HugePages::Auto).unwrap();
        let idle = IdlePriority::enter();
        for mut page in [None, HugePage::new()] {
            prefault.touch(&mut page, &idle).unwrap();
            prefault.touch(&mut page, &idle).unwrap_err();
            assert_eq!((prefault.bytes(), allocated(&prefault)), (CHUNK, CHUNK));
            prefault.give_up(CHUNK);
        }
    }
}
