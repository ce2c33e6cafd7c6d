//! The last step of a drain, over real sockets: the member leaves with nothing that only it holds, or it stays.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::deaf::Deaf;
use super::host::Host;
use super::members::{
    config, in_a_cluster_of, name_served, runtime, settled, soon, start, start_with, until, wall,
};
use super::memory::{Memory, Object};
use super::unregistered::three;
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::coordinator::{Coordinator, CoordinatorError};
use crate::cluster::{Cluster, ClusterConfig, ClusterError, ClusterId, DrainOrder, DrainPhase, Holder};

/// For as long a drain is given to come to the point where it waits.
const MOMENT: Duration = Duration::from_secs(1);

#[test]
fn what_is_written_while_a_drained_member_waits_to_leave_is_held_by_others_when_it_has_left() {
    in_a_cluster_of(3, |coordinator, mut hosts| async move {
        let (first, second, third) = (hosts[0].cluster.me(), hosts[1].cluster.me(), hosts[2].cluster.me());
        hosts[2].cluster.close().await;
        until("it is missed", || hosts[0].cluster.core.is_suspect(third)).await;
        hosts[1].cluster.drain(first, DrainOrder::Begin { within_ms: None }).await.unwrap();
        tokio::time::sleep(MOMENT).await;
        // It has walked through all that it held, which was nothing.
        assert_eq!(hosts[0].cluster.status().drain.phase, DrainPhase::Copying);
        let name = name_served(&hosts, |owners| owners.primary == second && owners.backup == Some(first));
        hosts[0].write(&name, b"late", wall(), soon()).await.unwrap();
        let killed = hosts.pop().unwrap();
        hosts.push(start_with(&coordinator, config(3), killed.memory).await);
        until("it has left", || hosts[0].cluster.status().drain.phase == DrainPhase::Left).await;
        settled(&hosts[1..]).await;
        hosts[0].cluster.close().await;
        for host in &hosts[1..] {
            assert_eq!(host.read(&name, soon()).await.as_deref(), Some(&b"late"[..]));
        }
    });
}

#[test]
fn what_a_drained_member_could_not_publish_is_held_by_others_when_it_has_left_though_they_had_an_earlier_version()
 {
    in_a_cluster_of(3, |_, hosts| async move {
        let first = hosts[0].cluster.me();
        for number in 0..20 {
            let name = format!("kv/{number}");
            hosts[1].write(&name, b"earlier", wall(), soon()).await.unwrap();
            let bytes = b"the latest"[..].into();
            let latest = Object { stamp: wall(), bytes, is_directory: false, is_soft: false, replicas: 1 };
            hosts[0].memory.state.lock().objects.insert(name.into_bytes(), latest);
        }
        hosts[1].cluster.drain(first, DrainOrder::Begin { within_ms: None }).await.unwrap();
        until("it has left", || hosts[0].cluster.status().drain.phase == DrainPhase::Left).await;
        hosts[0].cluster.close().await;
        for host in &hosts[1..] {
            for number in 0..20 {
                let read = host.read(&format!("kv/{number}"), soon()).await;
                assert_eq!(read.as_deref(), Some(&b"the latest"[..]), "{number}");
            }
        }
    });
}

#[test]
fn a_member_that_is_written_to_without_end_leaves_all_the_same() {
    in_a_cluster_of(3, |_, hosts| async move {
        let (first, held) = (hosts[0].cluster.me(), 400_u64);
        let name = |number: u64| format!("kv/{number}");
        for number in 0..held {
            hosts[0].write(&name(number), b"before", wall(), soon()).await.unwrap();
        }
        hosts[1].cluster.drain(first, DrainOrder::Begin { within_ms: None }).await.unwrap();
        let mut written = held;
        let write = async {
            // Until it is refused.
            while hosts[0].write(&name(written), b"meanwhile", wall(), soon()).await.is_ok() {
                written += 1;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let has_left = || hosts[0].cluster.status().drain.phase == DrainPhase::Left;
        tokio::select! {
            () = until("it has left", has_left) => {}
            () = write => {}
        }
        until("it has left", has_left).await;
        settled(&hosts[1..]).await;
        hosts[0].cluster.close().await;
        for number in 0..written {
            let read = hosts[1].read(&name(number), soon()).await;
            let bytes = if number < held { &b"before"[..] } else { b"meanwhile" };
            assert_eq!(read.as_deref(), Some(bytes), "{number}");
        }
    });
}

#[test]
fn a_drain_that_is_found_by_a_start_after_its_time_leaves_the_member_where_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("drain.json");
    std::fs::write(&file, br#"{"until_ms":1}"#).unwrap();
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let other = start(&coordinator, config(2)).await;
        // It holds nothing, which takes no time.
        let overdue = ClusterConfig { drain_file: Some(file.clone()), ..config(1) };
        let hosts = [start(&coordinator, overdue).await, other];
        until("the drain has ended", || !file.exists()).await;
        assert_eq!(hosts[0].cluster.status().drain.phase, DrainPhase::Late);
        settled(&hosts).await;
        assert!(hosts.iter().all(|host| host.cluster.core.seen().view.members().len() == 2));
    });
}

#[test]
fn who_looks_at_a_drain_whose_file_is_on_a_slow_disk_waits_for_nothing() {
    in_a_cluster_of(2, |_, hosts| async move {
        let first = hosts[0].cluster.me();
        let slow = hosts[0].cluster.core.draining.keeping.lock().await;
        let begins = hosts[0].cluster.drain(first, DrainOrder::Begin { within_ms: None });
        tokio::pin!(begins);
        let early = tokio::time::timeout(Duration::from_millis(100), &mut begins).await;
        assert!(early.is_err(), "it has begun before the file says so");
        assert_eq!(hosts[0].cluster.status().drain.phase, DrainPhase::Idle);
        let asked = hosts[1].cluster.drain(first, DrainOrder::Ask).await.unwrap();
        assert_eq!(asked.phase, DrainPhase::Idle);
        hosts[0].write("kv/a", b"bytes", wall(), soon()).await.unwrap();
        drop(slow);
        begins.await.unwrap();
        until("it has left", || hosts[0].cluster.status().drain.phase == DrainPhase::Left).await;
    });
}

/// A host is told to drain, and to stop while that is still to be written to its file.
async fn stopped_before_it_is_kept(host: &Host) {
    let (core, member) = (&host.cluster.core, host.cluster.me());
    let slow = core.draining.keeping.lock().await;
    let begins = core.drain(member, DrainOrder::Begin { within_ms: None });
    tokio::pin!(begins);
    let early = tokio::time::timeout(Duration::from_millis(20), &mut begins).await;
    assert!(early.is_err(), "it has begun before the file says so");
    core.drain(member, DrainOrder::Stop).await.unwrap();
    drop(slow);
    begins.await.unwrap();
}

#[test]
fn a_drain_that_is_stopped_before_its_file_is_written_does_not_begin() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("drain.json");
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let keeps = ClusterConfig { drain_file: Some(file.clone()), ..config(1) };
        let hosts = [start(&coordinator, keeps).await, start(&coordinator, config(2)).await];
        settled(&hosts).await;
        stopped_before_it_is_kept(&hosts[0]).await;
        assert_eq!(hosts[0].cluster.status().drain.phase, DrainPhase::Idle);
        assert!(!file.exists(), "its next start would drain");
    });
}

#[test]
fn a_drain_that_is_stopped_before_another_time_for_it_is_written_ends() {
    in_a_cluster_of(3, |_, hosts| async move {
        let (first, third) = (hosts[0].cluster.me(), hosts[2].cluster.me());
        // Without which it cannot leave.
        hosts[2].cluster.close().await;
        until("it is missed", || hosts[0].cluster.core.is_suspect(third)).await;
        hosts[0].cluster.drain(first, DrainOrder::Begin { within_ms: None }).await.unwrap();
        stopped_before_it_is_kept(&hosts[0]).await;
        until("it has ended", || hosts[0].cluster.status().drain.phase == DrainPhase::Late).await;
    });
}

/// A member drains while the coordinator does not answer: it has no time, or is told to stop when it has asked to leave.
fn stays_though_it_asked_to_leave(within_ms: Option<u64>) {
    runtime().block_on(async {
        let (coordinator, deaf, hosts) = three(Duration::from_secs(60)).await;
        let first = hosts[0].cluster.me();
        deaf[0].go_away();
        hosts[1].cluster.drain(first, DrainOrder::Begin { within_ms }).await.unwrap();
        if within_ms.is_none() {
            until("it has asked to leave", || deaf[0].was_asked_to_leave()).await;
            hosts[1].cluster.drain(first, DrainOrder::Stop).await.unwrap();
        }
        let phase = || hosts[0].cluster.status().drain.phase;
        until("the drain has ended", || phase() != DrainPhase::Copying).await;
        assert_eq!(phase(), DrainPhase::Late);
        deaf[0].come_back(soon()).await;
        // Nobody has lost it, nor does who joins now miss it.
        assert!(coordinator.views().borrow().member(first).is_some());
        settled(&hosts).await;
        assert!(hosts.iter().all(|host| host.cluster.core.seen().view.members().len() == 3));
        hosts[1].cluster.drain(first, DrainOrder::Begin { within_ms: None }).await.unwrap();
        until("it leaves when it is to", || phase() == DrainPhase::Left).await;
        assert!(coordinator.views().borrow().member(first).is_none());
    });
}

#[test]
fn a_drain_that_ends_late_while_the_coordinator_is_away_leaves_the_member_registered() {
    stays_though_it_asked_to_leave(Some(2000));
}

#[test]
fn a_drain_that_is_stopped_while_the_coordinator_is_away_leaves_the_member_registered() {
    stays_though_it_asked_to_leave(None);
}

/// Starts a member that `coordinator` does not let in. Returns why.
async fn start_in_vain(coordinator: &Arc<Deaf>) -> ClusterError {
    let memory = Arc::new(Memory::default());
    let holder: Weak<dyn Holder> = Arc::<Memory>::downgrade(&memory);
    let asked = Arc::clone(coordinator) as Arc<dyn Coordinator>;
    Cluster::start(config(1), Handle::current(), asked, holder).await.unwrap_err()
}

#[test]
fn a_start_that_was_not_let_in_is_not_registered_when_the_coordinator_is_back() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let away = Deaf::new(coordinator.another());
        away.go_away();
        start_in_vain(&away).await;
        away.come_back(soon()).await;
        let view = coordinator.views().borrow().clone();
        assert!(view.members().is_empty(), "nobody is there: {view:?}");
    });
}

/// Else it would count as one that the coordinator answers, and not as one that it refuses.
#[test]
fn a_start_that_another_process_superseded_takes_no_registration_back() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let own = Deaf::new(coordinator.another());
        own.meet_rival();
        let refused = start_in_vain(&own).await;
        let is_superseded = matches!(refused, ClusterError::Coordinator(CoordinatorError::Superseded { .. }));
        assert!(is_superseded, "{refused}");
        assert_eq!(own.leaves(), 0);
    });
}
