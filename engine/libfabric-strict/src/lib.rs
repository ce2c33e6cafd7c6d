//! A provider of libfabric for tests: the memory of one process is its network, and EFA's rules are its law.
//!
//! libfabric loads it from a folder named in `FI_PROVIDER_PATH`, as `libstrict-fi.so`. It offers two NICs with the
//! attributes of EFA's direct path, made smaller: four operations in flight, 64 KiB each. What it adds is malice:
//! operations complete in random order, the send queue says that it is full when it is not, and there is no descriptor
//! to wait on, or with [`strict_mute`] one that nobody may wait on. What it enforces:
//! - local memory lies inside the region whose descriptor is passed, and that region is not closed under it;
//! - a context is not used twice at once;
//! - remote memory is named by address and by a key that lives, with the right to do this;
//! - both ends have inserted each other's address;
//! - a write asks for no delivery guarantee, since the direct path has none.
//!
//! A broken rule is an error for the operation and a sentence in [`strict_violations`]. [`strict_silence`] makes an
//! endpoint swallow what is sent to it, as a host does whose cable was pulled; an endpoint that is closed lets
//! operations on it fail.
//!
//! Limit: one process. Threads: one lock around everything.

mod objects;
mod offer;
mod transfers;
mod world;

use std::ffi::c_char;
use std::time::{Duration, Instant};

use libfabric_sys::{Library, fi_provider};

use world::world;

struct Provider(std::cell::UnsafeCell<fi_provider>);

// SAFETY: the library alone uses the structure once it has the pointer, and serialises that itself.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(std::cell::UnsafeCell::new(fi_provider {
    version: libfabric_sys::version(117, 0),
    fi_version: libfabric_sys::version(1, 17),
    context: [std::ptr::null_mut(); 4],
    name: c"strict".as_ptr(),
    getinfo: Some(offer::getinfo),
    fabric: Some(objects::fabric),
    cleanup: Some(cleanup),
}));

unsafe extern "C" fn cleanup() {}

/// The entry point of a provider that is loaded from a file.
// SAFETY: the name is the one that libfabric looks up; nothing else of this process has it.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut fi_provider {
    let provider = PROVIDER.0.get();
    // libfabric 2.x takes no provider that was built for 1.x; what is used of it is the same in both.
    if let Ok(library) = Library::open() {
        // SAFETY: the library that calls this has no pointer to the structure yet, and calls it once.
        unsafe { (*provider).fi_version = library.version() };
    }
    provider
}

/// Writes the rules that were broken so far, one in a line, and forgets them. Returns the number of bytes written, at
/// most `length`.
///
/// # Safety
/// `text` has room for `length` bytes.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strict_violations(text: *mut c_char, length: usize) -> usize {
    let all = std::mem::take(&mut world().violations).join("\n");
    let count = all.len().min(length);
    // SAFETY: the caller keeps it for the target; the source has at least `count` bytes.
    unsafe { std::ptr::copy_nonoverlapping(all.as_ptr(), text.cast(), count) };
    count
}

/// Makes every endpoint that is open now swallow what is sent to it (`is_silent` not 0), or answer again.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_silence(is_silent: i32) {
    world().endpoints.values_mut().for_each(|endpoint| endpoint.is_silent = is_silent != 0);
}

/// Whether from now on (`is_fragile` not 0) a refused key breaks the way from its endpoint to the target: what follows is
/// cancelled until the endpoint is opened again, as on a queue pair of verbs.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_fragile(is_fragile: i32) {
    world().is_fragile = is_fragile != 0;
}

/// Whether what is opened from now on (`is_bound` not 0) registers memory with the endpoint (`FI_MR_ENDPOINT`): it is
/// reached through that alone, and withdrawn before that is closed.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_bound(is_bound: i32) {
    world().is_bound = is_bound != 0;
}

/// Whether memory that is registered from now on (`is_reusing` not 0) gets the lowest key that is free, so that keys of withdrawn
/// memory come again; else none comes twice.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_reuse(is_reusing: i32) {
    world().is_reusing = is_reusing != 0;
}

/// Whether endpoints refuse to be closed (`is_stuck` not 0).
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_stuck(is_stuck: i32) {
    world().is_stuck = is_stuck != 0;
}

/// Whether registered memory refuses to be closed (`is_held` not 0).
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_held(is_held: i32) {
    world().is_held = is_held != 0;
}

/// Whether queues that are opened from now on (`is_mute` not 0) have a descriptor, and say of it that it cannot be
/// waited for.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_mute(is_mute: i32) {
    world().is_mute = is_mute != 0;
}

/// How often it was asked since the last call whether such a descriptor may be waited for.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_asked() -> usize {
    std::mem::take(&mut world().asked)
}

/// Operations that endpoints say they hold, from now on; 0 for as many as they do.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_announce(operations: usize) {
    world().announced = (operations > 0).then_some(operations);
}

/// How many operations were refused for want of room since the last call.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_refusals() -> usize {
    std::mem::take(&mut world().refusals)
}

/// Halts whoever reads a queue for so many milliseconds from now on, as a machine does that is frozen for a while.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_halt(milliseconds: u64) {
    world().halted_until = Some(Instant::now() + Duration::from_millis(milliseconds));
}

/// Whether the second NIC cannot be opened from now on (`is_dead` not 0).
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_dead(is_dead: i32) {
    world().is_dead = is_dead != 0;
}

/// Whether endpoints of the second NIC cannot be opened from now on (`is_shut` not 0); those that are open stay so.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_shut(is_shut: i32) {
    world().is_shut = is_shut != 0;
}

/// Whether operations that the second NIC is given end with an error from now on (`is_failing` not 0), each alone.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_failing(is_failing: i32) {
    world().is_failing = is_failing != 0;
}

/// How many operations ended so since the last call.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_failures() -> usize {
    std::mem::take(&mut world().failures)
}

/// Longest memory that is registered from now on, as on a NIC whose table of pages is full; 0 for any.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_memory_max(bytes: usize) {
    world().memory_max = bytes;
}

/// Addresses in all vectors.
// SAFETY: the name is unique to this library.
#[unsafe(no_mangle)]
pub extern "C" fn strict_addresses() -> usize {
    world().vectors.values().flatten().flatten().count()
}
