//! Hosts of one cluster.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::common::etcd::Etcd;
use crate::common::{Mount, pattern, wait};

/// An etcd, and daemons that found each other by it.
pub(crate) struct Hosts {
    pub(crate) mounts: Vec<Mount>,
    pub(crate) etcd: Etcd,
}

impl Hosts {
    /// `count` hosts with these options beside those that make them a cluster.
    pub(crate) fn start(count: usize, options: &[&str]) -> Self {
        Self::start_by(Etcd::start(), count, options)
    }

    /// As [`Hosts::start`], by an etcd that runs.
    pub(crate) fn start_by(etcd: Etcd, count: usize, options: &[&str]) -> Self {
        let endpoint = format!("cluster.etcd={}", etcd.endpoint());
        let mounts = (0..count)
            .map(|index| {
                let host = format!("cluster.host=host-{index}");
                let fixed = [&*endpoint, &*host, "cluster.listen=127.0.0.1:0", "cluster.grace_s=3"];
                Mount::start(&[&fixed[..], options].concat())
            })
            .collect();
        let hosts = Self { mounts, etcd };
        hosts.wait_until_whole();
        hosts
    }

    /// Waits until what is made on any host is seen on all others.
    #[track_caller]
    pub(crate) fn wait_until_whole(&self) {
        for (index, mount) in self.mounts.iter().enumerate() {
            let name = format!("whole-{index}");
            let _ = fs::create_dir(mount.join(&name));
            let is_seen = || self.mounts.iter().all(|mount| mount.join(&name).is_dir());
            assert!(wait::until(Duration::from_secs(20), is_seen), "host {index} is not seen by all others");
        }
    }
}

/// Publishes as most clients do: under a temporary name, then by rename.
#[track_caller]
pub(crate) fn publish(path: &Path, bytes: &[u8]) {
    let name = path.file_name().expect("a name").to_str().expect("UTF-8");
    let temporary = path.with_file_name(format!(".{name}.tmp"));
    let mut file = fs::File::create(&temporary).expect("a temporary file");
    file.write_all(bytes).expect("its bytes");
    fs::rename(&temporary, path).expect("the rename");
}

/// An object of `length` bytes that says itself what it must be.
pub(crate) fn object(seed: u64, length: usize) -> Vec<u8> {
    pattern::object(seed, length)
}
