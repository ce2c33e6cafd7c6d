//! `tidefs bench ssd`: the SSD tier of a mount against fio on the same filesystem, in one run.
//!
//! Objects are written into memory, sent to the disk by `evict`, and opened again. In each round the mount and fio take
//! turns with the same bytes, block size and number of requests under way.
//!
//! Invariants
//! - A round in which the disk did not take or give back every object is an error, not a figure.
//! - fio reads and writes with `O_DIRECT` and buffers of huge pages, as the tier does with segments.
//!
//! Limits: needs root, fio, and room on the disk for some samples (`--sample`) in memory and on disk.

mod fio;
mod latency;
mod small;
mod subject;

use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;
use tidefs_engine::types::ByteCount;

use self::fio::{Fio, Pattern};
use self::subject::{Subject, objects_of, open_all, remove_all};
use super::buffer::Rotating;
use super::cleanup::Directory;
use super::daemon::{Daemon, DaemonArgs};
use super::error::Error;
use super::ffi::ReadMapping;
use super::local::progress_bar;
use super::machine::{self, Machine};
use super::mount::{PrivateTmpfs, enter_private_namespace};
use super::report::{Report, ResultArgs, Row, Target};

/// Size of the objects that are read in memory while others go to the disk.
const HOT_SIZE: ByteCount = ByteCount::mib(1);
/// Requests of fio under way while it writes: the tier has as many bytes under way.
const WRITE_DEPTH: usize = 8;
/// Samples that fit the disk: a round ends on zones that are taken back for it.
const SAMPLES: u64 = 4;
/// Size of the small objects whose memory is measured.
const SMALL: ByteCount = ByteCount::kib(4);
/// Blocks that one of them takes on disk: a header and its data.
const SMALL_ON_DISK: u64 = 2 * 4096;

/// Arguments of `tidefs bench ssd`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tidefs bench ssd\n  tidefs bench ssd --dir /mnt/nvme0 --quick\n  tidefs bench ssd --sizes 4MiB --depth 32 --json ssd.json"
)]
pub(crate) struct SsdArgs {
    /// A directory on the disk to measure.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
    /// Sizes of the objects.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1MiB,4MiB")]
    sizes: Vec<ByteCount>,
    /// Objects that are brought back at once.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..))]
    depth: u8,
    /// Rounds of each case; the result is the median of the rounds.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Bytes that one sample moves.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    sample: ByteCount,
    /// Small objects whose memory is measured; 0 leaves them out.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    small_objects: u32,
    /// A short run to look at, not to quote: 3 rounds of smaller samples.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    pub(super) result: ResultArgs,
    /// Exit with 3 when a target is missed.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    daemons: DaemonArgs,
}

/// How the daemon is started.
struct Launch {
    binary: PathBuf,
    capacity: ByteCount,
    options: Vec<String>,
}

/// What every part of a run shares.
struct Bench {
    rounds: usize,
    sample: ByteCount,
    samples: u64,
    depth: usize,
    launch: Launch,
    subject: Subject,
    fio: Fio,
    /// Where a plain copy of an object comes from.
    memory: ReadMapping,
    source: Rotating,
    target: Rotating,
    progress: ProgressBar,
}

/// Runs the bench, prints its table and writes its JSON. Returns false when `--check` finds a target missed.
///
/// # Errors
/// Without root or fio, without a mount that works, and when the disk does not take or give back an object.
pub(super) fn run(args: &SsdArgs) -> Result<bool, Error> {
    let machine = Machine::here();
    enter_private_namespace()?;
    let fail = || Error::file("make a directory in", &args.dir);
    let directory = Directory::new_in("tidefs-bench-", &args.dir).map_err(fail())?;
    let baseline = PrivateTmpfs::mount(ByteCount::mib(256))?;
    let mut bench = Bench::new(args, directory.path(), baseline.path())?;
    bench.fill_disk()?;
    let mut rows = Vec::new();
    for size in &args.sizes {
        rows.extend(bench.measure_transfers(*size)?);
    }
    if let Some(largest) = args.sizes.iter().max() {
        rows.push(bench.measure_cold_reads(*largest)?);
        rows.extend(bench.measure_hits_beside_offload(*largest)?);
    }
    let small = if args.quick { args.small_objects.min(10_000) } else { args.small_objects };
    let rounds = bench.rounds;
    let notes = bench.subject.ssd()?.io_fallback.map(|why| format!("without io_uring: {why}"));
    if small > 0 {
        rows.extend(bench.measure_memory(small)?);
        rows.extend(bench.measure_restart()?);
    } else {
        bench.progress.finish_and_clear();
    }
    let report = Report {
        machine,
        subject: format!(
            "the SSD tier of a mount against fio with O_DIRECT and huge pages in {}",
            args.dir.display()
        ),
        rounds,
        rows,
        notes: notes.into_iter().collect(),
    };
    args.result.publish(&report, || report.tables() + "\n")?;
    Ok(!args.check || report.missed() == 0)
}

impl Bench {
    fn new(args: &SsdArgs, directory: &Path, baseline: &Path) -> Result<Self, Error> {
        let sample = if args.quick { ByteCount(args.sample.get() / 2) } else { args.sample };
        let rounds = usize::from(if args.quick { args.rounds.min(3) } else { args.rounds });
        let largest = args.sizes.iter().copied().max().unwrap_or(HOT_SIZE).max(HOT_SIZE);
        let depth = usize::from(args.depth);
        let tier = directory.join("tier");
        std::fs::create_dir(&tier).map_err(Error::file("make the directory", &tier))?;
        let small = u64::from(args.small_objects) * SMALL_ON_DISK * 2;
        let samples = SAMPLES.max(small.div_ceil(sample.get().max(1)));
        let options = [
            format!("ssd.dirs={}", tier.display()),
            format!("ssd.capacity={}", sample.get() * samples),
            format!("ssd.loads={}", args.depth),
            // What is opened is to be cold.
            "ssd.prefetch_objects=0".to_owned(),
        ];
        let options: Vec<_> = options.into_iter().chain(args.daemons.options.iter().cloned()).collect();
        // What a round writes fits beside what it loads, and nothing is sent ahead of the clock.
        let small = u64::from(args.small_objects) * SMALL.get();
        let capacity = ByteCount(sample.get() * 4 + small + small / 2 + ByteCount::gib(1).get());
        let available = machine::meminfo("MemAvailable");
        if available < capacity {
            let advice = "give a smaller --sample";
            return Err(Error::Memory { what: "this bench", needed: capacity, available, advice });
        }
        let launch = Launch { binary: args.daemons.binary(), capacity, options };
        let daemon = Daemon::start(&launch.binary, launch.capacity, &launch.options)?;
        let buffers = ByteCount(largest.get() * u64::from(args.depth).max(WRITE_DEPTH as u64));
        Ok(Self {
            rounds,
            sample,
            samples,
            depth,
            launch,
            subject: Subject::new(daemon)?,
            fio: Fio::new(directory, sample, samples, buffers)?,
            memory: memory(baseline, largest)?,
            source: Rotating::new(largest)?,
            target: Rotating::new(largest)?,
            progress: progress_bar(((rounds + 1) * (args.sizes.len() + 2)) as u64),
        })
    }

    /// Fails when the disk refused or lost an object since `before`.
    fn check_nothing_lost(&self, before: f64) -> Result<(), Error> {
        let lost = self.subject.lost()? - before;
        if lost > 0.0 {
            return Err(Error::Invalid(format!(
                "{lost} objects were not taken by the disk or did not come back"
            )));
        }
        Ok(())
    }

    /// Writes to every zone once: their blocks are allocated then, as those of fio are.
    fn fill_disk(&mut self) -> Result<(), Error> {
        let (count, bytes) = objects_of(HOT_SIZE, self.sample)?;
        self.progress.set_message("filling the disk");
        for number in 0..=self.samples {
            let paths = self.subject.write(&format!("fill-{number}"), count, bytes, &mut self.source)?;
            self.subject.evict(ByteCount((count * bytes) as u64))?;
            remove_all(&paths)?;
        }
        Ok(())
    }

    /// Bytes a second to the disk and back.
    fn measure_transfers(&mut self, size: ByteCount) -> Result<[Row; 2], Error> {
        let (count, bytes) = objects_of(size, self.sample)?;
        let moved = (count * bytes) as f64;
        let (mut offload, mut write) = (Vec::new(), Vec::new());
        let (mut promotion, mut read) = (Vec::new(), Vec::new());
        self.progress.set_message(format!("{size} objects"));
        for round in 0..=self.rounds as u64 {
            let before = self.subject.lost()?;
            let paths =
                self.subject.write(&format!("moved-{size}-{round}"), count, bytes, &mut self.source)?;
            let sent = self.subject.evict(ByteCount((count * bytes) as u64))?;
            let written = self.fio.run(Pattern::Write, round, size, WRITE_DEPTH)?;
            let opened = open_all(&paths, self.depth)?;
            let drawn = self.fio.run(Pattern::RandomRead, round, size, self.depth)?;
            remove_all(&paths)?;
            self.check_nothing_lost(before)?;
            if round > 0 {
                offload.push(moved / sent / 1e9);
                write.push(written.rate);
                promotion.push(moved / opened / 1e9);
                read.push(drawn.rate);
            }
            self.progress.inc(1);
        }
        let row = |case: &str, threads, figures| Row {
            threads,
            ..Row::rates(case, size, figures, "fio", Some(Target::RatioAtLeast(0.9)))
        };
        Ok([row("offload", 1, [&offload, &write]), row("promotion", self.depth, [&promotion, &read])])
    }
}

/// A file of `size` in memory, mapped.
fn memory(directory: &Path, size: ByteCount) -> Result<ReadMapping, Error> {
    let path = directory.join("memory");
    let length = usize::try_from(size.get())
        .map_err(|_| Error::Argument(format!("objects of {size} do not fit this machine's addresses")))?;
    std::fs::write(&path, Rotating::new(size)?.next(length)).map_err(Error::file("write", &path))?;
    let file = std::fs::File::open(&path).map_err(Error::file("open", &path))?;
    ReadMapping::new(&file, length).map_err(Error::file("map", &path))
}
