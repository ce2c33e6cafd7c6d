//! The words by which an owner takes memory back: shared by two processes, touched only atomically. And descriptors that
//! the kernel has just made for this process.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd, RawFd};

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio::io::unix::AsyncFd;

use super::word;
use crate::sync::AtomicU64;

/// Bytes of one word.
const WORD: usize = size_of::<u64>();
/// Words of one page.
pub(super) const WORDS_PER_PAGE: usize = 4096 / WORD;

/// One word for each grant of a connection. A word of zero, so also one in a hole of the file, is no grant.
#[derive(Debug)]
pub(super) struct Words {
    map: MmapRaw,
    file: File,
}

impl Words {
    /// Room for `count` words, of which only the pages in use take memory.
    pub(super) fn new(count: usize) -> io::Result<Self> {
        let file = File::from(memfd_create(c"tidefs-grants", MFdFlags::MFD_CLOEXEC)?);
        file.set_len((count * WORD) as u64)?;
        Self::map(file)
    }

    /// Maps the words that the owner passed.
    pub(super) fn of_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        Self::map(File::from(descriptor))
    }

    fn map(file: File) -> io::Result<Self> {
        let length = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        if length == 0 || !length.is_multiple_of(WORD) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { map: MmapOptions::new().len(length).map_raw(&file)?, file })
    }

    /// The file, to be passed to the peer.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.map.len() / WORD
    }

    fn word(&self, index: usize) -> Option<&AtomicU64> {
        if index >= self.count() {
            return None;
        }
        // SAFETY: `index` is inside the mapping, which `self` keeps; mappings are page-aligned, so the word is aligned.
        // Both processes touch it only by atomic operations. The file is never shortened: only its owner holds it
        // beside the peer, and neither calls ftruncate after `new`. A peer that broke this rule would cause a SIGBUS
        // here; peers have proved the cluster key and run as the same user.
        Some(unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(index * WORD).cast()) })
    }

    /// Owner: lets the peer touch what the word stands for.
    pub(super) fn grant(&self, index: usize) {
        if let Some(word) = self.word(index) {
            word::grant(word);
        }
    }

    /// Owner: no new copy begins. Returns how many are under way.
    pub(super) fn revoke(&self, index: usize) -> u64 {
        self.word(index).map_or(0, word::revoke)
    }

    /// Owner: copies under way.
    pub(super) fn copies(&self, index: usize) -> u64 {
        self.word(index).map_or(0, word::copies)
    }

    /// Owner: gives the memory of a page back in which nothing is granted any more.
    pub(super) fn release_page(&self, page: usize) -> io::Result<()> {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let from = i64::try_from(page * WORDS_PER_PAGE * WORD).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(fallocate(self.file.as_fd(), flags, from, 4096)?)
    }

    /// Peer: begins a copy. False when the grant is gone; then nothing may be touched.
    pub(super) fn enter(&self, index: usize) -> bool {
        self.word(index).is_some_and(word::enter)
    }

    /// Peer: the copy has ended.
    pub(super) fn leave(&self, index: usize) {
        if let Some(word) = self.word(index) {
            word::leave(word);
        }
    }
}

/// Takes a descriptor that accept4(2) or recvmsg(2) has just returned.
pub(super) fn own(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the callers, both in `socket`, pass what the kernel has just installed for this process, once; nobody else
    // knows the number.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// Lets the current runtime watch a socket.
pub(super) fn watch(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: `register` asks that the descriptor stays open and the same for as long as it is registered. An `OwnedFd`
    // that nobody else holds is closed only when the `AsyncFd` drops it, after deregistering it.
    unsafe { AsyncFd::register(socket) }.map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_begins_only_under_a_grant_and_is_counted_to_its_end() {
        let owner = Words::new(1024).unwrap();
        let peer = Words::of_descriptor(owner.file().try_clone().unwrap().into()).unwrap();
        assert!(!peer.enter(700), "not granted yet");
        owner.grant(700);
        assert!(peer.enter(700) && peer.enter(700));
        assert_eq!(owner.revoke(700), 2);
        assert!(!peer.enter(700));
        peer.leave(700);
        assert_eq!(owner.copies(700), 1);
        peer.leave(700);
        assert_eq!(owner.copies(700), 0);
        assert!(!peer.enter(1024), "no such word");
    }

    #[test]
    fn a_page_that_was_given_back_grants_nothing() {
        let owner = Words::new(2 * WORDS_PER_PAGE).unwrap();
        owner.grant(3);
        owner.grant(WORDS_PER_PAGE);
        owner.release_page(0).unwrap();
        assert!(!owner.enter(3));
        assert!(owner.enter(WORDS_PER_PAGE));
    }
}
