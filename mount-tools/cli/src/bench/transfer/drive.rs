//! Moves bytes through the engine, as many requests at once as the depth says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tidefs_engine::request::{Batch, LocalPlace, RemotePlace, Request};
use tidefs_engine::transport::Direction;
use tidefs_engine::types::ByteCount;

use super::target::{CPU, ECHO, SEED};
use super::{REGION, REQUEST_DEADLINE, Stand, baseline, pattern};
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
    /// The request `index`: local and remote places have the same offset, so contents can be compared.
    fn request(&self, index: u64) -> Request {
        let (peer, offer) = &self.stand.peers[usize::try_from(index).unwrap_or(0) % self.stand.peers.len()];
        let places = (REGION.get() / self.size.get()).max(1);
        let offset = index % places * self.size.get();
        Request {
            direction: self.direction,
            local: LocalPlace { region: self.stand.local, offset },
            remote: RemotePlace { peer: *peer, region: offer.region, offset },
            length: self.size,
        }
    }

    /// Moves everything once.
    pub(super) async fn sample(&self) -> Result<Sample, Error> {
        let cpu = cpu_seconds(self.stand).await?;
        let next = Arc::new(AtomicU64::new(0));
        // Every place with every peer, so that all of both regions is used.
        let different = (REGION.get() / self.size.get()).max(1) * self.stand.peers.len() as u64;
        let made: Arc<Vec<Request>> = Arc::new((0..different).map(|index| self.request(index)).collect());
        let began = Instant::now();
        let mut workers = Vec::with_capacity(self.depth);
        for _ in 0..self.depth {
            let (next, engine) = (Arc::clone(&next), self.stand.engine.clone());
            let made = Arc::clone(&made);
            let total = self.requests;
            workers.push(tokio::spawn(async move {
                let mut latencies = Vec::new();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= total {
                        return Ok(latencies);
                    }
                    let request = made[usize::try_from(index % made.len() as u64).unwrap_or(0)];
                    let started = Instant::now();
                    let batch = Batch::new(vec![request], started + REQUEST_DEADLINE);
                    engine.submit(batch).await.into_result()?;
                    latencies.push(started.elapsed().as_secs_f64() * 1e6);
                }
            }));
        }
        let mut latencies_us = Vec::new();
        for worker in workers {
            let ended: Result<Vec<f64>, tidefs_engine::error::Error> = worker
                .await
                .map_err(|error| Error::Invalid(format!("a worker of the bench ended: {error}")))?;
            latencies_us.extend(ended.map_err(Error::engine("move bytes"))?);
        }
        let seconds = began.elapsed().as_secs_f64();
        let cpu_seconds = cpu_seconds(self.stand).await? - cpu;
        Ok(Sample { seconds, cpu_seconds, latencies_us })
    }

    /// Checks every byte that the last requests moved.
    pub(super) async fn verify(&self) -> Result<(), Error> {
        let wrong = |at: u64| Error::Invalid(format!("wrong bytes arrived at offset {at} of the region"));
        let covered = self.requests.min(REGION.get() / self.size.get()) * self.size.get();
        let region = &self.stand.region;
        if self.direction == Direction::Read {
            return pattern::first_difference(region, SEED, covered).map_or(Ok(()), |at| Err(wrong(at)));
        }
        // What was written is read back into memory that was made to differ.
        pattern::fill(region, 0);
        let read = Drive { direction: Direction::Read, depth: 4, ..*self };
        read.sample().await?;
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
