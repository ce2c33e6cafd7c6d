//! What endpoints are given to do, which the [`mod@crate::world`] does in its own time, and what their queues say of it.

use std::ffi::{c_char, c_int, c_void};
use std::time::Instant;

use libc::ssize_t;
use libfabric_sys as fi;
use libfabric_sys::{fi_addr_t, fi_cq_data_entry, fi_cq_err_entry, fi_msg_rma, fid_cq, fid_ep};

use crate::objects::number;
use crate::world::{Kind, Transfer, world};

pub(crate) unsafe extern "C" fn read(
    ep: *mut fid_ep,
    target: *mut c_void,
    length: usize,
    desc: *mut c_void,
    slot: fi_addr_t,
    remote: u64,
    key: u64,
    context: *mut c_void,
) -> ssize_t {
    let transfer = Transfer {
        kind: Kind::Read,
        local: target as usize,
        length,
        descriptor: desc as usize,
        slot,
        remote,
        key,
        context: context as usize,
    };
    // SAFETY: the endpoint is open.
    post(unsafe { number(ep) }, transfer)
}

pub(crate) unsafe extern "C" fn writemsg(ep: *mut fid_ep, message: *const fi_msg_rma, flags: u64) -> ssize_t {
    // SAFETY: the endpoint is open, the message valid.
    let (id, message) = unsafe { (number(ep), &*message) };
    if flags & fi::FI_DELIVERY_COMPLETE != 0 || message.iov_count != 1 || message.rma_iov_count != 1 {
        return -(world().violation("a write of several pieces, or with a promise of delivery") as ssize_t);
    }
    // SAFETY: the counts are 1, so each points to one element.
    let (local, remote, desc) = unsafe { (&*message.msg_iov, &*message.rma_iov, message.desc.as_ref()) };
    let transfer = Transfer {
        kind: Kind::Write,
        local: local.iov_base as usize,
        length: local.iov_len,
        descriptor: desc.map_or(0, |desc| *desc as usize),
        slot: message.addr,
        remote: remote.addr,
        key: remote.key,
        context: message.context as usize,
    };
    post(id, transfer)
}

fn post(id: usize, transfer: Transfer) -> ssize_t {
    match world().post(id, transfer) {
        Ok(()) => 0,
        Err(code) => -(code as ssize_t),
    }
}

pub(crate) unsafe extern "C" fn cq_read(cq: *mut fid_cq, entries: *mut c_void, count: usize) -> ssize_t {
    // SAFETY: the queue is open.
    let id = unsafe { number(cq) };
    let halted_until = world().halted_until;
    if let Some(left) = halted_until.and_then(|until| until.checked_duration_since(Instant::now())) {
        std::thread::sleep(left);
    }
    let mut world = world();
    world.progress(id);
    let Some(queue) = world.queues.get_mut(&id) else { return -(fi::FI_EINVAL as ssize_t) };
    let mut written = 0;
    while written < count {
        let Some(done) = queue.front().copied().filter(|done| done.error == 0) else { break };
        queue.pop_front();
        let entry = fi_cq_data_entry {
            op_context: done.context as *mut c_void,
            len: done.length,
            ..Default::default()
        };
        // SAFETY: the caller gives room for `count` entries of this format.
        unsafe { entries.cast::<fi_cq_data_entry>().add(written).write(entry) };
        written += 1;
    }
    let has_error = queue.front().is_some_and(|done| done.error != 0);
    match (written, has_error) {
        (0, true) => -(fi::FI_EAVAIL as ssize_t),
        (0, false) => -(fi::FI_EAGAIN as ssize_t),
        _ => written.cast_signed(),
    }
}

pub(crate) unsafe extern "C" fn cq_readerr(
    cq: *mut fid_cq,
    entry: *mut fi_cq_err_entry,
    _flags: u64,
) -> ssize_t {
    // SAFETY: the queue is open.
    let id = unsafe { number(cq) };
    let mut world = world();
    let queue = world.queues.get_mut(&id);
    let Some(done) = queue.and_then(|queue| queue.pop_front_if(|done| done.error != 0)) else {
        return -(fi::FI_EAGAIN as ssize_t);
    };
    // SAFETY: the caller gives a valid entry.
    let entry = unsafe { &mut *entry };
    entry.op_context = done.context as *mut c_void;
    entry.err = done.error;
    entry.prov_errno = done.error;
    entry.err_data_size = 0;
    1
}

pub(crate) unsafe extern "C" fn cq_strerror(
    _cq: *mut fid_cq,
    _code: c_int,
    _detail: *const c_void,
    _text: *mut c_char,
    _length: usize,
) -> *const c_char {
    c"strict provider".as_ptr()
}
