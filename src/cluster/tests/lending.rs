//! What is lent where it takes long to register it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tidefs_engine::engine::{Answer, Engine, EngineConfig, NoMessages};
use tidefs_engine::error::Error;
use tidefs_engine::link::LinkConfig;
use tidefs_engine::memory::Region;
use tidefs_engine::transport::{BoxFuture, Capabilities, Endpoint, Exchange, Rail, Transport};
use tidefs_engine::types::{ByteCount, Incarnation, MemberId, PeerId, RegionId};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::members::{config, soon, until};
use super::memory::{Memory, Object};
use crate::cluster::catalog::wire::Lend;
use crate::cluster::coordinator::Coordinator;
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::core::{Core, Ingredients};
use crate::cluster::lending::REGISTERING_MAX;
use crate::cluster::*;

/// How long it is waited for that something else goes on.
const PATIENCE: Duration = Duration::from_secs(20);

/// NICs that register memory when they are told to go on.
#[derive(Debug)]
struct Slow {
    begun: AtomicUsize,
    go_on: Mutex<Receiver<()>>,
    was_told: AtomicBool,
}

impl Transport for Slow {
    fn name(&self) -> &'static str {
        "libfabric"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            operation_bytes_max: ByteCount(1 << 20),
            slice_bytes: ByteCount(1 << 20),
            operations_max: 1,
            is_local: false,
            needs_target_cpu: false,
            needs_local_registration: true,
        }
    }

    fn rails(&self) -> Vec<Rail> {
        Vec::new()
    }

    fn register(&self, _: RegionId, _: &Arc<Region>) -> Result<Vec<u8>, Error> {
        self.begun.fetch_add(1, Ordering::AcqRel);
        let told = self.go_on.lock().recv_timeout(PATIENCE);
        self.was_told.store(told.is_ok(), Ordering::Release);
        Ok(Vec::new())
    }

    fn unregister(&self, _: RegionId) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn connect<'a>(
        &'a self,
        _: PeerId,
        _: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>> {
        Box::pin(std::future::ready(Err(Error::Closed)))
    }

    fn answer(&self, _: PeerId, _: &[u8]) -> Result<Vec<u8>, Error> {
        Err(Error::Closed)
    }

    fn forget(&self, _: PeerId) {}

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A member that has one object, and such NICs.
struct Lender {
    core: Arc<Core>,
    engine: Engine,
    slow: Arc<Slow>,
    /// Tells the NICs once to go on.
    go_on: Sender<()>,
    /// Held: what is lent is of this.
    _memory: Arc<Memory>,
}

const PATH: &[u8] = b"kv/a";
const STAMP: Stamp = Stamp(7);

impl Lender {
    async fn start() -> Self {
        let (go_on, told) = channel();
        let slow = Arc::new(Slow {
            begun: AtomicUsize::new(0),
            go_on: Mutex::new(told),
            was_told: AtomicBool::new(false),
        });
        let (mut config, coordinator) = (config(1), Embedded::new(ClusterId(7)));
        config.timings.background = PATIENCE;
        let begun = coordinator.begin(config.member, soon()).await.unwrap();
        let me = PeerId { member: config.member, incarnation: begun.incarnation };
        let link = LinkConfig { listen: config.listen.clone(), ..LinkConfig::default() };
        let transport = Arc::clone(&slow) as Arc<dyn Transport>;
        let engine_config = EngineConfig { link, ..EngineConfig::new(me) };
        let open = |_: &_| Ok(vec![transport]);
        let engine = Engine::start(Handle::current(), engine_config, Arc::new(NoMessages), open).unwrap();
        let memory = Arc::new(Memory::default());
        let bytes = vec![7_u8; 1 << 20].into();
        let object = Object { stamp: STAMP, bytes, is_directory: false, is_soft: false, replicas: 1 };
        memory.state.lock().objects.insert(PATH.to_vec(), object);
        let holder: Weak<dyn Holder> = Arc::<Memory>::downgrade(&memory);
        let core = Core::new(Ingredients {
            me,
            cluster: begun.cluster,
            config,
            runtime: Handle::current(),
            coordinator: Arc::new(coordinator),
            holder,
            carrier: Arc::new(engine.clone()),
            engine: Some(engine.clone()),
        });
        Self { core, engine, slow, go_on, _memory: memory }
    }

    /// Begins to lend the object once more.
    fn lend(&self) -> JoinHandle<Result<Vec<u8>, String>> {
        let reader = PeerId { member: MemberId(2), incarnation: Incarnation(1) };
        let lend = Lend { path: PATH.to_vec(), stamp: STAMP, for_ms: 60_000 };
        let Answer::Later(lent) = self.core.answer_lend(reader, lend) else {
            panic!("it cannot be there at once")
        };
        tokio::spawn(lent)
    }

    async fn until_begun(&self, count: usize) {
        until("it is being registered", || self.slow.begun.load(Ordering::Acquire) >= count).await;
    }
}

/// All that goes on between members runs on one thread here, as does what tells the NICs to go on.
#[test]
fn who_registers_slowly_lends_without_holding_up_what_else_goes_on() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let lender = Lender::start().await;
        let lent = lender.lend();
        lender.until_begun(1).await;
        lender.go_on.send(()).unwrap();
        lent.await.unwrap().unwrap();
        assert!(lender.slow.was_told.load(Ordering::Acquire), "nothing else went on meanwhile");
        assert_eq!(lender.core.loans.len(), 1);
        lender.engine.close().await;
    });
}

#[test]
fn what_is_registered_slowly_leaves_threads_to_what_others_wait_for() {
    // One more than is registered at once.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(REGISTERING_MAX + 1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let lender = Lender::start().await;
        let lent: Vec<_> = (0..=REGISTERING_MAX).map(|_| lender.lend()).collect();
        lender.until_begun(REGISTERING_MAX).await;
        let other = tokio::time::timeout(PATIENCE / 2, tokio::task::spawn_blocking(|| ()));
        other.await.expect("there is a thread for it").unwrap();
        assert_eq!(lender.slow.begun.load(Ordering::Acquire), REGISTERING_MAX);
        for _ in &lent {
            lender.go_on.send(()).unwrap();
        }
        for lent in lent {
            lent.await.unwrap().unwrap();
        }
        assert_eq!(lender.core.loans.len(), REGISTERING_MAX + 1);
        lender.engine.close().await;
    });
}
