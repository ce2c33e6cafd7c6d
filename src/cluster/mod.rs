//! Many hosts, one namespace: who takes part, what they agreed on, and who is responsible for which key.
//!
//! What must agree and changes rarely is held by etcd, or by the daemon itself when it is alone. Who is
//! responsible for a key follows from the members alone ([`shards`], [`rendezvous`]), so nothing is agreed per key.
//!
//! The daemon of one host does not use it yet.

pub mod catalog;
pub mod coordinator;
mod error;
pub mod member;
pub mod node;
pub mod object;
pub mod rendezvous;
pub mod settings;
pub mod shards;
pub mod status;

pub use error::ClusterError;
pub use member::{ClusterId, Member, ProtocolRange, View};
pub use node::{AskedAt, Cluster, Published, Wanted};
pub use object::{
    Copy, DirectoryFacts, Facts, FileFacts, Found, Holder, Holding, Lent, LentBytes, ListedName, Medium,
    Stamp,
};
pub use settings::{ClusterConfig, Limits, Timings};
pub use status::{ClusterStatus, Counters, LinkState, MemberStatus};
