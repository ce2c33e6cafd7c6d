//! `tidefs cluster dev`: several hosts on this machine, and all of them gone at its end.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};
use serde_json::Value;
use tidefs_control_api::instance::{STATE_DIR_VARIABLE, StateDir};
use tidefs_control_api::lock::{self, Daemon};

use super::common::mount::{mounts_below, wait_for};
use super::common::pattern::{assert_same, object};
use super::common::place::Place;
use super::common::wait::{HANG, until};
use super::tool::binary;

/// Longest time until all daemons serve, or have ended.
const LONG: Duration = Duration::from_secs(120);

/// A cluster that runs until it is interrupted.
struct Running {
    process: Child,
    place: Place,
    said: Value,
}

impl Running {
    #[track_caller]
    fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[])
    }

    /// The same, with variables of its environment.
    #[track_caller]
    fn start_with(arguments: &[&str], environment: &[(&str, &Path)]) -> Self {
        let place = Place::new();
        let process = spawn(&place, arguments, environment);
        let mut running = Self { process, place, said: Value::Null };
        running.wait_for_its_hosts();
        running
    }

    /// Starts another one in its place, which has ended.
    #[track_caller]
    fn start_again(&mut self, arguments: &[&str]) {
        self.process = spawn(&self.place, arguments, &[]);
        self.wait_for_its_hosts();
    }

    #[track_caller]
    fn wait_for_its_hosts(&mut self) {
        let output = said_by(&self.place);
        let says_all = || {
            let text = fs::read_to_string(&output).unwrap_or_default();
            self.said = serde_json::from_str(&text).unwrap_or_default();
            self.said.is_object() || self.process.try_wait().is_ok_and(|ended| ended.is_some())
        };
        assert!(until(LONG, says_all) && self.said.is_object(), "the hosts do not start");
    }

    fn mounts(&self) -> Vec<PathBuf> {
        let hosts = self.said["hosts"].as_array().expect("a list");
        hosts.iter().map(|host| PathBuf::from(host["mount"].as_str().expect("a path"))).collect()
    }
}

/// What a command in `place` writes to its standard output.
fn said_by(place: &Place) -> PathBuf {
    place.base.path().join("said")
}

fn spawn(place: &Place, arguments: &[&str], environment: &[(&str, &Path)]) -> Child {
    // Whoever runs the tests may ignore the end of a terminal.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(binary());
    command.args(["cluster", "dev", "--json", "--capacity", "64MiB", "--dir"]).arg(&place.point);
    command.env(STATE_DIR_VARIABLE, &place.state).envs(environment.iter().copied());
    command.arg("-o").arg(format!("scratch.dir={}/scratch", place.base.path().display()));
    command.args(arguments).stdin(Stdio::null()).stdout(File::create(said_by(place)).expect("a file"));
    command.spawn().expect("tidefs")
}

/// The etcd that `parent` started.
fn etcd_of(parent: u32) -> Option<Pid> {
    let is_child = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent_of = |rest: &str| rest.split(' ').nth(1).and_then(|pid| pid.parse::<u32>().ok());
        stat.split_once(" (etcd) ").and_then(|(_, rest)| parent_of(rest)) == Some(parent)
    };
    let processes = fs::read_dir("/proc").expect("the processes").flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.find(is_child).map(Pid::from_raw)
}

impl Drop for Running {
    fn drop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.process.id()).expect("a pid is an i32"));
        let _ = kill(pid, Signal::SIGTERM);
        if wait_for(&mut self.process, LONG).is_none() {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
        for point in mounts_below(self.place.base.path()).iter().rev() {
            let _ = umount2(point.as_path(), MntFlags::MNT_DETACH);
        }
    }
}

#[track_caller]
fn expect_one_filesystem_until_interrupted(mut running: Running) {
    let mounts = running.mounts();
    let (first, last) = (&mounts[0], &mounts[mounts.len() - 1]);
    fs::create_dir(first.join("kv")).expect("a namespace");
    fs::write(first.join("kv/key"), object(1, 100_000)).expect("an object");
    let is_there = || fs::read(last.join("kv/key")).is_ok_and(|found| found == object(1, 100_000));
    assert!(until(HANG, is_there), "the last host does not find what the first one wrote");
    fs::write(last.join("kv/back"), object(2, 100_000)).expect("an object");
    assert_same(&fs::read(first.join("kv/back")).expect("it is there"), &object(2, 100_000), "the way back");

    let pids = running.said["hosts"].as_array().expect("a list").iter().map(|host| host["pid"].clone());
    let pids: Vec<String> = pids.map(|pid| pid.to_string()).collect();
    let pid = Pid::from_raw(i32::try_from(running.process.id()).expect("a pid is an i32"));
    kill(pid, Signal::SIGINT).expect("it runs");
    let status = wait_for(&mut running.process, LONG).expect("it ends");
    assert!(status.success(), "{status}");
    assert_eq!(mounts_below(running.place.base.path()), Vec::<PathBuf>::new());
    for pid in pids {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        assert_ne!(name.trim(), "tidefsd", "daemon {pid} runs on");
    }
}

#[test]
fn hosts_of_a_trial_are_one_filesystem_and_all_end_with_it() {
    let running = Running::start(&["--hosts", "3"]);
    assert!(running.said["etcd"].as_str().is_some_and(|etcd| etcd.starts_with("http://127.0.0.1:")));
    assert_eq!(running.mounts().len(), 3);
    // Ctrl-C goes to all of a group, and the daemons need etcd to leave.
    let etcd = etcd_of(running.process.id()).expect("it runs etcd");
    assert_eq!(getpgid(Some(etcd)), Ok(etcd), "etcd is in the group of who started it");
    expect_one_filesystem_until_interrupted(running);
}

#[test]
fn a_trial_needs_no_etcd() {
    let running = Running::start(&["--hosts", "2", "--without-etcd"]);
    assert!(running.said["coordinator"].as_str().is_some_and(|address| address.starts_with("127.0.0.1:")));
    assert!(running.said["etcd"].is_null());
    expect_one_filesystem_until_interrupted(running);
}

#[test]
fn a_trial_ends_with_its_terminal() {
    let mut running = Running::start(&["--hosts", "1", "--without-etcd"]);
    let log = running.said["hosts"][0]["log"].as_str().map(PathBuf::from).expect("a path");
    assert!(log.starts_with(&running.place.state), "{}", log.display());
    let pid = Pid::from_raw(i32::try_from(running.process.id()).expect("a pid is an i32"));
    kill(pid, Signal::SIGHUP).expect("it runs");
    let status = wait_for(&mut running.process, LONG).expect("it ends");
    assert!(status.success(), "{status}");
    assert_eq!(mounts_below(running.place.base.path()), Vec::<PathBuf>::new());
}

#[test]
fn a_host_that_was_killed_leaves_neither_a_mount_nor_memory_behind() {
    let mut running = Running::start(&["--hosts", "2", "--without-etcd"]);
    let mount = running.mounts()[1].clone();
    fs::create_dir(mount.join("kv")).expect("a namespace");
    fs::write(mount.join("kv/key"), object(1, 100_000)).expect("an object");
    let killed =
        running.said["hosts"][1]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a pid");
    kill(Pid::from_raw(killed), Signal::SIGKILL).expect("it runs");
    let is_dead = || fs::metadata(&mount).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN));
    assert!(until(HANG, is_dead), "the mount of a dead daemon answers");

    let pid = Pid::from_raw(i32::try_from(running.process.id()).expect("a pid is an i32"));
    kill(pid, Signal::SIGINT).expect("it runs");
    assert!(wait_for(&mut running.process, LONG).expect("it ends").success());
    assert_eq!(mounts_below(running.place.base.path()), Vec::<PathBuf>::new());
}

#[test]
fn a_trial_is_no_member_of_the_cluster_that_its_host_is_configured_for() {
    let place = Place::new();
    let file = place.base.path().join("tidefs.toml");
    fs::write(&file, "[cluster]\netcd = \"http://127.0.0.1:1\"\n").expect("a file");
    // Who reads it has two coordinators, and is refused.
    let running =
        Running::start_with(&["--hosts", "2", "--without-etcd"], &[("TIDEFS_CONFIG", file.as_path())]);
    expect_one_filesystem_until_interrupted(running);
}

#[test]
fn a_trial_starts_where_an_earlier_one_was_killed_with_its_daemons() {
    let arguments = ["--hosts", "1", "--without-etcd"];
    let mut running = Running::start(&arguments);
    let mount = running.mounts().remove(0);
    let daemon = running.said["hosts"][0]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    running.process.kill().expect("it runs");
    running.process.wait().expect("it ends");
    kill(Pid::from_raw(daemon.expect("a pid")), Signal::SIGKILL).expect("it runs");
    let lock = StateDir::new(&running.place.state).instance(&mount).lock();
    assert!(until(HANG, || lock::probe(&lock).is_ok_and(|daemon| daemon == Daemon::Gone)), "it is gone");
    assert!(mounts_below(running.place.base.path()).contains(&mount), "it left its mount");

    running.start_again(&arguments);
    fs::create_dir(mount.join("kv")).expect("a namespace");
    fs::write(mount.join("kv/key"), object(1, 100_000)).expect("an object");
}
