//! Starts of members that come before the view that says so: the coordinator is heard late, and the network is not.

use std::sync::Arc;
use std::time::Duration;

use tidefs_engine::types::MemberId;
use tokio::time::sleep;

use super::deaf::Deaf;
use super::gone::{GRACE, in_virtual_time, soon, start_with};
use super::host::{Host, Seen};
use super::memory::Remembered;
use super::network::{Network, SILENCE};
use crate::cluster::catalog::owner::Role;
use crate::cluster::coordinator::Coordinator;
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::peers::Link;
use crate::cluster::shards::Shard;
use crate::cluster::*;

const SETTLED: Duration = Duration::from_secs(5);

/// A cluster over a network that is made up, with members that may hear the coordinator late.
struct Late {
    network: Arc<Network>,
    coordinator: Embedded,
}

impl Late {
    fn new(seed: u64) -> Self {
        Self { network: Network::new(seed), coordinator: Embedded::new(ClusterId(7)) }
    }

    async fn start(&self, id: u64) -> (Host, Arc<Deaf>) {
        let handle = Deaf::new(self.coordinator.another());
        let host = start_with(id, &self.network, Arc::clone(&handle) as Arc<dyn Coordinator>).await;
        (host, handle)
    }

    async fn kill(&self, host: Host) {
        self.network.kill(host.cluster.core.me);
        host.cluster.close().await;
    }

    /// Two members, of which the second was started again while the first hears nothing of the coordinator.
    async fn one_and_a_later_start(&self) -> (Host, Arc<Deaf>, Host) {
        let (one, ear) = self.start(1).await;
        let (two, _) = self.start(2).await;
        sleep(SETTLED).await;
        ear.set_deaf(true);
        self.kill(two).await;
        let (two, _) = self.start(2).await;
        sleep(Duration::from_secs(1)).await;
        (one, ear, two)
    }
}

fn names() -> Vec<String> {
    (0..60).map(|number| format!("kv/{number}")).collect()
}

/// `asker` asks for names, which `writer` writes then, but for those that others answer for by now. It finds them, as soon as
/// that is settled and later.
async fn finds_what_came(asker: &Host, writer: &Host, writer_hears: impl FnOnce()) {
    for name in names() {
        asker.look_up(&name, soon()).await;
    }
    assert!(names().iter().any(|name| asker.remembers(name) == Some(Remembered::Absent)), "nothing to tell");
    let mut settled = 0;
    for name in names() {
        let Ok(published) = writer.write(&name, b"bytes", Stamp(1), soon()).await else { continue };
        assert!(published.is_settled, "{name}");
        settled += 1;
        assert_ne!(asker.look_up(&name, soon()).await, Seen::Absent, "{name} is settled");
    }
    assert!(settled > 10, "{settled} names were written");
    writer_hears();
    sleep(SETTLED).await;
    for name in names() {
        assert!(asker.look_up(&name, soon()).await.is_present(), "{name}");
        assert_eq!(asker.read(&name, soon()).await.as_deref(), Some(&b"bytes"[..]));
    }
}

#[test]
fn a_later_start_is_told_of_what_it_was_answered_before_the_view_with_it_was_heard_of() {
    in_virtual_time(async {
        let (one, ear, two) = Late::new(1).one_and_a_later_start().await;
        finds_what_came(&two, &one, || ear.set_deaf(false)).await;
        assert!(one.cluster.core.peers.lock()[&MemberId(2)].is_registered);
        one.cluster.close().await;
        two.cluster.close().await;
    });
}

#[test]
fn who_joins_is_told_of_what_it_was_answered_before_the_view_with_it_was_heard_of() {
    in_virtual_time(async {
        let late = Late::new(2);
        let (one, ear) = late.start(1).await;
        let (two, _) = late.start(2).await;
        sleep(SETTLED).await;
        ear.set_deaf(true);
        let (three, _) = late.start(3).await;
        sleep(Duration::from_secs(1)).await;
        finds_what_came(&three, &one, || ear.set_deaf(false)).await;
        let peer = |host: &Host| {
            let peers = host.cluster.core.peers.lock();
            let peer = &peers[&MemberId(3)];
            (peer.is_registered, peer.link, peer.descriptor.addresses.len())
        };
        assert_eq!(peer(&one), (true, Link::Up, 1), "it is known where it is");
        for host in [one, two, three] {
            host.cluster.close().await;
        }
    });
}

#[test]
fn who_was_alone_and_has_not_heard_of_others_does_not_say_that_what_it_holds_is_absent() {
    in_virtual_time(async {
        let late = Late::new(3);
        let (one, ear) = late.start(1).await;
        for name in names() {
            one.write(&name, b"held", Stamp(9), soon()).await.unwrap();
        }
        ear.set_deaf(true);
        let (two, _) = late.start(2).await;
        sleep(Duration::from_secs(1)).await;
        for name in names() {
            assert_ne!(two.look_up(&name, soon()).await, Seen::Absent, "{name}");
        }
        let published = two.write("kv/0", b"newer", Stamp(10), soon()).await;
        assert!(!published.is_ok_and(|published| published.is_settled), "the other one was not told");
        ear.set_deaf(false);
        sleep(SETTLED).await;
        for name in names() {
            let bytes = if name == "kv/0" { &b"newer"[..] } else { &b"held"[..] };
            for host in [&one, &two] {
                assert_eq!(host.read(&name, soon()).await.as_deref(), Some(bytes), "{name}");
            }
        }
        one.cluster.close().await;
        two.cluster.close().await;
    });
}

#[test]
fn an_older_view_does_not_take_the_place_of_a_later_start() {
    in_virtual_time(async {
        let (one, _ear, two) = Late::new(4).one_and_a_later_start().await;
        let core = &one.cluster.core;
        // It went by no other one meanwhile.
        let before = core.seen().view.clone();
        let id = || {
            let peers = core.peers.lock();
            (peers[&MemberId(2)].id, peers[&MemberId(2)].is_registered)
        };
        assert_eq!(id(), (two.cluster.core.me, false));
        // As with a member that came and went meanwhile.
        core.adopt_view(View::new(before.number + 1, before.members().to_vec()));
        assert_eq!(id(), (two.cluster.core.me, false));
        let latest = two.cluster.core.seen().view.members().to_vec();
        core.adopt_view(View::new(before.number + 2, latest));
        assert_eq!(id(), (two.cluster.core.me, true));
        one.cluster.close().await;
        two.cluster.close().await;
    });
}

#[test]
fn nobody_decides_for_a_member_that_was_started_again_and_is_there() {
    in_virtual_time(async {
        let late = Late::new(5);
        let mut hosts = Vec::new();
        for id in 1..=3 {
            hosts.push(late.start(id).await.0);
        }
        sleep(SETTLED).await;
        late.kill(hosts.remove(2)).await;
        sleep(Duration::from_secs(1)).await;
        let acting = |host: &Host| {
            let owner = host.cluster.core.owner.lock();
            Shard::all().filter(|&shard| owner.role(shard) == Role::Acting).count()
        };
        assert!(hosts.iter().all(|host| acting(host) > 0), "somebody decides while it is lost");
        hosts.push(late.start(3).await.0);
        sleep(SETTLED).await;
        assert_eq!(hosts.iter().map(acting).collect::<Vec<_>>(), [0, 0, 0]);
        for host in hosts {
            host.cluster.close().await;
        }
    });
}

#[test]
fn who_the_coordinator_had_lost_long_before_is_given_its_time_when_it_is_lost() {
    in_virtual_time(async {
        let late = Late::new(6);
        let (one, _) = late.start(1).await;
        let (two, ear) = late.start(2).await;
        sleep(SETTLED).await;
        two.write("kv/held", b"held", Stamp(1), soon()).await.unwrap();
        ear.set_deaf(true);
        ear.leave(soon()).await.unwrap();
        sleep(3 * GRACE).await;
        let is_dropped =
            || one.cluster.core.peers.lock().get(&MemberId(2)).is_none_or(|peer| peer.is_dropped);
        assert!(!is_dropped());
        late.network.part(one.cluster.core.me, two.cluster.core.me);
        sleep(SILENCE + GRACE / 2).await;
        assert!(one.cluster.core.is_suspect(MemberId(2)) && !is_dropped(), "it may come back");
        sleep(GRACE).await;
        assert!(is_dropped());
        one.cluster.close().await;
        two.cluster.close().await;
    });
}
