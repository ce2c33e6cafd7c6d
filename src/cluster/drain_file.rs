//! That a member drains, kept in a file so that its next start goes on.
//!
//! JSON in the state directory, which a restart of the machine takes away with all that was in memory.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::core::wall_ms;
use crate::replace::{read_whole, replace};

/// Longest file that is read: it holds one number.
const FILE_BYTES_MAX: usize = 4096;

/// A drain that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unfinished {
    /// When it is given up, in milliseconds since 1970; never without.
    until_ms: Option<u64>,
}

impl Unfinished {
    /// One that begins now.
    pub(super) fn within(within_ms: Option<u64>) -> Self {
        Self { until_ms: within_ms.map(|within| wall_ms().saturating_add(within)) }
    }

    /// The time that is left; without a limit none.
    pub(super) fn left(self) -> Option<Duration> {
        self.until_ms.map(|until| Duration::from_millis(until.saturating_sub(wall_ms())))
    }

    /// What an earlier start left. What cannot be read is said, and none.
    pub(super) fn load(file: Option<&Path>) -> Option<Self> {
        let file = file?;
        let read = match read_whole(file, FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            read => read.and_then(|text| serde_json::from_slice(&text).map_err(io::Error::other)),
        };
        read.inspect_err(|error| {
            tracing::warn!(file = %file.display(), %error, "whether this member was draining is not known; it does not go on");
        })
        .ok()
    }

    /// Keeps it. What stands in the way is logged: it drains nevertheless.
    pub(super) fn store(self, file: Option<&Path>) {
        let Some(file) = file else { return };
        let text = serde_json::to_vec(&self).map_err(io::Error::other);
        let stored = text.and_then(|text| replace(file, &text));
        if let Err(error) = stored {
            tracing::warn!(file = %file.display(), %error, "a restart of this member ends its drain");
        }
    }

    /// It is over.
    pub(super) fn forget(file: Option<&Path>) {
        let Some(file) = file else { return };
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(file = %file.display(), %error, "the next start of this member drains again");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_is_found_by_the_next_start_with_the_time_that_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("drain.json");
        assert_eq!(Unfinished::load(Some(&file)), None);
        Unfinished::within(Some(3_600_000)).store(Some(&file));
        let left = Unfinished::load(Some(&file)).and_then(Unfinished::left).unwrap();
        assert!(left > Duration::from_secs(3000) && left <= Duration::from_secs(3600), "{left:?}");
        Unfinished { until_ms: Some(1) }.store(Some(&file));
        assert_eq!(Unfinished::load(Some(&file)).and_then(Unfinished::left), Some(Duration::ZERO));
        Unfinished::within(None).store(Some(&file));
        assert_eq!(Unfinished::load(Some(&file)).unwrap().left(), None);
        fs::write(&file, b"{").unwrap();
        assert_eq!(Unfinished::load(Some(&file)), None);
        Unfinished::forget(Some(&file));
        Unfinished::forget(Some(&file));
        assert!(!file.exists());
    }
}
