//! Membership of a cluster, put together from its section of the configuration.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tidefs_engine::link::ClusterKey;
use tidefs_engine::types::MemberId;
use tokio::runtime::{Handle, Runtime};
use xxhash_rust::xxh3::xxh3_64;

use super::Failure;
use crate::cluster::coordinator::Coordinator;
use crate::cluster::{Cluster, ClusterConfig, Holder};
use crate::config::{ClusterSettings, Effective, ExitStatus, OptionalFile};
use crate::datapath::{ClusterSide, Datapath, MemberSide};

/// How long a member that is silent stays registered.
#[cfg(feature = "etcd")]
const LEASE: Duration = Duration::from_secs(10);
/// How long one call to etcd may take.
#[cfg(feature = "etcd")]
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a stop waits for the other members to be told.
const LEAVE_PATIENCE: Duration = Duration::from_secs(3);
/// Threads for messages of other members.
const THREADS: usize = 2;
/// A secret that is shorter can be guessed.
const KEY_BYTES_MIN: usize = 16;

/// This daemon's membership, while it lasts.
#[derive(Debug)]
pub(super) struct Membership {
    cluster: Arc<Cluster>,
    runtime: Runtime,
    /// Held here: the cluster knows it weakly.
    _side: Arc<dyn Holder>,
}

/// Joins the cluster that is configured, if one is.
pub(super) fn join(datapath: &Arc<Datapath>, effective: &Effective) -> Result<Option<Membership>, Failure> {
    let settings = &effective.config.cluster;
    if settings.etcd.items().is_empty() {
        return Ok(None);
    }
    let failure = |text: String| Failure::new(ExitStatus::Environment, text);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("cluster")
        .enable_all()
        .build()
        .map_err(|error| failure(format!("cannot start the threads of the cluster: {error}")))?;
    let coordinator = coordinator(settings, runtime.handle())?;
    let side: Arc<dyn Holder> = Arc::new(MemberSide::new(datapath, runtime.handle().clone()));
    let config = member_config(effective)?;
    let joined = runtime.block_on(Cluster::start(
        config,
        runtime.handle().clone(),
        coordinator,
        Arc::downgrade(&side) as Weak<dyn Holder>,
    ));
    let cluster = Arc::new(joined.map_err(|error| {
        failure(format!(
            "cannot join the cluster `{}` by etcd at {}: {error}; start without cluster.etcd to serve this host alone",
            settings.name.0,
            settings.etcd.items().join(" ")
        ))
    })?);
    let side_of_datapath = ClusterSide::new(
        Arc::clone(&cluster),
        runtime.handle().clone(),
        Duration::from_millis(settings.patience_ms),
        Duration::from_millis(settings.fetch_ms),
    );
    let soft_after = u16::try_from(settings.soft_after).unwrap_or(u16::MAX);
    datapath.attach_cluster(side_of_datapath.with_soft_after(soft_after));
    let status = cluster.status();
    tracing::info!(member = %cluster.me(), cluster = %status.cluster, members = status.members.len(), "joined the cluster");
    Ok(Some(Membership { cluster, runtime, _side: side }))
}

impl Membership {
    /// Leaves: the others stop asking for what is here.
    pub(super) fn end(self) {
        self.runtime.block_on(async {
            if let Err(error) = self.cluster.leave(Instant::now() + LEAVE_PATIENCE).await {
                tracing::warn!(%error, "the cluster learns of this member's end when its lease ends");
            }
            self.cluster.close().await;
        });
        self.runtime.shutdown_timeout(LEAVE_PATIENCE);
    }
}

fn member_config(effective: &Effective) -> Result<ClusterConfig, Failure> {
    let settings = &effective.config.cluster;
    let mut config =
        ClusterConfig::new(member_id(settings, &effective.instance.to_string()), &settings.host.0);
    if !settings.listen.items().is_empty() {
        config.listen = settings.listen.items().to_vec();
    }
    config.advertise = settings.advertise.items().to_vec();
    config.key = read_key(settings)?;
    config.transports = settings.transports.choice.clone();
    config.labels = settings.labels.by_name();
    config.capacity = effective.config.memory.capacity.saturating_add(effective.config.ssd.capacity);
    config.timings.grace = Duration::from_secs(settings.grace_s);
    config.timings.ramp = Duration::from_secs(settings.ramp_s);
    config.timings.keep = config.timings.keep.max(Duration::from_millis(settings.fetch_ms) * 2);
    config.limits.repair_bytes_per_second = settings.repair_rate.get();
    config.limits.ingest_bytes_per_second = settings.ingest_rate.get();
    Ok(config)
}

/// The configured number, else one that this machine and mount point have at each start.
fn member_id(settings: &ClusterSettings, instance: &str) -> MemberId {
    if settings.member != 0 {
        return MemberId(settings.member);
    }
    let machine = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    MemberId(xxh3_64(format!("{}\n{}\n{instance}", machine.trim(), settings.host.0).as_bytes()))
}

fn read_key(settings: &ClusterSettings) -> Result<Option<ClusterKey>, Failure> {
    let Some(bytes) = read_file(&settings.key_file, "cluster.key_file")? else {
        tracing::warn!(
            "cluster.key_file is not set: whoever reaches this port and knows the cluster's name is a member"
        );
        return Ok(None);
    };
    // A file that was written with an editor ends with a line break; the secret does not.
    let secret = bytes.trim_ascii_end();
    if secret.len() < KEY_BYTES_MIN {
        let text = format!(
            "cluster.key_file holds {} bytes, at least {KEY_BYTES_MIN} are needed; make one with \
             `head -c 32 /dev/urandom | base64 > FILE`",
            secret.len()
        );
        return Err(Failure::new(ExitStatus::Configuration, text));
    }
    Ok(Some(ClusterKey::new(secret)))
}

#[cfg(not(feature = "etcd"))]
fn coordinator(_: &ClusterSettings, _: &Handle) -> Result<Arc<dyn Coordinator>, Failure> {
    let text =
        "this tidefsd was built without etcd; build it with the feature `etcd`, or leave cluster.etcd empty";
    Err(Failure::new(ExitStatus::Configuration, text))
}

#[cfg(feature = "etcd")]
fn coordinator(settings: &ClusterSettings, runtime: &Handle) -> Result<Arc<dyn Coordinator>, Failure> {
    use crate::cluster::coordinator::etcd::{Etcd, EtcdSettings, EtcdTls, EtcdUser};
    let authority = read_file(&settings.etcd_authority, "cluster.etcd_authority")?;
    let identity = read_file(&settings.etcd_identity, "cluster.etcd_identity")?;
    let user = read_file(&settings.etcd_user_file, "cluster.etcd_user_file")?.map(|line| {
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

fn read_file(file: &OptionalFile, key: &str) -> Result<Option<Vec<u8>>, Failure> {
    let read = |path: &Path| {
        fs::read(path).map_err(|error| {
            let text = format!("cannot read `{}` ({key}): {error}", path.display());
            Failure::new(ExitStatus::Configuration, text)
        })
    };
    file.path().map(read).transpose()
}
