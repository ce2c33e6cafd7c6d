//! The provider's objects, and the functions in their tables but for [those that transfer](crate::transfers). Each is a
//! structure of libfabric with a number behind it, under which the [`mod@crate::world`] knows it.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use libfabric_sys as fi;
use libfabric_sys::{
    fi_addr_t, fi_av_attr, fi_cq_attr, fi_info, fi_mr_attr, fi_ops, fi_ops_av, fi_ops_cm, fi_ops_cq,
    fi_ops_domain, fi_ops_ep, fi_ops_fabric, fi_ops_mr, fi_ops_rma, fid, fid_av, fid_cq, fid_domain, fid_ep,
    fid_fabric, fid_mr,
};

use crate::transfers::{cq_read, cq_readerr, cq_strerror, read, writemsg};
use crate::world::{Binding, Endpoint, Memory, world};

/// An object of the library with our number behind it.
#[repr(C)]
struct Numbered<T> {
    object: T,
    number: usize,
    /// Number of the domain it was opened from.
    domain: usize,
}

/// An address of this provider: a word that shows what it is, and the number of an endpoint.
const ADDRESS_BYTES: usize = 16;
const ADDRESS_WORD: &[u8; 8] = b"strict\0\0";

struct Tables {
    common: fi_ops,
    fabric: fi_ops_fabric,
    domain: fi_ops_domain,
    mr: fi_ops_mr,
    av: fi_ops_av,
    cq: fi_ops_cq,
    ep: fi_ops_ep,
    cm: fi_ops_cm,
    rma: fi_ops_rma,
}

static TABLES: Tables = Tables {
    common: fi_ops { close: Some(close), bind: Some(bind), control: Some(control), ..fi_ops::EMPTY },
    fabric: fi_ops_fabric { domain: Some(domain), trywait: Some(trywait), ..fi_ops_fabric::EMPTY },
    domain: fi_ops_domain {
        av_open: Some(av_open),
        cq_open: Some(cq_open),
        endpoint: Some(endpoint),
        ..fi_ops_domain::EMPTY
    },
    mr: fi_ops_mr { regattr: Some(regattr), ..fi_ops_mr::EMPTY },
    av: fi_ops_av { insert: Some(insert), remove: Some(remove), ..fi_ops_av::EMPTY },
    cq: fi_ops_cq {
        read: Some(cq_read),
        readerr: Some(cq_readerr),
        strerror: Some(cq_strerror),
        ..fi_ops_cq::EMPTY
    },
    ep: fi_ops_ep::EMPTY,
    cm: fi_ops_cm { getname: Some(getname), ..fi_ops_cm::EMPTY },
    rma: fi_ops_rma { read: Some(read), writemsg: Some(writemsg), ..fi_ops_rma::EMPTY },
};

/// The tables are never written, though C's declaration is not const.
fn table<T>(table: &'static T) -> *mut T {
    ptr::from_ref(table).cast_mut()
}

fn head(fclass: usize) -> fid {
    fid { fclass, context: ptr::null_mut(), ops: table(&TABLES.common) }
}

/// Moves an object to the heap, where [`close`] frees it.
fn publish<T>(object: T, number: usize, domain: usize) -> *mut T {
    Box::into_raw(Box::new(Numbered { object, number, domain })).cast()
}

/// Our number of an object.
pub(crate) unsafe fn number<T>(object: *const T) -> usize {
    // SAFETY: every object of this provider was made by `publish`, and is not closed yet.
    unsafe { (*object.cast::<Numbered<T>>()).number }
}

pub(crate) unsafe extern "C" fn fabric(
    _attr: *mut fi::fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    _context: *mut c_void,
) -> c_int {
    let object = fid_fabric {
        fid: head(fi::FI_CLASS_FABRIC),
        ops: table(&TABLES.fabric),
        api_version: libfabric_sys::version(1, 17),
    };
    // SAFETY: the caller gives a place for the answer.
    unsafe { *fabric = publish(object, 0, 0) };
    0
}

unsafe extern "C" fn trywait(_fabric: *mut fid_fabric, _fids: *mut *mut fid, _count: c_int) -> c_int {
    world().asked += 1;
    -fi::FI_ENOSYS
}

unsafe extern "C" fn domain(
    _fabric: *mut fid_fabric,
    info: *mut fi_info,
    domain: *mut *mut fid_domain,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: an offer that is named is one of ours, whose name is a text.
    let is_second = unsafe {
        let attr = info.as_ref().and_then(|info| info.domain_attr.as_ref());
        attr.is_some_and(|attr| CStr::from_ptr(attr.name) == c"strict1")
    };
    let mut world = world();
    if world.is_dead && is_second {
        return -fi::FI_EIO;
    }
    let number = world.new_id();
    world.second.extend(is_second.then_some(number));
    let object =
        fid_domain { fid: head(fi::FI_CLASS_DOMAIN), ops: table(&TABLES.domain), mr: table(&TABLES.mr) };
    // SAFETY: the caller gives a place for the answer.
    unsafe { *domain = publish(object, number, number) };
    0
}

unsafe extern "C" fn av_open(
    domain: *mut fid_domain,
    _attr: *mut fi_av_attr,
    av: *mut *mut fid_av,
    _context: *mut c_void,
) -> c_int {
    let mut world = world();
    let id = world.new_id();
    world.vectors.insert(id, Vec::new());
    // SAFETY: the domain is open; the caller gives a place for the answer.
    unsafe {
        *av = publish(fid_av { fid: head(fi::FI_CLASS_AV), ops: table(&TABLES.av) }, id, number(domain))
    };
    0
}

unsafe extern "C" fn cq_open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: the caller passes valid attributes.
    let attr = unsafe { &*attr };
    if attr.wait_obj != fi::FI_WAIT_NONE && !world().is_mute {
        return -fi::FI_ENOSYS;
    }
    if attr.format != fi::FI_CQ_FORMAT_DATA {
        return -world().violation("a queue of another format than DATA");
    }
    let mut world = world();
    let id = world.new_id();
    world.queues.insert(id, std::collections::VecDeque::new());
    // SAFETY: the domain is open; the caller gives a place for the answer.
    unsafe {
        *cq = publish(fid_cq { fid: head(fi::FI_CLASS_CQ), ops: table(&TABLES.cq) }, id, number(domain))
    };
    0
}

unsafe extern "C" fn endpoint(
    domain: *mut fid_domain,
    _info: *mut fi_info,
    ep: *mut *mut fid_ep,
    _context: *mut c_void,
) -> c_int {
    // SAFETY: the domain is open.
    let of = unsafe { number(domain) };
    let id = {
        let mut world = world();
        if world.is_shut && world.second.contains(&of) {
            return -fi::FI_EIO;
        }
        world.new_id()
    };
    let object = fid_ep {
        fid: head(fi::FI_CLASS_EP),
        ops: table(&TABLES.ep),
        cm: table(&TABLES.cm),
        msg: ptr::null_mut(),
        rma: table(&TABLES.rma),
        tagged: ptr::null_mut(),
        atomic: ptr::null_mut(),
        collective: ptr::null_mut(),
    };
    world().endpoints.insert(id, Endpoint::new(of));
    // SAFETY: the caller gives a place for the answer.
    unsafe { *ep = publish(object, id, of) };
    0
}

unsafe extern "C" fn regattr(
    domain: *mut fid,
    attr: *const fi_mr_attr,
    _flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: the domain is open, the attributes and their one range are valid.
    let (domain, attr, range) =
        unsafe { (number(domain.cast::<fid_domain>()), &*attr, (*attr).mr_iov.as_ref()) };
    let mut world = world();
    let Some(range) = range.filter(|_| attr.iov_count == 1) else {
        return -world.violation("a registration of other than one range");
    };
    if world.memory_max > 0 && range.iov_len > world.memory_max {
        return -fi::FI_ENOMEM;
    }
    let id = world.new_id();
    let key = world.new_key(domain, id);
    let memory = Memory {
        domain,
        start: range.iov_base as usize,
        length: range.iov_len,
        access: attr.access,
        key,
        binding: if world.is_bound { Binding::Open } else { Binding::Any },
    };
    world.memories.insert(id, memory);
    let object = fid_mr { fid: head(fi::FI_CLASS_MR), mem_desc: id as *mut c_void, key };
    // SAFETY: the caller gives a place for the answer.
    unsafe { *mr = publish(object, id, domain) };
    0
}

unsafe extern "C" fn close(object: *mut fid) -> c_int {
    // SAFETY: the object was made by `publish` as the type that its class says, and is closed once.
    unsafe {
        match (*object).fclass {
            fi::FI_CLASS_FABRIC => drop(Box::from_raw(object.cast::<Numbered<fid_fabric>>())),
            fi::FI_CLASS_DOMAIN => {
                let number = number(object.cast::<fid_domain>());
                let mut world = world();
                if world.endpoints.values().any(|endpoint| endpoint.domain == number)
                    || world.memories.values().any(|memory| memory.domain == number)
                {
                    world.violation("a domain is closed before what was opened from it");
                    return -fi::FI_EBUSY;
                }
                drop(Box::from_raw(object.cast::<Numbered<fid_domain>>()));
            }
            fi::FI_CLASS_AV => {
                world().vectors.remove(&number(object.cast::<fid_av>()));
                drop(Box::from_raw(object.cast::<Numbered<fid_av>>()));
            }
            fi::FI_CLASS_CQ => {
                world().queues.remove(&number(object.cast::<fid_cq>()));
                drop(Box::from_raw(object.cast::<Numbered<fid_cq>>()));
            }
            fi::FI_CLASS_EP => {
                let number = number(object.cast::<fid_ep>());
                let mut world = world();
                if world.memories.values().any(|memory| memory.binding.is_to(number)) {
                    world.violation("an endpoint is closed before the memory that is bound to it");
                    return -fi::FI_EBUSY;
                }
                if world.is_stuck {
                    return -fi::FI_EBUSY;
                }
                world.endpoints.remove(&number);
                drop(Box::from_raw(object.cast::<Numbered<fid_ep>>()));
            }
            fi::FI_CLASS_MR => {
                if !world().withdraw(number(object.cast::<fid_mr>())) {
                    return -fi::FI_EBUSY;
                }
                drop(Box::from_raw(object.cast::<Numbered<fid_mr>>()));
            }
            _ => return -fi::FI_EINVAL,
        }
    }
    0
}

unsafe extern "C" fn bind(object: *mut fid, to: *mut fid, _flags: u64) -> c_int {
    // SAFETY: both objects are open and of this provider.
    let (class, to_class) = unsafe { ((*object).fclass, (*to).fclass) };
    if (class, to_class) == (fi::FI_CLASS_MR, fi::FI_CLASS_EP) {
        // SAFETY: the classes say the types.
        let (memory, endpoint) = unsafe { (number(object.cast::<fid_mr>()), number(to.cast::<fid_ep>())) };
        let mut world = world();
        let found = world.memories.get_mut(&memory).filter(|memory| memory.binding == Binding::Open);
        let Some(found) = found else { return -world.violation("memory is bound that is bound already") };
        found.binding = Binding::Bound { endpoint, is_enabled: false };
        return 0;
    }
    if class != fi::FI_CLASS_EP {
        return -fi::FI_EINVAL;
    }
    // SAFETY: as above; all numbered objects begin with their `fid`, and their numbers are read by their own type.
    let id = unsafe { number(object.cast::<fid_ep>()) };
    let mut world = world();
    let Some(endpoint) = world.endpoints.get_mut(&id) else { return -fi::FI_EINVAL };
    match to_class {
        // SAFETY: the class says the type.
        fi::FI_CLASS_AV => endpoint.av = unsafe { number(to.cast::<fid_av>()) },
        // SAFETY: the class says the type.
        fi::FI_CLASS_CQ => endpoint.cq = unsafe { number(to.cast::<fid_cq>()) },
        _ => return -fi::FI_EINVAL,
    }
    0
}

unsafe extern "C" fn control(object: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the object is open.
    let class = unsafe { (*object).fclass };
    if command == fi::FI_GETWAIT && class == fi::FI_CLASS_CQ {
        // SAFETY: the caller gives a place for a descriptor. This one is never ready to be read.
        unsafe { *argument.cast::<c_int>() = libc::STDERR_FILENO };
        return 0;
    }
    if command == fi::FI_ENABLE && class == fi::FI_CLASS_MR {
        // SAFETY: the class says the type.
        let id = unsafe { number(object.cast::<fid_mr>()) };
        let mut world = world();
        return match world.memories.get_mut(&id).map(|memory| &mut memory.binding) {
            Some(Binding::Bound { is_enabled, .. }) => {
                *is_enabled = true;
                0
            }
            _ => -world.violation("memory is enabled before it is bound"),
        };
    }
    if command != fi::FI_ENABLE || class != fi::FI_CLASS_EP {
        return -fi::FI_ENOSYS;
    }
    // SAFETY: the class says the type.
    let id = unsafe { number(object.cast::<fid_ep>()) };
    let mut world = world();
    let is_bound = world.endpoints.get(&id).is_some_and(|endpoint| endpoint.av != 0 && endpoint.cq != 0);
    if is_bound { 0 } else { -world.violation("an endpoint is enabled before it is bound") }
}

unsafe extern "C" fn getname(object: *mut fid, address: *mut c_void, length: *mut usize) -> c_int {
    // SAFETY: the endpoint is open; the caller gives `length` bytes.
    unsafe {
        let id = number(object.cast::<fid_ep>()) as u64;
        let room = std::mem::replace(&mut *length, ADDRESS_BYTES);
        if room < ADDRESS_BYTES {
            return -fi::FI_ETOOSMALL;
        }
        ptr::copy_nonoverlapping(ADDRESS_WORD.as_ptr(), address.cast(), 8);
        ptr::copy_nonoverlapping(id.to_le_bytes().as_ptr(), address.cast::<u8>().add(8), 8);
    }
    0
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    address: *const c_void,
    count: usize,
    slot: *mut fi_addr_t,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    let mut bytes = [0_u8; ADDRESS_BYTES];
    // SAFETY: the caller passes `count` addresses, of which one is taken, and a place for the answer.
    let id = unsafe {
        ptr::copy_nonoverlapping(address.cast(), bytes.as_mut_ptr(), ADDRESS_BYTES);
        number(av)
    };
    let mut world = world();
    if count != 1 || bytes[..8] != *ADDRESS_WORD {
        return -world.violation("an address that is not one of this provider");
    }
    let target = u64::from_le_bytes([
        bytes[8], bytes[9], bytes[10], bytes[11], bytes[12], bytes[13], bytes[14], bytes[15],
    ]);
    let Some(slots) = world.vectors.get_mut(&id) else { return -fi::FI_EINVAL };
    slots.push(usize::try_from(target).ok());
    // SAFETY: as above.
    unsafe { *slot = (slots.len() - 1) as u64 };
    1
}

unsafe extern "C" fn remove(av: *mut fid_av, slot: *mut fi_addr_t, _count: usize, _flags: u64) -> c_int {
    // SAFETY: the vector is open; the caller passes one place.
    let (id, slot) = unsafe { (number(av), *slot) };
    let mut world = world();
    let place = world.vectors.get_mut(&id).and_then(|slots| slots.get_mut(usize::try_from(slot).ok()?));
    match place {
        Some(place) if place.is_some() => {
            *place = None;
            0
        }
        _ => -world.violation("an address is removed that is not there"),
    }
}
