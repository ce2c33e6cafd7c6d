//! Starts a daemon in the background and waits until its mount answers.
//!
//! The daemon leads a session of its own in `/`, reads nothing, has nothing open that its starter had, nor its place with a service
//! manager (`NOTIFY_SOCKET`), and writes its log into its state directory. The only thing it is waited for is the line
//! `tidefs: mounted on DIR` on its stdout, a pipe that is closed after. A daemon that has much to take over is waited for as long as
//! it says there that it starts, or its log grows.

mod starting;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tidefs_control_api::answer::Answer;
use tidefs_control_api::instance::{Instance, StateDir};
use tidefs_control_api::lock::{self, Daemon};
use tidefs_control_api::mounts::{Mount, MountTable};
use tidefs_control_api::{DiskState, Status, mount_options, routes};
use tidefs_engine::types::ByteCount;

use self::starting::{end, open_log, put_log_back};
pub(crate) use self::starting::{read_log, wait_for_end, wait_for_mount};
use crate::client::Client;
use crate::ffi;
use crate::trial::set_apart;

/// Exit code of a daemon whose command line or configuration is wrong.
const EXIT_CONFIGURATION: i32 = 2;

/// Time between two looks at the lock of a daemon that is to end.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Variable by which the daemon finds its configuration file.
const CONFIG_VARIABLE: &str = "TIDEFS_CONFIG";

/// Variable that has a service tell its manager of itself: the service is who starts the daemon, not the daemon.
const NOTIFY_VARIABLE: &str = "NOTIFY_SOCKET";

/// Keys by which `-o` names the state directory.
const STATE_DIR_KEYS: [&str; 2] = ["runtime.state_dir", "state_dir"];

/// A daemon to start.
#[derive(Debug)]
pub(crate) struct Launch {
    /// Mount point, resolved.
    pub(crate) dir: PathBuf,
    /// Texts of `-o`, handed on as they are: the daemon knows which options there are.
    pub(crate) options: Vec<String>,
    /// Value of `--capacity`.
    pub(crate) capacity: Option<ByteCount>,
    /// Value of `--config`.
    pub(crate) config: Option<PathBuf>,
    /// Where it keeps its state, unless `options` say.
    pub(crate) state_dir: Option<PathBuf>,
    /// Whether it goes by its command line alone, not by what this host is configured for.
    pub(crate) is_trial: bool,
    /// Time to wait for the mount, or for a sign that the daemon gets on.
    pub(crate) timeout: Duration,
}

/// A daemon that serves its mount.
#[derive(Debug)]
pub(crate) struct Started {
    /// Its process id.
    pub(crate) pid: u32,
    /// Its state, with its log.
    pub(crate) instance: Instance,
    /// Whether it replaced the mount of a dead daemon.
    pub(crate) replaced_stale: bool,
}

impl Started {
    /// Disks of the SSD tier that the mount does not find, and works without: none when it cannot be asked, since it is mounted
    /// all the same. Waits for the daemon; not for who drives a runtime.
    pub(crate) fn missing_disks(&self) -> Vec<String> {
        let asked = Client::new(&self.instance.control_socket()).and_then(|client| {
            client.get(routes::STATUS, &()).and_then(|value| client.read::<Status>(value))
        });
        let devices = asked.ok().and_then(|status| status.ssd).map(|tier| tier.devices).unwrap_or_default();
        devices
            .into_iter()
            .filter(|device| device.state == DiskState::Missing)
            .map(|device| device.path)
            .collect()
    }

    /// What people are told of the mount on `dir` beside that it is there, a sentence each.
    pub(crate) fn notes(&self, dir: &Path, missing_disks: &[String]) -> Vec<String> {
        let dir = dir.display();
        let replaced = self.replaced_stale.then(|| format!("replaced the mount of a dead daemon on {dir}"));
        let missing = missing_disks.iter().map(|disk| {
            format!(
                "warning: the disk {disk} of the SSD tier is missing, and the mount works without it: mount or attach it, or \
                 make the directory, and mount {dir} again, which gives up what it holds; a line of fstab waits for it with \
                 x-systemd.requires-mounts-for={disk}"
            )
        });
        replaced.into_iter().chain(missing).collect()
    }
}

/// Why there is no mount.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaunchError {
    #[error("{0}")]
    NoStateDir(#[from] tidefs_control_api::instance::NoStateDir),
    #[error("the path of a state directory is UTF-8, and {} is not", dir.display())]
    StateDirNotUtf8 { dir: PathBuf },
    #[error("{} is already served by process {}", dir.display(), pid.map_or("unknown".into(), |pid| pid.to_string()))]
    AlreadyServed { dir: PathBuf, pid: Option<u32> },
    #[error(
        "process {} keeps {} after {} s without a mount there: it is still stopping, or starting; its log is {}",
        pid.map_or("unknown".into(), |pid| pid.to_string()), dir.display(), timeout.as_secs(), log.display()
    )]
    StillStopping { dir: PathBuf, pid: Option<u32>, timeout: Duration, log: PathBuf },
    #[error(
        "{} is mounted on demand (autofs), which tidefs cannot be: leave out x-systemd.automount; nofail keeps a late mount \
         from holding up the boot", dir.display()
    )]
    OnDemand { dir: PathBuf },
    #[error("cannot {step} {}: {source}", path.display())]
    Io { step: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot start tidefsd: it stands neither beside {} nor in PATH", beside.display())]
    NoDaemon { beside: PathBuf },
    #[error("tidefsd ended with {status}\n{log}")]
    Ended { status: ExitStatus, log: String },
    #[error("tidefsd closed its output and goes on without a mount; it was stopped\n{log}")]
    Odd { log: String },
    #[error("neither a mount nor a sign that it gets on within {} s; tidefsd was stopped\n{log}", timeout.as_secs())]
    TimedOut { timeout: Duration, log: String },
}

impl LaunchError {
    /// Whether the caller asked for something that cannot be, rather than something having failed.
    pub(crate) fn is_usage(&self) -> bool {
        match self {
            Self::Ended { status, .. } => status.code() == Some(EXIT_CONFIGURATION),
            Self::NoStateDir(_) | Self::StateDirNotUtf8 { .. } | Self::OnDemand { .. } => true,
            _ => false,
        }
    }
}

impl Launch {
    /// Starts the daemon and waits for its mount; before that for the end of a daemon whose mount is gone, as umount(8) leaves
    /// it behind.
    ///
    /// A dead daemon's mount on the same directory is left alone: the new daemon takes it away right before it mounts, so that
    /// until then, and if it never does, programs meet the dead mount and not the directory below it.
    ///
    /// # Errors
    /// See [`LaunchError`]; no daemon is left running then.
    pub(crate) fn start(&self) -> Result<Started, LaunchError> {
        let deadline = Instant::now() + self.timeout;
        let state = self.state()?;
        if let Some(refusal) = self.refusal_of_remount() {
            return Err(refusal);
        }
        let answer = self.answer_of_mount(&state, deadline)?;
        let instance = state.instance(&self.dir);
        let log = instance.log();
        let log_file =
            open_log(&log).map_err(|source| LaunchError::Io { step: "write", path: log.clone(), source })?;
        let started = self.spawn(log_file).and_then(|mut child| {
            match wait_for_mount(&mut child, &log, self.timeout, deadline) {
                Ok(()) => Ok(child.id()),
                Err(error) => {
                    end(&mut child);
                    Err(error)
                }
            }
        });
        if started.is_err() {
            put_log_back(&log, answer.is_some_and(|answer| answer != Answer::Gone));
        }
        Ok(Started { pid: started?, instance, replaced_stale: answer == Some(Answer::Gone) })
    }

    /// The state directory that the daemon will use; a configuration file that names another is not read here.
    fn state(&self) -> Result<StateDir, LaunchError> {
        match self.named_state_dir() {
            // The daemon could only be told of another directory.
            Some(dir) if dir.to_str().is_none() => Err(LaunchError::StateDirNotUtf8 { dir }),
            Some(dir) => Ok(StateDir::new(dir)),
            None => Ok(StateDir::of_this_user()?),
        }
    }

    /// The state directory that is named. A relative one of `options` is none: the daemon refuses it.
    pub(crate) fn named_state_dir(&self) -> Option<PathBuf> {
        let of_options = state_dir_of(&self.options).filter(|dir| dir.is_absolute());
        of_options.or_else(|| self.state_dir.as_deref().map(absolute))
    }

    /// What a mount on the directory answers, if there is one of which no daemon that lives is known here. One whose daemon lives is
    /// an error; a daemon that lives without one is waited for, since it has not noticed yet that it was unmounted, or stops.
    fn answer_of_mount(&self, state: &StateDir, deadline: Instant) -> Result<Option<Answer>, LaunchError> {
        let io_error = |step| move |source| LaunchError::Io { step, path: self.dir.clone(), source };
        let instance = state.instance(&self.dir);
        loop {
            let daemon = lock::probe(&instance.lock()).map_err(io_error("look for the daemon of"))?;
            let table = MountTable::read().map_err(io_error("read the mounts on"))?;
            if is_mounted_on_demand(&table, &self.dir) {
                return Err(LaunchError::OnDemand { dir: self.dir.clone() });
            }
            let Daemon::Alive { pid } = daemon else {
                // What another daemon serves is for the new one to refuse.
                return Ok(table.tidefs_at(&self.dir).map(Mount::ask));
            };
            let dir = self.dir.clone();
            if table.tidefs().any(|mount| mount.mount_point == dir) {
                return Err(LaunchError::AlreadyServed { dir, pid });
            }
            if Instant::now() >= deadline {
                let (timeout, log) = (self.timeout, instance.log());
                return Err(LaunchError::StillStopping { dir, pid, timeout, log });
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Has the daemon check options and configuration, which needs no mount. It tells what is wrong on stderr.
    ///
    /// # Errors
    /// [`LaunchError::Ended`] if something is wrong.
    pub(crate) fn check(&self) -> Result<(), LaunchError> {
        let mut command = self.command();
        let status = command.arg("--check-config").stdin(Stdio::null()).stdout(Stdio::null()).status();
        match status.map_err(|error| not_started(&command, error))? {
            status if status.success() => Ok(()),
            status => Err(LaunchError::Ended { status, log: "  (see above)".to_owned() }),
        }
    }

    /// What the daemon says of a wish to change a mount that is there: it refuses, and tells what to do instead. `None` where there
    /// is no such wish.
    fn refusal_of_remount(&self) -> Option<LaunchError> {
        is_remount(&self.options).then(|| self.check().err()).flatten().filter(LaunchError::is_usage)
    }

    fn spawn(&self, log: File) -> Result<Child, LaunchError> {
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        ffi::in_own_session(&mut command);
        command.spawn().map_err(|error| not_started(&command, error))
    }

    fn command(&self) -> Command {
        let mut command = daemon_program();
        command.arg(&self.dir).current_dir("/").env_remove(NOTIFY_VARIABLE);
        if let Some(capacity) = self.capacity {
            command.arg("--capacity").arg(capacity.get().to_string());
        }
        if let Some(config) = &self.config {
            command.arg("--config").arg(absolute(config));
        }
        if self.is_trial {
            set_apart(&mut command);
        } else if let Some(config) = std::env::var_os(CONFIG_VARIABLE).filter(|config| !config.is_empty()) {
            command.env(CONFIG_VARIABLE, absolute(Path::new(&config)));
        }
        if let (None, Some(dir)) = (state_dir_of(&self.options), &self.state_dir) {
            command.arg("-o").arg(option(STATE_DIR_KEYS[0], &absolute(dir)));
        }
        for options in &self.options {
            command.arg("-o").arg(options);
        }
        command
    }
}

/// Whether autofs stands on `dir` and mounts when somebody looks at it. Only the process group of who mounts for it gets past it,
/// which a daemon in a session of its own has left: it would wait for itself.
fn is_mounted_on_demand(table: &MountTable, dir: &Path) -> bool {
    table.at(dir).is_some_and(|mount| mount.fstype == "autofs")
}

/// Where tidefsd is looked for first.
fn beside_us() -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name("tidefsd")
}

/// tidefsd, as it is found.
pub(crate) fn daemon_program() -> Command {
    let beside = beside_us();
    if beside.is_file() { Command::new(beside) } else { Command::new("tidefsd") }
}

fn not_started(command: &Command, source: io::Error) -> LaunchError {
    match source.kind() {
        io::ErrorKind::NotFound => LaunchError::NoDaemon { beside: beside_us() },
        _ => LaunchError::Io { step: "start", path: command.get_program().into(), source },
    }
}

/// The state directory that texts of `-o` name.
fn state_dir_of(options: &[String]) -> Option<PathBuf> {
    value_of(options, &STATE_DIR_KEYS).map(PathBuf::from)
}

/// What texts of `-o` say of the setting that goes by these `keys`; the last one counts.
pub(crate) fn value_of(options: &[String], keys: &[&str]) -> Option<String> {
    let mut found = None;
    for option in split(options) {
        if let Some((key, value)) = option.split_once('=')
            && keys.contains(&key.trim())
        {
            found = Some(value.to_owned());
        }
    }
    found
}

/// Whether texts of `-o` ask to change a mount that is there.
fn is_remount(options: &[String]) -> bool {
    split(options).any(|option| option.trim() == "remount")
}

/// The options of texts of `-o`.
fn split(texts: &[String]) -> impl Iterator<Item = String> {
    texts.iter().flat_map(|text| mount_options::split(text))
}

fn option(key: &str, path: &Path) -> String {
    format!("{key}={}", mount_options::escaped(&path.display().to_string()))
}

/// The daemon starts in `/`, where a relative path would mean something else.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_state_directory_of_the_options_counts() {
        let options =
            |texts: &[&str]| state_dir_of(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert_eq!(options(&["capacity=1GiB"]), None);
        assert_eq!(options(&["rw,state_dir=/a", "runtime.state_dir=/b\\,c,ro"]), Some("/b,c".into()));
        assert_eq!(option("runtime.state_dir", Path::new("/b,c")), "runtime.state_dir=/b\\,c");
    }

    #[test]
    fn a_remount_is_known_wherever_it_stands_among_the_options() {
        let asks =
            |texts: &[&str]| is_remount(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert!(asks(&["rw,remount"]) && asks(&["capacity=1GiB", "remount,noexec"]));
        assert!(!asks(&["rw,capacity=1GiB"]) && !asks(&["fuse.source=remount"]) && !asks(&[]));
        assert!(!asks(&[r"log=info\,remount,rw"]), "it stands within another");
    }

    #[test]
    fn who_mounts_without_a_disk_is_told_how_a_line_of_fstab_waits_for_it() {
        let instance = Instance::of_folder("/run/tidefs/mnt-kv-0");
        let started = Started { pid: 7, instance, replaced_stale: false };
        let notes = started.notes(Path::new("/mnt/kv"), &["/mnt/nvme0/tidefs".to_owned()]);
        let told = |note: &String| note.contains("x-systemd.requires-mounts-for=/mnt/nvme0/tidefs");
        assert!(notes.len() == 1 && notes.iter().all(told), "{notes:?}");
    }

    #[test]
    fn a_relative_state_directory_of_the_options_is_left_to_the_daemon() {
        let launch = |option: &str, state_dir: Option<&str>| Launch {
            dir: "/mnt/kv".into(),
            options: vec![option.to_owned()],
            capacity: None,
            config: None,
            state_dir: state_dir.map(PathBuf::from),
            is_trial: false,
            timeout: Duration::ZERO,
        };
        assert_eq!(launch("state_dir=state", None).named_state_dir(), None);
        assert_eq!(launch("state_dir=state", Some("/run/x")).named_state_dir(), Some("/run/x".into()));
        assert_eq!(launch("state_dir=/a", Some("/run/x")).named_state_dir(), Some("/a".into()));
    }

    #[test]
    fn a_directory_that_is_mounted_on_demand_is_known_until_something_is_mounted_on_it() {
        let on_demand = b"40 27 0:50 / /mnt/kv rw shared:7 - autofs systemd-1 rw,fd=51,direct\n";
        let is_on_demand =
            |text: &[u8], dir: &str| is_mounted_on_demand(&MountTable::parse(text), Path::new(dir));
        assert!(is_on_demand(on_demand, "/mnt/kv"));
        assert!(!is_on_demand(on_demand, "/mnt"));
        let mounted = [&on_demand[..], b"41 40 0:51 / /mnt/kv rw - ext4 /dev/vdb rw\n"].concat();
        assert!(!is_on_demand(&mounted, "/mnt/kv"));
    }
}
