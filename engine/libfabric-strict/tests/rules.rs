//! Each rule that the strict provider enforces is broken here on purpose, once, and is caught; and what keeps the rules is
//! left alone. So a test over this provider that finds no violation says something.
//!
//! The provider's tables are called directly: no libfabric is needed.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fabric_strict as strict;
use libfabric_sys as fi;
use libfabric_sys::call;
use libfabric_sys::{
    fi_addr_t, fi_av_attr, fi_context2, fi_cq_attr, fi_cq_data_entry, fi_cq_err_entry, fi_mr_attr,
    fi_msg_rma, fi_rma_iov, fid, fid_av, fid_cq, fid_domain, fid_ep, fid_fabric, fid_mr,
};

const LENGTH: usize = 128 << 10;
const ALL: u64 = fi::FI_READ | fi::FI_WRITE | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;

/// The provider is one for the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = violations();
    guard
}

fn violations() -> String {
    let mut text = vec![0_u8; 1 << 12];
    // SAFETY: the buffer has as many bytes as are said.
    let length = unsafe { strict::strict_violations(text.as_mut_ptr().cast(), text.len()) };
    String::from_utf8(text[..length].to_vec()).unwrap()
}

/// Memory and its registration.
struct Memory {
    bytes: Box<[u8]>,
    mr: *mut fid_mr,
}

impl Memory {
    fn at(&self, offset: usize) -> *mut c_void {
        self.bytes.as_ptr().wrapping_add(offset).cast_mut().cast()
    }

    fn desc(&self) -> *mut c_void {
        // SAFETY: the region is open.
        unsafe { call::fi_mr_desc(self.mr) }
    }

    fn key(&self) -> u64 {
        // SAFETY: the region is open.
        unsafe { call::fi_mr_key(self.mr) }
    }
}

/// One end: a domain with an endpoint, bound and enabled.
struct End {
    domain: *mut fid_domain,
    av: *mut fid_av,
    cq: *mut fid_cq,
    ep: *mut fid_ep,
}

/// What an operation asks for; each test changes one thing of a right one.
struct Ask<'a> {
    local: *mut c_void,
    length: usize,
    desc: *mut c_void,
    slot: fi_addr_t,
    remote: u64,
    key: u64,
    context: &'a mut fi_context2,
}

fn open_domain() -> *mut fid_domain {
    let mut fabric: *mut fid_fabric = ptr::null_mut();
    let mut domain = ptr::null_mut();
    // SAFETY: the provider's own entry points, in the order of the manual, with places for the answers.
    unsafe {
        let provider = strict::fi_prov_ini();
        assert_eq!((*provider).fabric.unwrap()(ptr::null_mut(), &raw mut fabric, ptr::null_mut()), 0);
        assert_eq!(call::fi_domain(fabric, ptr::null_mut(), &mut domain), 0);
    }
    domain
}

fn open_cq(domain: *mut fid_domain, format: u32) -> Result<*mut fid_cq, c_int> {
    let mut cq = ptr::null_mut();
    let mut attr = fi_cq_attr { format, wait_obj: fi::FI_WAIT_NONE, ..Default::default() };
    // SAFETY: the domain is open.
    match unsafe { call::fi_cq_open(domain, &mut attr, &mut cq) } {
        0 => Ok(cq),
        code => Err(code),
    }
}

impl End {
    fn open() -> Self {
        let end = Self::open_unbound();
        // SAFETY: all were just opened.
        unsafe {
            assert_eq!(call::fi_bind(end.ep.cast(), end.av.cast(), 0), 0);
            assert_eq!(call::fi_bind(end.ep.cast(), end.cq.cast(), 0), 0);
            assert_eq!(call::fi_enable(end.ep.cast()), 0);
        }
        end
    }

    fn open_unbound() -> Self {
        let domain = open_domain();
        let cq = open_cq(domain, fi::FI_CQ_FORMAT_DATA).unwrap();
        let (mut av, mut ep) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the domain is open, and the places for the answers are valid.
        unsafe {
            assert_eq!(call::fi_av_open(domain, &mut fi_av_attr::default(), &mut av), 0);
            assert_eq!(call::fi_endpoint(domain, ptr::null_mut(), &mut ep), 0);
        }
        Self { domain, av, cq, ep }
    }

    fn memory(&self, access: u64) -> Memory {
        let bytes = vec![7; LENGTH].into_boxed_slice();
        let mr = self.register(&bytes, access);
        Memory { bytes, mr }
    }

    fn register(&self, bytes: &[u8], access: u64) -> *mut fid_mr {
        let range = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let attr = fi_mr_attr { mr_iov: &raw const range, iov_count: 1, access, ..Default::default() };
        let mut mr = ptr::null_mut();
        // SAFETY: the domain is open; the memory lives as long as its registration is used.
        assert_eq!(unsafe { call::fi_mr_regattr(self.domain, &attr, 0, &mut mr) }, 0);
        mr
    }

    fn insert(&self, other: &Self) -> fi_addr_t {
        let mut address = [0_u8; 64];
        let mut length = address.len();
        let mut slot = 0;
        // SAFETY: both objects are open; the buffer has as many bytes as are said.
        unsafe {
            assert_eq!(call::fi_getname(other.ep, address.as_mut_ptr().cast(), &mut length), 0);
            assert_eq!(call::fi_av_insert(self.av, address.as_ptr().cast(), &mut slot), 1);
        }
        slot
    }

    /// Posts a read, again while the queue pretends to be full.
    fn read(&self, ask: &mut Ask<'_>) -> c_int {
        let context: *mut fi_context2 = ask.context;
        self.read_with(ask, context.cast())
    }

    fn read_with(&self, ask: &Ask<'_>, context: *mut c_void) -> c_int {
        loop {
            // SAFETY: what of the arguments is wrong is what is tested: the provider looks before it touches.
            let code = unsafe {
                call::fi_read(
                    self.ep, ask.local, ask.length, ask.desc, ask.slot, ask.remote, ask.key, context,
                )
            };
            match c_int::try_from(code).unwrap() {
                code if code == -fi::FI_EAGAIN => {}
                code => return code,
            }
        }
    }

    /// The error of the next completion; 0 for success.
    fn completion(&self) -> i32 {
        let mut entry = fi_cq_data_entry::default();
        loop {
            // SAFETY: the queue is open and the entry of its format.
            let code = unsafe { call::fi_cq_read(self.cq, (&raw mut entry).cast(), 1) };
            match c_int::try_from(code).unwrap() {
                1 => return 0,
                code if code == -fi::FI_EAGAIN => {}
                code if code == -fi::FI_EAVAIL => {
                    let mut error = fi_cq_err_entry::default();
                    // SAFETY: the queue is open.
                    assert_eq!(unsafe { call::fi_cq_readerr(self.cq, &mut error) }, 1);
                    return error.err;
                }
                code => panic!("{code}"),
            }
        }
    }
}

fn close(object: *mut fid) -> c_int {
    // SAFETY: the object is open, and not used afterwards where this succeeds.
    unsafe { call::fi_close(object) }
}

/// Two ends that know each other, with memory that may do everything.
struct Stand {
    near: End,
    far: End,
    local: Memory,
    remote: Memory,
    slot: fi_addr_t,
    /// Nobody else's ever, also when an operation stays in flight at the end of a test.
    context: &'static mut fi_context2,
}

impl Stand {
    fn new() -> Self {
        let (near, far) = (End::open(), End::open());
        let (local, remote) = (near.memory(ALL), far.memory(ALL));
        let slot = near.insert(&far);
        far.insert(&near);
        Self { near, far, local, remote, slot, context: Box::leak(Box::default()) }
    }

    /// A read that keeps all rules.
    fn ask(&mut self) -> Ask<'_> {
        Ask {
            local: self.local.at(0),
            length: 4096,
            desc: self.local.desc(),
            slot: self.slot,
            remote: self.remote.at(64) as u64,
            key: self.remote.key(),
            context: &mut *self.context,
        }
    }

    /// Posts a read that `change` has spoilt, which must be refused at once.
    fn refused(mut self, change: impl FnOnce(&mut Ask<'_>)) -> String {
        let near = End { ..self.near };
        let mut ask = self.ask();
        change(&mut ask);
        assert_eq!(near.read(&mut ask), -fi::FI_EINVAL);
        violations()
    }

    /// Posts a read that `change` has spoilt, whose completion says so.
    fn failed(&mut self, change: impl FnOnce(&mut Ask<'_>)) -> i32 {
        let near = End { ..self.near };
        let mut ask = self.ask();
        change(&mut ask);
        assert_eq!(near.read(&mut ask), 0);
        near.completion()
    }
}

#[test]
fn what_keeps_the_rules_is_left_alone() {
    let _alone = alone();
    let mut stand = Stand::new();
    assert_eq!(stand.failed(|_| {}), 0);
    assert_eq!(violations(), "");
}

#[test]
fn a_context_is_there_aligned_and_used_once_at_a_time() {
    let _alone = alone();
    let mut stand = Stand::new();
    let near = End { ..stand.near };
    let ask = stand.ask();
    for context in [ptr::null_mut(), ptr::without_provenance_mut(12)] {
        assert_eq!(near.read_with(&ask, context), -fi::FI_EINVAL);
        assert!(violations().contains("a context is null, not aligned"));
    }
    let context = ptr::without_provenance_mut(4096);
    assert_eq!(near.read_with(&ask, context), 0);
    assert_eq!(near.read_with(&ask, context), -fi::FI_EINVAL);
    assert!(violations().contains("in flight already"));
    assert_eq!(near.completion(), 0);
}

#[test]
fn an_operation_has_a_length_and_not_too_much_of_it() {
    let _alone = alone();
    assert!(Stand::new().refused(|ask| ask.length = 0).contains("an operation of 0 bytes"));
    assert!(Stand::new().refused(|ask| ask.length = (64 << 10) + 1).contains("an operation of 65537 bytes"));
}

#[test]
fn local_memory_has_the_descriptor_of_its_region_in_its_domain() {
    let _alone = alone();
    let told = Stand::new().refused(|ask| ask.desc = ptr::null_mut());
    assert!(told.contains("without a descriptor"), "{told}");
    let elsewhere = End::open().memory(ALL);
    let told = Stand::new().refused(|ask| ask.desc = elsewhere.desc());
    assert!(told.contains("of another domain"), "{told}");
    let told = Stand::new().refused(|ask| ask.local = ask.local.wrapping_byte_add(LENGTH - 4095));
    assert!(told.contains("outside the region"), "{told}");
    let stand = Stand::new();
    let write_only = stand.near.memory(fi::FI_WRITE);
    let told = stand.refused(|ask| {
        ask.local = write_only.at(0);
        ask.desc = write_only.desc();
    });
    assert!(told.contains("not registered for this kind"), "{told}");
}

#[test]
fn an_address_is_one_that_was_inserted_and_not_removed() {
    let _alone = alone();
    let mut stand = Stand::new();
    assert_ne!(stand.failed(|ask| ask.slot = 99), 0);
    assert!(violations().contains("not inserted, or was removed"));
    // SAFETY: the vector is open.
    unsafe {
        assert_eq!(call::fi_av_remove(stand.near.av, stand.slot), 0);
        assert_eq!(call::fi_av_remove(stand.near.av, stand.slot), -fi::FI_EINVAL);
    }
    assert!(violations().contains("removed that is not there"));
    assert_ne!(stand.failed(|_| {}), 0);
    assert!(violations().contains("not inserted, or was removed"));
    let mut slot = 0;
    // SAFETY: the vector is open, and the address has as many bytes as one.
    let code = unsafe { call::fi_av_insert(stand.near.av, [1_u8; 64].as_ptr().cast(), &mut slot) };
    assert_eq!(code, -fi::FI_EINVAL);
    assert!(violations().contains("not one of this provider"));
}

#[test]
fn the_target_knows_the_initiator() {
    let _alone = alone();
    let mut stand = Stand::new();
    // SAFETY: the vector is open, and the address its only one.
    assert_eq!(unsafe { call::fi_av_remove(stand.far.av, 0) }, 0);
    assert_ne!(stand.failed(|_| {}), 0);
    assert!(violations().contains("has not inserted the address of the initiator"));
}

#[test]
fn remote_memory_needs_a_key_that_lives_and_grants_this() {
    let _alone = alone();
    let mut stand = Stand::new();
    let readable = stand.far.memory(fi::FI_REMOTE_WRITE);
    let (wrong, place) = (readable.key(), readable.at(0) as u64);
    assert_eq!(stand.failed(|ask| ask.key += 1), fi::FI_EKEYREJECTED);
    assert_eq!(stand.failed(|ask| ask.remote += (LENGTH - 64) as u64 - 4095), fi::FI_EKEYREJECTED);
    assert_eq!(
        stand.failed(|ask| {
            ask.key = wrong;
            ask.remote = place;
        }),
        fi::FI_EKEYREJECTED
    );
    let dead = stand.remote.key();
    assert_eq!(close(stand.remote.mr.cast()), 0);
    // The same bytes again, under another key.
    stand.remote.mr = stand.far.register(&stand.remote.bytes, ALL);
    assert_eq!(stand.failed(|ask| ask.key = dead), fi::FI_EKEYREJECTED);
    assert_eq!(stand.failed(|_| {}), 0);
    // An error that a peer can bring about, so no rule that this side has broken.
    assert_eq!(violations(), "");
}

#[test]
fn memory_is_not_withdrawn_under_an_operation() {
    let _alone = alone();
    let mut stand = Stand::new();
    let near = End { ..stand.near };
    assert_eq!(near.read(&mut stand.ask()), 0);
    close(stand.local.mr.cast());
    assert!(violations().contains("withdrawn while an operation in flight uses it"));
}

#[test]
fn a_domain_is_closed_last() {
    let _alone = alone();
    let end = End::open();
    assert_eq!(close(end.domain.cast()), -fi::FI_EBUSY);
    assert!(violations().contains("closed before what was opened from it"));
    assert_eq!(close(end.ep.cast()), 0);
    let memory = end.memory(ALL);
    assert_eq!(close(end.domain.cast()), -fi::FI_EBUSY);
    assert!(violations().contains("closed before what was opened from it"));
    assert_eq!(close(memory.mr.cast()), 0);
    assert_eq!(close(end.domain.cast()), 0);
    assert_eq!(violations(), "");
}

#[test]
fn an_endpoint_is_bound_before_it_is_enabled() {
    let _alone = alone();
    let end = End::open_unbound();
    // SAFETY: the endpoint is open.
    assert_eq!(unsafe { call::fi_enable(end.ep.cast()) }, -fi::FI_EINVAL);
    assert!(violations().contains("enabled before it is bound"));
}

#[test]
fn a_queue_is_of_one_format_and_has_no_descriptor() {
    let _alone = alone();
    let domain = open_domain();
    assert_eq!(open_cq(domain, fi::FI_CQ_FORMAT_DATA + 1), Err(-fi::FI_EINVAL));
    assert!(violations().contains("another format than DATA"));
    let mut attr =
        fi_cq_attr { format: fi::FI_CQ_FORMAT_DATA, wait_obj: fi::FI_WAIT_FD, ..Default::default() };
    // SAFETY: the domain is open.
    assert_eq!(unsafe { call::fi_cq_open(domain, &mut attr, &mut ptr::null_mut()) }, -fi::FI_ENOSYS);
}

#[test]
fn a_registration_is_of_one_range() {
    let _alone = alone();
    let attr = fi_mr_attr { iov_count: 2, ..Default::default() };
    // SAFETY: the domain is open; of the ranges none is looked at.
    let code = unsafe { call::fi_mr_regattr(open_domain(), &attr, 0, &mut ptr::null_mut()) };
    assert_eq!(code, -fi::FI_EINVAL);
    assert!(violations().contains("other than one range"));
}

#[test]
fn a_write_asks_for_no_delivery_and_has_one_piece() {
    let _alone = alone();
    for (flags, pieces) in [(fi::FI_DELIVERY_COMPLETE, 1), (0, 2)] {
        let mut stand = Stand::new();
        let near = End { ..stand.near };
        let ask = stand.ask();
        let local = libc::iovec { iov_base: ask.local, iov_len: 8 };
        let remote = fi_rma_iov { addr: ask.remote, len: 8, key: ask.key };
        let mut desc = ask.desc;
        let message = fi_msg_rma {
            msg_iov: &raw const local,
            desc: &raw mut desc,
            iov_count: pieces,
            addr: ask.slot,
            rma_iov: &raw const remote,
            rma_iov_count: 1,
            context: ptr::from_mut(ask.context).cast(),
            data: 0,
        };
        // SAFETY: the endpoint is open; the message is refused before its pieces are looked at.
        let code = unsafe { call::fi_writemsg(near.ep, &message, flags) };
        assert_eq!(code, -(fi::FI_EINVAL as isize));
        assert!(violations().contains("several pieces, or with a promise of delivery"));
    }
}

#[test]
fn who_does_not_accept_the_modes_is_offered_nothing() {
    let _alone = alone();
    let mut offers = ptr::null_mut();
    // SAFETY: the provider's entry point, without hints and with a place for the answer.
    let code = unsafe {
        let provider = strict::fi_prov_ini();
        (*provider).getinfo.unwrap()(
            libfabric_sys::version(1, 17),
            ptr::null(),
            ptr::null(),
            0,
            ptr::null(),
            &raw mut offers,
        )
    };
    assert_eq!(code, -fi::FI_ENODATA);
    assert!(offers.is_null());
}
