//! `tidefs bench replay`: the hit ratio of a mount on a trace, beside that of exact LRU of as many objects.
//!
//! Every request is served through real files: probes, reads and writes as a client of a KV cache does them.
//!
//! Invariants
//! - Each size and policy has a mount of its own that starts empty, whose capacity is the objects of that size
//!   plus the headroom it keeps for writers, so that as many objects fit as the LRU holds. The objects it held
//!   at the end are printed, which proves it.
//! - Objects have real bytes, all of which are written.
//!
//! Limits: with `--mount` the capacity is that of the mount, and so is that of the LRU unless it is given.

mod client;
mod reference;
mod trace;

use std::fs::File;
use std::io::BufReader;
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::{Path, PathBuf};

use clap::Args;
use nix::sys::statvfs::statvfs;
use nix::unistd::geteuid;
use serde::Serialize;
use tidefs_engine::types::ByteCount;

use self::client::{Client, ClientKind, Outcome, count_objects};
use self::trace::{Request, read_trace};
use super::cleanup::Directory;
use super::cluster::hosts::{Hosts, Start};
use super::daemon::{self, Daemon, DaemonArgs};
use super::error::Error;
use super::local::progress_bar;
use super::machine::{self, Machine};
use super::mount::{enter_private_namespace, make_directory};
use super::report::{ResultArgs, plain_table, trimmed};

pub(super) use self::trace::TraceError;

/// What the daemon keeps free for writers while it replays.
const HEADROOM: ByteCount = ByteCount::mib(8);
/// Capacities in objects unless others are asked for.
const CAPACITIES: [NonZeroUsize; 3] = [
    NonZeroUsize::new(3_000).expect("above zero"),
    NonZeroUsize::new(10_000).expect("above zero"),
    NonZeroUsize::new(30_000).expect("above zero"),
];
/// Hole rate that a mount must stay below.
const HOLE_RATE_MAX: f64 = 0.005;
/// The metric that counts objects the mount evicted.
const EVICTED: &str = "tidefs_evictions_total";

/// Room in memory that two tiers keep free ahead of writers, beside their objects.
const FREE_AHEAD: ByteCount = ByteCount::mib(32);
/// Bytes that a record on disk has before its object.
const RECORD_HEADER: ByteCount = ByteCount::kib(4);
/// Zones of the disk, and how many of them hold no records: the open one, and those that are kept free for writers.
const ZONES: u64 = 64;
const EMPTY_ZONES: u64 = 4;
/// How much less than one tier of as many objects two may hit, and hosts of one cluster less than one host.
const PARTS_COST: f64 = 0.01;

/// Arguments of `tidefs bench replay`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tidefs bench replay trace.jsonl\n  tidefs bench replay trace.jsonl --mount /mnt/kv --verify\n  tidefs bench replay trace.jsonl --policy lru --capacity-objects 10000 --json\n  tidefs bench replay trace.jsonl --policy leaf_bonus --hosts 3"
)]
pub(crate) struct ReplayArgs {
    /// The trace: a JSON object a line with the list `hash_ids`, one id for each block in prefix order.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// A tidefs mount to replay through. Default: a daemon for each size and policy.
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Capacities in objects. Default: 3000,10000,30000; with --mount, what fits that mount.
    #[arg(long, value_name = "COUNTS", value_delimiter = ',')]
    capacity_objects: Option<Vec<NonZeroUsize>>,
    /// Objects that fit a disk below memory: each capacity is replayed with memory for it and a disk for these, and with
    /// memory for all of them.
    #[arg(long, value_name = "N", conflicts_with = "mount")]
    ssd_objects: Option<NonZeroUsize>,
    /// A directory on that disk.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    ssd_dir: PathBuf,
    /// Hosts of one cluster on this machine: each capacity is replayed on one host, and on so many that share it and serve
    /// the requests in turn. Needs etcd.
    #[arg(long, value_name = "N", conflicts_with_all = ["mount", "ssd_objects", "daemon"])]
    hosts: Option<NonZeroU16>,
    /// How the hosts reach each other.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    transport: String,
    /// Size of an object.
    #[arg(long, value_name = "SIZE", default_value = "64KiB")]
    object_size: ByteCount,
    /// Eviction policies, each with a mount of its own.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "leaf_bonus,lru,s3fifo")]
    policy: Vec<String>,
    /// How the client looks for the blocks of a request.
    #[arg(long, value_enum, default_value_t = ClientKind::Batch)]
    client: ClientKind,
    /// Check every byte that is read.
    #[arg(long)]
    verify: bool,
    /// Exit with 3 when a hit ratio is below exact LRU or a hole rate is not below 0.5 %.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    pub(super) result: ResultArgs,
    #[command(flatten)]
    daemons: DaemonArgs,
}

/// One replay and its yardstick.
#[derive(Debug, Serialize)]
struct Run {
    policy: String,
    capacity_objects: usize,
    /// Objects that fit the disk, on top of that.
    ssd_objects: Option<usize>,
    /// Hosts that share the capacity.
    hosts: u16,
    client: ClientKind,
    #[serde(flatten)]
    outcome: Outcome,
    hit_ratio: f64,
    lru_hit_ratio: f64,
    hole_rate: Option<f64>,
    evicted: Option<u64>,
    objects_at_end: u64,
    passes: bool,
}

/// All replays of one command.
#[derive(Debug, Serialize)]
struct ReplayReport {
    machine: Machine,
    trace: PathBuf,
    requests: usize,
    object_size: ByteCount,
    write_headroom: ByteCount,
    verified: bool,
    runs: Vec<Run>,
}

/// Replays the trace for each capacity and policy, and prints what came out. Returns false when `--check` finds
/// a run that does not pass.
///
/// # Errors
/// With a trace that cannot be read, without a mount that works, and when an operation fails on it.
pub(super) fn run(args: &ReplayArgs) -> Result<bool, Error> {
    let machine = Machine::here();
    let requests = load(&args.trace)?;
    if geteuid().is_root() {
        enter_private_namespace()?;
    }
    let mut runs = Vec::new();
    for memory in &capacities(args)? {
        let more = args.ssd_objects.map_or(0, NonZeroUsize::get);
        let capacity = &memory.saturating_add(more);
        let lru_hit_ratio = reference::lru_hit_ratio(&requests, *capacity);
        let policies: &[String] =
            if args.mount.is_some() { &["as mounted".to_owned()] } else { &args.policy };
        for policy in policies {
            let tiers = |memory, ssd| Tiers { memory, ssd, hosts: NonZeroU16::MIN };
            let one = replay_once(args, &requests, tiers(*capacity, None), policy, lru_hit_ratio)?;
            let hit_ratio = one.hit_ratio;
            runs.push(one);
            if let Some(ssd) = args.ssd_objects {
                let two = replay_once(args, &requests, tiers(*memory, Some(ssd)), policy, lru_hit_ratio)?;
                let passes = two.hit_ratio >= hit_ratio - PARTS_COST;
                runs.push(Run { passes, ..two });
            }
            if let Some(hosts) = args.hosts {
                let tiers = Tiers { hosts, ..tiers(*capacity, None) };
                let many = replay_once(args, &requests, tiers, policy, lru_hit_ratio)?;
                let passes = many.hit_ratio >= hit_ratio - PARTS_COST;
                runs.push(Run { passes, ..many });
            }
        }
    }
    let report = ReplayReport {
        machine,
        trace: args.trace.clone(),
        requests: requests.len(),
        object_size: args.object_size,
        write_headroom: HEADROOM,
        verified: args.verify,
        runs,
    };
    args.result.publish(&report, || report.table(args.mount.is_some()) + "\n")?;
    Ok(!args.check || report.runs.iter().all(|run| run.passes))
}

/// The capacities to replay at.
fn capacities(args: &ReplayArgs) -> Result<Vec<NonZeroUsize>, Error> {
    if let Some(given) = &args.capacity_objects {
        return Ok(given.clone());
    }
    let Some(mount) = &args.mount else {
        return Ok(CAPACITIES.to_vec());
    };
    let space =
        statvfs(mount).map_err(Error::system(format!("ask for the capacity of {}", mount.display())))?;
    let objects = space.blocks() * space.fragment_size() / args.object_size.get().max(1);
    let objects = usize::try_from(objects).ok().and_then(NonZeroUsize::new);
    let too_small = || Error::Argument(format!("no object of {} fits {}", args.object_size, mount.display()));
    Ok(vec![objects.ok_or_else(too_small)?])
}

fn load(path: &Path) -> Result<Vec<Request>, Error> {
    let file = File::open(path).map_err(Error::file("open", path))?;
    read_trace(BufReader::new(file)).map_err(|source| Error::Trace { path: path.to_owned(), source })
}

/// How many objects fit where.
#[derive(Clone, Copy, Debug)]
struct Tiers {
    memory: NonZeroUsize,
    ssd: Option<NonZeroUsize>,
    /// Hosts that share the memory.
    hosts: NonZeroU16,
}

/// What serves the requests of a replay, until this is dropped.
enum Served {
    Given(PathBuf),
    Daemon(Daemon),
    Hosts(Hosts),
}

impl Served {
    fn mounts(&self) -> Vec<&Path> {
        match self {
            Self::Given(mount) => vec![mount],
            Self::Daemon(daemon) => vec![daemon.mount()],
            Self::Hosts(hosts) => {
                hosts.directories.iter().filter_map(|directory| directory.parent()).collect()
            }
        }
    }

    /// A directory on each mount, which all show the same, and in which nothing is yet. `name`: of one that has to be made.
    fn directories(&self, name: &str) -> Result<Vec<PathBuf>, Error> {
        match self {
            Self::Given(mount) => Ok(vec![make_directory(mount, name)?]),
            Self::Daemon(daemon) => Ok(vec![make_directory(daemon.mount(), name)?]),
            Self::Hosts(hosts) => Ok(hosts.directories.clone()),
        }
    }

    /// The sum of a counter, if every mount has it.
    fn metric(&self, name: &str) -> Result<Option<f64>, Error> {
        let values = self.mounts().into_iter().map(|mount| daemon::metric(mount, name));
        Ok(values.collect::<Result<Vec<_>, _>>()?.into_iter().sum())
    }
}

fn replay_once(
    args: &ReplayArgs,
    requests: &[Request],
    tiers: Tiers,
    policy: &str,
    lru_hit_ratio: f64,
) -> Result<Run, Error> {
    let size = usize::try_from(args.object_size.get())
        .ok()
        .filter(|size| *size > 0)
        .ok_or_else(|| Error::Argument(format!("--object-size: {} cannot be an object", args.object_size)))?;
    let capacity_objects = tiers.memory;
    // Removed after the daemon, which is the later of the two.
    let disk = tiers.ssd.map(|_| Directory::new_in("tidefs-bench-", &args.ssd_dir)).transpose();
    let disk = disk.map_err(Error::file("make a directory in", &args.ssd_dir))?;
    let served = match &args.mount {
        Some(mount) => Served::Given(mount.clone()),
        None => start(args, tiers, disk.as_ref().map(Directory::path), policy)?,
    };
    // A name of its own, so that a mount that is given starts as empty as one that is made.
    let directories = served.directories(&format!("replay-{}-{capacity_objects}", std::process::id()))?;
    let progress = progress_bar(requests.len() as u64);
    progress.set_message(format!("{policy}, {capacity_objects} objects"));
    let evicted_before = served.metric(EVICTED)?;
    let client = Client::new(&directories, args.client, size, args.verify);
    let outcome = client.replay(requests, || progress.inc(1));
    progress.finish_and_clear();
    let outcome = outcome?;
    let evicted = evicted_before.zip(served.metric(EVICTED)?).map(|(before, after)| after - before);
    // What one of them lists is what all have, each once.
    let directory = &directories[0];
    let objects_at_end = count_objects(directory)?;
    if matches!(served, Served::Given(_)) {
        std::fs::remove_dir_all(directory).map_err(Error::file("remove", directory))?;
    }
    let passes =
        outcome.hit_ratio() >= lru_hit_ratio && outcome.hole_rate().is_none_or(|rate| rate < HOLE_RATE_MAX);
    Ok(Run {
        policy: policy.to_owned(),
        capacity_objects: capacity_objects.get(),
        ssd_objects: tiers.ssd.map(NonZeroUsize::get),
        hosts: tiers.hosts.get(),
        client: args.client,
        hit_ratio: outcome.hit_ratio(),
        lru_hit_ratio,
        hole_rate: outcome.hole_rate(),
        evicted: evicted.map(whole),
        objects_at_end,
        passes,
        outcome,
    })
}

/// A counter of objects as a whole number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a count of objects is below 2^53"
)]
fn whole(count: f64) -> u64 {
    count.max(0.0) as u64
}

/// Starts a daemon in which exactly as many objects fit, or hosts that share them.
fn start(args: &ReplayArgs, tiers: Tiers, disk: Option<&Path>, policy: &str) -> Result<Served, Error> {
    let size = args.object_size.round_up_to_pages();
    let hosts = usize::from(tiers.hosts.get());
    let bytes = size.get().saturating_mul(tiers.memory.get().div_ceil(hosts) as u64);
    let mut capacity = ByteCount(bytes).saturating_add(HEADROOM);
    let mut own = vec![format!("memory.write_headroom={}", HEADROOM.get()), format!("policy={policy}")];
    if let (Some(disk), Some(objects)) = (disk, tiers.ssd) {
        let records = size.saturating_add(RECORD_HEADER).get().saturating_mul(objects.get() as u64);
        let zone = ByteCount(records / ZONES).round_up_to_pages().max(ByteCount::mib(1));
        own.push(format!("ssd.dirs={}", disk.display()));
        own.push(format!("ssd.zone={}", zone.get()));
        // A zone has a header and a footer, and no record is in two.
        let on_disk = records + records / ZONES + zone.get() * EMPTY_ZONES + ByteCount::mib(1).get();
        own.push(format!("ssd.capacity={on_disk}"));
        own.push(format!("ssd.free_ahead={}", FREE_AHEAD.get()));
        capacity = capacity.saturating_add(FREE_AHEAD);
    }
    let available = machine::meminfo("MemAvailable");
    let needed = ByteCount(capacity.get().saturating_mul(hosts as u64));
    if available < needed {
        let advice = "give a smaller --object-size or --capacity-objects";
        return Err(Error::Memory { what: "this replay", needed, available, advice });
    }
    let options: Vec<_> = own.into_iter().chain(args.daemons.options.iter().cloned()).collect();
    if tiers.hosts > NonZeroU16::MIN {
        let (hosts, transport) = (tiers.hosts.get(), &*args.transport);
        return Hosts::start(&Start { hosts, capacity, transport, options: &options }).map(Served::Hosts);
    }
    Daemon::start(&args.daemons.binary(), capacity, &options).map(Served::Daemon)
}

impl ReplayReport {
    fn table(&self, mounted: bool) -> String {
        let mut table = plain_table(&[
            "policy",
            "objects",
            "hit ratio",
            "exact LRU",
            "difference",
            "hole rate",
            "vanished",
            "written",
            "evicted",
            "held at end",
            "wall",
            "",
        ]);
        for run in &self.runs {
            let percent = |rate: f64| format!("{:.2} %", rate * 100.0);
            table.add_row(vec![
                run.policy.clone(),
                match (run.ssd_objects, run.hosts) {
                    (Some(ssd), _) => format!("{} + {ssd} on SSD", run.capacity_objects),
                    (None, 1) => run.capacity_objects.to_string(),
                    (None, hosts) => format!("{} on {hosts} hosts", run.capacity_objects),
                },
                format!("{:.4}", run.hit_ratio),
                format!("{:.4}", run.lru_hit_ratio),
                format!("{:+.4}", run.hit_ratio - run.lru_hit_ratio),
                run.hole_rate.map_or_else(|| "-".to_owned(), percent),
                run.outcome.vanished.to_string(),
                run.outcome.writes.to_string(),
                run.evicted.map_or_else(|| "-".to_owned(), |evicted| evicted.to_string()),
                run.objects_at_end.to_string(),
                format!("{:.1} s", run.outcome.wall.as_secs_f64()),
                if run.passes { "PASS".to_owned() } else { "below".to_owned() },
            ]);
        }
        let capacity = if mounted {
            "capacity of the mount as it is; `objects` is that of the exact LRU".to_owned()
        } else {
            format!("capacity = objects x {} + {HEADROOM} of write headroom", self.object_size)
        };
        let holes = "hole rate: blocks that are there behind an absent one, over all look-ups; a client that \
                     steps does not see them";
        let requests = self.requests;
        format!(
            "{}\n{requests} requests of {}; {capacity}\n\n{}\n\n{holes}",
            self.machine.line(),
            self.trace.display(),
            trimmed(&table)
        )
    }
}
