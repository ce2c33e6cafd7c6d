//! Memory of the cache that a Python program registers with a device.

use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::prelude::*;
use tidefs_client::Registration;

/// What the program gave to register and unregister with.
pub(crate) struct Hooks {
    pub(crate) register: Py<PyAny>,
    pub(crate) unregister: Option<Py<PyAny>>,
}

/// What `register` returned for one segment. Dropped right before the segment is unmapped.
struct Registered {
    hooks: Arc<Hooks>,
    value: Py<PyAny>,
}

impl Hooks {
    /// Called on whatever thread maps a segment, which holds no lock of the interpreter.
    pub(crate) fn register(self: &Arc<Self>, start: NonNull<u8>, length: usize) -> Option<Registration> {
        // The interpreter may be ending, and then registers nothing.
        Python::try_attach(|py| match self.register.call1(py, (start.as_ptr().addr(), length)) {
            Ok(value) if value.is_none(py) => None,
            Ok(value) => Some(Box::new(Registered { hooks: Arc::clone(self), value }) as Registration),
            Err(error) => {
                error.write_unraisable(py, Some(self.register.bind(py)));
                None
            }
        })
        .flatten()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let Some(unregister) = &self.hooks.unregister else { return };
        // Without an interpreter the process is ending, and its mappings with it.
        let _ = Python::try_attach(|py| {
            if let Err(error) = unregister.call1(py, (self.value.clone_ref(py),)) {
                error.write_unraisable(py, Some(unregister.bind(py)));
            }
        });
    }
}
