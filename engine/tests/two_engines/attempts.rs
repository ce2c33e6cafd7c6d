//! How often a slice is tried, by what it came back with.

use std::collections::VecDeque;
use std::task::{Context, Waker};

use tidefs_engine::transport::{
    BatchId, Capabilities, Endpoint, EndpointState, Exchange, Operation, Rail, RailLoad,
};

use super::*;
use crate::ways::config;

/// What the next operations end with; those after them are carried.
type Script = Arc<Mutex<VecDeque<Error>>>;

/// A transport whose connections go by a script.
#[derive(Debug)]
struct Scripted {
    inner: Arc<dyn Transport>,
    script: Script,
}

impl Transport for Scripted {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn rails(&self) -> Vec<Rail> {
        self.inner.rails()
    }

    fn register(&self, id: RegionId, region: &Arc<Region>) -> Result<Vec<u8>, Error> {
        self.inner.register(id, region)
    }

    fn unregister(&self, id: RegionId) -> BoxFuture<'_, ()> {
        self.inner.unregister(id)
    }

    fn connect<'a>(
        &'a self,
        peer: PeerId,
        exchange: &'a dyn Exchange,
    ) -> BoxFuture<'a, Result<Arc<dyn Endpoint>, Error>> {
        Box::pin(async move {
            let inner = self.inner.connect(peer, exchange).await?;
            let script = Arc::clone(&self.script);
            Ok(Arc::new(ScriptedEndpoint { inner, script }) as Arc<dyn Endpoint>)
        })
    }

    fn answer(&self, peer: PeerId, request: &[u8]) -> Result<Vec<u8>, Error> {
        self.inner.answer(peer, request)
    }

    fn forget(&self, peer: PeerId) {
        self.inner.forget(peer);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

#[derive(Debug)]
struct ScriptedEndpoint {
    inner: Arc<dyn Endpoint>,
    script: Script,
}

impl Endpoint for ScriptedEndpoint {
    fn post(&self, operations: &mut VecDeque<Operation>) {
        let next = self.script.lock().pop_front();
        let Some(error) = next else { return self.inner.post(operations) };
        if let Some(operation) = operations.pop_front() {
            operation.complete(Err(error));
        }
    }

    fn cancel(&self, batch: BatchId) {
        self.inner.cancel(batch);
    }

    fn state(&self) -> EndpointState {
        self.inner.state()
    }

    fn load(&self) -> Vec<RailLoad> {
        self.inner.load()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

/// An engine whose connections go by `script`.
fn by_script(runtime: &Runtime, config: EngineConfig, script: &Script) -> End {
    start_with(runtime, config, Access::ReadWrite, |parts| {
        let inner = TransportName::Tcp.open(&TransportOptions::default(), parts)?;
        let scripted = Scripted { inner, script: Arc::clone(script) };
        Ok(vec![Arc::new(scripted) as Arc<dyn Transport>])
    })
}

/// What may come back changed, or without its region, so and so often, may do so after failures as well.
#[test]
fn failures_take_nothing_of_the_attempts_that_other_errors_have() {
    let runtime = runtime();
    let there = end(&runtime, SOCKETS);
    let script = Script::default();
    let here = by_script(&runtime, config(), &script);
    here.connect(&runtime, &there);
    let read = |errors: &[&[Error]]| {
        script.lock().extend(errors.concat());
        let read = here.request(&there, Direction::Read, 0, 0, 4096);
        here.engine.submit(Batch::new(vec![read], soon())).wait().into_result()
    };
    let failed = vec![Error::transport("test", "as the script says"); 3];
    let corrupt = vec![Error::Corrupt { found: 1, wanted: 2 }; 4];
    let unknown = vec![Error::NoSuchRegion { region: there.region_id }; 3];
    assert_eq!(config().corrupt_attempts_max, 4);
    assert_eq!(read(&[&failed, &corrupt[1..], &unknown[1..]]), Ok(()));
    assert_eq!(read(&[&corrupt]), Err(corrupt[0].clone()));
    assert_eq!(read(&[&unknown]), Err(unknown[0].clone()));
}

/// Each of them asks for its region, which a failure has forgotten, and the queue of questions has an end.
#[test]
fn slices_that_fail_together_are_tried_again_however_few_may_ask_at_once() {
    const SLICES: usize = 64;
    let runtime = runtime();
    let there = end(&runtime, SOCKETS);
    let script = Script::default();
    let mut narrow = config();
    narrow.link.calls_max = 1;
    let here = by_script(&runtime, narrow, &script);
    here.connect(&runtime, &there);
    script.lock().extend(vec![Error::transport("test", "as the script says"); SLICES]);
    let read = here.request(&there, Direction::Read, 0, 0, 4096);
    here.engine.submit(Batch::new(vec![read; SLICES], soon())).wait().into_result().unwrap();
    assert!(script.lock().is_empty());
}

/// The one place for a question to the peer is taken when a first attempt has to ask for its region, and free later.
#[test]
fn a_first_attempt_waits_for_room_to_ask_for_its_region() {
    let runtime = runtime();
    let there = end(&runtime, SOCKETS);
    let mut narrow = config();
    narrow.link.calls_max = 1;
    let here = by_script(&runtime, narrow, &Script::default());
    here.connect(&runtime, &there);
    let mut asking = Box::pin(here.engine.call(there.id, NEVER, Vec::new(), soon()));
    // The first poll takes the place.
    assert!(asking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let read = here.request(&there, Direction::Read, 0, 0, 4096);
    let submit = |deadline| here.engine.submit(Batch::new(vec![read], deadline));
    let deadline = Instant::now() + Duration::from_millis(100);
    let late = submit(deadline).wait();
    assert!(Instant::now() >= deadline, "it was given up before its deadline: {late:?}");
    assert!(late.into_result().is_err());
    let waiting = submit(soon()).wait_for(Duration::from_millis(50)).unwrap_err();
    drop(asking);
    waiting.wait().into_result().unwrap();
}
