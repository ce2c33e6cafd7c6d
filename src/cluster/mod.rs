//! Many hosts, one namespace: who takes part, what they agreed on, and who is responsible for which key.
//!
//! What must agree and changes rarely is held by etcd, by one of the members, or by the daemon itself when it is alone. Who is
//! responsible for a key follows from the members alone ([`shards`], [`rendezvous`]), so nothing is agreed per key.
//!
//! Threads: any may call a [`Cluster`]; what members do for each other runs on the runtime that it was started with. The order of
//! locks is said in `core`.
//!
//! A daemon alone uses none of it.

// What others see of it: members, facts of objects, what can be asked and set.
mod error;
pub mod member;
pub mod node;
pub mod object;
pub mod settings;
pub mod status;

// What is agreed on, and who is responsible for a key by that alone.
mod agreeing;
pub mod coordinator;
pub mod rendezvous;
pub mod shards;

// This member, how it joins, and how it follows the others while they come and go.
mod core;
mod gone;
mod joining;
mod peers;
mod probing;
mod viewing;
mod watching;

// How messages travel: gathered, and in the version that both ends know.
mod batcher;
mod carrier;
mod speaking;

// Finding names, and reading what another member lends.
mod asking;
mod fetching;
mod giving_back;
mod lending;
mod listing;
mod pulling;
mod ranking;

// Telling: what is published and let go of, who decides about it, and who must hear.
mod announcing;
pub mod catalog;
mod changing;
mod deciding;
mod letting_go;
mod moving;
mod publishing;
mod replicating;
mod revoking;
mod told_again;

// Removals, until everybody who serves their keys knows them.
mod recalling;
mod removals_file;
mod removing;

// Copies on other members: made when an object is sealed, and again when some are lost.
mod copying;
mod repairing;
mod short;

// Draining: leaving with nothing lost.
mod drain_file;
mod draining;
mod leaving;
mod parting;

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
pub use removing::Removal;
pub use settings::{ClusterConfig, Limits, Timings};
pub use status::{ClusterStatus, Counters, LinkState, MemberStatus};

#[cfg(test)]
mod tests;
