//! A cluster while it is upgraded: one member speaks the version before, and refuses what is of a newer one.

use tidefs_engine::types::MemberId;

use super::host::{Host, Seen};
use super::members::{config, runtime, settled, soon, start, until, wall};
use crate::cluster::catalog::wire::{OLDEST, VERSION};
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::*;

const OLD: ProtocolRange = ProtocolRange { oldest: OLDEST as u16, newest: OLDEST as u16 };

async fn cluster(protocols: [ProtocolRange; 3]) -> Vec<Host> {
    let coordinator = Embedded::new(ClusterId(7));
    let mut hosts = Vec::new();
    for (id, protocol) in (1..).zip(protocols) {
        hosts.push(start(&coordinator, ClusterConfig { protocol, ..config(id) }).await);
    }
    settled(&hosts).await;
    hosts
}

#[test]
fn members_of_two_neighbouring_versions_are_one_namespace() {
    runtime().block_on(async {
        let hosts = cluster([OLD, ProtocolRange::OURS, ProtocolRange::OURS]).await;
        for number in 0..60 {
            let name = format!("kv/{number}");
            for host in &hosts {
                assert!(matches!(host.look_up(&name, soon()).await, Seen::Absent), "{name}");
            }
            hosts[number % 3].write(&name, name.as_bytes(), wall(), soon()).await.unwrap();
            for host in &hosts {
                assert_eq!(host.read_and_keep(&name, soon()).await.as_deref(), Some(name.as_bytes()));
            }
            hosts[(number + 1) % 3].unlink(&name, wall(), soon()).await.unwrap();
            for host in &hosts {
                assert_eq!(host.read(&name, soon()).await, None, "{name}");
            }
        }
    });
}

#[test]
fn copies_are_made_among_those_that_know_of_them() {
    runtime().block_on(async {
        let hosts = cluster([OLD, ProtocolRange::OURS, ProtocolRange::OURS]).await;
        let kept = |host: &Host| host.memory.state.lock().objects.len();
        for number in 0..20 {
            let name = format!("kv/{number}");
            hosts[1].write_copies(&name, name.as_bytes(), wall(), 2, soon()).await.unwrap();
        }
        until("all copies are made", || kept(&hosts[2]) == 20).await;
        assert_eq!(kept(&hosts[0]), 0);
    });
}

#[test]
fn what_the_older_of_two_does_not_know_is_refused_in_words() {
    runtime().block_on(async {
        let hosts = cluster([OLD, ProtocolRange::OURS, ProtocolRange::OURS]).await;
        let drained = hosts[1].cluster.drain(MemberId(1), DrainOrder::Ask).await;
        let text = drained.unwrap_err().to_string();
        assert!(
            text.contains("a Drain is known from version 2 on, the other member speaks version 1"),
            "{text}"
        );
        assert!(hosts[1].cluster.drain(MemberId(3), DrainOrder::Ask).await.is_ok());
    });
}

#[test]
fn a_member_that_shares_no_version_is_told_nothing_and_hurts_nobody() {
    let newest = u16::from(VERSION) + 2;
    let strange = ProtocolRange { oldest: newest - 1, newest };
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let hosts = [start(&coordinator, config(1)).await, start(&coordinator, config(2)).await];
        settled(&hosts).await;
        let _strange = start(&coordinator, ClusterConfig { protocol: strange, ..config(3) }).await;
        until("all are seen", || hosts.iter().all(|host| host.cluster.status().members.len() == 3)).await;
        let error = hosts[0].cluster.drain(MemberId(3), DrainOrder::Ask).await.unwrap_err().to_string();
        assert!(error.contains("protocol versions 3 to 4, this engine 1 to 2"), "{error}");
    });
}
