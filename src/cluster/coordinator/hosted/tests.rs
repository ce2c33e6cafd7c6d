//! The facts of every coordinator with one that is hosted, and those of a keeper that goes away.

mod late_address;
mod older_build;

use std::net::TcpListener;
use std::time::Instant;

use tidefs_engine::types::MemberId;

use super::super::conformance::{
    Pair, as_registered, coordinator_facts, join, removes, sets, shows, soon, started,
};
use super::super::{CoordinatorError, Namespaces, Reachability};
use super::*;
use crate::cluster::member::View;

fn free_address() -> String {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().to_string()
}

/// An address where nobody listens, and a directory for what is kept.
fn place() -> (tempfile::TempDir, HostedSettings) {
    let directory = tempfile::tempdir().unwrap();
    let settings = HostedSettings {
        address: free_address(),
        cluster: "test".to_owned(),
        key: Some(ClusterKey::new(*b"the key of this cluster")),
        tls: None,
        file: directory.path().join("coordinator.json"),
        lease: Duration::from_secs(1),
        call_timeout: Duration::from_secs(2),
    };
    (directory, settings)
}

fn handle(settings: &HostedSettings) -> Box<dyn Coordinator> {
    start(settings.clone(), &Handle::current()).unwrap()
}

/// Waits until nobody listens where the keeper did, and starts it again.
async fn handle_again(settings: &HostedSettings) -> Box<dyn Coordinator> {
    while !matches!(settings.keeper(), WhoKeeps::This(_)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    handle(settings)
}

async fn is_reached(coordinator: &dyn Coordinator, wanted: bool) -> String {
    let end = soon();
    loop {
        match coordinator.reachability() {
            Reachability::Reached if wanted => return String::new(),
            Reachability::Away { reason, .. } | Reachability::Refused { reason, .. }
                if !wanted && !reason.contains("not reached yet") =>
            {
                return reason.to_string();
            }
            other => assert!(Instant::now() < end, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until what the coordinator says is not gone by, and tells why.
async fn is_refused(coordinator: &dyn Coordinator) -> String {
    let end = soon();
    loop {
        if let Reachability::Refused { reason, .. } = coordinator.reachability() {
            return reason.to_string();
        }
        assert!(Instant::now() < end, "{:?}", coordinator.reachability());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

mod the_keeper_and_a_follower {
    use super::*;

    fn pair() -> Pair {
        let (directory, settings) = place();
        let (first, second) = (handle(&settings), handle(&settings));
        Pair { first, second, keeps: Box::new(directory) }
    }

    coordinator_facts!(pair());
}

mod two_followers {
    use super::*;

    fn pair() -> Pair {
        let (directory, settings) = place();
        let keeper = handle(&settings);
        Pair { first: handle(&settings), second: handle(&settings), keeps: Box::new((keeper, directory)) }
    }

    coordinator_facts!(pair());
}

#[tokio::test]
async fn while_the_keeper_is_away_what_was_heard_stands_and_its_next_start_goes_on() {
    let (_directory, settings) = place();
    let (keeper, follower) = (handle(&settings), handle(&settings));
    let at_keeper = join(&*keeper, 1).await;
    let at_follower = join(&*follower, 2).await;
    let revision = follower.change_namespace("kv", sets("quota", "1GiB"), soon()).await.unwrap();
    let mut views = follower.views();
    let heard = shows(&mut views, "both", |view| view.members().len() == 2).await;
    drop(keeper);
    is_reached(&*follower, false).await;
    let shortly = Instant::now() + Duration::from_millis(100);
    let refused = follower.change_namespace("kv", sets("ttl", "1h"), shortly).await.unwrap_err();
    assert!(refused.is_away() && refused.to_string().contains("reads and writes go on"), "{refused}");
    assert_eq!(*views.borrow_and_update(), heard);

    let keeper = handle_again(&settings).await;
    is_reached(&*follower, true).await;
    let later = follower.change_namespace("kv", sets("ttl", "1h"), soon()).await.unwrap();
    assert!(later > revision, "{later} and {revision}");
    let agreed = shows(&mut keeper.namespaces(), "the change", |agreed| agreed.revision >= later).await;
    assert_eq!(agreed.records["kv"].policy.len(), 2);
    let start = keeper.begin(MemberId(1), soon()).await.unwrap();
    assert!(start.incarnation > at_keeper.incarnation);
    // The start before was the keeper's own: nobody holds it any more, and the follower is still there.
    let view = shows(&mut views, "the lease", |view| view.member(MemberId(1)).is_none()).await;
    assert_eq!(as_registered(&view), [at_follower]);
    assert!(view.number > heard.number);
}

#[tokio::test]
async fn who_missed_that_another_came_and_went_goes_by_the_number_of_that() {
    let (_directory, settings) = place();
    let settings = HostedSettings { lease: Duration::from_secs(60), ..settings };
    let (keeper, follower) = (handle(&settings), handle(&settings));
    join(&*follower, 2).await;
    let mut views = follower.views();
    let heard = shows(&mut views, "itself", |view| view.members().len() == 1).await;
    drop(keeper);
    is_reached(&*follower, false).await;
    let unheard = handle(&HostedSettings { address: free_address(), ..settings.clone() });
    join(&*unheard, 3).await;
    unheard.leave(soon()).await.unwrap();
    drop(unheard);
    let keeper = handle_again(&settings).await;
    let view = shows(&mut views, "its number", |view| view.number > heard.number).await;
    assert_eq!(view.members(), heard.members());
    assert_eq!(view.number, keeper.views().borrow().number);
}

#[tokio::test]
async fn a_member_whose_link_is_lost_stays_until_its_lease_is_over() {
    let (_directory, settings) = place();
    let (keeper, follower) = (handle(&settings), handle(&settings));
    let member = join(&*follower, 2).await;
    let mut views = keeper.views();
    shows(&mut views, "the member", |view| view.members().len() == 1).await;
    let lost = Instant::now();
    drop(follower);
    shows(&mut views, "the end of its lease", |view| view.members().is_empty()).await;
    assert!(lost.elapsed() >= settings.lease, "{:?}", lost.elapsed());
    // A start is not registered by somebody else.
    let other = handle(&settings);
    other.begin(MemberId(2), soon()).await.unwrap();
    let refused = other.register(member, soon()).await.unwrap_err();
    assert!(matches!(refused, CoordinatorError::Superseded { .. }), "{refused}");
}

#[tokio::test]
async fn a_lease_runs_from_the_last_of_several_losses() {
    let (_directory, settings) = place();
    let settings = HostedSettings { lease: Duration::from_secs(4), ..settings };
    let (keeper, follower) = (handle(&settings), handle(&settings));
    join(&*follower, 2).await;
    // All that were registered are lost at first.
    drop(keeper);
    is_reached(&*follower, false).await;
    let keeper = handle_again(&settings).await;
    let began = Instant::now();
    is_reached(&*follower, true).await;
    tokio::time::sleep(settings.lease / 2).await;
    let lost = Instant::now();
    assert!(lost - began < settings.lease, "too slow for what is asked");
    drop(follower);
    shows(&mut keeper.views(), "the end of its lease", |view| view.members().is_empty()).await;
    assert!(lost.elapsed() >= settings.lease, "{:?}", lost.elapsed());
}

#[tokio::test]
async fn who_does_not_know_the_key_is_told_nothing() {
    let (_directory, settings) = place();
    let keeper = handle(&settings);
    join(&*keeper, 1).await;
    let key = Some(ClusterKey::new(*b"the key of another cluster"));
    let stranger = handle(&HostedSettings { key, ..settings });
    let reason = is_reached(&*stranger, false).await;
    assert!(reason.contains("prove"), "{reason}");
    assert!(stranger.views().borrow().members().is_empty());
}

#[tokio::test]
async fn a_cluster_whose_file_was_lost_is_another_one() {
    let (_directory, settings) = place();
    let (keeper, follower) = (handle(&settings), handle(&settings));
    let member = join(&*follower, 2).await;
    drop(keeper);
    std::fs::remove_file(&settings.file).unwrap();
    let _keeper = handle_again(&settings).await;
    let end = soon();
    while !is_reached(&*follower, false).await.contains("restart the daemon") {
        assert!(Instant::now() < end);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(as_registered(&follower.views().borrow()), [member], "what was heard stands");
    let restarted = handle(&settings);
    join(&*restarted, 2).await;
}

#[tokio::test]
async fn an_old_file_is_not_gone_by_until_the_latest_is_back() {
    let (_directory, settings) = place();
    let (keeper, follower) = (handle(&settings), handle(&settings));
    let member = join(&*follower, 2).await;
    let old = std::fs::read(&settings.file).unwrap();
    for rack in ["a", "b", "c"] {
        let mut at_keeper = join(&*keeper, 1).await;
        at_keeper.labels.insert("topology.rack".to_owned(), rack.to_owned());
        keeper.register(at_keeper, soon()).await.unwrap();
    }
    let mut views = follower.views();
    let has_label = |view: &View| view.member(MemberId(1)).is_some_and(|member| member.rack() == Some("c"));
    let heard = shows(&mut views, "the last label", has_label).await;
    drop(keeper);
    is_reached(&*follower, false).await;
    let latest = std::fs::read(&settings.file).unwrap();
    std::fs::write(&settings.file, &old).unwrap();
    let keeper = handle_again(&settings).await;
    let reason = is_refused(&*follower).await;
    assert!(reason.contains("coordinator.json") && reason.contains("restart the daemons"), "{reason}");
    assert_eq!(*views.borrow_and_update(), heard, "what was heard stands");
    let shortly = Instant::now() + Duration::from_millis(100);
    let refused = follower.change_namespace("kv", sets("ttl", "1h"), shortly).await.unwrap_err();
    assert!(refused.to_string().contains("coordinator.json"), "{refused}");
    drop(keeper);
    while !matches!(settings.keeper(), WhoKeeps::This(_)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    std::fs::write(&settings.file, &latest).unwrap();
    let _keeper = handle_again(&settings).await;
    is_reached(&*follower, true).await;
    follower.change_namespace("kv", sets("ttl", "1h"), soon()).await.unwrap();
    assert_eq!(as_registered(&follower.views().borrow()).last(), Some(&member));
}

#[tokio::test]
async fn an_old_file_that_lacks_changes_of_directories_alone_is_not_gone_by() {
    for lost in [1, 3] {
        let (_directory, settings) = place();
        let (keeper, follower) = (handle(&settings), handle(&settings));
        join(&*follower, 2).await;
        follower.change_namespace("kv", sets("quota", "1GiB"), soon()).await.unwrap();
        let old = std::fs::read(&settings.file).unwrap();
        let mut latest = 0;
        for number in 0..lost {
            let change = sets("ttl", &format!("{number}h"));
            latest = follower.change_namespace("kv", change, soon()).await.unwrap();
        }
        let is_latest = |agreed: &Namespaces| agreed.revision == latest;
        let heard = shows(&mut follower.namespaces(), "the last change", is_latest).await;
        drop(keeper);
        is_reached(&*follower, false).await;
        std::fs::write(&settings.file, &old).unwrap();
        let _keeper = handle_again(&settings).await;
        let reason = is_refused(&*follower).await;
        assert!(reason.contains("coordinator.json"), "{reason}");
        assert_eq!(*follower.namespaces().borrow(), heard, "what was heard stands");
        let shortly = Instant::now() + Duration::from_millis(100);
        let refused = follower.change_namespace("kv", sets("ttl", "9h"), shortly).await.unwrap_err();
        assert!(refused.to_string().contains("coordinator.json"), "{refused}");
    }
}

#[tokio::test]
async fn a_keeper_that_starts_again_and_again_without_a_change_is_gone_by() {
    let (_directory, settings) = place();
    let (mut keeper, follower) = (handle(&settings), handle(&settings));
    // It asks for nothing when it comes again, and nothing is written.
    follower.begin(MemberId(2), soon()).await.unwrap();
    follower.change_namespace("kv", sets("quota", "1GiB"), soon()).await.unwrap();
    for _ in 0..3 {
        drop(keeper);
        is_reached(&*follower, false).await;
        keeper = handle_again(&settings).await;
        is_reached(&*follower, true).await;
    }
}

#[tokio::test]
async fn a_process_that_the_keeper_does_not_register_any_more_says_why_and_what_to_do() {
    let (_directory, settings) = place();
    let (keeper, old, new) = (handle(&settings), handle(&settings), handle(&settings));
    join(&*old, 2).await;
    join(&*new, 2).await;
    new.leave(soon()).await.unwrap();
    drop(keeper);
    is_reached(&*old, false).await;
    let _keeper = handle_again(&settings).await;
    let reason = is_refused(&*old).await;
    assert!(reason.contains("set cluster.member"), "{reason}");
}

#[tokio::test]
async fn the_next_start_of_the_keeper_tells_of_the_end_of_the_last_record() {
    let (_directory, settings) = place();
    let (keeper, follower) = (handle(&settings), handle(&settings));
    join(&*follower, 2).await;
    follower.change_namespace("kv", sets("quota", "1GiB"), soon()).await.unwrap();
    shows(&mut follower.namespaces(), "the record", |agreed| agreed.records.len() == 1).await;
    drop(keeper);
    is_reached(&*follower, false).await;
    // Which the follower does not hear of.
    let unheard = handle(&HostedSettings { address: free_address(), ..settings.clone() });
    removes(&*unheard, "kv").await;
    drop(unheard);
    let _keeper = handle_again(&settings).await;
    shows(&mut follower.namespaces(), "its end", |agreed| agreed.records.is_empty()).await;
}

/// Has nothing take the place of what is kept until it is called again with false.
fn bar(settings: &HostedSettings, is_barred: bool) {
    let (file, aside) = (&settings.file, settings.file.with_extension("aside"));
    if is_barred {
        std::fs::rename(file, aside).unwrap();
        std::fs::create_dir(file).unwrap();
    } else {
        std::fs::remove_dir(file).unwrap();
        std::fs::rename(aside, file).unwrap();
    }
}

#[tokio::test]
async fn the_end_of_a_lease_that_could_not_be_kept_is_told_as_soon_as_it_can() {
    let (_directory, settings) = place();
    let (keeper, follower, other) = (handle(&settings), handle(&settings), handle(&settings));
    join(&*follower, 2).await;
    let mut told = other.views();
    shows(&mut told, "the member", |view| view.members().len() == 1).await;
    bar(&settings, true);
    drop(follower);
    tokio::time::sleep(settings.lease * 3 / 2).await;
    for views in [&told, &keeper.views()] {
        assert_eq!(views.borrow().members().len(), 1, "what is not kept is told to nobody");
    }
    bar(&settings, false);
    shows(&mut told, "the end of its lease", |view| view.members().is_empty()).await;
}

#[tokio::test]
async fn what_could_not_be_kept_is_told_to_nobody() {
    let (_directory, settings) = place();
    let (keeper, first, second) = (handle(&settings), handle(&settings), handle(&settings));
    join(&*keeper, 1).await;
    let start = first.begin(MemberId(2), soon()).await.unwrap();
    bar(&settings, true);
    let refused = first.register(started(2, start.incarnation), soon()).await.unwrap_err();
    assert!(refused.to_string().contains("cannot write"), "{refused}");
    let new = handle(&settings);
    for follower in [&second, &new] {
        is_reached(&**follower, true).await;
        let view = shows(&mut follower.views(), "the keeper's own", |view| !view.members().is_empty()).await;
        assert_eq!(view.members().len(), 1, "{view:?}");
    }
    bar(&settings, false);
    join(&*second, 3).await;
    let is_there = |view: &View| view.member(MemberId(3)).is_some();
    for follower in [&second, &new] {
        shows(&mut follower.views(), "who joined since", is_there).await;
    }
}

#[tokio::test]
async fn a_port_that_another_program_of_the_host_has_is_explained() {
    let (_directory, settings) = place();
    let (_other_directory, elsewhere) = place();
    let program = TcpListener::bind(&settings.address).unwrap();
    let follower = handle(&settings);
    let reason = is_reached(&*follower, false).await;
    for part in [&settings.address, "ss -ltnp", "end it", "another cluster.coordinator on all members"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    // As for who finds the port free, and then not.
    let address = program.local_addr().unwrap();
    let refused = Keeper::start(elsewhere, address, &Handle::current()).unwrap_err().to_string();
    assert!(refused.contains(&format!("cluster.coordinator={address}")), "{refused}");
    assert!(refused.contains("Address already in use") && refused.contains("another port"), "{refused}");
}

#[tokio::test]
async fn a_file_that_is_not_ours_is_not_written_over() {
    let (_directory, settings) = place();
    std::fs::write(&settings.file, "not ours").unwrap();
    let refused = start(settings.clone(), &Handle::current()).unwrap_err();
    assert!(refused.to_string().contains("coordinator.json"), "{refused}");
    assert_eq!(std::fs::read(&settings.file).unwrap(), b"not ours");
}
