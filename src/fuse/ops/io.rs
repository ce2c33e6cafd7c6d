//! Bytes that the daemon serves itself, and changes of length.

use std::cell::RefCell;
use std::sync::Arc;

use fuser::{Errno, FileHandle, INodeNo, ReplyData, ReplyEmpty, ReplyWrite, Request};
use tidefs_engine::types::ByteCount;

use super::{Dispatcher, caller, fail, reply_done};
use crate::datapath::{Datapath, Error, HandleId, Read, SizeChange};
use crate::fuse::attributes::ino;
use crate::fuse::control_files::ControlFiles;
use crate::fuse::fast_files;
use crate::tier::scratch::Wait;

thread_local! {
    /// Reads that the daemon serves land here before they go to the kernel.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

pub(in crate::fuse) fn read(
    dispatcher: &Dispatcher,
    number: INodeNo,
    handle: FileHandle,
    offset: u64,
    size: u32,
    reply: ReplyData,
) {
    let length = usize::try_from(size).unwrap_or(0);
    if ControlFiles::owns(number) {
        if fast_files::segment_of(number).is_some() {
            return match dispatcher.fast.read(&dispatcher.datapath, handle, offset, length) {
                Ok(bytes) => reply.data(&bytes),
                Err(errno) => reply.error(errno),
            };
        }
        return reply.data(&dispatcher.control.read(handle.0, offset, length));
    }
    serve(&dispatcher.datapath, HandleId(handle.0), offset, length, reply);
}

/// Answers a read when its bytes are here, which is nearly always at once.
fn serve(datapath: &Arc<Datapath>, handle: HandleId, offset: u64, length: usize, reply: ReplyData) {
    let waiting = BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        match datapath.read_or_wait(handle, offset, &mut buffer[..length]) {
            Ok(Read::Bytes(count)) => reply.data(&buffer[..count]),
            Ok(Read::NotYet(stream)) => return Some((stream, reply)),
            Err(error) => reply.error(fail("read", &error)),
        }
        None
    });
    let Some((stream, reply)) = waiting else { return };
    let datapath = Arc::clone(datapath);
    let rest = move |is_there| {
        if is_there {
            serve(&datapath, handle, offset, length, reply);
        } else {
            // Counted and logged by the thread that fetched it, or by the stream, where too many wait.
            reply.error(Errno::EIO);
        }
    };
    stream.wait_for(offset, length, Box::new(rest));
}

pub(in crate::fuse) fn write(
    dispatcher: &Dispatcher,
    number: INodeNo,
    handle: FileHandle,
    offset: u64,
    data: &[u8],
    reply: ReplyWrite,
) {
    if ControlFiles::owns(number) {
        // Only a segment that was opened to write takes any; all of these files share one count of handles.
        return match dispatcher.fast.write(&dispatcher.datapath, handle, offset, data) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(errno),
        };
    }
    let datapath = &dispatcher.datapath;
    let handle = HandleId(handle.0);
    if !datapath.is_long_to_write(ino(number), offset, ByteCount(data.len() as u64)) {
        match datapath.write_now(handle, offset, data) {
            // Others took the room that there was.
            Ok(false) => {}
            outcome => return reply_written(outcome.map(|_| data.len()), reply),
        }
    }
    let (datapath, data, wait) = (Arc::clone(datapath), data.to_vec(), datapath.slot_file_wait());
    dispatcher.at_leisure("write", reply, move |reply| {
        let outcome = datapath.write_within(handle, offset, &data, wait);
        reply_written(outcome.map(|()| data.len()), reply);
    });
}

fn reply_written(outcome: Result<usize, Error>, reply: ReplyWrite) {
    match outcome {
        Ok(length) => reply.written(u32::try_from(length).unwrap_or(u32::MAX)),
        Err(error) => reply.error(fail("write", &error)),
    }
}

pub(in crate::fuse) fn fallocate(
    dispatcher: &Dispatcher,
    request: &Request,
    (number, handle): (INodeNo, FileHandle),
    (offset, length): (u64, u64),
    mode: i32,
    reply: ReplyEmpty,
) {
    if ControlFiles::owns(number) {
        return reply.error(Errno::EOPNOTSUPP);
    }
    let (offset, length) = (ByteCount(offset), ByteCount(length));
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    let change = match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => SizeChange::Allocate { offset, length, keep_size },
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => SizeChange::Punch { offset, length },
        _ => return reply.error(Errno::EOPNOTSUPP),
    };
    let through = Some(HandleId(handle.0));
    let (datapath, caller) = (Arc::clone(&dispatcher.datapath), caller(request));
    let is_long = datapath.is_long_to_change(ino(number), change);
    let wait = if is_long { datapath.slot_file_wait() } else { Wait::Patiently };
    let rest = move |reply: ReplyEmpty| {
        let outcome = datapath.change_size_within(&caller, ino(number), through, change, wait);
        reply_done(outcome, "fallocate", reply);
    };
    if is_long { dispatcher.at_leisure("fallocate", reply, rest) } else { rest(reply) }
}
