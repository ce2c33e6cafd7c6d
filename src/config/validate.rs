//! Checks that values go together with each other and with the machine.
//!
//! Each value alone has passed its own check. A rule about a setting that already has a problem is skipped: it
//! would judge the default that stands in for it.

use std::path::PathBuf;

use tidefs_engine::types::ByteCount;

use super::error::{Cause, Problem};
use super::host::Host;
use super::instance::MountPlace;
use super::merge::Given;
use super::settings::{ClusterSettings, Config};
use super::sources::Origin;
use super::value::SettingValue;

/// Adds the contradictions of `config` to the problems of `given`.
pub(super) fn validate(config: &Config, host: &Host, mount: &MountPlace, given: &mut Given) {
    check_capacity(config, host, given);
    check_headroom(config, given);
    check_directories_outside_of_mount(config, mount, given);
    check_state_dir_is_known(host, given);
    check_scratch_capacity_is_known(config, host, mount, given);
    check_ssd(config, mount, given);
    check_etcd(&config.cluster, given);
}

fn check_capacity(config: &Config, host: &Host, given: &mut Given) {
    if config.memory.capacity > host.memory {
        let reason = format!("this machine has only {} of memory", host.memory);
        let next_step = "set memory.capacity to less than that".to_owned();
        given.contradict("memory.capacity", &[], reason, next_step);
    }
}

fn check_headroom(config: &Config, given: &mut Given) {
    let capacity = config.memory.capacity;
    let most = ByteCount(capacity.get() / 2);
    if config.memory.write_headroom > most {
        given.contradict(
            "memory.write_headroom",
            &["memory.capacity"],
            format!("this is more than half of memory.capacity, {}", capacity.show()),
            format!("set memory.write_headroom to at most {}, or raise memory.capacity", most.show()),
        );
    }
}

fn check_directories_outside_of_mount(config: &Config, mount: &MountPlace, given: &mut Given) {
    let scratch = config.scratch.dir.paths().iter().map(|directory| ("scratch.dir", directory));
    for (key, directory) in scratch.chain([("runtime.state_dir", &config.runtime.state_dir)]) {
        if mount.contains(directory) {
            given.contradict(
                key,
                &[],
                format!("it is in the mount {}, so the daemon would wait for itself", mount.dir.display()),
                format!("set {key} to a directory outside of the mount"),
            );
        }
    }
}

fn check_ssd(config: &Config, mount: &MountPlace, given: &mut Given) {
    for directory in config.ssd.dirs.paths().iter().filter(|directory| mount.contains(directory)) {
        given.contradict(
            "ssd.dirs",
            &[],
            format!(
                "{} is in the mount {}, so the daemon would wait for itself",
                directory.display(),
                mount.dir.display()
            ),
            "name directories outside of the mount".to_owned(),
        );
    }
    let most = ByteCount(config.memory.capacity.get() / 2);
    if config.ssd.free_ahead > most {
        given.contradict(
            "ssd.free_ahead",
            &["memory.capacity"],
            format!("this is more than half of memory.capacity, {}", config.memory.capacity.show()),
            format!("set ssd.free_ahead to at most {}", most.show()),
        );
    }
}

/// What is set for etcd is used, and enough for it: what would be left out without a word is refused.
fn check_etcd(cluster: &ClusterSettings, given: &mut Given) {
    const ETCD: &str = "cluster.etcd";
    const AUTHORITY: &str = "cluster.etcd_authority";
    const IDENTITY: &str = "cluster.etcd_identity";
    let endpoints = cluster.etcd.items();
    if cluster.coordinator.get().is_some() && !endpoints.is_empty() {
        let reason = "members of a cluster meet by etcd or by one of them, not by both".to_owned();
        let next_step = "leave one of cluster.coordinator and cluster.etcd empty".to_owned();
        given.contradict("cluster.coordinator", &[ETCD], reason, next_step);
    }
    if endpoints.is_empty() {
        return;
    }
    let encrypted = endpoints.iter().filter(|endpoint| endpoint.starts_with("https://")).count();
    if 0 < encrypted && encrypted < endpoints.len() {
        let reason = "some of these are encrypted and some are not".to_owned();
        let next_step = format!("name all endpoints of {ETCD} with https://, or all with http://");
        given.contradict(ETCD, &[], reason, next_step);
        return;
    }
    let has_authority = cluster.etcd_authority.path().is_some();
    if encrypted > 0 && !has_authority {
        let reason =
            format!("{AUTHORITY} is not set, so nobody can tell whether it is this etcd that answers");
        let next_step = format!("set {AUTHORITY} to the file with the certificate of who signed etcd's");
        given.contradict(ETCD, &[AUTHORITY], reason, next_step);
    }
    for (key, file) in [(AUTHORITY, &cluster.etcd_authority), (IDENTITY, &cluster.etcd_identity)] {
        if encrypted == 0 && file.path().is_some() {
            let reason = "the endpoints of etcd are not encrypted, so it would not be used".to_owned();
            let next_step = format!("name them with https:// in {ETCD}, or leave {key} empty");
            given.contradict(key, &[ETCD], reason, next_step);
        }
    }
}

fn check_state_dir_is_known(host: &Host, given: &mut Given) {
    let by_default = given.entry("runtime.state_dir").origin == Origin::Default;
    if by_default && !host.is_root() && host.runtime_dir.is_none() {
        given.contradict(
            "runtime.state_dir",
            &[],
            "there is no default without root and without XDG_RUNTIME_DIR".to_owned(),
            "set runtime.state_dir to a directory of your own, or set XDG_RUNTIME_DIR".to_owned(),
        );
    }
}

fn check_scratch_capacity_is_known(config: &Config, host: &Host, mount: &MountPlace, given: &mut Given) {
    let by_default = given.entry("scratch.capacity").origin == Origin::Default;
    let is_unknown =
        |directory: &&PathBuf| !mount.contains(directory) && (host.free_space)(directory).is_none();
    if let Some(directory) = config.scratch.dir.paths().iter().find(is_unknown).filter(|_| by_default) {
        given.contradict(
            "scratch.capacity",
            &["scratch.dir"],
            format!("the free space of {} cannot be learnt", directory.display()),
            "set scratch.capacity, or set scratch.dir to a disk that can be reached".to_owned(),
        );
    }
}

impl Given {
    /// Adds the problem that the value of `key` does not hold up, unless `key` or one of `others`, which the
    /// judgement rests on, is faulty already.
    fn contradict(&mut self, key: &str, others: &[&str], reason: String, next_step: String) {
        if self.is_faulty(key) || others.iter().any(|other| self.is_faulty(other)) {
            return;
        }
        let entry = self.entry(key);
        let problem = Problem {
            key: key.to_owned(),
            value: Some(entry.value.clone()),
            origin: entry.origin.clone(),
            cause: Cause::Contradiction { reason, next_step },
        };
        self.problems.push(problem);
    }
}
