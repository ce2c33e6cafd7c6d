//! Membership of a cluster, put together from its section of the configuration.

use std::fs;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::engine::TransportOptions;
use tidefs_engine::error::Error as EngineError;
use tidefs_engine::link::{ClusterKey, TlsConfig};
use tidefs_engine::transport::tcp;
use tidefs_engine::types::{ByteCount, MemberId};
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;
use twox_hash::XxHash3_64;

use super::secrets::{EtcdSecrets, Secrets};
use super::{Failure, ssd};
use crate::cluster::coordinator::Coordinator;
use crate::cluster::coordinator::hosted::{self, HostedSettings};
use crate::cluster::{Cluster, ClusterConfig, ClusterError, Holder, keep_untold};
use crate::config::{ClusterSettings, Effective, ExitStatus, ZeroCopy};
use crate::control::Joining;
use crate::datapath::{ClusterSide, Datapath, MemberSide};

/// How long a member that is silent stays registered.
const LEASE: Duration = Duration::from_secs(10);
/// How long one call to the coordinator may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a start waits for the cluster before it serves alone.
const FIRST_ATTEMPT: Duration = Duration::from_secs(3);
/// How long a start waits until all members know what this host holds.
const SETTLE_PATIENCE: Duration = Duration::from_secs(5);
/// Between two attempts to join.
const JOIN_PAUSE: Duration = Duration::from_secs(1);
/// How long a stop waits for the other members to be told, and then for its connections to end.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);
/// Threads for messages of other members.
const THREADS: usize = 2;
/// That this member drains, in the state directory of the mount.
const DRAIN: &str = "cluster-drain.json";
/// What only this member knows to be removed when it stops, there too, and in a directory that outlives a restart of the machine.
const REMOVALS: &str = "cluster-removals.json";
/// What the cluster agrees on where this member coordinates it, there too.
const COORDINATOR: &str = "coordinator.json";

/// This daemon's membership, while it lasts.
#[derive(Debug)]
pub(super) struct Membership {
    joined: Arc<Joined>,
    /// Tries again as long as the coordinator is away.
    joiner: Option<JoinHandle<()>>,
    runtime: Runtime,
    datapath: Arc<Datapath>,
    config: ClusterConfig,
    /// Held here: the cluster knows it weakly.
    _side: Arc<dyn Holder>,
}

/// Whether this host takes part, and if not, why.
#[derive(Debug, Default)]
pub(super) struct Joined {
    cluster: OnceLock<Arc<Cluster>>,
    /// What the last attempt failed with. Held to copy it.
    failure: Mutex<Option<String>>,
}

impl Joining for Joined {
    fn waits_for(&self) -> Option<String> {
        if self.cluster.get().is_some() { None } else { self.failure.lock().clone() }
    }
}

/// All that it takes to join.
struct Joiner {
    config: ClusterConfig,
    coordinator: Arc<dyn Coordinator>,
    runtime: Handle,
    datapath: Arc<Datapath>,
    side: Arc<dyn Holder>,
    patience: Duration,
    fetch_limit: Duration,
    fetch_whole_max: ByteCount,
    soft_after: u16,
    joined: Arc<Joined>,
}

impl Joiner {
    async fn join(&self, config: ClusterConfig) -> Result<(), ClusterError> {
        let side = Arc::downgrade(&self.side) as Weak<dyn Holder>;
        let coordinator = Arc::clone(&self.coordinator);
        let cluster = Arc::new(Cluster::start(config, self.runtime.clone(), coordinator, side).await?);
        let status = cluster.status();
        tracing::info!(member = %cluster.me(), cluster = %status.cluster, members = status.members.len(), "joined the cluster");
        let (cluster_of_side, runtime) = (Arc::clone(&cluster), self.runtime.clone());
        let side = ClusterSide::new(cluster_of_side, runtime, self.patience, self.fetch_limit);
        let side = side.with_fetch_whole_max(self.fetch_whole_max).with_soft_after(self.soft_after);
        self.datapath.attach_cluster(side);
        // Set once: who has joined does not try again.
        let _ = self.joined.cluster.set(cluster);
        Ok(())
    }

    /// Tries until it succeeds.
    async fn join_later(self) {
        loop {
            tokio::time::sleep(JOIN_PAUSE).await;
            match self.join(self.config.clone()).await {
                Ok(()) => return,
                Err(error) => {
                    let mut failure = self.joined.failure.lock();
                    let reason = in_words(&error);
                    if failure.as_ref() != Some(&reason) {
                        tracing::warn!(reason, "this host cannot join its cluster yet");
                    }
                    *failure = Some(reason);
                }
            }
        }
    }
}

/// Joins the cluster that is configured, if one is. While its coordinator cannot be reached this host serves alone, and
/// joins when it can.
pub(super) fn join(
    datapath: &Arc<Datapath>,
    effective: &Effective,
    secrets: Secrets,
) -> Result<Option<Membership>, Failure> {
    let settings = &effective.config.cluster;
    if !settings.is_clustered() {
        datapath.expect_no_cluster();
        return Ok(None);
    }
    let failure = |text: String| Failure::new(ExitStatus::Environment, text);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("cluster")
        .enable_all()
        .build()
        .map_err(|error| failure(format!("cannot start the threads of the cluster: {error}")))?;
    let (etcd, config) = (secrets.etcd, member_config(effective, secrets.key, secrets.tls));
    let coordinator = match settings.coordinator.get() {
        Some(address) => hosted(address, effective, &config, runtime.handle())?,
        None => by_etcd(settings, etcd, runtime.handle())?,
    };
    let joiner = Joiner {
        config,
        coordinator,
        runtime: runtime.handle().clone(),
        datapath: Arc::clone(datapath),
        side: Arc::new(MemberSide::new(datapath, runtime.handle().clone())),
        patience: Duration::from_millis(settings.patience_ms),
        fetch_limit: Duration::from_millis(settings.fetch_ms),
        fetch_whole_max: settings.fetch_whole_max,
        soft_after: u16::try_from(settings.soft_after).unwrap_or(u16::MAX),
        joined: Arc::default(),
    };
    let joined = Arc::clone(&joiner.joined);
    let mut first = joiner.config.clone();
    first.timings.start = FIRST_ATTEMPT;
    datapath.expect_cluster();
    let is_away = match runtime.block_on(joiner.join(first)) {
        Ok(()) => {
            // What was removed or replaced while this host was away is not to be served for a moment.
            let announced =
                joined.cluster.get().map(|cluster| cluster.settle(Instant::now() + SETTLE_PATIENCE));
            if !announced.is_none_or(|announced| runtime.block_on(announced)) {
                tracing::warn!(
                    "not every member was told what this host holds: it may serve what was removed while it was away"
                );
            }
            false
        }
        Err(ClusterError::Coordinator(error)) if error.is_away() => {
            tracing::warn!(%error, "this host serves alone until it can join its cluster");
            *joined.failure.lock() = Some(error.to_string());
            true
        }
        Err(error) => {
            let text = format!(
                "cannot join the cluster `{}` by {}: {}; start without it to serve this host alone",
                settings.name.0,
                match settings.coordinator.get() {
                    Some(address) => format!("cluster.coordinator={address}"),
                    None => format!("cluster.etcd={}", settings.etcd.items().join(" ")),
                },
                in_words(&error),
            );
            return Err(Failure::new(status_of(&error), text));
        }
    };
    let (side, config) = (Arc::clone(&joiner.side), joiner.config.clone());
    let joiner = is_away.then(|| runtime.spawn(joiner.join_later()));
    Ok(Some(Membership { joined, joiner, runtime, datapath: Arc::clone(datapath), config, _side: side }))
}

/// Why this host does not take part, with the setting that says where it listens if that is why.
fn in_words(error: &ClusterError) -> String {
    match error {
        ClusterError::Engine(EngineError::CannotListen { .. }) => {
            format!("{error} (cluster.listen; each mount of a host needs a port of its own)")
        }
        _ => error.to_string(),
    }
}

/// How a start ends that cannot join. The address of a host may come up after the daemon is started, which a later start finds;
/// what else is in the way stays there.
fn status_of(error: &ClusterError) -> ExitStatus {
    match error {
        ClusterError::Engine(EngineError::CannotListen { is_absent: true, .. }) => ExitStatus::Failed,
        _ => ExitStatus::Environment,
    }
}

impl Membership {
    /// Who knows whether this host takes part.
    pub(super) fn joining(&self) -> Arc<dyn Joining> {
        Arc::clone(&self.joined) as Arc<dyn Joining>
    }

    /// Leaves: the others stop asking for what is here. What they were not told to be removed is kept for the next start.
    pub(super) fn end(self) {
        self.runtime.block_on(async {
            if let Some(joiner) = self.joiner {
                // Or it would join behind the back of who leaves.
                joiner.abort();
                // That it was aborted, or had ended.
                let _ = joiner.await;
            }
            if let Some(cluster) = self.joined.cluster.get() {
                cluster.keep_removals();
                if let Err(error) = cluster.leave(Instant::now() + LEAVE_PATIENCE).await {
                    tracing::warn!(%error, "the cluster learns of this member's end when its lease ends");
                }
                close_in_time(cluster.close()).await;
            } else {
                keep_untold(&self.config, self.datapath.take_removed_alone());
            }
        });
        self.runtime.shutdown_timeout(LEAVE_PATIENCE);
    }
}

/// Waits for the end of all connections, but not for ever: a peer may have been stopped in the middle of a copy from the memory
/// of this host. What it copies after that counts for nothing there: its connection has ended. Returns whether all ended.
async fn close_in_time(closing: impl Future<Output = ()>) -> bool {
    let is_closed = tokio::time::timeout(LEAVE_PATIENCE, closing).await.is_ok();
    if !is_closed {
        tracing::warn!(
            "a connection to another member does not end: it may be stopped in the middle of a copy; this host stops without it"
        );
    }
    is_closed
}

fn member_config(effective: &Effective, key: Option<ClusterKey>, tls: Option<TlsConfig>) -> ClusterConfig {
    let settings = &effective.config.cluster;
    let mut config =
        ClusterConfig::new(member_id(settings, &effective.instance.to_string()), &settings.host.0);
    if !settings.listen.items().is_empty() {
        config.listen = settings.listen.items().to_vec();
    }
    config.advertise = settings.advertise.items().to_vec();
    if key.is_none() && tls.is_none() {
        tracing::warn!(
            "cluster.key_file is not set: whoever reaches this port and knows the cluster's name is a member"
        );
    }
    config.key = key;
    config.tls = tls;
    config.transports = settings.transports.choice.clone();
    config.transport_options = transport_options(settings);
    config.labels = settings.labels.by_name();
    config.capacity = effective.config.memory.capacity.saturating_add(effective.config.ssd.capacity);
    config.timings.grace = Duration::from_secs(settings.grace_s);
    config.timings.keep = config.timings.keep.max(Duration::from_millis(settings.fetch_ms) * 2);
    config.drain_file = Some(effective.state.directory.join(DRAIN));
    config.removals_files = removals_files(effective);
    config.limits.repair_bytes_per_second = settings.repair_rate.get();
    config.limits.ingest_bytes_per_second = settings.ingest_rate.get();
    config
}

/// Where removals are kept: in the state directory, which outlives a container, and where a restart of the machine loses it also in one
/// that outlives that.
fn removals_files(effective: &Effective) -> Vec<PathBuf> {
    let mut directories = vec![effective.state.directory.as_path(), ssd::lasting_directory(effective)];
    directories.dedup();
    directories.into_iter().map(|directory| directory.join(REMOVALS)).collect()
}

fn transport_options(settings: &ClusterSettings) -> TransportOptions {
    let mut options = TransportOptions::default();
    options.tcp.zero_copy = match settings.zerocopy {
        ZeroCopy::Off => tcp::ZeroCopy::Off,
        ZeroCopy::Auto => tcp::ZeroCopy::Auto,
        ZeroCopy::On => tcp::ZeroCopy::On,
    };
    options.layers.bytes_per_second = NonZeroU64::new(settings.transfer_rate.get());
    options.layers.is_checked = settings.transfer_check;
    let longest = settings.registration_max;
    options.libfabric.registration_bytes_max = (longest > ByteCount::ZERO).then_some(longest);
    options.libfabric.pages_max = (settings.registration_pages > 0).then_some(settings.registration_pages);
    options
}

/// The configured number, else one that this machine and mount point have at each start.
fn member_id(settings: &ClusterSettings, instance: &str) -> MemberId {
    if settings.member != 0 {
        return MemberId(settings.member);
    }
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    MemberId(XxHash3_64::oneshot(format!("{}\n{}\n{instance}", machine.trim(), settings.host.0).as_bytes()))
}

/// The coordinator that one of the members hosts.
fn hosted(
    address: &str,
    effective: &Effective,
    config: &ClusterConfig,
    runtime: &Handle,
) -> Result<Arc<dyn Coordinator>, Failure> {
    let settings = HostedSettings {
        address: address.to_owned(),
        cluster: effective.config.cluster.name.0.clone(),
        key: config.key.clone(),
        tls: config.tls.clone(),
        file: effective.state.directory.join(COORDINATOR),
        lease: LEASE,
        call_timeout: CALL_TIMEOUT,
    };
    let started = hosted::start(settings, runtime);
    started.map(Arc::from).map_err(|error| Failure::new(ExitStatus::Environment, error.to_string()))
}

#[cfg(not(feature = "etcd"))]
fn by_etcd(_: &ClusterSettings, _: EtcdSecrets, _: &Handle) -> Result<Arc<dyn Coordinator>, Failure> {
    // The configuration was refused before.
    Err(Failure::new(ExitStatus::Configuration, "this tidefsd was built without etcd"))
}

#[cfg(feature = "etcd")]
fn by_etcd(
    settings: &ClusterSettings,
    secrets: EtcdSecrets,
    runtime: &Handle,
) -> Result<Arc<dyn Coordinator>, Failure> {
    use crate::cluster::coordinator::etcd::{Etcd, EtcdSettings, EtcdTls, EtcdUser};
    let EtcdSecrets { authority, identity, user } = secrets;
    let user = user.map(|line| {
        let line = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
        let (name, password) = line.split_once(':').unwrap_or((&line, ""));
        EtcdUser { name: name.to_owned(), password: password.to_owned() }
    });
    let settings = EtcdSettings {
        endpoints: settings.etcd.items().to_vec(),
        cluster: settings.name.0.clone(),
        user,
        // One file holds both parts; each is found in it.
        tls: authority
            .map(|authority| EtcdTls { authority, identity: identity.map(|both| (both.clone(), both)) }),
        lease: LEASE,
        call_timeout: CALL_TIMEOUT,
    };
    Ok(Arc::new(Etcd::start(settings, runtime)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_taken_is_explained_with_the_setting_that_names_it() {
        let taken = EngineError::CannotListen {
            address: "10.0.0.1:7400".into(),
            cause: "Address already in use".into(),
            remedy: "listen on another port".into(),
            is_absent: false,
        };
        let words = in_words(&taken.into());
        assert!(words.contains("10.0.0.1:7400") && words.contains("cluster.listen"), "{words}");
        assert!(!in_words(&ClusterError::Closed).contains("cluster.listen"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_goes_on_without_a_peer_that_never_lets_go() {
        let began = tokio::time::Instant::now();
        assert!(!close_in_time(std::future::pending()).await);
        assert!((LEAVE_PATIENCE..2 * LEAVE_PATIENCE).contains(&began.elapsed()));
        assert!(close_in_time(std::future::ready(())).await);
    }
}
