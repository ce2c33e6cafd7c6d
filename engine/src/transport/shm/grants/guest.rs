//! One connected peer: the words by which it was granted regions, and how they are taken back.
//!
//! Invariants
//! - A word is used once in the life of a connection, and spent when it is revoked and counts no copy.
//! - The words of a page in which none is in use any more, nor will be, take no memory.
//!
//! Limits: [`WORDS`] regions in the life of a connection; then the peer is told to make a new one.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::Shutdown;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use super::super::ffi::{WORDS_PER_PAGE, Words};
use super::super::socket::Socket;
use super::super::wire::{PACKET, Packet};
use super::LOOK_AGAIN;
use crate::types::{PeerId, RegionId};

/// Regions that one connection may be granted in its life; then the peer makes a new one. Only words in use take memory.
const WORDS: usize = 1 << 20;

/// One connected peer.
#[derive(Debug)]
pub(in super::super) struct Guest {
    pub(super) peer: PeerId,
    pub(super) words: Words,
    grants: Mutex<Grants>,
    outbox: mpsc::Sender<Packet>,
    /// Nothing that was granted on the connection is touched any more.
    pub(super) is_gone: AtomicBool,
    /// Ends the connection.
    pub(super) stop: Notify,
}

#[derive(Debug, Default)]
struct Grants {
    next: usize,
    word_of: HashMap<RegionId, usize>,
    /// Words in use of each page that has one.
    in_use: BTreeMap<usize, usize>,
}

impl Guest {
    /// One to which nothing is granted yet. What it is to be told goes to `outbox`.
    ///
    /// # Errors
    /// When there is no memory for its words.
    pub(super) fn new(peer: PeerId, outbox: mpsc::Sender<Packet>) -> io::Result<Self> {
        let words = Words::new(WORDS)?;
        let (is_gone, stop) = (AtomicBool::new(false), Notify::new());
        Ok(Self { peer, words, grants: Mutex::default(), outbox, is_gone, stop })
    }

    /// The word of `id`, granted. `None` when all were used.
    pub(super) fn take_word(&self, id: RegionId) -> Option<usize> {
        let mut grants = self.grants.lock();
        if let Some(&word) = grants.word_of.get(&id) {
            return Some(word);
        }
        let word = grants.next;
        if word >= self.words.count() {
            return None;
        }
        grants.next += 1;
        grants.word_of.insert(id, word);
        *grants.in_use.entry(word / WORDS_PER_PAGE).or_default() += 1;
        self.words.grant(word);
        Some(word)
    }

    /// Tells the peer that it does not get `id` now, as where this process may open no more files: it may ask again, for the
    /// word that stays granted. Other regions are none the worse.
    pub(super) async fn refuse(&self, socket: &Socket, id: RegionId, error: &io::Error) -> io::Result<()> {
        tracing::warn!(peer = %self.peer, region = %id, %error, "shm: a region cannot be passed to a peer");
        socket.send(&Packet::Refused { id }.encode(), None).await
    }

    /// Takes the word of `id` back. Resolves when no copy is under way by it.
    pub(super) async fn withdraw(&self, id: RegionId) {
        if let Some(word) = self.revoke(id) {
            self.until_left(word).await;
        }
    }

    /// No new copy of `id` begins. Returns its word, where it was granted: copies may be under way by it.
    pub(super) fn revoke(&self, id: RegionId) -> Option<usize> {
        let word = self.grants.lock().word_of.remove(&id)?;
        self.words.revoke(word);
        // So that the peer drops its mapping. When so many wait that one is lost, the peer is cut off instead: a mapping
        // that stays would keep the memory.
        if self.outbox.try_send(Packet::Revoked { id }).is_err() {
            self.stop.notify_one();
        }
        Some(word)
    }

    /// Resolves when no copy is under way by a word that was revoked, which is spent then.
    pub(super) async fn until_left(&self, word: usize) {
        while !self.release_if_left(word) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Whether no copy is under way by a word that was revoked, which is spent then. Not to be asked again of one that is.
    pub(super) fn release_if_left(&self, word: usize) -> bool {
        // A guest that is cut off is not gone before its copies are.
        let is_left = self.words.copies(word) == 0 || self.is_gone.load(Ordering::Acquire);
        if is_left {
            self.release_word(word);
        }
        is_left
    }

    /// No new copy begins, of whatever region.
    pub(super) fn revoke_all(&self) {
        self.words_in_use().for_each(|word| {
            self.words.revoke(word);
        });
    }

    /// The words of each page that has one in use: also those that are being withdrawn.
    fn words_in_use(&self) -> impl Iterator<Item = usize> {
        let (pages, next) = {
            let grants = self.grants.lock();
            (grants.in_use.keys().copied().collect::<Vec<_>>(), grants.next)
        };
        let of_page = move |page: usize| page * WORDS_PER_PAGE..((page + 1) * WORDS_PER_PAGE).min(next);
        pages.into_iter().flat_map(of_page)
    }

    /// Tells the peer, from which everything was taken back, that the connection ends, and waits until it has closed
    /// its end or its copies have ended.
    pub(super) async fn part(&self, socket: &Socket) {
        socket.shut_down(Shutdown::Write);
        let mut packet = [0; PACKET];
        let mut is_open = true;
        while is_open && self.words_in_use().any(|word| self.words.copies(word) > 0) {
            is_open = tokio::select! {
                received = socket.receive(&mut packet) => !matches!(received, Ok((0, _)) | Err(_)),
                () = tokio::time::sleep(LOOK_AGAIN) => true,
            };
        }
    }

    fn release_word(&self, word: usize) {
        let page = word / WORDS_PER_PAGE;
        let is_free = {
            let mut grants = self.grants.lock();
            let is_past = grants.next >= (page + 1) * WORDS_PER_PAGE;
            let in_use = grants.in_use.entry(page).or_default();
            *in_use = in_use.saturating_sub(1);
            let is_free = *in_use == 0 && is_past;
            if is_free {
                grants.in_use.remove(&page);
            }
            is_free
        };
        if is_free && let Err(error) = self.words.release_page(page) {
            tracing::debug!(%error, "a page of spent grants is kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Owner;
    use super::*;
    use crate::types::{Incarnation, MemberId};

    #[test]
    fn words_that_no_copy_uses_are_spent_though_nobody_waits_for_the_withdrawal() {
        let owner = Owner::default();
        let peer = PeerId { member: MemberId(2), incarnation: Incarnation(1) };
        let (guest, _orders) = Owner::invite(peer).unwrap();
        owner.admit(&guest);
        let words = [0, 1].map(|id| guest.take_word(RegionId(id)).unwrap());
        assert!(guest.words.enter(words[0]));
        for id in [0, 1] {
            drop(owner.remove(RegionId(id)));
        }
        assert_eq!(guest.grants.lock().in_use.values().sum::<usize>(), 1);
    }
}
