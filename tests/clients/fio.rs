//! fio with checksummed blocks: every engine that clients use, direct and not, on one file and on many.
//!
//! Each run writes in random order and verifies what it wrote; then a second fio, another process, reads the sealed
//! files and verifies every block again.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::common::modes::in_both_modes;
use super::common::{Mode, Mount, program};

/// Longest time for one fio.
const FIO: Duration = Duration::from_secs(120);

/// How the 64 MiB are laid out.
#[derive(Clone, Copy, Debug)]
struct Layout {
    name: &'static str,
    files: &'static str,
    block: &'static str,
}

const ONE_FILE: Layout = Layout { name: "one", files: "1", block: "64k" };
const MANY_FILES: Layout = Layout { name: "many", files: "32", block: "16k" };

fn fio(place: &Path, engine: &str, direct: bool, layout: Layout, job: &[&str]) -> Command {
    let mut command = Command::new("fio");
    command.arg(format!("--name={engine}-{}-{}", layout.name, u8::from(direct)));
    command.arg(format!("--directory={}", place.display()));
    command.arg(format!("--ioengine={engine}"));
    command.arg(format!("--direct={}", u8::from(direct)));
    command.arg(format!("--nrfiles={}", layout.files));
    command.arg(format!("--bs={}", layout.block));
    // Else it leaves a file of its own state where the test runs.
    command.arg("--verify_state_save=0");
    command.args(["--size=64m", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--randseed=7"]);
    command.args(job);
    command
}

fn write_and_verify(mode: Mode, engine: &str, direct: bool) {
    let mount = Mount::start(&mode.options(&["capacity=512MiB"]));
    let place = mount.namespace("fio");
    for layout in [ONE_FILE, MANY_FILES] {
        let what = format!("fio {engine}, direct {direct}, {layout:?}");
        program::run(&mut fio(&place, engine, direct, layout, &["--rw=randwrite", "--do_verify=1"]), FIO)
            .success(&what);
        program::run(&mut fio(&place, engine, direct, layout, &["--rw=read"]), FIO)
            .success(&format!("{what}, read by another process"));
        let wanted: usize = layout.files.parse().expect("a number");
        let left = std::fs::read_dir(&place).expect("a readable directory").count();
        assert_eq!(left, wanted, "{what}: files that are there");
        for entry in std::fs::read_dir(&place).expect("a readable directory") {
            std::fs::remove_file(entry.expect("an entry").path()).expect("fio's file can be removed");
        }
    }
}

fn libaio(mode: Mode) {
    write_and_verify(mode, "libaio", false);
    write_and_verify(mode, "libaio", true);
}

fn io_uring(mode: Mode) {
    write_and_verify(mode, "io_uring", false);
    write_and_verify(mode, "io_uring", true);
}

fn mmap(mode: Mode) {
    write_and_verify(mode, "mmap", false);
}

fn sync(mode: Mode) {
    write_and_verify(mode, "sync", false);
    write_and_verify(mode, "sync", true);
}

in_both_modes!(libaio, io_uring, mmap, sync);
