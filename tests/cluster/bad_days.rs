//! Histories of hosts that have bad days: they are killed, stand still, or are parted from each other or from etcd.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::etcd::Etcd;
use crate::common::wait;
use crate::fixture::Hosts;
use crate::history::{EVENTS_FOR_ONE, Programs, expect_explained, history_among_fillers, history_of, length};
use crate::way::{Way, free_port};

/// How long what hosts are still to be told when they have met again takes to be told.
const HEARING: Duration = Duration::from_secs(1);

/// Bad days of hosts that are run for a while: one is stopped, killed, or parted from etcd; or hosts are parted from each other.
fn disturb(hosts: &mut Hosts, programs: &Programs, (to_hosts, to_etcd): (&[Way], &[Way])) {
    let over = Instant::now() + length();
    let mut random = StdRng::seed_from_u64(7);
    for kind in (0..4).cycle() {
        // As many looks for each disturbance on a slow machine as on a fast one.
        if Instant::now() >= over && programs.count() >= 4 * EVENTS_FOR_ONE {
            return;
        }
        programs.wait_for(EVENTS_FOR_ONE / 2);
        let index = random.random_range(0..hosts.mounts.len());
        let time = Duration::from_millis(random.random_range(100..2500));
        match kind {
            0 => {
                hosts.mounts[index].stand_still();
                thread::sleep(time);
                hosts.mounts[index].go_on();
            }
            1 => {
                hosts.mounts[index].kill9();
                hosts.mounts[index].start_daemon();
            }
            2 => {
                to_etcd[index].close();
                thread::sleep(time);
                to_etcd[index].open();
            }
            // All from all, or one is not reached and its connections break.
            _ => programs.part(|| {
                let parted = if random.random_bool(0.5) { to_hosts } else { &to_hosts[index..=index] };
                parted.iter().for_each(Way::close);
                thread::sleep(time);
                parted.iter().for_each(Way::open);
                let have_met = || (0..hosts.mounts.len()).all(|host| hosts.has_met(host, hosts.mounts.len()));
                assert!(wait::until(2 * wait::HANG, have_met), "they do not meet again");
                thread::sleep(HEARING);
            }),
        }
    }
}

/// Three hosts, of which each is reached by a way of its own and reaches etcd by another.
struct Parted {
    hosts: Hosts,
    to_hosts: [Way; 3],
    to_etcd: [Way; 3],
}

impl Parted {
    /// With these options of each beside those of all.
    fn start(own_options: impl Fn(usize) -> Vec<String>) -> Self {
        let etcd = Etcd::start();
        let to_etcd = [(); 3].map(|()| Way::to(etcd.port()));
        let ports = [(); 3].map(|()| free_port());
        let to_hosts = ports.map(Way::to);
        let mut hosts = Hosts { mounts: Vec::new(), etcd: Some(etcd) };
        for (index, ((port, to_host), to_etcd)) in ports.iter().zip(&to_hosts).zip(&to_etcd).enumerate() {
            let ways = [
                format!("cluster.listen=127.0.0.1:{port}"),
                format!("cluster.advertise=127.0.0.1:{}", to_host.port),
                format!("cluster.etcd=http://127.0.0.1:{}", to_etcd.port),
            ];
            let common =
                ["cluster.transports=tcp", "on_stop=keep", "cluster.patience_ms=2000"].map(str::to_owned);
            let all = [&ways[..], &common, &own_options(index)].concat();
            hosts.add(&all.iter().map(String::as_str).collect::<Vec<_>>());
        }
        hosts.wait_until_whole();
        Self { hosts, to_hosts, to_etcd }
    }
}

#[test]
fn looks_are_explained_while_hosts_are_killed_paused_and_parted() {
    let Parted { mut hosts, to_hosts, to_etcd } = Parted::start(|_| Vec::new());
    let history = history_of(&mut hosts, |hosts, programs| disturb(hosts, programs, (&to_hosts, &to_etcd)));
    expect_explained(&hosts, &history, true);
}

#[test]
fn looks_are_explained_while_hosts_with_disks_are_killed_paused_and_parted() {
    let disk =
        tempfile::Builder::new().prefix("tidefs-ssd").tempdir_in("/var/tmp").expect("a directory on a disk");
    let Parted { mut hosts, to_hosts, to_etcd } = Parted::start(|index| {
        let own = disk.path().join(index.to_string());
        fs::create_dir(&own).expect("a directory on a disk");
        let ssd = ["ssd.capacity=192MiB", "ssd.zone=8MiB", "capacity=32MiB"].map(str::to_owned);
        [&ssd[..], &[format!("ssd.dirs={}", own.display())]].concat()
    });
    let history =
        history_among_fillers(&mut hosts, |hosts, programs| disturb(hosts, programs, (&to_hosts, &to_etcd)));
    let promoted = (0..3).map(|host| hosts.metric(host, "tidefs_ssd_promotions_total")).sum::<u64>();
    assert!(promoted > 0, "nothing came back from a disk");
    expect_explained(&hosts, &history, true);
}
