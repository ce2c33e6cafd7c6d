//! What the datapath says to the kernel: attributes to forget, idle inodes to drop, backing files to let go.
//!
//! No message takes a directory's lock. A message about a *name* would (FUSE_NOTIFY_INVAL_ENTRY): a client may hold that
//! lock while it waits for our answer, and a daemon that is killed inside such a message waits for the client for ever,
//! and the client for it. So a name that stands for something else is told through its old inode: with its attributes
//! forgotten the next stat or open asks us, is told ESTALE, and looks the name up again.
//!
//! That an object left is told by whoever saw it off, as is the rare thing that must have arrived before a request is answered: a
//! message about attributes waits for nothing, and costs less than to wake another thread. What is said under the lock of the
//! tables, and what drops inodes, goes through a queue to a thread that serves no requests. Backing files are closed at once: that
//! waits for nothing either.
//!
//! Limits: an inode waits at most once in each queue, so nothing is ever dropped and the queues are bounded by the
//! number of inodes that the kernel holds.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fuser::{BackingId, INodeNo, Notifier};
use parking_lot::{Condvar, Mutex};

use crate::datapath::KernelCache;
use crate::namespace::Ino;
use crate::telemetry::Telemetry;

/// `FUSE_NOTIFY_PRUNE` of linux/fuse.h, from protocol 7.45 (Linux 6.18) on.
const NOTIFY_PRUNE: i32 = 9;
/// `FUSE_NOTIFY_INC_EPOCH`, from protocol 7.44 (Linux 6.16) on: names that were looked up before it are looked up again. It
/// takes no lock, and what the kernel knows of inodes stays.
const NOTIFY_INC_EPOCH: i32 = 8;
/// Inodes in one such message.
const PRUNED_AT_ONCE: usize = 512;

/// What waits to be told.
#[derive(Debug, Default)]
struct Pending {
    attributes: HashSet<Ino>,
    idle: HashSet<Ino>,
    is_closed: bool,
}

/// The queue between those who tell and the thread that sends.
#[derive(Debug, Default)]
struct Queue {
    /// Taken for a set look-up by whoever changes a name, and by the sender to take all there is.
    pending: Mutex<Pending>,
    arrived: Condvar,
}

/// The kernel's side of this mount.
#[derive(Debug)]
pub(super) struct Kernel {
    queue: Arc<Queue>,
    /// Backing files registered with the kernel, one per inode. A mutex: taken per open, for a map look-up.
    backings: Mutex<HashMap<Ino, Arc<BackingId>>>,
    /// Set once the session is open.
    notifier: OnceLock<Notifier>,
    /// The mount's own descriptor, for what `notifier` cannot say; there is none where another program mounted for us.
    device: OnceLock<File>,
    /// Whether what the daemon serves goes through the page cache.
    uses_page_cache: AtomicBool,
    telemetry: Arc<Telemetry>,
}

/// The queue's other end, for the thread that sends.
#[derive(Debug)]
pub(super) struct Messages(Arc<Queue>);

impl Kernel {
    pub(super) fn new(telemetry: Arc<Telemetry>) -> (Arc<Self>, Messages) {
        let queue = Arc::new(Queue::default());
        let kernel = Self {
            queue: Arc::clone(&queue),
            backings: Mutex::new(HashMap::new()),
            notifier: OnceLock::new(),
            device: OnceLock::new(),
            uses_page_cache: AtomicBool::new(false),
            telemetry,
        };
        (Arc::new(kernel), Messages(queue))
    }

    /// Whether what the daemon serves goes through the page cache from now on.
    pub(super) fn serve_through_page_cache(&self, does: bool) {
        self.uses_page_cache.store(does, Ordering::Relaxed);
    }

    /// Whether what the daemon serves goes through the page cache.
    pub(super) fn uses_page_cache(&self) -> bool {
        self.uses_page_cache.load(Ordering::Relaxed)
    }

    /// Gives it the way by which messages reach the kernel.
    pub(super) fn connect(&self, notifier: Notifier, device: Option<File>) {
        // Set once: a session is opened once.
        let _ = self.notifier.set(notifier);
        if let Some(device) = device {
            let _ = self.device.set(device);
        }
    }

    /// The backing file registered for `ino`.
    pub(super) fn registered(&self, ino: Ino) -> Option<Arc<BackingId>> {
        self.backings.lock().get(&ino).cloned()
    }

    /// The backing file registered for `ino`, or the one that `register` makes. `register` must not call the datapath.
    pub(super) fn register(
        &self,
        ino: Ino,
        register: impl FnOnce() -> io::Result<BackingId>,
    ) -> io::Result<Arc<BackingId>> {
        let mut backings = self.backings.lock();
        if let Some(backing) = backings.get(&ino) {
            return Ok(Arc::clone(backing));
        }
        let backing = Arc::new(register()?);
        backings.insert(ino, Arc::clone(&backing));
        Ok(backing)
    }
}

impl KernelCache for Kernel {
    fn forget_attributes(&self, ino: Ino) {
        if self.queue.pending.lock().attributes.insert(ino) {
            self.telemetry.invalidations.increment();
            self.queue.arrived.notify_one();
        } else {
            self.telemetry.invalidations_coalesced.increment();
        }
    }

    fn forget_attributes_now(&self, ino: Ino) {
        if let Some(notifier) = self.notifier.get() {
            self.telemetry.invalidations.increment();
            tell(notifier, ino, &self.telemetry);
        }
    }

    fn drop_idle(&self, inos: &[Ino]) {
        self.queue.pending.lock().idle.extend(inos);
        self.queue.arrived.notify_one();
    }

    fn has_backing(&self, ino: Ino) -> bool {
        self.backings.lock().contains_key(&ino)
    }

    fn release_backing(&self, ino: Ino) {
        let backing = self.backings.lock().remove(&ino);
        drop(backing);
    }

    fn forget_names(&self) -> bool {
        let Some(mut device) = self.device.get() else { return false };
        self.telemetry.epochs.increment();
        device.write_all(&header(HEADER_BYTES, NOTIFY_INC_EPOCH)).is_ok()
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.queue.pending.lock().is_closed = true;
        self.queue.arrived.notify_one();
    }
}

impl Messages {
    /// Sends messages until the mount is gone and the queue is closed. `device`: the mount's own descriptor, for what
    /// `notifier` cannot say; there is none where another program mounted for us.
    pub(super) fn run(self, notifier: &Notifier, device: Option<File>, telemetry: &Telemetry) {
        let mut pruner = Pruner { device };
        loop {
            let Pending { attributes, idle, .. } = {
                let mut pending = self.0.pending.lock();
                while pending.attributes.is_empty() && pending.idle.is_empty() {
                    if pending.is_closed {
                        return;
                    }
                    self.0.arrived.wait(&mut pending);
                }
                // What changes from here on waits for the next round.
                let is_closed = pending.is_closed;
                std::mem::replace(&mut *pending, Pending { is_closed, ..Pending::default() })
            };
            for ino in attributes {
                tell(notifier, ino, telemetry);
            }
            let idle: Vec<Ino> = idle.into_iter().collect();
            for some in idle.chunks(PRUNED_AT_ONCE) {
                if pruner.prune(some) {
                    telemetry.inode_prunes.add(some.len() as u64);
                    continue;
                }
                // It may have had an answer with one of them on its way when it was told to forget that, and knew no such inode.
                some.iter().for_each(|&ino| tell(notifier, ino, telemetry));
            }
        }
    }
}

/// What has the kernel drop inodes, as long as it may be one that does.
#[derive(Debug)]
struct Pruner {
    device: Option<File>,
}

impl Pruner {
    /// Has the kernel drop those of some inodes that nobody uses. Returns whether it was told: it takes a message whole or not
    /// at all.
    fn prune(&mut self, some: &[Ino]) -> bool {
        match self.device.as_mut().map(|device| device.write_all(&prune_message(some))) {
            Some(Ok(())) => true,
            // What `fuse_notify` of fs/fuse/dev.c answers to a message that it does not know.
            Some(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {
                tracing::info!(
                    %error,
                    "this kernel drops no inodes at our word (Linux 6.18 does): fuse.cached_inodes_max has \
                     no effect, and it drops idle ones by itself when memory is short"
                );
                self.device = None;
                false
            }
            // For want of memory, say, and then it drops idle ones by itself. The next may be taken.
            Some(Err(error)) => {
                tracing::debug!(%error, "the kernel did not take a message that inodes may go");
                false
            }
            None => false,
        }
    }
}

/// Makes the kernel forget the attributes of `ino`.
fn tell(notifier: &Notifier, ino: Ino, telemetry: &Telemetry) {
    // A negative offset means attributes alone; bytes of packed objects never change under an inode.
    if let Err(error) = notifier.inval_inode(INodeNo(ino.0), -1, 0) {
        telemetry.invalidation_failures.increment();
        tracing::debug!(ino = ino.0, %error, "the kernel did not take an invalidation");
    }
}

/// Length of a [`header`].
const HEADER_BYTES: usize = 16;

/// `struct fuse_out_header` of linux/fuse.h, of a message of `length` bytes that answers nothing.
fn header(length: usize, message: i32) -> Vec<u8> {
    let mut header = Vec::with_capacity(length);
    header.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    header.extend(message.to_ne_bytes());
    header.extend(0_u64.to_ne_bytes()); // unique: not an answer
    header
}

/// `struct fuse_out_header` and `struct fuse_notify_prune_out` of linux/fuse.h, then the inode numbers.
fn prune_message(inos: &[Ino]) -> Vec<u8> {
    const BODY_BYTES: usize = 16;
    let mut message = header(HEADER_BYTES + BODY_BYTES + size_of::<u64>() * inos.len(), NOTIFY_PRUNE);
    message.extend(u32::try_from(inos.len()).unwrap_or(u32::MAX).to_ne_bytes());
    message.extend([0; 12]); // padding and spare
    inos.iter().for_each(|ino| message.extend(ino.0.to_ne_bytes()));
    message
}

#[cfg(test)]
mod tests {
    use nix::sys::epoll::{Epoll, EpollCreateFlags};

    use super::*;

    #[test]
    fn an_inode_waits_once_however_often_it_changes() {
        let telemetry = Arc::new(Telemetry::default());
        let (kernel, messages) = Kernel::new(Arc::clone(&telemetry));
        for _ in 0..1000 {
            kernel.forget_attributes(Ino(7));
        }
        kernel.forget_attributes(Ino(8));
        assert_eq!(messages.0.pending.lock().attributes.len(), 2);
        assert_eq!((telemetry.invalidations.get(), telemetry.invalidations_coalesced.get()), (2, 999));
    }

    #[test]
    fn a_kernel_that_does_not_know_how_to_prune_is_asked_once_and_one_that_could_not_again() {
        let open = |path: &str| File::options().write(true).open(path).unwrap();
        // "EINVAL: fd is attached to an object which is unsuitable for writing" (write(2)).
        let unsuitable = File::from(Epoll::new(EpollCreateFlags::empty()).unwrap().0);
        let cases =
            [(open("/dev/null"), true, true), (open("/dev/full"), false, true), (unsuitable, false, false)];
        for (device, is_told, may_prune) in cases {
            let mut pruner = Pruner { device: Some(device) };
            assert_eq!(pruner.prune(&[Ino(1)]), is_told);
            assert_eq!(pruner.device.is_some(), may_prune);
        }
    }

    #[test]
    fn a_message_to_prune_is_as_long_as_it_says() {
        let message = prune_message(&[Ino(1), Ino(2)]);
        assert_eq!(message.len(), 48);
        assert_eq!(message[..8], [48_u32.to_ne_bytes(), 9_i32.to_ne_bytes()].concat());
        assert_eq!(message[16..20], 2_u32.to_ne_bytes());
        assert_eq!(message[40..], 2_u64.to_ne_bytes());
    }
}
