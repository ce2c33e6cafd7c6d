//! `tidefs bench local`: a mount against a private tmpfs and memcpy, in one run.
//!
//! Cases run in rounds, and within a round the mount, the tmpfs and memcpy take turns, so that what a neighbour
//! does to the machine hits all three. The first table has daemon and client on one CPU, the second lets the
//! scheduler place them; each target stands beside its row in both.
//!
//! Limits: sizes are whole pages; a pinned row needs as many CPUs as it has client threads, and is left out with
//! a note otherwise. The full cache, the mode without passthrough and the packed objects need daemons of their
//! own, so they are left out, with a note, when `--mount` names a mount. The daemon of such a mount serves others: it is
//! pinned and stopped only at the operator's word.

mod case;
mod latency;
mod object;
mod packed;
mod stopped;
mod subject;
mod throughput;
mod worker;

use std::cell::Cell;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tidefs_engine::types::{ByteCount, PAGE};

use super::affinity::{PinnedDaemons, Placement, allowed_cpus, place_this_thread};
use super::daemon::{self, DaemonArgs};
use super::error::Error;
use super::machine::Machine;
use super::mount::{PrivateTmpfs, enter_private_namespace, make_directory};
use super::report::{Report, ResultArgs, Row, Target, Unit};
use super::statistics::Spread;
pub(in crate::bench) use object::write_object;
use subject::{Place, Subject};

/// Room of the baseline: hot objects, what is written, and the objects of the full cache.
const BASELINE_SIZE: ByteCount = ByteCount::gib(4);
/// Capacity of the daemon whose cache is full.
const FULL: ByteCount = ByteCount::mib(512);
/// Bytes that one sample moves.
const SAMPLE: ByteCount = ByteCount::mib(256);
/// The same with `--quick`.
const SAMPLE_QUICK: ByteCount = ByteCount::mib(64);
/// Memory that is touched before anything is measured.
const TOUCHED: ByteCount = ByteCount::gib(2);
/// The metric that counts bytes copied through the daemon's own address space.
const COPIED_BYTES: &str = "tidefs_copied_bytes_total";
/// Namespace of the bench on a mount of its own.
const NAMESPACE: &str = "bench";

/// Arguments of `tidefs bench local`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tidefs bench local\n  tidefs bench local --quick --sizes 1MiB --pinned\n  tidefs bench local --mount /mnt/kv --json local.json"
)]
pub(crate) struct LocalArgs {
    /// A tidefs mount to measure, whose daemon is left as it is. Default: the bench starts a daemon of its own and stops it.
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Sizes of the objects.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "64KiB,1MiB,4MiB,32MiB")]
    sizes: Vec<ByteCount>,
    /// Rounds of each case; the result is the median of the rounds.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Numbers of client threads.
    #[arg(long, value_name = "THREADS", value_delimiter = ',', default_value = "1,2")]
    threads: Vec<u8>,
    /// Only the table with daemon and client on one CPU; with --mount it slows down all whom that daemon serves.
    #[arg(long, group = "placement")]
    pinned: bool,
    /// Only the table in which the scheduler places them.
    #[arg(long, group = "placement")]
    free: bool,
    /// Both tables: the default, but with --mount, where it is the one in which the scheduler places them.
    #[arg(long, group = "placement")]
    both: bool,
    /// Stop the daemon of --mount while some samples are read, to prove that the kernel alone serves them; whoever else needs it
    /// waits.
    #[arg(long, requires = "mount")]
    stop_daemon: bool,
    #[command(flatten)]
    pub(super) result: ResultArgs,
    /// A short run to look at, not to quote: smaller samples, at most 5 rounds, 50,000 packed objects.
    #[arg(long)]
    quick: bool,
    /// Exit with 3 when a target is missed.
    #[arg(long)]
    check: bool,
    /// Small objects of the packed part; 0 leaves it out.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    packed_objects: u64,
    /// Only the packed part: memory for each small object, listing, restart.
    #[arg(long, conflicts_with_all = ["mount", "self_check"])]
    packed_only: bool,
    #[command(flatten)]
    daemons: DaemonArgs,
    /// Measure a second tmpfs instead of a mount: every ratio must come out near 1, or the method is wrong.
    #[arg(long, hide = true, conflicts_with = "mount")]
    self_check: bool,
}

/// Threads and their place: what one block of the table has in common.
#[derive(Clone, Copy, Debug)]
struct Shape {
    threads: usize,
    placement: Placement,
}

/// What every part of a run shares.
struct Bench<'a> {
    rounds: usize,
    sample: ByteCount,
    /// Directory of the bench on the mount under test.
    mount: &'a Path,
    /// Directory of the bench on the baseline.
    baseline: &'a Path,
    /// Directory on, and capacity of, a mount that is kept full.
    full: Option<(&'a Path, ByteCount)>,
    memcpy: throughput::MemcpySource,
    cpus: Vec<usize>,
    progress: ProgressBar,
    names: Cell<u64>,
}

impl Bench<'_> {
    /// The CPUs of a pinned shape.
    fn cpus_of(&self, shape: Shape) -> Option<&[usize]> {
        (shape.placement == Placement::Pinned).then(|| &self.cpus[..shape.threads])
    }

    fn object_bytes(&self, size: ByteCount) -> Result<usize, Error> {
        let fits = size.get() > 0 && size.get().is_multiple_of(PAGE.get()) && size <= SAMPLE;
        usize::try_from(size.get()).ok().filter(|_| fits).ok_or_else(|| {
            Error::Argument(format!("--sizes: {size} is not a multiple of {PAGE} of at most {SAMPLE}"))
        })
    }

    /// A number that this run has not used yet.
    fn next_name(&self) -> u64 {
        self.names.replace(self.names.get() + 1)
    }
}

/// Runs the bench, prints its table and writes its JSON. Returns false when `--check` finds a target missed.
///
/// # Errors
/// Without root, without a mount that works, or when an operation on either side fails.
pub(super) fn run(args: &LocalArgs) -> Result<bool, Error> {
    let machine = Machine::here();
    enter_private_namespace()?;
    let mut notes = Vec::new();
    let mut rows = Vec::new();
    if !args.packed_only {
        let subject = Subject::new(args, &mut notes)?;
        rows.extend(measure_all(args, &subject, &mut notes)?);
    }
    if args.mount.is_none() && !args.self_check && args.packed_objects > 0 {
        let objects = if args.quick { args.packed_objects.min(50_000) } else { args.packed_objects };
        let binary = args.daemons.binary();
        rows.extend(packed::measure(&binary, &args.daemons.options, objects)?);
    }
    let name = if args.self_check { "a second tmpfs" } else { "a tidefs mount" };
    let report = Report {
        machine,
        subject: format!("{name} against a private tmpfs (huge=within_size,noswap) and memcpy"),
        rounds: rounds_of(args),
        rows,
        notes,
    };
    args.result.publish(&report, || report.tables() + "\n")?;
    Ok(!args.check || report.missed() == 0)
}

fn rounds_of(args: &LocalArgs) -> usize {
    usize::from(if args.quick { args.rounds.min(5) } else { args.rounds })
}

fn measure_all(args: &LocalArgs, subject: &Subject, notes: &mut Vec<String>) -> Result<Vec<Row>, Error> {
    raise_descriptor_limit()?;
    let baseline = PrivateTmpfs::mount(BASELINE_SIZE)?;
    let mount = Place::on(subject, args)?;
    let baseline = make_directory(baseline.path(), mount.name()).map(|directory| (directory, baseline))?;
    touch_memory(&baseline.0)?;
    let full = subject.full.as_ref().map(|full| make_directory(full.mount(), NAMESPACE)).transpose()?;
    let rounds = rounds_of(args);
    let cpus = allowed_cpus()?;
    let shapes = shapes(args, &cpus, notes)?;
    let cases = case::Case::ON_MOUNT.len() + usize::from(full.is_some());
    let per_shape = (rounds + 1) * cases * args.sizes.len();
    let bench = Bench {
        rounds,
        sample: if args.quick { SAMPLE_QUICK } else { SAMPLE },
        mount: mount.path(),
        baseline: &baseline.0,
        full: full.as_deref().map(|directory| (directory, FULL)),
        memcpy: throughput::MemcpySource::new(&baseline.0, args.sizes.iter().copied().max().unwrap_or(PAGE))?,
        cpus,
        progress: progress_bar((shapes.len() * per_shape) as u64),
        names: Cell::new(0),
    };
    let mut rows = Vec::new();
    let copied_before = copied_bytes(subject)?;
    for shape in &shapes {
        let _pinned = place(&bench, subject, *shape)?;
        for size in &args.sizes {
            bench
                .progress
                .set_message(format!("{size} objects, {:?}, {} threads", shape.placement, shape.threads));
            rows.extend(throughput::measure(&bench, *shape, *size)?);
        }
    }
    for placement in placements(args) {
        let shape = Shape { threads: 1, placement: *placement };
        let _pinned = place(&bench, subject, shape)?;
        rows.extend(latency::measure(&bench, shape)?);
        if let Some(pid) = subject.pid.filter(|_| subject.is_stopped) {
            rows.extend(stopped::measure(&bench, shape, pid)?);
        }
    }
    if subject.stand_in.is_none() {
        let copied = copied_before.zip(copied_bytes(subject)?).map(|(before, after)| after - before);
        if copied.is_none() {
            notes.push(format!("the mount has no metric {COPIED_BYTES}"));
        }
        rows.push(copied_row(copied));
    }
    if let Some(direct) = &subject.direct {
        let directory = make_directory(direct.mount(), NAMESPACE)?;
        for shape in &shapes {
            let _pinned = place(&bench, subject, *shape)?;
            rows.extend(throughput::measure_without_passthrough(&bench, *shape, &directory)?);
        }
    }
    place_this_thread(&bench.cpus)?;
    bench.progress.finish_and_clear();
    Ok(rows)
}

/// Puts the daemons and this thread where `shape` wants them, the daemons until the result is dropped.
fn place(bench: &Bench, subject: &Subject, shape: Shape) -> Result<PinnedDaemons, Error> {
    let Some(cpus) = bench.cpus_of(shape) else {
        place_this_thread(&bench.cpus)?;
        return Ok(PinnedDaemons::default());
    };
    place_this_thread(cpus)?;
    PinnedDaemons::pin(&subject.pids(), cpus)
}

fn placements(args: &LocalArgs) -> &'static [Placement] {
    if args.pinned {
        &[Placement::Pinned]
    } else if args.free || (args.mount.is_some() && !args.both) {
        &[Placement::Free]
    } else {
        &[Placement::Pinned, Placement::Free]
    }
}

fn shapes(args: &LocalArgs, cpus: &[usize], notes: &mut Vec<String>) -> Result<Vec<Shape>, Error> {
    let mut shapes = Vec::new();
    for placement in placements(args) {
        for threads in args.threads.iter().copied().map(usize::from) {
            if threads == 0 {
                return Err(Error::Argument("--threads: a row needs at least one client thread".to_owned()));
            }
            if *placement == Placement::Pinned && threads > cpus.len() {
                notes.push(format!("pinned rows with {threads} threads are left out: {} CPUs", cpus.len()));
                continue;
            }
            shapes.push(Shape { threads, placement: *placement });
        }
    }
    Ok(shapes)
}

fn copied_bytes(subject: &Subject) -> Result<Option<f64>, Error> {
    if subject.stand_in.is_some() { Ok(None) } else { daemon::metric(&subject.root, COPIED_BYTES) }
}

fn copied_row(copied: Option<f64>) -> Row {
    let case = "bytes copied by the daemon, all of the above";
    Row::plain(case, None, Unit::Bytes, copied.map(Spread::single), Some(Target::AtMost(0.0)))
}

/// Writes and removes a file as large as everything the bench will write.
///
/// In a virtual machine the first touch of a page is a fault that the host handles, a hundred times slower than
/// what is measured here. Pages touched once are the first that the kernel hands out again.
fn touch_memory(directory: &Path) -> Result<(), Error> {
    let path = directory.join("touched");
    let bytes = vec![0; 1 << 22];
    let file = std::fs::File::create(&path).map_err(Error::file("create", &path))?;
    for offset in (0..TOUCHED.get()).step_by(bytes.len()) {
        file.write_all_at(&bytes, offset).map_err(Error::file("write", &path))?;
    }
    std::fs::remove_file(&path).map_err(Error::file("remove", &path))
}

/// Lets this process have as many files open as it may. Done after the daemons started, which must do it
/// themselves.
fn raise_descriptor_limit() -> Result<(), Error> {
    let (_, hard) =
        getrlimit(Resource::RLIMIT_NOFILE).map_err(Error::system("ask for the limit of descriptors"))?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(Error::system("raise the limit of descriptors"))
}

/// A bar on stderr, hidden when that is no terminal.
pub(in crate::bench) fn progress_bar(length: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{elapsed_precise} [{bar:40}] {pos}/{len} {msg} (ends in {eta})")
            .expect("the template is constant and well-formed");
    ProgressBar::new(length).with_style(style.progress_chars("=> "))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct CommandLine {
        #[command(flatten)]
        args: LocalArgs,
    }

    fn parsed(line: &str) -> LocalArgs {
        CommandLine::parse_from(std::iter::once("bench").chain(line.split_whitespace())).args
    }

    #[test]
    fn the_daemon_of_a_mount_is_neither_pinned_nor_stopped_unless_asked_for() {
        let both = [Placement::Pinned, Placement::Free];
        assert_eq!(placements(&parsed("")), both);
        assert_eq!(placements(&parsed("--mount /mnt/kv")), [Placement::Free]);
        assert!(!parsed("--mount /mnt/kv").stop_daemon);
        assert_eq!(placements(&parsed("--mount /mnt/kv --both")), both);
        assert_eq!(placements(&parsed("--mount /mnt/kv --pinned")), [Placement::Pinned]);
        assert!(parsed("--mount /mnt/kv --stop-daemon").stop_daemon);
    }
}
