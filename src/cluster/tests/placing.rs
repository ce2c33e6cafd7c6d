//! Copies that others are asked to keep, and leaving, over real sockets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidefs_engine::types::{ByteCount, MemberId};

use super::host::{Host, Seen};
use super::members::{
    at_last, config, in_a_cluster_of, runtime, settled, soon, start, start_with, started, until,
    until_answered, wall,
};
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::shards::KeyId;
use crate::cluster::*;

/// Members that hold a copy to rely on, as the catalog tells `host`.
async fn holders(host: &Host, path: &str) -> BTreeSet<u64> {
    let found = host.cluster.find(vec![path.as_bytes().to_vec()], soon()).await.pop();
    let Some(Found::Present { copies, .. }) = found else { return BTreeSet::new() };
    copies.iter().filter(|copy| copy.medium.is_hard()).map(|copy| copy.member.0).collect()
}

/// Waits until as many hold it.
async fn held_by(host: &Host, path: &str, count: usize) -> BTreeSet<u64> {
    let end = at_last();
    loop {
        let holders = holders(host, path).await;
        if holders.len() == count {
            return holders;
        }
        assert!(Instant::now() < end, "{path} is held by {holders:?}, not by {count}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn what_is_wanted_twice_is_held_by_two_and_again_when_one_leaves() {
    in_a_cluster_of(4, |_, mut hosts| async move {
        for number in 0..50 {
            let name = format!("kv/{number}");
            hosts[0].write_copies(&name, name.as_bytes(), wall(), 2, soon()).await.unwrap();
        }
        for number in 0..50 {
            assert!(held_by(&hosts[1], &format!("kv/{number}"), 2).await.contains(&1));
        }
        let left = hosts.remove(0);
        left.cluster.leave(soon()).await.unwrap();
        left.cluster.close().await;
        for number in 0..50 {
            let name = format!("kv/{number}");
            // What it held is forgotten shard by shard.
            until_answered("it is forgotten", async || !holders(&hosts[1], &name).await.contains(&1)).await;
            held_by(&hosts[1], &name, 2).await;
            assert_eq!(hosts[1].read(&name, soon()).await.as_deref(), Some(name.as_bytes()));
        }
        assert!(hosts.iter().all(|host| host.cluster.status().short_of_copies == 0));
    });
}

#[test]
fn copies_are_in_other_racks_where_there_are_any() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let mut hosts = Vec::new();
        for (id, rack) in [(1, "a"), (2, "a"), (3, "a"), (4, "b")] {
            let mut config = config(id);
            config.labels.insert("topology.rack".to_owned(), rack.to_owned());
            hosts.push(start(&coordinator, config).await);
        }
        settled(&hosts).await;
        for number in 0..20 {
            let name = format!("kv/{number}");
            hosts[0].write_copies(&name, b"bytes", wall(), 2, soon()).await.unwrap();
            assert_eq!(held_by(&hosts[1], &name, 2).await, BTreeSet::from([1, 4]));
        }
    });
}

#[test]
fn fewer_members_than_copies_is_shown_and_made_good_when_one_comes() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let mut hosts = vec![start(&coordinator, config(1)).await, start(&coordinator, config(2)).await];
        settled(&hosts).await;
        hosts[0].write_copies("kv/a", b"bytes", wall(), 3, soon()).await.unwrap();
        held_by(&hosts[1], "kv/a", 2).await;
        until("it is known that there are too few", || hosts[0].cluster.status().short_of_copies == 1).await;
        hosts.push(start(&coordinator, config(3)).await);
        held_by(&hosts[1], "kv/a", 3).await;
        until("there are enough", || hosts[0].cluster.status().short_of_copies == 0).await;
    });
}

#[test]
fn what_was_removed_is_not_shown_as_held_too_few_times() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let grace = Duration::from_millis(500);
        let hosts = started(&coordinator, 2, |config| {
            config.timings.look_for_copies = Duration::from_millis(100);
            config.timings.grace = grace;
        })
        .await;
        hosts[0].write_copies("kv/a", b"bytes", wall(), 3, soon()).await.unwrap();
        until("it is known that there are too few", || hosts[0].cluster.status().short_of_copies == 1).await;
        // The walks that the second member's coming is followed by are over.
        tokio::time::sleep(grace * 3).await;
        assert_eq!(hosts[0].cluster.status().short_of_copies, 1);
        hosts[0].unlink("kv/a", wall(), soon()).await.unwrap();
        until("nothing is short", || hosts[0].cluster.status().short_of_copies == 0).await;
    });
}

#[test]
fn who_has_no_room_is_passed_over() {
    in_a_cluster_of(3, |_, hosts| async move {
        hosts[1].memory.state.lock().is_full = true;
        for number in 0..20 {
            let name = format!("kv/{number}");
            hosts[0].write_copies(&name, b"bytes", wall(), 2, soon()).await.unwrap();
            assert_eq!(held_by(&hosts[1], &name, 2).await, BTreeSet::from([1, 3]));
        }
        assert!(hosts[0].cluster.counters().copies_refused.get() > 0, "it was asked, and refused");
    });
}

#[test]
fn who_drains_leaves_when_others_hold_all_that_it_held() {
    in_a_cluster_of(3, |_, mut hosts| async move {
        hosts[0].make_directory("kv", soon()).await.unwrap();
        for number in 0..100 {
            let name = format!("kv/{number}");
            hosts[0].write(&name, name.as_bytes(), wall(), soon()).await.unwrap();
        }
        let begin = DrainOrder::Begin { within_ms: None };
        hosts[1].cluster.drain(MemberId(1), begin).await.unwrap();
        let end = at_last();
        let report = loop {
            let report = hosts[1].cluster.drain(MemberId(1), DrainOrder::Ask).await.unwrap();
            if report.phase != DrainPhase::Copying {
                break report;
            }
            assert!(Instant::now() < end, "{report:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert_eq!((report.phase, report.objects_left, report.bytes_left), (DrainPhase::Left, 0, 0));
        until("all others have heard of it", || {
            hosts[1..].iter().all(|host| host.cluster.status().members.len() == 2)
        })
        .await;
        let left = hosts.remove(0);
        left.cluster.close().await;
        for number in 0..100 {
            let name = format!("kv/{number}");
            assert!(!held_by(&hosts[1], &name, 1).await.contains(&1));
            assert_eq!(hosts[1].read(&name, soon()).await.as_deref(), Some(name.as_bytes()));
        }
    });
}

#[test]
fn a_drain_that_nobody_can_take_anything_of_ends_with_the_member_still_there() {
    in_a_cluster_of(2, |_, hosts| async move {
        hosts[0].write("kv/a", b"bytes", wall(), soon()).await.unwrap();
        hosts[1].memory.state.lock().is_full = true;
        hosts[1].cluster.drain(MemberId(1), DrainOrder::Begin { within_ms: Some(300) }).await.unwrap();
        until("the time is over", || hosts[0].cluster.status().drain.phase == DrainPhase::Late).await;
        assert_eq!(hosts[0].cluster.status().drain.objects_left, 1);
        assert!(matches!(hosts[1].look_up("kv/a", soon()).await, Seen::Elsewhere(..)));
        assert_eq!(hosts[1].cluster.status().members.len(), 2);
        // Later there is room, and it goes on.
        hosts[1].memory.state.lock().is_full = false;
        hosts[1].cluster.drain(MemberId(1), DrainOrder::Begin { within_ms: None }).await.unwrap();
        until("it has left", || hosts[0].cluster.status().drain.phase == DrainPhase::Left).await;
        assert_eq!(hosts[1].look_up("kv/a", soon()).await, Seen::Here(holder_stamp(&hosts[1])));
    });
}

#[test]
fn who_drains_does_not_count_on_one_that_drains_too() {
    in_a_cluster_of(3, |_, hosts| async move {
        let at = wall();
        for host in &hosts[..2] {
            host.write("kv/both", b"the same bytes", at, soon()).await.unwrap();
        }
        assert_eq!(held_by(&hosts[2], "kv/both", 2).await, BTreeSet::from([1, 2]));
        hosts[0].write("kv/own", b"bytes", wall(), soon()).await.unwrap();
        hosts[1..].iter().for_each(|host| host.memory.state.lock().is_full = true);
        hosts[2].cluster.drain(MemberId(1), DrainOrder::Begin { within_ms: None }).await.unwrap();
        // The first still looks for a place for what is its own; the second may not leave it with what both hold.
        hosts[2].cluster.drain(MemberId(2), DrainOrder::Begin { within_ms: Some(300) }).await.unwrap();
        until("the second has looked for a place", || {
            hosts[1].cluster.status().drain.phase != DrainPhase::Copying
        })
        .await;
        let report = hosts[1].cluster.status().drain;
        assert_eq!((report.phase, report.objects_left), (DrainPhase::Late, 1));
    });
}

#[test]
fn a_member_that_is_started_again_while_it_drains_goes_on_and_keeps_nothing_for_others() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("drain.json");
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let first = ClusterConfig { drain_file: Some(file.clone()), ..config(1) };
        let mut hosts = vec![start(&coordinator, first.clone()).await, start(&coordinator, config(2)).await];
        settled(&hosts).await;
        hosts[0].write("kv/a", b"bytes", wall(), soon()).await.unwrap();
        hosts[1].memory.state.lock().is_full = true;
        hosts[1].cluster.drain(MemberId(1), DrainOrder::Begin { within_ms: None }).await.unwrap();
        let killed = hosts.remove(0);
        killed.cluster.close().await;
        assert!(file.exists());
        let again = start_with(&coordinator, first, std::sync::Arc::clone(&killed.memory)).await;
        assert_eq!(again.cluster.status().drain.phase, DrainPhase::Copying);
        hosts[0].memory.state.lock().is_full = false;
        until("it has left", || again.cluster.status().drain.phase == DrainPhase::Left).await;
        assert_eq!(hosts[0].look_up("kv/a", soon()).await, Seen::Here(holder_stamp(&hosts[0])));
        until("that is not kept any more", || !file.exists()).await;
    });
}

#[test]
fn a_copy_that_is_evicted_is_made_again_though_nobody_came_or_went() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let hosts = started(&coordinator, 3, |config| {
            config.timings.look_for_copies = Duration::from_millis(100);
            config.timings.grace = Duration::from_millis(500);
        })
        .await;
        for number in 0..20 {
            let name = format!("kv/{number}");
            hosts[0].write_copies(&name, name.as_bytes(), wall(), 2, soon()).await.unwrap();
            let before = held_by(&hosts[0], &name, 2).await;
            let evicting = *before.last().unwrap();
            let made = |host: &Host| host.cluster.counters().copies_made.get();
            let made_before: u64 = hosts.iter().map(made).sum();
            hosts[usize::try_from(evicting).unwrap() - 1].evict(&name);
            until("another copy is made", || hosts.iter().map(made).sum::<u64>() > made_before).await;
            held_by(&hosts[0], &name, 2).await;
        }
    });
}

fn holder_stamp(host: &Host) -> Stamp {
    host.memory.state.lock().objects[&b"kv/a"[..]].stamp
}

#[test]
fn who_is_alone_is_told_why_it_cannot_drain() {
    in_a_cluster_of(1, |_, hosts| async move {
        let refused = hosts[0].cluster.drain(MemberId(1), DrainOrder::Begin { within_ms: None }).await;
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("no other member") && text.contains("on_stop=keep"), "{text}");
    });
}

#[test]
fn who_drains_asks_those_that_the_catalog_names_whether_they_have_their_copies() {
    in_a_cluster_of(3, |_, hosts| async move {
        for number in 0..40 {
            let name = format!("kv/{number}");
            hosts[0].write_copies(&name, name.as_bytes(), wall(), 2, soon()).await.unwrap();
        }
        for number in 0..40 {
            assert!(held_by(&hosts[2], &format!("kv/{number}"), 2).await.contains(&1));
        }
        // Evicted, and the word of it was lost.
        for host in &hosts[1..] {
            host.memory.state.lock().objects.clear();
        }
        hosts[1].cluster.drain(MemberId(1), DrainOrder::Begin { within_ms: None }).await.unwrap();
        until("it has left", || hosts[0].cluster.status().drain.phase == DrainPhase::Left).await;
        hosts[0].cluster.close().await;
        for number in 0..40 {
            let name = format!("kv/{number}");
            assert_eq!(hosts[1].read(&name, soon()).await.as_deref(), Some(name.as_bytes()), "{name}");
        }
    });
}

#[test]
fn a_copy_that_was_let_go_of_while_nobody_could_be_told_is_found_no_more_when_they_are_back() {
    in_a_cluster_of(3, |_, hosts| async move {
        for number in 0..40 {
            let name = format!("kv/{number}");
            hosts[0].write(&name, name.as_bytes(), wall(), soon()).await.unwrap();
            assert!(hosts[1].read_and_keep(&name, soon()).await.is_some());
        }
        let core = &hosts[0].cluster.core;
        // While one is being asked nobody asks it again.
        let set_probed = |is_probed: bool| {
            core.peers.lock().values_mut().for_each(|peer| peer.is_probed = is_probed);
        };
        set_probed(true);
        for host in &hosts[1..] {
            core.note_slow(host.cluster.me(), Duration::from_secs(2), Instant::now());
        }
        (0..40).for_each(|number| hosts[0].evict(&format!("kv/{number}")));
        // One of them is back before anybody hears of it.
        let stamp = match hosts[1].look_up("kv/0", soon()).await {
            Seen::Elsewhere(stamp, ..) | Seen::Here(stamp) => stamp,
            other => panic!("{other:?}"),
        };
        let object = super::memory::Object {
            stamp,
            bytes: b"kv/0"[..].into(),
            is_directory: false,
            is_soft: false,
            replicas: 1,
        };
        hosts[0].memory.state.lock().objects.insert(b"kv/0".to_vec(), object);
        assert!(core.let_go.len() > 0);
        set_probed(false);
        for number in 1..40 {
            let name = format!("kv/{number}");
            until_answered("it is told", async || !holders(&hosts[1], &name).await.contains(&1)).await;
        }
        until("all is told", || core.let_go.len() == 0).await;
        assert!(holders(&hosts[1], "kv/0").await.contains(&1));
    });
}

#[test]
fn a_source_in_the_same_rack_comes_before_one_elsewhere_and_memory_before_that() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let mut hosts = Vec::new();
        for (id, rack) in [(1, "a"), (2, "b"), (3, "a")] {
            let mut config = config(id);
            config.labels.insert("topology.rack".to_owned(), rack.to_owned());
            hosts.push(start(&coordinator, config).await);
        }
        settled(&hosts).await;
        let ranked = |far, near| {
            let copy = |member, medium| Copy { member: MemberId(member), medium };
            hosts[0].cluster.core.rank(&[copy(2, far), copy(3, near)])
        };
        assert_eq!(ranked(Medium::Memory, Medium::Memory), [MemberId(3), MemberId(2)]);
        assert_eq!(ranked(Medium::Memory, Medium::Ssd), [MemberId(2), MemberId(3)]);
    });
}

#[test]
fn a_member_keeps_no_more_for_others_in_a_time_than_it_is_to() {
    const LENGTH: usize = 32 << 10;
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let hosts = started(&coordinator, 2, |config| {
            config.limits.ingest_bytes_per_second = 1 << 20;
            config.timings.ramp = Duration::ZERO;
            config.timings.keep = Duration::from_millis(400);
        })
        .await;
        let mut wishes = Vec::new();
        for number in 0..60 {
            let path = format!("kv/{number}");
            let published = hosts[0].write(&path, &[7; LENGTH], wall(), soon()).await.unwrap();
            let (head, path) = (KeyId::of(path.as_bytes()), path.into_bytes());
            let size = ByteCount(LENGTH as u64);
            wishes.push(Wish { path, stamp: published.stamp, size, replicas: 2, head });
        }
        let (began, mut asked) = (Instant::now(), tokio::task::JoinSet::new());
        for wish in wishes {
            let core = Arc::clone(&hosts[0].cluster.core);
            asked.spawn(async move { core.ask_to_keep(MemberId(2), &wish).await });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let kept = hosts[1].cluster.counters().copies_kept.get();
        // Those that are under way are not paid for yet.
        let most = began.elapsed().as_secs_f64() * f64::from(1 << 20) / LENGTH as f64 + 9.0;
        assert!(kept >= 8 && (kept as f64) < most, "{kept} were kept, and {most} are allowed");
    });
}
