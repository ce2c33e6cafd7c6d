//! Memory of the cache that a device may read.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use tidefs_client::Registration;

use crate::outcome::{Failure, TIDEFS_OK, guard};
use crate::{TidefsCache, ffi};

/// Registers `length` bytes from `start` on with a device. Returns what tidefs_unregister is to be called with; NULL leaves
/// the memory unregistered.
pub type TidefsRegister =
    Option<unsafe extern "C" fn(context: *mut c_void, start: *mut c_void, length: usize) -> *mut c_void>;

/// Ends a registration.
pub type TidefsUnregister = Option<unsafe extern "C" fn(context: *mut c_void, registration: *mut c_void)>;

/// The caller's functions and what they want to be called with.
#[derive(Clone, Copy)]
struct Hooks {
    register: unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    unregister: unsafe extern "C" fn(*mut c_void, *mut c_void),
    context: *mut c_void,
}

// SAFETY: tidefs_register_with demands functions and a context that any thread may use.
unsafe impl Send for Hooks {}
// SAFETY: as above.
unsafe impl Sync for Hooks {}

struct Registered {
    hooks: Hooks,
    registration: NonNull<c_void>,
}

// SAFETY: what the caller's function returned goes to the caller's function alone, which any thread may call.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: tidefs_register_with demands that the function may be called until all is unregistered; this is the one call
        // for this registration.
        unsafe { (self.hooks.unregister)(self.hooks.context, self.registration.as_ptr()) };
    }
}

impl Hooks {
    fn register(self, start: NonNull<u8>, length: usize) -> Option<Registration> {
        // SAFETY: tidefs_register_with demands that the function may be called; the memory is mapped until its registration
        // has ended.
        let registration = unsafe { (self.register)(self.context, start.as_ptr().cast(), length) };
        let registration = NonNull::new(registration)?;
        Some(Box::new(Registered { hooks: self, registration }))
    }
}

/// Calls `register_segment` for each segment of memory that is mapped, now and from now on: for cudaHostRegister,
/// ibv_reg_mr and the like. `unregister_segment` is called right before a segment is unmapped, which is when the last view
/// of it is released and the cache is closed, or the daemon has given the segment up.
///
/// While `register_segment` runs no other segment is mapped, and it must not use the cache. Where the cache is not fast
/// neither is ever called. A second call replaces the first for segments that are mapped later.
///
/// # Safety
/// `cache` is NULL or an open cache. Any thread may call the functions with `context` until the cache is closed and all its
/// views and writers ended. Neither function throws.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_register_with(
    cache: *const TidefsCache,
    register_segment: TidefsRegister,
    unregister_segment: TidefsUnregister,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, "cache is NULL")? };
        let register = register_segment.ok_or(Failure::Argument("register_segment is NULL"))?;
        let unregister = unregister_segment.ok_or(Failure::Argument("unregister_segment is NULL"))?;
        let hooks = Hooks { register, unregister, context };
        cache.0.register_with(move |start, length| hooks.register(start, length));
        Ok(TIDEFS_OK)
    })
}

/// Registers the memory of the cache with an NVIDIA GPU, so that copies to and from it pass by no buffer of the driver: as
/// tidefs_register_with does, with cuMemHostRegister, in the primary context of the device with this number and known to all
/// contexts of the process. Needs nothing of CUDA but the driver, which is looked for when this is called. What the driver
/// refuses stays as it was; tidefs_view_is_registered tells.
///
/// Fails with ENOSYS when there is no driver, or an old one, and with ENODEV when it does not give that device.
///
/// # Safety
/// `cache` is NULL or an open cache.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidefs_register_with_cuda(cache: *const TidefsCache, device: u32) -> c_int {
    guard(|| {
        // SAFETY: as the caller promises.
        let cache = unsafe { ffi::reference(cache, "cache is NULL")? };
        cache.0.register_with_cuda(device)?;
        Ok(TIDEFS_OK)
    })
}
