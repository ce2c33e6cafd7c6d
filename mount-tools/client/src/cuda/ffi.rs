//! The calls of the CUDA driver, which cudarc finds at run time.
//!
//! cudarc panics where the library or a function is missing, so a [`Driver`] is there only where all were seen.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUresult};

use super::CudaError;

/// What is called below, by the names that the library exports.
const NEEDED: [&str; 10] = [
    "cuInit",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuGetErrorName",
];

/// The loaded driver, with all that is needed of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Driver(());

/// The primary context of a device, retained.
#[derive(Debug)]
pub(super) struct Context {
    driver: Driver,
    number: u32,
    device: CUdevice,
    context: CUcontext,
    /// Whether memory can be registered that the process may only read.
    takes_read_only: bool,
}

// SAFETY: a context is a handle that any thread may make current (CUDA Driver API, Context Management).
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks what it changes.
unsafe impl Sync for Context {}

/// A range that the driver has pinned.
#[derive(Debug)]
pub(super) struct Pinned(NonNull<u8>);

// SAFETY: a number to the driver, which takes calls from any thread; nothing is read or written through it.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Driver {
    pub(super) fn load() -> Result<Self, CudaError> {
        // SAFETY: loads libraries by the names of the driver, whose initialisers need nothing of us.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        // SAFETY: as above; it was just there, so this finds it.
        let library = unsafe { sys::culib() };
        for symbol in NEEDED {
            // SAFETY: the function is looked for and not called.
            let found = unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) };
            found.map_err(|_| CudaError::NoSymbol { symbol })?;
        }
        Ok(Self(()))
    }

    pub(super) fn primary_context(self, number: u32) -> Result<Context, CudaError> {
        let check = |call, result| self.check(call, number, result);
        // SAFETY: no flags are defined; more than one call is fine.
        check("cuInit", unsafe { sys::cuInit(0) })?;
        let ordinal = c_int::try_from(number).unwrap_or(c_int::MAX);
        let mut device: CUdevice = 0;
        // SAFETY: writes one handle.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal) })?;
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
        let mut takes_read_only: c_int = 0;
        // SAFETY: writes one number. A driver that does not know the attribute says so and writes nothing.
        let asked = unsafe { sys::cuDeviceGetAttribute(&mut takes_read_only, attribute, device) };
        let takes_read_only = asked == CUresult::CUDA_SUCCESS && takes_read_only != 0;
        let mut context: CUcontext = ptr::null_mut();
        // SAFETY: writes one handle, which is released when the value that has it is dropped.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        Ok(Context { driver: self, number, device, context, takes_read_only })
    }

    fn check(self, call: &'static str, device: u32, result: CUresult) -> Result<(), CudaError> {
        if result == CUresult::CUDA_SUCCESS {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: writes one pointer.
        let named = unsafe { sys::cuGetErrorName(result, &mut name) };
        let reason = if named == CUresult::CUDA_SUCCESS && !name.is_null() {
            // SAFETY: the driver's names end with a NUL and live as long as it is loaded, which is for ever.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            format!("error {}", result as u32)
        };
        Err(CudaError::Refused { call, device, reason })
    }
}

impl Context {
    /// Pins a mapped range and tells every context of the process of it. It stays mapped until [`Self::unregister`].
    ///
    /// # Source
    /// `cuMemHostRegister`: memory that the process may only read needs `CU_MEMHOSTREGISTER_READ_ONLY`, where the device
    /// takes it.
    pub(super) fn register(
        &self,
        start: NonNull<u8>,
        length: usize,
        is_writable: bool,
    ) -> Result<Pinned, CudaError> {
        let read_only =
            if is_writable || !self.takes_read_only { 0 } else { sys::CU_MEMHOSTREGISTER_READ_ONLY };
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP | read_only;
        self.while_current(|| {
            // SAFETY: the range is mapped, and stays so until `unregister`: who registers keeps it.
            let result = unsafe { sys::cuMemHostRegister_v2(start.as_ptr().cast::<c_void>(), length, flags) };
            ("cuMemHostRegister", result)
        })?;
        Ok(Pinned(start))
    }

    /// Ends a registration that [`Self::register`] made.
    pub(super) fn unregister(&self, pinned: &Pinned) -> Result<(), CudaError> {
        self.while_current(|| {
            // SAFETY: the start of a registered range, which is unmapped only after this; the driver waits for what still
            // uses it.
            let result = unsafe { sys::cuMemHostUnregister(pinned.0.as_ptr().cast::<c_void>()) };
            ("cuMemHostUnregister", result)
        })
    }

    /// Makes a call with the context current on this thread, and what was current before again after it.
    fn while_current(&self, call: impl FnOnce() -> (&'static str, CUresult)) -> Result<(), CudaError> {
        let check = |call, result| self.driver.check(call, self.number, result);
        // SAFETY: the context is retained while `self` lives.
        check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.context) })?;
        let (name, result) = call();
        let mut popped: CUcontext = ptr::null_mut();
        // SAFETY: takes off what was pushed above, and writes one handle.
        let restored = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        check(name, result)?;
        check("cuCtxPopCurrent", restored)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, in `primary_context`. That it fails at the end of the process changes nothing.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}
