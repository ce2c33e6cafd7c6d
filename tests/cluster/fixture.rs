//! Hosts of one cluster.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::common::etcd::Etcd;
use crate::common::{Mount, pattern, wait};

/// A counter that has not moved for so long stands still.
const STILL: Duration = Duration::from_millis(200);

/// Daemons that found each other, and the etcd by which they did, unless it was without.
pub(crate) struct Hosts {
    pub(crate) mounts: Vec<Mount>,
    pub(crate) etcd: Option<Etcd>,
}

impl Hosts {
    /// `count` hosts with these options beside those that make them a cluster.
    pub(crate) fn start(count: usize, options: &[&str]) -> Self {
        Self::start_each(count, options, |_| Vec::new())
    }

    /// The same, by an etcd that runs.
    pub(crate) fn start_by(etcd: Etcd, count: usize, options: &[&str]) -> Self {
        let mut hosts = Self { mounts: Vec::new(), etcd: Some(etcd) };
        (0..count).for_each(|_| hosts.add(options));
        hosts.wait_until_whole();
        hosts
    }

    /// The same, with options of each host beside those of all.
    pub(crate) fn start_each(
        count: usize,
        options: &[&str],
        own_options: impl Fn(usize) -> Vec<String>,
    ) -> Self {
        let mut hosts = Self { mounts: Vec::new(), etcd: Some(Etcd::start()) };
        for index in 0..count {
            let own = own_options(index);
            let own: Vec<&str> = own.iter().map(String::as_str).collect();
            hosts.add(&[options, &own].concat());
        }
        hosts.wait_until_whole();
        hosts
    }

    /// The etcd, where there is one.
    #[track_caller]
    pub(crate) fn etcd(&mut self) -> &mut Etcd {
        self.etcd.as_mut().expect("they found each other by etcd")
    }

    /// Where the etcd is reached, where there is one.
    #[track_caller]
    pub(crate) fn endpoint(&self) -> String {
        self.etcd.as_ref().expect("they found each other by etcd").endpoint()
    }

    /// One host more. [`Hosts::wait_until_whole`] waits until all know it.
    pub(crate) fn add(&mut self, options: &[&str]) {
        let endpoint = self.etcd.as_ref().map(|etcd| format!("cluster.etcd={}", etcd.endpoint()));
        let host = format!("cluster.host=host-{}", self.mounts.len());
        let mut all = vec![&*host, "cluster.listen=127.0.0.1:0"];
        if !options.iter().any(|option| option.starts_with("cluster.etcd=")) {
            all.extend(endpoint.as_deref());
        }
        if !options.iter().any(|option| option.starts_with("cluster.grace_s=")) {
            all.push("cluster.grace_s=3");
        }
        // Who does not answer in this time is not waited for, and may show what was: a busy machine is not to decide that.
        if !options.iter().any(|option| option.starts_with("cluster.patience_ms=")) {
            all.push("cluster.patience_ms=20000");
        }
        all.extend(options);
        self.mounts.push(Mount::start(&all));
    }

    /// Who holds the object, by the catalog as host `asked` finds it: names of hosts and where it lies there.
    #[track_caller]
    pub(crate) fn copies(&self, asked: usize, name: &str) -> BTreeMap<String, String> {
        let found = self.found(asked, name);
        let copies = found["copies"].as_array().unwrap_or_else(|| panic!("no copies: {found}"));
        let text = |copy: &serde_json::Value, key: &str| copy[key].as_str().unwrap_or_default().to_owned();
        copies.iter().map(|copy| (text(copy, "name"), text(copy, "medium"))).collect()
    }

    /// What the catalog says of a name, as `tidefs where --json`.
    #[track_caller]
    pub(crate) fn found(&self, asked: usize, name: &str) -> serde_json::Value {
        self.mounts[asked].control_get(&format!("/v1/where?path={name}")).json()
    }

    /// A counter or gauge of a host.
    #[track_caller]
    pub(crate) fn metric(&self, host: usize, name: &str) -> u64 {
        let text = self.mounts[host].control_get("/v1/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.unwrap_or_else(|| panic!("no metric {name} in:\n{text}"));
        value.parse().expect("a whole number")
    }

    /// A counter of a host that counts a moment after what it counts: it has come to `least`, and stands still.
    #[track_caller]
    pub(crate) fn metric_at_rest(&self, host: usize, name: &str, least: u64) -> u64 {
        let value = || self.metric(host, name);
        assert!(wait::until(wait::HANG, || value() >= least), "{name} of host {host} is {}", value());
        let is_still = || {
            let before = value();
            thread::sleep(STILL);
            value() == before
        };
        assert!(wait::until(wait::HANG, is_still), "{name} of host {host} grows on: {}", value());
        value()
    }

    /// Waits until what is made on any host is seen on all others.
    #[track_caller]
    pub(crate) fn wait_until_whole(&self) {
        for (index, mount) in self.mounts.iter().enumerate() {
            let name = format!("whole-{index}");
            // It may be there already, or be agreed on by an etcd that is slow at first.
            let is_made = || fs::create_dir(mount.join(&name)).is_ok() || mount.join(&name).is_dir();
            assert!(wait::until(wait::HANG, is_made), "host {index} makes no namespace");
            let is_seen = || self.mounts.iter().all(|mount| mount.join(&name).is_dir());
            assert!(wait::until(Duration::from_secs(20), is_seen), "host {index} is not seen by all others");
        }
        // That names are agreed on says nothing of the members.
        let are_met = || (0..self.mounts.len()).all(|host| self.has_met(host, self.mounts.len()));
        assert!(wait::until(wait::HANG, are_met), "not all know of all others what they hold");
    }

    /// Members that a host knows, itself too.
    #[track_caller]
    pub(crate) fn members(&self, host: usize) -> usize {
        let status = self.mounts[host].control_get("/v1/status").json();
        status["cluster"]["members"].as_array().map_or(0, Vec::len)
    }

    /// Whether a host is connected to all of `count` members, and knows what they hold.
    pub(crate) fn has_met(&self, host: usize, count: usize) -> bool {
        let status = self.mounts[host].control_get("/v1/status").json();
        let (members, catalog) = (&status["cluster"]["members"], &status["cluster"]["catalog"]);
        let is_there = |member: &serde_json::Value| member["link"] == "up" || member["link"] == "myself";
        members.as_array().is_some_and(|all| all.len() == count && all.iter().all(is_there))
            && catalog["incomplete_shards"] == 0
            && catalog["shards_to_announce"] == 0
    }
}

/// Publishes as most clients do: under a temporary name, then by rename.
#[track_caller]
pub(crate) fn publish(path: &Path, bytes: &[u8]) {
    let name = path.file_name().expect("a name").to_str().expect("UTF-8");
    let temporary = path.with_file_name(format!(".{name}.tmp"));
    let mut file = fs::File::create(&temporary).expect("a temporary file");
    file.write_all(bytes).expect("its bytes");
    drop(file);
    fs::rename(&temporary, path).expect("the rename");
}

/// An object of `length` bytes that says itself what it must be.
pub(crate) fn object(seed: u64, length: usize) -> Vec<u8> {
    pattern::object(seed, length)
}

/// Whether tests are to take the time that a real bad day takes.
pub(crate) fn is_long() -> bool {
    std::env::var_os("TIDEFS_TEST_LONG").is_some()
}
