//! What a connection between two engines may cost, and what it asks of the other end.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::tls::Encryption;
use crate::error::Error;
use crate::types::ByteCount;

/// The secret that all engines of a cluster share. Shows no byte of itself.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey(Vec<u8>);

impl ClusterKey {
    /// Takes the bytes as they are; 16 random ones or more keep it from being guessed.
    #[must_use]
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

/// Files of mutual TLS, all in PEM. Both ends show a certificate that the authority signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Certificates of the authorities that sign the engines of this cluster.
    pub authority: PathBuf,
    /// This engine's certificate, with those between it and the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The DNS name that every engine's certificate bears: peers are known by their id, not by their host.
    pub name: String,
}

impl TlsConfig {
    /// Reads the files and looks whether they can be used, and go together.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the file and what is wrong with it.
    pub fn check(&self) -> Result<(), Error> {
        Encryption::open(self).map(drop)
    }
}

/// How links are made and how long silence is borne.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Where to listen. Port 0 lets the kernel choose; [`super::Links::addresses`] says what it chose. A `[::]` takes
    /// IPv4 too, unless `0.0.0.0` with the same port, one that is not 0, is listed beside it or the host has no IPv6.
    pub listen: Vec<SocketAddr>,
    /// Where peers reach it, when that is not where it listens, as behind a forwarded port. A port of 0 stands for the first that is
    /// listened on.
    pub advertise: Vec<SocketAddr>,
    /// Engines of another cluster are strangers.
    pub cluster: String,
    /// Proof of belonging. Without one, whoever knows the cluster's name belongs to it.
    pub key: Option<ClusterKey>,
    /// Encryption. Without it, who can change packets on the network can change what is sent.
    pub tls: Option<TlsConfig>,
    /// Longest body of a message.
    pub message_bytes_max: ByteCount,
    /// Bytes that wait to be sent to one peer; beyond them, calls end with [`crate::error::Error::Busy`].
    pub queue_bytes_max: ByteCount,
    /// Calls to one peer that wait for their answers; beyond them, calls end with [`crate::error::Error::Busy`].
    pub calls_max: usize,
    /// Requests of one peer that are being answered [`super::Answer::Later`]; beyond them, the peer is told so.
    pub answers_max: usize,
    /// Time for a connection to be made and both ends to be proved.
    pub connect_timeout: Duration,
    /// Time in which an accepted connection has to prove itself: a fifth of it at least while as many as may be have
    /// proved nothing yet.
    pub proof_timeout: Duration,
    /// Accepted connections that have proved nothing yet; more wait in the kernel.
    pub unproven_max: usize,
    /// A peer that is not heard for so long is gone. It is asked at a third of that, when nothing else is sent.
    pub silence_max: Duration,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))],
            advertise: Vec::new(),
            cluster: "tidefs".to_owned(),
            key: None,
            tls: None,
            message_bytes_max: ByteCount::mib(4),
            queue_bytes_max: ByteCount::mib(16),
            calls_max: 1024,
            answers_max: 256,
            connect_timeout: Duration::from_secs(5),
            proof_timeout: Duration::from_secs(5),
            unproven_max: 256,
            silence_max: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_not_shown() {
        assert_eq!(format!("{:?}", ClusterKey::new(*b"very secret")), "ClusterKey(..)");
    }
}
