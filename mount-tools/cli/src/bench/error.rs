//! Why a bench could not be run, with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

/// Why a bench ended without a result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Baselines are mounts, and so is what is tested.
    #[error(
        "this bench mounts what it measures, where nobody else sees it, which needs root: run it as root (sudo)"
    )]
    NeedsRoot,
    /// An operation on a file failed.
    #[error("{action} {}", path.display())]
    File {
        /// What was done, for example `open`.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A read or write moved fewer bytes than the object has.
    #[error("{} moved {moved} of {expected} bytes: a file on the mount is whole or absent", path.display())]
    Short {
        /// The object.
        path: PathBuf,
        /// Bytes moved by the one call.
        moved: usize,
        /// Bytes of the object.
        expected: usize,
    },
    /// The bytes read are not those that were written.
    #[error("{} has wrong bytes at offset {offset}", path.display())]
    WrongBytes {
        /// The object.
        path: PathBuf,
        /// First wrong byte.
        offset: usize,
    },
    /// The daemon could not be started.
    #[error("start {}: it is looked for beside this program, then in PATH; --daemon names another", path.display())]
    DaemonNotStarted {
        /// The binary.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The daemon ended, or did not say that it mounted.
    #[error("the daemon did not mount ({what}); it said:\n{log}")]
    DaemonNotMounted {
        /// What happened instead.
        what: String,
        /// The last lines of its stderr.
        log: String,
    },
    /// A machine too small for what was asked.
    #[error("{what} needs {needed} of memory and {available} is available: {advice}")]
    Memory {
        /// The part of the bench.
        what: &'static str,
        /// Bytes it needs.
        needed: tidefs_engine::types::ByteCount,
        /// Bytes there are.
        available: tidefs_engine::types::ByteCount,
        /// What to do.
        advice: &'static str,
    },
    /// An argument that cannot work.
    #[error("{0}")]
    Argument(String),
    /// A trace that cannot be read.
    #[error("read the trace {}", path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: super::replay::TraceError,
    },
    /// Something the system should have answered.
    #[error("{action}")]
    System {
        /// What was done.
        action: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The transfer engine refused.
    #[error("{action}")]
    Engine {
        /// What was done.
        action: String,
        /// What it said.
        #[source]
        source: tidefs_engine::error::Error,
    },
    /// A measurement that proves the set-up wrong, so that its numbers would mean nothing.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// A failed operation on `path`, to be given to `map_err`.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { action, path: path.to_owned(), source }
    }

    /// A refusal of the transfer engine, to be given to `map_err`.
    pub(crate) fn engine(action: impl Into<String>) -> impl FnOnce(tidefs_engine::error::Error) -> Self {
        move |source| Self::Engine { action: action.into(), source }
    }

    /// A failed call that has no path, to be given to `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action: action.into(), source: source.into() }
    }
}

/// The message of `error` and of everything that caused it, on one line each.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
