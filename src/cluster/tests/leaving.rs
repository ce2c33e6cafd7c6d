//! The last step of a drain, over real sockets: the member leaves with nothing that only it holds, or it stays.

use std::time::Duration;

use super::members::{config, in_a_cluster_of, name_served, settled, soon, start_with, until, wall};
use crate::cluster::{DrainOrder, DrainPhase};

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
