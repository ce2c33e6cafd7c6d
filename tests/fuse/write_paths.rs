//! Every way in which a program puts bytes into a file, at every size at which something changes.
//!
//! Each way writes one file per size and closes it; then the file must have exactly these bytes for this process and
//! its size and whole content for another one.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::uio::pwritev;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::common::modes::in_all_modes;
use crate::common::pattern::{self, assert_same};
use crate::common::sys::{Aligned, Mapping};
use crate::common::{Mode, Peer};
use crate::fixture::{MIB, kv, offset, signed, sizes};

in_all_modes!(
    one_write,
    writes_in_odd_pieces,
    pwrites_in_any_order,
    pwrites_that_overlap,
    writev_of_many_pieces,
    pwritev_of_many_pieces_from_the_back,
    appends,
    direct_writes_of_whole_pages,
    direct_writes_after_fcntl,
    ftruncate_to_the_final_size_first,
    ftruncate_up_and_down_leaves_no_old_bytes,
    what_is_truncated_to_nothing_by_name_is_there_and_empty,
    a_shared_mapping,
    a_shared_mapping_and_pwrites_together,
    fallocate_first,
    a_hole_at_the_head_reads_as_zeros,
    holes_between_written_pages_read_as_zeros,
    copy_file_range_from_another_filesystem,
    copy_file_range_within_the_mount,
    sendfile_from_another_filesystem,
    splice_from_a_pipe,
    two_descriptors_of_one_file,
);

/// Writes a file of each size by `write` and checks what is there afterwards.
fn at_every_size(mode: Mode, write: impl Fn(&Path, &[u8])) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    for length in sizes() {
        let path = kv.join(format!("k{length}"));
        let bytes = pattern::bytes(offset(length) + 1, length);
        write(&path, &bytes);
        assert_file(&path, &bytes, &mut other);
        fs::remove_file(&path).expect("unlink");
    }
}

/// The file has these bytes, and its attributes fit them.
#[track_caller]
fn assert_file(path: &Path, expected: &[u8], other: &mut Peer) {
    let length = offset(expected.len());
    assert_same(&fs::read(path).expect("read"), expected, "read by its writer's process");
    assert_eq!(other.stat(path).expect("stat by another process").size, length);
    if expected.len() <= MIB + 1 {
        assert_same(&other.read(path).expect("read"), expected, "read by another process");
    }
    let facts = fs::metadata(path).expect("stat");
    let taken = facts.blocks() * 512;
    assert_eq!(facts.len(), length);
    assert!(taken <= length.next_multiple_of(4096) + 4096, "{length} bytes take {taken}");
    assert!(facts.is_file() && facts.nlink() == 1);
}

fn create(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).open(path).expect("create")
}

/// The starts and lengths of pieces of a random size that cover `length` bytes.
fn pieces(length: usize, random: &mut StdRng) -> Vec<(usize, usize)> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    let largest = (length / 20).max(4096);
    while at < length {
        let piece = random.random_range(1..=largest).min(length - at);
        pieces.push((at, piece));
        at += piece;
    }
    pieces
}

fn one_write(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let mut file = create(path);
        // One call moves everything: clients do not retry a short write.
        assert_eq!(file.write(bytes).expect("write"), bytes.len());
    });
}

fn writes_in_odd_pieces(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let mut file = create(path);
        for piece in bytes.chunks(65_521) {
            assert_eq!(file.write(piece).expect("write"), piece.len());
        }
    });
}

fn pwrites_in_any_order(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let mut random = StdRng::seed_from_u64(1);
        let file = create(path);
        let mut pieces = pieces(bytes.len(), &mut random);
        pieces.shuffle(&mut random);
        for (at, length) in pieces {
            let written = file.write_at(&bytes[at..at + length], offset(at)).expect("pwrite");
            assert_eq!(written, length);
        }
    });
}

fn pwrites_that_overlap(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let file = create(path);
        file.write_all_at(&vec![0xEE; bytes.len()], 0).expect("pwrite of what is to be covered");
        let mut random = StdRng::seed_from_u64(2);
        let mut pieces = pieces(bytes.len(), &mut random);
        pieces.shuffle(&mut random);
        for (at, length) in pieces {
            let end = (at + 2 * length).min(bytes.len());
            file.write_all_at(&bytes[at..end], offset(at)).expect("pwrite");
        }
    });
}

fn writev_of_many_pieces(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let mut file = create(path);
        let piece = (bytes.len() / 61).max(1);
        let slices: Vec<_> = bytes.chunks(piece).map(IoSlice::new).collect();
        assert!(slices.len() <= 1024, "IOV_MAX");
        if !slices.is_empty() {
            assert_eq!(file.write_vectored(&slices).expect("writev"), bytes.len());
        }
    });
}

fn pwritev_of_many_pieces_from_the_back(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let file = create(path);
        let half = bytes.len() / 2;
        for (at, part) in [(half, &bytes[half..]), (0, &bytes[..half])] {
            let slices: Vec<_> = part.chunks((part.len() / 80).max(1)).map(IoSlice::new).collect();
            if !slices.is_empty() {
                assert_eq!(pwritev(&file, &slices, signed(at)).expect("pwritev"), part.len());
            }
        }
    });
}

fn appends(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        drop(create(path));
        let mut file = OpenOptions::new().append(true).open(path).expect("open for appending");
        for piece in bytes.chunks((bytes.len() / 7).max(1)) {
            // Where the descriptor stands does not matter: every write goes to the end.
            file.seek(SeekFrom::Start(0)).expect("lseek");
            assert_eq!(file.write(piece).expect("append"), piece.len());
        }
    });
}

/// Writes whole pages with O_DIRECT, then cuts the file to its length.
fn write_direct(file: &File, bytes: &[u8]) {
    let padded = Aligned::from(&[bytes, &vec![0; bytes.len().next_multiple_of(4096) - bytes.len()]].concat());
    let whole: &[u8] = padded.as_ref();
    let (front, back) = whole.split_at((whole.len() / 2).next_multiple_of(4096).min(whole.len()));
    assert_eq!(file.write_at(back, offset(front.len())).expect("direct pwrite"), back.len());
    assert_eq!(file.write_at(front, 0).expect("direct pwrite"), front.len());
    file.set_len(offset(bytes.len())).expect("ftruncate");
}

fn direct_writes_of_whole_pages(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).custom_flags(libc::O_DIRECT);
        write_direct(&options.open(path).expect("create with O_DIRECT"), bytes);
    });
}

fn direct_writes_after_fcntl(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let file = create(path);
        file.write_all_at(&vec![0x11; bytes.len()], 0).expect("buffered write");
        let flags = nix::fcntl::OFlag::O_RDWR | nix::fcntl::OFlag::O_DIRECT;
        nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFL(flags)).expect("O_DIRECT can be set later");
        write_direct(&file, bytes);
    });
}

fn ftruncate_to_the_final_size_first(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let mut file = create(path);
        file.set_len(offset(bytes.len())).expect("ftruncate");
        assert_eq!(file.metadata().expect("fstat").len(), offset(bytes.len()));
        assert_eq!(file.write(bytes).expect("write"), bytes.len());
    });
}

fn what_is_truncated_to_nothing_by_name_is_there_and_empty(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    for (length, is_read) in [(100, false), (100_000, false), (100, true), (100_000, true)] {
        let path = kv.join(format!("{length}-{is_read}"));
        let bytes = pattern::bytes(3, length);
        fs::write(&path, &bytes).expect("write");
        // It waits for the close to have come: before, who opens the file here has the one that is cut.
        other.stat(&path).expect("it is an object");
        let mut reader = is_read.then(|| File::open(&path).expect("open"));
        nix::unistd::truncate(&path, 0).expect("truncate");
        assert_eq!(fs::metadata(&path).expect("it is there").len(), 0);
        assert_eq!(other.read(&path).expect("it is there for others"), b"");
        if let Some(reader) = &mut reader {
            let mut found = Vec::new();
            reader.read_to_end(&mut found).expect("read");
            assert_same(&found, &bytes, "who had it open before reads it to its end");
        }
    }
    let temporary = kv.join("k.tmp");
    fs::write(&temporary, b"half").expect("write");
    nix::unistd::truncate(&temporary, 0).expect("truncate");
    fs::rename(&temporary, kv.join("k")).expect("it is there to be renamed");
    assert_eq!(other.read(&kv.join("k")).expect("read"), b"");
}

fn ftruncate_up_and_down_leaves_no_old_bytes(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let file = create(path);
        file.write_all_at(&vec![0xEE; bytes.len() + 5000], 0).expect("write");
        let half = bytes.len() / 2;
        file.set_len(offset(half)).expect("ftruncate down");
        file.set_len(offset(bytes.len())).expect("ftruncate up");
        let mut tail = vec![0xEE; bytes.len() - half];
        file.read_exact_at(&mut tail, offset(half)).expect("read");
        assert!(tail.iter().all(|byte| *byte == 0), "what was cut off came back");
        file.write_all_at(bytes, 0).expect("write");
    });
}

/// A file of this length, mapped to be written; nothing can be mapped of an empty one.
fn sized_and_mapped(path: &Path, length: usize) -> Option<(File, Mapping)> {
    let file = create(path);
    file.set_len(offset(length)).expect("ftruncate");
    (length > 0).then(|| {
        let mapping = Mapping::shared_writable(&file, length).expect("mmap");
        (file, mapping)
    })
}

fn a_shared_mapping(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let Some((_file, mapping)) = sized_and_mapped(path, bytes.len()) else { return };
        for (index, piece) in bytes.chunks(300_007).enumerate().collect::<Vec<_>>().into_iter().rev() {
            mapping.write(index * 300_007, piece);
        }
        mapping.sync().expect("msync");
    });
}

fn a_shared_mapping_and_pwrites_together(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let Some((file, mapping)) = sized_and_mapped(path, bytes.len()) else { return };
        for (index, piece) in bytes.chunks(7777).enumerate() {
            let at = index * 7777;
            if index % 2 == 0 {
                mapping.write(at, piece);
                let mut seen = vec![0; piece.len()];
                file.read_exact_at(&mut seen, offset(at)).expect("pread");
                assert_same(&seen, piece, "a store is seen by pread");
            } else {
                file.write_all_at(piece, offset(at)).expect("pwrite");
                assert_same(&mapping.read(at, piece.len()), piece, "a pwrite is seen in the mapping");
            }
        }
    });
}

fn fallocate_first(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let mut file = create(path);
        if !bytes.is_empty() {
            fallocate(&file, FallocateFlags::empty(), 0, signed(bytes.len())).expect("fallocate");
            assert_eq!(file.metadata().expect("fstat").len(), offset(bytes.len()), "fallocate sets the size");
            let mut zeros = vec![0xEE; bytes.len()];
            file.read_exact_at(&mut zeros, 0).expect("read");
            assert!(zeros.iter().all(|byte| *byte == 0), "allocated bytes of someone else");
        }
        assert_eq!(file.write(bytes).expect("write"), bytes.len());
    });
}

fn a_hole_at_the_head_reads_as_zeros(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    for (hole, length) in [(1, 1), (4096, 4096), (10_000, 100), (100_000, 50_000), (3 * MIB, MIB)] {
        let path = kv.join(format!("k{hole}"));
        let bytes = pattern::bytes(1, length);
        let file = create(&path);
        file.write_all_at(&bytes, offset(hole)).expect("pwrite");
        drop(file);
        assert_file(&path, &[vec![0; hole], bytes].concat(), &mut other);
    }
}

fn holes_between_written_pages_read_as_zeros(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("sparse");
    let mut expected = vec![0; 4 * MIB + 100];
    let file = create(&path);
    for at in (0..4 * MIB).step_by(300_000) {
        let piece = pattern::bytes(offset(at), 5000);
        file.write_all_at(&piece, offset(at)).expect("pwrite");
        expected[at..at + 5000].copy_from_slice(&piece);
    }
    file.set_len(offset(expected.len())).expect("ftruncate");
    drop(file);
    assert_file(&path, &expected, &mut Peer::spawn());
}

/// A file with these bytes outside of the mount.
fn elsewhere(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a file elsewhere");
    file.write_all(bytes).expect("write");
    file.rewind().expect("lseek");
    file
}

/// copy_file_range(2) until everything is copied; falls back to nothing.
fn copy_range(source: &File, target: &File, length: usize) {
    let (mut from, mut to) = (0, 0);
    while from < signed(length) {
        let left = length - usize::try_from(from).expect("not negative");
        let count = nix::fcntl::copy_file_range(source, Some(&mut from), target, Some(&mut to), left);
        assert_ne!(count.expect("copy_file_range"), 0, "copy_file_range stops at {from}");
    }
}

fn copy_file_range_from_another_filesystem(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        // std::io::copy tries copy_file_range, sendfile and splice, as cp and shutil do.
        let count = std::io::copy(&mut elsewhere(bytes), &mut create(path)).expect("copy");
        assert_eq!(count, offset(bytes.len()));
    });
}

fn copy_file_range_within_the_mount(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let source = path.with_extension("source");
        fs::write(&source, bytes).expect("write");
        copy_range(&File::open(&source).expect("open"), &create(path), bytes.len());
        fs::remove_file(&source).expect("unlink");
    });
}

fn sendfile_from_another_filesystem(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let (source, target) = (elsewhere(bytes), create(path));
        let mut left = bytes.len();
        while left > 0 {
            let count = nix::sys::sendfile::sendfile(&target, &source, None, left).expect("sendfile");
            assert_ne!(count, 0, "sendfile stops {left} bytes before the end");
            left -= count;
        }
    });
}

/// splice(2) of `length` bytes.
fn splice(from: &impl AsRawFd, to: &impl AsRawFd, length: usize) -> usize {
    let null = std::ptr::null_mut();
    // SAFETY: both descriptors are open for the call; null offsets mean their own positions.
    let count = unsafe { libc::splice(from.as_raw_fd(), null, to.as_raw_fd(), null, length, 0) };
    usize::try_from(Errno::result(count).expect("splice")).expect("not negative")
}

fn splice_from_a_pipe(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let target = create(path);
        let (output, input): (OwnedFd, OwnedFd) = nix::unistd::pipe().expect("a pipe");
        let copy = bytes.to_vec();
        let feeder =
            std::thread::spawn(move || File::from(input).write_all(&copy).expect("write to the pipe"));
        let mut left = bytes.len();
        while left > 0 {
            let count = splice(&output, &target, left);
            assert_ne!(count, 0, "the pipe ends {left} bytes early");
            left -= count;
        }
        feeder.join().expect("the pipe takes everything");
    });
}

fn two_descriptors_of_one_file(mode: Mode) {
    at_every_size(mode, |path, bytes| {
        let first = create(path);
        let second = OpenOptions::new().read(true).write(true).open(path).expect("a second descriptor");
        for (index, piece) in bytes.chunks(50_021).enumerate() {
            let (writer, reader) = if index % 2 == 0 { (&first, &second) } else { (&second, &first) };
            writer.write_all_at(piece, offset(index * 50_021)).expect("pwrite");
            let mut seen = vec![0; piece.len()];
            reader.read_exact_at(&mut seen, offset(index * 50_021)).expect("pread");
            assert_same(&seen, piece, "written by the other descriptor");
        }
    });
}
