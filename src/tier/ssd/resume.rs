//! Disks that were being emptied when the daemon ended go on leaving: they take no records from the start on, and what they
//! hold moves on to the others as soon as all names are known.
//!
//! Threads: one of its own, which ends when all of them are empty, or with the tier. One that cannot be emptied now is said
//! in the log, and tried again at the next start, or by `tidefs tier drain`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use super::Shared;
use super::changes_file::{Changes, Leaving};

/// How often it is looked whether all names are known, or the tier ends.
const LOOK: Duration = Duration::from_millis(100);

impl Shared {
    /// Has the disks leave that an earlier daemon was emptying. Returns which they are.
    pub(super) fn mark_leaving(&self) -> Vec<Leaving> {
        let mut leaving = Changes::load(self.changes.as_deref()).leaving;
        leaving.retain(|leaving| match self.devices.named(&leaving.path.display().to_string()) {
            Some(device) => {
                device.is_leaving.store(true, Ordering::Relaxed);
                true
            }
            None => false,
        });
        leaving
    }

    /// Goes on emptying these disks.
    pub(super) fn resume_drains(self: &Arc<Self>, leaving: Vec<Leaving>) -> std::io::Result<JoinHandle<()>> {
        let shared = Arc::clone(self);
        std::thread::Builder::new().name("ssd-drain".to_owned()).spawn(move || {
            while !shared.is_named.load(Ordering::Relaxed) {
                if shared.is_stopping.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(LOOK);
            }
            leaving.iter().for_each(|leaving| shared.resume_drain(&leaving.path, leaving));
        })
    }

    fn resume_drain(&self, place: &Path, leaving: &Leaving) {
        let place_text = place.display();
        tracing::info!(place = %place_text, "a disk that was being emptied before the start goes on leaving");
        let mut goes_on = |_| !self.is_stopping.load(Ordering::Relaxed);
        match self.drain(place, leaving.bytes_per_second, &mut goes_on) {
            Ok(drained) if drained.left == 0 => {
                tracing::info!(
                    place = %place_text,
                    moved = drained.moved,
                    lost = drained.lost,
                    "a disk is empty and can be removed"
                );
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(place = %place_text, %error, "a disk is not emptied any further for now; `tidefs tier drain` tries again");
            }
        }
    }
}
