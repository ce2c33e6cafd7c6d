//! `tidefs bench transfer`: the transfer engine against what the machine can do without it.
//!
//! Without arguments it starts target processes of its own on loopback and moves bytes between them and this process. With
//! `--target` it is such a target for another host; `--connect` names one.
//!
//! Each figure stands beside a baseline that was measured in the same round: as many plain blocking sockets for tcp,
//! memcpy from another process's mapping for shm, a bare loop on the same provider for libfabric, a bare tokio ping-pong
//! for messages.
//!
//! Invariants
//! - Contents are verified, outside the timed part: every byte that arrived in the last use of each buffer.
//! - Rounds alternate the order of baseline and engine, so that neither always runs first.

mod alone;
mod baseline;
mod drive;
mod fabric;
mod pattern;
mod report;
mod target;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tidefs_engine::engine::{Engine, EngineConfig, ParseTransportError, PeerDescriptor, TransportName};
use tidefs_engine::memory::{Access, PageKind, Region};
use tidefs_engine::transport::Direction;
use tidefs_engine::transport::libfabric::bare::Bare;
use tidefs_engine::transport::tcp::ZeroCopy;
use tidefs_engine::types::{ByteCount, Incarnation, MemberId, PeerId, RegionId};

use super::error::Error;
use super::machine::Machine;
use super::report::{ResultArgs, Target};
use super::statistics::{Spread, paired_ratios, percentile};
pub(in crate::bench) use alone::EngineAlone;
use drive::Drive;
use report::{Report, Row};
use target::Offer;

/// Bytes of memory at each end of each peer.
const REGION: ByteCount = ByteCount::mib(128);
/// Longest time for one request of the bench.
const REQUEST_DEADLINE: Duration = Duration::from_secs(30);
/// Bytes that one sample moves, and with `--quick`.
const SAMPLE: (ByteCount, ByteCount) = (ByteCount::gib(1), ByteCount::mib(128));
/// Requests of a sample at most, so that a sample of small ones ends.
const REQUESTS_MAX: u64 = 20_000;
/// Messages of one sample of round trips.
const ROUND_TRIPS: usize = 2_000;

/// Arguments of `tidefs bench transfer`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tidefs bench transfer\n  tidefs bench transfer --transports tcp --sizes 1MiB --depth 16\n\n\
                        Between two hosts:\n  first$  tidefs bench transfer --target --listen [::]:7411\n  \
                        second$ tidefs bench transfer --connect OFFER   # the line that the first printed"
)]
pub(crate) struct TransferArgs {
    /// Transports to measure, each by itself.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "tcp,shm")]
    transports: Vec<String>,
    /// Sizes of the requests.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "4KiB,64KiB,1MiB,16MiB,64MiB")]
    sizes: Vec<ByteCount>,
    /// Requests under way at once.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,16")]
    depth: Vec<u16>,
    /// Bytes of the memory at each end that are used, block after block. Default: all 128 MiB, which no cache holds.
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    span: ByteCount,
    #[command(flatten)]
    opening: Opening,
    /// Target processes to start.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    peers: u8,
    /// Rounds of each case; the result is the median of the rounds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Be a target: print one line that `--connect` takes, and serve until standard input ends or Ctrl-C.
    #[arg(long, conflicts_with_all = ["connect", "peers"])]
    target: bool,
    /// Address to listen on with `--target`.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: std::net::SocketAddr,
    /// Measure against these targets instead of starting some.
    #[arg(long, value_name = "OFFER")]
    connect: Vec<String>,
    /// A short run to look at, not to quote: smaller samples, at most 3 rounds.
    #[arg(long)]
    quick: bool,
    /// Exit with 3 when a target value is missed.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    pub(super) result: ResultArgs,
}

/// How transports are opened, at both ends where this process starts the other one.
#[derive(Clone, Debug, Args)]
struct Opening {
    /// Provider of libfabric for the transport `libfabric`, which takes only one that drives hardware by itself.
    #[arg(long, value_name = "PROVIDER", default_value = fabric::PROVIDER)]
    fabric: String,
    /// Whether tcp sends large payload without a copy: off, auto, or on also where the kernel copies all the same.
    #[arg(long, value_name = "MODE", default_value = "auto")]
    zerocopy: ZeroCopy,
}

/// Runs the bench, or serves one. False when `--check` was given and a target value was missed.
pub(crate) fn run(args: &TransferArgs) -> Result<bool, Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Error::system("start the threads of the engine"))?;
    if args.target {
        target::serve(&runtime, args.listen, &args.opening, REGION)?;
        return Ok(true);
    }
    let rounds = if args.quick { args.rounds.min(3) } else { args.rounds };
    let total = args.transports.len() * args.sizes.len() * args.depth.len() * 2 + args.transports.len();
    let progress = ProgressBar::new(total as u64).with_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a fixed template is valid"),
    );
    let mut rows = Vec::new();
    for name in &args.transports {
        let stand = Stand::start(&runtime, args, name)?;
        let plan = Plan { args, rounds: usize::from(rounds), transport: name };
        for &size in args.sizes.iter().filter(|&&size| fits(size, stand.span)) {
            for &depth in &args.depth {
                for direction in [Direction::Read, Direction::Write] {
                    progress.set_message(format!("{name} {direction:?} {size} depth {depth}"));
                    rows.push(plan.throughput(&runtime, &stand, direction, size, usize::from(depth))?);
                    progress.inc(1);
                }
            }
        }
        progress.set_message(format!("{name} messages"));
        rows.push(plan.round_trips(&runtime, &stand)?);
        progress.inc(1);
        runtime.block_on(stand.engine.close());
    }
    progress.finish_and_clear();
    let report = Report { machine: Machine::here(), rounds: usize::from(rounds), rows };
    args.result.publish(&report, || report.text())?;
    Ok(!args.check || report.missed() == 0)
}

/// Every depth moves whole requests inside the memory that is used.
fn fits(size: ByteCount, span: ByteCount) -> bool {
    size > ByteCount::ZERO && size <= span
}

/// The engine of this process, connected to all targets.
struct Stand {
    engine: Engine,
    region: Arc<Region>,
    local: RegionId,
    peers: Vec<(PeerId, Offer)>,
    /// Bytes of each region that are used.
    span: ByteCount,
    /// Ended when this goes.
    _children: Vec<target::Child>,
    /// The bare loop that libfabric is compared with.
    bare: Option<RefCell<Bare>>,
}

impl Stand {
    fn start(runtime: &tokio::runtime::Runtime, args: &TransferArgs, transport: &str) -> Result<Self, Error> {
        let (children, offers) = if args.connect.is_empty() {
            let children: Vec<_> =
                (0..args.peers).map(|_| target::Child::start(&args.opening)).collect::<Result<_, _>>()?;
            let offers = children.iter().map(|child| child.offer().clone()).collect();
            (children, offers)
        } else {
            (Vec::new(), args.connect.iter().map(|text| Offer::parse(text)).collect::<Result<Vec<_>, _>>()?)
        };
        let me = PeerId { member: MemberId(u64::from(std::process::id())), incarnation: Incarnation(1) };
        let messages = Arc::new(tidefs_engine::engine::NoMessages);
        let name: TransportName =
            transport.parse().map_err(|error: ParseTransportError| Error::Argument(error.to_string()))?;
        let open = |parts: &_| fabric::open(&[name], &args.opening, parts);
        let engine = Engine::start(runtime.handle().clone(), EngineConfig::new(me), messages, open)
            .map_err(Error::engine("start the engine"))?;
        let region = Region::anonymous(REGION, PageKind::Base, Access::ReadWrite)
            .map_err(Error::system("allocate the memory of the bench"))?;
        let region = Arc::new(region);
        pattern::fill(&region, 0);
        let local = engine.register(&region).map_err(Error::engine("register memory"))?;
        let mut peers = Vec::new();
        for offer in offers {
            let descriptor =
                PeerDescriptor::decode(&offer.descriptor).map_err(Error::engine("read an offer"))?;
            let deadline = Instant::now() + REQUEST_DEADLINE;
            runtime
                .block_on(engine.connect(&descriptor, deadline))
                .map_err(Error::engine(format!("connect to a target by {transport}")))?;
            peers.push((descriptor.id, offer));
        }
        let bare = (name == TransportName::Libfabric)
            .then(|| fabric::bare(&args.opening.fabric, &region))
            .transpose()?;
        let (span, bare) = (args.span.min(REGION), bare.map(RefCell::new));
        Ok(Self { engine, region, local, peers, span, _children: children, bare })
    }
}

/// One transport's cases.
struct Plan<'a> {
    args: &'a TransferArgs,
    rounds: usize,
    transport: &'a str,
}

impl Plan<'_> {
    fn throughput(
        &self,
        runtime: &tokio::runtime::Runtime,
        stand: &Stand,
        direction: Direction,
        size: ByteCount,
        depth: usize,
    ) -> Result<Row, Error> {
        let sample = if self.args.quick { SAMPLE.1 } else { SAMPLE.0 };
        let requests = (sample.get() / size.get()).clamp(1, REQUESTS_MAX).max(depth as u64);
        let drive = Drive { stand, direction, size, depth, requests };
        let moved = size.get() * requests;
        let (mut rates, mut bases, mut cpu, mut latencies) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        drive.sample(runtime)?;
        for round in 0..self.rounds {
            let mut base = || {
                let seconds = match self.transport {
                    "libfabric" => fabric::seconds(stand, direction, size, depth, requests),
                    "shm" => baseline::memcpy(&stand.peers[0].1, size, requests, stand.span),
                    _ => baseline::sockets(&stand.peers, direction, size, requests, stand.span),
                };
                seconds.map(|seconds| bases.push(gigabytes(moved) / seconds))
            };
            if round % 2 == 0 {
                base()?;
            }
            let sample = drive.sample(runtime)?;
            rates.push(gigabytes(moved) / sample.seconds);
            cpu.push(sample.cpu_seconds / gigabytes(moved));
            latencies.extend(sample.latencies_us);
            if round % 2 == 1 {
                base()?;
            }
        }
        drive.verify(runtime)?;
        latencies.sort_unstable_by(f64::total_cmp);
        let least = match self.transport {
            "tcp" if size == ByteCount::mib(1) && depth > 1 => Some(0.9),
            "shm" if size >= ByteCount::mib(1) => Some(0.95),
            "libfabric" if size >= ByteCount::mib(1) && depth > 1 => Some(0.95),
            _ => None,
        };
        Ok(Row {
            transport: self.transport.to_owned(),
            case: format!("{direction:?}").to_lowercase(),
            size: Some(size),
            depth,
            gigabytes_per_second: Spread::of(&rates),
            baseline_name: match self.transport {
                "shm" => "memcpy",
                "libfabric" => "bare fi",
                _ => "sockets",
            },
            baseline: Spread::of(&bases),
            ratio: Spread::of(&paired_ratios(&rates, &bases)),
            p50_us: percentile(&latencies, 0.50),
            p99_us: percentile(&latencies, 0.99),
            cpu_seconds_per_gigabyte: Spread::of(&cpu),
            target: least.map(Target::RatioAtLeast),
        })
    }

    /// Round trips of 64 bytes against a bare tokio ping-pong; the ratio is of the times, so smaller is better.
    fn round_trips(&self, runtime: &tokio::runtime::Runtime, stand: &Stand) -> Result<Row, Error> {
        let (mut times, mut bases, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            bases.push(baseline::ping_pong(&stand.peers[0].1, ROUND_TRIPS)?);
            let mut latencies = runtime.block_on(drive::round_trips(stand, ROUND_TRIPS))?;
            latencies.sort_unstable_by(f64::total_cmp);
            times.push(percentile(&latencies, 0.5));
            all.extend(latencies);
        }
        all.sort_unstable_by(f64::total_cmp);
        Ok(Row {
            transport: self.transport.to_owned(),
            case: "message".to_owned(),
            size: Some(ByteCount(64)),
            depth: 1,
            gigabytes_per_second: None,
            baseline_name: "tokio us",
            baseline: Spread::of(&bases),
            ratio: Spread::of(&paired_ratios(&times, &bases)),
            p50_us: percentile(&all, 0.50),
            p99_us: percentile(&all, 0.99),
            cpu_seconds_per_gigabyte: None,
            target: Some(Target::AtMost(1.5)),
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}
