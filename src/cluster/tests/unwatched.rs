//! Names of which an owner does not remember any more who was answered, over real sockets: how they are told of, and who waits for
//! whom.

use std::time::Duration;

use tidefs_engine::types::ByteCount;

use super::gone::tasks_of;
use super::host::Host;
use super::members::{runtime, soon, started, until, wall};
use super::removals::{expect_removal_waits, hold_back};
use crate::cluster::catalog::wire::Revocation;
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::shards::{KeyId, Owners};
use crate::cluster::{ClusterConfig, ClusterId, Stamp};

/// `count` hosts that remember of some ten names who was answered.
async fn forgetful(count: u64) -> Vec<Host> {
    let forgetful = |config: &mut ClusterConfig| {
        config.limits.watches = ByteCount(2000);
        // Nobody is passed over for being slow while this lasts.
        config.timings.background = Duration::from_secs(30);
    };
    started(&Embedded::new(ClusterId(7)), count, forgetful).await
}

/// Names that `primary` decides about, and `backup` with it.
fn names_of(primary: &Host, backup: &Host) -> impl Iterator<Item = String> + use<> {
    let owners = Owners { primary: primary.cluster.me(), backup: Some(backup.cluster.me()) };
    let map = primary.cluster.core.seen().map.clone();
    let names = (0..).map(|number| format!("kv/{number}"));
    names.filter(move |name| map.owners(KeyId::of(name.as_bytes()).shard()) == Some(owners))
}

#[test]
fn who_changes_a_name_that_is_watched_no_more_waits_for_who_watched_that_and_for_nobody_else() {
    runtime().block_on(async {
        let hosts = forgetful(4).await;
        let [writer, owner, hangs, reader] = [0, 1, 2, 3].map(|host: usize| &hosts[host]);
        let mut names = names_of(owner, writer);
        let [one, other] = [(); 2].map(|()| names.next().unwrap());
        for (name, asks) in [(&one, hangs), (&other, reader)] {
            writer.write(name, b"bytes", wall(), soon()).await.unwrap();
            assert!(asks.look_up(name, soon()).await.is_present());
        }
        let may = hold_back(hangs);
        // Both leave at one stroke with most of these.
        let many = names.take(100).map(String::into_bytes).collect();
        writer.cluster.find(many, soon()).await;
        assert!(owner.cluster.counters().watches_dropped.get() >= 80, "they are watched");
        let removal = writer.unlink(&other, wall(), soon());
        let removed = tokio::time::timeout(Duration::from_secs(5), removal).await;
        removed.expect("it waits for who was told of another name").unwrap();
        assert_eq!(reader.remembers(&other), None);
        expect_removal_waits(writer, hangs, &one, may).await;
    });
}

#[test]
fn names_that_one_member_watches_no_more_share_a_task_and_leave_nothing() {
    runtime().block_on(async {
        let hosts = forgetful(2).await;
        let (owner, reader) = (&hosts[0], &hosts[1]);
        let names: Vec<String> = names_of(owner, reader).take(200).collect();
        for name in &names {
            owner.write(name, b"bytes", wall(), soon()).await.unwrap();
        }
        let core = &owner.cluster.core;
        let before = tasks_of(core);
        let may = hold_back(reader);
        let asked = names.into_iter().map(String::into_bytes).collect();
        reader.cluster.find(asked, soon()).await;
        let untold = core.unsettled.lock().len();
        assert!(untold >= 150, "{untold} names are told of");
        let tasks = tasks_of(core);
        assert!(tasks < before + 20, "{tasks} tasks, and {before} before");
        may.send_replace(true);
        until("all of it is told", || core.unsettled.lock().len() == 0).await;
        until("its tasks end", || tasks_of(core) <= before).await;
    });
}

#[test]
fn a_removal_waits_for_an_owner_that_watches_a_name_of_its_own_no_more() {
    runtime().block_on(async {
        let hosts = forgetful(2).await;
        let (owner, writer) = (&hosts[0], &hosts[1]);
        let names: Vec<String> = names_of(owner, writer).take(40).collect();
        for name in &names {
            writer.write(name, b"bytes", wall(), soon()).await.unwrap();
        }
        let may = hold_back(owner);
        let asked = names.iter().map(|name| name.clone().into_bytes()).collect();
        owner.cluster.find(asked, soon()).await;
        assert!(owner.cluster.counters().watches_dropped.get() >= 20, "they are watched");
        expect_removal_waits(writer, owner, &names[0], may).await;
    });
}

#[test]
fn a_removal_waits_for_who_is_to_hear_that_it_is_told_no_more_though_its_queue_is_full() {
    runtime().block_on(async {
        let narrow = |config: &mut ClusterConfig| {
            config.limits.queued = 2;
            config.timings.background = Duration::from_secs(30);
        };
        let hosts = started(&Embedded::new(ClusterId(7)), 3, narrow).await;
        let [writer, owner, reader] = [0, 1, 2].map(|host: usize| &hosts[host]);
        let mut names = names_of(owner, writer);
        let [first, second, third] = [(); 3].map(|()| names.next().unwrap());
        let through = writer.write(&third, b"bytes", wall(), soon()).await.unwrap().stamp;
        let may = hold_back(reader);
        // There is room for two, which wait for nothing there. The third is owed.
        let path = |name: &str| name.as_bytes().to_vec();
        let appeared = [&first, &second].map(|name| Revocation::Appeared { path: path(name) });
        let withdraw = Revocation::Withdraw { path: path(&third), through, seen: 0 };
        let told = appeared.into_iter().chain([withdraw]).collect();
        let keys = [&first, &second, &third].map(|name| KeyId::of(name.as_bytes())).to_vec();
        let core = &owner.cluster.core;
        let overflows = || owner.cluster.counters().queue_overflows.get();
        let before = overflows();
        {
            let _order = core.owner.lock();
            core.tell_together(keys, vec![(reader.cluster.me(), told)]);
        }
        assert_eq!(overflows(), before + 1);
        expect_removal_waits(writer, reader, &third, may).await;
    });
}

#[test]
fn a_name_of_which_another_member_still_hears_holds_up_none_that_is_told_of_with_it() {
    runtime().block_on(async {
        let hosts = forgetful(3).await;
        let core = &hosts[0].cluster.core;
        let [hangs, reader] = [1, 2].map(|host: usize| hosts[host].cluster.me());
        let [may, other_may] = [1, 2].map(|host: usize| hold_back(&hosts[host]));
        let told = |name: &str| Revocation::Withdraw { path: name.into(), through: Stamp(1), seen: 0 };
        let [one, other] = ["kv/a", "kv/b"].map(|name| KeyId::of(name.as_bytes()));
        let unsettled = || core.unsettled.lock().len();
        {
            let _order = core.owner.lock();
            drop(core.tell_in_order(one, vec![(hangs, told("kv/a"))]));
            core.tell_together(vec![one, other], vec![(reader, vec![told("kv/a"), told("kv/b")])]);
            assert_eq!(unsettled(), 2);
        }
        other_may.send_replace(true);
        until("the other one is settled", || unsettled() == 1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(unsettled(), 1, "one of them still hears of it");
        may.send_replace(true);
        until("both are", || unsettled() == 0).await;
    });
}
