//! Copies that leave first, and the one that is left, over real sockets.

use super::host::{Host, Seen};
use super::members::{in_a_cluster_of, soon, until, wall};
use crate::cluster::Medium;

async fn mediums(host: &Host, path: &str) -> Vec<Medium> {
    match host.look_up(path, soon()).await {
        Seen::Elsewhere(_, copies, _) => copies.into_iter().map(|copy| copy.medium).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_last_copy_that_leaves_first_counts_when_the_others_are_let_go_of() {
    in_a_cluster_of(3, |_, hosts| async move {
        for number in 0..20 {
            let name = format!("kv/{number}");
            hosts[0].write(&name, b"bytes", wall(), soon()).await.unwrap();
            assert!(hosts[1].read_and_keep(&name, soon()).await.is_some());
            while mediums(&hosts[2], &name).await.len() < 2 {}
            assert_eq!(mediums(&hosts[2], &name).await, [Medium::Memory, Medium::Soft]);
            hosts[0].evict(&name);
            while mediums(&hosts[2], &name).await != [Medium::Memory] {}
            assert!(!hosts[1].memory.state.lock().objects[name.as_bytes()].is_soft);
        }
        assert_eq!(hosts[1].cluster.counters().inherited.get(), 20);
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
        let soft = || hosts[1].memory.state.lock().objects.values().filter(|object| object.is_soft).count();
        assert_eq!(soft(), 200);
        hosts[0].cluster.leave(soon()).await.unwrap();
        hosts[0].cluster.close().await;
        until("all copies count", || soft() == 0).await;
        for number in 0..200 {
            while mediums(&hosts[2], &format!("kv/{number}")).await != [Medium::Memory] {}
        }
    });
}
