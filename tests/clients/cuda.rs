//! The memory of a cache registered with the CUDA driver, from a program in C.
//!
//! The driver is a stand-in (`cuda/driver.c`) that takes the same calls and is as strict about them, since there need be no
//! GPU. Where the machine has the driver itself, a last test uses that.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::c_library::Installed;
use super::common::program::{self, Finished};
use super::common::{Mode, Mount, kernel, modes};

/// Longest time for a compiler.
const COMPILER: Duration = Duration::from_secs(60);

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/cuda").join(name)
}

/// A folder with a stand-in for the driver, under the driver's name.
fn stand_in(options: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"])
        .args(options);
    compiler.arg("-o").arg(folder.path().join("libcuda.so.1")).arg(source("driver.c"));
    program::run(&mut compiler, COMPILER).success("cc");
    folder
}

fn has_driver() -> bool {
    let mut list = Command::new("/sbin/ldconfig");
    program::run(list.arg("-p"), COMPILER).output.contains("libcuda.so")
}

/// A mount and the program that registers it.
struct Setup {
    mount: Mount,
    library: Installed,
    program: PathBuf,
}

impl Setup {
    fn new(mode: Mode) -> Self {
        let library = Installed::new();
        let program = library.compile("cc", &["-std=c11", "-D_GNU_SOURCE"], &source("registered.c"));
        Self { mount: Mount::start(&mode.options(&[])), library, program }
    }

    /// Runs the program in a namespace of its own, with the driver in `folder`.
    fn run(&self, device: &str, folder: Option<&Path>, environment: &[(&str, &str)]) -> Finished {
        let place = self.mount.namespace("model");
        let arguments = [place.as_os_str(), device.as_ref()];
        self.library.run_with(&self.program, &arguments, folder, environment).success("registered")
    }
}

fn each_segment_is_known_to_the_driver_once_while_it_is_mapped(mode: Mode) {
    let (setup, driver) = (Setup::new(mode), stand_in(&[]));
    let is_fast = mode == Mode::Passthrough && !setup.mount.is_bare();
    let finished = setup.run("0", Some(driver.path()), &[]);
    // The writer has four segments mapped, the reader the same four, read-only.
    let expected = if is_fast {
        "registered 8, read-only 4, views 4\nviews after the close 1\nleft 0, contexts 0, faults 0\n"
    } else {
        "registered 0, read-only 0, views 0\nviews after the close 0\nleft 0, contexts 0, faults 0\n"
    };
    assert_eq!(finished.output, expected);
}

fn what_the_driver_refuses_is_read_and_written_as_before(mode: Mode) {
    let (setup, driver) = (Setup::new(mode), stand_in(&[]));
    let finished = setup.run("0", Some(driver.path()), &[("STAND_IN_SEGMENTS_MAX", "5")]);
    let is_fast = mode == Mode::Passthrough && !setup.mount.is_bare();
    let expected =
        if is_fast { "registered 5, read-only 1, views 1\n" } else { "registered 0, read-only 0, views 0\n" };
    assert!(finished.output.starts_with(expected), "{}", finished.output);
    assert!(finished.output.ends_with("left 0, contexts 0, faults 0\n"), "{}", finished.output);
}

modes::in_fast_modes!(
    each_segment_is_known_to_the_driver_once_while_it_is_mapped,
    what_the_driver_refuses_is_read_and_written_as_before,
);

#[test]
fn a_device_that_is_not_there_is_named() {
    let (setup, driver) = (Setup::new(Mode::Passthrough), stand_in(&[]));
    let finished = setup.run("7", Some(driver.path()), &[]);
    let expected =
        format!("-{}: cuDeviceGet says CUDA_ERROR_INVALID_DEVICE for CUDA device 7\n", libc::ENODEV);
    assert_eq!(finished.output, expected);
}

#[test]
fn a_driver_that_is_too_old_is_named_by_what_it_lacks() {
    let (setup, driver) = (Setup::new(Mode::Passthrough), stand_in(&["-DOLD"]));
    let finished = setup.run("0", Some(driver.path()), &[]);
    let expected = format!(
        "-{}: the CUDA driver has no `cuMemHostRegister_v2`: update the NVIDIA driver\n",
        libc::ENOSYS
    );
    assert_eq!(finished.output, expected);
}

#[test]
fn without_a_driver_the_cache_works_and_says_what_is_missing() {
    if has_driver() {
        eprintln!("SKIPPED: this machine has a CUDA driver");
        return;
    }
    let finished = Setup::new(Mode::Passthrough).run("0", None, &[]);
    let expected = format!("-{}: the CUDA driver cannot be loaded: no libcuda.so.1", libc::ENOSYS);
    assert!(finished.output.starts_with(&expected), "{}", finished.output);
}

#[test]
fn the_driver_of_a_real_gpu_registers_each_segment() {
    if !has_driver() || !kernel::has_fast_path() {
        eprintln!("SKIPPED: no CUDA driver on this machine");
        return;
    }
    let finished = Setup::new(Mode::Passthrough).run("0", None, &[]);
    assert!(finished.output.contains(", views 4\nviews after the close 1\n"), "{}", finished.output);
}
