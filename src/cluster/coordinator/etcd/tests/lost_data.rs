//! An etcd that has lost what it had: emptied, restored from a backup, or without a start that it knew. What members have heard
//! stands, and an etcd that knows less is not gone by.

use std::path::Path;
use std::process::Command;

use super::*;

/// Waits until etcd is not gone by, and tells why.
async fn refused(handle: &Etcd) -> String {
    let is_refused = |now: &Reachability| matches!(now, Reachability::Refused { .. });
    let now = shows(&mut handle.shared.reachability.subscribe(), "refused", is_refused).await;
    let Reachability::Refused { reason, .. } = now else { panic!() };
    reason.to_string()
}

#[test]
fn an_etcd_that_was_emptied_is_not_gone_by_until_its_data_is_back() {
    with_etcd(async |mut server| {
        let handle = server.handle();
        let member = join(&handle, 1).await;
        shows(&mut handle.views(), "itself", has(1)).await;
        let (data, kept) = (server.data.path().join("etcd"), server.data.path().join("kept"));
        server.stop();
        std::fs::rename(&data, &kept).unwrap();
        server.start_again();
        let reason = refused(&handle).await;
        assert!(reason.contains("emptied") && reason.contains("restart the daemons"), "{reason}");
        assert_eq!(
            as_registered(&handle.views().borrow()),
            std::slice::from_ref(&member),
            "what was heard stands"
        );
        let shortly = Instant::now() + Duration::from_millis(300);
        let error = handle.change_namespace("kv", sets("ttl", "1h"), shortly).await.unwrap_err();
        assert!(error.to_string().contains("emptied"), "{error}");
        // Who starts now makes a cluster of its own there, which this member does not join either.
        let stranger = server.handle();
        join(&stranger, 2).await;
        let is_other = |now: &Reachability| format!("{now:?}").contains("made anew");
        shows(&mut handle.shared.reachability.subscribe(), "another cluster", is_other).await;
        assert_eq!(as_registered(&handle.views().borrow()), std::slice::from_ref(&member));
        drop(stranger);
        server.stop();
        std::fs::remove_dir_all(&data).unwrap();
        std::fs::rename(&kept, &data).unwrap();
        server.start_again();
        reached(&handle).await;
        handle.change_namespace("kv", sets("ttl", "1h"), soon()).await.unwrap();
        assert_eq!(as_registered(&shows(&mut server.handle().views(), "the member", has(1)).await), [member]);
    });
}

fn copy_of(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

#[test]
fn an_etcd_that_was_restored_from_a_backup_is_not_gone_by_until_it_has_what_was_heard() {
    with_etcd(async |mut server| {
        let handle = server.handle();
        let member = join(&handle, 1).await;
        shows(&mut handle.views(), "itself", has(1)).await;
        let place = |name: &str| server.data.path().join(name);
        let (data, old, latest) = (place("etcd"), place("old"), place("latest"));
        server.stop();
        copy_of(&data, &old);
        server.start_again();
        for number in 0..20 {
            let attribute = format!("a{number}");
            handle.change_namespace("kv", sets(&attribute, "1"), soon()).await.unwrap();
        }
        let has_all = |seen: &Namespaces| seen.records["kv"].policy.len() == 20;
        shows(&mut handle.namespaces(), "the changes", |seen| {
            seen.records.contains_key("kv") && has_all(seen)
        })
        .await;
        server.stop();
        std::fs::rename(&data, &latest).unwrap();
        std::fs::rename(&old, &data).unwrap();
        server.start_again();
        let reason = refused(&handle).await;
        assert!(reason.contains("--bump-revision") && reason.contains("restart the daemons"), "{reason}");
        assert!(has_all(&handle.namespaces().borrow()), "what was heard stands");
        server.stop();
        std::fs::remove_dir_all(&data).unwrap();
        std::fs::rename(&latest, &data).unwrap();
        server.start_again();
        reached(&handle).await;
        assert_eq!(as_registered(&shows(&mut handle.views(), "itself", has(1)).await), [member]);
    });
}

#[test]
fn an_etcd_that_was_restored_is_not_gone_by_when_it_has_passed_what_was_heard() {
    with_etcd(async |mut server| {
        let handle = server.handle();
        let member = join(&handle, 1).await;
        shows(&mut handle.views(), "itself", has(1)).await;
        let place = |name: &str| server.data.path().join(name);
        let (data, old) = (place("etcd"), place("old"));
        server.stop();
        copy_of(&data, &old);
        server.start_again();
        handle.register(member, soon()).await.unwrap();
        handle.change_namespace("kv", sets("quota", "1GiB"), soon()).await.unwrap();
        let has_change = |seen: &Namespaces| seen.records.contains_key("kv");
        shows(&mut handle.namespaces(), "the change", has_change).await;
        let view = shows(&mut handle.views(), "itself", has(1)).await;
        server.stop();
        std::fs::remove_dir_all(&data).unwrap();
        std::fs::rename(&old, &data).unwrap();
        server.start_again();
        // More changes than were lost: the end of a lease is one, too.
        let other = server.handle();
        let mut connected = other.connected("a test", soon()).await.unwrap();
        for number in 0..20 {
            connected.client.put("/tidefs/test/odd", number.to_string(), None).await.unwrap();
        }
        let passed = |now: &Reachability| format!("{now:?}").contains("lost changes");
        let now = shows(&mut handle.shared.reachability.subscribe(), "refused", passed).await;
        assert!(format!("{now:?}").contains("--bump-revision"), "{now:?}");
        assert!(has_change(&handle.namespaces().borrow()), "what was heard stands");
        assert_eq!(*handle.views().borrow(), view);
    });
}

#[test]
fn a_start_that_etcd_has_forgotten_is_noted_again() {
    with_etcd(async |mut server| {
        let handle = server.handle();
        let member = join(&handle, 1).await;
        let mut connected = handle.connected("a test", soon()).await.unwrap();
        connected.client.delete(handle.shared.keys.start(MemberId(1)), None).await.unwrap();
        server.stop();
        server.start_again();
        let again = handle.register(member.clone(), soon()).await;
        again.expect("it is the latest");
        let next = server.handle().begin(MemberId(1), soon()).await.unwrap();
        assert!(next.incarnation > member.incarnation);
    });
}
