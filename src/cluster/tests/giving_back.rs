//! In which order things leave a member that reads what another one lends: in virtual time, with all that is sent recorded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::engine::PeerDescriptor;
use tidefs_engine::error::Error;
use tidefs_engine::link::Channel;
use tidefs_engine::types::{BoxFuture, PeerId};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::host::Host;
use super::members::{config, name_served, settled};
use super::memory::Memory;
use super::network::{End, Network};
use crate::cluster::carrier::Carrier;
use crate::cluster::catalog::wire::{CHANGE, Change, Changes, Message, RELEASE, Release};
use crate::cluster::coordinator::Coordinator;
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::core::{Core, Ingredients};
use crate::cluster::*;

type Sent = Arc<Mutex<Vec<(Channel, Vec<u8>)>>>;

/// An end of the network that records what is sent.
#[derive(Debug)]
struct Recorder {
    end: End,
    sent: Sent,
}

impl Carrier for Recorder {
    fn call(
        &self,
        peer: PeerId,
        channel: Channel,
        body: Vec<u8>,
        deadline: Instant,
    ) -> BoxFuture<'static, Result<Vec<u8>, Error>> {
        self.sent.lock().push((channel, body.clone()));
        self.end.call(peer, channel, body, deadline)
    }

    fn notify(&self, peer: PeerId, channel: Channel, body: Vec<u8>) {
        self.sent.lock().push((channel, body.clone()));
        self.end.notify(peer, channel, body);
    }

    fn connect(&self, peer: PeerDescriptor, deadline: Instant) -> BoxFuture<'static, Result<(), Error>> {
        self.end.connect(peer, deadline)
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        self.end.close()
    }
}

async fn start(coordinator: &Embedded, network: &Arc<Network>, id: u64) -> (Host, Sent) {
    let (config, coordinator) = (config(id), Arc::new(coordinator.another()));
    let deadline = tokio::time::Instant::now().into_std() + Duration::from_secs(10);
    let begun = coordinator.begin(config.member, deadline).await.unwrap();
    let me = PeerId { member: config.member, incarnation: begun.incarnation };
    let (memory, sent) = (Arc::new(Memory::default()), Sent::default());
    let holder: std::sync::Weak<dyn Holder> = Arc::<Memory>::downgrade(&memory);
    let end = End { me, network: Arc::clone(network) };
    let core = Core::new(Ingredients {
        me,
        cluster: begun.cluster,
        config,
        runtime: Handle::current(),
        coordinator,
        holder,
        carrier: Arc::new(Recorder { end, sent: Arc::clone(&sent) }),
        engine: None,
    });
    network.add(&core);
    let addresses = vec![([127, 0, 0, 1], 1).into()];
    let descriptor = PeerDescriptor { id: me, addresses, transports: Vec::new() };
    let cluster = Cluster::join(core, descriptor, deadline).await.unwrap();
    memory.belongs_to(&cluster);
    (Host { cluster, memory }, sent)
}

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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(async {
        let (coordinator, network) = (Embedded::new(ClusterId(7)), Network::new(1));
        let (lender, _) = start(&coordinator, &network, 1).await;
        let (reader, sent) = start(&coordinator, &network, 2).await;
        let hosts = [lender, reader];
        settled(&hosts).await;
        let [lender, reader] = &hosts;
        let name = name_served(&hosts, |owners| owners.primary == lender.cluster.me());
        sent.lock().clear();
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
        let messages: Vec<(Vec<u64>, Vec<u64>)> =
            sent.lock().iter().map(|(channel, body)| read(*channel, body)).collect();
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
