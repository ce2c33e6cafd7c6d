//! Writers in a control group with a limit on memory, as a container has.
//!
//! Needs a control group that counts memory, of either version, which only root may make: skipped with a message elsewhere.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use super::common::Mount;

/// Of which the writer may have no more at once.
const LIMIT: u64 = 32 << 20;
/// What it writes is three times as much.
const OBJECTS: usize = 8;
const OBJECT_MIB: usize = 12;

/// A group with a limit that is removed when this is dropped.
struct Group(PathBuf);

impl Group {
    fn new() -> Result<Self, String> {
        let root = Path::new("/sys/fs/cgroup");
        let (hierarchy, limit) = if root.join("memory/memory.limit_in_bytes").exists() {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            (root.to_owned(), "memory.max")
        };
        let group = Self(hierarchy.join(format!("tidefs-test-{}", std::process::id())));
        fs::create_dir(&group.0).map_err(|error| format!("{}: {error}", group.0.display()))?;
        let limit = group.0.join(limit);
        fs::write(&limit, LIMIT.to_string()).map_err(|error| format!("{}: {error}", limit.display()))?;
        Ok(group)
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo $$ > {}/cgroup.procs && {script}", self.0.display())]);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended is in it for a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn what_a_container_writes_does_not_count_against_its_limit_on_memory() {
    let group = match Group::new() {
        Ok(group) => group,
        Err(reason) => {
            return println!("skipped: no control group with a limit on memory can be made: {reason}");
        }
    };
    let mount = Mount::start(&["capacity=512MiB"]);
    let namespace = mount.namespace("kv");
    // After the first one, each is far larger than what is expected.
    let write = format!(
        "cd {} && head -c 1048576 /dev/zero > 0 && \
         for number in $(seq {OBJECTS}); do head -c {OBJECT_MIB}M /dev/zero > $number || exit 1; done",
        namespace.display()
    );
    let status = group.command(&write).status().expect("sh");
    assert!(status.success(), "the writer was ended: {status}");
    for number in 1..=OBJECTS {
        let length = fs::metadata(namespace.join(number.to_string())).expect("an object").len();
        assert_eq!(length, (OBJECT_MIB as u64) << 20);
    }
}
