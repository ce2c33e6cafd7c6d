//! The Python package as a user gets it: a wheel, built by maturin, installed by pip into a virtual environment of its own.
//!
//! maturin and numpy are those of the interpreter that the other scripts use; without one the tests say that they are
//! skipped. `packaging/dev.sh test` makes it, and builds the wheel before the tests, so that here nothing is compiled.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use tempfile::TempDir;

use super::common::program::{self, Finished};
use super::common::{Mode, Mount, kernel};
use super::python::interpreter_with_libraries;

/// Longest time for the build of the wheel where nobody built it before.
const BUILD: Duration = Duration::from_secs(200);
/// Longest time for pip, or one script on a loaded machine.
const SCRIPT: Duration = Duration::from_secs(120);

fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The package, installed.
pub(crate) struct Package {
    environment: TempDir,
    /// Where numpy is.
    libraries: String,
}

impl Package {
    /// Builds the wheel and installs it. `None`, with a message, where there is no maturin.
    pub(crate) fn installed() -> Option<Self> {
        let python = interpreter_with_libraries().filter(|python| python.with_file_name("maturin").exists());
        let Some(python) = python else {
            eprintln!(
                "SKIPPED the Python package: no Python with maturin; `packaging/dev.sh test` makes one"
            );
            return None;
        };
        let mut ask = Command::new(&python);
        ask.args(["-c", "import sys; print(sys.version_info >= (3, 11))"]);
        if program::run(&mut ask, SCRIPT).success("its version").output.trim() != "True" {
            eprintln!("SKIPPED the Python package: {} is older than Python 3.11", python.display());
            return None;
        }
        let environment = tempfile::tempdir().expect("a temporary directory");
        let wheels = environment.path().join("wheels");
        let mut maturin = Command::new(checkout().join("mount-tools/client-python/build.sh"));
        maturin.args([&python, &wheels]);
        {
            // It moves what cargo built to a place of its own, which two at once would take from each other.
            let lock =
                File::create(concat!(env!("CARGO_TARGET_TMPDIR"), "/wheel.lock")).expect("a file to lock");
            let _alone =
                Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error).expect("a lock");
            program::run(&mut maturin, BUILD).success("build.sh");
        }
        let wheel =
            std::fs::read_dir(&wheels).expect("the wheels").next().expect("one").expect("its name").path();
        let name = wheel.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(name.contains("-cp311-abi3-"), "{name} serves every Python from 3.11 on");

        let place = environment.path().join("venv");
        let mut venv = Command::new(&python);
        program::run(venv.args(["-m", "venv", "--without-pip"]).arg(&place), SCRIPT).success("venv");
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "--disable-pip-version-check", "--python"]).arg(place.join("bin/python3"));
        pip.args(["install", "--no-index", "--no-deps"]).arg(&wheel);
        program::run(&mut pip, SCRIPT).success("pip install");
        let mut ask = Command::new(&python);
        ask.args(["-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]);
        let libraries = program::run(&mut ask, SCRIPT).success("sysconfig").output.trim().to_owned();
        Some(Self { environment, libraries })
    }

    /// Runs a script with the package, and with numpy.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, script: &Path, arguments: &[S], is_fast: bool) -> Finished {
        let mut command = Command::new(self.environment.path().join("venv/bin/python3"));
        command.arg("-B").arg(script).args(arguments).env("PYTHONPATH", &self.libraries);
        command.env("TIDEFS_EXPECT_FAST", if is_fast { "1" } else { "0" });
        program::run(&mut command, SCRIPT)
    }
}

/// Runs the cases of a script, which are `count` at least, in a directory of each kind.
fn run_cases(script: &str, count: usize) {
    let Some(package) = Package::installed() else { return };
    let path: PathBuf = checkout().join("tests/clients/scripts").join(script);
    let run = |place: &Path, is_fast: bool| {
        let finished = package.run(&path, &[place], is_fast).success(script);
        assert!(
            finished.output.lines().filter(|line| line.starts_with("ok ")).count() >= count,
            "{}",
            finished.output
        );
        // It says what it skipped.
        println!("{}", finished.output);
    };
    for mode in [Mode::Passthrough, Mode::Direct] {
        let mount = Mount::start(&mode.options(&[]));
        run(&mount.namespace("package"), mode == Mode::Passthrough && !mount.is_bare());
    }
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    run(elsewhere.path(), false);
}

#[test]
fn the_wheel_shows_objects_without_a_copy_and_keeps_them_while_they_are_used() {
    run_cases("tidefs_package.py", 11);
}

#[test]
fn the_wheel_tells_of_each_object_and_an_engine_is_collected_with_its_cache() {
    run_cases("tidefs_stores.py", 4);
}

/// What hangs here ends with a trace of all threads.
#[test]
fn nobody_waits_for_a_registration_that_waits_for_the_interpreter() {
    if !kernel::has_fast_path() {
        return;
    }
    let Some(package) = Package::installed() else { return };
    let script = checkout().join("tests/clients/scripts/tidefs_hooks.py");
    let mount = Mount::start(&Mode::Passthrough.options(&[]));
    let finished = package.run(&script, &[mount.namespace("hooks")], true).success("tidefs_hooks.py");
    assert_eq!(
        finished.output.lines().filter(|line| line.starts_with("ok ")).count(),
        5,
        "{}",
        finished.output
    );
}
