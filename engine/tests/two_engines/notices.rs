//! What peers are told when a batch has ended.

use std::sync::mpsc;

use super::ways::until;
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

/// The peer's only thread is held, so that it reads nothing; its memory is reached without it. What was told before the
/// queue was full arrives when it goes on, and nothing else does.
#[test]
fn a_batch_whose_peer_cannot_be_told_has_failed() {
    let (runtime, held_runtime) = (runtime(), one_thread());
    let there = end(&held_runtime, "shm");
    let link = LinkConfig {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        queue_bytes_max: ByteCount::kib(64),
        // Nothing is heard of it for as long as it is held.
        silence_max: Duration::from_secs(120),
        ..LinkConfig::default()
    };
    let me = PeerId { member: member(), incarnation: Incarnation(1) };
    let config = EngineConfig { link, ..EngineConfig::new(me) };
    let here = start_with(&runtime, config, Access::ReadWrite, |parts| {
        Ok(vec![TransportName::Shm.open(&TransportOptions::default(), parts)?])
    });
    here.connect(&runtime, &there);
    let read = here.request(&there, Direction::Read, 0, 0, 4096);
    let soon = || Instant::now() + Duration::from_secs(60);
    // Its memory is mapped from now on.
    here.engine.submit(Batch::new(vec![read], soon())).wait().into_result().unwrap();
    let ((is_held, held), (go_on, wait)) = (mpsc::channel(), mpsc::channel::<()>());
    held_runtime.spawn(async move {
        is_held.send(()).unwrap();
        // Until the sender is dropped.
        let _ = wait.recv();
    });
    held.recv().unwrap();
    let mut told = 0;
    let failed = loop {
        assert!(told < 10_000, "the queue has a limit");
        let batch = Batch { notify: Some(vec![7; 64 << 10]), ..Batch::new(vec![read], soon()) };
        match here.engine.submit(batch).wait().into_result() {
            Ok(()) => told += 1,
            Err(error) => break error,
        }
    };
    drop(go_on);
    assert!(matches!(failed, Error::Busy { .. }), "{failed}");
    assert_eq!(here.engine.metrics().requests_failed_total.get(), 1);
    until(&|| there.listener.told.lock().len() >= told);
    let answer = here.engine.call(there.id, FIRST_FREE_CHANNEL, Vec::new(), soon());
    assert_eq!(runtime.block_on(answer), Ok(Vec::new()));
    assert_eq!(there.listener.told.lock().len(), told, "{told} batches have succeeded");
}
