//! The life of a tier: it opens its disks, starts its threads, and ends them.
//!
//! Invariants
//! - Reclaim ends before the writers do: what it writes again is written.
//! - Each thread is joined once, by [`SsdTier::stop`], or when its disk is taken out.
//!
//! Threads: any. Started here are `ssd-reclaim` and a writer for each disk, and `ssd-drain` where an earlier start was emptying
//! one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::device::Device;
use super::epochs::Epochs;
use super::identity::Unusable;
use super::io::Io;
use super::open::{Candidate, Places, SsdConfig, assemble, open_places};
use super::writer::Writer;
use super::{Owner, Shared, SsdTier};

/// The threads of a tier.
#[derive(Debug, Default)]
pub(super) struct Threads {
    /// By the numbers of their disks.
    writers: Vec<(u8, JoinHandle<()>)>,
    reclaimer: Option<JoinHandle<()>>,
    /// Goes on with what an earlier start was emptying.
    drainer: Option<JoinHandle<()>>,
}

impl SsdTier {
    /// Opens the places of a configuration; what is wrong with one is in [`Self::status`].
    ///
    /// # Errors
    /// When threads, random numbers or the file of removals are not to be had.
    pub fn open(config: &SsdConfig) -> io::Result<Self> {
        let Places { io, candidates, unusable, configured } = open_places(config)?;
        Self::with_disks(config, Some(io), candidates, unusable, configured)
    }

    /// A tier without a disk, which gets its first one by [`Self::add`]. No place of the configuration is looked at, and
    /// there is nothing for [`Self::index`] to find.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn without_disks(config: &SsdConfig) -> io::Result<Self> {
        let io = Io::start(config.io_uring)?;
        Self::with_disks(config, Some(io), Vec::new(), Vec::new(), 0)
    }

    /// Notes a life of the daemon in which no place is configured, nor was added: a disk of an earlier life that comes
    /// back later was missing in it.
    pub fn pass_by(config: &SsdConfig) {
        let mut epochs = Epochs::load(config.epochs.as_deref());
        if epochs.last_pool().is_some() {
            epochs.pass_others(None);
            epochs.store_or_warn();
        }
    }

    pub(super) fn with_disks(
        config: &SsdConfig,
        io: Option<Arc<Io>>,
        candidates: Vec<Candidate>,
        unusable: Vec<(String, Unusable)>,
        configured: usize,
    ) -> io::Result<Self> {
        let mut epochs = Epochs::load(config.epochs.as_deref());
        let room = (config.capacity, configured);
        let assembled = assemble(candidates, unusable, room, config.zone_bytes, &mut epochs)?;
        let shared = Shared::new(assembled, config, epochs, io)?;
        Ok(Self { shared: Arc::new(shared), threads: Mutex::default() })
    }

    /// Starts writing and taking back zones.
    ///
    /// # Errors
    /// What starting a thread says.
    pub fn start(&self, owner: Arc<dyn Owner>) -> io::Result<()> {
        // A second owner would be a bug of the composition root; the first one stays.
        let _ = self.shared.owner.set(owner);
        let leaving = self.shared.mark_leaving();
        for device in self.shared.devices.all() {
            self.start_writer(&device)?;
        }
        let shared = Arc::clone(&self.shared);
        let reclaimer = std::thread::Builder::new().name("ssd-reclaim".to_owned());
        let reclaimer = reclaimer.spawn(move || shared.reclaim_in_background())?;
        self.threads.lock().reclaimer = Some(reclaimer);
        if !leaving.is_empty() {
            let drainer = self.shared.resume_drains(leaving)?;
            self.threads.lock().drainer = Some(drainer);
        }
        Ok(())
    }

    pub(super) fn start_writer(&self, device: &Arc<Device>) -> io::Result<()> {
        let writer = Writer::new(Arc::clone(&self.shared), Arc::clone(device));
        let name = format!("ssd-write-{}", device.number);
        let thread = std::thread::Builder::new().name(name).spawn(move || writer.run())?;
        self.threads.lock().writers.push((device.number, thread));
        Ok(())
    }

    /// Waits for the end of a writer whose queue is closed.
    pub(super) fn join_writer(&self, number: u8) {
        let mut threads = self.threads.lock();
        let found = threads.writers.iter().position(|(other, _)| *other == number);
        let thread = found.map(|found| threads.writers.swap_remove(found).1);
        drop(threads);
        thread.into_iter().for_each(join);
    }

    /// Writes what waits, closes the open zones and ends the threads.
    pub fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        self.shared.wake_reclaim();
        let threads = std::mem::take(&mut *self.threads.lock());
        // Reclaim first: what it writes again is written before the writers end.
        threads.reclaimer.into_iter().for_each(join);
        threads.drainer.into_iter().for_each(join);
        self.shared.is_reclaim_over.store(true, Ordering::Relaxed);
        self.shared.devices.all().iter().for_each(|device| device.queue.close());
        threads.writers.into_iter().for_each(|(_, thread)| join(thread));
        self.shared.keep_days();
    }
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("a thread of the SSD tier had panicked");
    }
}

impl Drop for SsdTier {
    fn drop(&mut self) {
        self.stop();
    }
}
