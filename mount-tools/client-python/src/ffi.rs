//! Memory that goes to and comes from Python as buffers.
//!
//! Layouts and rules follow the C interface of Python (buffer protocol).

use std::ffi::c_int;
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
pub(crate) struct Buffer {
    // Boxed: its exporter may keep the address.
    view: Box<ffi::Py_buffer>,
    /// Released with the interpreter's lock held.
    _not_send: PhantomData<*mut ()>,
}

impl Buffer {
    /// Bytes to be read.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::get(object, ffi::PyBUF_SIMPLE)
    }

    /// Bytes to be written.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::get(object, ffi::PyBUF_WRITABLE)
    }

    /// Whether an object has any bytes to show as a buffer.
    pub(crate) fn is_one(object: &Bound<'_, PyAny>) -> bool {
        // SAFETY: the object lives, and the interpreter's lock is held.
        unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
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

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was filled by PyObject_GetBuffer, and is released once, on the thread that holds the interpreter's lock:
        // the value cannot leave it.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.view) };
    }
}
