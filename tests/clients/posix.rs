//! The POSIX suite for filesystems, pjdfstest: what it asks of files and directories, as root and as other users.
//!
//! What the mount refuses by design (docs/SEMANTICS.md: hard and symbolic links, sockets, FIFOs, devices) fails there; nothing else
//! may, but for [`DIFFERS`]. `packaging/dev.sh test` installs the program and names it in `TIDEFS_TEST_POSIX`; without
//! that it is looked for in `PATH`, and the test says that it is skipped where there is none.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::common::modes::in_both_modes;
use super::common::{Mode, Mount, program};

/// Longest time for the suite.
const SUITE: Duration = Duration::from_secs(180);

/// What the suite runs without, of what it knows: Linux has it, and a nap is longer than the grain of its timestamps.
const CONFIGURATION: &str = r#"
[features]
posix_fallocate = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.02
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
"#;

/// Kinds of files that are refused, as cases are named after them.
const REFUSED: [&str; 5] = ["block", "char", "fifo", "socket", "symlink"];

/// Cases that need a file of such a kind, or a second link, on their way, and whose names do not say so.
const NEED_WHAT_IS_REFUSED: [&str; 9] = [
    "chmod::change_perm::dir",
    "chmod::change_perm::regular",
    "open::fifo_nonblock_wronly",
    "open::open_nofollow",
    "open::socket_error",
    "rename::preserve_metadata::regular",
    "rename::to_multiply_linked::regular",
    "unlink::unchanged_ctime_failed::regular",
    "unlink::update_ctime_success::regular",
];

/// Opening a program that runs with `O_TRUNC` starts another object: what runs keeps its own, so nobody is refused.
const DIFFERS: &str = "open::etxtbsy";

fn may_fail(case: &str) -> bool {
    let (of, kind) = (case.split("::").next(), case.rsplit("::").next());
    kind.is_some_and(|kind| REFUSED.contains(&kind))
        || of.is_some_and(|of| ["link", "symlink", "mkfifo", "mknod"].contains(&of))
        || ["symlink", "eloop"].iter().any(|word| case.contains(word))
        || NEED_WHAT_IS_REFUSED.contains(&case)
        || case == DIFFERS
}

/// The suite's program; `None` where there is none.
fn suite() -> Option<OsString> {
    let named = env::var_os("TIDEFS_TEST_POSIX");
    let is_named = named.is_some();
    let suite = named.unwrap_or_else(|| "pjdfstest".into());
    let runs = Command::new(&suite).arg("--version").output().is_ok_and(|said| said.status.success());
    assert!(runs || !is_named, "{} does not run", Path::new(&suite).display());
    if !runs {
        eprintln!("skipped: pjdfstest is not installed (cargo install --locked pjdfstest)");
    }
    runs.then_some(suite)
}

/// Names of the cases that `said` ends with `end`.
fn cases<'s>(said: &'s str, end: &'s str) -> BTreeSet<&'s str> {
    let name_of = |line: &'s str| line.strip_suffix(end).map(str::trim).filter(|name| name.contains("::"));
    said.lines().filter_map(name_of).collect()
}

fn files_and_directories_are_as_posix_has_them(mode: Mode) {
    let Some(suite) = suite() else { return };
    // One case has a file with a byte behind 2 GiB.
    let mount = Mount::start(&mode.options(&["capacity=4GiB"]));
    let place = mount.namespace("posix");
    let configuration = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(configuration.path(), CONFIGURATION).expect("a configuration");
    let mut command = Command::new(suite);
    command.arg("-c").arg(configuration.path()).arg("-p").arg(&place).env_remove("RUST_BACKTRACE");
    let said = program::run(&mut command, SUITE).output;
    let (failed, passed) = (cases(&said, "FAILED"), cases(&said, "ok"));
    let surprising: Vec<_> = failed.iter().filter(|case| !may_fail(case)).collect();
    assert!(surprising.is_empty(), "{surprising:?} failed:\n{said}");
    assert!(passed.len() > 150, "the suite has run:\n{said}");
    assert!(
        mount.is_bare() || failed.contains("link::remove_link::regular"),
        "what is refused fails:\n{said}"
    );
    assert_eq!(fs::read_dir(&place).expect("readdir").count(), 0, "it removes what it made");
}

in_both_modes!(files_and_directories_are_as_posix_has_them);
