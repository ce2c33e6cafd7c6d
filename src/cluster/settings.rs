//! What a member is told about itself, and how long it waits for others.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tidefs_engine::engine::{TransportChoice, TransportOptions};
use tidefs_engine::link::{ClusterKey, TlsConfig};
use tidefs_engine::types::{ByteCount, MemberId};

use super::member::ProtocolRange;

/// How a member takes part.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Who it is: the same across its restarts.
    pub member: MemberId,
    /// What operators call it.
    pub name: String,
    /// Where it listens for other members. Port 0 lets the kernel choose.
    pub listen: Vec<SocketAddr>,
    /// Where others reach it, when that is not where it listens. A port of 0 stands for the one that is listened on.
    pub advertise: Vec<SocketAddr>,
    /// Proof of belonging to the cluster.
    pub key: Option<ClusterKey>,
    /// Encryption of connections.
    pub tls: Option<TlsConfig>,
    /// What moves bytes.
    pub transports: TransportChoice,
    /// How they are opened.
    pub transport_options: TransportOptions,
    /// Where it stands, and whatever else operators label hosts with.
    pub labels: BTreeMap<String, String>,
    /// Bytes that it caches at most, memory and SSD together.
    pub capacity: ByteCount,
    /// How long others are waited for.
    pub timings: Timings,
    /// What it remembers for others at most.
    pub limits: Limits,
    /// Where it is kept that this member drains, so that its next start goes on. Without it that is forgotten.
    pub drain_file: Option<PathBuf>,
    /// Where it keeps what only it knows to be removed when it stops, the same in each file. Without any that is forgotten.
    pub removals_files: Vec<PathBuf>,
    /// Versions of the protocol that it speaks: all of this build, but for tests.
    pub protocol: ProtocolRange,
}

impl ClusterConfig {
    /// The defaults for `member`.
    #[must_use]
    pub fn new(member: MemberId, name: &str) -> Self {
        Self {
            member,
            name: name.to_owned(),
            listen: vec![SocketAddr::from(([0_u16; 8], 0))],
            advertise: Vec::new(),
            key: None,
            tls: None,
            transports: TransportChoice::Auto,
            transport_options: TransportOptions::default(),
            labels: BTreeMap::new(),
            capacity: ByteCount::gib(1),
            timings: Timings::default(),
            limits: Limits::default(),
            drain_file: None,
            removals_files: Vec::new(),
            protocol: ProtocolRange::OURS,
        }
    }

    /// Where it listens, beyond its own host, for whoever knows the cluster's name: empty with a key or with TLS, either of
    /// which has others prove who they are.
    #[must_use]
    pub fn unproven_addresses(&self) -> Vec<SocketAddr> {
        let is_proved = self.key.is_some() || self.tls.is_some();
        let is_wide = |address: &&SocketAddr| !is_proved && !address.ip().to_canonical().is_loopback();
        self.listen.iter().filter(is_wide).copied().collect()
    }
}

/// How long others are waited for.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// For the coordinator to let this member in. Default: 10 s.
    pub start: Duration,
    /// For what nobody waits for: notes, announcements, what members owe each other. Default: 5 s.
    pub background: Duration,
    /// A peer that is not heard for so long is suspect. Default: 10 s, the engine's.
    pub silence: Duration,
    /// Between attempts to reach a peer, at most. Default: 1 s.
    pub reconnect: Duration,
    /// How long a member that was lost keeps its entries. Default: 60 s.
    pub grace: Duration,
    /// How long it is remembered that a key was removed. Default: 10 min.
    pub tombstones: Duration,
    /// The longest that bytes are lent without a sign of the reader. Default: 2 min.
    pub loan: Duration,
    /// Between two rounds of what is done now and then. Default: 500 ms.
    pub tick: Duration,
    /// For another member to fetch a copy that it is asked to keep. Default: 30 s.
    pub keep: Duration,
    /// Between two looks through what is held for copies that were evicted. Default: 5 min.
    pub look_for_copies: Duration,
    /// How long a member that was just started keeps less for others than it could. Default: 60 s.
    pub ramp: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(10),
            background: Duration::from_secs(5),
            silence: Duration::from_secs(10),
            reconnect: Duration::from_secs(1),
            grace: Duration::from_secs(60),
            tombstones: Duration::from_secs(600),
            loan: Duration::from_secs(120),
            tick: Duration::from_millis(500),
            keep: Duration::from_secs(30),
            look_for_copies: Duration::from_secs(300),
            ramp: Duration::from_secs(60),
        }
    }
}

/// What is remembered at most; what happens beyond is told with each.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of what this member remembers about who was answered what. Beyond, the oldest are told to ask again.
    /// Default: 64 MiB.
    pub watches: ByteCount,
    /// Removed keys that are remembered. Beyond, the oldest are forgotten before their time. Default: 1,048,576.
    pub tombstones: usize,
    /// Notes and announcements that wait for one member. Beyond, its shards are announced as a whole. Default: 65,536.
    pub queued: usize,
    /// Things that are announced in a second when shards move. Default: 200,000.
    pub announced_per_second: u64,
    /// Bytes of copies in a second that this member has made when others are lost. Default: 256 MiB.
    pub repair_bytes_per_second: u64,
    /// Bytes in a second that others may have this member keep; a tenth of it at first, see [`Timings::ramp`]. Default:
    /// 1 GiB.
    pub ingest_bytes_per_second: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            watches: ByteCount::mib(64),
            tombstones: 1 << 20,
            queued: 65_536,
            announced_per_second: 200_000,
            repair_bytes_per_second: 256 << 20,
            ingest_bytes_per_second: 1 << 30,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_unproven_beyond_this_host_without_key_and_tls() {
        let mut config = ClusterConfig::new(MemberId(1), "a");
        assert_eq!(config.unproven_addresses(), config.listen, "every address of the host");
        config.listen = ["127.0.0.1:1", "[::1]:2", "[::ffff:127.0.0.2]:3", "10.0.0.1:4"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(config.unproven_addresses(), ["10.0.0.1:4".parse().unwrap()]);
        let tls =
            TlsConfig { authority: "a".into(), certificate: "b".into(), key: "b".into(), name: "c".into() };
        let with_tls = ClusterConfig { tls: Some(tls), ..config.clone() };
        config.key = Some(ClusterKey::new(*b"the key of this cluster"));
        assert!(with_tls.unproven_addresses().is_empty() && config.unproven_addresses().is_empty());
    }
}
