//! Shows that ring and pool move the same bytes, between buffers and mapped tmpfs files and a disk's file.

use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use tidefs_engine::memory::Mapping;

use super::super::format::BLOCK;
use super::super::memory::{Buffer, Memory, Piece};
use super::*;

const LIMIT: Duration = Duration::from_secs(30);

fn disk(directory: &std::path::Path, wants_ring: bool) -> (FileDisk, Arc<Io>) {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(libc::O_DIRECT)
        .open(directory.join("disk"))
        .unwrap();
    let io = Io::start(wants_ring).unwrap();
    (FileDisk::new(file, Arc::clone(&io)), io)
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at / 3 + seed * 7 + at % 251) % 256).unwrap()).collect()
}

#[test]
fn what_is_written_by_one_way_is_read_by_the_other() {
    let directory = tempfile::tempdir().unwrap();
    for (write_by_ring, read_by_ring) in [(true, false), (false, true), (true, true), (false, false)] {
        let bytes = pattern(usize::from(write_by_ring), 5 * BLOCK);
        {
            let (disk, _) = disk(directory.path(), write_by_ring);
            disk.allocate(ByteCount::mib(1)).unwrap();
            let head = Arc::new(Buffer::holding(&bytes[..BLOCK]));
            let tail = Arc::new(Buffer::holding(&bytes[BLOCK..]));
            let pieces = vec![Piece::of_buffer(&head), Piece::of_buffer(&tail)];
            let write = Request::Write { offset: 8192, pieces };
            disk.submit(vec![write]).wait(LIMIT).unwrap();
            disk.submit(vec![Request::Flush]).wait(LIMIT).unwrap();
            assert!(disk.allocated().unwrap() >= ByteCount::mib(1));
        }
        let (disk, _) = disk(directory.path(), read_by_ring);
        let target = Arc::new(Buffer::zeroed(5 * BLOCK));
        disk.submit(vec![Request::read(8192, Piece::of_buffer(&target))]).wait(LIMIT).unwrap();
        assert!(target.bytes() == bytes);
    }
}

#[test]
fn a_segment_is_written_and_read_without_a_buffer_between() {
    let directory = tempfile::tempdir().unwrap();
    let segment = nix::sys::memfd::memfd_create(c"segment", nix::sys::memfd::MFdFlags::empty()).unwrap();
    let segment = File::from(segment);
    // Ends inside a page: the rest of the page may be touched, and is zero.
    let bytes = pattern(3, 3 * BLOCK + 100);
    std::os::unix::fs::FileExt::write_all_at(&segment, &bytes, 0).unwrap();
    let mapping = Arc::new(Mapping::new(&segment, ByteCount(bytes.len() as u64)).unwrap());
    for wants_ring in [true, false] {
        let (disk, _) = disk(directory.path(), wants_ring);
        disk.allocate(ByteCount::mib(1)).unwrap();
        let piece = Piece::new(&Memory::Segment(Arc::clone(&mapping)), 0, 4 * BLOCK).unwrap();
        disk.submit(vec![Request::write(0, piece)]).wait(LIMIT).unwrap();
        let target = Arc::new(Buffer::zeroed(4 * BLOCK));
        disk.submit(vec![Request::read(0, Piece::of_buffer(&target))]).wait(LIMIT).unwrap();
        assert!(target.bytes()[..bytes.len()] == bytes);
        assert!(target.bytes()[bytes.len()..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn more_requests_than_the_depth_all_end_and_one_error_fails_its_ticket_alone() {
    let directory = tempfile::tempdir().unwrap();
    for wants_ring in [true, false] {
        let (disk, _) = disk(directory.path(), wants_ring);
        disk.allocate(ByteCount::mib(4)).unwrap();
        let piece = |index: usize| Piece::of_buffer(&Arc::new(Buffer::holding(&pattern(index, BLOCK))));
        let writes =
            (0..1000_usize).map(|index| Request::write((index * BLOCK) as u64, piece(index))).collect();
        let all = disk.submit(writes);
        let beyond = disk.submit(vec![Request::read(1 << 40, piece(0))]);
        all.wait(LIMIT).unwrap();
        assert_eq!(beyond.wait(LIMIT).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let target = Arc::new(Buffer::zeroed(1000 * BLOCK));
        disk.submit(vec![Request::read(0, Piece::of_buffer(&target))]).wait(LIMIT).unwrap();
        assert!((0..1000).all(|index| target.bytes()[index * BLOCK..][..BLOCK] == pattern(index, BLOCK)));
    }
}

#[test]
fn a_ticket_is_given_up_after_its_time_and_says_so() {
    let (ticket, completion) = Ticket::new(1);
    assert_eq!(ticket.wait(Duration::from_millis(1)).unwrap_err().kind(), io::ErrorKind::TimedOut);
    completion.end_one(Ok(()));
    ticket.wait(LIMIT).unwrap();
}

#[test]
fn the_pool_says_why_it_is_used() {
    assert_eq!(Io::start(false).unwrap().fallback_reason(), Some("io_uring is switched off"));
}

#[test]
fn a_thread_that_waits_itself_gets_the_same_bytes_more_requests_than_its_ring_holds_and_its_errors() {
    let directory = tempfile::tempdir().unwrap();
    for wants_ring in [true, false] {
        let (disk, _) = disk(directory.path(), wants_ring);
        disk.allocate(ByteCount::mib(4)).unwrap();
        let bytes = pattern(usize::from(wants_ring), 200 * BLOCK);
        let whole = Piece::of_buffer(&Arc::new(Buffer::holding(&bytes)));
        disk.submit_here(vec![Request::write(0, whole)]).wait(LIMIT).unwrap();
        let targets: Vec<_> = (0..200).map(|_| Arc::new(Buffer::zeroed(BLOCK))).collect();
        let reads = targets.iter().enumerate().map(|(index, target)| {
            disk.submit_here(vec![Request::read((index * BLOCK) as u64, Piece::of_buffer(target))])
        });
        let tickets: Vec<_> = reads.collect();
        let beyond = Piece::of_buffer(&Arc::new(Buffer::zeroed(BLOCK)));
        let beyond = disk.submit_here(vec![Request::read(1 << 40, beyond)]);
        // The last first: the others end meanwhile.
        tickets.iter().rev().for_each(|ticket| ticket.wait(LIMIT).unwrap());
        assert_eq!(beyond.wait(LIMIT).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let read: Vec<u8> = targets.iter().flat_map(|target| target.bytes().to_vec()).collect();
        assert!(read == bytes);
    }
}
