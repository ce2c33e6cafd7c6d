//! Copies that leave first, and the one that is left, over real sockets.

use tidefs_engine::types::{ByteCount, MemberId};

use super::host::{Host, Seen};
use super::members::{in_a_cluster_of, name_served, soon, until, until_answered, wall};
use super::memory::Object;
use crate::cluster::catalog::wire::{Known, Replicate};
use crate::cluster::core::Core;
use crate::cluster::peers::Dirty;
use crate::cluster::shards::KeyId;
use crate::cluster::{Copy, Found, Medium, Stamp, Wish};

async fn mediums(host: &Host, path: &str) -> Vec<Medium> {
    match host.look_up(path, soon()).await {
        Seen::Elsewhere(_, copies, _) => copies.into_iter().map(|copy| copy.medium).collect(),
        _ => Vec::new(),
    }
}

async fn until_mediums(host: &Host, path: &str, expected: &[Medium]) {
    let what = format!("{path} in {expected:?}");
    until_answered(&what, async || mediums(host, path).await == expected).await;
}

#[test]
fn the_last_copy_that_leaves_first_counts_when_the_others_are_let_go_of() {
    in_a_cluster_of(3, |_, hosts| async move {
        for number in 0..20 {
            let name = format!("kv/{number}");
            hosts[0].write(&name, b"bytes", wall(), soon()).await.unwrap();
            assert!(hosts[1].read_and_keep(&name, soon()).await.is_some());
            until_mediums(&hosts[2], &name, &[Medium::Memory, Medium::Soft]).await;
            hosts[0].evict(&name);
            until_mediums(&hosts[2], &name, &[Medium::Memory]).await;
            assert!(!hosts[1].memory.state.lock().objects[name.as_bytes()].is_soft);
        }
        assert_eq!(hosts[1].cluster.counters().inherited.get(), 20);
    });
}

#[test]
fn a_copy_that_counts_already_is_taken_for_one_when_the_others_are_let_go_of() {
    in_a_cluster_of(3, |_, hosts| async move {
        hosts[0].write("kv/a", b"bytes", wall(), soon()).await.unwrap();
        assert!(hosts[1].read_and_keep("kv/a", soon()).await.is_some());
        until_mediums(&hosts[2], "kv/a", &[Medium::Memory, Medium::Soft]).await;
        // As if its word had gone to who serves the name no more.
        hosts[1].memory.state.lock().objects.get_mut(&b"kv/a"[..]).unwrap().is_soft = false;
        hosts[0].evict("kv/a");
        until_mediums(&hosts[2], "kv/a", &[Medium::Memory]).await;
    });
}

#[test]
fn copies_that_leave_first_count_when_the_member_with_the_others_is_lost() {
    in_a_cluster_of(3, |_, hosts| async move {
        for number in 0..200 {
            let name = format!("kv/{number}");
            hosts[0].write(&name, b"bytes", wall(), soon()).await.unwrap();
            assert!(hosts[1].read_and_keep(&name, soon()).await.is_some());
        }
        // A copy that nobody was told of in time ends with the last one that was known.
        for number in 0..200 {
            until_mediums(&hosts[2], &format!("kv/{number}"), &[Medium::Memory, Medium::Soft]).await;
        }
        let soft = || hosts[1].memory.state.lock().objects.values().filter(|object| object.is_soft).count();
        assert_eq!(soft(), 200);
        hosts[0].cluster.leave(soon()).await.unwrap();
        hosts[0].cluster.close().await;
        until("all copies count", || soft() == 0).await;
        for number in 0..200 {
            until_mediums(&hosts[2], &format!("kv/{number}"), &[Medium::Memory]).await;
        }
    });
}

#[test]
fn a_copy_that_went_to_a_disk_is_asked_for_after_those_in_memory_until_it_is_back() {
    in_a_cluster_of(3, |_, hosts| async move {
        hosts[0].write("kv/a", b"bytes", wall(), soon()).await.unwrap();
        assert!(hosts[1].read_and_keep("kv/a", soon()).await.is_some());
        until_mediums(&hosts[2], "kv/a", &[Medium::Memory, Medium::Soft]).await;
        hosts[0].move_to_ssd("kv/a", true);
        let best = async || match hosts[2].look_up("kv/a", soon()).await {
            Seen::Elsewhere(_, copies, _) => {
                let copy = copies.iter().find(|copy| copy.member == MemberId(1)).map(|copy| copy.medium);
                (copy, hosts[2].cluster.core.rank(&copies)[0])
            }
            seen => panic!("{seen:?}"),
        };
        let is_second = async || best().await == (Some(Medium::Ssd), MemberId(2));
        until_answered("it is on a disk", is_second).await;
        hosts[0].move_to_ssd("kv/a", false);
        until_answered("it is back", async || best().await.0 == Some(Medium::Memory)).await;
    });
}

#[test]
fn of_many_copies_that_go_to_a_disk_at_once_some_are_told_at_a_time_and_all_in_the_end() {
    const COPIES: u64 = 10_000;
    in_a_cluster_of(2, |_, hosts| async move {
        let object =
            Object { stamp: Stamp(7), bytes: [1].into(), is_directory: false, is_soft: false, replicas: 1 };
        let name = |number: u64| format!("kv/{number}");
        let objects = (0..COPIES).map(|number| (name(number).into_bytes(), object.clone()));
        hosts[0].memory.state.lock().objects.extend(objects);
        (0..COPIES).for_each(|number| hosts[0].move_to_ssd(&name(number), true));
        let told = || hosts[0].cluster.counters().copies_moved.get();
        until("some are told", || told() > 0).await;
        assert!(told() < COPIES, "all at once");
        until("all are told", || told() == COPIES).await;
    });
}

#[test]
fn a_copy_that_is_let_go_of_while_it_is_announced_is_not_named_any_more() {
    in_a_cluster_of(3, |_, hosts| async move {
        let name =
            name_served(&hosts, |owners| owners.primary == MemberId(1) && owners.backup == Some(MemberId(2)));
        let core = &hosts[2].cluster.core;
        hosts[2].write(&name, b"bytes", wall(), soon()).await.unwrap();
        hosts[2].memory.state.lock().leaves_when_announced = Some(name.clone().into());
        core.plan_all_of(MemberId(1));
        until("it is evicted", || hosts[2].memory.state.lock().objects.is_empty()).await;
        until("all is announced", || core.plan.told() == 3).await;
        until("no owner knows it", || hosts.iter().all(|host| host.cluster.status().entries == 0)).await;
    });
}

#[test]
fn a_copy_on_a_disk_is_known_as_one_when_more_copies_are_wanted_than_before() {
    in_a_cluster_of(3, |_, hosts| async move {
        let stamp = hosts[0].write("kv/a", b"bytes", wall(), soon()).await.unwrap().stamp;
        let copies = async || match hosts[0].cluster.find(vec![b"kv/a".to_vec()], soon()).await.pop() {
            Some(Found::Present { copies, .. }) => copies,
            found => panic!("{found:?}"),
        };
        let own = async || copies().await.iter().find(|copy| copy.member == MemberId(1)).unwrap().medium;
        hosts[0].move_to_ssd("kv/a", true);
        until_answered("it is on a disk", async || own().await == Medium::Ssd).await;
        let (path, head) = (b"kv/a".to_vec(), KeyId::of(b"kv/a"));
        hosts[0].memory.state.lock().objects.get_mut(&path).unwrap().replicas = 2;
        hosts[0].cluster.wish(Wish { path, stamp, size: ByteCount(5), replicas: 2, head });
        until_answered("another has a copy", async || copies().await.len() == 2).await;
        assert_eq!(own().await, Medium::Ssd);
    });
}

#[test]
fn a_backup_that_names_a_copy_of_which_the_primary_let_go_hears_of_that_when_it_tells_of_it() {
    in_a_cluster_of(2, |_, hosts| async move {
        let (primary, backup) = (&hosts[0].cluster.core, &hosts[1].cluster.core);
        let name = name_served(&hosts, |owners| owners.primary == primary.me.member);
        let (key, removed) = (KeyId::of(name.as_bytes()), wall());
        hosts[0].unlink(&name, removed, soon()).await.unwrap();
        // As where it had published that since, while another one decided, and not told it when it let go of it.
        let stamp = Stamp(removed.0 + 1);
        hosts[0].cluster.let_go(name.as_bytes(), stamp);
        let object = Object { stamp, bytes: [1].into(), is_directory: false, is_soft: false, replicas: 1 };
        let copies = vec![Copy { member: primary.me.member, medium: Medium::Memory }];
        let word = Replicate {
            view: backup.seen().view.number,
            is_decided: true,
            keys: vec![(key.0, Known::Present { stamp, facts: object.facts(), copies })],
            complete: Vec::new(),
            horizon_age_ms: None,
            away_ms: Vec::new(),
        };
        let knows = |core: &Core| core.owner.lock().known(key, Stamp(0), core.now());
        backup.owner.lock().learn(primary.me.member, &word, &word.keys, backup.now());
        assert!(matches!(knows(backup), Known::Present { .. }));
        let dirty = Dirty { key, gone: Stamp(0) };
        backup.peers.lock().get_mut(&primary.me.member).unwrap().debts.add(dirty, 100);
        until("it knows", || !matches!(knows(backup), Known::Present { .. })).await;
        assert!(matches!(knows(primary), Known::Removed { .. }));
    });
}

#[test]
fn a_copy_that_was_there_and_counts_when_it_is_asked_for_is_not_counted_as_made() {
    in_a_cluster_of(2, |_, hosts| async move {
        let published = hosts[0].write("kv/a", b"bytes", wall(), soon()).await.unwrap();
        assert!(hosts[1].read_and_keep("kv/a", soon()).await.is_some());
        let is_known = async || {
            let found = hosts[0].cluster.find(vec![b"kv/a".to_vec()], soon()).await.pop();
            matches!(found, Some(Found::Present { copies, .. }) if copies.len() == 2)
        };
        until_answered("the copy that leaves first is known", is_known).await;
        let (path, stamp, size) = (b"kv/a".to_vec(), published.stamp, ByteCount(5));
        let head = KeyId::of(&path);
        hosts[0].cluster.wish(Wish { path, stamp, size, replicas: 2, head });
        until("it counts", || !hosts[1].memory.state.lock().objects[&b"kv/a"[..]].is_soft).await;
        until("who asked for it knows", || hosts[0].cluster.status().copies_to_make == 0).await;
        let counters = hosts[0].cluster.counters();
        assert_eq!((counters.copies_made.get(), counters.copied_bytes.get()), (0, 0));
    });
}

#[test]
fn who_looks_for_missing_copies_of_what_it_decides_about_is_not_told_of_it() {
    in_a_cluster_of(2, |_, hosts| async move {
        let core = &hosts[0].cluster.core;
        let name = name_served(&hosts, |owners| owners.primary == core.me.member);
        let path = name.as_bytes();
        hosts[0].write(&name, b"bytes", wall(), soon()).await.unwrap();
        let watched = || core.owner.lock().sizes().watches;
        let before = watched();
        let seen = core.look_at(path, soon()).await;
        assert!(matches!(seen, Found::Present { .. }), "{seen:?}");
        assert_eq!(watched(), before);
        assert_eq!(core.find(vec![path.to_vec()], soon()).await, [seen]);
        assert_eq!(watched(), before + 1, "who asks may remember the answer");
    });
}

#[test]
fn who_looks_for_missing_copies_of_what_another_one_decides_about_is_not_told_of_it() {
    in_a_cluster_of(2, |_, hosts| async move {
        let (core, other) = (&hosts[0].cluster.core, &hosts[1].cluster.core);
        let name = name_served(&hosts, |owners| owners.primary == other.me.member);
        let path = name.as_bytes();
        let watched = || other.owner.lock().sizes().watches;
        let before = watched();
        assert_eq!(core.look_at(path, soon()).await, Found::Absent { is_watched: false });
        hosts[0].write(&name, b"bytes", wall(), soon()).await.unwrap();
        let seen = core.look_at(path, soon()).await;
        assert!(matches!(seen, Found::Present { .. }), "{seen:?}");
        assert_eq!(watched(), before);
        assert_eq!(core.find(vec![path.to_vec()], soon()).await, [seen]);
        assert_eq!(watched(), before + 1, "who asks may remember the answer");
    });
}
