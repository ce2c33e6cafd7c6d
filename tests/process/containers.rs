//! What a container sees of a mount whose daemon is started again.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::common::Mount;
use super::common::wait::{HANG, within};

/// A folder whose mounts others are told of.
struct Shared(PathBuf);

impl Shared {
    fn new(folder: &Path) -> Self {
        mount(Some(folder), folder, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("a bind mount");
        let shared = Self(folder.to_owned());
        mount(None::<&str>, folder, None::<&str>, MsFlags::MS_SHARED, None::<&str>).expect("a shared mount");
        shared
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

/// A shell in a mount namespace of its own that was given a folder and is told what is mounted below it from then on, as by
/// `docker run -v FOLDER:VIEW:rslave` and `mountPropagation: HostToContainer`.
struct Container {
    shell: Child,
    answers: Option<BufReader<ChildStdout>>,
}

impl Container {
    fn start(folder: &Path, view: &Path) -> Self {
        let script = "mount --rbind \"$0\" \"$1\" && mount --make-rslave \"$1\" && \
                      while read -r path; do printf '%s\\n' \"$(cat \"$path\" 2>&1)\"; done";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "slave", "sh", "-c", script]).arg(folder).arg(view);
        let mut shell =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare is installed");
        let answers = shell.stdout.take().map(BufReader::new);
        Self { shell, answers }
    }

    /// The one line of a file, or what cat says of it.
    fn read(&mut self, path: &Path) -> String {
        let stdin = self.shell.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{}", path.display()).expect("the shell listens");
        let mut answers = self.answers.take().expect("a pipe");
        let (answers, line) = within(HANG, move || {
            let mut line = String::new();
            answers.read_line(&mut line).expect("an answer");
            (answers, line)
        })
        .expect("the shell answers");
        self.answers = Some(answers);
        line.trim_end().to_owned()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

#[test]
fn a_container_that_is_told_of_mounts_reads_on_after_the_daemon_was_killed_and_started_again() {
    let mut mount = Mount::prepare(&["capacity=64MiB", "on_stop=keep"]);
    let folder = mount.path().parent().expect("a folder").to_owned();
    let shared = Shared::new(&folder);
    mount.start_daemon();
    let object = mount.namespace("kv").join("object");
    fs::write(&object, b"as before").expect("write");
    mount.wait_until_closed([&object]);
    let view = tempfile::tempdir().expect("a folder");
    let seen = view.path().join(object.strip_prefix(&folder).expect("it is below"));
    let mut container = Container::start(&folder, view.path());
    assert_eq!(container.read(&seen), "as before");
    mount.kill9();
    assert_ne!(container.read(&seen), "as before", "without a daemon there is nothing");
    mount.restart();
    assert_eq!(container.read(&seen), "as before");
    drop(container);
    assert!(mount.stop().success());
    drop(shared);
}
