//! What Python gives as bytes.

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::dlpack::Taken;
use crate::ffi::Buffer;

/// The bytes of an object of Python that is a buffer, or a tensor in memory of the host, as long as this value lives.
pub(crate) enum Bytes {
    Buffer(Buffer),
    Tensor(Taken),
}

impl Bytes {
    /// Bytes to be read.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if is_tensor(object)? {
            Taken::of(object).map(Self::Tensor)
        } else {
            Buffer::of(object).map(Self::Buffer)
        }
    }

    /// Bytes to be written.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if !is_tensor(object)? {
            return Buffer::writable(object).map(Self::Buffer);
        }
        let mut taken = Taken::of(object)?;
        if taken.as_mut_slice().is_none() {
            return Err(PyBufferError::new_err("the tensor may only be read"));
        }
        Ok(Self::Tensor(taken))
    }

    /// The bytes. Whoever else may write them while they are read is told not to, as everywhere in Python.
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer.as_slice(),
            Self::Tensor(tensor) => tensor.as_slice(),
        }
    }

    /// The bytes, to be written; none of what may only be read.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Self::Buffer(buffer) => buffer.as_mut_slice(),
            Self::Tensor(tensor) => tensor.as_mut_slice().unwrap_or_default(),
        }
    }
}

/// What is a buffer is taken as one: that costs no call of Python.
fn is_tensor(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(!Buffer::is_one(object) && object.hasattr("__dlpack__")?)
}
