//! Handing a file's bytes to the kernel: registers the backing file, once per inode, with the open's reply.
//!
//! A registration that fails is no error of the open: the daemon serves the handle itself, loudly.

use std::io;
use std::sync::Arc;

use fuser::{BackingId, FopenFlags, ReplyCreate, ReplyOpen};

use super::kernel::Kernel;
use crate::datapath::{Datapath, Error, HandleId, IoPath, Opened};

/// Replies that can register a backing file.
pub(super) trait RegistersBacking {
    /// Registers `file` with the kernel.
    fn register(&self, file: &std::fs::File) -> io::Result<BackingId>;
}

impl RegistersBacking for ReplyOpen {
    fn register(&self, file: &std::fs::File) -> io::Result<BackingId> {
        self.open_backing(file)
    }
}

impl RegistersBacking for ReplyCreate {
    fn register(&self, file: &std::fs::File) -> io::Result<BackingId> {
        self.open_backing(file)
    }
}

/// How an open is answered.
#[derive(Debug)]
pub(super) struct Answer {
    /// Flags of the reply.
    pub(super) flags: FopenFlags,
    /// The backing file, when the kernel serves the handle.
    pub(super) backing: Option<Arc<BackingId>>,
}

/// Settles who serves the handle that a program was just given, and counts it. What the daemon opens for itself, or for another
/// member, is no open.
pub(super) fn answer(
    datapath: &Datapath,
    kernel: &Kernel,
    reply: &impl RegistersBacking,
    opened: &Opened,
) -> Result<Answer, Error> {
    let telemetry = datapath.telemetry();
    let quiet = if opened.announces_close { FopenFlags::empty() } else { FopenFlags::FOPEN_NOFLUSH };
    let served_by_daemon = |path| match path {
        IoPath::Cached => FopenFlags::FOPEN_KEEP_CACHE,
        // What others wrote since is not in the pages of an earlier open: each open begins without them.
        IoPath::Direct | IoPath::Passthrough if kernel.uses_page_cache() => FopenFlags::empty(),
        IoPath::Direct | IoPath::Passthrough => {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        }
    };
    if opened.path != IoPath::Passthrough {
        telemetry.direct_opens.increment();
        return Ok(Answer { flags: quiet | served_by_daemon(opened.path), backing: None });
    }
    let registered = match kernel.registered(opened.ino) {
        Some(backing) => Ok(backing),
        None => {
            // Fetched before the map of backing files is locked: the datapath locks that map under its own lock.
            let file = match &opened.backing {
                Some(file) => Arc::clone(file),
                None => datapath.backing_file(opened.ino).inspect_err(|_| datapath.release(opened.handle))?,
            };
            kernel.register(opened.ino, || reply.register(&file))
        }
    };
    match registered {
        Ok(backing) => {
            telemetry.passthrough_opens.increment();
            Ok(Answer { flags: quiet, backing: Some(backing) })
        }
        Err(error) => {
            warn_once(&error);
            fall_back(datapath, opened.handle)?;
            telemetry.direct_opens.increment();
            Ok(Answer { flags: quiet | served_by_daemon(IoPath::Direct), backing: None })
        }
    }
}

fn fall_back(datapath: &Datapath, handle: HandleId) -> Result<(), Error> {
    datapath.fall_back_to_direct(handle).inspect_err(|_| datapath.release(handle))
}

fn warn_once(error: &io::Error) {
    static WARNED: std::sync::Once = std::sync::Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            %error,
            "the kernel refused a backing file: such files are served by the daemon, slower; \
             tidefs_passthrough_failures_total counts them"
        );
    });
}
