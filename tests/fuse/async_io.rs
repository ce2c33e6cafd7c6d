//! libaio and io_uring, as NIXL, UCM and fio use them: any offset, any order, many at once. NIXL takes a short
//! completion for success, so every completion is full.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use io_uring::{IoUring, opcode, types};
use nix::errno::Errno;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::common::modes::in_both_modes;
use crate::common::pattern::{self, assert_same};
use crate::common::sys::Aligned;
use crate::common::{Mode, Peer};
use crate::fixture::{MIB, kv, offset, publish, signed};

in_both_modes!(
    libaio_writes_in_any_order_and_the_file_is_whole,
    libaio_direct_writes_in_any_order_and_the_file_is_whole,
    libaio_reads_at_random_offsets_are_full,
    libaio_direct_reads_at_random_offsets_are_full,
    io_uring_writes_in_any_order_and_the_file_is_whole,
    io_uring_direct_writes_in_any_order_and_the_file_is_whole,
    io_uring_reads_at_random_offsets_are_full,
    io_uring_direct_reads_at_random_offsets_are_full,
    io_uring_reads_into_registered_buffers_are_full,
);

/// Requests in flight at once.
const DEPTH: usize = 64;
/// Bytes of the files of these tests: whole pages, for O_DIRECT.
const LENGTH: usize = 12 * MIB;

/// Which way a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// One request: a range of the file and the memory for it.
#[derive(Debug)]
struct Slot {
    at: usize,
    memory: Aligned,
}

/// Runs all slots against a file and fails unless each is complete.
type Engine = fn(&File, Direction, &mut [Slot]);

/// `struct iocb` of linux/aio_abi.h on a little-endian machine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_descriptor: u32,
}

/// `struct io_event` of linux/aio_abi.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct IoEvent {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<IoEvent>() == 32);

fn libaio(file: &File, direction: Direction, slots: &mut [Slot]) {
    let mut context = 0_u64;
    // SAFETY: `context` is zero, as io_setup(2) asks, and outlives the call.
    let setup = unsafe { libc::syscall(libc::SYS_io_setup, DEPTH, &raw mut context) };
    Errno::result(setup).expect("io_setup");
    for batch in slots.chunks_mut(DEPTH) {
        let mut blocks: Vec<Iocb> = Vec::new();
        for (index, slot) in batch.iter_mut().enumerate() {
            let memory = slot.memory.as_mut();
            blocks.push(Iocb {
                data: offset(index),
                opcode: u16::from(direction == Direction::Write), // IOCB_CMD_PREAD is 0, IOCB_CMD_PWRITE is 1
                descriptor: u32::try_from(file.as_raw_fd()).expect("a descriptor is not negative"),
                buffer: offset(memory.as_mut_ptr().expose_provenance()),
                bytes: offset(memory.len()),
                offset: signed(slot.at),
                ..Iocb::default()
            });
        }
        let pointers: Vec<*mut Iocb> = blocks.iter_mut().map(std::ptr::from_mut).collect();
        let mut submitted = 0;
        while submitted < pointers.len() {
            let rest = &pointers[submitted..];
            // SAFETY: every pointer is to a live `Iocb`, whose memory stays untouched until its event has come.
            let count = unsafe { libc::syscall(libc::SYS_io_submit, context, rest.len(), rest.as_ptr()) };
            submitted += usize::try_from(Errno::result(count).expect("io_submit")).expect("not negative");
        }
        let mut events = vec![IoEvent::default(); pointers.len()];
        let mut done = 0;
        while done < events.len() {
            let (room, null) = (events.len() - done, std::ptr::null_mut::<libc::timespec>());
            let target = events[done..].as_mut_ptr();
            // SAFETY: `target` has room for `room` events; no timeout.
            let count = unsafe { libc::syscall(libc::SYS_io_getevents, context, 1, room, target, null) };
            done += usize::try_from(Errno::result(count).expect("io_getevents")).expect("not negative");
        }
        for event in events {
            let slot = &batch[usize::try_from(event.data).expect("an index")];
            assert_eq!(event.result, signed(slot.memory.as_ref().len()), "{direction:?} at {}", slot.at);
        }
    }
    // SAFETY: the context was made above and has nothing in flight.
    Errno::result(unsafe { libc::syscall(libc::SYS_io_destroy, context) }).expect("io_destroy");
}

fn io_uring(file: &File, direction: Direction, slots: &mut [Slot]) {
    let mut ring = IoUring::new(u32::try_from(DEPTH).expect("small")).expect("io_uring_setup");
    let descriptor = types::Fd(file.as_raw_fd());
    for batch in slots.chunks_mut(DEPTH) {
        for (index, slot) in batch.iter_mut().enumerate() {
            let (at, memory) = (offset(slot.at), slot.memory.as_mut());
            let length = u32::try_from(memory.len()).expect("small");
            let entry = match direction {
                Direction::Read => {
                    opcode::Read::new(descriptor, memory.as_mut_ptr(), length).offset(at).build()
                }
                Direction::Write => {
                    opcode::Write::new(descriptor, memory.as_ptr(), length).offset(at).build()
                }
            };
            // SAFETY: file and memory outlive the completion, for which this function waits below.
            unsafe { ring.submission().push(&entry.user_data(offset(index))) }.expect("room in the queue");
        }
        ring.submit_and_wait(batch.len()).expect("io_uring_enter");
        complete(&mut ring, direction, batch);
    }
}

/// Takes one completion for each slot and checks that it is full.
fn complete(ring: &mut IoUring, direction: Direction, batch: &[Slot]) {
    let mut done = 0;
    while done < batch.len() {
        let completions: Vec<_> =
            ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (index, result) in completions {
            let slot = &batch[usize::try_from(index).expect("an index")];
            let expected = i32::try_from(slot.memory.as_ref().len()).expect("small");
            assert_eq!(result, expected, "{direction:?} at {} (negative: an errno)", slot.at);
            done += 1;
        }
        if done < batch.len() {
            ring.submit_and_wait(1).expect("io_uring_enter");
        }
    }
}

fn open(path: &Path, write: bool, direct: bool) -> File {
    let mut options = OpenOptions::new();
    options.read(!write).write(write).create(write).custom_flags(if direct { libc::O_DIRECT } else { 0 });
    options.open(path).expect("open")
}

/// The start of a piece and its length, in pages if `direct`, at any byte if not; together they cover the file once.
fn cover(direct: bool, random: &mut StdRng) -> Vec<(usize, usize)> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    while at < LENGTH {
        let wish = if direct { 4096 * random.random_range(1..=64) } else { random.random_range(1..=250_000) };
        let length = wish.min(LENGTH - at);
        pieces.push((at, length));
        at += length;
    }
    pieces.shuffle(random);
    pieces
}

fn writes(mode: Mode, engine: Engine, direct: bool) {
    let (_mount, kv) = kv(mode);
    let mut random = StdRng::seed_from_u64(1);
    for round in 0..3 {
        let path = kv.join(format!("k{round}"));
        let bytes = pattern::bytes(round, LENGTH);
        let pieces = cover(direct, &mut random);
        let mut slots: Vec<_> = pieces
            .into_iter()
            .map(|(at, length)| Slot { at, memory: Aligned::from(&bytes[at..at + length]) })
            .collect();
        engine(&open(&path, true, direct), Direction::Write, &mut slots);
        assert_same(&fs::read(&path).expect("read"), &bytes, "written");
        assert_eq!(Peer::spawn().stat(&path).expect("stat").size, offset(LENGTH));
    }
}

fn reads(mode: Mode, engine: Engine, direct: bool) {
    let (_mount, kv) = kv(mode);
    let mut random = StdRng::seed_from_u64(2);
    let bytes = pattern::bytes(1, LENGTH);
    publish(&kv.join("key"), &bytes);
    let file = open(&kv.join("key"), false, direct);
    for _ in 0..3 {
        let pieces = cover(direct, &mut random);
        let mut slots: Vec<_> =
            pieces.into_iter().map(|(at, length)| Slot { at, memory: Aligned::zeroed(length) }).collect();
        engine(&file, Direction::Read, &mut slots);
        for slot in slots {
            let found = slot.memory.as_ref();
            assert_same(found, &bytes[slot.at..slot.at + found.len()], &format!("at {}", slot.at));
        }
    }
}

fn libaio_writes_in_any_order_and_the_file_is_whole(mode: Mode) {
    writes(mode, libaio, false);
}

fn libaio_direct_writes_in_any_order_and_the_file_is_whole(mode: Mode) {
    writes(mode, libaio, true);
}

fn libaio_reads_at_random_offsets_are_full(mode: Mode) {
    reads(mode, libaio, false);
}

fn libaio_direct_reads_at_random_offsets_are_full(mode: Mode) {
    reads(mode, libaio, true);
}

fn io_uring_writes_in_any_order_and_the_file_is_whole(mode: Mode) {
    writes(mode, io_uring, false);
}

fn io_uring_direct_writes_in_any_order_and_the_file_is_whole(mode: Mode) {
    writes(mode, io_uring, true);
}

fn io_uring_reads_at_random_offsets_are_full(mode: Mode) {
    reads(mode, io_uring, false);
}

fn io_uring_direct_reads_at_random_offsets_are_full(mode: Mode) {
    reads(mode, io_uring, true);
}

fn io_uring_reads_into_registered_buffers_are_full(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let bytes = pattern::bytes(1, LENGTH);
    publish(&kv.join("key"), &bytes);
    let file = open(&kv.join("key"), false, false);
    let mut slots: Vec<_> =
        (0..DEPTH).map(|index| Slot { at: index * 180_001, memory: Aligned::zeroed(180_001) }).collect();
    let mut ring = IoUring::new(u32::try_from(DEPTH).expect("small")).expect("io_uring_setup");
    let vectors: Vec<libc::iovec> = slots
        .iter_mut()
        .map(|slot| libc::iovec { iov_base: slot.memory.as_mut().as_mut_ptr().cast(), iov_len: 180_001 })
        .collect();
    // SAFETY: the memory of the slots stays in place until the ring is gone.
    unsafe { ring.submitter().register_buffers(&vectors) }.expect("register_buffers");
    for (index, slot) in slots.iter_mut().enumerate() {
        let number = u16::try_from(index).expect("small");
        let memory = slot.memory.as_mut();
        let length = u32::try_from(memory.len()).expect("small");
        let read = opcode::ReadFixed::new(types::Fd(file.as_raw_fd()), memory.as_mut_ptr(), length, number)
            .offset(offset(slot.at))
            .build();
        // SAFETY: file and memory outlive the completion, for which `complete` waits.
        unsafe { ring.submission().push(&read.user_data(offset(index))) }.expect("room in the queue");
    }
    ring.submit_and_wait(slots.len()).expect("io_uring_enter");
    complete(&mut ring, Direction::Read, &slots);
    drop(ring);
    for slot in &slots {
        assert_same(slot.memory.as_ref(), &bytes[slot.at..slot.at + 180_001], &format!("at {}", slot.at));
    }
}
