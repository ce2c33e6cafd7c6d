//! Paths as they are typed, and as this program shows them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use tidefs_control_api::key_path::unescape;

use crate::error::{CliError, Exit};

/// How a path is written.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Spelling {
    /// PATH is written as this program shows names: a backslash, and each byte that cannot be shown, as \xHH
    #[arg(long)]
    escaped: bool,
}

impl Spelling {
    /// The path that `typed` stands for.
    ///
    /// # Errors
    /// [`CliError`] for what no output of this program shows.
    pub(crate) fn read(self, typed: &Path) -> Result<PathBuf, CliError> {
        if !self.escaped {
            return Ok(typed.to_owned());
        }
        let bytes = unescape(&typed.to_string_lossy());
        let bytes = bytes.map_err(|error| CliError::new(Exit::Usage, error.to_string()))?;
        Ok(OsString::from_vec(bytes).into())
    }
}
