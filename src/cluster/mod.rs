//! Many hosts, one namespace: who takes part, what they agreed on, and who is responsible for which key.
//!
//! What must agree and changes rarely is held by etcd, or by the daemon itself when it is alone. Who is
//! responsible for a key follows from the members alone ([`shards`], [`rendezvous`]), so nothing is agreed per key.
//!
//! The daemon of one host does not use it yet.

pub mod coordinator;
pub mod member;
pub mod object;
pub mod rendezvous;
pub mod shards;

pub use member::{ClusterId, Member, ProtocolRange, View};
pub use object::{
    Copy, DirectoryFacts, Facts, FileFacts, Found, Holder, Holding, Lent, LentBytes, ListedName, Medium,
    Stamp,
};
