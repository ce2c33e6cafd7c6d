//! Hosts with a cable between them: two network namespaces, each held by a process that ends with the test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A network namespace.
#[derive(Debug)]
pub(crate) struct Host {
    /// Lives until its standard input ends, so no longer than the test.
    holder: Child,
}

impl Host {
    fn new() -> Result<Self, String> {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let mut line = String::new();
        let output = holder.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let host = Self { holder };
        if line.is_empty() { Err("no network namespace can be made (needs root)".into()) } else { Ok(host) }
    }

    /// `program`, to be run on this host.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id())).arg(program);
        command
    }

    /// Runs a command on this host; its arguments are separated by spaces.
    ///
    /// # Errors
    /// What it said.
    pub(crate) fn try_run(&self, line: &str) -> Result<(), String> {
        let mut words = line.split(' ');
        let output = self.command(words.next().unwrap()).args(words).output();
        let output = output.map_err(|error| format!("nsenter: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(()) } else { Err(format!("`{line}`: {said}")) }
    }

    pub(crate) fn run(&self, line: &str) {
        self.try_run(line).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Which addresses the hosts have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
    Both,
}

impl Family {
    /// Where an engine on the host with this number listens.
    pub(crate) fn listen(self, number: u8) -> String {
        match self {
            Self::V4 => format!("10.77.0.{number}:0"),
            Self::V6 => format!("[fd77::{number}]:0"),
            Self::Both => "[::]:0".to_owned(),
        }
    }
}

/// Two hosts, 1 and 2, with a cable.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) one: Host,
    pub(crate) two: Host,
}

impl Network {
    /// Makes the hosts. `None`, with the reason on standard output, where they cannot be made.
    pub(crate) fn new(family: Family) -> Option<Self> {
        Self::make(family).inspect_err(|reason| println!("skipped: {reason}")).ok()
    }

    fn make(family: Family) -> Result<Self, String> {
        let (one, two) = (Host::new()?, Host::new()?);
        let cable = format!("ip link add eth0 type veth peer name eth0 netns {}", two.holder.id());
        one.try_run(&cable)?;
        for (host, number) in [(&one, 1), (&two, 2)] {
            // Addresses of the other family are not there, not even those that the kernel makes by itself.
            if family == Family::V4 {
                host.try_run("sysctl -q -w net.ipv6.conf.all.disable_ipv6=1")?;
            }
            host.try_run("ip link set lo up")?;
            if family != Family::V6 {
                host.try_run(&format!("ip address add 10.77.0.{number}/24 dev eth0"))?;
            } else {
                host.try_run("ip address del 127.0.0.1/8 dev lo")?;
            }
            if family != Family::V4 {
                host.try_run(&format!("ip -6 address add fd77::{number}/64 dev eth0 nodad"))?;
            }
            host.try_run("ip link set eth0 up")?;
        }
        Ok(Self { one, two })
    }
}

impl Host {
    /// Drops what arrives here from the cable, without a word. `None` when the tool or the kernel cannot.
    pub(crate) fn drop_arriving(&self, verdict: &str) -> Option<()> {
        let rules =
            ["nft add table inet part", "nft add chain inet part in { type filter hook input priority 0 ; }"];
        let rule = format!("nft add rule inet part in iifname eth0 {verdict}");
        let added = rules.iter().copied().chain([rule.as_str()]).try_for_each(|line| self.try_run(line));
        added.inspect_err(|reason| println!("skipped: {reason}")).ok()
    }

    /// Undoes all of [`Self::drop_arriving`].
    pub(crate) fn drop_nothing(&self) {
        self.run("nft delete table inet part");
    }
}
