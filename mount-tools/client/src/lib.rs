//! Reads and writes a tidefs cache without a copy and with hardly a system call.
//!
//! [`Cache`] asks the daemon where objects are, many with one request, and maps the shared memory that holds them, each
//! segment once. A [`View`] is those bytes themselves; they do not change and do not leave while it lives. A [`Writer`] is
//! memory of the cache that becomes an object when it is sealed.
//!
//! ```no_run
//! # fn main() -> Result<(), tidefs_client::Error> {
//! let cache = tidefs_client::Cache::open("/mnt/kv")?;
//! cache.put("model/block-7", b"keys and values")?;
//! if let Some(view) = cache.get("model/block-7")? {
//!     assert_eq!(&*view, b"keys and values");
//! }
//! # Ok(()) }
//! ```
//! On another filesystem, or where the daemon or the kernel lacks something, the same calls do the same by file.
//!
//! With the feature `tokio` there is `AsyncCache`, whose calls are awaited; with `cuda`, `Cache::register_with_cuda`.
//!
//! Keys are paths below the directory given to [`Cache::open`], without a leading slash.
//!
//! Invariants
//! - A view of mapped memory holds a reference in the daemon until it is dropped, give or take the last
//!   [`RELEASE_BATCH`] views, whose references go back together.
//! - Nothing is read through a mapping without a reference to the object in it.
//! - What the daemon of one mount gave is used with no other: when it is started again, a cache opens a session anew.
//!
//! Limits: values may be shared between threads. A child of fork(2) opens its own: with what its parent opened it finds and
//! stores by file, and gives nothing back. It must not use views and writers of its parent.

// The cache, for programs that wait and for those on tokio.
#[cfg(feature = "tokio")]
mod asynchronous;
mod cache;
mod error;
mod statistics;

// Finding objects, looking at their bytes, and having them stay.
mod batch;
mod follow;
mod get_into;
mod kept;
mod lookup;
mod pin;
mod view;

// Storing objects.
mod copied;
mod create;
mod directories;
mod mode;
mod put;
mod writer;

// The session with a daemon, and the memory that it shares.
mod area;
mod fork;
mod memory;
mod segments;
mod session;
mod sessions;

// Where there is no session.
mod file;

// Memory of the cache for a GPU.
#[cfg(feature = "cuda")]
mod cuda;

// System calls.
mod ffi;

#[cfg(feature = "tokio")]
pub use asynchronous::AsyncCache;
pub use cache::Cache;
#[cfg(feature = "cuda")]
pub use cuda::{CudaDevice, CudaError};
pub use error::Error;
pub use memory::Registration;
pub use pin::Pin;
pub use session::RELEASE_BATCH;
pub use statistics::Statistics;
pub use view::View;
pub use writer::{Part, Writer};
