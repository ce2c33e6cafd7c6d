//! How fast shared memory carries operations, beside plain copies of the same memory in the same run.
//!
//! `cargo bench -p tidefs-engine --bench shm`. Each round copies the same bytes three ways, one after the other: a loop of
//! `copy_nonoverlapping` on one thread, which is the baseline, then reads and writes through the transport. The table
//! shows medians, and how far the ratios of single rounds lie apart.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tidefs_engine::error::Error;
use tidefs_engine::memory::{Access, MemorySlice, PageKind, Region};
use tidefs_engine::transport::shm::{ShmOptions, ShmTransport};
use tidefs_engine::transport::{
    BatchId, BoxFuture, Direction, Endpoint, Exchange, Operation, RemoteSlice, Ticket, TicketSink, Transport,
};
use tidefs_engine::types::{ByteCount, Incarnation, MemberId, PeerId, RailId, RegionId};

const MEMORY: u64 = 64 << 20;
const BYTES_PER_SAMPLE: u64 = 1 << 30;
const DEPTH: usize = 32;
const ROUNDS: usize = 15;
const LOCAL: RegionId = RegionId(1);
const REMOTE: RegionId = RegionId(2);

#[derive(Debug)]
struct Direct(Arc<ShmTransport>, PeerId);

impl Exchange for Direct {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        Box::pin(std::future::ready(self.0.answer(self.1, &request)))
    }
}

/// Counts what ended, and wakes who posts.
#[derive(Debug)]
struct Count {
    ended: AtomicUsize,
    failed: AtomicUsize,
    poster: Thread,
}

impl TicketSink for Count {
    fn completed(&self, _index: u32, result: Result<(), Error>) {
        if result.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.ended.fetch_add(1, Ordering::Release);
        self.poster.unpark();
    }
}

fn transfer(
    endpoint: &dyn Endpoint,
    near: &Arc<Region>,
    direction: Direction,
    size: u64,
) -> Result<Duration, Error> {
    let count = usize::try_from(BYTES_PER_SAMPLE / size).unwrap_or(usize::MAX);
    let sink = Arc::new(Count {
        ended: AtomicUsize::new(0),
        failed: AtomicUsize::new(0),
        poster: std::thread::current(),
    });
    let (batch, start) = (BatchId::next(), Instant::now());
    let mut queue = VecDeque::new();
    let mut posted = 0;
    while sink.ended.load(Ordering::Acquire) < count {
        while posted < count && posted - sink.ended.load(Ordering::Acquire) < DEPTH {
            let offset = (posted as u64 * size) % MEMORY;
            let ticket = Ticket::new(Arc::clone(&sink) as Arc<dyn TicketSink>, batch, 0);
            queue.push_back(Operation {
                direction,
                local: MemorySlice::new(near, LOCAL, offset, ByteCount(size))?,
                remote: RemoteSlice { region: REMOTE, key: Arc::from([]), offset },
                rail: RailId(0),
                deadline: start + Duration::from_secs(60),
                ticket,
            });
            posted += 1;
        }
        endpoint.post(&mut queue);
        if posted - sink.ended.load(Ordering::Acquire) >= DEPTH || posted == count {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
    assert_eq!(sink.failed.load(Ordering::Relaxed), 0, "every operation is done");
    Ok(start.elapsed())
}

/// The baseline: the same copies on this thread.
fn plain(near: &Arc<Region>, far: &Arc<Region>, size: u64) -> Result<Duration, Error> {
    let start = Instant::now();
    for number in 0..BYTES_PER_SAMPLE / size {
        let offset = (number * size) % MEMORY;
        let from = MemorySlice::new(far, REMOTE, offset, ByteCount(size))?;
        MemorySlice::new(near, LOCAL, offset, ByteCount(size))?.copy_from(&from);
    }
    Ok(start.elapsed())
}

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

fn run() -> Result<(), Error> {
    let system = |error| Error::system("memory for the bench", &error);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(system)?;
    let threads = std::env::var("COPY_THREADS").ok().and_then(|threads| threads.parse().ok());
    let options = ShmOptions::default();
    let options = ShmOptions { copy_threads: threads.unwrap_or(options.copy_threads), ..options };
    println!("{options:?}, depth {DEPTH}, {ROUNDS} rounds of {}", ByteCount(BYTES_PER_SAMPLE));
    let peer = |member| PeerId { member: MemberId(member), incarnation: Incarnation(1) };
    let (a, b) =
        (ShmTransport::open(options, runtime.handle())?, ShmTransport::open(options, runtime.handle())?);
    let region = || Region::anonymous(ByteCount(MEMORY), PageKind::Base, Access::ReadWrite).map(Arc::new);
    let (near, far) = (region().map_err(system)?, region().map_err(system)?);
    b.register(REMOTE, &far)?;
    let endpoint = runtime.block_on(a.connect(peer(2), &Direct(Arc::clone(&b), peer(1))))?;
    // Touches every page of both mappings.
    plain(&near, &far, 1 << 20)?;
    transfer(&*endpoint, &near, Direction::Read, 1 << 20)?;
    println!("{:>8} {:>12} {:>22} {:>22}", "size", "memcpy GB/s", "read / memcpy", "write / memcpy");
    for size in [4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20] {
        let (mut base, mut read, mut write) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let before = plain(&near, &far, size)?.as_secs_f64();
            read.push(transfer(&*endpoint, &near, Direction::Read, size)?.as_secs_f64());
            write.push(transfer(&*endpoint, &near, Direction::Write, size)?.as_secs_f64());
            base.push(f64::midpoint(before, plain(&near, &far, size)?.as_secs_f64()));
        }
        let ratio = |times: &[f64]| {
            let (middle, low, high) =
                median(base.iter().zip(times).map(|(base, time)| base / time).collect());
            format!("{middle:.2} ({low:.2}-{high:.2})")
        };
        let (ratio_read, ratio_write) = (ratio(&read), ratio(&write));
        let rate = BYTES_PER_SAMPLE as f64 / median(base).0 / 1e9;
        println!("{:>8} {rate:>12.1} {ratio_read:>22} {ratio_write:>22}", ByteCount(size).to_string());
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shm bench: {error}");
            ExitCode::FAILURE
        }
    }
}
