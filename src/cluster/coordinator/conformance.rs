//! What every coordinator does, whichever it is: run by [`coordinator_facts`] against two members' handles of one cluster.

use std::any::Any;
use std::time::{Duration, Instant};

use tidefs_engine::types::{Incarnation, MemberId};
use tokio::sync::watch;

use super::{Coordinator, CoordinatorError, Made, NamespaceChange};
use crate::cluster::member::testing::member;
use crate::cluster::member::{Member, View};

/// Handles of two members of one fresh cluster.
pub(crate) struct Pair {
    pub(crate) first: Box<dyn Coordinator>,
    pub(crate) second: Box<dyn Coordinator>,
    /// What must live as long as they do, a server for example.
    #[expect(dead_code, reason = "held for its drop")]
    pub(crate) keeps: Box<dyn Any>,
}

/// Long enough for anything that comes at all.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Waits until `receiver` shows what is asked for.
pub(crate) async fn shows<T: Clone>(
    receiver: &mut watch::Receiver<T>,
    what: &str,
    is_it: impl Fn(&T) -> bool,
) -> T {
    let found = tokio::time::timeout(Duration::from_secs(20), receiver.wait_for(|value| is_it(value))).await;
    found.unwrap_or_else(|_| panic!("never seen: {what}")).expect("the coordinator lives").clone()
}

pub(crate) fn started(id: u64, incarnation: Incarnation) -> Member {
    let mut started = member(id, 8);
    started.incarnation = incarnation;
    started.engine.id.incarnation = incarnation;
    started
}

/// Begins and registers a member.
pub(crate) async fn join(coordinator: &dyn Coordinator, id: u64) -> Member {
    let start = coordinator.begin(MemberId(id), soon()).await.expect("begin");
    let member = started(id, start.incarnation);
    coordinator.register(member.clone(), soon()).await.expect("register");
    member
}

/// The members of `view` as they registered, with nothing that the coordinator says of them.
pub(crate) fn as_registered(view: &View) -> Vec<Member> {
    view.members().iter().map(|member| Member { since: 0, ..member.clone() }).collect()
}

fn ids(view: &View) -> Vec<u64> {
    view.members().iter().map(|member| member.id.0).collect()
}

pub(crate) async fn each_start_of_a_member_is_later_than_the_one_before(pair: Pair) {
    let first = pair.first.begin(MemberId(1), soon()).await.expect("begin");
    let again = pair.second.begin(MemberId(1), soon()).await.expect("begin");
    let other = pair.second.begin(MemberId(2), soon()).await.expect("begin");
    assert!(again.incarnation > first.incarnation);
    assert_eq!(first.cluster, again.cluster);
    assert_eq!(first.cluster, other.cluster);
}

pub(crate) async fn who_registers_is_seen_by_everyone_until_it_leaves(pair: Pair) {
    let (mut near, mut far) = (pair.first.views(), pair.second.views());
    let registered = join(&*pair.first, 1).await;
    for views in [&mut near, &mut far] {
        let view = shows(views, "the member", |view| ids(view) == [1]).await;
        assert_eq!(as_registered(&view), std::slice::from_ref(&registered));
    }
    join(&*pair.second, 2).await;
    shows(&mut near, "both", |view| ids(view) == [1, 2]).await;
    pair.first.leave(soon()).await.expect("leave");
    shows(&mut far, "the one that stayed", |view| ids(view) == [2]).await;
    pair.first.leave(soon()).await.expect("leaving twice is fine");
}

pub(crate) async fn an_earlier_start_of_a_member_can_not_register(pair: Pair) {
    let earlier = pair.first.begin(MemberId(1), soon()).await.expect("begin");
    let later = join(&*pair.second, 1).await;
    let refused = pair.first.register(started(1, earlier.incarnation), soon()).await;
    match refused {
        Err(CoordinatorError::Superseded { ours, latest, .. }) => {
            assert_eq!((ours, latest), (earlier.incarnation, later.incarnation));
        }
        other => panic!("{other:?}"),
    }
    let view = shows(&mut pair.first.views(), "the later start", |view| ids(view) == [1]).await;
    assert_eq!(view.members()[0].incarnation, later.incarnation);
}

pub(crate) async fn what_a_member_registers_again_replaces_what_it_had(pair: Pair) {
    let mut member = join(&*pair.first, 1).await;
    member.labels.insert("topology.rack".to_owned(), "r2".to_owned());
    pair.first.register(member.clone(), soon()).await.expect("register again");
    let has_label = |view: &View| view.member(MemberId(1)).and_then(Member::rack) == Some("r2");
    shows(&mut pair.second.views(), "the label", has_label).await;
}

pub(crate) async fn a_registration_has_a_number_for_as_long_as_it_stands_and_the_next_one_another(
    pair: Pair,
) {
    let mut far = pair.second.views();
    join(&*pair.second, 2).await;
    let mut member = join(&*pair.first, 1).await;
    let since = |view: &View| view.member(MemberId(1)).map(|member| member.since);
    let first = since(&shows(&mut far, "both", |view| ids(view) == [1, 2]).await).expect("it is in it");
    assert!(first > 0);
    member.labels.insert("topology.rack".to_owned(), "r2".to_owned());
    // Whatever it says itself.
    member.since = 77;
    pair.first.register(member.clone(), soon()).await.expect("register again");
    let has_label = |view: &View| view.member(MemberId(1)).and_then(Member::rack) == Some("r2");
    assert_eq!(since(&shows(&mut far, "the label", has_label).await), Some(first));
    pair.second.leave(soon()).await.expect("leave");
    assert_eq!(since(&shows(&mut far, "one", |view| ids(view) == [1]).await), Some(first));
    pair.first.leave(soon()).await.expect("leave");
    shows(&mut far, "nobody", |view| ids(view).is_empty()).await;
    pair.first.register(member, soon()).await.expect("register");
    let next = since(&shows(&mut far, "it is back", |view| ids(view) == [1]).await).expect("it is in it");
    assert!(next > first, "{next} and {first}");
}

pub(crate) async fn numbers_of_views_only_grow(pair: Pair) {
    let mut views = pair.second.views();
    let mut numbers = vec![views.borrow().number];
    let mut member = join(&*pair.first, 1).await;
    for rack in ["a", "b", "c"] {
        member.labels.insert("topology.rack".to_owned(), rack.to_owned());
        pair.first.register(member.clone(), soon()).await.expect("register again");
        let has_label = |view: &View| view.member(MemberId(1)).and_then(Member::rack) == Some(rack);
        numbers.push(shows(&mut views, "the next label", has_label).await.number);
    }
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "{numbers:?}");
}

/// A change of one attribute.
pub(crate) fn sets(attribute: &str, value: &str) -> NamespaceChange {
    let policy = [(attribute.to_owned(), Some(value.to_owned()))].into_iter().collect();
    NamespaceChange { policy, ..NamespaceChange::default() }
}

/// Removes the record that there is. Returns the revision with which it is so.
pub(crate) async fn removes(coordinator: &dyn Coordinator, name: &str) -> u64 {
    let made = coordinator.find_namespace(name, soon()).await.expect("find");
    coordinator.remove_namespace(name, made, soon()).await.expect("remove")
}

pub(crate) async fn what_is_agreed_about_a_namespace_reaches_everyone(pair: Pair) {
    let mut far = pair.second.namespaces();
    let first = pair.first.change_namespace("kv", sets("quota", "1GiB"), soon()).await.expect("set");
    let second = pair.first.change_namespace("other", sets("ttl", "1h"), soon()).await.expect("set");
    assert!(second > first);
    let seen = shows(&mut far, "both", |seen| seen.records.len() == 2).await;
    assert!(seen.revision >= second, "{} and {second}", seen.revision);
    assert_eq!(seen.records["kv"].policy["quota"], "1GiB");
    let third = pair.second.change_namespace("kv", sets("quota", "2GiB"), soon()).await.expect("replace");
    let seen = shows(&mut pair.first.namespaces(), "the new quota", |seen| seen.revision >= third).await;
    assert_eq!(seen.records["kv"].policy["quota"], "2GiB");
    let last = removes(&*pair.first, "kv").await;
    let seen = shows(&mut far, "the removal", |seen| seen.revision >= last).await;
    assert!(seen.records.keys().eq(["other"]), "{seen:?}");
}

pub(crate) async fn what_is_so_already_makes_no_revision(pair: Pair) {
    let first = pair.first.change_namespace("kv", sets("quota", "1GiB"), soon()).await.expect("set");
    let again = pair.second.change_namespace("kv", sets("quota", "1GiB"), soon()).await.expect("set again");
    assert_eq!(again, first);
    let other = pair.second.change_namespace("kv", sets("quota", "2GiB"), soon()).await.expect("replace");
    assert!(other > first, "{other} and {first}");
}

pub(crate) async fn who_removes_what_was_just_removed_is_told_the_revision_of_that(pair: Pair) {
    let nothing = removes(&*pair.first, "kv").await;
    let made = pair.first.change_namespace("kv", sets("quota", "1GiB"), soon()).await.expect("set");
    let removed = removes(&*pair.first, "kv").await;
    assert!(nothing < made && made < removed, "{nothing}, {made} and {removed}");
    for again in [&pair.first, &pair.second] {
        let revision = removes(&**again, "kv").await;
        assert_eq!(revision, removed, "whoever waits for it hears of the removal");
    }
    let heard = shows(&mut pair.second.namespaces(), "the removal", |seen| seen.revision >= removed).await;
    assert!(heard.records.is_empty(), "{heard:?}");
}

pub(crate) async fn a_record_is_the_same_one_until_it_is_removed_whoever_asks(pair: Pair) {
    let found = async || {
        let one = pair.first.find_namespace("kv", soon()).await.expect("find");
        assert_eq!(pair.second.find_namespace("kv", soon()).await.expect("find"), one);
        one
    };
    assert_eq!(found().await, Made::NOTHING);
    pair.first.change_namespace("kv", sets("quota", "1GiB"), soon()).await.expect("set");
    // Also by who has not heard of it yet.
    let first = found().await;
    assert!(first != Made::NOTHING && first != Made::ANY, "{first:?}");
    pair.second.change_namespace("kv", sets("quota", "2GiB"), soon()).await.expect("replace");
    pair.first.change_namespace("other", sets("ttl", "1h"), soon()).await.expect("set another");
    assert_eq!(found().await, first);
    pair.first.remove_namespace("kv", first, soon()).await.expect("remove");
    assert_eq!(found().await, Made::NOTHING);
    pair.second.change_namespace("kv", sets("quota", "1GiB"), soon()).await.expect("set anew");
    let second = found().await;
    assert!(second != Made::NOTHING && second != first, "{second:?} and {first:?}");
    pair.first.remove_namespace("kv", Made::ANY, soon()).await.expect("remove");
    assert_eq!(found().await, Made::NOTHING);
}

pub(crate) async fn a_namespace_that_is_made_anew_is_not_taken_by_its_removal_that_is_asked_for_once_more(
    pair: Pair,
) {
    pair.first.change_namespace("kv", sets("quota", "1GiB"), soon()).await.expect("set");
    let meant = pair.first.find_namespace("kv", soon()).await.expect("find");
    let removed = pair.first.remove_namespace("kv", meant, soon()).await.expect("remove");
    pair.second.change_namespace("kv", sets("ttl", "1h"), soon()).await.expect("set anew");
    let again = pair.first.remove_namespace("kv", meant, soon()).await.expect("it is done already");
    assert!(again >= removed, "{again} and {removed}");
    // What comes after it is heard after it.
    let last = pair.first.change_namespace("other", sets("ttl", "1h"), soon()).await.expect("set another");
    let seen = shows(&mut pair.second.namespaces(), "all of it", |seen| seen.revision >= last).await;
    assert!(seen.records.keys().eq(["kv", "other"]), "{seen:?}");
    assert!(seen.records["kv"].policy.keys().eq(["ttl"]), "{seen:?}");
}

pub(crate) async fn changes_of_two_members_at_once_are_both_made(pair: Pair) {
    let mut last = 0;
    for round in 0..10 {
        let (one, two) = (format!("one-{round}"), format!("two-{round}"));
        let (one, two) = tokio::join!(
            pair.first.change_namespace("kv", sets(&one, "1"), soon()),
            pair.second.change_namespace("kv", sets(&two, "2"), soon()),
        );
        last = one.expect("a change").max(two.expect("a change"));
    }
    let seen = shows(&mut pair.first.namespaces(), "all changes", |seen| seen.revision >= last).await;
    assert_eq!(seen.records["kv"].policy.len(), 20, "{seen:?}");
}

/// One test for each fact, against the [`Pair`] that `$pair` makes.
macro_rules! coordinator_facts {
    ($pair:expr) => {
        $crate::cluster::coordinator::conformance::coordinator_facts! {
            $pair;
            each_start_of_a_member_is_later_than_the_one_before,
            who_registers_is_seen_by_everyone_until_it_leaves,
            an_earlier_start_of_a_member_can_not_register,
            what_a_member_registers_again_replaces_what_it_had,
            a_registration_has_a_number_for_as_long_as_it_stands_and_the_next_one_another,
            numbers_of_views_only_grow,
            what_is_agreed_about_a_namespace_reaches_everyone,
            what_is_so_already_makes_no_revision,
            who_removes_what_was_just_removed_is_told_the_revision_of_that,
            a_record_is_the_same_one_until_it_is_removed_whoever_asks,
            a_namespace_that_is_made_anew_is_not_taken_by_its_removal_that_is_asked_for_once_more,
            changes_of_two_members_at_once_are_both_made,
        }
    };
    ($pair:expr; $($fact:ident),+ $(,)?) => {
        $(
            #[test]
            fn $fact() {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    $crate::cluster::coordinator::conformance::$fact($pair).await;
                });
            }
        )+
    };
}
pub(crate) use coordinator_facts;
