//! Facts about operations that do what was asked, and about room.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::batch::{Batch, LONG, Shared, expect_bytes, pattern};
use super::scene::Scene;
use crate::memory::Access;
use crate::transport::{Direction, Endpoint, EndpointState};

/// Bytes around each transfer that must stay as they are. Odd, so that nothing is aligned.
const GUARD: u64 = 37;

pub(crate) fn every_length_arrives_whole_and_touches_nothing_else(scene: &Scene) {
    let endpoint = scene.connect();
    let longest = scene.longest();
    for length in [0, 1, 4095, 4096, 4097, 1 << 20, longest] {
        let length = length.min(longest);
        let near = scene.pair.a.share(length + 2 * GUARD, Access::ReadWrite, 1);
        let far = scene.pair.b.share(length + 3 * GUARD, Access::ReadWrite, 2);
        for direction in [Direction::Read, Direction::Write] {
            near.fill(1);
            far.fill(2);
            let (target, target_offset, source, source_offset) = match direction {
                Direction::Read => (&near, GUARD, &far, 2 * GUARD),
                Direction::Write => (&far, 2 * GUARD, &near, GUARD),
            };
            let mut wanted = target.bytes();
            let source_bytes = source.bytes();
            let (from, to) = (to_index(source_offset), to_index(target_offset));
            wanted[to..to + to_index(length)].copy_from_slice(&source_bytes[from..from + to_index(length)]);
            let mut batch = Batch::new();
            batch.add(direction, near.local(GUARD, length), far.remote(2 * GUARD));
            batch.post(&endpoint);
            batch.expect_done();
            expect_bytes(&target.bytes(), &wanted, &format!("target of a {direction:?} of {length}"));
            expect_bytes(&source.bytes(), &source_bytes, &format!("source of a {direction:?} of {length}"));
        }
    }
    assert_eq!(endpoint.state(), EndpointState::Ready);
}

fn to_index(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// Each side reads one half of the other's region and writes the other half, all at once, in pieces of odd lengths.
pub(crate) fn operations_in_both_directions_at_once_all_arrive(scene: &Scene) {
    const HALF: u64 = 1 << 20;
    let (there, back) = (scene.connect(), scene.connect_back());
    let memory = |seed| {
        (
            scene.pair.a.share(2 * HALF, Access::ReadWrite, seed),
            scene.pair.b.share(2 * HALF, Access::ReadWrite, seed + 1),
        )
    };
    // Two pairs of regions: what one side writes is no source of the other.
    let (near, far) = memory(10);
    let (near_back, far_back) = memory(20);
    std::thread::scope(|scope| {
        scope.spawn(|| swap_halves(&there, &near, &far, HALF));
        scope.spawn(|| swap_halves(&back, &far_back, &near_back, HALF));
    });
    let half = to_index(HALF);
    for (mine, mine_seed, theirs, theirs_seed) in [(&near, 10, &far, 11), (&far_back, 21, &near_back, 20)] {
        let (before, before_there) = (pattern(mine_seed, 2 * half), pattern(theirs_seed, 2 * half));
        expect_bytes(&mine.bytes(), &[&before_there[..half], &before[half..]].concat(), "who asked");
        expect_bytes(&theirs.bytes(), &[&before_there[..half], &before[half..]].concat(), "who was asked");
    }
}

/// Reads the first half of `far` into `near`, and writes the second half of `near` to `far`.
fn swap_halves(endpoint: &Arc<dyn Endpoint>, near: &Shared, far: &Shared, half: u64) {
    let mut batch = Batch::new();
    let mut done = 0;
    for piece in (1_u64..).map(|number| (number * 7919) % 40_000 + 1) {
        let length = piece.min(half - done);
        batch.read(near.local(done, length), far.remote(done));
        batch.write(near.local(half + done, length), far.remote(half + done));
        done += length;
        if done == half {
            break;
        }
    }
    batch.post(endpoint);
    batch.expect_done();
}

pub(crate) fn rails_and_load_are_told(scene: &Scene) {
    let transport = &scene.pair.a.transport;
    let capabilities = transport.capabilities();
    assert!(capabilities.operation_bytes_max.get() > 0 && capabilities.operations_max > 0);
    assert!(capabilities.slice_bytes <= capabilities.operation_bytes_max);
    let rails = transport.rails();
    assert!(!rails.is_empty() && rails.iter().all(|rail| !rail.name.is_empty()));
    let endpoint = scene.connect();
    let (near, far) =
        (scene.pair.a.share(1 << 16, Access::ReadWrite, 1), scene.pair.b.share(1 << 16, Access::Read, 2));
    let mut batch = Batch::new();
    for _ in 0..4 {
        batch.read(near.local(0, 1 << 16), far.remote(0));
    }
    scene.stalled(|| {
        endpoint.post(&mut batch.queue);
        let posted = 4 - batch.queue.len();
        let load = endpoint.load();
        assert_eq!(load.iter().map(|rail| rail.operations).sum::<usize>(), posted);
        assert_eq!(load.iter().map(|rail| rail.bytes).sum::<u64>(), (posted as u64) << 16);
    });
    batch.post(&endpoint);
    batch.expect_done();
    let load = endpoint.load();
    assert!(load.iter().all(|load| rails.iter().any(|rail| rail.id == load.rail)));
    assert!(load.iter().all(|load| load.operations == 0 && load.bytes == 0), "{load:?}");
}

pub(crate) fn what_has_no_room_stays_in_the_queue_and_room_returns(scene: &Scene) {
    const PIECE: u64 = 61;
    let endpoint = scene.connect();
    let room = scene.pair.a.transport.capabilities().operations_max;
    let count = room as u64 + 100;
    let near = scene.pair.a.share(count * PIECE, Access::ReadWrite, 1);
    let far = scene.pair.b.share(count * PIECE, Access::Read, 2);
    let mut batch = Batch::new();
    for number in 0..count {
        batch.read(near.local(number * PIECE, PIECE), far.remote(number * PIECE));
    }
    scene.stalled(|| {
        endpoint.post(&mut batch.queue);
        let taken = usize::try_from(count).unwrap() - batch.queue.len();
        assert!((1..=room).contains(&taken), "{taken} of {count} were taken, there is room for {room}");
        let first_left = batch.queue.front().expect("more than the room was offered");
        assert_eq!(first_left.ticket.index() as usize, taken, "operations are taken from the front");
        assert_eq!(batch.ended(), 0);
        // A full endpoint takes nothing, and says so by leaving it.
        let before = batch.queue.len();
        endpoint.post(&mut batch.queue);
        assert!(before - batch.queue.len() <= room - taken);
    });
    batch.post(&endpoint);
    batch.expect_done();
    expect_bytes(&near.bytes(), &far.bytes(), "after all rounds");
}

/// Who is told that an operation ended may count on its room: it is not woken again.
pub(crate) fn room_returns_before_the_ticket_ends(scene: &Scene) {
    let endpoint = scene.connect();
    let room = scene.pair.a.transport.capabilities().operations_max;
    let (near, far) =
        (scene.pair.a.share(4096, Access::ReadWrite, 1), scene.pair.b.share(4096, Access::Read, 2));
    for round in 0..100 {
        let mut batch = Batch::new();
        for _ in 0..room.min(64) {
            batch.read(near.local(0, 8), far.remote(0));
        }
        endpoint.post(&mut batch.queue);
        assert!(batch.queue.len() < room.min(64), "round {round}: an idle endpoint has room");
        batch.post(&endpoint);
        batch.expect_done();
    }
}

/// A thread that works while it waits leaves when it is told to look, and what it leaves is done without it.
pub(crate) fn a_thread_that_works_leaves_when_it_is_nudged(scene: &Scene) {
    let endpoint = scene.connect();
    let (near, far) =
        (scene.pair.a.share(1 << 16, Access::ReadWrite, 1), scene.pair.b.share(1 << 16, Access::Read, 2));
    let until = Instant::now() + LONG;
    let read = || {
        let mut batch = Batch::new();
        batch.read(near.local(0, 1 << 16), far.remote(0));
        batch.post(&endpoint);
        batch
    };
    let held = scene.stalled(|| {
        let batch = read();
        let is_let_go = AtomicBool::new(false);
        if let Some(progress) = endpoint.progress(batch.id) {
            thread::scope(|scope| {
                let working = scope.spawn(|| progress.work(&|| is_let_go.load(Ordering::SeqCst), until));
                is_let_go.store(true, Ordering::SeqCst);
                progress.nudge();
                working.join().unwrap();
            });
            assert!(Instant::now() < until, "it worked on although it was nudged");
        }
        batch
    });
    held.unwrap_or_else(read).expect_done();
    near.expect(2, "after what a thread left was done");
    near.fill(1);
    let batch = read();
    let progress = endpoint.progress(batch.id);
    thread::scope(|scope| {
        let working =
            progress.as_ref().map(|progress| scope.spawn(|| progress.work(&|| batch.ended() == 1, until)));
        batch.wait_for(1);
        // Another thread may have done it, and who works is told of that as the engine tells it.
        if let Some(progress) = &progress {
            progress.nudge();
        }
        if let Some(working) = working {
            working.join().unwrap();
        }
    });
    assert!(Instant::now() < until, "it worked on although all was done");
    batch.expect_done();
    near.expect(2, "after a thread had worked for itself");
}
