//! What Python gives, as the library wants it, and its errors as Python's.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyString};
use tidefs_client::Error;

/// A key: text, or bytes, which stay where they are.
#[derive(Debug)]
pub(crate) enum Key {
    Text(PyBackedStr),
    Bytes(PyBackedBytes),
    /// A text that stands for bytes that are no UTF-8, as `os.fsdecode` makes them.
    Encoded(Vec<u8>),
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
            Self::Encoded(bytes) => bytes,
        }
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Key {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.cast::<PyString>() {
            let text = text.to_owned();
            return match PyBackedStr::try_from(text.clone()) {
                Ok(text) => Ok(Self::Text(text)),
                Err(_) => Ok(Self::Encoded(text.extract::<OsString>()?.into_vec())),
            };
        }
        match object.cast::<PyBytes>() {
            Ok(bytes) => Ok(Self::Bytes(PyBackedBytes::from(bytes.to_owned()))),
            Err(_) => Err(PyTypeError::new_err("a key is a str or bytes")),
        }
    }
}

/// The error of the library as one of Python: `OSError` of its number, or `ValueError` for what makes no sense.
pub(crate) fn raise(error: Error) -> PyErr {
    match error {
        Error::BadKey { .. } | Error::TooLong { .. } | Error::Ready { .. } => {
            PyValueError::new_err(error.to_string())
        }
        Error::Io { .. } | Error::BadReply | Error::Cuda(_) => {
            PyOSError::new_err((error.errno(), error.to_string()))
        }
    }
}
