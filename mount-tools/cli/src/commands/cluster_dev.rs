//! `tidefs cluster dev`: etcd, unless it is to be without, and several daemons on this machine, for trying out.
//!
//! Everything is started as a child of this process and ended with it: daemons first, so that they unmount, then etcd.

use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::json;
use tidefs_control_api::instance::{Instance, state_dir_of_environment};
use tidefs_control_api::lock::Daemon;
use tidefs_control_api::shell::{quoted, state_dir_option};
use tokio::signal::unix::{self as signals, SignalKind};

use super::umount;
use crate::args::ClusterDevArgs;
use crate::error::{CliError, Exit};
use crate::launch::{Launch, value_of};
use crate::locate;
use crate::output::{Output, shown, tell};
use crate::trial::ignores_hangup;

/// How long etcd may take until it answers.
const ETCD_START: Duration = Duration::from_secs(20);
/// How long a daemon may take until its mount answers.
const MOUNT: Duration = Duration::from_secs(30);
/// How long is looked for a signal between two hosts.
const LOOK: Duration = Duration::from_millis(1);
/// How long a daemon may take to unmount.
const STOP: Duration = Duration::from_secs(20);
/// Keys by which `-o` says what becomes of the objects of a daemon that stops.
const ON_STOP_KEYS: [&str; 2] = ["runtime.on_stop", "on_stop"];

pub(crate) fn run(args: &ClusterDevArgs, output: Output) -> Result<(), CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::system("cannot wait for signals", &error))?;
    runtime.block_on(async {
        // Before anything is started: from here on Ctrl-C ends this process in order.
        let mut end = End::watched().map_err(|error| CliError::system("cannot wait for signals", &error))?;
        let mut cluster = Cluster::start(args)?;
        for number in 1..=args.hosts {
            output.note(&format!("starting host {number} of {}", args.hosts));
            let host = cluster.start_host(args, number)?;
            cluster.hosts.push(host);
            if end.is_wanted().await {
                output.note("stopping");
                return Err(CliError::new(Exit::Failed, "it was told to end while its hosts started"));
            }
        }
        cluster.show(output)?;
        end.wait().await;
        output.note("stopping");
        drop(cluster);
        Ok(())
    })
}

/// The signals that end this process in order.
struct End {
    interrupt: signals::Signal,
    terminate: signals::Signal,
    hangup: signals::Signal,
    outlives_its_terminal: bool,
}

impl End {
    fn watched() -> io::Result<Self> {
        // Before that of a hangup is handled here.
        let outlives_its_terminal = ignores_hangup();
        Ok(Self {
            interrupt: signals::signal(SignalKind::interrupt())?,
            terminate: signals::signal(SignalKind::terminate())?,
            hangup: signals::signal(SignalKind::hangup())?,
            outlives_its_terminal,
        })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv(), if !self.outlives_its_terminal => {}
        }
    }

    /// Whether one came already.
    async fn is_wanted(&mut self) -> bool {
        tokio::time::timeout(LOOK, self.wait()).await.is_ok()
    }
}

/// One daemon.
struct Host {
    mount: PathBuf,
    process: Pid,
    instance: Instance,
    /// What a command of another shell adds to find it.
    state_dir_option: String,
}

impl Host {
    /// Takes away what is left of it when it was killed: its mount, and its memory unless it was to be kept.
    fn bury(&self, discards: bool) -> Result<(), CliError> {
        let is_left =
            umount::is_mounted(&self.mount)? && matches!(locate::probe(&self.instance)?, Daemon::Gone);
        if is_left { umount::take_away(&self.instance, &self.mount, discards) } else { Ok(()) }
    }
}

/// Where the daemons find each other.
enum Meeting {
    Etcd {
        process: Child,
        endpoint: String,
        // Removed last.
        _data: tempfile::TempDir,
    },
    /// At the first of them.
    Host { address: String },
}

/// What runs.
struct Cluster {
    hosts: Vec<Host>,
    meeting: Meeting,
    /// Whether the memory of the hosts is freed at the end.
    discards: bool,
}

impl Meeting {
    fn start(args: &ClusterDevArgs) -> Result<Self, CliError> {
        if args.without_etcd {
            let port = free_port().map_err(|error| CliError::system("no free port", &error))?;
            return Ok(Self::Host { address: format!("127.0.0.1:{port}") });
        }
        let data = tempfile::Builder::new()
            .prefix("tidefs-etcd-")
            .tempdir()
            .map_err(|error| CliError::system("cannot make a directory for etcd", &error))?;
        let (process, endpoint) = start_etcd(&args.etcd, data.path())?;
        Ok(Self::Etcd { process, endpoint, _data: data })
    }

    /// What each daemon is told.
    fn option(&self) -> String {
        match self {
            Self::Etcd { endpoint, .. } => format!("cluster.etcd={endpoint}"),
            Self::Host { address } => format!("cluster.coordinator={address}"),
        }
    }

    /// Key and address, as JSON names it and as people read it.
    fn place(&self) -> (&'static str, &str, &'static str) {
        match self {
            Self::Etcd { endpoint, .. } => ("etcd", endpoint, "etcd at"),
            Self::Host { address } => ("coordinator", address, "host-1 coordinates at"),
        }
    }
}

impl Cluster {
    /// Without hosts yet.
    fn start(args: &ClusterDevArgs) -> Result<Self, CliError> {
        let discards = discards(&args.options);
        Ok(Self { hosts: Vec::new(), meeting: Meeting::start(args)?, discards })
    }

    fn start_host(&self, args: &ClusterDevArgs, number: u16) -> Result<Host, CliError> {
        let name = format!("host-{number}");
        let table = locate::mount_table()?;
        let dir = locate::resolve(&table, &args.dir.join(&name))?;
        // A mount that a killed daemon left there can be neither made nor looked at; the next one replaces it.
        if table.tidefs_at(&dir).is_none() {
            fs::create_dir_all(&dir)
                .map_err(|error| CliError::system(format!("cannot use {}", dir.display()), &error))?;
        }
        let mut options = vec![
            self.meeting.option(),
            format!("cluster.host={name}"),
            "cluster.name=dev".to_owned(),
            "cluster.listen=127.0.0.1:0".to_owned(),
            "on_stop=discard".to_owned(),
        ];
        options.extend(args.options.iter().cloned());
        let launch = Launch {
            dir: dir.clone(),
            options,
            capacity: Some(args.capacity),
            config: None,
            state_dir: state_dir_of_environment(),
            is_trial: true,
            timeout: MOUNT,
        };
        let started = launch
            .start()
            .map_err(|error| CliError::new(Exit::Failed, format!("{name} does not start: {error}")))?;
        let process = Pid::from_raw(i32::try_from(started.pid).unwrap_or_default());
        let state_dir_option = launch.named_state_dir().as_deref().map(state_dir_option).unwrap_or_default();
        Ok(Host { mount: dir, process, instance: started.instance, state_dir_option })
    }

    fn show(&self, output: Output) -> Result<(), CliError> {
        let facts = |host: &Host| {
            let log = shown(&host.instance.log());
            json!({"mount": shown(&host.mount), "pid": host.process.as_raw(), "log": log})
        };
        let hosts: Vec<_> = self.hosts.iter().map(facts).collect();
        let (key, address, is_at) = self.meeting.place();
        output.result(&json!({key: address, "hosts": hosts}), || {
            let mut text = format!("{is_at} {address}\n");
            for host in &self.hosts {
                text += &format!("{}  (process {}, log {})\n", host.mount.display(), host.process, host.instance.log().display());
            }
            if let [first, .., last] = &self.hosts[..] {
                let [made, written, read] =
                    [first.mount.join("kv"), first.mount.join("kv/key"), last.mount.join("kv/key")]
                        .map(|path| quoted(&path));
                let option = &last.state_dir_option;
                text += &format!(
                    "\nTry it:\n  mkdir {made} && echo hello > {written}\n  cat {read}\n  tidefs where {read}{option}\n"
                );
            }
            text + "\nCtrl-C ends it.\n"
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for host in &self.hosts {
            // One that has ended is our zombie, so its number is nobody else's.
            let _ = kill(host.process, Signal::SIGTERM);
        }
        for host in &self.hosts {
            if !has_ended(host.process, STOP) {
                let log = host.instance.log();
                tell(format_args!(
                    "tidefs: process {} does not stop; its log is {}",
                    host.process,
                    log.display()
                ));
            } else if let Err(error) = host.bury(self.discards) {
                tell(format_args!("tidefs: what {} left stays: {error}", host.mount.display()));
            }
        }
        if let Meeting::Etcd { process, .. } = &mut self.meeting {
            // That it runs, or has ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Whether hosts with these options free their memory when they stop, as they are told before.
fn discards(options: &[String]) -> bool {
    value_of(options, &ON_STOP_KEYS).is_none_or(|value| value == "discard")
}

fn has_ended(process: Pid, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        match waitpid(process, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(WaitStatus::StillAlive) => return false,
            Ok(_) | Err(Errno::ECHILD) => return true,
            Err(_) => return false,
        }
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Starts etcd on free ports of loopback. Returns it when it answers.
fn start_etcd(program: &Path, data: &Path) -> Result<(Child, String), CliError> {
    let ports = free_port().and_then(|port| Ok((port, free_port()?)));
    let (port, peer_port) = ports.map_err(|error| CliError::system("no free port for etcd", &error))?;
    let [client, peer] = [port, peer_port].map(|port| format!("http://127.0.0.1:{port}"));
    let mut child = Command::new(program)
        .arg("--data-dir")
        .arg(data)
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C goes to the group of this process, whose daemons still need it then.
        .process_group(0)
        .spawn()
        .map_err(|error| {
            CliError::new(Exit::Failed, format!("cannot start {}: {error}", program.display())).next_step(
                "install it (apt install etcd-server), name it with --etcd FILE, or do --without-etcd",
            )
        })?;
    let deadline = Instant::now() + ETCD_START;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        let ended = child.try_wait().ok().flatten();
        if ended.is_some() || Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            let why = ended
                .map_or_else(|| "it does not answer".to_owned(), |status| format!("it ended with {status}"));
            return Err(CliError::new(Exit::Failed, format!("etcd did not start: {why}")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok((child, client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_freed_unless_the_last_option_of_that_keeps_it() {
        let discards =
            |texts: &[&str]| discards(&texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        assert!(discards(&[]) && discards(&["on_stop=keep", "log=debug,on_stop=discard"]));
        assert!(!discards(&["runtime.on_stop=keep"]) && !discards(&["log=debug,on_stop=keep", "threads=2"]));
    }
}
