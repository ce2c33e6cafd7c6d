//! Engines over the strict provider, with sockets beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidefs_engine::engine::{Engine, EngineConfig, NoMessages, TransportName, TransportOptions};
use tidefs_engine::error::Error;
use tidefs_engine::link::LinkConfig;
use tidefs_engine::memory::{Access, PageKind, Region};
use tidefs_engine::request::{Batch, LocalPlace, RemotePlace, Request};
use tidefs_engine::transport::libfabric::{Fabric, FabricConfig};
use tidefs_engine::transport::{BoxFuture, Capabilities, Direction, Endpoint, Exchange, Rail, Transport};
use tidefs_engine::types::{ByteCount, PeerId, RegionId};
use tokio::runtime::Runtime;

use crate::harness::{
    PATIENCE, alone, bound, config, expect_no_violation, failing, failures, memory_max, open_strict,
    open_with, peer, silence, strict_config,
};
use crate::transfers::is_verbs;

const LENGTH: u64 = 1 << 20;

struct End {
    engine: Engine,
    id: PeerId,
    region: Arc<Region>,
    region_id: RegionId,
}

impl End {
    /// An engine with `fabric`, and sockets beside it.
    fn start(runtime: &Runtime, fabric: Arc<dyn Transport>) -> Self {
        Self::with(runtime, fabric, true)
    }

    fn with(runtime: &Runtime, fabric: Arc<dyn Transport>, has_sockets: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = peer(NEXT.fetch_add(1, Ordering::Relaxed));
        let config = EngineConfig {
            link: LinkConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], ..LinkConfig::default() },
            ..EngineConfig::new(id)
        };
        let open = |parts: &_| {
            let sockets = has_sockets.then(|| TransportName::Tcp.open(&TransportOptions::default(), parts));
            Ok([fabric].into_iter().chain(sockets.transpose()?).collect())
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

/// A provider over sockets ends the connection for a key that it does not know, and says no more. Who asks for a region that
/// is gone is told so all the same, and the connection is made again for the others.
#[test]
fn a_region_that_is_gone_is_named_where_the_fabric_only_ends_the_connection() {
    if is_verbs() {
        println!("skipped: on verbs, a way that a key broke stays broken");
        return;
    }
    // A peer whose endpoint was opened again is silent until its new address is asked for.
    let config = FabricConfig { silence: Duration::from_secs(1), ..config() };
    let (Some(near), Some(far)) = (open_with(&config), open_with(&config)) else { return };
    let runtime = Runtime::new().unwrap();
    let (here, there) = (End::with(&runtime, near, false), End::with(&runtime, far, false));
    for is_in_use in [true, false] {
        assert_eq!(read_all(&runtime, &here, &there), Ok(()));
        let id = there.engine.register(&there.region).unwrap();
        let other = RemotePlace { peer: there.id, region: id, offset: 0 };
        let request = Request { remote: other, ..here.read(&there) };
        let read = || {
            let until = Instant::now() + PATIENCE / 4;
            here.engine.submit(Batch::new(vec![request], until)).wait().into_result()
        };
        assert_eq!(read(), Ok(()));
        if is_in_use {
            runtime.block_on(there.engine.unregister(id));
        } else {
            runtime.block_on(there.engine.unregister_unused(id));
        }
        assert_eq!(read(), Err(Error::NoSuchRegion { region: id }));
    }
    assert_eq!(read_all(&runtime, &here, &there), Ok(()));
    runtime.block_on(async { tokio::join!(here.engine.close(), there.engine.close()) });
}

/// Where memory is registered with the endpoint, a NIC whose endpoint is opened again gives its regions other keys: peers that
/// know the old ones ask once more, and go on.
#[test]
fn a_peer_asks_again_for_keys_that_have_changed() {
    let _alone = alone();
    bound(true);
    let (Some(near), Some(far)) = (open_strict(), open_strict()) else { return };
    let runtime = Runtime::new().unwrap();
    let (here, there) = (End::with(&runtime, near, false), End::with(&runtime, far, false));
    assert_eq!(read_all(&runtime, &here, &there), Ok(()));
    assert_eq!(read_all(&runtime, &there, &here), Ok(()));
    // Reads that do not end cost `there` its endpoints.
    silence(true);
    let late = Batch::new(vec![there.read(&here)], Instant::now() + Duration::from_millis(300));
    assert!(there.engine.submit(late).wait().into_result().is_err());
    silence(false);
    for (from, to) in [(&here, &there), (&there, &here)] {
        assert_eq!(read_all(&runtime, from, to), Ok(()));
    }
    runtime.block_on(async { tokio::join!(here.engine.close(), there.engine.close()) });
    drop((here, there));
    bound(false);
    expect_no_violation();
}

/// One of two NICs fails whatever it is given. The other carries all, and that one is tried after 100 ms, 200, 400, 800 and
/// 1600, not whenever the connection is made again.
#[test]
fn a_rail_that_fails_again_and_again_is_left_out_for_longer_each_time() {
    let _alone = alone();
    let (Some(near), Some(far)) = (open_strict(), open_strict()) else { return };
    let runtime = Runtime::new().unwrap();
    let (here, there) = (End::with(&runtime, near, false), End::with(&runtime, far, false));
    assert_eq!(read_all(&runtime, &here, &there), Ok(()));
    failing(true);
    failures();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        assert_eq!(read_all(&runtime, &here, &there), Ok(()));
        std::thread::sleep(Duration::from_millis(5));
    }
    let failed = failures();
    failing(false);
    let rails = here.engine.status().peers[0].ways[0].rails.clone();
    assert!(rails[0].failures == 0 && rails[0].out_ms == 0, "{rails:?}");
    assert!((3..=6).contains(&rails[1].failures) && rails[1].out_ms > 0, "{rails:?}");
    assert_eq!(here.engine.metrics().rails_failed_total.get(), u64::from(rails[1].failures));
    // At the first, there are as many as a NIC holds; then one for each trial.
    assert!((1..=4 + 5).contains(&failed), "{failed} operations have failed in 3 s");
    runtime.block_on(async { tokio::join!(here.engine.close(), there.engine.close()) });
    drop((here, there));
    expect_no_violation();
}

/// The fabric lets connections be made, and nothing gets through: a transfer goes by sockets long before its deadline,
/// the next ones at once, and more and more time passes before the fabric is tried again.
#[test]
fn a_fabric_that_swallows_everything_costs_a_moment_and_no_deadline() {
    let _alone = alone();
    let config = FabricConfig { silence: Duration::from_millis(300), ..strict_config() };
    let (Some(near), Some(far)) = (open_with(&config), open_with(&config)) else { return };
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

/// The fabric of an engine from before regions had several registrations: it knows no such keys.
#[derive(Debug)]
struct Older(Arc<Fabric>);

impl Transport for Older {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn rails(&self) -> Vec<Rail> {
        self.0.rails()
    }

    fn register(&self, id: RegionId, region: &Arc<Region>) -> Result<Vec<u8>, Error> {
        self.0.register(id, region)
    }

    fn unregister(&self, id: RegionId) -> BoxFuture<'_, ()> {
        self.0.unregister(id)
    }

    fn connect<'a>(
        &'a self,
        peer: PeerId,
        exchange: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>> {
        self.0.connect(peer, exchange)
    }

    fn answer(&self, peer: PeerId, request: &[u8]) -> Result<Vec<u8>, Error> {
        self.0.answer(peer, request)
    }

    fn forget(&self, peer: PeerId) {
        self.0.forget(peer);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.0.close()
    }
}

/// `here` reads all of the region of `there`, or says why not.
fn read_all(runtime: &Runtime, here: &End, there: &End) -> Result<(), Error> {
    assert!(there.region.write_at(0, b"all") && there.region.write_at(LENGTH - 5, b"whole"));
    assert!(here.region.write_at(LENGTH - 5, b"     "));
    let until = Instant::now() + PATIENCE;
    runtime.block_on(here.engine.connect(&there.engine.descriptor(), until))?;
    here.engine.submit(Batch::new(vec![here.read(there)], until)).wait().into_result()?;
    let mut found = [0; 8];
    assert!(here.region.read_at(0, &mut found[..3]) && here.region.read_at(LENGTH - 5, &mut found[3..]));
    assert_eq!(found, *b"allwhole");
    Ok(())
}

/// An engine that knows no regions of several registrations reads one by sockets, and is told so where it has none; one
/// that knows them reads it by the fabric, which is the only way here.
#[test]
fn an_older_engine_reads_a_region_of_several_registrations_another_way() {
    read_by_older_and_newer(&FabricConfig {
        registration_bytes_max: Some(ByteCount(LENGTH / 4)),
        ..strict_config()
    });
}

#[test]
fn an_older_engine_reads_a_region_that_is_shared_out_another_way() {
    read_by_older_and_newer(&FabricConfig { pages_max: Some(LENGTH / 4096 - 100), ..strict_config() });
}

/// A region that has no place at the NICs is reached by way of sockets, from both ends.
#[test]
fn a_region_over_the_budget_goes_another_way() {
    let _alone = alone();
    let small = FabricConfig { pages_max: Some(LENGTH / 4096 / 4), ..strict_config() };
    let (Some(near), Some(far)) = (open_with(&small), open_strict()) else { return };
    let runtime = Runtime::new().unwrap();
    let (here, there) = (End::with(&runtime, near, true), End::with(&runtime, far, true));
    assert_eq!(read_all(&runtime, &here, &there), Ok(()));
    assert_eq!(read_all(&runtime, &there, &here), Ok(()));
    runtime.block_on(async { tokio::join!(here.engine.close(), there.engine.close()) });
    drop((here, there));
    expect_no_violation();
}

fn read_by_older_and_newer(config: &FabricConfig) {
    let _alone = alone();
    let runtime = Runtime::new().unwrap();
    for has_sockets in [true, false] {
        let (Some(fabric), Some(far), Some(near)) = (open_strict(), open_with(config), open_with(config))
        else {
            return;
        };
        let old = End::with(&runtime, Arc::new(Older(fabric)), has_sockets);
        let (there, here) = (End::with(&runtime, far, has_sockets), End::with(&runtime, near, has_sockets));
        let result = read_all(&runtime, &old, &there);
        assert_eq!(result.is_ok(), has_sockets, "{result:?}");
        assert!(has_sockets || matches!(result, Err(Error::Unavailable { .. })), "{result:?}");
        assert_eq!(read_all(&runtime, &here, &there), Ok(()));
        // What the older engine has, in one registration, is within reach too.
        assert_eq!(read_all(&runtime, &here, &old), Ok(()));
        runtime
            .block_on(async { tokio::join!(here.engine.close(), there.engine.close(), old.engine.close()) });
        drop((here, there, old));
    }
    expect_no_violation();
}
