//! Members that join, leave, die and are started again, over real sockets: the others find what is there, and wait for nobody
//! for long.

use std::sync::Arc;
use std::time::Duration;

use tidefs_engine::types::ByteCount;

use super::host::{Host, Seen};
use super::members::{
    config, in_a_cluster_of, name_served, runtime, settled, soon, start, start_with, started, until, wall,
};
use crate::cluster::catalog::wire::Known;
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::shards::{KeyId, Owners};
use crate::cluster::*;

#[test]
fn who_joins_learns_what_was_written_before_and_serves_it() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let mut hosts = vec![start(&coordinator, config(1)).await];
        for number in 0..500 {
            hosts[0].write(&format!("kv/{number}"), b"before", wall(), soon()).await.unwrap();
        }
        for id in 2..=4 {
            hosts.push(start(&coordinator, config(id)).await);
            settled(&hosts).await;
            for number in 0..500 {
                let seen = hosts.last().unwrap().look_up(&format!("kv/{number}"), soon()).await;
                assert!(matches!(seen, Seen::Elsewhere(..)), "kv/{number} at {id}: {seen:?}");
            }
        }
        // Each name is known to exactly its two owners.
        until("what moved away is forgotten", || {
            hosts.iter().map(|host| host.cluster.status().entries).sum::<usize>() == 1000
        })
        .await;
    });
}

#[test]
fn who_joins_while_another_is_still_told_leaves_nothing_to_be_announced_for_ever() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let mut slow = config(1);
        // A page of names takes a quarter of a second: the third joins while the second hears of the names.
        slow.limits.announced_per_second = 2000;
        let mut hosts = vec![start(&coordinator, slow).await];
        for number in 0..1500 {
            hosts[0].write(&format!("kv/{number}"), b"before", wall(), soon()).await.unwrap();
        }
        hosts.push(start(&coordinator, config(2)).await);
        let core = Arc::clone(&hosts[0].cluster.core);
        until("the second is being told", || core.counters.announced.get() > 0).await;
        hosts.push(start(&coordinator, config(3)).await);
        settled(&hosts).await;
        let told = core.counters.announced.get();
        tokio::time::sleep(10 * core.config.timings.tick).await;
        assert_eq!(core.counters.announced.get(), told, "it goes on announcing");
    });
}

#[test]
fn who_leaves_is_found_no_more_and_its_shards_go_on() {
    in_a_cluster_of(3, |_, mut hosts| async move {
        for number in 0..100 {
            hosts[number % 3].write(&format!("kv/{number}"), b"bytes", wall(), soon()).await.unwrap();
        }
        let gone = hosts.pop().unwrap();
        gone.cluster.leave(soon()).await.unwrap();
        gone.cluster.close().await;
        until("the view without it", || {
            hosts.iter().all(|host| {
                let status = host.cluster.status();
                status.members.len() == 2 && status.incomplete_shards == 0 && status.shards_to_announce == 0
            })
        })
        .await;
        for number in 0..100 {
            let name = format!("kv/{number}");
            let is_there = hosts[0].read(&name, soon()).await.is_some();
            assert_eq!(is_there, number % 3 != 2, "{name}");
        }
    });
}

#[test]
fn who_left_long_ago_is_forgotten_altogether() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let brief = |id| {
            let mut config = config(id);
            config.timings.grace = Duration::from_millis(100);
            config.timings.tombstones = Duration::from_millis(200);
            config
        };
        let mut hosts = Vec::new();
        for id in 1..=3 {
            hosts.push(start(&coordinator, brief(id)).await);
        }
        settled(&hosts).await;
        let gone = hosts.pop().unwrap();
        gone.write("kv/a", b"bytes", wall(), soon()).await.unwrap();
        gone.cluster.leave(soon()).await.unwrap();
        gone.cluster.close().await;
        until("nothing of it is left", || {
            hosts
                .iter()
                .all(|host| host.cluster.status().entries == 0 && host.cluster.core.peers.lock().len() == 1)
        })
        .await;
        hosts[0].write("kv/b", b"bytes", wall(), soon()).await.unwrap();
        assert!(hosts[1].read("kv/b", soon()).await.is_some());
    });
}

#[test]
fn the_backup_answers_while_the_primary_is_dead_and_nothing_hangs() {
    in_a_cluster_of(3, |_, hosts| async move {
        let (one, two, three) = (hosts[0].cluster.me(), hosts[1].cluster.me(), hosts[2].cluster.me());
        let name = name_served(&hosts, |owners| owners.primary == three && owners.backup == Some(two));
        hosts[0].write(&name, b"before", wall(), soon()).await.unwrap();
        // Dead, and still in the view: its lease lives on.
        hosts[2].cluster.close().await;
        until("it is missed", || hosts[..2].iter().all(|host| host.cluster.core.is_suspect(three))).await;
        assert!(hosts[1].look_up(&name, soon()).await.is_present());
        hosts[1].write(&name, b"after", wall(), soon()).await.unwrap();
        assert_eq!(hosts[0].read(&name, soon()).await.as_deref(), Some(&b"after"[..]));
        hosts[0].unlink(&name, wall(), soon()).await.unwrap();
        assert_eq!(hosts[1].look_up(&name, soon()).await, Seen::Absent);
        let _ = one;
    });
}

#[test]
fn a_reader_waits_for_a_lost_member_once_and_not_for_each_of_its_objects() {
    in_a_cluster_of(3, |_, hosts| async move {
        let (core, lost) = (&hosts[0].cluster.core, hosts[2].cluster.me());
        let mut wanted = Vec::new();
        for name in ["kv/a", "kv/b"] {
            hosts[2].write(name, b"bytes", wall(), soon()).await.unwrap();
            let Seen::Elsewhere(stamp, copies, size) = hosts[0].look_up(name, soon()).await else {
                panic!("{name} is on another host");
            };
            wanted.push(Wanted { path: name.into(), stamp, size: ByteCount(size), copies });
        }
        assert_eq!(core.first_source(&wanted[0].copies), Some(lost));
        hosts[2].cluster.close().await;
        until("it is lost", || {
            core.peers.lock().get(&lost).is_some_and(|peer| peer.is_lost(core.now(), core.first_patience()))
        })
        .await;
        let mut asked = Vec::new();
        for wanted in wanted {
            match hosts[0].cluster.fetch_bytes(wanted, soon()).await {
                Err(ClusterError::NoSource { asked: count, .. }) => asked.push(count),
                other => panic!("nobody has it: {other:?}"),
            }
        }
        assert_eq!(asked, [1, 0]);
    });
}

#[test]
fn who_is_started_again_finds_its_objects_and_the_others_theirs() {
    in_a_cluster_of(3, |coordinator, mut hosts| async move {
        for number in 0..200 {
            hosts[number % 3].write(&format!("kv/{number}"), b"bytes", wall(), soon()).await.unwrap();
        }
        let old = hosts.pop().unwrap();
        old.cluster.close().await;
        // Removed while it was away.
        until("it is missed", || hosts.iter().all(|host| host.cluster.core.is_suspect(old.cluster.me())))
            .await;
        hosts[0].unlink("kv/2", wall(), soon()).await.unwrap();
        hosts.push(start_with(&coordinator, config(3), old.memory).await);
        settled(&hosts).await;
        for number in 0..200 {
            let name = format!("kv/{number}");
            for host in &hosts {
                assert_eq!(host.read(&name, soon()).await.is_some(), number != 2, "{name}");
            }
        }
    });
}

#[test]
fn who_is_back_after_longer_than_removals_are_remembered_keeps_what_others_hold_too_and_nothing_else() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let brief = |config: &mut ClusterConfig| {
            config.timings.grace = Duration::from_millis(100);
            config.timings.tombstones = Duration::from_millis(300);
        };
        let mut hosts = started(&coordinator, 3, brief).await;
        let [first, second] = [0, 1].map(|host: usize| hosts[host].cluster.me());
        let map = Arc::clone(&hosts[0].cluster.core.seen().map);
        let is_theirs = |name: &String| {
            let owners = Owners { primary: first, backup: Some(second) };
            map.owners(KeyId::of(name.as_bytes()).shard()) == Some(owners)
        };
        let names: Vec<String> =
            (0..).map(|number| format!("kv/{number}")).filter(is_theirs).take(2).collect();
        let (own, shared) = (&names[0], &names[1]);
        hosts[2].write(own, b"bytes", wall(), soon()).await.unwrap();
        for host in [0, 2] {
            hosts[host].write(shared, b"the same", wall(), soon()).await.unwrap();
        }
        let old = hosts.pop().unwrap();
        let before: Vec<Duration> = hosts.iter().map(|host| host.cluster.core.now()).collect();
        old.cluster.close().await;
        let is_away_for_long = |(host, before): (&Host, &Duration)| {
            let (owner, now) = (host.cluster.core.owner.lock(), host.cluster.core.now());
            let known = owner.known(KeyId::of(own.as_bytes()), Stamp(0), now);
            let age = owner.horizon_age_ms(now).map(Duration::from_millis);
            !matches!(known, Known::Present { .. }) && age.is_some_and(|age| age <= now - *before)
        };
        until("it is away for that long", || hosts.iter().zip(&before).all(is_away_for_long)).await;
        let mut again = config(3);
        brief(&mut again);
        hosts.push(start_with(&coordinator, again, old.memory).await);
        let held = || hosts[2].memory.state.lock().objects.keys().cloned().collect::<Vec<_>>();
        until("what only it held is dropped", || held() == [shared.as_bytes()]).await;
        settled(&hosts).await;
        assert_eq!(held(), [shared.as_bytes()]);
        assert_eq!(hosts[2].cluster.counters().refused.get(), 1);
        assert_eq!(hosts[0].look_up(own, soon()).await, Seen::Absent);
        assert!(hosts[1].look_up(shared, soon()).await.is_present());
    });
}
