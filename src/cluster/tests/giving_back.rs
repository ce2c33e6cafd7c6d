//! In which order things leave a member that reads what another one lends: in virtual time, with all that is sent recorded.

use std::time::Duration;

use tidefs_engine::link::Channel;
use tokio::time::sleep;

use super::gone::{in_virtual_time, start};
use super::members::{name_served, settled};
use super::network::Network;
use crate::cluster::catalog::wire::{CHANGE, Change, Changes, Message, RELEASE, Release};
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::*;

/// The versions that a message says are held, and the loans that it gives back.
fn read(channel: Channel, body: &[u8]) -> (Vec<u64>, Vec<u64>) {
    let held = |change: &Change| match change {
        Change::Hold { stamp, .. } => Some(stamp.0),
        _ => None,
    };
    match channel {
        CHANGE => (Changes::decode(body).unwrap().changes.iter().filter_map(held).collect(), Vec::new()),
        RELEASE => (Vec::new(), Release::decode(body).unwrap().loans),
        _ => (Vec::new(), Vec::new()),
    }
}

#[test]
fn loans_are_gathered_and_given_back_after_the_catalog_was_told_of_the_copies() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(1), Embedded::new(ClusterId(7)));
        let hosts = [start(1, &network, &coordinator).await, start(2, &network, &coordinator).await];
        settled(&hosts).await;
        let [lender, reader] = &hosts;
        let name = name_served(&hosts, |owners| owners.primary == lender.cluster.me());
        network.record();
        let loans: Vec<u64> = (1..=30).collect();
        // So that some end while others are gathered, and while others leave.
        for &loan in &loans {
            reader.cluster.hold(name.as_bytes(), Stamp(loan), Medium::Soft);
            reader.cluster.core.give_back(lender.cluster.core.me, loan);
            if loan % 2 == 0 {
                sleep(Duration::from_millis(1)).await;
            }
        }
        sleep(Duration::from_millis(20)).await;
        let sent = network.sent_by(reader.cluster.core.me);
        let messages: Vec<(Vec<u64>, Vec<u64>)> =
            sent.iter().map(|(channel, body)| read(*channel, body)).collect();
        let mut given_back: Vec<u64> = messages.iter().flat_map(|(_, loans)| loans.clone()).collect();
        given_back.sort_unstable();
        assert_eq!(given_back, loans);
        assert!(messages.iter().filter(|(_, loans)| !loans.is_empty()).count() < loans.len() / 2);
        for loan in loans {
            let told = messages.iter().position(|(held, _)| held.contains(&loan));
            let back = messages.iter().position(|(_, loans)| loans.contains(&loan));
            assert!(told.is_some() && told < back, "loan {loan}: told {told:?}, given back {back:?}");
        }
    });
}
