//! `tidefs bench cluster`: reads of what another host holds, against the transfer engine's own in the same run.
//!
//! Starts etcd and daemons as `tidefs cluster dev` does. In each round the first host publishes objects, the second, which
//! has none of them, opens and reads them, and the engine moves as many bytes without either.
//!
//! Invariants
//! - A read is timed from the look-up of a name that the reader's kernel has not met to the close, all bytes read.
//! - What a read returned is compared with what was written, outside the timed part.
//! - Memory holds two rounds: later ones get what earlier ones gave back a moment ago. A virtual machine gets memory from its
//!   host when it is first touched, and may give it back when it is free for seconds, which costs more than any copy.
//!
//! Limits: needs root and etcd. All hosts are on this machine and share its processors with the readers.

pub(super) mod hosts;
mod loss;
mod names;
mod reads;

use std::path::PathBuf;

use clap::Args;
use indicatif::ProgressBar;
use tidefs_engine::types::ByteCount;

use self::hosts::{Hosts, Start, enter_shaped_network};
use super::error::Error;
use super::local::progress_bar;
use super::machine::{self, Machine};
use super::mount::enter_private_namespace;
use super::report::{Report, ResultArgs, Row};
use super::transfer::EngineAlone;

/// Arguments of `tidefs bench cluster`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tidefs bench cluster --quick\n  tidefs bench cluster --sizes 4MiB --netns 1gbit\n  tidefs bench cluster --lose-objects 1000000"
)]
pub(crate) struct ClusterArgs {
    /// Sizes of the objects.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "64KiB,1MiB,4MiB,32MiB")]
    sizes: Vec<ByteCount>,
    /// Readers at once, beside one alone.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u8).range(2..))]
    readers: u8,
    /// Rounds of each case; the result is the median of the rounds.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Bytes that one sample moves.
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    sample: ByteCount,
    /// Hosts.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=8))]
    hosts: u16,
    /// The transport between them.
    #[arg(long, value_name = "NAME", default_value = "tcp")]
    transport: String,
    /// Measure in a network namespace of its own, whose link moves this much, as tc(8) writes it; for example `1gbit`.
    #[arg(long, value_name = "RATE")]
    netns: Option<String>,
    /// Measure nothing but what the others notice when a host is killed that holds so many objects of 4 KiB.
    #[arg(long, value_name = "N", conflicts_with_all = ["sizes", "readers", "rounds", "sample", "hosts", "quick"])]
    lose_objects: Option<u32>,
    /// A short run to look at, not to quote: at most 3 rounds, smaller samples.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    pub(super) result: ResultArgs,
    /// Exit with 3 when a target is missed.
    #[arg(long)]
    check: bool,
    /// Mount options for the daemons.
    #[arg(short = 'o', value_name = "KEY=VALUE", value_delimiter = ',')]
    options: Vec<String>,
}

/// What every part of a run shares.
struct Bench {
    rounds: usize,
    sample: ByteCount,
    readers: usize,
    /// The bench's directory on the host that publishes, and on the one that reads.
    here: PathBuf,
    there: PathBuf,
    engine: EngineAlone,
    progress: ProgressBar,
}

/// Runs the bench, prints its table and writes its JSON. Returns false when `--check` finds a target missed.
///
/// # Errors
/// Without root or etcd, and when a daemon does not start or does not give what another one wrote.
pub(super) fn run(args: &ClusterArgs) -> Result<bool, Error> {
    let machine = Machine::here();
    enter_private_namespace()?;
    if let Some(rate) = &args.netns {
        enter_shaped_network(rate)?;
    }
    let (rounds, rows, note) = match args.lose_objects {
        Some(count) => {
            let (rows, note) = loss::measure(args, count)?;
            (1, rows, Some(note))
        }
        None => {
            let (rounds, rows) = measure(args)?;
            (rounds, rows, None)
        }
    };
    let link = args.netns.as_ref().map_or_else(String::new, |rate| format!(" on a link of {rate}"));
    let (hosts, how) = match args.lose_objects {
        Some(count) => (loss::HOSTS, format!("of which one is killed that holds {count} objects of 4 KiB")),
        None => (args.hosts, "against the transfer engine alone".to_owned()),
    };
    let subject = format!("{hosts} hosts on this machine, {}{link}, {how}", args.transport);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("unknown");
    let mut notes = vec![format!("load of the machine at the end: {load}")];
    notes.extend(note);
    let report = Report { machine, subject, rounds, rows, notes };
    args.result.publish(&report, || report.tables() + "\n")?;
    Ok(!args.check || report.missed() == 0)
}

/// Reads of objects of all sizes, and names. Returns how many rounds there were, too.
fn measure(args: &ClusterArgs) -> Result<(usize, Vec<Row>), Error> {
    let rounds = usize::from(if args.quick { args.rounds.min(3) } else { args.rounds });
    let sample = if args.quick { ByteCount(args.sample.get() / 2) } else { args.sample };
    let steps = (rounds + reads::WARM_UP) * args.sizes.len() + names::STEPS;
    let progress = progress_bar(steps as u64);
    let mut rows = Vec::new();
    for (place, size) in args.sizes.iter().enumerate() {
        progress.set_message(format!("{size} objects"));
        let capacity = capacity_for(*size, sample, args.readers.into(), args.hosts)?;
        let start = Start { hosts: args.hosts, capacity, transport: &args.transport, options: &args.options };
        let hosts = Hosts::start(&start)?;
        let [here, there, ..] = &hosts.directories[..] else {
            return Err(Error::Invalid("there are fewer than two hosts".to_owned()));
        };
        let bench = Bench {
            rounds,
            sample,
            readers: args.readers.into(),
            here: here.clone(),
            there: there.clone(),
            engine: EngineAlone::start(&args.transport)?,
            progress: progress.clone(),
        };
        rows.extend(reads::measure(&bench, *size)?);
        if place + 1 == args.sizes.len() {
            progress.set_message("names");
            rows.extend(names::measure(&bench)?);
        }
    }
    progress.finish_and_clear();
    Ok((rounds, rows))
}

/// Memory of each host: as much as two rounds of objects of `size` need.
///
/// # Errors
/// [`Error::Memory`] when all hosts together have not so much.
fn capacity_for(size: ByteCount, sample: ByteCount, readers: usize, hosts: u16) -> Result<ByteCount, Error> {
    let capacity = ByteCount(2 * reads::bytes_at_once(size, sample, readers).get()).max(ByteCount::mib(64));
    let (needed, available) =
        (ByteCount(capacity.get() * u64::from(hosts)), machine::meminfo("MemAvailable"));
    if available < needed {
        let advice = "give smaller --sizes or a smaller --sample";
        return Err(Error::Memory { what: "this bench", needed, available, advice });
    }
    Ok(capacity)
}
