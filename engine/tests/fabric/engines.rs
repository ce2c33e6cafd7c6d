//! Engines over the strict provider, with sockets beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidefs_engine::engine::{Engine, EngineConfig, NoMessages, TransportName, TransportOptions};
use tidefs_engine::link::LinkConfig;
use tidefs_engine::memory::{Access, PageKind, Region};
use tidefs_engine::request::{Batch, LocalPlace, RemotePlace, Request};
use tidefs_engine::transport::libfabric::{Fabric, FabricConfig};
use tidefs_engine::transport::{Direction, Transport};
use tidefs_engine::types::{ByteCount, PeerId, RegionId};
use tokio::runtime::Runtime;

use crate::harness::{
    PATIENCE, alone, expect_no_violation, memory_max, open_strict, open_with, peer, silence, strict_config,
};

const LENGTH: u64 = 1 << 20;

struct End {
    engine: Engine,
    id: PeerId,
    region: Arc<Region>,
    region_id: RegionId,
}

impl End {
    fn start(runtime: &Runtime, fabric: Arc<Fabric>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = peer(NEXT.fetch_add(1, Ordering::Relaxed));
        let config = EngineConfig {
            link: LinkConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], ..LinkConfig::default() },
            ..EngineConfig::new(id)
        };
        let open = |parts: &_| {
            Ok(vec![
                fabric as Arc<dyn Transport>,
                TransportName::Tcp.open(&TransportOptions::default(), parts)?,
            ])
        };
        let engine = Engine::start(runtime.handle().clone(), config, Arc::new(NoMessages), open).unwrap();
        let region = Region::anonymous(ByteCount(LENGTH), PageKind::Base, Access::ReadWrite).unwrap();
        let region = Arc::new(region);
        let region_id = engine.register(&region).unwrap();
        Self { engine, id, region, region_id }
    }

    fn read(&self, other: &Self) -> Request {
        Request {
            direction: Direction::Read,
            local: LocalPlace { region: self.region_id, offset: 0 },
            remote: RemotePlace { peer: other.id, region: other.region_id, offset: 0 },
            length: ByteCount(LENGTH),
        }
    }
}

/// A region that the NIC has no room for is filled by way of sockets, though the peer's region is within its reach.
#[test]
fn local_memory_that_the_nic_refuses_goes_another_way() {
    let _alone = alone();
    let (Some(near), Some(far)) = (open_strict(), open_strict()) else { return };
    let runtime = Runtime::new().unwrap();
    let there = End::start(&runtime, far);
    memory_max(64 << 10);
    let here = End::start(&runtime, near);
    memory_max(0);
    assert!(there.region.write_at(LENGTH - 5, b"whole"));
    let until = Instant::now() + PATIENCE;
    runtime.block_on(here.engine.connect(&there.engine.descriptor(), until)).unwrap();
    here.engine.submit(Batch::new(vec![here.read(&there)], until)).wait().into_result().unwrap();
    let mut found = [0; 5];
    assert!(here.region.read_at(LENGTH - 5, &mut found) && found == *b"whole");
    runtime.block_on(async { tokio::join!(here.engine.close(), there.engine.close()) });
    drop((here, there));
    expect_no_violation();
}

/// The fabric lets connections be made, and nothing gets through: a transfer goes by sockets long before its deadline,
/// the next ones at once, and more and more time passes before the fabric is tried again.
#[test]
fn a_fabric_that_swallows_everything_costs_a_moment_and_no_deadline() {
    let _alone = alone();
    let config = || FabricConfig { silence: Duration::from_millis(300), ..strict_config() };
    let (Some(near), Some(far)) = (open_with(&config()), open_with(&config())) else { return };
    let runtime = Runtime::new().unwrap();
    let (here, there) = (End::start(&runtime, near), End::start(&runtime, far));
    assert!(there.region.write_at(LENGTH - 5, b"whole"));
    let until = || Instant::now() + PATIENCE;
    runtime.block_on(here.engine.connect(&there.engine.descriptor(), until())).unwrap();
    silence(true);
    let read = || {
        let report = here.engine.submit(Batch::new(vec![here.read(&there)], until())).wait();
        let elapsed = report.elapsed;
        report.into_result().unwrap();
        elapsed
    };
    let first = read();
    assert!(first < PATIENCE / 4, "{first:?}");
    // Each trial of the fabric fails once: for twice as long as before, all goes by sockets.
    let began = Instant::now();
    let mut trials = 0;
    while began.elapsed() < Duration::from_secs(8) {
        trials += u32::from(read() > Duration::from_millis(300));
        std::thread::sleep(Duration::from_millis(20));
        // An endpoint that is opened again is another, and heard at first.
        silence(true);
    }
    assert!(trials <= 5, "{trials} transfers were delayed in 8 s");
    silence(false);
    runtime.block_on(async { tokio::join!(here.engine.close(), there.engine.close()) });
    drop((here, there));
    expect_no_violation();
}
