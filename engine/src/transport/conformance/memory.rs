//! Facts about regions: what is refused, and that memory is left alone once it is given back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch::{Batch, LONG, Shared};
use super::scene::Scene;
use crate::error::Error;
use crate::memory::Access;
use crate::transport::{Direction, Endpoint, EndpointState, RemoteSlice};
use crate::types::ByteCount;

pub(crate) fn a_range_outside_the_region_is_refused(scene: &Scene) {
    let endpoint = scene.connect();
    let near = scene.pair.a.share(8192, Access::ReadWrite, 1);
    let far = scene.pair.b.share(4096, Access::ReadWrite, 2);
    for direction in [Direction::Read, Direction::Write] {
        for (offset, length) in [(0, 4097), (4096, 1), (4000, 97), (u64::MAX, 1), (u64::MAX - 4095, 4096)] {
            let mut batch = Batch::new();
            batch.add(direction, near.local(0, length), far.remote(offset));
            batch.post(&endpoint);
            let wanted = Error::OutOfRange {
                region: far.id,
                offset,
                length: ByteCount(length),
                region_length: ByteCount(4096),
            };
            assert_eq!(batch.expect_error(), wanted, "{direction:?}");
        }
    }
    near.expect(1, "after refused reads");
    far.expect(2, "after refused writes");
    expect_usable(&endpoint, &near, &far);
}

pub(crate) fn a_region_that_may_only_be_read_is_not_written(scene: &Scene) {
    let endpoint = scene.connect();
    let near = scene.pair.a.share(4096, Access::ReadWrite, 1);
    let far = scene.pair.b.share(4096, Access::Read, 2);
    let mut batch = Batch::new();
    batch.write(near.local(0, 4096), far.remote(0));
    batch.post(&endpoint);
    assert_eq!(batch.expect_error(), Error::ReadOnly { region: far.id });
    far.expect(2, "after a refused write");
    expect_usable(&endpoint, &near, &far);
}

/// A key is what a peer sent; it may be anything.
pub(crate) fn a_key_that_makes_no_sense_is_refused(scene: &Scene) {
    let endpoint = scene.connect();
    let near = scene.pair.a.share(4096, Access::ReadWrite, 1);
    let far = scene.pair.b.share(4096, Access::ReadWrite, 2);
    if far.key.is_empty() {
        return;
    }
    for key in [Vec::new(), vec![0xff], vec![0xff; 256]] {
        let remote = RemoteSlice { key: key.into(), ..far.remote(0) };
        let mut batch = Batch::new();
        batch.read(near.local(0, 4096), remote);
        batch.post(&endpoint);
        batch.expect_error();
    }
    near.expect(1, "after refused reads");
    // A transport may take such an operation for the end of its connection; it must still be possible to make one.
    let endpoint = if endpoint.state() == EndpointState::Ready { endpoint } else { scene.connect() };
    expect_usable(&endpoint, &near, &far);
}

pub(crate) fn an_unregistered_region_is_unknown_and_lives_on_under_a_new_id(scene: &Scene) {
    let mut endpoint = scene.connect();
    let near = scene.pair.a.share(4096, Access::ReadWrite, 1);
    let old = scene.pair.b.share(4096, Access::ReadWrite, 2);
    // Used once, so that whatever is remembered of it at the other end is remembered.
    expect_usable(&endpoint, &near, &old);
    scene.runtime.block_on(scene.pair.b.transport.unregister(old.id));
    scene.runtime.block_on(scene.pair.b.transport.unregister(old.id));
    near.fill(1);
    for direction in [Direction::Read, Direction::Write] {
        let mut batch = Batch::new();
        batch.add(direction, near.local(0, 4096), old.remote(0));
        batch.post(&endpoint);
        let error = batch.expect_error();
        let is_named = error == Error::NoSuchRegion { region: old.id };
        let may_break = !scene.pair.names_what_is_gone && error.is_retryable();
        assert!(is_named || may_break, "{direction:?}: {error:?}");
        if endpoint.state() != EndpointState::Ready {
            endpoint = scene.connect();
        }
    }
    near.expect(1, "after a read of a region that is gone");
    old.expect(2, "after a write to a region that is gone");
    let new = scene.pair.b.share_again(&old.region);
    if !scene.pair.names_what_is_gone {
        endpoint = connect_anew(scene, &near, &new);
    }
    expect_usable(&endpoint, &near, &new);
}

/// A connection over which one reads, once whatever broke the one before it is over.
fn connect_anew(scene: &Scene, near: &Shared, far: &Shared) -> Arc<dyn Endpoint> {
    let until = Instant::now() + LONG;
    loop {
        let endpoint = scene.connect();
        let mut batch = Batch::new();
        batch.read(near.local(0, far.length()), far.remote(0));
        batch.post(&endpoint);
        match batch.results().remove(0) {
            Ok(()) => return endpoint,
            Err(error) => assert!(error.is_retryable() && Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// When `unregister` resolves, the memory belongs to its owner alone, whatever peers have in flight.
pub(crate) fn unregistering_under_load_leaves_the_memory_alone(scene: &Scene) {
    let length = scene.up_to(256 << 10);
    for round in 0..8 {
        let endpoint = scene.connect();
        let near = scene.pair.a.share(length, Access::ReadWrite, 1);
        let far = scene.pair.b.share(length, Access::ReadWrite, 2);
        // The way is made already when the load begins.
        expect_usable(&endpoint, &near, &far);
        let mut batch = Batch::new();
        for number in 0..64 {
            let direction = if number % 4 == 0 { Direction::Read } else { Direction::Write };
            batch.add(direction, near.local(0, length), far.remote(0));
        }
        endpoint.post(&mut batch.queue);
        if round % 2 == 0 {
            batch.wait_for(1);
        }
        scene.runtime.block_on(scene.pair.b.transport.unregister(far.id));
        far.fill(3);
        batch.post(&endpoint);
        let results = batch.results();
        let is_expected = |result: &Result<(), Error>| match result {
            Ok(()) => true,
            Err(error) => *error == Error::NoSuchRegion { region: far.id } || error.is_retryable(),
        };
        assert!(results.iter().all(is_expected), "{results:?}");
        far.expect(3, "after it was unregistered");
    }
}

/// Reads and writes once between the two, which keeps `far`'s bytes.
pub(crate) fn expect_usable(endpoint: &Arc<dyn Endpoint>, near: &Shared, far: &Shared) {
    let length = near.region.length().get().min(far.region.length().get());
    let mut read = Batch::new();
    read.read(near.local(0, length), far.remote(0));
    read.post(endpoint);
    read.expect_done();
    let wanted = &far.bytes()[..usize::try_from(length).unwrap()];
    super::batch::expect_bytes(&near.bytes()[..wanted.len()], wanted, "a read that should do");
    if far.region.access() == Access::ReadWrite {
        let mut write = Batch::new();
        write.write(near.local(0, length), far.remote(0));
        write.post(endpoint);
        write.expect_done();
    }
}
