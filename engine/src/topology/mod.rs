//! Which processors, memory and NICs of this host are near each other, as the kernel tells in sysfs.
//!
//! Invariants
//! - What sysfs does not say, or says in a form that is not understood, is `None` or left out, never an error: containers
//!   see parts of it, and a transfer is right without it, only slower.
//! - All is read once, below a root that is passed in; nothing is written.

mod nic;
mod pinning;
mod sysfs;

use std::path::Path;

use serde::Serialize;

use crate::types::{ByteCount, NumaNode};

pub use nic::{Nic, NicKind, links_of_pci, node_of_pci};
pub use pinning::{nodes_of_nics, processors_beside, stay_on};

/// The distance of a node to itself, by the convention of ACPI that the kernel follows.
pub const DISTANCE_LOCAL: u32 = 10;

/// Where the kernel tells of devices and nodes.
pub const SYSFS: &str = "/sys";

/// Memory and the processors beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number.
    pub id: NumaNode,
    /// Processors, by number; none for a node that is memory only.
    pub cpus: Vec<u32>,
    /// Memory of the node.
    pub memory: Option<ByteCount>,
    /// Distance to each node, [`DISTANCE_LOCAL`] to itself; larger is farther.
    pub distances: Vec<(NumaNode, u32)>,
}

/// What is known of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Topology {
    /// NUMA nodes by number. Empty where the kernel tells of none.
    pub nodes: Vec<Node>,
    /// NICs by name, without the loopback.
    pub nics: Vec<Nic>,
}

impl Topology {
    /// What sysfs tells of this host.
    #[must_use]
    pub fn of_this_host() -> Self {
        Self::read(Path::new(SYSFS))
    }

    /// Reads what sysfs tells below `root`, which is [`SYSFS`] but in tests.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        Self { nodes: sysfs::nodes(root), nics: nic::read_all(root) }
    }

    /// How far `nic` is from memory of `node`, [`DISTANCE_LOCAL`] when it hangs on it. `None` where that is not known.
    #[must_use]
    pub fn distance(&self, nic: &Nic, node: NumaNode) -> Option<u32> {
        self.between(nic.numa?, node)
    }

    /// How far memory of `to` is from what hangs on `from`. `None` where that is not known.
    #[must_use]
    pub fn between(&self, from: NumaNode, to: NumaNode) -> Option<u32> {
        let known = self.nodes.iter().find(|known| known.id == from);
        let known = known.and_then(|known| known.distances.iter().find(|(node, _)| *node == to));
        known.map(|(_, distance)| *distance).or_else(|| (from == to).then_some(DISTANCE_LOCAL))
    }

    /// The NICs, the best one for memory of `node` first: those that are not down, then the nearest, then the fastest.
    /// What is not known comes after what is.
    #[must_use]
    pub fn ranked(&self, node: Option<NumaNode>) -> Vec<&Nic> {
        let mut nics: Vec<&Nic> = self.nics.iter().collect();
        nics.sort_by_key(|nic| {
            let distance = node.and_then(|node| self.distance(nic, node)).unwrap_or(u32::MAX);
            let rate = nic.bytes_per_second.unwrap_or(0);
            (nic.is_up == Some(false), distance, std::cmp::Reverse(rate), nic.name.clone())
        });
        nics
    }
}

#[cfg(test)]
mod tests;
