//! What a removal or a replacement waits for, over real sockets: when it returns, nobody finds what it removed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tidefs_engine::types::ByteCount;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::deaf::Deaf;
use super::host::{Host, Seen};
use super::members::{
    config, in_a_cluster_of, name_served, runtime, settled, soon, start_with, started, until, until_answered,
    wall,
};
use super::memory::Memory;
use crate::cluster::catalog::wire::Change;
use crate::cluster::coordinator::Coordinator;
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::peers::Peer;
use crate::cluster::shards::{KeyId, Owners};
use crate::cluster::{Cluster, ClusterConfig, ClusterId, DrainOrder, DrainPhase, Holder, Stamp, View};

#[test]
fn what_is_removed_or_replaced_is_gone_everywhere_when_the_call_returns() {
    in_a_cluster_of(3, |_, hosts| async move {
        for round in 0..30 {
            let name = format!("kv/{round}");
            let (one, other, third) = (&hosts[round % 3], &hosts[(round + 1) % 3], &hosts[(round + 2) % 3]);
            one.write(&name, b"first", wall(), soon()).await.unwrap();
            assert!(third.look_up(&name, soon()).await.is_present());
            other.write(&name, b"second", wall(), soon()).await.unwrap();
            assert!(one.memory.state.lock().objects.is_empty(), "the version before is held no more");
            assert_eq!(third.remembers(&name), None);
            for host in &hosts {
                assert_eq!(host.read(&name, soon()).await.as_deref(), Some(&b"second"[..]));
            }
            third.unlink(&name, wall(), soon()).await.unwrap();
            for host in &hosts {
                assert_eq!(host.look_up(&name, soon()).await, Seen::Absent);
                assert!(host.memory.state.lock().objects.is_empty());
            }
        }
        let conflicts: u64 = hosts.iter().map(|host| host.cluster.counters().conflicts.get()).sum();
        assert_eq!(conflicts, 30);
    });
}

/// From now on `host` withdraws nothing until it is let.
pub(super) fn hold_back(host: &Host) -> watch::Sender<bool> {
    let (may, held) = watch::channel(false);
    host.memory.state.lock().withdraws_when = Some(held);
    may
}

/// A removal is not answered while `reader` still finds what it removes, and is once it `may` withdraw that.
pub(super) async fn expect_removal_waits(writer: &Host, reader: &Host, name: &str, may: watch::Sender<bool>) {
    let removal = writer.unlink(name, wall(), soon());
    tokio::pin!(removal);
    let early = tokio::time::timeout(Duration::from_millis(200), &mut removal).await;
    assert!(early.is_err(), "answered while the reader finds {name}");
    may.send_replace(true);
    removal.await.unwrap();
    assert_eq!(reader.remembers(name), None);
    reader.memory.state.lock().withdraws_when = None;
}

#[test]
fn a_removal_waits_for_who_still_hears_that_a_copy_was_let_go_whoever_decides() {
    in_a_cluster_of(3, |_, hosts| async move {
        let (writer, reader) = (&hosts[0], &hosts[2]);
        for decides in &hosts {
            let decides = decides.cluster.core.me.member;
            let name = name_served(&hosts, |owners| owners.primary == decides);
            writer.write(&name, b"bytes", wall(), soon()).await.unwrap();
            assert!(reader.look_up(&name, soon()).await.is_present());
            let may = hold_back(reader);
            // As an unlink does: its own copy goes first.
            writer.evict(&name);
            expect_removal_waits(writer, reader, &name, may).await;
        }
    });
}

#[test]
fn a_publish_does_not_wait_for_who_hears_of_another_copy_that_was_let_go_before_it() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        // Nobody is passed over for being slow while this lasts.
        let patient = |config: &mut ClusterConfig| config.timings.background = Duration::from_secs(30);
        let hosts = started(&coordinator, 3, patient).await;
        let (writer, owner, reader) = (&hosts[0], &hosts[1], &hosts[2]);
        let owners = Owners { primary: owner.cluster.me(), backup: Some(writer.cluster.me()) };
        let map = writer.cluster.core.seen().map.clone();
        let is_its = |name: &String| map.owners(KeyId::of(name.as_bytes()).shard()) == Some(owners);
        let mut names = (0..).map(|number| format!("kv/{number}")).filter(is_its);
        let (gone, new) = (names.next().unwrap(), names.next().unwrap());
        writer.write(&gone, b"bytes", wall(), soon()).await.unwrap();
        assert!(reader.look_up(&gone, soon()).await.is_present());
        let may = hold_back(reader);
        // The one is told shortly after the other.
        writer.evict(&gone);
        let published = writer.write(&new, b"bytes", wall(), soon());
        let published = tokio::time::timeout(Duration::from_secs(5), published).await;
        assert!(published.expect("it waits for the reader").unwrap().is_settled);
        assert!(reader.remembers(&gone).is_some(), "the reader has not withdrawn it yet");
        expect_removal_waits(writer, reader, &gone, may).await;
    });
}

#[test]
fn a_removal_waits_for_who_still_hears_that_it_is_told_no_more() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        // Some ten names.
        let hosts = started(&coordinator, 3, |config| config.limits.watches = ByteCount(2000)).await;
        let (writer, owner, reader) = (&hosts[0], &hosts[1], &hosts[2]);
        let decides = owner.cluster.core.me.member;
        let name = name_served(&hosts, |owners| owners.primary == decides);
        writer.write(&name, b"bytes", wall(), soon()).await.unwrap();
        assert!(reader.look_up(&name, soon()).await.is_present());
        let may = hold_back(reader);
        let dropped = || owner.cluster.counters().watches_dropped.get();
        for number in 0..200 {
            writer.look_up(&format!("kv/other-{number}"), soon()).await;
        }
        assert!(dropped() > 0, "all are watched");
        expect_removal_waits(writer, reader, &name, may).await;
    });
}

/// A name that the first of them does not serve.
fn served_by_others(hosts: &[Host]) -> String {
    let one = hosts[0].cluster.me();
    name_served(hosts, |owners| owners.primary != one && owners.backup != Some(one))
}

/// All but the first are killed, and that one misses them.
async fn leave_the_first_alone(hosts: &[Host]) {
    for other in &hosts[1..] {
        other.cluster.close().await;
    }
    let are_missed = || hosts[1..].iter().all(|other| hosts[0].cluster.core.is_suspect(other.cluster.me()));
    until("all others are missed", are_missed).await;
}

/// The second and the third start again with what they held, and the first tells them what they have not heard.
async fn bring_the_others_back(coordinator: &Embedded, hosts: &mut Vec<Host>) {
    let (third, second) = (hosts.pop().unwrap(), hosts.pop().unwrap());
    hosts.push(start_with(coordinator, config(2), second.memory).await);
    hosts.push(start_with(coordinator, config(3), third.memory).await);
    until("nothing is to be told", || hosts[0].cluster.core.unheard.len() == 0).await;
    settled(hosts).await;
}

#[test]
fn a_removal_that_nobody_heard_of_is_told_when_they_are_back() {
    in_a_cluster_of(3, |coordinator, mut hosts| async move {
        let name = served_by_others(&hosts);
        hosts[1].write(&name, b"bytes", wall(), soon()).await.unwrap();
        assert!(hosts[0].read(&name, soon()).await.is_some());
        leave_the_first_alone(&hosts).await;
        hosts[0].unlink(&name, wall(), soon()).await.unwrap_err();
        bring_the_others_back(&coordinator, &mut hosts).await;
        for host in &hosts {
            assert_eq!(host.look_up(&name, soon()).await, Seen::Absent);
        }
    });
}

#[test]
fn who_drains_stays_until_who_serves_with_it_knows_what_was_removed() {
    in_a_cluster_of(3, |coordinator, mut hosts| async move {
        let (first, second) = (hosts[0].cluster.me(), hosts[1].cluster.me());
        let name = name_served(&hosts, |owners| owners.primary == first && owners.backup == Some(second));
        hosts[1].write(&name, b"bytes", wall(), soon()).await.unwrap();
        hosts[1].cluster.close().await;
        until("it is missed", || hosts[0].cluster.core.is_suspect(second)).await;
        // The first one decides alone, and nobody else knows.
        hosts[2].unlink(&name, wall(), soon()).await.unwrap();
        hosts[2].cluster.drain(first, DrainOrder::Begin { within_ms: None }).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let killed = hosts.remove(1);
        hosts.push(start_with(&coordinator, config(2), killed.memory).await);
        until("it has left", || hosts[0].cluster.status().drain.phase == DrainPhase::Left).await;
        settled(&hosts[1..]).await;
        for host in &hosts[1..] {
            assert_eq!(host.look_up(&name, soon()).await, Seen::Absent);
        }
    });
}

#[test]
fn a_directory_that_is_made_anew_is_not_taken_by_its_removal_that_nobody_heard_of() {
    in_a_cluster_of(3, |coordinator, mut hosts| async move {
        let name = served_by_others(&hosts);
        hosts[1].make_directory(&name, soon()).await.unwrap();
        leave_the_first_alone(&hosts).await;
        hosts[0].unlink(&name, wall(), soon()).await.unwrap_err();
        hosts[0].make_directory(&name, soon()).await.unwrap_err();
        bring_the_others_back(&coordinator, &mut hosts).await;
        for host in &hosts {
            assert!(host.look_up(&name, soon()).await.is_present());
        }
    });
}

#[test]
fn a_directory_that_is_made_anew_while_its_removal_is_told_again_and_again_stays() {
    in_a_cluster_of(2, |_, hosts| async move {
        let (one, two) = (&hosts[0], &hosts[1]);
        let decides = two.cluster.me();
        let name = name_served(&hosts, |owners| owners.primary == decides);
        one.make_directory(&name, soon()).await.unwrap();
        // Both may have been passed over, and have it asked of them once more a moment later.
        two.cluster.core.owner.lock().set_out(true);
        one.cluster.core.owner.lock().set_out(true);
        one.cluster.core.remove_later(name.clone().into(), wall());
        one.cluster.core.tell_removals_again();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(one.cluster.core.unheard.len(), 1, "nobody decides");
        // As a mkdir does first.
        one.cluster.core.unheard.forget(name.as_bytes());
        two.cluster.core.owner.lock().set_out(false);
        one.cluster.core.owner.lock().set_out(false);
        one.make_directory(&name, soon()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        for host in &hosts {
            assert!(host.look_up(&name, soon()).await.is_present(), "of {}", host.cluster.me());
        }
    });
}

#[test]
fn a_directory_that_is_made_anew_is_not_taken_by_its_removal_that_comes_late_to_a_backup_which_decides() {
    in_a_cluster_of(3, |_, hosts| async move {
        let (one, primary, backup) = (&hosts[0], hosts[1].cluster.me(), &hosts[2]);
        let core = &one.cluster.core;
        let name = name_served(&hosts, |owners| {
            owners.primary == primary && owners.backup == Some(backup.cluster.me())
        });
        one.make_directory(&name, soon()).await.unwrap();
        let (path, through) = (name.clone().into_bytes(), wall());
        core.remove_later(path.clone(), through);
        one.make_directory(&name, soon()).await.unwrap();
        // It was on its way meanwhile, and the backup has lost the primary.
        backup.cluster.core.owner.lock().set_suspect(primary, true);
        let removal = Change::RemoveThrough { path, through };
        core.change_at(backup.cluster.me(), removal, soon()).await.unwrap();
        backup.cluster.core.owner.lock().set_suspect(primary, false);
        settled(&hosts).await;
        for host in &hosts {
            assert!(host.look_up(&name, soon()).await.is_present(), "of {}", host.cluster.me());
        }
    });
}

#[test]
fn what_is_written_where_something_was_removed_is_later_though_the_clock_was_set_back() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let mut hosts = vec![start_with(&coordinator, config(1), Arc::default()).await];
        let (removed, written) = (wall(), Stamp(wall().0 - 1_000_000_000));
        hosts[0].unlink("kv/a", removed, soon()).await.unwrap();
        let published = hosts[0].write("kv/a", b"since", written, soon()).await.unwrap();
        assert!(published.stamp > removed, "{published:?}");
        hosts.push(start_with(&coordinator, config(2), Arc::default()).await);
        until("the removal is told", || hosts[0].cluster.core.unheard.len() == 0).await;
        settled(&hosts).await;
        for host in &hosts {
            assert_eq!(host.read("kv/a", soon()).await.as_deref(), Some(&b"since"[..]));
        }
    });
}

#[test]
fn names_that_are_removed_and_not_asked_for_are_watched_up_to_the_bound() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        // Some ten names.
        let hosts = started(&coordinator, 2, |config| config.limits.watches = ByteCount(2000)).await;
        for number in 0..100 {
            hosts[0].unlink(&format!("kv/{number}"), wall(), soon()).await.unwrap();
        }
        for host in &hosts {
            let watched = host.cluster.core.owner.lock().sizes().watches;
            assert!(watched <= 2000 / 160, "{watched} names are watched");
        }
    });
}

#[test]
fn a_removal_waits_for_who_still_hears_of_it_though_too_much_waits_to_be_told() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let hosts = started(&coordinator, 2, |config| config.limits.queued = 2).await;
        let (writer, reader) = (&hosts[0], &hosts[1]);
        let me = writer.cluster.me();
        let map = writer.cluster.core.seen().map.clone();
        let is_mine = |name: &String| {
            map.owners(KeyId::of(name.as_bytes()).shard()).is_some_and(|owners| owners.primary == me)
        };
        // More than travel, and wait to travel, at once.
        let names: Vec<String> =
            (0..).map(|number| format!("kv/{number}")).filter(is_mine).take(30).collect();
        for name in &names {
            writer.write(name, b"bytes", wall(), soon()).await.unwrap();
            assert!(reader.look_up(name, soon()).await.is_present());
        }
        let may = hold_back(reader);
        let mut removals = tokio::task::JoinSet::new();
        for name in names.clone() {
            let writer = writer.clone();
            removals.spawn(async move { writer.unlink(&name, wall(), soon()).await });
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        until("not all of it fits", || writer.cluster.counters().queue_overflows.get() > 0).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(removals.try_join_next().is_none(), "answered while the reader finds what was removed");
        may.send_replace(true);
        while let Some(removed) = removals.join_next().await {
            removed.unwrap().unwrap();
        }
        for name in &names {
            assert_eq!(reader.remembers(name), None, "{name}");
        }
    });
}

/// A start of member 1 that keeps in `file` what it removed.
pub(super) fn keeping(file: &std::path::Path) -> ClusterConfig {
    ClusterConfig { removals_files: vec![file.to_owned()], ..config(1) }
}

/// The host's daemon is stopped, and not killed.
pub(super) async fn stop(host: &Host) {
    host.cluster.keep_removals();
    host.cluster.leave(soon()).await.unwrap();
    host.cluster.close().await;
}

#[test]
fn what_only_a_member_knows_to_be_removed_when_it_stops_it_tells_when_it_is_started_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("removals.json");
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let mut hosts = vec![start_with(&coordinator, keeping(&file), Arc::default()).await];
        for id in 2..=3 {
            hosts.push(start_with(&coordinator, config(id), Arc::default()).await);
        }
        settled(&hosts).await;
        let [first, second, third] = [0, 1, 2].map(|host: usize| hosts[host].cluster.me());
        let served = |primary, backup| {
            name_served(&hosts, |owners| owners == Owners { primary, backup: Some(backup) })
        };
        // One that the first decides alone, and one that nobody decides.
        let (decided, untold) = (served(first, second), served(second, third));
        for name in [&decided, &untold] {
            hosts[1].write(name, b"bytes", wall(), soon()).await.unwrap();
        }
        leave_the_first_alone(&hosts).await;
        hosts[0].unlink(&decided, wall(), soon()).await.unwrap();
        hosts[0].unlink(&untold, wall(), soon()).await.unwrap_err();
        stop(&hosts[0]).await;
        assert!(file.exists());

        let mut again = Vec::new();
        for (id, host) in (2..).zip(&hosts[1..]) {
            again.push(start_with(&coordinator, config(id), Arc::clone(&host.memory)).await);
        }
        settled(&again).await;
        again.insert(0, start_with(&coordinator, keeping(&file), Arc::clone(&hosts[0].memory)).await);
        assert!(!file.exists(), "it is told once");
        for name in [&decided, &untold] {
            let is_gone = async || {
                let mut is_gone = true;
                for host in &again {
                    is_gone &= host.look_up(name, soon()).await == Seen::Absent;
                }
                is_gone
            };
            until_answered("what was removed is gone", is_gone).await;
        }
        settled(&again).await;
        assert!(again.iter().all(|host| host.memory.state.lock().objects.is_empty()));
        let core = &again[0].cluster.core;
        // Others may have carried out what the first is still to be answered.
        until("nothing is to be told", || core.unheard.len() == 0 && core.recalled.all().is_empty()).await;
        until("all have heard of all", || core.peers.lock().values().all(Peer::has_heard_all)).await;
        stop(&again[0]).await;
        let kept = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(kept, "", "all know of it");
    });
}

#[test]
fn what_a_member_decides_while_it_leaves_is_kept_for_its_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("removals.json");
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let (memory, own) = (Arc::new(Memory::default()), Deaf::new(coordinator.another()));
        let holder: Weak<dyn Holder> = Arc::<Memory>::downgrade(&memory);
        let asked = Arc::clone(&own) as Arc<dyn Coordinator>;
        let cluster = Cluster::start(keeping(&file), Handle::current(), asked, holder).await.unwrap();
        memory.belongs_to(&cluster);
        let mut hosts = vec![Host { cluster, memory }];
        for id in 2..=3 {
            hosts.push(start_with(&coordinator, config(id), Arc::default()).await);
        }
        settled(&hosts).await;
        let [first, second] = [0, 1].map(|host: usize| hosts[host].cluster.me());
        let owners = Owners { primary: first, backup: Some(second) };
        let name = name_served(&hosts, |served| served == owners);
        hosts[2].write(&name, b"bytes", wall(), soon()).await.unwrap();
        hosts[1].cluster.close().await;
        until("it is missed", || hosts[0].cluster.core.is_suspect(second)).await;
        own.go_away();
        hosts[0].cluster.keep_removals();
        assert!(!file.exists(), "all know of all");
        // While the coordinator is asked in vain.
        hosts[2].unlink(&name, wall(), soon()).await.unwrap();
        hosts[0].cluster.leave(soon()).await.unwrap_err();
        assert!(file.exists(), "nobody else knows");
        let core = &hosts[0].cluster.core;
        let seen = core.seen();
        core.adopt_view(View::new(seen.view.number + 1, seen.view.members().to_vec()));
        assert!(core.is_out(), "it decides nothing more, whatever view comes");
    });
}

#[test]
fn what_was_removed_alone_is_kept_until_a_start_takes_part_and_somebody_was_told() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("removals.json");
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let alone = start_with(&coordinator, keeping(&file), Arc::default()).await;
        alone.unlink("kv/a", wall(), soon()).await.unwrap();
        stop(&alone).await;
        assert!(file.exists(), "who is away does not know");
        // One start is not let in, and the next one meets nobody.
        let away = Deaf::new(coordinator.another());
        away.go_away();
        let holder: Weak<dyn Holder> = Arc::<Memory>::downgrade(&alone.memory);
        let asked = away as Arc<dyn Coordinator>;
        Cluster::start(keeping(&file), Handle::current(), asked, holder).await.unwrap_err();
        assert!(file.exists(), "it has told nobody");
        let again = start_with(&coordinator, keeping(&file), Arc::clone(&alone.memory)).await;
        assert_eq!(again.cluster.core.unheard.len(), 1);
        stop(&again).await;
        assert!(file.exists(), "it has met nobody");
        let mut hosts = vec![start_with(&coordinator, keeping(&file), Arc::clone(&alone.memory)).await];
        hosts.push(start_with(&coordinator, config(2), Arc::default()).await);
        until("it is told", || hosts[0].cluster.core.unheard.len() == 0).await;
        settled(&hosts).await;
        stop(&hosts[0]).await;
        assert!(!file.exists(), "both know of it");
    });
}
