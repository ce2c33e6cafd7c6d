//! The facts of every coordinator with a real etcd, and those that only one has that can go away.

mod lost_data;

use std::sync::atomic::{AtomicU64, Ordering};

use etcd_client::{AlarmAction, AlarmType, Txn, TxnOp};

use super::super::conformance::{Pair, as_registered, coordinator_facts, join, removes, sets, shows, soon};
use super::heard::Heard;
use super::session::{catch_up, next_changes};
use super::testing::Server;
use super::*;

fn pair() -> Pair {
    static CLUSTERS: AtomicU64 = AtomicU64::new(0);
    let server = Server::start();
    let settings = server.settings(&format!("pair-{}", CLUSTERS.fetch_add(1, Ordering::Relaxed)));
    let handle = || Box::new(Etcd::start(settings.clone(), &Handle::current()));
    Pair { first: handle(), second: handle(), keeps: Box::new(server) }
}

coordinator_facts!(pair());

/// The same, with the machinery of a test around it.
fn with_etcd(test: impl AsyncFnOnce(Server)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { test(Server::start()).await });
}

fn has(count: usize) -> impl Fn(&View) -> bool {
    move |view| view.members().len() == count
}

#[test]
fn a_member_that_is_gone_without_a_word_leaves_when_its_lease_ends() {
    with_etcd(async |server| {
        let (stays, goes) = (server.handle(), server.handle());
        join(&stays, 1).await;
        join(&goes, 2).await;
        let mut views = stays.views();
        shows(&mut views, "both", has(2)).await;
        drop(goes);
        shows(&mut views, "the one that stayed", has(1)).await;
    });
}

#[test]
fn while_etcd_is_away_everything_stays_and_changes_wait_for_their_deadline() {
    with_etcd(async |mut server| {
        // Its lease does not end while the view is looked at.
        let lasting = EtcdSettings { lease: Duration::from_secs(60), ..server.settings("test") };
        let handle = Etcd::start(lasting, &Handle::current());
        join(&handle, 1).await;
        shows(&mut handle.views(), "itself", has(1)).await;
        server.stop();
        let reachability = &mut handle.shared.reachability.subscribe();
        shows(reachability, "away", |now| matches!(now, Reachability::Away { .. })).await;
        let refused = handle
            .change_namespace("kv", sets("quota", "1GiB"), Instant::now() + Duration::from_millis(300))
            .await;
        let error = refused.expect_err("etcd is away");
        assert!(matches!(error, CoordinatorError::Away { .. }), "{error}");
        assert!(error.to_string().contains("reads and writes go on"), "{error}");
        assert_eq!(handle.views().borrow().members().len(), 1, "the last view stands");
        // What waits long enough is done when it comes back.
        let waiting = handle.change_namespace("kv", sets("quota", "1GiB"), soon());
        server.start_again();
        waiting.await.expect("etcd is back");
        shows(&mut handle.namespaces(), "the namespace", |seen| seen.records.contains_key("kv")).await;
    });
}

#[test]
fn a_member_whose_lease_ran_out_meanwhile_is_registered_again() {
    with_etcd(async |mut server| {
        let (handle, other) = (server.handle(), server.handle());
        let member = join(&handle, 1).await;
        shows(&mut other.views(), "the member", has(1)).await;
        server.stop();
        // Longer than the lease, which etcd counts from its start at the least.
        tokio::time::sleep(Duration::from_secs(3)).await;
        server.start_again();
        reached(&handle).await;
        // Past what is left of the old lease.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let view = shows(&mut other.views(), "the member again", has(1)).await;
        assert_eq!(as_registered(&view), [member]);
    });
}

#[test]
fn a_registration_that_somebody_takes_out_is_made_again() {
    with_etcd(async |server| {
        let handle = server.handle();
        join(&handle, 1).await;
        let before = shows(&mut handle.views(), "the member", has(1)).await.members()[0].since;
        let mut connected = handle.shared.client.borrow().clone().unwrap();
        connected.client.delete(handle.shared.keys.member(MemberId(1)), None).await.unwrap();
        let is_again = |view: &View| view.members().first().is_some_and(|member| member.since > before);
        shows(&mut handle.views(), "the member again", is_again).await;
    });
}

#[test]
fn a_stopped_process_whose_member_was_started_again_elsewhere_does_not_come_back() {
    with_etcd(async |mut server| {
        let (old, new) = (server.handle(), server.handle());
        let earlier = join(&old, 1).await;
        let later = join(&new, 1).await;
        // The old process finds a new session, as after a long stop of it.
        server.stop();
        server.start_again();
        let refused = old.register(earlier, soon()).await;
        assert!(matches!(refused, Err(CoordinatorError::Superseded { .. })), "{refused:?}");
        let is_later = |view: &View| as_registered(view) == [later.clone()];
        shows(&mut old.views(), "the later start", is_later).await;
        let is_told = |now: &Reachability| matches!(now, Reachability::Refused { reason, .. } if reason.contains("set cluster.member"));
        shows(&mut old.shared.reachability.subscribe(), "why it is out, and what to do", is_told).await;
    });
}

#[test]
fn a_member_that_leaves_while_etcd_is_away_is_out_as_soon_as_it_is_back() {
    with_etcd(async |mut server| {
        // The lease under which it is registered does not end meanwhile.
        let lasting = EtcdSettings { lease: Duration::from_secs(60), ..server.settings("test") };
        let [leaves, other] = [(); 2].map(|()| Etcd::start(lasting.clone(), &Handle::current()));
        join(&leaves, 1).await;
        let stays = join(&other, 2).await;
        shows(&mut other.views(), "both", has(2)).await;
        server.stop();
        let away = |now: &Reachability| matches!(now, Reachability::Away { .. });
        shows(&mut leaves.shared.reachability.subscribe(), "away", away).await;
        let (left, ()) = tokio::join!(leaves.leave(soon()), async { server.start_again() });
        left.unwrap();
        let view = shows(&mut other.views(), "the one that stayed", has(1)).await;
        assert_eq!(as_registered(&view), [stays]);
    });
}

#[test]
fn an_etcd_that_is_full_is_away_until_it_takes_writes_again() {
    with_etcd(async |server| {
        let handle = server.handle();
        let member = join(&handle, 1).await;
        let mut connected = handle.connected("a test", soon()).await.unwrap();
        // As etcd does by itself at its quota.
        connected.client.alarm(AlarmAction::Activate, AlarmType::Nospace, None).await.unwrap();
        let shortly = Instant::now() + Duration::from_secs(1);
        handle.register(member.clone(), shortly).await.expect_err("etcd takes no writes");
        let mut now = handle.shared.reachability.subscribe();
        shows(&mut now, "away", |now| matches!(now, Reachability::Away { .. })).await;
        // Several sessions begin meanwhile, and read all that there is.
        let reached = now.wait_for(|now| matches!(now, Reachability::Reached));
        tokio::time::timeout(Duration::from_secs(2), reached).await.expect_err("it cannot be written");
        connected.client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, None).await.unwrap();
        shows(&mut now, "reached", |now| matches!(now, Reachability::Reached)).await;
        handle.register(member, soon()).await.expect("etcd takes writes again");
    });
}

#[test]
fn a_member_that_registers_again_after_it_could_not_leave_stays_when_etcd_is_back() {
    with_etcd(async |mut server| {
        let lasting = EtcdSettings { lease: Duration::from_secs(60), ..server.settings("test") };
        let stays = Etcd::start(lasting, &Handle::current());
        let member = join(&stays, 1).await;
        server.stop();
        let moment = || Instant::now() + Duration::from_millis(300);
        assert!(stays.leave(moment()).await.unwrap_err().is_away());
        assert!(stays.register(member.clone(), moment()).await.unwrap_err().is_away());
        let mut fulfilled = stays.shared.fulfilled.subscribe();
        server.start_again();
        shows(&mut fulfilled, "what was asked last is done", |done| done.number == 3).await;
        let other = server.handle();
        join(&other, 2).await;
        let view = shows(&mut other.views(), "both", has(2)).await;
        assert_eq!(as_registered(&view)[0], member);
    });
}

#[test]
fn old_starts_are_forgotten_beyond_a_bound_and_the_next_one_is_later_all_the_same() {
    with_etcd(async |server| {
        let handle = server.handle();
        join(&handle, 1).await;
        let begin = async |id: u64| handle.begin(MemberId(id), soon()).await.unwrap().incarnation;
        let before = begin(2).await;
        for id in 3..=5 {
            begin(id).await;
        }
        let (mut connected, keys) = (handle.connected("a test", soon()).await.unwrap(), &handle.shared.keys);
        let registered = [keys.start(MemberId(1)).into_bytes()];
        forget_starts(connected.clone(), keys.starts(), registered.into(), 2).await.unwrap();
        let mut known = Vec::new();
        for id in 1..=5 {
            let found = connected.client.get(keys.start(MemberId(id)), None).await.unwrap();
            known.push(!found.kvs().is_empty());
        }
        assert_eq!(known, [true, false, false, true, true], "the oldest go, but those that are registered");
        let again = begin(2).await;
        assert!(again > before);
        // So a build counts that knows nothing of those that are forgotten.
        connected.client.put(keys.start(MemberId(2)), "1", None).await.unwrap();
        assert!(begin(2).await > again);
    });
}

#[test]
fn who_leaves_leaves_a_later_start_of_it_registered() {
    with_etcd(async |server| {
        let (old, new) = (server.handle(), server.handle());
        join(&old, 1).await;
        let later = join(&new, 1).await;
        old.leave(soon()).await.unwrap();
        let third = server.handle();
        join(&third, 3).await;
        let view = shows(&mut third.views(), "both", has(2)).await;
        assert_eq!(as_registered(&view)[0], later);
    });
}

#[test]
fn clusters_that_share_an_etcd_do_not_see_each_other() {
    with_etcd(async |server| {
        let [one, two] = ["prod", "prod2"].map(|name| Etcd::start(server.settings(name), &Handle::current()));
        let (first, second) = (join(&one, 1).await, join(&two, 2).await);
        assert_eq!(as_registered(&shows(&mut one.views(), "its own", has(1)).await), [first]);
        assert_eq!(as_registered(&shows(&mut two.views(), "its own", has(1)).await), [second]);
        let start = |etcd: Etcd| async move { etcd.begin(MemberId(9), soon()).await.unwrap().cluster };
        assert_ne!(start(one).await, start(two).await);
    });
}

#[test]
fn values_that_are_not_ours_are_ignored() {
    with_etcd(async |server| {
        let handle = server.handle();
        let mut connected = handle.connected("a test", soon()).await.unwrap();
        for key in ["members/00000000000000ff", "namespaces/odd", "members/odd", "odd"] {
            connected.client.put(format!("/tidefs/test/{key}"), "{]", None).await.unwrap();
        }
        let member = join(&handle, 1).await;
        assert_eq!(as_registered(&shows(&mut handle.views(), "the member", has(1)).await), [member]);
        assert!(handle.namespaces().borrow().records.is_empty());
    });
}

#[test]
fn more_records_are_heard_than_fit_an_answer_of_etcd() {
    with_etcd(async |server| {
        let first = server.handle();
        join(&first, 1).await;
        let mut connected = first.connected("a test", soon()).await.unwrap();
        // Some 6 MiB; etcd takes 128 operations at once.
        let value = serde_json::to_vec(&sets("note", &"x".repeat(200)).applied_to(None)).unwrap();
        for part in (0..24_000).collect::<Vec<u32>>().chunks(120) {
            let put = |number: &u32| {
                let key = first.shared.keys.namespace(&format!("directory-{number:06}"));
                TxnOp::put(key, value.clone(), None)
            };
            let puts: Vec<TxnOp> = part.iter().map(put).collect();
            connected.client.txn(Txn::new().and_then(puts)).await.unwrap();
        }
        let second = server.handle();
        join(&second, 2).await;
        let all = shows(&mut second.namespaces(), "all", |seen| seen.records.len() == 24_000).await;
        assert_eq!(all.records.keys().last().map(String::as_str), Some("directory-023999"));
        assert_eq!(shows(&mut second.views(), "both", has(2)).await.members().len(), 2);
    });
}

async fn reached(handle: &Etcd) {
    let is_reached = |now: &Reachability| matches!(now, Reachability::Reached);
    shows(&mut handle.shared.reachability.subscribe(), "reached", is_reached).await;
}

/// Changes of etcd that are none of members.
async fn busy(handle: &Etcd) {
    let mut connected = handle.connected("a test", soon()).await.unwrap();
    for number in 0..10 {
        connected.client.put("elsewhere", number.to_string(), None).await.unwrap();
    }
}

#[test]
fn who_lists_and_who_watches_give_a_view_the_same_number() {
    with_etcd(async |mut server| {
        // Its lease does not end while etcd is away.
        let lasting = EtcdSettings { lease: Duration::from_secs(60), ..server.settings("test") };
        let first = Etcd::start(lasting.clone(), &Handle::current());
        join(&first, 1).await;
        busy(&first).await;
        let second = Etcd::start(lasting, &Handle::current());
        join(&second, 2).await;
        let watched = shows(&mut first.views(), "both", has(2)).await;
        busy(&first).await;
        let listed = shows(&mut server.handle().views(), "both", has(2)).await;
        assert_eq!(listed, watched);
        // Those who were away hear of the change with the number that it has for who was there.
        server.stop();
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.start_again();
        let third = server.handle();
        join(&third, 3).await;
        busy(&third).await;
        third.leave(soon()).await.unwrap();
        busy(&third).await;
        join(&third, 4).await;
        busy(&third).await;
        let there = shows(&mut third.views(), "all", |view| view.member(MemberId(4)).is_some()).await;
        for handle in [&first, &second] {
            let seen = shows(&mut handle.views(), "all", |view| view.member(MemberId(4)).is_some()).await;
            assert_eq!(seen, there);
        }
    });
}

/// Leases that do not end while a test takes its time.
fn lasting(server: &Server) -> EtcdSettings {
    EtcdSettings { lease: Duration::from_secs(60), ..server.settings("test") }
}

/// The first member, which stays registered and hears nothing any more; the way to etcd, and what it has heard.
async fn gone_deaf(server: &Server) -> (Etcd, Client, Heard) {
    let away = Etcd::start(lasting(server), &Handle::current());
    join(&away, 1).await;
    shows(&mut away.views(), "itself", has(1)).await;
    let mut client = away.connected("a test", soon()).await.unwrap().client;
    away.session.abort();
    let mut heard = Heard::default();
    drop(catch_up(&away.shared, &mut client, &mut heard).await.unwrap());
    (away, client, heard)
}

/// The second member comes and goes. Returns the view without it.
async fn comes_and_goes(server: &Server) -> View {
    let other = Etcd::start(lasting(server), &Handle::current());
    join(&other, 2).await;
    shows(&mut other.views(), "both", has(2)).await;
    other.leave(soon()).await.unwrap();
    shows(&mut other.views(), "the one that stayed", has(1)).await
}

#[test]
fn who_heard_of_nobody_that_came_and_went_meanwhile_gives_the_view_the_number_that_it_has_for_others() {
    with_etcd(async |server| {
        let (away, mut client, mut heard) = gone_deaf(&server).await;
        let there = comes_and_goes(&server).await;
        let shared = &away.shared;
        assert!(shared.views.borrow().number < there.number, "it has heard of that");
        let mut watching = catch_up(shared, &mut client, &mut heard).await.unwrap();
        let hearing = async {
            while shared.views.borrow().number < there.number {
                heard.apply(shared, &next_changes(&mut watching).await.unwrap());
            }
        };
        tokio::time::timeout(Duration::from_secs(20), hearing).await.expect("it hears of that one by one");
        assert_eq!(*shared.views.borrow(), there);
    });
}

#[test]
fn the_view_keeps_its_number_where_etcd_has_compacted_who_came_and_went_meanwhile() {
    with_etcd(async |server| {
        let (away, mut client, mut heard) = gone_deaf(&server).await;
        let there = comes_and_goes(&server).await;
        let (shared, left) = (&away.shared, i64::try_from(there.number).unwrap());
        let before = shared.views.borrow().clone();
        assert!(heard.revision() < left);
        client.compact(left, None).await.unwrap();
        drop(catch_up(shared, &mut client, &mut heard).await.unwrap());
        assert!(heard.revision() >= left, "it goes on from the list");
        heard.publish_members(shared);
        assert_eq!(*shared.views.borrow(), before);
    });
}

#[test]
fn a_member_that_registers_again_as_it_was_makes_no_view() {
    with_etcd(async |server| {
        let [handle, other] = [(); 2].map(|()| Etcd::start(lasting(&server), &Handle::current()));
        let member = join(&handle, 1).await;
        join(&other, 2).await;
        let view = shows(&mut other.views(), "both", has(2)).await;
        handle.register(member, soon()).await.unwrap();
        // What comes after it in etcd is heard after it.
        let made = handle.change_namespace("kv", sets("quota", "1GiB"), soon()).await.unwrap();
        shows(&mut other.namespaces(), "the namespace", |seen| seen.revision >= made).await;
        assert_eq!(*other.views().borrow(), view);
    });
}

#[test]
fn what_is_asked_after_the_users_of_etcd_were_changed_is_done_with_a_new_token() {
    let keys = tempfile::tempdir().unwrap();
    let key = keys.path().join("key");
    std::fs::write(&key, "a secret of this test").unwrap();
    let tokens = format!("jwt,priv-key={},sign-method=HS256,ttl=1h", key.display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::start_with(vec!["--auth-token".to_owned(), tokens]);
        let mut root = server.handle().connected("a test", soon()).await.unwrap().client;
        root.user_add("root", "a password", None).await.unwrap();
        root.user_grant_role("root", "root").await.unwrap();
        root.auth_enable().await.unwrap();
        let user = Some(EtcdUser { name: "root".to_owned(), password: "a password".to_owned() });
        // Its session does not end while it is asked, nor is it begun anew.
        let lasting = EtcdSettings { user, lease: Duration::from_secs(60), ..server.settings("test") };
        let handle = Etcd::start(lasting, &Handle::current());
        join(&handle, 1).await;
        let mut connected = handle.connected("a test", soon()).await.unwrap();
        connected.client.user_add("another", "a password", None).await.unwrap();
        handle.change_namespace("kv", sets("quota", "1GiB"), soon()).await.expect("a new token");
        connected.client.user_delete("another").await.unwrap();
        removes(&handle, "kv").await;
    });
}

#[test]
fn secrets_are_not_shown() {
    let user = EtcdUser { name: "tidefs".to_owned(), password: "hunter2".to_owned() };
    let tls =
        EtcdTls { authority: b"authority".to_vec(), identity: Some((b"c".to_vec(), b"secret".to_vec())) };
    let shown = format!("{user:?} {tls:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("115"), "{shown}");
}
