//! The connection between two engines that have proved themselves to each other: messages, and streams for transports.
//!
//! One listener takes everything. A connection says nothing of this engine before the other end has proved that it
//! belongs to the cluster (see `handshake`), and then becomes a [`Link`], for requests, answers and notifications of
//! both ends, or a stream of bytes for a transport that granted a token for it.
//!
//! Invariants
//! - There is at most one link to a peer, and a peer is one incarnation: one that is found in the place of another is
//!   [`crate::error::Error::PeerGone`].
//! - [`LinkEvents::connected`] and [`LinkEvents::disconnected`] alternate for each peer.
//! - Whatever a peer sends costs it its connection at worst, as does a panic of what handles it.
//!
//! Limits: connections that have proved nothing ([`LinkConfig::unproven_max`], each for [`LinkConfig::proof_timeout`]; when all
//! places are taken the oldest goes after a fifth of it, also where nobody waits yet, and the others one by one), the length of
//! messages, calls and bytes that wait, and silence.
//!
//! Threads: one task for each link on the given runtime, one for each listener, and one that asks silent peers.

// How a connection begins: made or taken, and proved.
mod accept;
mod dial;
mod greet;
mod handshake;
mod unproven;

// Links, one to each peer, and what they tell their owner.
mod caught;
mod config;
mod connection;
mod drive;
mod events;
mod links;

// Bytes: frames on their way through a socket, encrypted or not.
mod frame;
mod inbox;
mod outbox;
mod socket;
mod stream;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls_absent.rs"]
mod tls;

// The parsers, for fuzzing.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;

pub use config::{ClusterKey, LinkConfig, TlsConfig};
pub use connection::Link;
pub use events::{Answer, Channel, LinkEvents};
pub use handshake::BootId;
pub use links::Links;

pub(crate) use handshake::{Token, fill_random};
pub(crate) use links::Adopter;
pub(crate) use stream::{DataStream, Stream};
