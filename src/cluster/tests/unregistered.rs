//! Members that do not hear what the coordinator says, or that it has lost, while the others reach them: over real sockets.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidefs_engine::types::Incarnation;
use tokio::runtime::Handle;

use super::deaf::Deaf;
use super::host::{Host, Seen};
use super::members::{config, runtime, settled, soon, until, until_answered, wall};
use super::memory::Memory;
use crate::cluster::catalog::owner::Role;
use crate::cluster::catalog::wire::{Known, Revocation};
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::coordinator::{Coordinator, Reachability};
use crate::cluster::shards::KeyId;
use crate::cluster::*;

/// Three members with coordinators that can be deaf, and lost members are forgotten after so long.
pub(super) async fn three(grace: Duration) -> (Embedded, Vec<Arc<Deaf>>, Vec<Host>) {
    let coordinator = Embedded::new(ClusterId(7));
    let (mut deaf, mut hosts) = (Vec::new(), Vec::new());
    for id in 1..=3 {
        let mut config = config(id);
        config.timings.grace = grace;
        let (memory, own) = (Arc::new(Memory::default()), Deaf::new(coordinator.another()));
        let holder: std::sync::Weak<dyn Holder> = Arc::<Memory>::downgrade(&memory);
        let asked = Arc::clone(&own) as Arc<dyn Coordinator>;
        let cluster = Cluster::start(config, Handle::current(), asked, holder).await.unwrap();
        memory.belongs_to(&cluster);
        deaf.push(own);
        hosts.push(Host { cluster, memory });
    }
    settled(&hosts).await;
    (coordinator, deaf, hosts)
}

fn member_of(host: &Host) -> Member {
    let view = host.cluster.core.seen().view.clone();
    view.member(host.cluster.me()).unwrap().clone()
}

/// Names of all kinds: decided by each of the members.
fn names() -> impl Iterator<Item = String> {
    (0..60).map(|number| format!("kv/{number}"))
}

fn lost_and_found(hears: bool) {
    runtime().block_on(async {
        let grace = Duration::from_millis(300);
        let (_coordinator, deaf, hosts) = three(grace).await;
        let member = member_of(&hosts[0]);
        for name in names() {
            hosts[0].write(&name, b"before", wall(), soon()).await.unwrap();
        }
        deaf[0].set_deaf(!hears);
        deaf[0].inner.leave(soon()).await.unwrap();
        until("the others have lost it", || {
            hosts[1..].iter().all(|host| host.cluster.core.seen().view.members().len() == 2)
        })
        .await;
        let is_none = |host: &Host| {
            names().all(|name| {
                host.cluster.core.owner.lock().role(KeyId::of(name.as_bytes()).shard()) != Role::Primary
            })
        };
        until("it serves nothing", || is_none(&hosts[0])).await;
        tokio::time::sleep(4 * grace).await;
        for (number, name) in names().enumerate() {
            // What it holds is there, for everyone.
            assert_eq!(hosts[1].read(&name, soon()).await.as_deref(), Some(&b"before"[..]), "{name}");
            let writer = &hosts[number % 3];
            let began = std::time::Instant::now();
            let published = writer.write(&name, name.as_bytes(), wall(), soon()).await.unwrap();
            assert!(published.is_settled && began.elapsed() < Duration::from_secs(2), "{name}");
            for host in &hosts {
                let read = host.read(&name, soon()).await;
                assert_eq!(read.as_deref(), Some(name.as_bytes()), "{name} of {}", host.cluster.me());
            }
        }
        for name in names().map(|name| format!("{name}-absent")) {
            assert_eq!(hosts[0].look_up(&name, soon()).await, Seen::Absent);
            hosts[1].write(&name, b"came", wall(), soon()).await.unwrap();
            assert!(hosts[0].look_up(&name, soon()).await.is_present(), "{name}");
        }
        deaf[0].set_deaf(false);
        deaf[0].inner.register(member, soon()).await.unwrap();
        let latest = deaf[0].inner.views().borrow().number;
        until("all know that it is back", || {
            hosts.iter().all(|host| host.cluster.core.seen().view.number == latest)
        })
        .await;
        settled(&hosts).await;
        for name in names() {
            for host in &hosts {
                let read = host.read(&name, soon()).await;
                assert_eq!(read.as_deref(), Some(name.as_bytes()), "{name} of {}", host.cluster.me());
            }
        }
    });
}

#[test]
fn who_only_the_coordinator_has_lost_finds_and_publishes_for_as_long_as_that_lasts() {
    lost_and_found(true);
}

#[test]
fn who_does_not_hear_that_the_coordinator_has_lost_it_leaves_its_shards_to_those_who_answer_for_them() {
    lost_and_found(false);
}

#[test]
fn who_was_out_of_a_view_that_it_never_heard_of_learns_what_happened_before_it_answers() {
    runtime().block_on(async {
        let (_coordinator, deaf, hosts) = three(Duration::from_secs(60)).await;
        let member = member_of(&hosts[0]);
        for name in names() {
            hosts[1].write(&name, b"before", wall(), soon()).await.unwrap();
        }
        deaf[0].set_deaf(true);
        deaf[0].inner.leave(soon()).await.unwrap();
        until("the others have lost it", || {
            hosts[1..].iter().all(|host| host.cluster.core.seen().view.members().len() == 2)
        })
        .await;
        let is_told = || hosts[0].cluster.core.needed_view.load(Ordering::Relaxed);
        until("it is told", || is_told() > hosts[0].cluster.core.seen().view.number).await;
        for name in names() {
            hosts[1].unlink(&name, wall(), soon()).await.unwrap();
        }
        deaf[0].inner.register(member, soon()).await.unwrap();
        deaf[0].set_deaf(false);
        until("all are there again", || {
            hosts.iter().all(|host| host.cluster.core.seen().view.number == is_told() + 1)
        })
        .await;
        for name in names() {
            for host in &hosts {
                assert_eq!(host.look_up(&name, soon()).await, Seen::Absent, "{name}");
            }
        }
    });
}

#[test]
fn who_is_second_owner_again_after_a_view_that_it_never_heard_of_knows_that_it_missed_something() {
    runtime().block_on(async {
        let (_coordinator, deaf, hosts) = three(Duration::from_secs(60)).await;
        let member = member_of(&hosts[0]);
        let is_second = |name: &String| {
            let map = Arc::clone(&hosts[0].cluster.core.seen().map);
            let owners = map.owners(KeyId::of(name.as_bytes()).shard()).unwrap();
            owners.backup == Some(hosts[0].cluster.me())
        };
        let names = Vec::from_iter((0..200).map(|number| format!("kv/{number}")).filter(is_second));
        assert!(names.len() > 20);
        deaf[0].set_deaf(true);
        deaf[0].inner.leave(soon()).await.unwrap();
        until("the others have lost it", || {
            hosts[1..].iter().all(|host| host.cluster.core.seen().view.members().len() == 2)
        })
        .await;
        for name in &names {
            hosts[0].write(name, name.as_bytes(), wall(), soon()).await.unwrap();
        }
        // Nobody tells it, as if all of them were gone before they could.
        deaf[1..].iter().for_each(|deaf| deaf.set_deaf(true));
        deaf[0].inner.register(member, soon()).await.unwrap();
        deaf[0].set_deaf(false);
        until("it knows of what it holds itself", || {
            let owner = hosts[0].cluster.core.owner.lock();
            let now = hosts[0].cluster.core.now();
            names.iter().all(|name| {
                let known = owner.known(KeyId::of(name.as_bytes()), Stamp(0), now);
                matches!(known, Known::Present { .. })
            })
        })
        .await;
    });
}

#[test]
fn who_hears_of_a_view_late_is_handed_over_what_it_serves_in_it() {
    runtime().block_on(async {
        let (_coordinator, deaf, mut hosts) = three(Duration::from_secs(60)).await;
        let before = hosts[0].cluster.core.seen().map.clone();
        let is_it = |name: &String| {
            before.owners(KeyId::of(name.as_bytes()).shard()).is_some_and(|owners| {
                owners.primary == hosts[0].cluster.me() && owners.backup == Some(hosts[1].cluster.me())
            })
        };
        let name = (0..).map(|number| format!("kv/{number}")).find(is_it).unwrap();
        hosts[0].write(&name, b"bytes", wall(), soon()).await.unwrap();
        hosts[0].unlink(&name, wall(), soon()).await.unwrap();
        deaf[2].set_deaf(true);
        let left = hosts.remove(1);
        left.cluster.leave(soon()).await.unwrap();
        left.cluster.close().await;
        until("the new view", || hosts[0].cluster.core.seen().view.members().len() == 2).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        deaf[2].set_deaf(false);
        until("it goes by it", || hosts[1].cluster.core.seen().view.members().len() == 2).await;
        let knows = |host: &Host| {
            let core = &host.cluster.core;
            core.owner.lock().known(KeyId::of(name.as_bytes()), Stamp(0), core.now())
        };
        until_answered("the removal", async || matches!(knows(&hosts[1]), Known::Removed { .. })).await;
    });
}

#[test]
fn a_start_of_a_member_that_sees_a_later_one_in_its_place_says_so_and_takes_part_no_more() {
    runtime().block_on(async {
        let (coordinator, _deaf, hosts) = three(Duration::from_secs(60)).await;
        let other = coordinator.another();
        let start = other.begin(hosts[0].cluster.me(), soon()).await.unwrap();
        let mut later = member_of(&hosts[0]);
        later.incarnation = start.incarnation;
        later.engine.id.incarnation = start.incarnation;
        other.register(later, soon()).await.unwrap();
        until("it is seen", || matches!(hosts[0].cluster.status().coordinator, Reachability::Refused { .. }))
            .await;
        let Reachability::Refused { reason, .. } = hosts[0].cluster.status().coordinator else { panic!() };
        assert!(reason.contains("cluster.member") && reason.contains("/etc/machine-id"), "{reason}");
        let began = std::time::Instant::now();
        let refused = hosts[0].write("kv/a", b"bytes", wall(), soon()).await;
        assert!(matches!(refused, Err(ClusterError::Closed)), "{refused:?}");
        assert!(began.elapsed() < Duration::from_secs(1));
        assert_eq!(start.incarnation, Incarnation(2));
    });
}

#[test]
fn a_view_that_there_cannot_be_is_not_waited_for() {
    runtime().block_on(async {
        let (_coordinator, _deaf, hosts) = three(Duration::from_secs(60)).await;
        let core = &hosts[0].cluster.core;
        let shards: Vec<u16> =
            core.seen().map.served_by(core.me.member).map(|shard| shard.number()).collect();
        let forget = Revocation::Forget { shards, view: u64::MAX };
        core.revoke_here(hosts[1].cluster.core.me, vec![forget]).await;
        assert_eq!(core.counters.views_refused.get(), 1);
        for name in names() {
            assert_eq!(hosts[0].look_up(&name, soon()).await, Seen::Absent);
            assert_eq!(hosts[0].remembers(&name), Some(super::memory::Remembered::Absent), "{name}");
            hosts[1].write(&name, b"bytes", wall(), soon()).await.unwrap();
            assert!(hosts[0].look_up(&name, soon()).await.is_present(), "{name}");
        }
    });
}
