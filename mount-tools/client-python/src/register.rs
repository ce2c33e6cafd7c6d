//! Memory of the cache that a Python program registers with a device.
//!
//! What the program gave may lead back to the cache, as methods of an object do that owns it. The collector of garbage is shown
//! that (`Hooks::visit`), and finds out whether all of it is in use by nobody else.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use tidefs_client::Registration;

/// What the program gave to register and unregister with.
pub(crate) struct Hooks {
    register: Py<PyAny>,
    unregister: Option<Py<PyAny>>,
    /// What `register` returned for each segment, by its start. Held for a look at the map: the collector looks, too.
    values: Mutex<HashMap<usize, Py<PyAny>>>,
}

/// A segment that is registered. Dropped right before it is unmapped.
struct Registered {
    hooks: Arc<Hooks>,
    start: usize,
}

impl Hooks {
    pub(crate) fn new(register: Py<PyAny>, unregister: Option<Py<PyAny>>) -> Self {
        Self { register, unregister, values: Mutex::default() }
    }

    /// Called on whatever thread maps a segment, which holds no lock of the interpreter.
    pub(crate) fn register(self: &Arc<Self>, start: NonNull<u8>, length: usize) -> Option<Registration> {
        let start = start.as_ptr().addr();
        // The interpreter may be ending, and then registers nothing.
        Python::try_attach(|py| {
            let value = call_aside(py, &self.register, (start, length))?;
            if value.is_none(py) {
                return None;
            }
            self.values.lock().insert(start, value);
            Some(Box::new(Registered { hooks: Arc::clone(self), start }) as Registration)
        })
        .flatten()
    }

    /// How many segments are registered by these. `None` when that may change right now.
    pub(crate) fn registered(&self) -> Option<usize> {
        self.values.try_lock().map(|values| values.len())
    }

    /// Shows the collector of garbage what these hold.
    pub(crate) fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.register)?;
        visit.call(&self.unregister)?;
        let Some(values) = self.values.try_lock() else { return Ok(()) };
        values.values().try_for_each(|value| visit.call(value))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let value = self.hooks.values.lock().remove(&self.start);
        // Without an interpreter the process is ending, and its mappings with it.
        let _ = Python::try_attach(|py| {
            if let (Some(unregister), Some(value)) = (&self.hooks.unregister, value) {
                call_aside(py, unregister, (value,));
            }
        });
    }
}

/// Calls a function of the program from where nobody can be told that it failed, and where an exception may be on its way already:
/// the last view of a segment is dropped while that unwinds. The interpreter must not begin a call with one.
fn call_aside<'py>(
    py: Python<'py>,
    function: &Py<PyAny>,
    arguments: impl PyCallArgs<'py>,
) -> Option<Py<PyAny>> {
    let on_its_way = PyErr::take(py);
    let outcome = function.call1(py, arguments);
    let value =
        outcome.inspect_err(|error| error.clone_ref(py).write_unraisable(py, Some(function.bind(py))));
    if let Some(error) = on_its_way {
        error.restore(py);
    }
    value.ok()
}
