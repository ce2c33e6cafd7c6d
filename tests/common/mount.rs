//! One mount of its own for each test: starts the daemon, waits until the mount answers, and takes all of it away.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, thread};

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, geteuid};
use tempfile::TempDir;
use tidefs_control_api::instance::instance_name;

use super::control::{self, Answer};
use super::daemon_process::{end_by_force, in_own_pid_namespace};
use super::wait;

/// Longest time from the start of the daemon to the line that says that it is mounted.
const START: Duration = Duration::from_secs(20);
/// Longest time from SIGTERM to the end of the daemon.
const STOP: Duration = Duration::from_secs(20);
/// Capacity of a mount whose test names none.
const CAPACITY: &str = "256MiB";

/// A mounted tidefs with its daemon, in a temporary directory that also holds the daemon's state.
#[derive(Debug)]
pub(crate) struct Mount {
    base: Option<TempDir>,
    point: PathBuf,
    state: PathBuf,
    arguments: Vec<OsString>,
    daemon: Option<Child>,
    bare: bool,
    failure_expected: bool,
}

impl Mount {
    /// Starts a daemon with these `key=value` options on a fresh mount point and returns once the mount answers.
    ///
    /// Defaults, each overridden by naming its key: `capacity=256MiB`, `on_stop=discard`, `runtime.state_dir` and
    /// `scratch.dir` in the temporary directory, `capacity` and `scratch.dir` the daemon's with the key alone. An option that starts with `--` is passed on as a flag of the command line.
    pub(crate) fn start(options: &[&str]) -> Self {
        let mut mount = Self::prepare(options);
        mount.start_daemon();
        mount
    }

    /// Everything of [`Mount::start`] but the daemon, which [`Mount::start_daemon`] starts.
    pub(crate) fn prepare(options: &[&str]) -> Self {
        let bare = env::var_os("TIDEFS_TEST_DIR");
        let mut builder = tempfile::Builder::new();
        builder.prefix("tidefs-test-").permissions(fs::Permissions::from_mode(0o755));
        let base = match &bare {
            Some(directory) => builder.tempdir_in(directory),
            None => builder.tempdir(),
        }
        .expect("a temporary directory");
        let (point, state) = (base.path().join("mount"), base.path().join("state"));
        fs::create_dir(&point).expect("a mount point");
        fs::create_dir(&state).expect("a state directory");
        let arguments = command_line(&point, &state, options);
        let bare = bare.is_some();
        Self { base: Some(base), point, state, arguments, daemon: None, bare, failure_expected: false }
    }

    /// Starts the daemon and waits until it says that it is mounted; fails the test with its log when it does not.
    ///
    /// The daemon ends with the thread that calls this.
    #[track_caller]
    pub(crate) fn start_daemon(&mut self) {
        self.start_daemon_within(START);
    }

    /// The same, for a start that has much to find.
    #[track_caller]
    pub(crate) fn start_daemon_within(&mut self, limit: Duration) {
        self.start_daemon_by(limit, Command::spawn);
    }

    /// The same as [`Self::start_daemon`], as in a container of its own: it sees no process but its own.
    #[track_caller]
    pub(crate) fn start_daemon_apart(&mut self) {
        self.start_daemon_by(START, |command| in_own_pid_namespace(|| command.spawn()));
    }

    /// The same, with what `spawn` does to the command.
    #[track_caller]
    pub(crate) fn start_daemon_by(
        &mut self,
        limit: Duration,
        spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
    ) {
        if self.bare {
            return;
        }
        assert!(self.daemon.is_none(), "the daemon of {} is running already", self.point.display());
        let log = File::options().create(true).append(true).open(self.log_path()).expect("a log file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidefsd"));
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        // SAFETY: between fork and exec the closure makes one async-signal-safe system call and allocates nothing.
        unsafe {
            command.pre_exec(|| {
                nix::sys::prctl::set_pdeathsig(Some(Signal::SIGTERM)).map_err(std::io::Error::from)
            });
        }
        let mut child = spawn(&mut command).expect("the daemon starts");
        let (sender, receiver) = mpsc::channel();
        let stdout = child.stdout.take().expect("stdout is a pipe");
        thread::spawn(move || {
            // Reads to the end, so that the daemon never blocks on its standard output.
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if line.starts_with("tidefs: mounted on") {
                    let _ = sender.send(());
                }
            }
        });
        let mounted = receiver.recv_timeout(limit).is_ok();
        self.daemon = Some(child);
        if !mounted {
            let status = self.daemon.as_mut().and_then(|child| child.try_wait().ok().flatten());
            panic!(
                "the daemon did not mount within {limit:?} (exit: {status:?}, arguments {:?})",
                self.arguments
            );
        }
    }

    /// The mount point.
    pub(crate) fn path(&self) -> &Path {
        &self.point
    }

    /// A path below the mount point.
    pub(crate) fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    /// The namespace `name` of the mount, made if it is not there.
    pub(crate) fn namespace(&self, name: &str) -> PathBuf {
        let path = self.point.join(name);
        fs::create_dir_all(&path).expect("a namespace");
        path
    }

    /// The directory given to the daemon as `runtime.state_dir`.
    pub(crate) fn state_dir(&self) -> &Path {
        &self.state
    }

    /// The state of this mount's instance: the one directory in [`Mount::state_dir`].
    #[track_caller]
    pub(crate) fn instance_dir(&self) -> PathBuf {
        let mut entries = fs::read_dir(&self.state).expect("the state directory");
        entries.next().expect("an instance directory").expect("a readable entry").path()
    }

    /// The process id of the running daemon.
    pub(crate) fn pid(&self) -> Pid {
        let id = self.daemon.as_ref().expect("the daemon runs").id();
        Pid::from_raw(i32::try_from(id).expect("a pid is an i32"))
    }

    /// The directory given to the daemon as `scratch.dir`.
    pub(crate) fn scratch_dir(&self) -> PathBuf {
        self.state.with_file_name("scratch")
    }

    /// Whether this is a plain directory without a daemon (`TIDEFS_TEST_DIR`).
    pub(crate) fn is_bare(&self) -> bool {
        self.bare
    }

    /// Everything that the daemons of this mount wrote to standard error.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// GET of the admin socket.
    #[track_caller]
    pub(crate) fn control_get(&self, target: &str) -> Answer {
        self.control("GET", target, None)
    }

    /// Any request of the admin socket.
    #[track_caller]
    pub(crate) fn control(&self, method: &str, target: &str, body: Option<&str>) -> Answer {
        let socket = self.instance_dir().join("control.sock");
        control::request(&socket, method, target, body).unwrap_or_else(|error| {
            panic!("{method} {target} on {}: {error}\n{}", socket.display(), self.threads_of_the_daemon())
        })
    }

    /// What each thread of the daemon is doing, by the kernel's account: for a failure that nobody can repeat.
    fn threads_of_the_daemon(&self) -> String {
        let tasks = format!("/proc/{}/task", self.pid());
        let Ok(entries) = fs::read_dir(&tasks) else { return format!("no {tasks}: the daemon is gone") };
        let of = |path: &Path, name: &str| fs::read_to_string(path.join(name)).unwrap_or_default();
        let thread = |path: PathBuf| {
            let state = of(&path, "stat")
                .rsplit_once(") ")
                .map_or('?', |(_, rest)| rest.chars().next().unwrap_or('?'));
            format!("{} {state} {}\n{}", of(&path, "comm").trim(), of(&path, "wchan"), of(&path, "stack"))
        };
        entries.flatten().map(|entry| thread(entry.path())).collect()
    }

    /// Free bytes of memory, as the daemon tells them; statfs counts the disks of the SSD tier, too.
    pub(crate) fn free_memory(&self) -> u64 {
        self.control_get("/v1/status").json()["free"].as_u64().expect("a number of bytes")
    }

    /// Bytes in use and bytes of capacity, as statfs tells them.
    pub(crate) fn usage(&self) -> Usage {
        let facts = statvfs(&self.point).expect("statfs answers");
        let unit = facts.fragment_size();
        Usage {
            capacity: facts.blocks() * unit,
            used: (facts.blocks() - facts.blocks_free()) * unit,
            available: facts.blocks_available() * unit,
        }
    }

    /// Waits until nobody has these files open as far as the daemon knows, which it hears a moment after close(2) returned:
    /// until then a file is not counted, packed, checksummed, lent or evicted. This is no use of them. Views of the client library
    /// count as well: a cache that goes on has to be flushed.
    #[track_caller]
    pub(crate) fn wait_until_closed<P: AsRef<Path>>(&self, paths: impl IntoIterator<Item = P>) {
        if self.bare {
            return;
        }
        for path in paths {
            let path = path.as_ref();
            let key = path.strip_prefix(&self.point).unwrap_or(path);
            let key: String = key.as_os_str().as_bytes().iter().map(|&byte| in_query(byte)).collect();
            let stat = || self.control_get(&format!("/v1/stat?path={key}")).json();
            let is_closed = || {
                let stat = stat();
                stat["references"] == 0 && stat["tier"] != "writing"
            };
            assert!(wait::until(wait::HANG, is_closed), "{key} is still open: {}", stat());
        }
    }

    /// Sends a signal to the daemon.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the daemon can be signalled");
    }

    /// Stops the daemon with SIGSTOP until [`go_on`](Self::go_on), and waits until all its threads stand still: kill(2) returns
    /// before, and a thread that runs on another processor may answer once more.
    #[track_caller]
    pub(crate) fn stand_still(&self) {
        self.signal(Signal::SIGSTOP);
        assert!(wait::until(wait::HANG, || self.stands_still()), "SIGSTOP does not stop the daemon");
    }

    /// Whether all threads of the daemon are stopped by a signal.
    pub(crate) fn stands_still(&self) -> bool {
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let status = waitid(Id::Pid(self.pid()), flags).expect("the daemon is a child of this process");
        matches!(status, WaitStatus::Stopped(..))
    }

    /// Lets a daemon that stands still go on.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Stops the daemon with SIGTERM and returns how it ended.
    #[track_caller]
    pub(crate) fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        let mut child = self.daemon.take().expect("the daemon runs");
        match wait_for(&mut child, STOP) {
            Some(status) => status,
            None => {
                self.daemon = Some(child);
                panic!("the daemon did not end within {STOP:?} of SIGTERM");
            }
        }
    }

    /// Waits for the end of a daemon that nobody told to stop, and returns how it ended.
    #[track_caller]
    pub(crate) fn wait_for_end(&mut self) -> ExitStatus {
        let mut child = self.daemon.take().expect("the daemon runs");
        let status = wait_for(&mut child, STOP);
        self.daemon = status.is_none().then_some(child);
        status.unwrap_or_else(|| panic!("the daemon does not end by itself within {STOP:?}"))
    }

    /// Kills the daemon as a crash would. The mount point stays, dead: do not touch it from the test's own thread.
    pub(crate) fn kill9(&mut self) {
        let mut child = self.daemon.take().expect("the daemon runs");
        let left = end_by_force(&mut child, &self.point);
        assert!(
            left.is_none(),
            "the killed daemon does not die, and its clients wait: {}",
            left.unwrap_or_default()
        );
    }

    /// Stops the daemon if it runs, checking that it ends well, and starts it again on the same state.
    ///
    /// Give `on_stop=keep` to [`Mount::start`] when the objects are to survive a clean stop.
    #[track_caller]
    pub(crate) fn restart(&mut self) {
        if self.bare {
            return;
        }
        if self.daemon.is_some() {
            let status = self.stop();
            assert!(status.success(), "the daemon ended with {status} on SIGTERM");
        }
        self.start_daemon();
    }

    /// Says that this test breaks its daemon on purpose: how it ends is no matter.
    pub(crate) fn expect_failure(&mut self) {
        self.failure_expected = true;
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.point.with_file_name("log")
    }

    /// Ends the daemon, by force when it does not end itself; says what was wrong with its end.
    fn end_daemon(&mut self) -> Result<(), String> {
        let Some(mut child) = self.daemon.take() else { return Ok(()) };
        let ended = child.try_wait().ok().flatten();
        if let Some(status) = ended {
            return Err(format!("the daemon ended by itself: {status}"));
        }
        let id = Pid::from_raw(i32::try_from(child.id()).expect("a pid is an i32"));
        let _ = kill(id, Signal::SIGCONT);
        let _ = kill(id, Signal::SIGTERM);
        match wait_for(&mut child, STOP) {
            Some(status) if status.success() => match mounts_below(self.base_path()) {
                left if left.contains(&self.point) => {
                    Err("the daemon ended with 0 on SIGTERM and left its mount".into())
                }
                _ => Ok(()),
            },
            Some(status) => Err(format!("the daemon ended with {status} on SIGTERM")),
            None => {
                let left = end_by_force(&mut child, &self.point);
                let wedged =
                    left.map(|left| format!(", and did not die before its connection was aborted: {left}"));
                let wedged = wedged.unwrap_or_default();
                Err(format!("the daemon did not end within {STOP:?} of SIGTERM and was killed{wedged}"))
            }
        }
    }

    fn base_path(&self) -> &Path {
        self.point.parent().expect("the mount point has a parent")
    }

    /// Removes what the daemon of root keeps of this mount elsewhere, where the temporary directory is lost with a restart of the machine.
    fn remove_what_lasts(&self) {
        let Ok(base) = self.base_path().canonicalize() else { return };
        let instance = instance_name(&base.join("mount"));
        if geteuid().is_root() && !self.bare {
            // Mostly there is nothing.
            let _ = fs::remove_dir_all(Path::new("/var/lib/tidefs").join(instance));
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let end = self.end_daemon();
        for point in mounts_below(self.base_path()).iter().rev() {
            let _ = umount2(point.as_path(), MntFlags::MNT_DETACH);
        }
        self.remove_what_lasts();
        let log = self.log();
        if !mounts_below(self.base_path()).is_empty() {
            // Removing the directory would remove what is mounted below it.
            let _ = self.base.take().map(TempDir::keep);
        }
        let failed = end.is_err() && !self.failure_expected;
        if failed || thread::panicking() {
            let tail = log.len().saturating_sub(20_000);
            eprintln!("--- log of the daemon ---\n{}\n---", String::from_utf8_lossy(&log.as_bytes()[tail..]));
        }
        if let Err(reason) = end
            && failed
        {
            assert!(thread::panicking(), "{reason}");
            eprintln!("{reason}");
        }
    }
}

/// What statfs says of a mount, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// `f_blocks`.
    pub(crate) capacity: u64,
    /// `f_blocks - f_bfree`.
    pub(crate) used: u64,
    /// `f_bavail`.
    pub(crate) available: u64,
}

/// The arguments of the daemon: the mount point, the options given, and the defaults of those not given.
fn command_line(point: &Path, state: &Path, options: &[&str]) -> Vec<OsString> {
    let names = |key: &str| options.iter().any(|option| option.split('=').next() == Some(key));
    // A key without a value keeps the daemon's own default.
    let is_given = |option: &&str| !matches!(*option, "capacity" | "scratch.dir");
    let options: Vec<&str> = options.iter().copied().filter(is_given).collect();
    let mut pairs: Vec<OsString> = Vec::new();
    if !names("capacity") {
        pairs.push(format!("capacity={CAPACITY}").into());
    }
    if !names("on_stop") {
        pairs.push("on_stop=discard".into());
    }
    for (key, directory) in [("runtime.state_dir", state), ("scratch.dir", &state.with_file_name("scratch"))]
    {
        if !names(key) {
            let mut pair = OsString::from(key);
            pair.push("=");
            pair.push(directory);
            pairs.push(pair);
        }
    }
    pairs.extend(options.iter().filter(|option| !option.starts_with("--")).map(OsString::from));
    let mut arguments: Vec<OsString> = vec![point.into()];
    for pair in pairs {
        match pair.to_str().and_then(|pair| pair.strip_prefix("capacity=")) {
            Some(size) => arguments.extend(["--capacity".into(), size.into()]),
            None => arguments.extend(["-o".into(), pair]),
        }
    }
    arguments.extend(options.iter().filter(|option| option.starts_with("--")).map(OsString::from));
    arguments
}

/// Waits for the end of a child, at most until `deadline`.
pub(crate) fn wait_for(child: &mut Child, deadline: Duration) -> Option<ExitStatus> {
    let mut status = None;
    wait::until(deadline, || {
        status = child.try_wait().expect("a child can be waited for");
        status.is_some()
    });
    status
}

/// The mount points at or below `directory`, outermost first, from the kernel's list and without touching them.
pub(crate) fn mounts_below(directory: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    points.filter(|point| point.starts_with(directory)).collect()
}

/// A byte of a key, as a query of a URL has it.
fn in_query(byte: u8) -> String {
    let is_plain = byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    if is_plain { char::from(byte).to_string() } else { format!("%{byte:02X}") }
}
