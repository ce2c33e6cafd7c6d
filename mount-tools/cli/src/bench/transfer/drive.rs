//! Moves bytes through the engine, as many requests at once as the depth says.

use std::collections::VecDeque;
use std::time::Instant;

use tidefs_engine::queue::TransferHandle;
use tidefs_engine::request::{Batch, LocalPlace, RemotePlace, Request};
use tidefs_engine::transport::Direction;
use tidefs_engine::types::ByteCount;
use tokio::runtime::Runtime;

use super::target::{CPU, ECHO, SEED};
use super::{REQUEST_DEADLINE, Stand, baseline, pattern};
use crate::bench::error::Error;

/// One case.
pub(super) struct Drive<'a> {
    pub(super) stand: &'a Stand,
    pub(super) direction: Direction,
    pub(super) size: ByteCount,
    pub(super) depth: usize,
    pub(super) requests: u64,
}

/// What one sample took.
pub(super) struct Sample {
    pub(super) seconds: f64,
    /// Of this process and all targets.
    pub(super) cpu_seconds: f64,
    pub(super) latencies_us: Vec<f64>,
}

impl Drive<'_> {
    /// Places of the requests in each region.
    fn places(&self) -> u64 {
        (self.stand.span.get() / self.size.get()).max(1)
    }

    /// The request `index`: local and remote places have the same offset, so contents can be compared.
    fn request(&self, index: u64) -> Request {
        let (peer, offer) = &self.stand.peers[usize::try_from(index).unwrap_or(0) % self.stand.peers.len()];
        let offset = index % self.places() * self.size.get();
        Request {
            direction: self.direction,
            local: LocalPlace { region: self.stand.local, offset },
            remote: RemotePlace { peer: *peer, region: offer.region, offset },
            length: self.size,
        }
    }

    /// Moves everything once.
    pub(super) fn sample(&self, runtime: &Runtime) -> Result<Sample, Error> {
        let cpu = runtime.block_on(cpu_seconds(self.stand))?;
        // Every place with every peer, so that all of both regions is used.
        let different = self.places() * self.stand.peers.len() as u64;
        let made: Vec<Request> = (0..different).map(|index| self.request(index)).collect();
        let began = Instant::now();
        let latencies_us = self.move_all(&made).map_err(Error::engine("move bytes"))?;
        let seconds = began.elapsed().as_secs_f64();
        let cpu_seconds = runtime.block_on(cpu_seconds(self.stand))? - cpu;
        Ok(Sample { seconds, cpu_seconds, latencies_us })
    }

    /// Keeps as many requests under way as the depth says, from one thread that waits for the oldest. Returns how long
    /// each took.
    fn move_all(&self, made: &[Request]) -> Result<Vec<f64>, tidefs_engine::error::Error> {
        let mut latencies = Vec::with_capacity(usize::try_from(self.requests).unwrap_or(0));
        let mut under_way = VecDeque::with_capacity(self.depth);
        let mut end = |handle: TransferHandle| {
            let report = handle.wait();
            latencies.push(report.elapsed.as_secs_f64() * 1e6);
            report.into_result()
        };
        for request in made.iter().cycle().take(usize::try_from(self.requests).unwrap_or(usize::MAX)) {
            if under_way.len() >= self.depth {
                under_way.pop_front().map_or(Ok(()), &mut end)?;
            }
            let batch = Batch::new(vec![*request], Instant::now() + REQUEST_DEADLINE);
            under_way.push_back(self.stand.engine.submit(batch));
        }
        under_way.into_iter().try_for_each(end)?;
        Ok(latencies)
    }

    /// Checks every byte that the last requests moved.
    pub(super) fn verify(&self, runtime: &Runtime) -> Result<(), Error> {
        let wrong = |at: u64| Error::Invalid(format!("wrong bytes arrived at offset {at} of the region"));
        let covered = self.requests.min(self.places()) * self.size.get();
        let region = &self.stand.region;
        if self.direction == Direction::Read {
            return pattern::first_difference(region, SEED, covered).map_or(Ok(()), |at| Err(wrong(at)));
        }
        // What was written is read back into memory that was made to differ.
        pattern::fill(region, 0);
        let read = Drive { direction: Direction::Read, depth: 4, ..*self };
        read.sample(runtime)?;
        pattern::first_difference(region, SEED, covered).map_or(Ok(()), |at| Err(wrong(at)))
    }
}

/// Latencies of `count` messages of 64 bytes, one after the other, in microseconds.
pub(super) async fn round_trips(stand: &Stand, count: usize) -> Result<Vec<f64>, Error> {
    let (engine, peer) = (stand.engine.clone(), stand.peers[0].0);
    let task = tokio::spawn(async move {
        let mut latencies = Vec::with_capacity(count);
        for _ in 0..count {
            let began = Instant::now();
            engine.call(peer, ECHO, vec![7; 64], began + REQUEST_DEADLINE).await?;
            latencies.push(began.elapsed().as_secs_f64() * 1e6);
        }
        Ok(latencies)
    });
    let ended: Result<_, tidefs_engine::error::Error> =
        task.await.map_err(|error| Error::Invalid(format!("a worker of the bench ended: {error}")))?;
    ended.map_err(Error::engine("send messages"))
}

/// Processor time of this process and of all targets.
async fn cpu_seconds(stand: &Stand) -> Result<f64, Error> {
    let mut total = baseline::cpu_seconds();
    for (peer, _) in &stand.peers {
        let answer = stand.engine.call(*peer, CPU, Vec::new(), Instant::now() + REQUEST_DEADLINE).await;
        let answer = answer.map_err(Error::engine("ask a target for its processor time"))?;
        let seconds = String::from_utf8_lossy(&answer).parse::<f64>();
        total += seconds
            .map_err(|_| Error::Invalid("a target tells its processor time in other words".to_owned()))?;
    }
    Ok(total)
}
