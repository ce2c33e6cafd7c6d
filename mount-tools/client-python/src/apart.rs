//! Ending what may wait for the daemon, or for another thread of the program.

use pyo3::prelude::*;

/// Drops a value with the interpreter's lock released where this thread has it.
pub(crate) fn drop_apart<T: Send>(value: Option<T>) {
    let mut value = value;
    if value.is_some() && Python::try_attach(|py| py.detach(|| drop(value.take()))).is_none() {
        drop(value);
    }
}
