//! An endpoint with its queues: all that is unsafe about them.
//!
//! Invariants
//! - Memory of an operation stays mapped and registered, and its context stays where it is, until its completion was
//!   read or the endpoint was closed: [`Port`] holds both by slot.
//! - Where the library refuses to close an endpoint, what the hardware may still touch is leaked, not freed.
//!
//! Threads: used by the one thread that owns the NIC (`FI_THREAD_DOMAIN`).

use std::ffi::{c_char, c_void};
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;

use libfabric_sys as fi;
use libfabric_sys::call;

use super::super::nic::ffi::{Failure, Nic, check, text_of};
use super::super::registration::ffi::Registration;
use crate::memory::MemorySlice;
use crate::transport::Direction;

/// What became of an attempt to start an operation.
pub(in super::super) enum Posted {
    /// It is in flight.
    Started,
    /// The provider has no room, or no connection yet: poll, then try again.
    Full,
    /// It will never start.
    Refused(Failure),
}

/// One operation, in the provider's terms.
pub(in super::super) struct Order<'a> {
    pub(in super::super) direction: Direction,
    pub(in super::super) local: &'a MemorySlice,
    pub(in super::super) registration: &'a Arc<Registration>,
    pub(in super::super) peer: u64,
    pub(in super::super) address: u64,
    pub(in super::super) key: u64,
}

/// The end of the operation that was in `slot`.
pub(in super::super) struct Completion {
    pub(in super::super) slot: usize,
    pub(in super::super) result: Result<(), Failure>,
}

const CQ_BATCH: usize = 32;

/// An endpoint with its completion queue and its address vector.
pub(in super::super) struct Port {
    pub(in super::super) ep: *mut fi::fid_ep,
    av: *mut fi::fid_av,
    cq: *mut fi::fid_cq,
    wait_fd: Option<RawFd>,
    /// One for each slot, at an address that does not change until the endpoint is closed.
    contexts: Option<Box<[fi::fi_context2]>>,
    /// What the operation in a slot may touch.
    held: Vec<Option<(MemorySlice, Arc<Registration>)>>,
    write_flags: u64,
    pub(in super::super) nic: Arc<Nic>,
}

// SAFETY: used by the thread that owns the domain, see the module page.
unsafe impl Send for Port {}

impl Port {
    /// Opens an endpoint with room for `slots` operations. `write_flags` is what a write's completion shall mean.
    pub(in super::super) fn open(nic: &Arc<Nic>, slots: usize, write_flags: u64) -> Result<Self, Failure> {
        let library = nic.library();
        let mut port = Self {
            ep: ptr::null_mut(),
            av: ptr::null_mut(),
            cq: ptr::null_mut(),
            wait_fd: None,
            contexts: Some((0..slots).map(|_| fi::fi_context2::default()).collect()),
            held: (0..slots).map(|_| None).collect(),
            write_flags,
            nic: Arc::clone(nic),
        };
        port.open_queue(slots)?;
        let mut attr = fi::fi_av_attr { type_: fi::FI_AV_UNSPEC, ..Default::default() };
        // SAFETY: the domain is open; the attributes live through the call.
        let status = unsafe { call::fi_av_open(nic.domain, &mut attr, &mut port.av) };
        check(library, "fi_av_open", status)?;
        // SAFETY: the domain was opened from this offer.
        let status = unsafe { call::fi_endpoint(nic.domain, nic.info(), &mut port.ep) };
        check(library, "fi_endpoint", status)?;
        port.forbid_shared_memory()?;
        // SAFETY: all three objects are open and of one domain.
        let status = unsafe { call::fi_bind(port.ep.cast(), port.av.cast(), 0) };
        check(library, "fi_ep_bind of the address vector", status)?;
        // SAFETY: as above.
        let status = unsafe { call::fi_bind(port.ep.cast(), port.cq.cast(), fi::FI_TRANSMIT | fi::FI_RECV) };
        check(library, "fi_ep_bind of the queue", status)?;
        // SAFETY: as above.
        let status = unsafe { call::fi_enable(port.ep.cast()) };
        check(library, "fi_enable", status)?;
        Ok(port)
    }

    /// Opens the completion queue: with a descriptor to wait on where the provider has one.
    fn open_queue(&mut self, slots: usize) -> Result<(), Failure> {
        let library = self.nic.library();
        let attr = |wait_obj| fi::fi_cq_attr {
            size: slots * 2,
            format: fi::FI_CQ_FORMAT_DATA,
            wait_obj,
            ..Default::default()
        };
        // SAFETY: the domain is open; the attributes live through the call.
        let status = unsafe { call::fi_cq_open(self.nic.domain, &mut attr(fi::FI_WAIT_FD), &mut self.cq) };
        if status == 0 {
            let mut descriptor = -1;
            // SAFETY: the queue is open with FI_WAIT_FD, so this asks for an int.
            let status = unsafe { call::fi_getwait_fd(self.cq.cast(), &mut descriptor) };
            self.wait_fd = (status == 0 && descriptor >= 0).then_some(descriptor);
            return Ok(());
        }
        // SAFETY: as above.
        let status = unsafe { call::fi_cq_open(self.nic.domain, &mut attr(fi::FI_WAIT_NONE), &mut self.cq) };
        check(library, "fi_cq_open", status)
    }

    /// EFA's own path within a host copies with the processor, and into the memory of a GPU that is a crash. An older
    /// library does not know the option, and other providers refuse it.
    fn forbid_shared_memory(&self) -> Result<(), Failure> {
        let library = self.nic.library();
        if library.version() < fi::version(1, 18) || !self.nic.facts().provider.starts_with("efa") {
            return Ok(());
        }
        let no = false;
        let option = fi::FI_OPT_SHARED_MEMORY_PERMITTED;
        // SAFETY: the endpoint is open; the option takes a bool of C, which is one byte.
        let status = unsafe { call::fi_setopt(self.ep, option, (&raw const no).cast(), 1) };
        match -status {
            fi::FI_EOPNOTSUPP | fi::FI_ENOPROTOOPT | fi::FI_ENOSYS => Ok(()),
            _ => check(library, "fi_setopt of shared memory", status),
        }
    }

    /// Longest one-sided operation, where the provider says it apart from the longest message.
    pub(in super::super) fn operation_bytes_max(&self) -> Option<u64> {
        if self.nic.library().version() < fi::version(2, 0) {
            return None;
        }
        let (mut bytes, mut length) = (0_usize, size_of::<usize>());
        let option = fi::FI_OPT_MAX_RMA_SIZE;
        // SAFETY: the endpoint is open; the option gives a size_t.
        let status = unsafe { call::fi_getopt(self.ep, option, (&raw mut bytes).cast(), &mut length) };
        (status == 0 && bytes > 0).then_some(bytes as u64)
    }

    /// Our own address, for peers to insert.
    pub(in super::super) fn name(&self) -> Result<Vec<u8>, Failure> {
        let library = self.nic.library();
        let mut name = vec![0; 512];
        let mut length = name.len();
        // SAFETY: the endpoint is enabled; the buffer has `length` bytes.
        let status = unsafe { call::fi_getname(self.ep, name.as_mut_ptr().cast(), &mut length) };
        check(library, "fi_getname", status)?;
        name.truncate(length);
        Ok(name)
    }

    /// Adds a peer's address. Providers read as many bytes as their kind of address has, so it must be whole.
    pub(in super::super) fn insert(&mut self, address: &[u8]) -> Result<u64, Failure> {
        let library = self.nic.library();
        // Room behind the address: a provider that expects a longer one reads zeros, not someone else's memory.
        let mut padded = vec![0_u8; 512.max(address.len())];
        padded[..address.len()].copy_from_slice(address);
        let mut slot = fi::FI_ADDR_UNSPEC;
        // SAFETY: the vector is open; the buffer is longer than any provider's address.
        let count = unsafe { call::fi_av_insert(self.av, padded.as_ptr().cast(), &mut slot) };
        if count == 1 && slot != fi::FI_ADDR_UNSPEC {
            return Ok(slot);
        }
        check(library, "fi_av_insert", if count < 0 { count } else { -fi::FI_EINVAL }).map(|()| slot)
    }

    /// Forgets a peer's address, which no operation in flight uses.
    pub(in super::super) fn remove(&mut self, slot: u64) {
        // SAFETY: the vector is open, the slot came from `insert`.
        let status = unsafe { call::fi_av_remove(self.av, slot) };
        if status != 0 {
            tracing::debug!(error = %self.nic.library().describe(-status), "an address stays in the vector");
        }
    }

    /// Starts an operation in `slot`, which is free.
    ///
    /// # Panics
    /// When the slot is in flight.
    pub(in super::super) fn post(&mut self, slot: usize, order: &Order<'_>) -> Posted {
        assert!(self.held[slot].is_none(), "slot {slot} is in flight");
        let Some(contexts) = self.contexts.as_mut() else { return Posted::Full };
        let context: *mut c_void = (&raw mut contexts[slot]).cast();
        let local = order.local;
        let (start, length, desc) =
            (local.start().cast::<c_void>(), local.length(), order.registration.descriptor());
        let (peer, address, key) = (order.peer, order.address, order.key);
        let (name, status) = match order.direction {
            Direction::Read => {
                // SAFETY: the slice lies in the registered memory; `held` keeps both, and the context, until its end.
                ("fi_read", unsafe {
                    call::fi_read(self.ep, start, length, desc, peer, address, key, context)
                })
            }
            Direction::Write => {
                let iov = libc::iovec { iov_base: start, iov_len: length };
                let remote = fi::fi_rma_iov { addr: address, len: length, key };
                let mut desc = desc;
                let message = fi::fi_msg_rma {
                    msg_iov: &raw const iov,
                    desc: &raw mut desc,
                    iov_count: 1,
                    addr: peer,
                    rma_iov: &raw const remote,
                    rma_iov_count: 1,
                    context,
                    data: 0,
                };
                let flags = fi::FI_COMPLETION | self.write_flags;
                // SAFETY: as above; the message itself is only read during the call.
                ("fi_writemsg", unsafe { call::fi_writemsg(self.ep, &message, flags) })
            }
        };
        if status == 0 {
            self.held[slot] = Some((local.clone(), Arc::clone(order.registration)));
            return Posted::Started;
        }
        let code = i32::try_from(-status).unwrap_or(fi::FI_EOTHER);
        if code == fi::FI_EAGAIN {
            return Posted::Full;
        }
        Posted::Refused(Failure { call: name, code, text: self.nic.library().describe(code) })
    }

    /// Reads completions, and lets the provider work. Returns how many were added to `found`.
    pub(in super::super) fn poll(&mut self, found: &mut Vec<Completion>) -> Result<usize, Failure> {
        let mut entries = [fi::fi_cq_data_entry::default(); CQ_BATCH];
        // SAFETY: the queue is open, with this format; the array has room for `CQ_BATCH` entries.
        let count = unsafe { call::fi_cq_read(self.cq, entries.as_mut_ptr().cast(), CQ_BATCH) };
        if let Ok(count) = usize::try_from(count) {
            let before = found.len();
            for entry in &entries[..count.min(CQ_BATCH)] {
                found.extend(self.end(entry.op_context, Ok(())));
            }
            return Ok(found.len() - before);
        }
        match i32::try_from(-count).unwrap_or(fi::FI_EOTHER) {
            fi::FI_EAGAIN => Ok(0),
            fi::FI_EAVAIL => Ok(self.poll_error(found)),
            code => Err(Failure { call: "fi_cq_read", code, text: self.nic.library().describe(code) }),
        }
    }

    fn poll_error(&mut self, found: &mut Vec<Completion>) -> usize {
        let mut detail = [0_u8; 256];
        let mut entry = fi::fi_cq_err_entry {
            err_data: detail.as_mut_ptr().cast(),
            err_data_size: detail.len(),
            ..Default::default()
        };
        // SAFETY: the queue is open; the entry and its buffer live through the call.
        if unsafe { call::fi_cq_readerr(self.cq, &mut entry) } < 1 {
            return 0;
        }
        let mut words = [0_u8; 256];
        let buffer: *mut c_char = words.as_mut_ptr().cast();
        // SAFETY: the queue is open; `err_data` is our buffer, or the provider's until the queue is read again.
        let said = unsafe {
            call::fi_cq_strerror(self.cq, entry.prov_errno, entry.err_data, buffer, words.len() - 1)
        };
        let provider = text_of(said);
        let meaning = self.nic.library().describe(entry.err);
        let text = if provider.is_empty() { meaning } else { format!("{meaning}; provider: {provider}") };
        let failure = Failure { call: "completion", code: entry.err, text };
        let ended = self.end(entry.op_context, Err(failure));
        let count = usize::from(ended.is_some());
        found.extend(ended);
        count
    }

    /// Gives a slot free. `None` for a context that is not ours, which is an event of the receiving side.
    fn end(&mut self, context: *mut c_void, result: Result<(), Failure>) -> Option<Completion> {
        let first = self.contexts.as_ref()?.as_ptr() as usize;
        let slot = (context as usize).checked_sub(first)? / size_of::<fi::fi_context2>();
        self.held.get_mut(slot)?.take()?;
        Some(Completion { slot, result })
    }

    /// Whether one may now sleep on [`Self::wait_fd`]: nothing waits in the queue. A provider that cannot say so is
    /// polled from now on, as one without a descriptor.
    pub(in super::super) fn may_sleep(&mut self) -> bool {
        // SAFETY: fabric and queue are open.
        match -unsafe { call::fi_trywait(self.nic.fabric, self.cq.cast()) } {
            0 => true,
            fi::FI_EAGAIN => false,
            code => {
                let error = self.nic.library().describe(code);
                tracing::warn!(%error, "a queue cannot be waited for, and is polled");
                self.wait_fd = None;
                true
            }
        }
    }

    /// What becomes readable when there is something to poll for.
    pub(in super::super) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the descriptor belongs to the queue, which is open for as long as the borrow of `self`.
        self.wait_fd.map(|descriptor| unsafe { BorrowedFd::borrow_raw(descriptor) })
    }
}

impl Port {
    /// Closes the endpoint, so that nothing of its operations touches memory any more. False when the provider refuses;
    /// then it still may, and this is to be tried again.
    pub(in super::super) fn close(&mut self) -> bool {
        if self.nic.binds_memory() {
            self.held.iter().flatten().for_each(|(_, registration)| {
                registration.withdraw();
            });
        }
        if !self.ep.is_null() {
            // SAFETY: opened by `open`, and closed once: then it is null.
            let status = unsafe { call::fi_close(self.ep.cast()) };
            if status != 0 {
                tracing::debug!(error = %self.nic.library().describe(-status), "an endpoint stays open");
                return false;
            }
            self.ep = ptr::null_mut();
        }
        self.close_rest();
        true
    }

    /// Closes what the endpoint was bound to.
    fn close_rest(&mut self) {
        let (av, cq) = (
            std::mem::replace(&mut self.av, ptr::null_mut()),
            std::mem::replace(&mut self.cq, ptr::null_mut()),
        );
        // SAFETY: opened by `open`, each closed once.
        unsafe {
            if !av.is_null() {
                call::fi_close(av.cast());
            }
            if !cq.is_null() {
                call::fi_close(cq.cast());
            }
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if !self.close() {
            tracing::error!("an endpoint could not be closed; the memory of its operations is never freed");
            self.close_rest();
            std::mem::forget(self.contexts.take());
            std::mem::forget(std::mem::take(&mut self.held));
        }
    }
}
