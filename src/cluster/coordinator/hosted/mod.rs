//! The coordinator that one of the members hosts, for a cluster without etcd.
//!
//! All members are told one address. The daemon that can listen there is the **keeper**: it has an
//! [`Embedded`](super::embedded::Embedded) and keeps it in a file. The others are **followers**: each holds one link to the
//! keeper, with the proofs and the encryption of all links of the cluster, asks by it, and is told by it all that is agreed
//! on. While the keeper is away it is with its followers as with etcd: what was heard last stands. A member whose link is lost
//! stays registered for [`HostedSettings::lease`].
//!
//! A daemon may start before the address of its host is up, or the name resolved. A follower that has not heard of any keeper
//! tries to listen there, too, before each attempt to reach one; when it can, it has a keeper beside it from then on, and follows
//! that. Who can listen at the address is one at any time, so there are not two.
//!
//! Limits: there is one keeper; when its host is lost nobody joins until it is back. Nothing elects another, which could not be
//! right with two halves of a cluster that do not see each other: that is what etcd is for.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use tidefs_engine::link::{ClusterKey, LinkConfig, TlsConfig};
use tidefs_engine::types::ByteCount;
use tokio::net::TcpSocket;
use tokio::runtime::Handle;

use super::Coordinator;
use super::namespaces::RECORDS_BYTES_MAX;
use crate::cluster::member::ClusterId;

mod file;
mod follower;
mod keeper;
#[cfg(test)]
mod tests;
mod wire;

use follower::Follower;
use keeper::Keeper;

/// All that is agreed on is one message.
const MESSAGE_BYTES_MAX: ByteCount = ByteCount::mib(64);
// The other half is for members: a few hundred bytes each.
const _: () = assert!(MESSAGE_BYTES_MAX.0 >= 2 * RECORDS_BYTES_MAX as u64);

/// Where members meet, and how.
#[derive(Clone, Debug)]
pub struct HostedSettings {
    /// `HOST:PORT` of the keeper.
    pub address: String,
    /// Name of the cluster.
    pub cluster: String,
    /// Proof of belonging to it.
    pub key: Option<ClusterKey>,
    /// Encryption.
    pub tls: Option<TlsConfig>,
    /// Where the keeper keeps what is agreed on.
    pub file: PathBuf,
    /// How long a member whose link is lost stays registered.
    pub lease: Duration,
    /// How long one attempt to reach the keeper may take, and a member may be silent.
    pub call_timeout: Duration,
}

/// Why there is no coordinator.
#[derive(Debug, Error)]
pub enum StartError {
    /// What is agreed on cannot be read: the cluster would be another one without it.
    #[error(
        "cannot read what the cluster agreed on from `{}`: {source}; restore the file, or remove it to begin a new cluster \
         and restart all members", .file.display()
    )]
    File {
        /// Which file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The address, or the certificates, cannot be used.
    #[error(
        "this daemon cannot take its part in cluster.coordinator={address}, which all members name alike: {source}"
    )]
    Listen {
        /// Where.
        address: String,
        /// Why.
        source: tidefs_engine::error::Error,
    },
}

impl HostedSettings {
    fn link(&self, listen: Vec<SocketAddr>) -> LinkConfig {
        LinkConfig {
            listen,
            // Not that of the members' own links: who is told one of their addresses is told what is wrong.
            cluster: format!("{} coordinator", self.cluster),
            key: self.key.clone(),
            tls: self.tls.clone(),
            message_bytes_max: MESSAGE_BYTES_MAX,
            queue_bytes_max: MESSAGE_BYTES_MAX.saturating_add(MESSAGE_BYTES_MAX),
            connect_timeout: self.call_timeout,
            silence_max: self.call_timeout,
            ..LinkConfig::default()
        }
    }

    /// Who hosts the coordinator. Waits for names to be resolved.
    fn keeper(&self) -> WhoKeeps {
        self.address.to_socket_addrs().map_or(WhoKeeps::Another, who_keeps)
    }
}

/// Who hosts the coordinator of these addresses. Waits for nobody.
fn who_keeps(addresses: impl IntoIterator<Item = SocketAddr>) -> WhoKeeps {
    let mut found = WhoKeeps::Another;
    for address in addresses {
        // What stands in the way says that the keeper is another daemon: of another host, or that has the port already.
        match can_listen(address) {
            Ok(()) => return WhoKeeps::This(address),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => found = WhoKeeps::Neighbour,
            Err(_) => {}
        }
    }
    found
}

/// Whether somebody could listen there now. Does not listen itself: nobody connects to the attempt, nor is it in the way of
/// another daemon that listens at the same moment.
fn can_listen(address: SocketAddr) -> io::Result<()> {
    let attempt = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As who listens for good: connections of an earlier start that linger take no address.
    attempt.set_reuseaddr(true)?;
    attempt.bind(address)
}

/// Hosts the coordinator at this address, unless another daemon of this host was quicker. Reads a file.
fn host(
    settings: &HostedSettings,
    address: SocketAddr,
    runtime: &Handle,
) -> Result<Option<Keeper>, StartError> {
    match Keeper::start(settings.clone(), address, runtime) {
        Ok(keeper) => Ok(Some(keeper)),
        Err(StartError::Listen { .. }) if who_keeps([address]) == WhoKeeps::Neighbour => Ok(None),
        Err(error) => Err(error),
    }
}

/// Who hosts the coordinator, as far as a daemon can tell that tries to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhoKeeps {
    /// This daemon, which can listen at this address.
    This(SocketAddr),
    /// A process of this host has the port: another daemon, or something else.
    Neighbour,
    /// A daemon of another host, as far as can be told: an address of this one that is not up yet looks the same.
    Another,
}

/// What a member of another cluster is told.
fn another_cluster(theirs: ClusterId, ours: ClusterId) -> String {
    format!(
        "the coordinator has cluster {ours}, and this daemon joined {theirs}: restart the daemon to join that one"
    )
}

/// The coordinator that members of a cluster meet at: hosts it where this daemon can listen at the address, else follows it.
/// Waits for names to be resolved.
///
/// # Errors
/// [`StartError`], of who hosts it; a follower tries again for ever.
pub fn start(settings: HostedSettings, runtime: &Handle) -> Result<Box<dyn Coordinator>, StartError> {
    let mut keeper = settings.keeper();
    if let WhoKeeps::This(address) = keeper {
        if let Some(keeper) = host(&settings, address, runtime)? {
            tracing::info!(%address, "this member coordinates its cluster");
            return Ok(Box::new(keeper));
        }
        keeper = WhoKeeps::Neighbour;
    }
    let is_on_this_host = keeper == WhoKeeps::Neighbour;
    tracing::info!(
        address = settings.address,
        is_on_this_host,
        "this daemon cannot listen there: another member coordinates this cluster"
    );
    Ok(Box::new(Follower::start(settings, is_on_this_host, runtime)?))
}
