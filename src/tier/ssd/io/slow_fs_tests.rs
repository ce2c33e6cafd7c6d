//! Shows that a filesystem which has whoever asks wait keeps no thread that submits, and one that never has an answer keeps none
//! busy, by one of FUSE whose reads hang or fail.
//!
//! Layouts of requests and answers: linux/fuse.h, protocol 7.31.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::super::format::BLOCK;
use super::super::memory::{Buffer, Piece};
use super::*;

const LIMIT: Duration = Duration::from_secs(20);
/// Bytes of what stands before each request.
const REQUEST: usize = 40;
/// The operation that reads.
const READ: u32 = 15;
/// Bytes of the one file.
const LENGTH: u64 = 1 << 20;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// `struct fuse_attr` of the root, or of the file.
fn attributes(inode: u64) -> Vec<u8> {
    let (mode, size) = if inode == 1 { (0o40_755_u32, 0) } else { (0o100_644, LENGTH) };
    let mut answer: Vec<u8> =
        [inode, size, size / 512, 0, 0, 0].iter().flat_map(|one| one.to_ne_bytes()).collect();
    answer.extend([0, 0, 0, mode, 1, 0, 0, 0, 4096, 0_u32].iter().flat_map(|one| one.to_ne_bytes()));
    answer
}

/// What is answered to a request; `None` to one that hangs, or wants no answer.
fn answer(operation: u32, inode: u64) -> Option<Result<Vec<u8>, i32>> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let numbers = |numbers: &[u64]| numbers.iter().flat_map(|one| one.to_ne_bytes()).collect::<Vec<u8>>();
    match operation {
        // LOOKUP: the inode, its generation, and for how many seconds entry and attributes are valid.
        1 => Some(Ok([numbers(&[2, 0, 100, 100]), words(&[0, 0]), attributes(2)].concat())),
        // FORGET and INTERRUPT.
        2 | 36 => None,
        // GETATTR.
        3 => Some(Ok([numbers(&[100]), words(&[0, 0]), attributes(inode)].concat())),
        // OPEN: a handle, whose file is read without page cache.
        14 => Some(Ok([numbers(&[1]), words(&[1, 0])].concat())),
        // It hangs.
        READ => None,
        // RELEASE and FLUSH.
        18 | 25 => Some(Ok(Vec::new())),
        // INIT: 7.31, readahead, no flags, limits.
        26 => Some(Ok(words(&[7, 31, 0, 0, 0, 4096, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]))),
        _ => Some(Err(libc::ENOSYS)),
    }
}

/// What reads of a file are answered.
#[derive(Debug, Default)]
struct Reads {
    /// The error number with which they fail; without one they hang.
    error: Option<i32>,
    count: AtomicU64,
}

/// Answers requests until the filesystem is gone.
fn serve(mut device: File, reads: &Reads) {
    let mut request = vec![0; 1 << 20];
    while let Ok(length) = device.read(&mut request) {
        if length < REQUEST {
            return;
        }
        let inode = u64::from_ne_bytes(request[16..24].try_into().unwrap());
        let operation = u32_at(&request, 4);
        let is_read = operation == READ;
        reads.count.fetch_add(u64::from(is_read), Ordering::Relaxed);
        let failed = reads.error.filter(|_| is_read).map(Err);
        let Some(answer) = failed.or_else(|| answer(operation, inode)) else { continue };
        let (error, body) = answer.map_or_else(|error| (-error, Vec::new()), |body| (0, body));
        let length = u32::try_from(16 + body.len()).unwrap();
        let whole = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &request[8..16], &body].concat();
        // Who asked may be gone.
        let _ = device.write_all(&whole);
    }
}

/// A mounted filesystem, whose requests end with an error when this is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn at(place: PathBuf, reads: Arc<Reads>) -> Self {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        mount(Some("slow"), &place, Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
        thread::spawn(move || serve(device, &reads));
        Self(place)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // While a file is open it is busy, and its requests end all the same.
        let _ = umount2(&self.0, MntFlags::MNT_FORCE);
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

fn open_disk(mounted: &Mounted) -> File {
    let path = mounted.0.join("disk");
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
}

#[test]
fn a_filesystem_that_has_who_asks_wait_keeps_no_thread_that_submits() {
    let directory = tempfile::tempdir().unwrap();
    let mounted = Mounted::at(directory.path().to_owned(), Arc::default());
    let file = open_disk(&mounted);
    let (tell, told) = sync_channel(1);
    let submitter = thread::spawn(move || {
        let disk = FileDisk::new(file, Io::start(true).unwrap());
        let target = Arc::new(Buffer::zeroed(BLOCK));
        let ticket = disk.submit_here(vec![Request::read(0, Piece::of_buffer(&target))]);
        let outcome = ticket.wait(Duration::from_millis(100));
        tell.send(outcome.map_err(|error| error.kind())).unwrap();
    });
    let outcome = told.recv_timeout(LIMIT);
    drop(mounted);
    submitter.join().unwrap();
    assert_eq!(outcome, Ok(Err(io::ErrorKind::TimedOut)));
}

#[test]
fn a_file_that_never_has_an_answer_keeps_no_thread_of_a_pool_busy_nor_any_when_nobody_waits() {
    let directory = tempfile::tempdir().unwrap();
    let reads = Arc::new(Reads { error: Some(libc::EAGAIN), ..Reads::default() });
    let mounted = Mounted::at(directory.path().to_owned(), Arc::clone(&reads));
    let disk = FileDisk::new(open_disk(&mounted), Io::start(false).unwrap());
    let target = Arc::new(Buffer::zeroed(BLOCK));
    let ticket = disk.submit(vec![Request::read(0, Piece::of_buffer(&target))]);
    let outcome = ticket.wait(Duration::from_millis(300));
    assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::TimedOut);
    let end = ticket.completion();
    drop(ticket);
    let given_up_at = Instant::now() + LIMIT;
    while !end.is_over() && Instant::now() < given_up_at {
        thread::sleep(Duration::from_millis(1));
    }
    let (is_over, count) = (end.is_over(), reads.count.load(Ordering::Relaxed));
    // Else its threads would be waited for.
    drop(mounted);
    assert!(is_over, "it is asked for though nobody waits for it");
    assert!((1..250).contains(&count), "it was asked {count} times");
}
