//! The cache as a Python program sees it.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{IntoPyObjectExt as _, PyTraverseError, PyVisit};
use tidefs_client::Pin;

use crate::apart::drop_apart;
use crate::arguments::{Key, raise};
use crate::bytes::Bytes;
use crate::register::Hooks;
use crate::view::View;
use crate::writer::Writer;

/// How long a wait goes on before it looks whether the program was interrupted.
const INTERRUPTIBLE: Duration = Duration::from_millis(50);

/// A directory of a tidefs mount, or any directory: opened, and used by any number of threads. Keys are paths below it. After
/// a fork the child opens its own.
#[pyclass(frozen, module = "tidefs")]
pub(crate) struct Cache {
    /// `None` once it is closed.
    inner: RwLock<Option<Arc<Opened>>>,
    /// What segments are, or were, registered with. Held for a look: the collector of garbage looks, too.
    hooks: Mutex<Vec<Weak<Hooks>>>,
}

/// A cache that is in use, by the object or by a call.
///
/// Dropping the last one waits for the thread that gives kept references back, and that may wait for the interpreter's lock.
struct Opened(Option<tidefs_client::Cache>);

impl Deref for Opened {
    type Target = tidefs_client::Cache;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        drop_apart(self.0.take());
    }
}

impl Cache {
    fn inner(&self) -> PyResult<Arc<Opened>> {
        let inner = self.inner.read().clone();
        inner.ok_or_else(|| PyValueError::new_err("the cache is closed"))
    }
}

#[pymethods]
impl Cache {
    #[new]
    fn new(py: Python<'_>, directory: &Bound<'_, PyAny>) -> PyResult<Self> {
        // pyo3 takes no path of bytes.
        let directory: PathBuf = py.import("os")?.call_method1("fsdecode", (directory,))?.extract()?;
        let inner = py.detach(|| tidefs_client::Cache::open(directory)).map_err(raise)?;
        Ok(Self { inner: RwLock::new(Some(Arc::new(Opened(Some(inner))))), hooks: Mutex::default() })
    }

    /// Whether objects are mapped; else all is done by file. When the daemon is started again they are not, from the call that
    /// finds the last one gone to the one that finds the next; this is no such call.
    #[getter]
    fn is_fast(&self) -> PyResult<bool> {
        Ok(self.inner()?.is_fast())
    }

    /// Whether close() was called.
    #[getter]
    fn closed(&self) -> bool {
        self.inner.read().is_none()
    }

    /// Segments that are mapped now.
    #[getter]
    fn mapped_segments(&self, py: Python<'_>) -> PyResult<usize> {
        let cache = self.inner()?;
        // Another thread may be in a callback of register_with, which waits for the interpreter, and others for it.
        Ok(py.detach(|| cache.mapped_segments()))
    }

    /// The bytes of an object; None is a miss.
    fn get(&self, py: Python<'_>, key: Key) -> PyResult<Option<View>> {
        let cache = self.inner()?;
        let found = py.detach(|| cache.get(&key)).map_err(raise)?;
        Ok(found.map(View::new))
    }

    /// The bytes of many objects, with one request for hundreds; None is a miss.
    fn lookup_many(&self, py: Python<'_>, keys: Vec<Key>) -> PyResult<Vec<Option<View>>> {
        let cache = self.inner()?;
        let found = py.detach(|| cache.lookup_many(&keys)).map_err(raise)?;
        Ok(found.into_iter().map(|view| view.map(View::new)).collect())
    }

    /// As lookup_many. In place of an object that may not be read there is the exception that says so; it does not fail the others.
    fn lookup_each(&self, py: Python<'_>, keys: Vec<Key>) -> PyResult<Vec<Py<PyAny>>> {
        let cache = self.inner()?;
        let found = py.detach(|| cache.lookup_each(&keys)).map_err(raise)?;
        let objects = found.into_iter().map(|found| match found {
            Ok(view) => view.map(View::new).into_py_any(py),
            Err(error) => raise(error).into_py_any(py),
        });
        objects.collect()
    }

    /// Copies the first bytes of an object into a buffer, as many as fit. Returns the length of the object; None is a miss.
    /// Nothing else may use the buffer meanwhile.
    fn get_into(&self, py: Python<'_>, key: Key, target: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let cache = self.inner()?;
        let mut bytes = Bytes::writable(target)?;
        let target = bytes.as_mut_slice();
        py.detach(|| cache.get_into(&key, target)).map_err(raise)
    }

    /// How many of the keys, from the first on, are there: the longest prefix of a chain that the cache has.
    fn prefix(&self, py: Python<'_>, keys: Vec<Key>) -> PyResult<usize> {
        let cache = self.inner()?;
        py.detach(|| cache.prefix(&keys)).map_err(raise)
    }

    /// Whether an object is there.
    fn contains(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        let cache = self.inner()?;
        py.detach(|| cache.contains(&key)).map_err(raise)
    }

    fn __contains__(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        self.contains(py, key)
    }

    /// Asks for objects that are below memory to be brought into it. Does not wait; what is not there is passed over.
    fn prefetch(&self, py: Python<'_>, keys: Vec<Key>) -> PyResult<()> {
        let cache = self.inner()?;
        py.detach(|| cache.prefetch(&keys)).map_err(raise)
    }

    /// Waits until an object is there, at most for `timeout` seconds. Returns its bytes, or None when it did not come. With
    /// `range`, (start, stop): until that part may be read, also of an object that is still written (Writer.ready).
    #[pyo3(signature = (key, timeout = None, *, range = None))]
    fn wait_ready(
        &self,
        py: Python<'_>,
        key: Key,
        timeout: Option<f64>,
        range: Option<(usize, usize)>,
    ) -> PyResult<Option<View>> {
        let cache = self.inner()?;
        wait(py, timeout, |limit| match range {
            Some((start, stop)) => cache.wait_range(&key, start..stop.max(start), limit),
            None => cache.wait_ready(&key, limit),
        })
    }

    /// Keeps objects from being evicted, or ends that. `pin` is "hard" (they do not go), "soft" (they go last, for `ttl` seconds
    /// if that is given) or "none". Returns how many of them are there.
    #[pyo3(signature = (keys, pin = "soft", ttl = None))]
    fn pin(&self, py: Python<'_>, keys: Vec<Key>, pin: &str, ttl: Option<u64>) -> PyResult<usize> {
        let pin = match (pin, ttl) {
            ("none", None) => Pin::None,
            ("soft", ttl_s) => Pin::Soft { ttl_s },
            ("hard", None) => Pin::Hard,
            ("none" | "hard", Some(_)) => return Err(PyValueError::new_err("only a soft pin has a time")),
            _ => return Err(PyValueError::new_err("a pin is \"none\", \"soft\" or \"hard\"")),
        };
        let cache = self.inner()?;
        py.detach(|| cache.pin_many(&keys, pin)).map_err(raise)
    }

    /// Begins an object of `size` bytes.
    fn create(&self, py: Python<'_>, key: Key, size: usize) -> PyResult<Writer> {
        let cache = self.inner()?;
        py.detach(|| cache.create(&key, size)).map(Writer::new).map_err(raise)
    }

    /// Begins many objects, each given by its key and its size. On a failure none is begun.
    fn create_many(&self, py: Python<'_>, objects: Vec<(Key, usize)>) -> PyResult<Vec<Writer>> {
        let cache = self.inner()?;
        let begun = py.detach(|| cache.create_many(&objects)).map_err(raise)?;
        Ok(begun.into_iter().map(Writer::new).collect())
    }

    /// Makes many objects visible with one request for hundreds. Raises the first failure after all were tried; none is
    /// sealed while an array or a buffer made of one of them is in use, or where one is given twice.
    fn seal_many(&self, py: Python<'_>, writers: Vec<PyRef<'_, Writer>>) -> PyResult<()> {
        let cache = self.inner()?;
        writers.iter().try_for_each(|writer| writer.check())?;
        let mut given: Vec<*const Writer> = writers.iter().map(|writer| &raw const **writer).collect();
        given.sort_unstable();
        if given.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(PyValueError::new_err("a writer is given twice"));
        }
        let mut taken = Vec::with_capacity(writers.len());
        for writer in &writers {
            match writer.take() {
                Ok(writer) => taken.push(writer),
                Err(error) => {
                    // It tells the daemon that they are given up.
                    py.detach(|| drop(taken));
                    return Err(error);
                }
            }
        }
        py.detach(|| cache.seal_many(taken)).map_err(raise)
    }

    /// Stores an object, in place of what stood under its key. Nothing may change the data meanwhile.
    fn put(&self, py: Python<'_>, key: Key, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let cache = self.inner()?;
        let bytes = Bytes::of(data)?;
        let data = bytes.as_slice();
        py.detach(|| cache.put(&key, data)).map_err(raise)
    }

    /// Stores many objects, the first ones first, each given by its key and its data. Each becomes visible whole. They may be more
    /// than the cache holds: then it has the last of them. Raises the first failure after all were tried.
    fn put_many(&self, py: Python<'_>, objects: Vec<(Key, Bound<'_, PyAny>)>) -> PyResult<()> {
        let cache = self.inner()?;
        let data = bytes_of(&objects)?;
        let objects = with_bytes(&objects, &data);
        py.detach(|| cache.put_many(&objects)).map_err(raise)
    }

    /// As put_many. Returns for each object None, or the exception that says why it is not stored.
    fn put_each(
        &self,
        py: Python<'_>,
        objects: Vec<(Key, Bound<'_, PyAny>)>,
    ) -> PyResult<Vec<Option<PyErr>>> {
        let cache = self.inner()?;
        let data = bytes_of(&objects)?;
        let objects = with_bytes(&objects, &data);
        let stored = py.detach(|| cache.put_each(&objects)).map_err(raise)?;
        Ok(stored.into_iter().map(|stored| stored.err().map(raise)).collect())
    }

    /// Keeps references to the objects that were looked up last, up to so many bytes of them, when their views are released: who
    /// looks the same keys up again is answered without the daemon. What is kept cannot be evicted; it is given back after some
    /// seconds without use. 0 ends it. What is unlinked, replaced or forbidden is seen at once, as without it. Returns whether
    /// anything can be kept: not without a fast path, nor with a daemon that has no names clock.
    fn keep(&self, py: Python<'_>, bytes: usize) -> PyResult<bool> {
        let cache = self.inner()?;
        py.detach(|| cache.keep(bytes)).map_err(raise)
    }

    /// Has objects that are begun or stored from now on get the permissions `mode`, whatever the umask is; of its bits those of
    /// 0o777 count. With None, as before the first call, they get what the umask of their moment leaves, as by open(): to ask for
    /// that takes some microseconds for each call that begins or stores by the fast path. What is begun without it gets what holds
    /// when it is sealed. Directories are made as the umask says.
    #[pyo3(signature = (mode))]
    fn set_mode(&self, mode: Option<u32>) -> PyResult<()> {
        self.inner()?.set_mode(mode);
        Ok(())
    }

    /// Gives back what views that were released held in the daemon, kept references included. Without it that goes back along with later ones.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let cache = self.inner()?;
        py.detach(|| cache.flush());
        Ok(())
    }

    /// Calls `register(address, length)` for each segment that is mapped, now and from now on: for `cudaHostRegister`,
    /// `ibv_reg_mr` and the like. What it returns is given to `unregister` right before the segment is unmapped; None says that
    /// it is not registered. Neither may use the cache; an exception in one is reported as unraisable, and that segment is not
    /// registered. Without a fast path it is never called. View.is_registered tells.
    #[pyo3(signature = (register, unregister = None))]
    fn register_with(
        &self,
        py: Python<'_>,
        register: Py<PyAny>,
        unregister: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let cache = self.inner()?;
        let hooks = Arc::new(Hooks::new(register, unregister));
        {
            let mut known = self.hooks.lock();
            known.retain(|hooks| hooks.strong_count() > 0);
            known.push(Arc::downgrade(&hooks));
        }
        py.detach(|| cache.register_with(move |start, length| hooks.register(start, length)));
        Ok(())
    }

    /// Registers each segment that is mapped, now and from now on, with an NVIDIA GPU, so that copies to and from it pass by no
    /// buffer of the driver: register_with, with `cuMemHostRegister`, in the primary context of the device with that number
    /// and known to all contexts of the process. Needs the driver alone. What it refuses stays as it was; View.is_registered
    /// tells. OSError when there is no driver, or no such device.
    #[pyo3(signature = (device = 0))]
    fn register_with_cuda(&self, py: Python<'_>, device: u32) -> PyResult<()> {
        let cache = self.inner()?;
        py.detach(|| cache.register_with_cuda(device)).map_err(raise)?;
        Ok(())
    }

    /// What was shown and what was copied so far.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let statistics = self.inner()?.statistics();
        let facts = PyDict::new(py);
        facts.set_item("mapped_views", statistics.mapped_views)?;
        facts.set_item("kept_views", statistics.kept_views)?;
        facts.set_item("copied_views", statistics.copied_views)?;
        facts.set_item("copied_bytes", statistics.copied_bytes)?;
        Ok(facts)
    }

    /// Closes it. Its views and writers may outlive it.
    pub(crate) fn close(&self) {
        let inner = self.inner.write().take();
        drop(inner);
    }

    /// Ends what leads back to it.
    fn __clear__(&self) {
        self.close();
    }

    /// Shows the collector of garbage what segments are registered with, when nobody but this object keeps that: views and writers
    /// of registered segments do, and the collector knows nothing of them.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let (Some(inner), Some(known)) = (self.inner.try_read(), self.hooks.try_lock()) else {
            return Ok(());
        };
        let hooks: Vec<Arc<Hooks>> = known.iter().filter_map(Weak::upgrade).collect();
        let registered = hooks.iter().map(|hooks| hooks.registered()).sum::<Option<usize>>();
        let idle = inner.as_ref().and_then(|cache| cache.idle_registrations());
        if registered.is_some() && registered == idle {
            hooks.iter().try_for_each(|hooks| hooks.visit(&visit))?;
        }
        Ok(())
    }

    /// Itself, for a `with` block.
    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// Closes it at the end of a `with` block.
    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }
}

/// The data of objects, as bytes.
fn bytes_of(objects: &[(Key, Bound<'_, PyAny>)]) -> PyResult<Vec<Bytes>> {
    let one = |(key, data): &(Key, Bound<'_, PyAny>)| {
        Bytes::of(data).map_err(|error| {
            let (py, key) = (data.py(), String::from_utf8_lossy(key.as_ref()));
            PyErr::from_type(error.get_type(py), format!("the data of {key:?}: {}", error.value(py)))
        })
    };
    objects.iter().map(one).collect()
}

/// The keys of objects, each with the bytes of its data.
fn with_bytes<'a>(objects: &'a [(Key, Bound<'_, PyAny>)], data: &'a [Bytes]) -> Vec<(&'a Key, &'a [u8])> {
    objects.iter().zip(data).map(|((key, _), data)| (key, data.as_slice())).collect()
}

/// Waits in pieces, so that an interrupted program stops.
fn wait(
    py: Python<'_>,
    timeout: Option<f64>,
    look: impl Fn(Duration) -> Result<Option<tidefs_client::View>, tidefs_client::Error> + Sync,
) -> PyResult<Option<View>> {
    let limit = match timeout {
        Some(seconds) if seconds.is_nan() => return Err(PyValueError::new_err("no time is that long")),
        // What no duration can say is longer than any wait.
        Some(seconds) => Duration::try_from_secs_f64(seconds.max(0.0)).ok(),
        None => None,
    };
    let started = Instant::now();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(started.elapsed()));
        let piece = left.unwrap_or(INTERRUPTIBLE).min(INTERRUPTIBLE);
        if let Some(view) = py.detach(|| look(piece)).map_err(raise)? {
            return Ok(Some(View::new(view)));
        }
        if left.is_some_and(|left| left <= INTERRUPTIBLE) {
            return Ok(None);
        }
        py.check_signals()?;
    }
}
