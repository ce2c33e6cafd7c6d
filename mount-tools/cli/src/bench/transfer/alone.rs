//! The engine's own reads of one size, for benches that compare something above it with them.

use tidefs_engine::transport::Direction;
use tidefs_engine::transport::tcp::ZeroCopy;
use tidefs_engine::types::ByteCount;

use super::drive::{self, Drive};
use super::{Opening, Stand, TransferArgs, fabric};
use crate::bench::error::Error;
use crate::bench::report::ResultArgs;
use crate::bench::statistics::percentile;

/// An engine of this process, connected to one of another process.
pub(in crate::bench) struct EngineAlone {
    runtime: tokio::runtime::Runtime,
    stand: Stand,
}

impl EngineAlone {
    /// Starts the other process and connects to it by `transport`.
    ///
    /// # Errors
    /// When either engine does not start.
    pub(in crate::bench) fn start(transport: &str) -> Result<Self, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(Error::system("start the threads of the engine"))?;
        let args = TransferArgs {
            transports: vec![transport.to_owned()],
            sizes: Vec::new(),
            depth: Vec::new(),
            span: super::REGION,
            opening: Opening { fabric: fabric::PROVIDER.to_owned(), zerocopy: ZeroCopy::Auto },
            peers: 1,
            rounds: 1,
            target: false,
            listen: ([127, 0, 0, 1], 0).into(),
            connect: Vec::new(),
            quick: false,
            check: false,
            result: ResultArgs::default(),
        };
        let stand = Stand::start(&runtime, &args, transport)?;
        Ok(Self { runtime, stand })
    }

    /// Bytes a second of `count` reads of `size`, `depth` of them at once.
    ///
    /// # Errors
    /// What the engine says.
    pub(in crate::bench) fn read(&self, size: ByteCount, depth: usize, count: u64) -> Result<f64, Error> {
        let drive =
            Drive { stand: &self.stand, direction: Direction::Read, size, depth, requests: count.max(1) };
        let seconds = drive.sample(&self.runtime)?.seconds;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let bytes = (size.get() * count.max(1)) as f64;
        Ok(bytes / seconds)
    }

    /// Median microseconds of `count` messages of 64 bytes and their answers.
    ///
    /// # Errors
    /// What the engine says.
    pub(in crate::bench) fn round_trip(&self, count: usize) -> Result<f64, Error> {
        let mut latencies = self.runtime.block_on(drive::round_trips(&self.stand, count))?;
        latencies.sort_unstable_by(f64::total_cmp);
        Ok(percentile(&latencies, 0.5))
    }
}

impl Drop for EngineAlone {
    fn drop(&mut self) {
        self.runtime.block_on(self.stand.engine.close());
    }
}
