//! Removals that only a member that is stopped knows, and that its next start has to tell others, over real sockets.

use std::sync::Arc;

use tidefs_engine::types::ByteCount;

use super::host::Seen;
use super::members::{config, name_served, runtime, settled, soon, start_with, until, until_answered, wall};
use super::removals::{keeping, stop};
use crate::cluster::catalog::wire::Known;
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::peers::Peer;
use crate::cluster::shards::{KeyId, Owners};
use crate::cluster::{ClusterConfig, ClusterId, Stamp};

/// One that serves a thousand times as much of the catalog as one without this.
fn large(config: ClusterConfig) -> ClusterConfig {
    ClusterConfig { capacity: ByteCount::gib(1000), ..config }
}

#[test]
fn what_only_a_member_knows_to_be_removed_its_next_start_tells_those_who_serve_that_in_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("removals.json");
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let mut hosts = vec![start_with(&coordinator, large(keeping(&file)), Arc::default()).await];
        for id in 2..=3 {
            hosts.push(start_with(&coordinator, large(config(id)), Arc::default()).await);
        }
        settled(&hosts).await;
        let [first, second] = [0, 1].map(|host: usize| hosts[host].cluster.me());
        let name = name_served(&hosts, |owners| owners == Owners { primary: first, backup: Some(second) });
        let key = KeyId::of(name.as_bytes());
        hosts[1].write(&name, b"bytes", wall(), soon()).await.unwrap();
        hosts[1].cluster.close().await;
        until("it is missed", || hosts[0].cluster.core.is_suspect(second)).await;
        // The first one decides that alone, and is stopped.
        hosts[2].unlink(&name, wall(), soon()).await.unwrap();
        stop(&hosts[0]).await;
        assert!(file.exists());

        let again = start_with(&coordinator, keeping(&file), Arc::clone(&hosts[0].memory)).await;
        let third = hosts.pop().unwrap();
        let (core, other) = (&again.cluster.core, &third.cluster.core);
        let owners = core.seen().map.owners(key.shard()).unwrap();
        assert!(!owners.contains(first), "{owners:?}");
        let knows = || matches!(other.owner.lock().known(key, Stamp(0), other.now()), Known::Removed { .. });
        until("who serves it knows", knows).await;
        let back = start_with(&coordinator, large(config(2)), Arc::clone(&hosts[1].memory)).await;
        let all = [again.clone(), back, third.clone()];
        settled(&all).await;
        for host in &all {
            let is_gone = async || host.look_up(&name, soon()).await == Seen::Absent;
            until_answered("what was removed is gone", is_gone).await;
        }
        assert!(all.iter().all(|host| host.memory.state.lock().objects.is_empty()));
        until("all who serve it know", || core.recalled.all().is_empty()).await;
    });
}

#[test]
fn what_a_start_recalled_and_has_not_told_all_is_kept_once_more_also_where_the_other_owner_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("removals.json");
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let hosts = [
            start_with(&coordinator, keeping(&file), Arc::default()).await,
            start_with(&coordinator, config(2), Arc::default()).await,
        ];
        settled(&hosts).await;
        let core = &hosts[0].cluster.core;
        until("the other owner has heard all", || core.peers.lock().values().all(Peer::has_heard_all)).await;
        // As it would be recalled from a file; what tells of that has ended, as there was none.
        let (key, now) = (KeyId::of(b"kv/removed"), core.now());
        core.owner.lock().recall_removal(key, Stamp(7), now);
        core.recalled.set(vec![(key, Stamp(7), now)]);
        let kept = || {
            core.keep_removals();
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            text.matches(&format!("{:032x}", key.0)).count()
        };
        assert_eq!(kept(), 1, "the other was not told");
        let second = hosts[1].cluster.me();
        hosts[1].cluster.close().await;
        until("it is missed", || core.is_suspect(second)).await;
        assert_eq!(kept(), 1, "once, though the catalog knows it, too");
    });
}
