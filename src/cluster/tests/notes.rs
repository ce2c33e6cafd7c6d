//! What nobody waits for, and what somebody does, on their way to one member: in virtual time.

use std::sync::Arc;
use std::time::Duration;

use tidefs_engine::types::MemberId;
use tokio::time::{Instant, sleep};

use super::gone::{in_virtual_time, soon, start};
use super::host::Seen;
use super::members::{name_served, settled, until, until_answered};
use super::network::Network;
use crate::cluster::catalog::wire::Revocation;
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::peers::Link;
use crate::cluster::shards::KeyId;
use crate::cluster::*;

/// A few messages there and back.
const A_MOMENT: Duration = Duration::from_millis(60);

#[test]
fn notes_that_wait_for_a_member_that_hangs_hold_up_no_publish_that_does_not() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(1), Embedded::new(ClusterId(7)));
        let mut hosts = Vec::new();
        for id in 1..=4 {
            hosts.push(start(id, &network, &coordinator).await);
        }
        settled(&hosts).await;
        let [writer, primary, hangs, other] = [0, 1, 2, 3].map(|host: usize| hosts[host].cluster.me());
        let served =
            |backup| name_served(&hosts, |owners| owners.primary == primary && owners.backup == Some(backup));
        let (noted, written) = (served(hangs), served(other));
        let published = hosts[3].write(&noted, b"bytes", Stamp(7), soon()).await.unwrap();
        let peer = |host: usize| hosts[host].cluster.core.me;
        network.part(peer(1), peer(2));
        let began = Instant::now();
        // More messages than may be under way at once.
        for round in 0..20 {
            let medium = if round % 2 == 0 { Medium::Memory } else { Medium::Soft };
            hosts[0].cluster.hold(noted.as_bytes(), published.stamp, medium);
            sleep(Duration::from_millis(4)).await;
            let began = Instant::now();
            hosts[0].write(&written, &[round], Stamp(100 + u64::from(round)), soon()).await.unwrap();
            assert!(began.elapsed() < A_MOMENT, "round {round} took {:?}", began.elapsed());
        }
        assert!(began.elapsed() < Duration::from_secs(1), "nobody has noticed that it hangs by then");
        network.join(peer(1), peer(2));
        settled(&hosts).await;
        let found = hosts[3].cluster.find(vec![noted.into_bytes()], soon()).await.pop();
        let Some(Found::Present { copies, .. }) = found else { panic!("{found:?}") };
        assert!(copies.iter().any(|copy| copy.member == writer), "{copies:?}");
    });
}

#[test]
fn a_copy_that_was_let_go_of_while_the_primary_is_lost_is_told_to_its_backup_once_and_to_the_primary_later() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(1), Embedded::new(ClusterId(7)));
        let mut hosts = Vec::new();
        for id in 1..=3 {
            hosts.push(start(id, &network, &coordinator).await);
        }
        settled(&hosts).await;
        let [primary, backup] = [1, 2].map(|host: usize| hosts[host].cluster.me());
        let name = name_served(&hosts, |owners| owners.primary == primary && owners.backup == Some(backup));
        hosts[0].write(&name, b"bytes", Stamp(7), soon()).await.unwrap();
        let peer = |host: usize| hosts[host].cluster.core.me;
        network.part(peer(0), peer(1));
        let core = &hosts[0].cluster.core;
        until("the primary is lost", || core.is_suspect(primary)).await;
        hosts[0].evict(&name);
        sleep(Duration::from_secs(1)).await;
        let sent = || core.counters.change_messages.get();
        let before = sent();
        sleep(Duration::from_secs(8)).await;
        assert_eq!((sent(), core.let_go.len()), (before, 1));
        network.join(peer(0), peer(1));
        until("the primary is told", || core.let_go.len() == 0).await;
        let is_gone = async || hosts[2].look_up(&name, soon()).await == Seen::Absent;
        until_answered("the primary knows", is_gone).await;
    });
}

#[test]
fn a_path_that_is_too_long_to_tell_of_is_of_its_host_alone_and_takes_nothing_else_along() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(1), Embedded::new(ClusterId(7)));
        let mut hosts = Vec::new();
        for id in 1..=2 {
            hosts.push(start(id, &network, &coordinator).await);
        }
        settled(&hosts).await;
        let [host, other] = [&hosts[0], &hosts[1]];
        let map = host.cluster.core.seen().map.clone();
        let decides = |path: &str, member: MemberId| {
            let owners = map.owners(KeyId::of(path.as_bytes()).shard());
            owners.is_some_and(|owners| owners.primary == member)
        };
        for member in [host.cluster.me(), other.cluster.me()] {
            let mut paths = (0..).map(|number| format!("{number}/{}", "d".repeat(PATH_MAX)));
            let long = paths.find(|path| decides(path, member)).unwrap();
            let beside = name_served(&hosts, |owners| owners.primary == member);
            let published = host.write(&long, b"bytes", Stamp(7), soon()).await.unwrap();
            assert_eq!(published, Published { stamp: Stamp(7), is_settled: true });
            host.write(&beside, b"bytes", Stamp(7), soon()).await.unwrap();
            // What it holds of the same shards, from before it was a member.
            host.cluster.announce_again();
            settled(&hosts).await;
            for asker in [host, other] {
                let paths = vec![long.clone().into_bytes(), beside.clone().into_bytes()];
                let found = asker.cluster.find(paths, soon()).await;
                assert_eq!(found[0], Found::Absent { is_watched: false });
                assert!(matches!(found[1], Found::Present { .. }), "{found:?}");
            }
            let listing = host.cluster.list(long.clone().into_bytes(), 0, 10, soon()).await;
            assert!(listing.names.is_empty() && listing.unanswered.is_empty(), "{listing:?}");
            host.cluster.remove_later(long.clone().into_bytes(), Stamp(7));
            until("nobody has to hear of its removal", || host.cluster.core.unheard.len() == 0).await;
            host.unlink(&long, Stamp(8), soon()).await.unwrap();
        }
        let counters = host.cluster.counters();
        assert_eq!((counters.publish_failures.get(), counters.unknown.get()), (0, 0));
    });
}

#[test]
fn what_is_owed_is_counted_once_however_often_it_is_told_in_vain() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(1), Embedded::new(ClusterId(7)));
        let hosts = [start(1, &network, &coordinator).await, start(2, &network, &coordinator).await];
        settled(&hosts).await;
        let (core, two) = (&hosts[0].cluster.core, hosts[1].cluster.core.me);
        network.part(core.me, two);
        until("it is lost", || core.is_suspect(two.member)).await;
        drop(core.tell(two.member, Revocation::Appeared { path: b"kv/a".to_vec() }));
        let owed = core.counters.owed.get();
        assert!(owed > 0);
        for _ in 0..3 {
            // As with a connection that ends as soon as it stands.
            core.peers.lock().get_mut(&two.member).unwrap().link = Link::Up;
            Arc::clone(core).settle_up(two.member).await;
            assert!(core.peers.lock()[&two.member].is_owed_anything());
        }
        assert_eq!(core.counters.owed.get(), owed);
    });
}
