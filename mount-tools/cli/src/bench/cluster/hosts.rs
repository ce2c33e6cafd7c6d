//! Hosts of a cluster on this machine: what `tidefs cluster dev` starts, and the network between them.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidefs_engine::types::ByteCount;

use crate::bench::cleanup::{Directory, Program};
use crate::bench::error::Error;
use crate::bench::ffi;

/// How long a directory that one host made may take to be seen on another.
const SEEN: Duration = Duration::from_secs(10);
/// Name of the bench's directory on the mounts.
const DIRECTORY: &str = "bench";

/// What is started.
pub(in crate::bench) struct Start<'a> {
    pub(in crate::bench) hosts: u16,
    pub(in crate::bench) capacity: ByteCount,
    pub(in crate::bench) transport: &'a str,
    pub(in crate::bench) options: &'a [String],
}

/// Running daemons, which end with this value.
pub(in crate::bench) struct Hosts {
    process: Child,
    _program: Program,
    /// The bench's directory on each mount.
    pub(in crate::bench) directories: Vec<PathBuf>,
    daemons: Vec<Pid>,
    // Removed last.
    _folder: Directory,
}

impl Hosts {
    /// Starts etcd and the daemons, and waits until a directory of one is seen on all.
    ///
    /// # Errors
    /// When one of them does not start; what it said is on stderr.
    pub(in crate::bench) fn start(start: &Start) -> Result<Self, Error> {
        let folder = Directory::new("tidefs-bench-cluster-")
            .map_err(Error::system("make a directory for the mounts"))?;
        let program = std::env::current_exe().map_err(Error::system("find this program"))?;
        let mut command = Command::new(program);
        command.args(["cluster", "dev", "--json", "--hosts", &start.hosts.to_string(), "--dir"]);
        command.arg(folder.path()).args(["--capacity", &start.capacity.get().to_string()]);
        command.args(["-o", &format!("cluster.transports={}", start.transport)]);
        for option in start.options {
            command.args(["-o", option]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        ffi::stop_with_parent(&mut command);
        let mut process = command.spawn().map_err(Error::system("start `tidefs cluster dev`"))?;
        let said = process.stdout.take().map(hosts_of).unwrap_or_default();
        // From here on it is ended with the value.
        let mut hosts = Self {
            _program: Program::of(&process),
            process,
            directories: Vec::new(),
            daemons: Vec::new(),
            _folder: folder,
        };
        if said.len() != usize::from(start.hosts) {
            return Err(Error::Invalid("`tidefs cluster dev` did not start its hosts".to_owned()));
        }
        for (mount, daemon) in said {
            hosts.directories.push(mount.join(DIRECTORY));
            hosts.daemons.push(daemon);
        }
        hosts.make_directory()?;
        Ok(hosts)
    }

    /// Kills the daemon of a host, as a power cut would.
    ///
    /// # Errors
    /// When there is no such host, or it has ended.
    pub(in crate::bench) fn kill(&self, host: usize) -> Result<(), Error> {
        let daemon =
            self.daemons.get(host).ok_or_else(|| Error::Invalid(format!("there is no host {host}")))?;
        kill(*daemon, Signal::SIGKILL).map_err(Error::system("kill the daemon of a host"))
    }

    fn make_directory(&self) -> Result<(), Error> {
        let Some(first) = self.directories.first() else { return Ok(()) };
        std::fs::create_dir(first).map_err(Error::file("make the directory", first))?;
        let deadline = Instant::now() + SEEN;
        for directory in &self.directories {
            while !directory.is_dir() {
                if Instant::now() >= deadline {
                    let path = directory.display();
                    return Err(Error::Invalid(format!("{path} is not seen after {} s", SEEN.as_secs())));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.process.id()) {
            // It unmounts and ends the daemons, then etcd.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let _ = self.process.wait();
    }
}

/// The mounts and daemons that `cluster dev --json` names, in one value that ends before the stream does.
fn hosts_of(output: impl std::io::Read) -> Vec<(PathBuf, Pid)> {
    let mut text = String::new();
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        text.push_str(&line);
        if let Ok(value) = serde_json::from_str::<serde_json::Value>(&text) {
            return hosts_in(&value);
        }
    }
    Vec::new()
}

fn hosts_in(value: &serde_json::Value) -> Vec<(PathBuf, Pid)> {
    let hosts = value.get("hosts").and_then(serde_json::Value::as_array);
    let host = |host: &serde_json::Value| {
        let pid = i32::try_from(host.get("pid")?.as_i64()?).ok().filter(|&pid| pid > 0)?;
        Some((PathBuf::from(host.get("mount")?.as_str()?), Pid::from_raw(pid)))
    };
    hosts.into_iter().flatten().filter_map(host).collect()
}

/// Moves this process into a network namespace of its own whose loopback moves `rate`, as tc(8) writes it. Called before the
/// first thread starts.
///
/// # Errors
/// Without the right to, or without ip(8) or tc(8).
pub(super) fn enter_shaped_network(rate: &str) -> Result<(), Error> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(Error::system("enter a network namespace"))?;
    // A burst holds several of the packets of 64 KiB that loopback carries.
    let shape = format!("qdisc add dev lo root tbf rate {rate} burst 256kb latency 50ms");
    for (program, arguments) in [("ip", "link set lo up"), ("tc", shape.as_str())] {
        let ran = Command::new(program).args(arguments.split(' ')).status();
        let status = ran.map_err(Error::system(format!("run {program}, of the package iproute2")))?;
        if !status.success() {
            return Err(Error::Invalid(format!("`{program} {arguments}` ended with {status}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_are_read_from_a_value_of_several_lines_before_the_stream_ends() {
        let hosts = "{\"mount\": \"/a\", \"pid\": 7}, {\"mount\": \"/b\", \"pid\": 8}, {\"mount\": \"/c\", \"pid\": -1}";
        let text = format!("{{\n \"etcd\": \"x\",\n \"hosts\": [\n{hosts}]\n}}\nmore");
        let [a, b] = [("/a", 7), ("/b", 8)].map(|(mount, pid)| (PathBuf::from(mount), Pid::from_raw(pid)));
        assert_eq!(hosts_of(text.as_bytes()), [a, b]);
        assert!(hosts_of(&b"nothing"[..]).is_empty());
    }
}
