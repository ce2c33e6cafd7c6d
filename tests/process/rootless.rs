//! A daemon that is root in a user namespace alone, as in a rootless container: it may mount there, and the kernel takes no backing
//! files from it.

use std::fs::File;
use std::process::{Command, Stdio};

use super::common::Mount;
use super::common::kernel::is_at_least;
use super::common::place::Place;
use super::common::wait::HANG;
use super::daemon::{EXIT_ENVIRONMENT, daemon, refused};

/// What is said of it.
const REASON: &str = "that of a user namespace";

/// The same program with the same arguments, in a user namespace of its own. It ends with the thread that starts it.
fn rootless(command: &Command) -> Command {
    let mut rootless = Command::new("unshare");
    rootless.args(["--user", "--map-root-user", "--mount", "setpriv", "--pdeathsig", "TERM"]);
    rootless.arg(command.get_program()).args(command.get_args());
    rootless
}

/// Whether this machine has what such a daemon is refused; says so when it has not.
fn is_possible() -> bool {
    let has_namespaces = rootless(&Command::new("true")).status().is_ok_and(|status| status.success());
    if !has_namespaces {
        eprintln!("SKIPPED: no user namespace can be made here");
    }
    has_namespaces && is_at_least((6, 9), "FUSE passthrough")
}

#[test]
fn root_of_a_user_namespace_alone_is_told_that_and_why_the_kernel_serves_no_files() {
    if !is_possible() {
        return;
    }
    let mut mount = Mount::prepare(&[]);
    let log = mount.log_path();
    mount.start_daemon_by(HANG, |command| {
        let log = File::options().append(true).open(&log)?;
        rootless(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn()
    });
    let status = mount.control_get("/v1/status").json();
    assert_eq!(status["fuse"]["passthrough"], false, "{status}");
    for told in [&status["fuse"]["passthrough_reason"], &status["warnings"]] {
        assert!(told.to_string().contains(REASON), "{status}");
    }
}

#[test]
fn root_of_a_user_namespace_alone_that_demands_passthrough_is_refused() {
    if !is_possible() {
        return;
    }
    let place = Place::new();
    let mut command = daemon(&place.point, &place.state);
    let scratch = place.base.path().join("scratch");
    let sizes = format!("capacity=64MiB,scratch.dir={}", scratch.display());
    command.args(["-o", &sizes, "-o", "passthrough=always"]);
    refused(&mut rootless(&command), EXIT_ENVIRONMENT, &["fuse.passthrough=always", REASON]);
}
