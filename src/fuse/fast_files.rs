//! `.tidefs/control` and `.tidefs/segments/ID`: sessions of the fast path, and the files by which clients map segments.
//!
//! A session lives as long as its handle. A segment is served by passthrough with one backing file for all who have it open
//! at one time; the kernel refuses a second one (fs/fuse/iomode.c). A mapping outlives its handle.
//!
//! Who opens a segment to write maps it like all others, but its read(2) and write(2) come to the daemon: the kernel would
//! write behind the end of the file, too. That is what `FOPEN_DIRECT_IO` with passthrough is for (fs/fuse/iomode.c, Linux 6.9).

use std::collections::HashMap;
use std::sync::Arc;

use fuser::{BackingId, Errno, FileAttr, FileHandle, FopenFlags, INodeNo, ReplyOpen, Request};
use parking_lot::{Mutex, RwLock};
use tidefs_control_api::ioctl::{CONTROL_FILE, SEGMENT_DIRECTORY};
use tidefs_engine::types::{FileOffset, SegmentId};

use super::control_files::{ControlFiles, MARK};
use super::errno::errno;
use crate::datapath::{Credentials, Datapath, Session};
use crate::namespace::ThreadId;

/// Inode numbers of segments have this bit beside that of control files; the lower ones are the segment's number.
const SEGMENT_MARK: u64 = 1 << 62;

/// The file that ioctls are made on.
pub(super) const CONTROL: INodeNo = INodeNo(MARK | 1 << 61);

/// The directory of segments.
pub(super) const SEGMENTS: INodeNo = INodeNo(MARK | 1 << 60);

/// The segment that an inode number stands for.
pub(super) fn segment_of(ino: INodeNo) -> Option<SegmentId> {
    (ino.0 & SEGMENT_MARK != 0 && ControlFiles::owns(ino))
        .then_some(SegmentId(ino.0 & !(MARK | SEGMENT_MARK)))
}

/// What is found below `.tidefs` beside the files that tell something.
pub(super) fn child(name: &[u8]) -> Option<INodeNo> {
    match name {
        _ if name == CONTROL_FILE.as_bytes() => Some(CONTROL),
        _ if name == SEGMENT_DIRECTORY.as_bytes() => Some(SEGMENTS),
        _ => None,
    }
}

/// The inode number of the segment with this name.
pub(super) fn segment(name: &[u8]) -> Option<INodeNo> {
    let number: u64 = std::str::from_utf8(name).ok()?.parse().ok()?;
    (number < SEGMENT_MARK >> 2).then_some(INodeNo(MARK | SEGMENT_MARK | number))
}

/// Opened segments of one number.
#[derive(Debug)]
struct Opened {
    backing: Arc<BackingId>,
    handles: u32,
}

#[derive(Debug, Default)]
struct Segments {
    by_number: HashMap<SegmentId, Opened>,
    of_handle: HashMap<u64, Handle>,
}

/// One open of a segment.
#[derive(Debug)]
struct Handle {
    segment: SegmentId,
    /// Whether the daemon serves it. It keeps no file open for that: clients may have many handles of what they gave back.
    is_to_write: bool,
}

/// The handles of these files.
#[derive(Debug, Default)]
pub(super) struct FastFiles {
    sessions: RwLock<HashMap<u64, Arc<Session>>>,
    /// Held while a backing file is registered, so that there is one for all.
    segments: Mutex<Segments>,
}

impl FastFiles {
    /// The session of an open control file.
    pub(super) fn session(&self, handle: FileHandle) -> Option<Arc<Session>> {
        self.sessions.read().get(&handle.0).cloned()
    }

    /// Opens the control file, to write or to read alone.
    pub(super) fn open_control(
        &self,
        datapath: &Datapath,
        request: &Request,
        write: bool,
        handle: FileHandle,
        reply: ReplyOpen,
    ) {
        let session = datapath.begin_session(credentials(request), write);
        self.sessions.write().insert(handle.0, Arc::new(session));
        reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH);
    }

    /// Opens a segment, to be mapped.
    pub(super) fn open_segment(
        &self,
        datapath: &Datapath,
        request: &Request,
        (segment, write): (SegmentId, bool),
        handle: FileHandle,
        reply: ReplyOpen,
    ) {
        if !datapath.is_passthrough() {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let file = match datapath.open_shared(&credentials(request), segment, write) {
            Ok(file) => file,
            // The kernel found the name, so what is missing now was given up: a miss.
            Err(crate::datapath::Error::NotPermitted(_)) => return reply.error(Errno::EACCES),
            Err(error) => return reply.error(errno(&error)),
        };
        let registered = {
            let mut segments = self.segments.lock();
            let registered = match segments.by_number.get_mut(&segment) {
                Some(opened) => {
                    opened.handles += 1;
                    Ok(Arc::clone(&opened.backing))
                }
                None => reply.open_backing(&*file).map(|backing| {
                    let backing = Arc::new(backing);
                    let opened = Opened { backing: Arc::clone(&backing), handles: 1 };
                    segments.by_number.insert(segment, opened);
                    backing
                }),
            };
            if registered.is_ok() {
                segments.of_handle.insert(handle.0, Handle { segment, is_to_write: write });
            }
            registered
        };
        match registered {
            Ok(backing) => {
                let daemons = if write { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() };
                reply.opened_passthrough(handle, FopenFlags::FOPEN_NOFLUSH | daemons, &backing);
            }
            Err(error) => {
                tracing::warn!(segment = segment.0, %error, "the kernel refused a segment; its client reads the file instead");
                reply.error(Errno::EOPNOTSUPP);
            }
        }
    }

    /// The segment of a handle that may write: others are read by the kernel, and nothing is written through a control file.
    fn written(&self, handle: FileHandle) -> Result<SegmentId, Errno> {
        let segments = self.segments.lock();
        let found = segments.of_handle.get(&handle.0).filter(|one| one.is_to_write);
        found.map(|one| one.segment).ok_or(Errno::EINVAL)
    }

    /// Up to `length` bytes of a segment that was opened to write, fewer at its end.
    pub(super) fn read(
        &self,
        datapath: &Datapath,
        handle: FileHandle,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, Errno> {
        let segment = self.written(handle)?;
        datapath.read_shared(segment, FileOffset(offset), length).map_err(|error| errno(&error))
    }

    /// Writes into a segment that was opened to write.
    pub(super) fn write(
        &self,
        datapath: &Datapath,
        handle: FileHandle,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        let segment = self.written(handle)?;
        // What a client may not is its own matter, and said to nobody else.
        datapath.write_shared(segment, FileOffset(offset), bytes).map_err(|error| errno(&error))
    }

    /// Closes a handle of either kind.
    pub(super) fn release(&self, datapath: &Datapath, number: INodeNo, handle: FileHandle) {
        if number == CONTROL {
            let session = self.sessions.write().remove(&handle.0);
            if let Some(session) = session {
                datapath.end_soon(&session);
            }
            return;
        }
        let mut segments = self.segments.lock();
        let Some(Handle { segment, .. }) = segments.of_handle.remove(&handle.0) else { return };
        if let Some(opened) = segments.by_number.get_mut(&segment) {
            opened.handles -= 1;
            if opened.handles == 0 {
                segments.by_number.remove(&segment);
            }
        }
    }
}

/// Attributes of a segment. Not its length: who may know that is decided when it is opened, and neither mmap(2) nor read(2) of
/// a file that is passed through, or served by the daemon, looks at it.
pub(super) fn segment_attributes(
    control: &ControlFiles,
    datapath: &Datapath,
    number: INodeNo,
) -> Option<FileAttr> {
    datapath.is_shared(segment_of(number)?).then(|| control.attributes(number))
}

fn credentials(request: &Request) -> Credentials {
    Credentials::of_request(request.uid(), request.gid(), ThreadId(request.pid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_segments_are_no_other_control_files() {
        let number = segment(b"123456").unwrap();
        assert_eq!(segment_of(number), Some(SegmentId(123_456)));
        for other in [CONTROL, SEGMENTS, ControlFiles::directory(), INodeNo(5), INodeNo(SEGMENT_MARK | 5)] {
            assert_eq!(segment_of(other), None);
        }
        for name in [&b""[..], b"x", b"-1", b"18446744073709551615", b"1 "] {
            assert_eq!(segment(name), None);
        }
        assert_eq!(
            (child(b"control"), child(b"segments"), child(b"status")),
            (Some(CONTROL), Some(SEGMENTS), None)
        );
    }
}
