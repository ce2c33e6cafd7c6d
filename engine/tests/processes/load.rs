//! Random batches whose every byte is checked.
//!
//! Memory of a peer: a *shared* region, whose first half holds a pattern that everybody may read, and whose second half
//! is cut into parts, one for each member that writes there; and a *private* one, from and into which it moves.
//!
//! Checked is also what must not happen: memory that a failed read was to fill is poisoned when it has ended, and looked
//! at again much later; and an end that is told twice would make the engine count more ends than requests.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::engine::Engine;
use tidefs_engine::memory::{Access, PageKind, Region};
use tidefs_engine::queue::{Priority, Report};
use tidefs_engine::request::{Batch, LocalPlace, RemotePlace, Request};
use tidefs_engine::rng::Rng;
use tidefs_engine::transport::Direction;
use tidefs_engine::types::{ByteCount, PeerId, RegionId};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::orders::{Load, Outcome, Target, Ways};
use crate::pattern;

/// Bytes of the shared region, and of the private one.
const LENGTH: u64 = 64 << 20;
const HALF: u64 = LENGTH / 2;
/// Parts of the half that is written.
const WRITERS: u64 = 4;
/// The engine numbers regions from 1: the shared one is registered first, at every peer.
pub(crate) const SHARED: RegionId = RegionId(1);
const POISON: u8 = 0xee;
/// After this time nothing of a failed request is under way any more, in this process or another.
const SETTLED: Duration = Duration::from_secs(10);

/// The memory of a peer.
#[derive(Debug)]
pub(crate) struct Memory {
    me: PeerId,
    private: Arc<Region>,
    pub(crate) private_id: RegionId,
    _shared: Arc<Region>,
}

impl Memory {
    pub(crate) fn register(engine: &Engine, me: PeerId) -> Self {
        let region =
            || Arc::new(Region::anonymous(ByteCount(LENGTH), PageKind::Base, Access::ReadWrite).unwrap());
        let (shared, private) = (region(), region());
        for offset in (0..HALF).step_by(1 << 20) {
            assert!(shared.write_at(offset, &pattern::bytes(me.member.0, offset, 1 << 20)));
        }
        assert_eq!(engine.register(&shared).unwrap(), SHARED);
        let private_id = engine.register(&private).unwrap();
        Self { me, private, private_id, _shared: shared }
    }
}

/// A load under way.
#[derive(Debug)]
pub(crate) struct Running {
    is_over: Arc<AtomicBool>,
    outcome: Arc<Mutex<Outcome>>,
    workers: Vec<JoinHandle<()>>,
    engine: Engine,
    /// Ends that the engine had counted before.
    counted: u64,
}

fn counted(engine: &Engine) -> u64 {
    let metrics = engine.metrics().snapshot();
    metrics.requests_succeeded_total + metrics.requests_failed_total
}

impl Running {
    pub(crate) fn start(runtime: &Runtime, engine: &Engine, memory: &Arc<Memory>, load: Load) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let outcome = Arc::new(Mutex::new(Outcome::default()));
        let before = counted(engine);
        let load = Arc::new(load);
        let worker = |number| {
            let worker = Worker {
                engine: engine.clone(),
                memory: Arc::clone(memory),
                rng: Rng::seeded(load.seed.wrapping_mul(1000).wrapping_add(number)),
                number,
                load: Arc::clone(&load),
                outcome: Arc::clone(&outcome),
                areas: VecDeque::new(),
                far: Vec::new(),
            };
            runtime.spawn(worker.run(Arc::clone(&is_over)))
        };
        let workers = (0..load.depth).map(worker).collect();
        Self { is_over, outcome, workers, engine: engine.clone(), counted: before }
    }

    pub(crate) fn look(&self) -> Outcome {
        self.outcome.lock().clone()
    }

    /// Ends when all batches have.
    pub(crate) async fn stop(self) -> Outcome {
        self.is_over.store(true, Ordering::Release);
        for worker in self.workers {
            worker.await.unwrap();
        }
        let mut outcome = self.outcome.lock().clone();
        // By the engine's own count, not by that of the handles.
        outcome.ended = counted(&self.engine) - self.counted;
        outcome
    }
}

/// A piece of private memory that was poisoned.
#[derive(Clone, Copy, Debug)]
struct Area {
    start: u64,
    is_poisoned: bool,
}

/// A place of a peer that this worker alone writes.
#[derive(Clone, Copy, Debug)]
struct Far {
    start: u64,
    /// Not to be used before: a failed write may still arrive.
    free: Instant,
}

struct Worker {
    engine: Engine,
    memory: Arc<Memory>,
    rng: Rng,
    number: u64,
    load: Arc<Load>,
    outcome: Arc<Mutex<Outcome>>,
    /// Private memory in turn, so that each lies idle for a while between uses.
    areas: VecDeque<Area>,
    /// For each target.
    far: Vec<VecDeque<Far>>,
}

impl Worker {
    async fn run(mut self, is_over: Arc<AtomicBool>) {
        let bytes = self.load.batch_bytes_max;
        let share = LENGTH / self.load.depth;
        let areas = share / bytes;
        assert!(areas >= 2, "a load that does not fit");
        self.areas = (0..areas)
            .map(|area| Area { start: self.number * share + area * bytes, is_poisoned: false })
            .collect();
        let part = HALF / WRITERS;
        let place = part / self.load.depth;
        assert!(place >= bytes || self.load.ways == Ways::Reads, "writes that do not fit");
        let own = HALF + self.memory.me.member.0 % WRITERS * part + self.number * place;
        let now = Instant::now();
        let far: VecDeque<Far> =
            (0..place / bytes).map(|slot| Far { start: own + slot * bytes, free: now }).collect();
        self.far = vec![far; self.load.targets.len()];
        while !is_over.load(Ordering::Acquire) {
            let index = usize::try_from(self.rng.below(self.load.targets.len() as u64)).unwrap();
            let is_read = match self.load.ways {
                Ways::Reads => true,
                Ways::Writes => false,
                Ways::Both => self.rng.chance(0.5),
            };
            if is_read { self.read(index).await } else { self.write(index).await }
        }
    }

    fn wrong(&self, what: String) {
        let mut outcome = self.outcome.lock();
        if outcome.wrong.len() < 5 {
            outcome.wrong.push(what);
        }
    }

    /// The next private area, checked and poisoned for `length` bytes.
    fn take_area(&mut self, length: u64) -> u64 {
        let area = self.areas.pop_front().unwrap();
        let bytes = usize::try_from(self.load.batch_bytes_max).unwrap();
        if area.is_poisoned {
            let mut found = vec![0; bytes];
            assert!(self.memory.private.read_at(area.start, &mut found));
            if let Some(at) = found.iter().position(|&byte| byte != POISON) {
                self.wrong(format!(
                    "something was stored at {at} of {} after its read had failed",
                    area.start
                ));
            }
        }
        assert!(length <= bytes as u64);
        area.start
    }

    /// Gives an area back, poisoned when what was to be stored there was not.
    fn return_area(&mut self, start: u64, has_failed: bool) {
        if has_failed {
            let bytes = usize::try_from(self.load.batch_bytes_max).unwrap();
            assert!(self.memory.private.write_at(start, &vec![POISON; bytes]));
        }
        self.areas.push_back(Area { start, is_poisoned: has_failed });
    }

    /// Lengths of the requests of a batch.
    fn lengths(&mut self) -> Vec<u64> {
        let count = 1 + self.rng.below(self.load.requests_max);
        let mut room = self.load.batch_bytes_max - count;
        let mut length = |_| {
            // Half of them small, of any length.
            let longest = if self.rng.chance(0.5) { room } else { room.min(4096) };
            let length = 1 + self.rng.below(longest + 1);
            room -= length - 1;
            length
        };
        (0..count).map(&mut length).collect()
    }

    fn requests(&self, direction: Direction, target: &Target, places: &[(u64, u64, u64)]) -> Vec<Request> {
        let request = |&(local, remote, length): &(u64, u64, u64)| Request {
            direction,
            local: LocalPlace { region: self.memory.private_id, offset: local },
            remote: RemotePlace { peer: target.id, region: SHARED, offset: remote },
            length: ByteCount(length),
        };
        places.iter().map(request).collect()
    }

    /// Submits, waits and counts. Which requests succeeded.
    async fn submit(&mut self, requests: Vec<Request>) -> Vec<bool> {
        let (count, bytes) =
            (requests.len() as u64, requests.iter().map(|request| request.length.0).sum::<u64>());
        self.outcome.lock().submitted += count;
        let deadline = Instant::now() + Duration::from_millis(self.load.deadline_ms);
        let priority = [Priority::Background, Priority::Normal, Priority::Urgent]
            [usize::try_from(self.rng.below(3)).unwrap()];
        let handle = self.engine.submit(Batch { priority, ..Batch::new(requests, deadline) });
        if self.rng.chance(self.load.cancelled) {
            tokio::time::sleep(self.rng.time_below(Duration::from_millis(2))).await;
            handle.cancel();
        }
        let report = handle.await;
        let late = Instant::now().saturating_duration_since(deadline);
        let ends: Vec<bool> = report.entries.iter().map(Result::is_ok).collect();
        self.count(&report, late, bytes);
        if !ends.iter().any(|&is_ok| is_ok) {
            // A peer that is gone refuses at once: not a thousand times a second.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ends
    }

    fn count(&self, report: &Report, late: Duration, bytes: u64) {
        let mut outcome = self.outcome.lock();
        outcome.ended += report.entries.len() as u64;
        outcome.late_ms_max = outcome.late_ms_max.max(u64::try_from(late.as_millis()).unwrap());
        let mut failed = 0;
        for error in report.entries.iter().filter_map(|entry| entry.as_ref().err()) {
            failed += 1;
            let words: String = error.to_string().chars().filter(|char| !char.is_ascii_digit()).collect();
            *outcome.errors.entry(words).or_default() += 1;
        }
        outcome.succeeded += report.entries.len() as u64 - failed;
        outcome.bytes += if failed == 0 { bytes } else { 0 };
    }

    async fn read(&mut self, index: usize) {
        let target = self.load.targets[index].clone();
        let lengths = self.lengths();
        let start = self.take_area(lengths.iter().sum());
        let mut at = start;
        let mut places = Vec::new();
        for length in lengths {
            places.push((at, self.rng.below(HALF - length), length));
            at += length;
        }
        let ends = self.submit(self.requests(Direction::Read, &target, &places)).await;
        for (&(local, remote, length), is_ok) in places.iter().zip(&ends) {
            if *is_ok {
                self.compare(
                    local,
                    &pattern::bytes(target.id.member.0, remote, usize::try_from(length).unwrap()),
                    "a read",
                );
            }
        }
        self.outcome.lock().verified += u64::from(ends.iter().all(|&is_ok| is_ok));
        self.return_area(start, ends.iter().any(|is_ok| !is_ok));
    }

    fn compare(&self, local: u64, wanted: &[u8], what: &str) {
        let mut found = vec![0; wanted.len()];
        assert!(self.memory.private.read_at(local, &mut found));
        if let Some(at) = (0..wanted.len()).find(|&at| found[at] != wanted[at]) {
            self.wrong(format!(
                "{what} of {} bytes differs from byte {at} on: {:02x?} for {:02x?}",
                wanted.len(),
                &found[at..(at + 8).min(found.len())],
                &wanted[at..(at + 8).min(wanted.len())]
            ));
        }
    }

    /// Writes, and reads back what arrived.
    async fn write(&mut self, index: usize) {
        let target = self.load.targets[index].clone();
        let Some(place) = self.far[index].iter().position(|far| far.free <= Instant::now()) else {
            return self.read(index).await;
        };
        let mut far = self.far[index].remove(place).unwrap();
        let lengths = self.lengths();
        let total: u64 = lengths.iter().sum();
        let start = self.take_area(total);
        let seed = self.rng.next_u64();
        let wanted = pattern::bytes(seed, 0, usize::try_from(total).unwrap());
        assert!(self.memory.private.write_at(start, &wanted));
        let mut at = 0;
        let mut places = Vec::new();
        for length in lengths {
            places.push((start + at, far.start + at, length));
            at += length;
        }
        let is_written =
            self.submit(self.requests(Direction::Write, &target, &places)).await.iter().all(|&is_ok| is_ok);
        self.compare(start, &wanted, "the source of a write");
        if is_written {
            assert!(self.memory.private.write_at(start, &vec![0; wanted.len()]));
            let back = self.requests(Direction::Read, &target, &[(start, far.start, total)]);
            let is_read = self.submit(back).await.iter().all(|&is_ok| is_ok);
            if is_read {
                self.compare(start, &wanted, "what was written");
                self.outcome.lock().verified += 1;
            }
            self.return_area(start, !is_read);
        } else {
            far.free = Instant::now() + SETTLED;
            self.return_area(start, true);
        }
        self.far[index].push_back(far);
    }
}
