//! Bytes of objects.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi as python;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::apart::drop_apart;
use crate::dlpack;
use crate::ffi::{self, Shown};

/// What Python may hold of one view, on any thread.
struct Held(Option<tidefs_client::View>);

impl Drop for Held {
    fn drop(&mut self) {
        let Some(view) = self.0.take() else { return };
        // Most references wait and go back together. Only the one that sends them is worth letting others run for.
        if !view.asks_when_dropped() {
            // Nor does this one ask, though another thread may have let go of many since.
            return view.drop_later();
        }
        drop_apart(Some(view));
    }
}

/// The bytes of an object: a buffer that is only read. They do not change and do not leave the cache while the view, or
/// anything made of it, is in use. As a context manager it is released at the end of the block.
#[pyclass(frozen, module = "tidefs")]
pub(crate) struct View {
    held: Mutex<Option<Arc<Held>>>,
    length: usize,
    version: u64,
    is_mapped: bool,
    /// An array was made by address: it keeps this object, and so the bytes have to stay as long.
    was_shown: AtomicBool,
    released: AtomicBool,
}

impl View {
    pub(crate) fn new(view: tidefs_client::View) -> Self {
        Self {
            length: view.len(),
            version: view.version(),
            is_mapped: view.is_mapped(),
            held: Mutex::new(Some(Arc::new(Held(Some(view))))),
            was_shown: AtomicBool::new(false),
            released: AtomicBool::new(false),
        }
    }

    fn held(&self) -> PyResult<Arc<Held>> {
        let held = self.held.lock().clone().filter(|_| !self.released.load(Ordering::Relaxed));
        held.ok_or_else(|| PyValueError::new_err("the view was released"))
    }

    fn shown(&self) -> PyResult<Shown> {
        let held = self.held()?;
        let (start, length) = match &held.0 {
            Some(view) => (view.as_ptr().cast_mut(), view.len()),
            None => (std::ptr::null_mut(), 0),
        };
        Ok(Shown { start, length, is_readonly: true, keeper: Box::new(held) })
    }
}

#[pymethods]
impl View {
    /// Which version of the object it is; 0 when only its file knows.
    #[getter]
    fn version(&self) -> u64 {
        self.version
    }

    /// Whether these are the bytes of the cache themselves, not a copy.
    #[getter]
    fn is_mapped(&self) -> bool {
        self.is_mapped
    }

    /// Whether a device may read them where they are.
    #[getter]
    fn is_registered(&self) -> PyResult<bool> {
        Ok(self.held()?.0.as_ref().is_some_and(tidefs_client::View::is_registered))
    }

    /// Whether release() was called.
    #[getter]
    fn released(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    /// Lets go of the bytes as soon as nothing that was made of the view is in use.
    fn release(&self) {
        self.released.store(true, Ordering::Relaxed);
        if !self.was_shown.load(Ordering::Relaxed) {
            let held = self.held.lock().take();
            drop(held);
        }
    }

    fn __len__(&self) -> usize {
        self.length
    }

    fn __repr__(&self) -> String {
        let state = match (self.released(), self.is_mapped) {
            (true, _) => "released",
            (false, true) => "mapped",
            (false, false) => "copied",
        };
        format!("<tidefs.View of {} bytes, version {}, {state}>", self.length, self.version)
    }

    /// Itself, for a `with` block.
    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// Releases it at the end of a `with` block.
    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.release();
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut python::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let shown = slf.get().shown()?;
        // SAFETY: the interpreter asks for its buffer to be filled.
        unsafe { ffi::fill_buffer(view, flags, slf.into_any(), shown) }
    }

    unsafe fn __releasebuffer__(&self, view: *mut python::Py_buffer) {
        // SAFETY: the interpreter gives back what `__getbuffer__` filled.
        unsafe { ffi::release_buffer(view) };
    }

    /// What numpy makes an array of, without a copy.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let shown = self.shown()?;
        // Who reads this keeps the view, and says nothing when it lets go of it.
        self.was_shown.store(true, Ordering::Relaxed);
        let facts = PyDict::new(py);
        facts.set_item("version", 3)?;
        facts.set_item("typestr", "|u1")?;
        facts.set_item("shape", (shown.length,))?;
        facts.set_item("data", (shown.start.addr(), true))?;
        Ok(facts)
    }

    /// A tensor of bytes, without a copy, for who understands DLPack 1.0: what is older cannot be told that it may only read.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        check_wishes(stream.as_ref(), dl_device, copy)?;
        if max_version.is_none_or(|(major, _)| major < 1) {
            return Err(PyBufferError::new_err(
                "the bytes may only be read, which DLPack says from version 1.0 on; use torch.frombuffer or memoryview",
            ));
        }
        dlpack::capsule(py, true, self.shown()?)
    }

    /// The memory of the host.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }
}

/// Refuses what a consumer of DLPack wants and does not get here.
pub(crate) fn check_wishes(
    stream: Option<&Bound<'_, PyAny>>,
    device: Option<(i32, i32)>,
    copy: Option<bool>,
) -> PyResult<()> {
    let refused = if stream.is_some() {
        "memory of the host has no stream"
    } else if device.is_some_and(|device| device != (dlpack::CPU, 0)) {
        "the bytes are in memory of the host"
    } else if copy == Some(true) {
        "the bytes are shown where they are; copy the tensor instead"
    } else {
        return Ok(());
    };
    Err(PyBufferError::new_err(refused))
}
