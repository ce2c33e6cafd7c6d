//! Members that change one name at the same time.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tidefs_engine::rng::Rng;
use tidefs_engine::types::MemberId;
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio::time::sleep;

use super::gone::{in_virtual_time, soon, start};
use super::host::{Host, Seen};
use super::members::name_served;
use super::memory::Object;
use super::network::Network;
use super::simulation::from_environment;
use crate::cluster::catalog::wire::{Answered, CHANGE};
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::shards::KeyId;
use crate::cluster::*;

/// Networks that differ in how long messages take.
const NETWORKS: u64 = 20;

/// Three members, and a name of which the second decides, with the third beside it.
async fn three(seed: u64) -> (Vec<Host>, String) {
    three_over(&Network::new(seed)).await
}

async fn three_over(network: &Arc<Network>) -> (Vec<Host>, String) {
    let coordinator = Embedded::new(ClusterId(7));
    let mut hosts = Vec::new();
    for id in 1..=3 {
        hosts.push(start(id, network, &coordinator).await);
    }
    sleep(Duration::from_secs(3)).await;
    let name =
        name_served(&hosts, |owners| owners.primary == MemberId(2) && owners.backup == Some(MemberId(3)));
    (hosts, name)
}

/// Has `host` announce what it holds, and returns when that is on its way: no time passes meanwhile.
async fn announces(host: &Host) {
    let counters = host.cluster.counters();
    let before = counters.announced.get();
    host.cluster.core.plan_all_of(MemberId(2));
    while counters.announced.get() == before {
        yield_now().await;
    }
    for _ in 0..100 {
        yield_now().await;
    }
}

/// The second host and the first publish at once, and the first is later in order: all find what it published.
async fn the_later_one_stands(hosts: &[Host], name: &str) {
    let (theirs, ours) = tokio::join!(
        hosts[1].write(name, b"theirs", Stamp(30), soon()),
        hosts[0].write(name, b"ours", Stamp(20), soon())
    );
    assert!(theirs.unwrap().stamp < ours.unwrap().stamp);
    all_find(hosts, name, b"ours").await;
}

async fn all_find(hosts: &[Host], name: &str, bytes: &[u8]) {
    sleep(Duration::from_secs(2)).await;
    for (index, host) in hosts.iter().enumerate() {
        let found = host.read(name, soon()).await;
        assert_eq!(found.as_deref(), Some(bytes), "host {} finds {found:?}", index + 1);
    }
}

#[test]
fn what_is_published_stays_though_the_version_before_it_is_refused_meanwhile() {
    for seed in 0..NETWORKS {
        in_virtual_time(async move {
            let (hosts, name) = three(seed).await;
            hosts[1].write(&name, b"old", Stamp(10), soon()).await.unwrap();
            assert!(hosts[0].read_and_keep(&name, soon()).await.is_some());
            sleep(Duration::from_secs(1)).await;
            announces(&hosts[0]).await;
            the_later_one_stands(&hosts, &name).await;
        });
    }
}

#[test]
fn what_is_published_stays_though_it_was_announced_and_refused_itself_meanwhile() {
    for seed in 0..NETWORKS {
        in_virtual_time(async move {
            let (hosts, name) = three(seed).await;
            // As one that could not be published.
            let bytes: Arc<[u8]> = Arc::from(&b"ours"[..]);
            let object = Object { stamp: Stamp(20), bytes, is_directory: false, is_soft: false, replicas: 1 };
            hosts[0].memory.state.lock().objects.insert(name.clone().into_bytes(), object);
            announces(&hosts[0]).await;
            the_later_one_stands(&hosts, &name).await;
        });
    }
}

#[test]
fn two_that_publish_one_name_leave_the_version_of_one_of_them() {
    for seed in 0..NETWORKS {
        in_virtual_time(async move {
            let (hosts, name) = three(seed).await;
            let (one, other) = tokio::join!(
                hosts[0].write(&name, b"one", Stamp(20), soon()),
                hosts[2].write(&name, b"other", Stamp(20 + seed % 3), soon())
            );
            let is_one = one.unwrap().stamp > other.unwrap().stamp;
            all_find(&hosts, &name, if is_one { b"one" } else { b"other" }).await;
        });
    }
}

#[test]
fn a_removal_of_which_the_answer_is_lost_leaves_what_was_published_since() {
    in_virtual_time(async {
        let network = Network::new(1);
        let (hosts, name) = three_over(&network).await;
        hosts[1].write(&name, b"old", Stamp(10), soon()).await.unwrap();
        let (host, removed) = (hosts[0].clone(), name.clone());
        let deadline = soon() + Duration::from_secs(60);
        let removal = tokio::spawn(async move { host.unlink(&removed, Stamp(15), deadline).await });
        let primary = &hosts[1].cluster.core;
        let key = KeyId::of(name.as_bytes());
        while matches!(primary.owner.lock().look_at(key), Answered::Present { .. }) {
            sleep(Duration::from_millis(1)).await;
        }
        // It is decided, and the one who decided is not reached for a while.
        network.part(hosts[0].cluster.core.me, primary.me);
        network.end(hosts[0].cluster.core.me, primary.me, "reset");
        hosts[1].write(&name, b"since", Stamp(20), soon()).await.unwrap();
        assert!(!removal.is_finished(), "its answer came");
        network.join(hosts[0].cluster.core.me, primary.me);
        removal.await.unwrap().unwrap();
        all_find(&hosts, &name, b"since").await;
    });
}

/// `host` removes a directory, by a clock that says `at`.
fn remove_directory(host: &Host, name: &str, at: Stamp) -> JoinHandle<Result<(), ClusterError>> {
    let (cluster, deadline) = (host.cluster.clone(), soon() + Duration::from_secs(60));
    let path = name.as_bytes().to_vec();
    let removal = Removal { path, through: at, is_directory: true, spares_later: false };
    tokio::spawn(async move { cluster.remove(removal, deadline).await })
}

#[test]
fn a_removal_of_a_directory_of_which_the_answer_is_lost_leaves_what_was_made_since() {
    in_virtual_time(async {
        let network = Network::new(1);
        let (hosts, name) = three_over(&network).await;
        hosts[1].make_directory(&name, soon()).await.unwrap();
        let removal = remove_directory(&hosts[0], &name, Stamp(15));
        let (remover, primary) = (hosts[0].cluster.core.me, &hosts[1].cluster.core);
        let key = KeyId::of(name.as_bytes());
        while matches!(primary.owner.lock().look_at(key), Answered::Present { .. }) {
            sleep(Duration::from_millis(1)).await;
        }
        // It is decided, and the one who decided is not reached for a while.
        network.part(remover, primary.me);
        network.end(remover, primary.me, "reset");
        hosts[1].make_directory(&name, soon()).await.unwrap();
        assert!(!removal.is_finished(), "its answer came");
        network.join(remover, primary.me);
        removal.await.unwrap().unwrap();
        for host in &hosts {
            assert!(host.look_up(&name, soon()).await.is_present(), "of {}", host.cluster.me());
        }
    });
}

#[test]
fn the_version_of_a_directory_is_said_by_who_decides_and_else_by_nobody() {
    in_virtual_time(async {
        let network = Network::new(1);
        let (hosts, name) = three_over(&network).await;
        let core = &hosts[0].cluster.core;
        let version = async || core.directory_version(name.as_bytes(), soon()).await;
        assert_eq!(version().await, Some(Stamp(0)), "there is none");
        let facts = Facts::Directory(DirectoryFacts { mode: 0o755, uid: 0, gid: 0 });
        hosts[1].cluster.publish(name.clone().into_bytes(), Stamp(20), facts, soon()).await.unwrap();
        assert_eq!(version().await, Some(Stamp(20)));
        for host in &hosts[1..] {
            network.part(core.me, host.cluster.core.me);
        }
        assert_eq!(version().await, None, "nobody is reached");
    });
}

#[test]
fn a_directory_is_removed_though_the_first_message_is_lost_and_another_clock_is_ahead() {
    let lost = Cell::new(0);
    for seed in 0..NETWORKS {
        in_virtual_time(async {
            let network = Network::new(seed);
            let (hosts, name) = three_over(&network).await;
            let facts = Facts::Directory(DirectoryFacts { mode: 0o755, uid: 0, gid: 0 });
            let ahead = Stamp(20);
            hosts[1].cluster.publish(name.clone().into_bytes(), ahead, facts, soon()).await.unwrap();
            let (one, primary) = (hosts[0].cluster.core.me, &hosts[1].cluster.core);
            network.record();
            let removal = remove_directory(&hosts[0], &name, Stamp(15));
            let is_sent = || network.sent_by(one).iter().any(|(channel, _)| *channel == CHANGE);
            while !is_sent() {
                sleep(Duration::from_millis(1)).await;
            }
            network.part(one, primary.me);
            sleep(Duration::from_millis(100)).await;
            let key = KeyId::of(name.as_bytes());
            let is_there = matches!(primary.owner.lock().look_at(key), Answered::Present { .. });
            lost.set(lost.get() + u64::from(is_there));
            network.end(one, primary.me, "reset");
            sleep(Duration::from_millis(100)).await;
            network.join(one, primary.me);
            removal.await.unwrap().unwrap();
            for host in &hosts {
                assert_eq!(host.look_up(&name, soon()).await, Seen::Absent);
            }
        });
    }
    assert!(lost.get() > 0, "each first message came");
}

/// The time by the clock of a host, later than the version that it shows.
fn stamp_for(host: &Host, name: &str, began: tokio::time::Instant) -> Stamp {
    let now = 1_000_000_000 + u64::try_from(began.elapsed().as_nanos()).unwrap();
    let shown = host.memory.state.lock().objects.get(name.as_bytes()).map_or(0, |object| object.stamp.0);
    Stamp(now.max(shown + 1))
}

/// What one member does to a name in one round. Returns whether it published and whether it removed.
async fn act(host: &Host, name: &str, round: u64, kind: u64, began: tokio::time::Instant) -> (bool, bool) {
    let me = host.cluster.me().0;
    let at = stamp_for(host, name, began);
    match kind {
        0..=3 => {
            let bytes = format!("{me} in round {round}");
            let published = host.write(name, bytes.as_bytes(), at, soon()).await;
            assert!(published.unwrap().is_settled);
            (true, false)
        }
        4 => {
            host.unlink(name, at, soon()).await.unwrap();
            (false, true)
        }
        5 | 6 => {
            host.cluster.core.plan_all_of(MemberId(1 + kind % 3));
            host.cluster.core.plan_all_of(MemberId(2));
            (false, false)
        }
        _ => {
            // Which may be a miss while others replace it.
            drop(host.read_and_keep(name, soon()).await);
            (false, false)
        }
    }
}

/// What the owners of a name know of it, and what the hosts have and remember.
fn told(hosts: &[Host], name: &str) -> String {
    let key = KeyId::of(name.as_bytes());
    let of = |host: &Host| {
        let known = host.cluster.core.owner.lock().known(key, Stamp(0), Duration::ZERO);
        let held = host.memory.state.lock().objects.get(name.as_bytes()).cloned();
        format!("{known:?} {held:?} {:?}", host.remembers(name))
    };
    hosts.iter().map(of).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_members_do_to_one_name_at_once_leaves_them_of_one_mind() {
    for seed in 0..from_environment("TIDEFS_SIMULATION_SEEDS").unwrap_or(200) {
        in_virtual_time(async move {
            let (hosts, name) = three(seed).await;
            let (mut rng, began) = (Rng::seeded(seed), tokio::time::Instant::now());
            let mut stands = false;
            for round in 0..10 {
                let mut acts = JoinSet::new();
                for (index, host) in hosts.iter().flat_map(|host| [host, host]).enumerate() {
                    // Of two at one host one changes nothing.
                    let kind = if index % 2 == 0 { rng.below(10) } else { 5 + rng.below(5) };
                    let (name, pause) = (name.clone(), Duration::from_micros(rng.below(6000)));
                    let host = host.clone();
                    acts.spawn(async move {
                        sleep(pause).await;
                        act(&host, &name, round, kind, began).await
                    });
                }
                let done = acts.join_all().await;
                let (published, removed) =
                    done.iter().fold((false, false), |all, one| (all.0 || one.0, all.1 || one.1));
                sleep(Duration::from_secs(2)).await;
                let mut found = Vec::new();
                for host in &hosts {
                    let bytes = host.read_and_keep(&name, soon()).await;
                    found.push(bytes.map(|bytes| String::from_utf8(bytes).unwrap()));
                }
                let is_agreed = found.iter().all(|one| *one == found[0]);
                assert!(is_agreed, "seed {seed}, round {round}: {found:?}, {}", told(&hosts, &name));
                let must_stand = (stands || published) && !removed;
                assert!(found[0].is_some() || !must_stand, "seed {seed}, round {round}: it is lost");
                stands = found[0].is_some();
            }
        });
    }
}
