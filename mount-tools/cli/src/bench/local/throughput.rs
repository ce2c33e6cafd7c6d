//! Bytes a second of whole objects: the mount, the baseline and memcpy, one after another in each round.
//!
//! Invariants
//! - The three are sampled within the same fraction of a second and compared within their round only. A sample
//!   is cut in slices that alternate, so that a neighbour that takes the CPU for a while takes it from all.
//! - The mount and the baseline take turns at being first, and a memcpy runs before each, so that neither finds
//!   in the caches of the CPU what the other left there.
//! - Objects are made, removed and mapped for the first time outside the timed part.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nix::fcntl::OFlag;
use tidefs_engine::types::ByteCount;

use super::case::Case;
use super::object::{self, ObjectSet, Retention, Writer};
use super::worker::{Buffers, Work, Worker, timed};
use super::{Bench, Shape};
use crate::bench::buffer::Rotating;
use crate::bench::error::Error;
use crate::bench::ffi::ReadMapping;
use crate::bench::report::{Row, Target, Unit};
use crate::bench::statistics::{Spread, paired_ratios};

/// Bytes of hot objects: far beyond the cache that one core has for itself.
const HOT: ByteCount = ByteCount::mib(128);
/// Objects at most, so that each can be open several times below common limits of descriptors.
const HOT_OBJECTS_MAX: u64 = 1024;
/// What the baseline of the full cache holds while it unlinks its oldest file for each new one.
const FULL_BASELINE: ByteCount = ByteCount::mib(384);
/// Time for a daemon to end what unlinking left it to do, so that it does not run into the next sample.
const SETTLE: Duration = Duration::from_millis(5);

/// Slices of a sample.
const SLICES: u64 = 4;

// Where one of the sampled lanes gets its bytes.
const MOUNT: usize = 0;
const BASELINE: usize = 1;
const MEMCPY: usize = 2;
const LANES: usize = 3;

/// One case with the workers of each lane and what they reached, in GB/s.
struct Contest {
    case: Case,
    lanes: [Vec<Worker>; LANES],
    reached: [Vec<f64>; LANES],
}

/// Measures every case for objects of `size` and returns its rows.
///
/// # Errors
/// What an operation on the mount or on the baseline says.
pub(super) fn measure(bench: &Bench, shape: Shape, size: ByteCount) -> Result<Vec<Row>, Error> {
    let mut buffers = buffers_for(shape.threads, size)?;
    let object_bytes = bench.object_bytes(size)?;
    let count = HOT.get().div_ceil(size.get()).clamp(shape.threads as u64, HOT_OBJECTS_MAX);
    let count = usize::try_from(count).expect("clamped to a thousand");
    let source = &mut buffers[0].source;
    let on_mount = ObjectSet::write(bench.mount, count, object_bytes, source)?;
    let on_baseline = ObjectSet::write(bench.baseline, count, object_bytes, source)?;
    let mut contests = Vec::new();
    for case in Case::ON_MOUNT {
        let lanes = [
            workers(case, shape.threads, object_bytes, &on_mount, bench.mount)?,
            workers(case, shape.threads, object_bytes, &on_baseline, bench.baseline)?,
            bench.memcpy.workers(shape.threads, object_bytes),
        ];
        contests.push(Contest { case, lanes, reached: [const { Vec::new() }; LANES] });
    }
    if let Some(full) = &bench.full {
        let lanes = full_cache_workers(bench, full.0, full.1, shape.threads, object_bytes, &mut buffers[0])?;
        contests.push(Contest { case: Case::CreateFull, lanes, reached: [const { Vec::new() }; LANES] });
    }
    sample_all(bench, shape, size, &mut contests, &mut buffers)?;
    let rows = contests.iter().map(|contest| contest.row(shape, size)).collect();
    for worker in contests.into_iter().flat_map(|contest| contest.lanes).flatten() {
        if let Work::Create(mut writer) = worker.work {
            writer.unlink_all()?;
        }
    }
    on_mount.remove()?;
    on_baseline.remove()?;
    Ok(rows)
}

/// Measures reads on a mount without passthrough against memcpy.
///
/// # Errors
/// What an operation says.
pub(super) fn measure_without_passthrough(
    bench: &Bench,
    shape: Shape,
    directory: &Path,
) -> Result<Vec<Row>, Error> {
    let size = ByteCount::mib(1);
    let mut buffers = buffers_for(shape.threads, size)?;
    let object_bytes = bench.object_bytes(size)?;
    let objects = ObjectSet::write(directory, 128, object_bytes, &mut buffers[0].source)?;
    let mut contests = Vec::new();
    for case in [Case::Read, Case::OpenRead] {
        let lanes = [
            workers(case, shape.threads, object_bytes, &objects, directory)?,
            Vec::new(),
            bench.memcpy.workers(shape.threads, object_bytes),
        ];
        contests.push(Contest { case, lanes, reached: [const { Vec::new() }; LANES] });
    }
    sample_all(bench, shape, size, &mut contests, &mut buffers)?;
    objects.remove()?;
    Ok(contests.iter().map(|contest| contest.row_against_memcpy(shape, size)).collect())
}

/// The buffers of `threads` client threads.
///
/// # Errors
/// When there is no memory for them.
pub(super) fn buffers_for(threads: usize, size: ByteCount) -> Result<Vec<Buffers>, Error> {
    (0..threads).map(|_| Ok(Buffers { target: Rotating::new(size)?, source: Rotating::new(size)? })).collect()
}

fn sample_all(
    bench: &Bench,
    shape: Shape,
    size: ByteCount,
    contests: &mut [Contest],
    buffers: &mut [Buffers],
) -> Result<(), Error> {
    let cpus = bench.cpus_of(shape);
    let per_thread = bench.sample.get() / SLICES / shape.threads as u64 / size.get();
    let operations = usize::try_from(per_thread.max(1)).expect("a slice is some thousand operations");
    // Round 0 warms up: page tables of mappings, cached names, buffers.
    for round in 0..=bench.rounds {
        for contest in &mut *contests {
            let rates = sample_round(contest, round, operations, buffers, cpus)?;
            if round > 0 {
                for (reached, rate) in contest.reached.iter_mut().zip(rates) {
                    reached.push(rate);
                }
            }
            bench.progress.inc(1);
        }
    }
    Ok(())
}

/// GB/s of each lane over the slices of one round.
fn sample_round(
    contest: &mut Contest,
    round: usize,
    operations: usize,
    buffers: &mut [Buffers],
    cpus: Option<&[usize]>,
) -> Result<[f64; LANES], Error> {
    let (mut bytes, mut seconds) = ([0.0; LANES], [0.0; LANES]);
    for slice in 0..SLICES {
        let mount_first = (round as u64 + slice).is_multiple_of(2);
        let [first, second] = if mount_first { [MOUNT, BASELINE] } else { [BASELINE, MOUNT] };
        for lane in [MEMCPY, first, MEMCPY, second] {
            let workers = &mut contest.lanes[lane];
            if workers.is_empty() {
                continue;
            }
            seconds[lane] += timed(workers, buffers, operations, cpus)?;
            bytes[lane] += workers.iter().map(|worker| (operations * worker.size) as f64).sum::<f64>();
            workers.iter_mut().try_for_each(Worker::end_sample)?;
            if lane == MOUNT && contest.case.writes() {
                thread::sleep(SETTLE);
            }
        }
    }
    Ok(std::array::from_fn(|lane| bytes[lane] / seconds[lane] / 1e9))
}

impl Contest {
    fn row(&self, shape: Shape, size: ByteCount) -> Row {
        let ratios = |lane: usize| Spread::of(&paired_ratios(&self.reached[MOUNT], &self.reached[lane]));
        Row {
            case: self.case.name().to_owned(),
            size: Some(size),
            threads: shape.threads,
            placement: Some(shape.placement),
            unit: Unit::GigabytesPerSecond,
            value: Spread::of(&self.reached[MOUNT]),
            baseline: Spread::of(&self.reached[BASELINE]),
            baseline_name: "tmpfs",
            ratio: ratios(BASELINE),
            memcpy_ratio: ratios(MEMCPY),
            target: self.case.target(size),
        }
    }

    fn row_against_memcpy(&self, shape: Shape, size: ByteCount) -> Row {
        let ratio = Spread::of(&paired_ratios(&self.reached[MOUNT], &self.reached[MEMCPY]));
        Row {
            case: format!("{}, no passthrough", self.case.name()),
            size: Some(size),
            threads: shape.threads,
            placement: Some(shape.placement),
            unit: Unit::GigabytesPerSecond,
            value: Spread::of(&self.reached[MOUNT]),
            baseline: Spread::of(&self.reached[MEMCPY]),
            baseline_name: "memcpy",
            ratio,
            memcpy_ratio: ratio,
            target: Some(Target::RatioAtLeast(0.3)),
        }
    }
}

/// The workers of one lane: object i belongs to thread i modulo the threads.
fn workers(
    case: Case,
    threads: usize,
    size: usize,
    objects: &ObjectSet,
    directory: &Path,
) -> Result<Vec<Worker>, Error> {
    (0..threads)
        .map(|thread| {
            let paths: Vec<_> = objects.paths.iter().skip(thread).step_by(threads).cloned().collect();
            let opened = |flags| {
                let open = |path: &std::path::PathBuf| Ok((path.clone(), object::open(path, flags)?));
                paths.iter().map(open).collect::<Result<Vec<_>, Error>>()
            };
            let work = match case {
                Case::Read => Work::Read(opened(0)?),
                Case::ReadDirect => Work::Read(opened(OFlag::O_DIRECT.bits())?),
                Case::MapCopy => Work::MapCopy(opened(0)?),
                Case::CopyMapped => Work::Copy(
                    opened(0)?
                        .iter()
                        .map(|(path, file)| {
                            let mapping = ReadMapping::new(file, size).map_err(Error::file("map", path))?;
                            Ok((Arc::new(mapping), 0))
                        })
                        .collect::<Result<_, Error>>()?,
                ),
                Case::OpenRead => Work::OpenRead(paths),
                Case::Create | Case::CreateFull => {
                    let prefix = format!("new-{thread}");
                    Work::Create(Writer::new(directory, prefix, Retention::UnlinkAfterSample))
                }
            };
            Ok(Worker::new(work, size))
        })
        .collect()
}

/// Writers into a full mount of `capacity`, and into a baseline that is kept at a fixed number of files.
fn full_cache_workers(
    bench: &Bench,
    directory: &Path,
    capacity: ByteCount,
    threads: usize,
    size: usize,
    buffers: &mut Buffers,
) -> Result<[Vec<Worker>; LANES], Error> {
    let share = |total: ByteCount| ByteCount(total.get() / threads as u64);
    let filled = |directory: &Path, retention, total: ByteCount, buffers: &mut Buffers| {
        (0..threads)
            .map(|thread| {
                // A new name for each fill, so that none of an earlier size is written again.
                let prefix = format!("full-{size}-{threads}-{thread}-{}", bench.next_name());
                let mut writer = Writer::new(directory, prefix, retention);
                writer.fill(total, size, &mut buffers.source)?;
                Ok(Worker::new(Work::Create(writer), size))
            })
            .collect::<Result<Vec<_>, Error>>()
    };
    let kept = usize::try_from(share(FULL_BASELINE).get()).map_or(1, |bytes| (bytes / size).max(1));
    let beyond = ByteCount(capacity.get() + capacity.get() / 4);
    Ok([
        filled(directory, Retention::LeaveToEviction, beyond, buffers)?,
        filled(bench.baseline, Retention::UnlinkOldest { kept }, share(FULL_BASELINE), buffers)?,
        bench.memcpy.workers(threads, size),
    ])
}

/// One large file on the baseline, mapped once: the source of the memcpy that everything is compared with.
#[derive(Debug)]
pub(super) struct MemcpySource {
    mapping: Arc<ReadMapping>,
    length: usize,
}

impl MemcpySource {
    /// Makes the file below `directory`, with room for an object of `largest`.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn new(directory: &Path, largest: ByteCount) -> Result<Self, Error> {
        let path = directory.join("memcpy");
        let length = HOT.max(largest);
        let mut bytes = Rotating::new(length)?;
        let length = usize::try_from(length.get()).expect("a buffer of that length exists");
        let file = File::create(&path).map_err(Error::file("create", &path))?;
        // The length comes first, so that the kernel takes huge pages for what lies within it.
        file.set_len(length as u64).map_err(Error::file("extend", &path))?;
        file.write_all_at(bytes.next(length), 0).map_err(Error::file("write", &path))?;
        let file = object::open(&path, 0)?;
        let mapping = Arc::new(ReadMapping::new(&file, length).map_err(Error::file("map", &path))?);
        Ok(Self { mapping, length })
    }

    fn workers(&self, threads: usize, size: usize) -> Vec<Worker> {
        let parts = |thread: usize| {
            let offsets = (0..self.length / size).map(|index| index * size);
            offsets.skip(thread % (self.length / size)).step_by(threads)
        };
        (0..threads)
            .map(|thread| {
                let parts = parts(thread).map(|offset| (Arc::clone(&self.mapping), offset)).collect();
                Worker::new(Work::Copy(parts), size)
            })
            .collect()
    }
}
