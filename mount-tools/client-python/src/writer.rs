//! Objects on their way into the cache.

use std::ffi::c_int;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi as python;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::apart::drop_apart;
use crate::arguments::raise;
use crate::bytes::Bytes;
use crate::dlpack;
use crate::ffi::{self, Shown};
use crate::view::check_wishes;

/// A writer, and what was made of it. Its lock is taken with the interpreter's held, so nobody waits for that while holding it.
struct State {
    /// `None` once it is sealed or given up.
    writer: Option<tidefs_client::Writer>,
    /// Buffers and tensors through which somebody may write.
    exports: usize,
    /// It is to be given up when the last of those is gone.
    is_doomed: bool,
}

impl State {
    fn check(&self) -> PyResult<()> {
        if self.writer.is_none() || self.is_doomed {
            return Err(over());
        }
        if self.exports > 0 {
            return Err(PyBufferError::new_err(
                "an array or a buffer that was made of the writer is still in use; an object is not sealed while it may be written",
            ));
        }
        Ok(())
    }
}

/// What a writer and all that was made of it share.
struct Shared {
    state: Mutex<State>,
    /// The process that made it.
    process: u32,
}

impl Shared {
    /// Locks it.
    ///
    /// # Errors
    /// In a child of fork(2), where another thread of its parent had it locked, which writes for long: nobody unlocks it there.
    fn lock(&self) -> PyResult<MutexGuard<'_, State>> {
        let is_inherited = std::process::id() != self.process;
        let locked = if is_inherited { self.state.try_lock() } else { Some(self.state.lock()) };
        locked.ok_or_else(over)
    }
}

/// A buffer or a tensor that was made of a writer.
struct Export(Arc<Shared>);

impl Drop for Export {
    fn drop(&mut self) {
        let doomed = {
            let Ok(mut state) = self.0.lock() else { return };
            state.exports = state.exports.saturating_sub(1);
            if state.exports == 0 && state.is_doomed { state.writer.take() } else { None }
        };
        drop_apart(doomed);
    }
}

/// An object that nobody sees yet: a buffer to be written. It becomes visible, whole, when it is sealed. As a context manager
/// it is sealed at the end of the block, and given up after an exception.
///
/// What it holds at first means nothing: zeros, or bytes of an object that was there before.
#[pyclass(frozen, module = "tidefs")]
pub(crate) struct Writer {
    shared: Arc<Shared>,
    length: usize,
    is_mapped: bool,
}

impl Writer {
    pub(crate) fn new(writer: tidefs_client::Writer) -> Self {
        let (length, is_mapped) = (writer.len(), writer.is_mapped());
        let state = State { writer: Some(writer), exports: 0, is_doomed: false };
        let shared = Shared { state: Mutex::new(state), process: std::process::id() };
        Self { shared: Arc::new(shared), length, is_mapped }
    }

    /// Whether it may be sealed now.
    pub(crate) fn check(&self) -> PyResult<()> {
        self.shared.lock()?.check()
    }

    /// The writer itself, to be sealed.
    pub(crate) fn take(&self) -> PyResult<tidefs_client::Writer> {
        let mut state = self.shared.lock()?;
        state.check()?;
        state.writer.take().ok_or_else(over)
    }

    fn shown(&self) -> PyResult<Shown> {
        let mut state = self.shared.lock()?;
        if state.is_doomed {
            return Err(over());
        }
        let writer = state.writer.as_mut().ok_or_else(over)?;
        let (start, length) = (writer.as_mut_ptr(), writer.len());
        state.exports += 1;
        let keeper = Box::new(Export(Arc::clone(&self.shared)));
        Ok(Shown { start, length, is_readonly: false, keeper })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.abort();
    }
}

fn over() -> PyErr {
    PyValueError::new_err("the object was sealed or given up")
}

#[pymethods]
impl Writer {
    /// Whether these are bytes of the cache themselves, which sealing does not copy.
    #[getter]
    fn is_mapped(&self) -> bool {
        self.is_mapped
    }

    /// Whether it was sealed or given up.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.lock().map_or(true, |state| state.writer.is_none() || state.is_doomed)
    }

    /// Copies bytes to `offset`. Returns how many. ValueError when they do not fit, or would change what was made ready.
    #[pyo3(signature = (data, offset = 0))]
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: usize) -> PyResult<usize> {
        let bytes = Bytes::of(data)?;
        let source = bytes.as_slice();
        py.detach(|| {
            let mut state = self.shared.lock()?;
            if state.is_doomed {
                return Err(over());
            }
            let writer = state.writer.as_mut().ok_or_else(over)?;
            let (own, theirs) = (writer.as_ptr_range(), source.as_ptr_range());
            // Of a buffer of the writer itself: what is read from must not be what is written to.
            let overlaps = theirs.start < own.end && own.start < theirs.end;
            let copy = overlaps.then(|| source.to_vec());
            writer.write_at(offset, copy.as_deref().unwrap_or(source)).map_err(raise)?;
            Ok(source.len())
        })
    }

    /// Says that the bytes from `start` to `stop` are as they will stay, and shows them to who waits for them
    /// (Cache.wait_ready) before the object is sealed. From then on they are not written: write refuses it, and who writes by a
    /// buffer or a tensor is to see to it.
    fn ready(&self, py: Python<'_>, start: usize, stop: usize) -> PyResult<()> {
        py.detach(|| {
            let part = {
                let mut state = self.shared.lock()?;
                if state.is_doomed {
                    return Err(over());
                }
                state.writer.as_mut().ok_or_else(over)?.part(start..stop.max(start)).map_err(raise)?
            };
            // Without the lock: what the reply says may end registrations, which waits for the interpreter, and who has that
            // may wait for the lock.
            part.show().map_err(|error| if self.closed() { over() } else { raise(error) })
        })
    }

    /// Makes the object visible, with its first `length` bytes if that is given, in place of what stood under its key.
    #[pyo3(signature = (length = None))]
    fn seal(&self, py: Python<'_>, length: Option<usize>) -> PyResult<()> {
        if length.is_some_and(|length| length > self.length) {
            return Err(PyValueError::new_err(format!(
                "longer than the {} bytes that the object was created for",
                self.length
            )));
        }
        let writer = self.take()?;
        py.detach(|| writer.seal_first(length.unwrap_or(self.length))).map_err(raise)
    }

    /// Gives the object up, as soon as nothing that was made of the writer is in use.
    fn abort(&self) {
        let given_up = {
            let Ok(mut state) = self.shared.lock() else { return };
            state.is_doomed = true;
            if state.exports == 0 { state.writer.take() } else { None }
        };
        drop_apart(given_up);
    }

    fn __len__(&self) -> usize {
        self.length
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { "closed" } else { "open" };
        format!("<tidefs.Writer of {} bytes, {state}>", self.length)
    }

    /// Itself, for a `with` block.
    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// Seals the object at the end of a `with` block, or gives it up when that ends by an exception.
    #[pyo3(signature = (kind = None, *_exception))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _exception: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        if kind.is_some() {
            self.abort();
        } else if !self.closed() {
            self.seal(py, None)?;
        }
        Ok(())
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

    /// A tensor of bytes to be written, without a copy.
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
        dlpack::capsule(py, max_version.is_some_and(|(major, _)| major >= 1), self.shown()?)
    }

    /// The memory of the host.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }
}
