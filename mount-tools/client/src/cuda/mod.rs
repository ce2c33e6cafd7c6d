//! Memory of the cache that NVIDIA GPUs read and write by DMA: each mapped segment registered with the CUDA driver, once.
//!
//! Nothing is linked: the driver, `libcuda`, is found at run time, and a program that never asks for it runs without. What
//! has been run: a stand-in for the driver (`tests/fuse/cuda.rs`), and the driver itself where that test finds a GPU.
//!
//! Invariants
//! - A registration ends before its segment is unmapped, with the context current in which it was made.
//! - The context of the device lives as long as a registration made in it.
//!
//! Threads: any; each call makes the context current for itself and leaves the thread as it was.

mod ffi;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use self::ffi::{Context, Driver, Pinned};
use crate::Registration;

/// Why the CUDA driver registers nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no driver.
    #[error(
        "the CUDA driver cannot be loaded: no libcuda.so.1 where the loader looks; install the NVIDIA driver, or start the \
         container with its devices and libraries"
    )]
    NoDriver,
    /// The driver is too old.
    #[error("the CUDA driver has no `{symbol}`: update the NVIDIA driver")]
    NoSymbol {
        /// What it lacks.
        symbol: &'static str,
    },
    /// The driver refused.
    #[error("{call} says {reason} for CUDA device {device}")]
    Refused {
        /// What it was asked for.
        call: &'static str,
        /// Number of the device.
        device: u32,
        /// The driver's name of the error.
        reason: String,
    },
}

/// A GPU that the memory of a cache is registered with: see [`Cache::register_with_cuda`](crate::Cache::register_with_cuda).
#[derive(Debug)]
pub struct CudaDevice {
    context: Context,
    registered: AtomicUsize,
    refused: AtomicUsize,
    /// Why the last segment that was refused was.
    refusal: Mutex<Option<CudaError>>,
}

impl CudaDevice {
    /// Opens a device by its number, in its primary context: the one that frameworks use.
    pub(crate) fn open(device: u32) -> Result<Arc<Self>, CudaError> {
        let context = Driver::load()?.primary_context(device)?;
        let (registered, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Ok(Arc::new(Self { context, registered, refused, refusal: Mutex::new(None) }))
    }

    /// Segments that are registered now.
    #[must_use]
    pub fn registered(&self) -> usize {
        self.registered.load(Ordering::Relaxed)
    }

    /// Segments that the driver refused so far; their views say that they are not registered.
    #[must_use]
    pub fn refused(&self) -> usize {
        self.refused.load(Ordering::Relaxed)
    }

    /// Why it refused the last of them: a limit on locked memory, say.
    #[must_use]
    pub fn last_refusal(&self) -> Option<CudaError> {
        self.refusal.lock().clone()
    }

    /// Registers a segment, for all contexts of the process. `is_writable`: whether the process may write it.
    pub(crate) fn register(
        self: &Arc<Self>,
        start: NonNull<u8>,
        length: usize,
        is_writable: bool,
    ) -> Option<Registration> {
        match self.context.register(start, length, is_writable) {
            Ok(pinned) => {
                self.registered.fetch_add(1, Ordering::Relaxed);
                Some(Box::new(Registered { device: Arc::clone(self), pinned }))
            }
            Err(error) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                *self.refusal.lock() = Some(error);
                None
            }
        }
    }
}

/// One segment. Dropped right before it is unmapped.
struct Registered {
    device: Arc<CudaDevice>,
    pinned: Pinned,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.device.registered.fetch_sub(1, Ordering::Relaxed);
        // It fails when the process is ending and the driver is gone, and its registrations with it.
        if let Err(error) = self.device.context.unregister(&self.pinned) {
            *self.device.refusal.lock() = Some(error);
        }
    }
}
