//! `tidefs bench fastpath`: the client library against memcpy from memory that is mapped once.
//!
//! In each round every case runs in turn, with daemon and client on one CPU, and each is divided by the memcpy of its round.
//! Beside them run the same objects as files of a private tmpfs and of the mount itself, and behind a server that is asked
//! over a unix socket where each lies.
//!
//! Limits: one client thread. The cache of the writes is full, so that each object written evicts one and takes its
//! segment, which is the state that a cache is in.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use tidefs_client::Cache;
use tidefs_engine::types::ByteCount;

use super::affinity::{PinnedDaemons, Placement, allowed_cpus, place_this_thread};
use super::buffer::Rotating;
use super::daemon::{self, Daemon, DaemonArgs};
use super::error::Error;
use super::ffi::ReadMapping;
use super::machine::Machine;
use super::mount::{PrivateTmpfs, enter_private_namespace, make_directory};
use super::report::{Report, ResultArgs, Row, Target, Unit};
use super::rpc::Rpc;
use super::statistics::{Spread, paired_ratios};

/// Bytes of the objects that are read, many times the caches of a CPU.
const HOT: usize = 128 << 20;
/// Capacity of the cache that is read.
const ROOMY: ByteCount = ByteCount::gib(2);
/// Bytes of objects whose references a program keeps: all that it looks up.
const KEPT: usize = 512 << 20;
/// Capacity of the cache that is written.
const FULL: ByteCount = ByteCount::mib(512);
/// Objects that are looked for.
const KEYS: usize = 8176;
/// Their length: no packed one.
const KEY_BYTES: usize = 32 << 10;
/// Sizes and batches of reads, with what the ratio to memcpy must reach.
const READS: [(usize, usize, Option<f64>); 6] = [
    (1 << 20, 1, Some(0.80)),
    (1 << 20, 8, Some(0.93)),
    (1 << 20, 32, Some(0.95)),
    (64 << 10, 1, None),
    (64 << 10, 8, Some(0.70)),
    (64 << 10, 32, Some(0.87)),
];
/// Sizes and batches of writes.
const WRITES: [(usize, usize, Option<f64>); 4] =
    [(1 << 20, 1, Some(0.68)), (1 << 20, 8, None), (4 << 20, 1, Some(0.95)), (4 << 20, 8, None)];
/// Batches of look-ups, with the keys a second that they must reach.
const LOOKUPS: [(usize, f64); 3] = [(1, 0.1e6), (32, 3e6), (511, 12e6)];

/// Arguments of `tidefs bench fastpath`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tidefs bench fastpath\n  tidefs bench fastpath --rounds 3 --json | jq '.rows[] | {case, value}'"
)]
pub(crate) struct FastpathArgs {
    /// Rounds of each case; the result is the median of the rounds.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    #[command(flatten)]
    pub(super) result: ResultArgs,
    /// Exit with 3 when a target is missed.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    daemons: DaemonArgs,
}

/// Seconds of one sample, and bytes or keys that it moved.
#[derive(Clone, Copy)]
struct Sample {
    seconds: f64,
    amount: f64,
}

impl Sample {
    fn of(amount: usize, action: impl FnOnce() -> Result<(), Error>) -> Result<Self, Error> {
        let started = Instant::now();
        action()?;
        let amount = f64::from(u32::try_from(amount).unwrap_or(u32::MAX));
        Ok(Self { seconds: started.elapsed().as_secs_f64(), amount })
    }

    fn rate(self) -> f64 {
        self.amount / self.seconds
    }
}

/// Runs the bench. Returns false when `--check` finds a target missed.
///
/// # Errors
/// Without root, or when an operation fails.
pub(super) fn run(args: &FastpathArgs) -> Result<bool, Error> {
    let machine = Machine::here();
    enter_private_namespace()?;
    let binary = args.daemons.binary();
    let roomy = Daemon::start(&binary, ROOMY, &args.daemons.options)?;
    let full = Daemon::start(&binary, FULL, &args.daemons.options)?;
    let tmpfs = PrivateTmpfs::mount(ROOMY)?;
    let cpus = allowed_cpus()?;
    place_this_thread(&cpus[..1])?;
    let _pinned = PinnedDaemons::pin(&[roomy.pid(), full.pid()], &cpus[..1])?;
    let rounds = usize::from(args.rounds);
    let mut rows = Vec::new();
    for (size, batch, target) in READS {
        rows.extend(reads(&roomy, tmpfs.path(), rounds, (size, batch, target))?);
    }
    rows.extend(lookups(&roomy, rounds)?);
    for (size, batch, target) in WRITES {
        rows.extend(writes(&full, tmpfs.path(), rounds, (size, batch, target))?);
    }
    let count = |name: &str| daemon::metric(full.mount(), name).map(Option::unwrap_or_default);
    let (begun, reused) = (count("tidefs_fast_creates_total")?, count("tidefs_fast_reuses_total")?);
    let report = Report {
        machine,
        subject: "the client library against memcpy from one mapping of a private tmpfs".to_owned(),
        rounds,
        rows,
        notes: vec![
            "the first sample of each case is not counted: segments are mapped in it".to_owned(),
            "kept: by a program that keeps references to what it looked up last, and looks it up again"
                .to_owned(),
            "references that are given back are part of what is measured".to_owned(),
            format!("{reused:.0} of {begun:.0} objects written got the segment of another one"),
        ],
    };
    args.result.publish(&report, || report.tables() + "\n")?;
    Ok(!args.check || report.missed() == 0)
}

fn client(error: tidefs_client::Error) -> Error {
    Error::Invalid(format!("the client library: {error}"))
}

fn open(mount: &Path, name: &str) -> Result<(PathBuf, Cache), Error> {
    let directory = make_directory(mount, name)?;
    let cache = Cache::open(&directory).map_err(client)?;
    if cache.is_fast() {
        Ok((directory, cache))
    } else {
        Err(Error::Invalid("the mount has no fast path".to_owned()))
    }
}

/// The same cache for a program that looks the same keys up again and again.
fn keeping(directory: &Path) -> Result<Cache, Error> {
    let cache = Cache::open(directory).map_err(client)?;
    if cache.keep(KEPT).map_err(client)? {
        Ok(cache)
    } else {
        Err(Error::Invalid("the mount has no names clock".to_owned()))
    }
}

/// A row: its figures, and their ratio to the memcpy of the same rounds.
fn row(
    case: String,
    size: usize,
    unit: Unit,
    figures: &[Sample],
    memcpy: Option<&[Sample]>,
    target: Option<Target>,
) -> Row {
    let scale = if unit == Unit::GigabytesPerSecond { 1e-9 } else { 1.0 };
    let rates = |samples: &[Sample]| samples.iter().map(|sample| sample.rate() * scale).collect::<Vec<_>>();
    let ratio = memcpy.and_then(|memcpy| Spread::of(&paired_ratios(&rates(figures), &rates(memcpy))));
    Row {
        case,
        size: Some(ByteCount(size as u64)),
        threads: 1,
        placement: Some(Placement::Pinned),
        unit,
        value: Spread::of(&rates(figures)),
        baseline: memcpy.and_then(|memcpy| Spread::of(&rates(memcpy))),
        baseline_name: "memcpy",
        ratio,
        memcpy_ratio: ratio,
        target,
    }
}

fn reads(
    daemon: &Daemon,
    tmpfs: &Path,
    rounds: usize,
    (size, batch, target): (usize, usize, Option<f64>),
) -> Result<Vec<Row>, Error> {
    let (directory, cache) = open(daemon.mount(), &format!("read{size}x{batch}"))?;
    let count = HOT / size;
    let keys: Vec<String> = (0..count).map(|index| format!("{index:016x}")).collect();
    let mut source = Rotating::new(ByteCount(size as u64))?;
    let plain = tmpfs.join("plain");
    let mut file = File::create(&plain).map_err(Error::file("create", &plain))?;
    for key in &keys {
        let bytes = source.next(size);
        cache.put(key, bytes).map_err(client)?;
        let path = tmpfs.join(key);
        fs::write(&path, &*bytes).map_err(Error::file("write", &path))?;
        file.write_all(bytes).map_err(Error::file("write", &plain))?;
    }
    let file = File::open(&plain).map_err(Error::file("open", &plain))?;
    let mapping = ReadMapping::new(&file, HOT).map_err(Error::file("map", &plain))?;
    let mut target_buffer = Rotating::new(ByteCount(size as u64))?;
    let places = keys
        .iter()
        .zip(0_u64..)
        .filter_map(|(key, index)| Some((key.as_bytes().try_into().ok()?, index * size as u64)));
    let mut rpc = Rpc::start(places.collect())?;
    let keeps = keeping(&directory)?;
    let [mut memcpy, mut fast, mut kept, mut by_tmpfs, mut by_mount, mut by_rpc] = [const { Vec::new() }; 6];
    for round in 0..=rounds {
        let samples = [
            Sample::of(HOT, || {
                (0..count).for_each(|index| mapping.copy_out(index * size, target_buffer.next(size)));
                Ok(())
            })?,
            Sample::of(HOT, || read_fast(&cache, &keys, batch, size, &mut target_buffer))?,
            Sample::of(HOT, || read_fast(&keeps, &keys, batch, size, &mut target_buffer))?,
            Sample::of(HOT, || read_files(tmpfs, &keys, size, &mut target_buffer))?,
            Sample::of(HOT, || read_files(&directory, &keys, size, &mut target_buffer))?,
            Sample::of(HOT, || {
                keys.iter().try_for_each(|key| {
                    mapping.copy_out(rpc.locate(key)?, target_buffer.next(size));
                    Ok(())
                })
            })?,
        ];
        if round > 0 {
            let lanes = [&mut memcpy, &mut fast, &mut kept, &mut by_tmpfs, &mut by_mount, &mut by_rpc];
            lanes.into_iter().zip(samples).for_each(|(lane, sample)| lane.push(sample));
        }
    }
    cache.flush();
    keeps.flush();
    for key in &keys {
        for path in [directory.join(key), tmpfs.join(key)] {
            fs::remove_file(&path).map_err(Error::file("remove", &path))?;
        }
    }
    let unit = Unit::GigabytesPerSecond;
    let target = target.map(Target::RatioAtLeast);
    let mut rows = vec![
        row(format!("lookup+memcpy, batch {batch}"), size, unit, &fast, Some(&memcpy), target),
        row(format!("the same, kept, batch {batch}"), size, unit, &kept, Some(&memcpy), target),
    ];
    if batch == 1 {
        rows.push(row("tmpfs open+read+close".to_owned(), size, unit, &by_tmpfs, Some(&memcpy), None));
        rows.push(row("mount open+read+close".to_owned(), size, unit, &by_mount, Some(&memcpy), None));
        rows.push(row("unix-socket RPC + memcpy".to_owned(), size, unit, &by_rpc, Some(&memcpy), None));
    }
    Ok(rows)
}

fn read_fast(
    cache: &Cache,
    keys: &[String],
    batch: usize,
    size: usize,
    target: &mut Rotating,
) -> Result<(), Error> {
    for some in keys.chunks(batch) {
        for view in cache.lookup_many(some).map_err(client)? {
            let view = view.ok_or_else(|| Error::Invalid("an object is gone".to_owned()))?;
            target.next(size).copy_from_slice(&view);
        }
    }
    Ok(())
}

fn read_files(directory: &Path, keys: &[String], size: usize, target: &mut Rotating) -> Result<(), Error> {
    for key in keys {
        let path = directory.join(key);
        let mut file = File::open(&path).map_err(Error::file("open", &path))?;
        file.read_exact(target.next(size)).map_err(Error::file("read", &path))?;
    }
    Ok(())
}

fn lookups(daemon: &Daemon, rounds: usize) -> Result<Vec<Row>, Error> {
    let (directory, cache) = open(daemon.mount(), "lookups")?;
    let keeps = keeping(&directory)?;
    let keys: Vec<String> = (0..KEYS).map(|index| format!("{index:016x}")).collect();
    let mut source = Rotating::new(ByteCount(KEY_BYTES as u64))?;
    for some in keys.chunks(64) {
        let objects: Vec<(&str, Vec<u8>)> =
            some.iter().map(|key| (&**key, source.next(KEY_BYTES).to_vec())).collect();
        let objects: Vec<(&str, &[u8])> = objects.iter().map(|(key, bytes)| (*key, &**bytes)).collect();
        cache.put_many(&objects).map_err(client)?;
    }
    let mut rows = Vec::new();
    for (batch, least) in LOOKUPS {
        let [mut found, mut kept, mut counted] = [const { Vec::new() }; 3];
        let look_up = |cache: &Cache| {
            for some in keys.chunks(batch) {
                let views = cache.lookup_many(some).map_err(client)?;
                black_box(views.iter().flatten().count());
            }
            Ok(())
        };
        for round in 0..=rounds {
            let samples = [
                Sample::of(KEYS, || look_up(&cache))?,
                Sample::of(KEYS, || look_up(&keeps))?,
                Sample::of(KEYS, || {
                    keys.chunks(batch).try_for_each(|some| cache.prefix(some).map(|_| ()).map_err(client))
                })?,
            ];
            if round > 0 {
                found.push(samples[0]);
                kept.push(samples[1]);
                counted.push(samples[2]);
            }
        }
        let unit = Unit::KeysPerSecond;
        let target = Some(Target::AtLeast(least));
        rows.push(row(format!("lookup of views, batch {batch}"), KEY_BYTES, unit, &found, None, target));
        rows.push(row(format!("the same, kept, batch {batch}"), KEY_BYTES, unit, &kept, None, target));
        rows.push(row(format!("prefix, batch {batch}"), KEY_BYTES, unit, &counted, None, None));
    }
    Ok(rows)
}

fn writes(
    daemon: &Daemon,
    tmpfs: &Path,
    rounds: usize,
    (size, batch, target): (usize, usize, Option<f64>),
) -> Result<Vec<Row>, Error> {
    let (directory, cache) = open(daemon.mount(), &format!("write{size}x{batch}"))?;
    let count = HOT / size;
    let mut source = Rotating::new(ByteCount(size as u64))?;
    let mut memory = Rotating::new(ByteCount(size as u64))?;
    let [mut memcpy, mut fast, mut by_tmpfs, mut by_mount] = [const { Vec::new() }; 4];
    // Fills the cache, and lets it come to rest at this size.
    let capacity = usize::try_from(FULL.get()).unwrap_or(usize::MAX);
    let warm = 2 * capacity / HOT;
    for round in 0..warm + rounds {
        let names: Vec<String> = (0..count).map(|index| format!("{round:08x}{index:08x}")).collect();
        let fast_sample = Sample::of(HOT, || write_fast(&cache, &names, batch, size, &mut source))?;
        if round < warm {
            continue;
        }
        fast.push(fast_sample);
        memcpy.push(Sample::of(HOT, || {
            (0..count).for_each(|_| memory.next(size).copy_from_slice(source.next(size)));
            Ok(())
        })?);
        if batch == 1 {
            by_tmpfs.push(Sample::of(HOT, || write_files(tmpfs, &names, size, &mut source))?);
            for name in &names {
                let path = tmpfs.join(name);
                fs::remove_file(&path).map_err(Error::file("remove", &path))?;
            }
        }
    }
    for round in 0..if batch == 1 { rounds } else { 0 } {
        let names: Vec<String> = (0..count).map(|index| format!("f{round:08x}{index:08x}")).collect();
        by_mount.push(Sample::of(HOT, || write_files(&directory, &names, size, &mut source))?);
    }
    let unit = Unit::GigabytesPerSecond;
    let target = target.map(Target::RatioAtLeast);
    let mut rows =
        vec![row(format!("create+memcpy+seal, batch {batch}"), size, unit, &fast, Some(&memcpy), target)];
    if batch == 1 {
        rows.push(row("tmpfs create+write+rename".to_owned(), size, unit, &by_tmpfs, Some(&memcpy), None));
        rows.push(row("mount create+write+rename".to_owned(), size, unit, &by_mount, Some(&memcpy), None));
    }
    Ok(rows)
}

fn write_fast(
    cache: &Cache,
    names: &[String],
    batch: usize,
    size: usize,
    source: &mut Rotating,
) -> Result<(), Error> {
    for some in names.chunks(batch) {
        let wanted: Vec<(&str, usize)> = some.iter().map(|name| (&**name, size)).collect();
        let mut writers = cache.create_many(&wanted).map_err(client)?;
        for writer in &mut writers {
            writer.copy_from_slice(source.next(size));
        }
        cache.seal_many(writers).map_err(client)?;
    }
    Ok(())
}

fn write_files(directory: &Path, names: &[String], size: usize, source: &mut Rotating) -> Result<(), Error> {
    for name in names {
        let path = directory.join(name);
        let temporary = directory.join(format!("{name}.tmp"));
        fs::write(&temporary, &*source.next(size)).map_err(Error::file("write", &temporary))?;
        fs::rename(&temporary, &path).map_err(Error::file("rename", &path))?;
    }
    Ok(())
}
