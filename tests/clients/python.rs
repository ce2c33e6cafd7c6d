//! The Python scripts beside this file: one per shape of use, one for LMCache, one for safetensors, one for numpy.
//!
//! The interpreter is `TIDEFS_TEST_PYTHON`, else `target/test-venv/bin/python`, which has numpy and safetensors. If
//! neither is there, the system's `python3` runs the scripts that need the standard library only, and the others are
//! skipped with a message.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::common::modes::in_both_modes;
use super::common::{Mode, Mount, program};

/// Longest time for one script on a loaded machine.
const SCRIPT: Duration = Duration::from_secs(180);

/// The interpreter with the client libraries, if there is one.
pub(crate) fn interpreter_with_libraries() -> Option<PathBuf> {
    let named = env::var_os("TIDEFS_TEST_PYTHON").map(PathBuf::from);
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-venv/bin/python");
    named.or_else(|| made.exists().then_some(made))
}

/// Runs a script on a fresh mount and fails with all it said when one of its steps failed.
fn run_script(mode: Mode, script: &str, libraries_needed: bool) {
    let python = match interpreter_with_libraries() {
        Some(python) => python,
        None if libraries_needed => {
            eprintln!(
                "SKIPPED {script}: no Python with numpy and safetensors; `packaging/dev.sh test` makes one"
            );
            return;
        }
        None => PathBuf::from("python3"),
    };
    let mount = Mount::start(&mode.options(&["capacity=1GiB"]));
    let place = mount.namespace("clients");
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/scripts");
    let mut command = Command::new(python);
    command.arg("-B").arg(scripts.join(script)).arg(&place);
    if !mount.is_bare() {
        command.env("TIDEFS_STRICT", "1");
    }
    let finished = program::run(&mut command, SCRIPT).success(script);
    assert!(finished.output.contains("ok "), "{script} ran no step: {}", finished.output);
    println!("{}", finished.output);
}

fn clients_that_rename(mode: Mode) {
    run_script(mode, "rename_shape.py", false);
}

fn lmcache(mode: Mode) {
    run_script(mode, "lmcache_shape.py", false);
}

fn clients_that_write_the_final_name(mode: Mode) {
    run_script(mode, "final_name_shape.py", false);
}

fn clients_with_slot_files(mode: Mode) {
    run_script(mode, "slot_shape.py", false);
}

fn safetensors(mode: Mode) {
    run_script(mode, "safetensors_client.py", true);
}

fn numpy(mode: Mode) {
    run_script(mode, "numpy_client.py", true);
}

in_both_modes!(
    clients_that_rename,
    lmcache,
    clients_that_write_the_final_name,
    clients_with_slot_files,
    safetensors,
    numpy,
);
