//! Telling who serves a key that a copy of it here went from memory to a disk, or came back: who reads it elsewhere asks those
//! that have it in memory first. Nobody waits for that.
//!
//! Limits: [`PAGES_MAX`] pages of [`PAGE`] copies in each round, of which there is one a tick; what is left waits for the next.

use super::core::Core;

/// Copies that the holder tells of at once: it serves nobody else meanwhile.
const PAGE: usize = 256;
/// Of these, in a round. With [`super::settings::Timings::tick`] as it is, 8,192 copies a second.
const PAGES_MAX: usize = 16;

impl Core {
    /// Has the holder tell of copies that lie elsewhere than before.
    pub(super) async fn tell_moves(&self) {
        let Some(holder) = self.holder.upgrade() else { return };
        for _ in 0..PAGES_MAX {
            let told = holder.tell_moved(PAGE);
            self.counters.copies_moved.add(told as u64);
            if told < PAGE {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}
