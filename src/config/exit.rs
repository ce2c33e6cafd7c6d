//! How the daemon ends, as a number that scripts and service managers can rely on.

use std::process::ExitCode;

/// Why the daemon ended. The numbers are a promise: `docs/CONFIGURATION.md` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// It was asked to stop, or had nothing more to do.
    Done = 0,
    /// It failed while running, or for want of what may come by itself: worth another start.
    Failed = 1,
    /// The command line or the configuration is wrong. Nothing was touched.
    Configuration = 2,
    /// The mount point is missing, not a directory, or in use.
    MountPoint = 3,
    /// The machine lacks something: no `/dev/fuse`, no right to mount, or a port that another process has.
    Environment = 4,
}

impl ExitStatus {
    /// Every status with its meaning, in the order of the numbers.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Done, "stopped as asked, or the check found no problem"),
        (
            Self::Failed,
            "failed while running, or an address of cluster.listen is not up: another start may do better",
        ),
        (Self::Configuration, "wrong command line or configuration; nothing was touched"),
        (Self::MountPoint, "the mount point is missing, not a directory, or in use"),
        (
            Self::Environment,
            "the machine lacks something: no /dev/fuse, no right to mount, or a port is taken",
        ),
    ];

    /// The number.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.code())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn exit_statuses_keep_their_numbers() {
        let numbers = ExitStatus::ALL.map(|(status, _)| status.code());
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn the_unit_starts_again_what_another_start_may_help() {
        let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/systemd/tidefs@.service");
        let unit = fs::read_to_string(unit).unwrap();
        let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        assert_eq!(value("Restart"), Some("on-failure"));
        assert_eq!(value("StartLimitIntervalSec"), Some("0"), "for as long as it takes");
        let final_ones = [ExitStatus::Configuration, ExitStatus::MountPoint, ExitStatus::Environment];
        let final_ones = final_ones.map(|status| status.code().to_string());
        assert_eq!(value("RestartPreventExitStatus"), Some(&*final_ones.join(" ")));
    }
}
