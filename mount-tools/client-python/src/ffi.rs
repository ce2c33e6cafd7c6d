//! Memory that goes to and comes from Python: buffers, and the tensors of DLPack.
//!
//! Layouts and rules follow the C interface of Python (buffer protocol, capsules) and `dlpack.h` 1.0.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Memory that somebody keeps, to be shown to Python.
pub(crate) struct Shown {
    pub(crate) start: *mut u8,
    pub(crate) length: usize,
    pub(crate) is_readonly: bool,
    /// Keeps the memory. It is dropped when Python lets go of it, on any thread.
    pub(crate) keeper: Box<dyn Send>,
}

/// Fills a buffer of Python with memory. What keeps it goes to [`release_buffer`].
///
/// # Safety
/// `view` is the buffer that the interpreter wants to be filled, for `owner`.
pub(crate) unsafe fn fill_buffer(
    view: *mut ffi::Py_buffer,
    flags: c_int,
    owner: Bound<'_, PyAny>,
    shown: Shown,
) -> PyResult<()> {
    let py = owner.py();
    let length = ffi::Py_ssize_t::try_from(shown.length)
        .map_err(|_| PyBufferError::new_err("longer than any buffer"))?;
    let is_readonly = c_int::from(shown.is_readonly);
    // SAFETY: the buffer is the interpreter's to be filled; the memory lives as long as its keeper, which the buffer gets.
    let outcome = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), shown.start.cast(), length, is_readonly, flags)
    };
    if outcome != 0 {
        return Err(PyErr::fetch(py));
    }
    let keeper = Box::into_raw(Box::new(shown.keeper));
    // SAFETY: it was filled; `internal` is left to who filled it.
    unsafe { (*view).internal = keeper.cast() };
    Ok(())
}

/// Drops what keeps the memory of a buffer.
///
/// # Safety
/// `view` was filled by [`fill_buffer`] and the interpreter is about to forget it.
pub(crate) unsafe fn release_buffer(view: *mut ffi::Py_buffer) {
    // SAFETY: as the caller promises, this is the keeper that `fill_buffer` left, taken out once.
    let keeper = unsafe { ptr::replace(&raw mut (*view).internal, ptr::null_mut()) };
    if !keeper.is_null() {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(keeper.cast::<Box<dyn Send>>()) });
    }
}

/// The bytes of an object of Python that is a buffer, as long as this value lives.
pub(crate) struct Bytes {
    // Boxed: its exporter may keep the address.
    view: Box<ffi::Py_buffer>,
    /// Released with the interpreter's lock held.
    _not_send: PhantomData<*mut ()>,
}

impl Bytes {
    /// Bytes to be read.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::get(object, ffi::PyBUF_SIMPLE)
    }

    /// Bytes to be written.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::get(object, ffi::PyBUF_WRITABLE)
    }

    fn get(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object lives, the buffer may be written, and the interpreter's lock is held.
        let outcome = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) };
        if outcome == 0 { Ok(Self { view, _not_send: PhantomData }) } else { Err(PyErr::fetch(object.py())) }
    }

    fn start(&self) -> NonNull<u8> {
        NonNull::new(self.view.buf.cast()).unwrap_or(NonNull::dangling())
    }

    fn length(&self) -> usize {
        usize::try_from(self.view.len).unwrap_or(0)
    }

    /// The bytes. Whoever else may write them while they are read is told not to, as everywhere in Python.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: a buffer without a shape is `len` contiguous bytes from `buf` on, and stays until it is released, which is
        // when `self` is dropped; programs are told not to change what they store while they store it.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.length()) }
    }

    /// The bytes, to be written.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.view.readonly != 0 {
            return &mut [];
        }
        // SAFETY: as above, and the buffer is writable; programs are told not to use it meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.length()) }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: it was filled by PyObject_GetBuffer, and is released once, on the thread that holds the interpreter's lock:
        // the value cannot leave it.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.view) };
    }
}

/// `DLTensor` of dlpack.h.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// What a tensor is made of, beside its header.
struct Context {
    shape: [i64; 1],
    strides: [i64; 1],
    _keeper: Box<dyn Send>,
}

/// `kDLCPU`.
pub(crate) const CPU: i32 = 1;
/// `kDLUInt`.
const UINT: u8 = 1;
/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;

const NAME: &CStr = c"dltensor";
const NAME_VERSIONED: &CStr = c"dltensor_versioned";

/// The header of a tensor of bytes, and what `context` is to be.
fn tensor(shown: Shown) -> (Tensor, *mut Context) {
    let length = i64::try_from(shown.length).unwrap_or(i64::MAX);
    let context = Box::new(Context { shape: [length], strides: [1], _keeper: shown.keeper });
    let context = Box::into_raw(context);
    // SAFETY: the context was just made, and its fields stay where they are until its deleter runs.
    let (shape, strides) =
        unsafe { ((&raw mut (*context).shape).cast(), (&raw mut (*context).strides).cast()) };
    let tensor = Tensor {
        data: shown.start.cast(),
        device_type: CPU,
        device_id: 0,
        ndim: 1,
        code: UINT,
        bits: 8,
        lanes: 1,
        shape,
        strides,
        byte_offset: 0,
    };
    (tensor, context)
}

unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: dlpack.h: called once, with the tensor that was handed out, from any thread; keepers may be dropped on any.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as above; the context was made by `tensor`.
    drop(unsafe { Box::from_raw(managed.context.cast::<Context>()) });
}

unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: as in `delete`.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: as in `delete`.
    drop(unsafe { Box::from_raw(managed.context.cast::<Context>()) });
}

/// Ends a capsule whose tensor nobody took: who takes it renames the capsule.
unsafe extern "C" fn end_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter gives the capsule that is about to end; a name that is not its own gives NULL or false.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) != 0 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, NAME_VERSIONED.as_ptr()) != 0 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, NAME_VERSIONED.as_ptr()).cast());
        }
    }
}

/// A capsule with a tensor of bytes: of DLPack 1.0 if the consumer understands that, which alone can say that it may only be
/// read.
pub(crate) fn capsule<'py>(py: Python<'py>, is_versioned: bool, shown: Shown) -> PyResult<Bound<'py, PyAny>> {
    let flags = if shown.is_readonly { READ_ONLY } else { 0 };
    let (tensor, context) = tensor(shown);
    let context = context.cast();
    let (pointer, name): (*mut c_void, &CStr) = if is_versioned {
        let deleter = Some(delete_versioned as unsafe extern "C" fn(*mut Versioned));
        let managed = Versioned { major: 1, minor: 0, context, deleter, flags, tensor };
        (Box::into_raw(Box::new(managed)).cast(), NAME_VERSIONED)
    } else {
        let deleter = Some(delete as unsafe extern "C" fn(*mut Managed));
        (Box::into_raw(Box::new(Managed { tensor, context, deleter })).cast(), NAME)
    };
    // SAFETY: the pointer is not NULL, the name lives for ever, and the destructor knows what the pointer is by the name.
    let capsule = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(end_capsule)) };
    if capsule.is_null() {
        // SAFETY: nobody else has the tensor.
        unsafe { if is_versioned { delete_versioned(pointer.cast()) } else { delete(pointer.cast()) } }
    }
    // SAFETY: a new reference, or NULL with an error set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}
