//! What peers are told when a batch has ended.

use std::sync::mpsc;

use tidefs_engine::queue::TransferHandle;

use super::*;

#[test]
fn a_peer_is_told_when_a_whole_batch_has_arrived() {
    by_each_transport(|runtime, transports| {
        let (here, there) = (end(runtime, transports), end(runtime, transports));
        here.connect(runtime, &there);
        let write = here.request(&there, Direction::Write, 0, 0, 1 << 20);
        let told = Batch { notify: Some(b"layer 7".to_vec()), ..Batch::new(vec![write], soon()) };
        here.engine.submit(told.clone()).wait().into_result().unwrap();
        let failing = here.request(&there, Direction::Write, 0, LENGTH, 1);
        let failed = Batch { requests: vec![write, failing], ..told };
        assert!(here.engine.submit(failed).wait().into_result().is_err());
        let answer =
            runtime.block_on(here.engine.call(there.id, FIRST_FREE_CHANNEL, b"ask".to_vec(), soon()));
        assert_eq!(answer, Ok(b"ask".to_vec()));
        let told = there.listener.told.lock().clone();
        assert_eq!(
            told,
            [(here.id, TRANSFER_DONE, b"layer 7".to_vec())],
            "{transports}: once, and not for a failure"
        );
    });
}

fn one_thread() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// An engine whose peer has one thread, which is held: it reads nothing, and its memory is reached without it.
struct Held {
    runtime: Runtime,
    here: End,
    there: End,
    /// Dropped, it goes on.
    go_on: mpsc::Sender<()>,
    _theirs: Runtime,
}

impl Held {
    fn peer(silence_max: Duration) -> Self {
        let (runtime, theirs) = (runtime(), one_thread());
        let there = end(&theirs, "shm");
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        let queue_bytes_max = ByteCount::kib(64);
        let link = LinkConfig { listen, queue_bytes_max, silence_max, ..LinkConfig::default() };
        let me = PeerId { member: member(), incarnation: Incarnation(1) };
        let config = EngineConfig { link, ..EngineConfig::new(me) };
        let here = start_with(&runtime, config, Access::ReadWrite, |parts| {
            Ok(vec![TransportName::Shm.open(&TransportOptions::default(), parts)?])
        });
        here.connect(&runtime, &there);
        // Its memory is mapped from now on.
        let read = here.request(&there, Direction::Read, 0, 0, 4096);
        here.engine.submit(Batch::new(vec![read], soon())).wait().into_result().unwrap();
        let ((is_held, held), (go_on, wait)) = (mpsc::channel(), mpsc::channel::<()>());
        theirs.spawn(async move {
            is_held.send(()).unwrap();
            // Until the sender is dropped.
            let _ = wait.recv();
        });
        held.recv().unwrap();
        Self { runtime, here, there, go_on, _theirs: theirs }
    }

    fn submit(&self, notice: Vec<u8>) -> TransferHandle {
        let read = self.here.request(&self.there, Direction::Read, 0, 0, 4096);
        let deadline = Instant::now() + Duration::from_secs(60);
        self.here.engine.submit(Batch { notify: Some(notice), ..Batch::new(vec![read], deadline) })
    }
}

/// What was told before the queue was full arrives when the peer goes on, and nothing else does.
#[test]
fn a_batch_whose_peer_cannot_be_told_has_failed() {
    // Nothing is heard of it for as long as it is held.
    let held = Held::peer(Duration::from_secs(120));
    let mut batches: Vec<TransferHandle> = Vec::new();
    while !batches.iter().any(TransferHandle::is_ended) {
        assert!(batches.len() < 10_000, "the queue has a limit");
        batches.push(held.submit(vec![7; 64 << 10]));
        std::thread::sleep(Duration::from_millis(2));
    }
    let Held { runtime, here, there, go_on, _theirs } = held;
    drop(go_on);
    let results: Vec<_> = batches.into_iter().map(|batch| batch.wait().into_result()).collect();
    let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(failed.iter().all(|error| matches!(error, Error::Busy { .. })), "{failed:?}");
    assert_eq!(here.engine.metrics().requests_failed_total.get(), failed.len() as u64);
    let answer = here.engine.call(there.id, FIRST_FREE_CHANNEL, Vec::new(), soon());
    assert_eq!(runtime.block_on(answer), Ok(Vec::new()));
    let told = there.listener.told.lock().len();
    assert_eq!(told, results.len() - failed.len(), "those that have succeeded");
}

/// The socket has the notice, and nobody reads it before the link is given up.
#[test]
fn a_batch_whose_notice_is_under_way_when_the_link_ends_has_failed() {
    let held = Held::peer(Duration::from_secs(5));
    let failed = held.submit(b"layer 7".to_vec()).wait().into_result().unwrap_err();
    assert!(matches!(failed, Error::PeerGone { .. }), "{failed}");
    assert_eq!(held.there.listener.told.lock().len(), 0);
}
