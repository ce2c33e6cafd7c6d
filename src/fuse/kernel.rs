//! What the datapath says to the kernel: names and attributes to forget, backing files to let go.
//!
//! Messages about names take the directory's lock in the kernel, which may be held for a request that waits for us.
//! So they go through a queue to a thread that serves no requests. Backing files are closed at once: that waits for
//! nothing.
//!
//! Limits: the queue is bounded; when it is full the message is dropped and counted, and the kernel learns of the
//! change when the entry's lifetime ends or the next open says ESTALE.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use fuser::{BackingId, INodeNo, Notifier};
use parking_lot::Mutex;

use crate::datapath::KernelCache;
use crate::namespace::Ino;
use crate::telemetry::Telemetry;

const QUEUE_MAX: usize = 1 << 17;

#[derive(Debug)]
enum Message {
    Entry { parent: Ino, name: Box<[u8]> },
    Attributes { ino: Ino },
}

/// The kernel's side of this mount.
#[derive(Debug)]
pub(super) struct Kernel {
    messages: SyncSender<Message>,
    /// Backing files registered with the kernel, one per inode. A mutex: taken per open, for a map look-up.
    backings: Mutex<HashMap<Ino, Arc<BackingId>>>,
    telemetry: Arc<Telemetry>,
}

/// The queue's other end, for the thread that sends.
#[derive(Debug)]
pub(super) struct Messages(Receiver<Message>);

impl Kernel {
    pub(super) fn new(telemetry: Arc<Telemetry>) -> (Arc<Self>, Messages) {
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        let kernel = Self { messages: sender, backings: Mutex::new(HashMap::new()), telemetry };
        (Arc::new(kernel), Messages(receiver))
    }

    fn send(&self, message: Message) {
        match self.messages.try_send(message) {
            Ok(()) => self.telemetry.invalidations.increment(),
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.telemetry.invalidation_failures.increment();
            }
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
        register: impl FnOnce() -> std::io::Result<BackingId>,
    ) -> std::io::Result<Arc<BackingId>> {
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
    fn forget_entry(&self, parent: Ino, name: &[u8]) {
        self.send(Message::Entry { parent, name: name.into() });
    }

    fn forget_attributes(&self, ino: Ino) {
        self.send(Message::Attributes { ino });
    }

    fn release_backing(&self, ino: Ino) {
        let backing = self.backings.lock().remove(&ino);
        drop(backing);
    }
}

impl Messages {
    /// Sends messages until the mount is gone and the queue is closed.
    pub(super) fn run(self, notifier: &Notifier, telemetry: &Telemetry) {
        while let Ok(message) = self.0.recv() {
            let sent = match &message {
                Message::Entry { parent, name } => {
                    notifier.inval_entry(INodeNo(parent.0), OsStr::from_bytes(name))
                }
                // A negative offset means attributes alone; bytes of packed objects never change under an inode.
                Message::Attributes { ino } => notifier.inval_inode(INodeNo(ino.0), -1, 0),
            };
            if let Err(error) = sent {
                telemetry.invalidation_failures.increment();
                tracing::debug!(?message, %error, "the kernel did not take an invalidation");
            }
        }
    }
}
