//! The engine's state as data, for people and for plans.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Engine;
use crate::metrics::MetricsSnapshot;
use crate::queue::lane::RailStatus;
use crate::transport::{Transport, ZeroCopyStatus};
use crate::types::PeerId;

/// One transport's way to a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WayStatus {
    /// Name of the transport.
    pub transport: String,
    /// `ready`, `not connected`, `failed: …`, in words.
    pub state: String,
    /// Its rails while it is connected.
    pub rails: Vec<RailStatus>,
    /// How its connections send, those that the peer made included; `None` where there is no choice.
    pub zero_copy: Option<ZeroCopyStatus>,
}

/// One peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its member id and incarnation.
    pub peer: String,
    /// Whether its link stands.
    pub is_linked: bool,
    /// Regions of it that are known here.
    pub regions: usize,
    /// A way for each transport of this engine, the best first.
    pub ways: Vec<WayStatus>,
}

/// The whole engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineStatus {
    /// Member id and incarnation of this process.
    pub me: String,
    /// Where it listens.
    pub addresses: Vec<String>,
    /// Registered regions.
    pub regions: usize,
    /// Slices under way or waiting.
    pub operations: usize,
    /// Counters.
    pub metrics: MetricsSnapshot,
    /// Peers that were seen, in the order of their ids.
    pub peers: Vec<PeerStatus>,
}

impl Engine {
    /// The engine's state now.
    #[must_use]
    pub fn status(&self) -> EngineStatus {
        let inner = &self.inner;
        let now = inner.now();
        let mut peers: Vec<_> = inner.peers.read().values().cloned().collect();
        peers.sort_unstable_by_key(|peer| peer.id);
        let way = |(transport, way): (&Arc<dyn Transport>, &super::peer::Way), peer: PeerId| WayStatus {
            transport: transport.name().to_owned(),
            state: way.describe(now),
            rails: way.lane().map(|lane| lane.rails()).unwrap_or_default(),
            zero_copy: transport.zero_copy(peer),
        };
        let peer = |peer: &Arc<super::peer::Peer>| PeerStatus {
            peer: peer.id.to_string(),
            is_linked: inner.links.link(peer.id).is_some(),
            regions: peer.regions_known(),
            ways: inner.transports.iter().zip(&peer.ways).map(|found| way(found, peer.id)).collect(),
        };
        EngineStatus {
            me: inner.config.me.to_string(),
            addresses: self.addresses().iter().map(ToString::to_string).collect(),
            regions: inner.regions.count(),
            operations: inner.operations.load(std::sync::atomic::Ordering::Relaxed),
            metrics: inner.metrics.snapshot(),
            peers: peers.iter().map(peer).collect(),
        }
    }
}
