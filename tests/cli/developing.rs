//! `packaging/dev.sh run` for a user whom sudo asks for no password, with the programs that were built for the tests.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, iter};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::common::mount::{mounts_below, wait_for};
use super::common::wait::until;
use super::mount_and_umount::Unmounted;
use super::tool::{argument, binary};

/// Longest time until the script has shown that the mount works, or until it has unmounted.
const LONG: Duration = Duration::from_secs(50);

/// What the script finds before the programs of the system.
const PROGRAMS: [(&str, &str); 4] = [
    ("id", "echo 1000"),
    // Where no command needs a password: -v asks for one all the same.
    ("sudo", "test \"$1\" = -- || exit 1; shift; exec \"$@\""),
    ("cargo", "echo cargo 99.0.0"),
    // Not every machine has one; shells have their own.
    ("kill", "exit 127"),
];

#[test]
fn who_needs_no_password_for_sudo_runs_what_was_built_in_a_relative_folder() {
    let place = Unmounted::new();
    let base = place.base.path().canonicalize().expect("a directory");
    let [programs, built] = ["programs", "build/release"].map(|name| base.join(name));
    for folder in [&programs, &built] {
        fs::create_dir_all(folder).expect("a directory");
    }
    for (name, text) in PROGRAMS {
        let program = programs.join(name);
        fs::write(&program, format!("#!/bin/sh\n{text}\n")).expect("a script");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    for program in [Path::new(env!("CARGO_BIN_EXE_tidefsd")), binary().as_path()] {
        symlink(program, built.join(program.file_name().expect("a name"))).expect("a link");
    }
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().expect("the checkout");
    let up = "../".repeat(checkout.components().count() - 1);
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(iter::once(programs).chain(env::split_paths(&path))).expect("no colon");

    let said = base.join("said");
    let mut command = Command::new("bash");
    command.arg(checkout.join("packaging/dev.sh")).args(["run", argument(&place.point), "--", "-o"]);
    command.arg(place.options(&format!(",state_dir={}", place.state.display())));
    command.env("PATH", path).env("DEV_SH_NO_APT", "1");
    command.env("CARGO_TARGET_DIR", format!("{up}{}", argument(&base.join("build")).trim_start_matches('/')));
    command.stdin(Stdio::null()).stdout(File::create(&said).expect("a file"));
    let mut script = command.spawn().expect("bash");
    let has_said = || fs::read_to_string(&said).unwrap_or_default();
    let is_up = || has_said().contains("To stop:") || script.try_wait().is_ok_and(|ended| ended.is_some());
    assert!(until(LONG, is_up) && has_said().contains("To stop:"), "{}", has_said());
    kill(Pid::from_raw(i32::try_from(script.id()).expect("a pid is an i32")), Signal::SIGTERM)
        .expect("it runs");
    let status = wait_for(&mut script, LONG).expect("it ends");
    assert!(status.success() && has_said().contains("unmounted."), "{status}: {}", has_said());
    assert_eq!(mounts_below(&place.point), Vec::<std::path::PathBuf>::new());
}
