//! What a trial and a bench have in common: daemons that have nothing to do with those that this host is configured for, which
//! would join its cluster and write to its disks, and that they end with their terminal.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

/// Names the configuration file to read instead of those of this host: one without settings.
const NO_SETTINGS: &str = "config=/dev/null";

/// Has the daemon that `command` starts go by its command line alone. What comes behind this on it counts, another file too.
pub(crate) fn set_apart(command: &mut Command) {
    for (variable, _) in std::env::vars_os().filter(|(variable, _)| is_of_this_host(variable)) {
        command.env_remove(variable);
    }
    command.args(["-o", NO_SETTINGS]);
}

/// Whether a variable holds a setting, or means something to this program alone, which a daemon takes for a mistake. Where the
/// library of a transport lies is neither: without that a daemon has no such transport.
fn is_of_this_host(variable: &OsStr) -> bool {
    let rest = variable.as_bytes().strip_prefix(b"TIDEFS_");
    rest.is_some_and(|rest| rest != b"LIBFABRIC" && !rest.starts_with(b"TEST_"))
}

/// Whether this process was started to go on without its terminal, as by nohup(1). To be asked before SIGHUP is handled.
pub(crate) fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // Signal 1 has the lowest bit.
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_tidefs_are_of_this_host_but_those_of_tests_and_of_a_library() {
        let is_of = |variable: &str| is_of_this_host(OsStr::new(variable));
        assert!(is_of("TIDEFS_CONFIG") && is_of("TIDEFS_CLUSTER_ETCD") && is_of("TIDEFS_COMMIT"));
        assert!(!is_of("TIDEFS_LIBFABRIC") && is_of("TIDEFS_LIBFABRIC_DIR"));
        assert!(!is_of("TIDEFS_TEST_LONG") && !is_of("PATH") && !is_of("MY_TIDEFS_CONFIG"));
    }
}
