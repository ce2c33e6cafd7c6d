//! Hot path: one client thread that does one case over and over, and the clock around several of them.
//!
//! Threads: each worker has its own thread, objects and buffers; a barrier starts them together. A single
//! worker runs on the calling thread.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use super::object::{self, Writer};
use crate::bench::affinity;
use crate::bench::buffer::Rotating;
use crate::bench::error::Error;
use crate::bench::ffi::ReadMapping;

/// What a worker needs at hand for its case.
#[derive(Debug)]
pub(super) enum Work {
    /// Files that are read from their start.
    Read(Vec<(PathBuf, File)>),
    /// Parts of mappings that are copied.
    Copy(Vec<(Arc<ReadMapping>, usize)>),
    /// Files that are mapped, copied and unmapped.
    MapCopy(Vec<(PathBuf, File)>),
    /// Paths that are opened, read and closed.
    OpenRead(Vec<PathBuf>),
    /// New objects that are written.
    Create(Writer),
}

/// The memory one client thread reads into and writes from.
#[derive(Debug)]
pub(super) struct Buffers {
    /// Where reads land.
    pub(super) target: Rotating,
    /// Where writes come from.
    pub(super) source: Rotating,
}

/// One client thread's share of a case.
#[derive(Debug)]
pub(super) struct Worker {
    /// What it does.
    pub(super) work: Work,
    /// Bytes of one object.
    pub(super) size: usize,
    next: usize,
}

impl Worker {
    /// A worker on objects of `size` bytes.
    pub(super) fn new(work: Work, size: usize) -> Self {
        Self { work, size, next: 0 }
    }

    fn run(&mut self, operations: usize, buffers: &mut Buffers) -> Result<(), Error> {
        (0..operations).try_for_each(|_| {
            self.next += 1;
            self.once(buffers)
        })
    }

    fn once(&mut self, buffers: &mut Buffers) -> Result<(), Error> {
        let (size, turn) = (self.size, self.next);
        match &mut self.work {
            Work::Read(files) => {
                let (path, file) = &files[turn % files.len()];
                read_whole(path, file, buffers.target.next(size))
            }
            Work::Copy(parts) => {
                let (mapping, offset) = &parts[turn % parts.len()];
                mapping.copy_out(*offset, buffers.target.next(size));
                Ok(())
            }
            Work::MapCopy(files) => {
                let (path, file) = &files[turn % files.len()];
                let mapping = ReadMapping::new(file, size).map_err(Error::file("map", path))?;
                mapping.copy_out(0, buffers.target.next(size));
                Ok(())
            }
            Work::OpenRead(paths) => {
                let path = &paths[turn % paths.len()];
                read_whole(path, &object::open(path, 0)?, buffers.target.next(size))
            }
            Work::Create(writer) => writer.write(buffers.source.next(size)),
        }
    }

    /// Cleans up after a sample, outside the timed part.
    ///
    /// # Errors
    /// What the kernel says to unlinking.
    pub(super) fn end_sample(&mut self) -> Result<(), Error> {
        if let Work::Create(writer) = &mut self.work { writer.end_sample() } else { Ok(()) }
    }
}

fn read_whole(path: &std::path::Path, file: &File, target: &mut [u8]) -> Result<(), Error> {
    let moved = file.read_at(target, 0).map_err(Error::file("read", path))?;
    if moved == target.len() {
        return Ok(());
    }
    Err(Error::Short { path: path.to_owned(), moved, expected: target.len() })
}

/// Lets every worker do `operations`, worker i on `cpus[i]` if given. Returns the seconds from the first start
/// to the last end.
///
/// # Errors
/// The error of a worker.
pub(super) fn timed(
    workers: &mut [Worker],
    buffers: &mut [Buffers],
    operations: usize,
    cpus: Option<&[usize]>,
) -> Result<f64, Error> {
    if let ([worker], [buffers, ..]) = (&mut *workers, &mut *buffers) {
        let start = Instant::now();
        worker.run(operations, buffers)?;
        return Ok(start.elapsed().as_secs_f64());
    }
    let barrier = Barrier::new(workers.len());
    let spans = thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .zip(buffers)
            .enumerate()
            .map(|(index, (worker, buffers))| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let placed =
                        cpus.map_or(Ok(()), |cpus| affinity::place_this_thread(&cpus[index..=index]));
                    // Every worker passes the barrier, also one that then reports an error.
                    barrier.wait();
                    let start = Instant::now();
                    placed.and_then(|()| worker.run(operations, buffers)).map(|()| (start, Instant::now()))
                })
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("a worker does not panic");
        threads.into_iter().map(join).collect::<Result<Vec<(Instant, Instant)>, Error>>()
    })?;
    let start = spans.iter().map(|(start, _)| *start).min();
    let end = spans.iter().map(|(_, end)| *end).max();
    Ok(start.zip(end).map_or(0.0, |(start, end)| (end - start).as_secs_f64()))
}
