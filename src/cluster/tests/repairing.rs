//! How soon copies that are missing are made again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::gone::{config, in_virtual_time, soon, start_as};
use super::host::Host;
use super::members::{name_served, settled};
use super::memory::Object;
use super::network::Network;
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::shards::KeyId;
use crate::cluster::*;

/// Six seconds of a walk that takes its time.
const OBJECTS: usize = 6 * 2048;

#[test]
fn what_a_lost_member_held_is_held_by_another_at_once_though_a_walk_is_under_way_that_takes_its_time() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(1), Embedded::new(ClusterId(7)));
        let grace = Duration::from_secs(1);
        let mut hosts = Vec::new();
        for id in 1..=3 {
            let mut config = config(id);
            config.timings.grace = grace;
            config.timings.look_for_copies = Duration::from_millis(100);
            hosts.push(start_as(config, &network, Arc::new(coordinator.another())).await);
        }
        settled(&hosts).await;
        let (one, first) = (&hosts[0], hosts[0].cluster.me());
        let name = name_served(&hosts, |owners| owners.primary == first);
        one.write_copies(&name, b"bytes", Stamp(5), 2, soon()).await.unwrap();
        // The walks that the coming of the members is followed by are over then.
        sleep(Duration::from_secs(10)).await;
        let holds = |host: &Host| host.memory.state.lock().objects.contains_key(name.as_bytes());
        let (lost, other) = if holds(&hosts[1]) { (&hosts[1], &hosts[2]) } else { (&hosts[2], &hosts[1]) };
        assert!(holds(lost) && !holds(other));
        {
            // Before it in the order of the walk, and of which nobody knows: to look at one takes no time.
            let map = Arc::clone(&one.cluster.core.seen().map);
            let is_own = |path: &Vec<u8>| {
                map.owners(KeyId::of(path).shard()).is_some_and(|owners| owners.primary == first)
            };
            let object = Object {
                stamp: Stamp(5),
                bytes: Arc::new([]),
                is_directory: false,
                is_soft: false,
                replicas: 2,
            };
            let paths = (0..).map(|number| format!("a/{number}").into_bytes()).filter(is_own);
            let mut state = one.memory.state.lock();
            state.objects.extend(paths.take(OBJECTS).map(|path| (path, object.clone())));
        }
        let walks = || one.memory.state.lock().walks;
        let before = walks();
        while walks() == before {
            sleep(Duration::from_millis(10)).await;
        }
        let lost_at = tokio::time::Instant::now();
        network.kill(lost.cluster.core.me);
        lost.cluster.close().await;
        while !holds(other) {
            let took = lost_at.elapsed();
            assert!(took < grace + Duration::from_secs(3), "{took:?}");
            sleep(Duration::from_millis(10)).await;
        }
        for host in [one, other] {
            host.cluster.close().await;
        }
    });
}
