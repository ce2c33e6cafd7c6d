//! Engines over the strict provider, with sockets beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tidefs_engine::engine::{Engine, EngineConfig, NoMessages, TransportName};
use tidefs_engine::link::LinkConfig;
use tidefs_engine::memory::{Access, PageKind, Region};
use tidefs_engine::request::{Batch, LocalPlace, RemotePlace, Request};
use tidefs_engine::transport::libfabric::Fabric;
use tidefs_engine::transport::{Direction, Transport};
use tidefs_engine::types::{ByteCount, PeerId, RegionId};
use tokio::runtime::Runtime;

use crate::harness::{PATIENCE, alone, expect_no_violation, memory_max, open_strict, peer};

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
        let open = |parts: &_| Ok(vec![fabric as Arc<dyn Transport>, TransportName::Tcp.open(parts)?]);
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
