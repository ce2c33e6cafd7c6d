//! Many hosts, one namespace: who takes part, what they agreed on, and who is responsible for which key.
//!
//! What must agree and changes rarely is held by etcd, by one of the members, or by the daemon itself when it is alone. Who is
//! responsible for a key follows from the members alone ([`shards`], [`rendezvous`]), so nothing is agreed per key.
//!
//! A daemon alone uses none of it.

mod agreeing;
mod announcing;
mod asking;
mod batcher;
mod carrier;
pub mod catalog;
mod changing;
pub mod coordinator;
mod copying;
mod core;
mod deciding;
mod drain_file;
mod draining;
mod error;
mod fetching;
mod giving_back;
mod gone;
mod joining;
mod leaving;
mod lending;
mod letting_go;
mod listing;
pub mod member;
mod moving;
pub mod node;
pub mod object;
mod parting;
mod peers;
mod probing;
mod publishing;
mod pulling;
mod ranking;
mod recalling;
mod removals_file;
mod removing;
pub mod rendezvous;
mod repairing;
mod replicating;
mod revoking;
pub mod settings;
pub mod shards;
mod short;
mod speaking;
pub mod status;
mod told_again;
mod viewing;
mod watching;

pub use agreeing::Unapplied;
pub use catalog::wire::{DrainOrder, DrainPhase, DrainReport, PATH_MAX, is_told_of};
pub use copying::Wish;
pub use error::ClusterError;
pub use fetching::{Arrival, Fetch, Fetched, Whole};
pub use member::{ClusterId, Member, ProtocolRange, View};
pub use node::{Cluster, Published, Wanted};
pub use object::{
    Copy, DirectoryFacts, Facts, FileFacts, Found, Holder, Holding, Lent, LentBytes, ListedName, Listing,
    Medium, REPLICAS_MAX, Stamp, Unkept, Unlent,
};
pub use publishing::PublishGuard;
pub use pulling::{Purpose, SharedPurpose};
pub(crate) use removals_file::keep_untold;
pub use settings::{ClusterConfig, Limits, Timings};
pub use status::{ClusterStatus, Counters, LinkState, MemberStatus};

#[cfg(test)]
mod tests;
