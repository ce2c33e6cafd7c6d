//! The Python package `tidefs`: the module `tidefs._tidefs`, which `python/tidefs` shows to programs.
//!
//! Invariants
//! - Whatever may wait for the daemon runs with the interpreter's lock released.
//! - What was made of a view or a writer (a buffer, an array, a tensor) keeps its memory, whatever is released meanwhile.
//! - An object is not sealed while somebody may write to it through what was made of its writer.
//!
//! Limits: Python 3.11 and later, whose stable interface has buffers.

mod apart;
mod arguments;
mod bytes;
mod cache;
mod dlpack;
mod ffi;
mod register;
mod view;
mod writer;

/// Reads and writes a tidefs cache without a copy.
#[pyo3::pymodule]
mod _tidefs {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::cache::Cache;
    #[pymodule_export]
    use crate::view::View;
    #[pymodule_export]
    use crate::writer::Writer;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // The collector of garbage has it called while what segments are registered with is still whole.
        let cache = module.getattr("Cache")?;
        cache.setattr("__del__", cache.getattr("close")?)
    }

    #[expect(non_upper_case_globals, reason = "the name that Python packages give it")]
    #[pymodule_export]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
