//! What the admin API is told of the daemon's other parts.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use tidefs_engine::types::ByteCount;

use crate::tier::ssd::ChangeError;

/// What is known once the mount is up.
#[derive(Debug)]
pub struct DaemonFacts {
    /// Whether the kernel serves files itself.
    pub passthrough: bool,
    /// Why not, if not.
    pub passthrough_reason: Option<String>,
    /// Session threads.
    pub threads: u32,
    /// Protocol version of the kernel.
    pub kernel_abi: String,
    /// Names of the capabilities in force.
    pub flags: Vec<String>,
    /// When the daemon started.
    pub started_at: SystemTime,
    /// The same by the clock that nobody sets.
    pub started: Instant,
}

/// When the daemon started; now, until it is known.
pub(super) fn started_at(facts: Option<&DaemonFacts>) -> SystemTime {
    facts.map_or_else(SystemTime::now, |facts| facts.started_at)
}

/// For how long the daemon runs, whatever became of the time of day meanwhile; no time, until it is known.
pub(super) fn uptime(facts: Option<&DaemonFacts>) -> Duration {
    facts.map_or(Duration::ZERO, |facts| facts.started.elapsed())
}

/// Knows whether the host takes part in its cluster yet.
pub trait Joining: fmt::Debug + Send + Sync {
    /// Why it does not; `None` when it does.
    fn waits_for(&self) -> Option<String>;
}

/// Takes disks into the SSD tier, the first one too.
pub trait AddDisk: fmt::Debug + Send + Sync {
    /// Takes a directory or device into use, with room for `capacity` bytes if that is said.
    ///
    /// # Errors
    /// Why it is not used; then all is as before.
    fn add_disk(&self, place: &Path, capacity: Option<ByteCount>) -> Result<(), ChangeError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_runs_for_as_long_as_it_does_though_the_time_of_day_was_set_meanwhile() {
        let year = Duration::from_secs(365 * 86_400);
        for started_at in [SystemTime::now() - year, SystemTime::now() + year] {
            let facts = DaemonFacts {
                passthrough: true,
                passthrough_reason: None,
                threads: 1,
                kernel_abi: String::new(),
                flags: Vec::new(),
                started_at,
                started: Instant::now(),
            };
            assert!(uptime(Some(&facts)) < year / 2);
        }
        assert_eq!(uptime(None), Duration::ZERO);
    }
}
