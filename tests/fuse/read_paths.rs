//! Every way in which a program gets bytes out of a sealed object, at every size at which something changes.
//!
//! Six of the clients we serve take a short read for good data, so inside a file no read is short.

use std::fs::{self, File, OpenOptions};
use std::io::{IoSliceMut, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::sys::uio::preadv;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::Mode;
use crate::common::modes::in_all_modes;
use crate::common::pattern::{self, assert_same};
use crate::common::sys::{Aligned, Mapping};
use crate::fixture::{MIB, kv, offset, publish, signed, sizes};

in_all_modes!(
    one_read,
    reads_in_odd_pieces,
    preads_at_random_offsets,
    preadv_into_many_pieces,
    direct_reads,
    direct_reads_after_fcntl,
    a_buffered_and_a_direct_reader_at_once,
    a_shared_read_only_mapping,
    a_private_mapping,
    a_populated_private_mapping,
    stores_into_a_private_mapping_stay_private,
    behind_the_end_a_mapped_page_is_zero,
    a_shared_writable_mapping_of_a_read_only_descriptor_is_refused,
    reads_after_readahead_and_fadvise,
    reads_at_the_end_are_short_and_behind_it_empty,
    seeks_to_data_and_holes_stay_inside_the_file,
    copy_to_another_filesystem,
    sendfile_to_another_filesystem,
    descriptors_have_positions_of_their_own,
    eight_threads_on_one_descriptor,
);

/// Publishes an object of each size and hands it to `read`, whose result must be its bytes.
fn at_every_size(mode: Mode, read: impl Fn(&Path, usize) -> Vec<u8>) {
    let (_mount, kv) = kv(mode);
    for length in sizes() {
        let path = kv.join(format!("k{length}"));
        let bytes = pattern::bytes(offset(length) + 7, length);
        publish(&path, &bytes);
        assert_same(&read(&path, length), &bytes, &format!("{length} bytes"));
        fs::remove_file(&path).expect("unlink");
    }
}

fn one_read(mode: Mode) {
    at_every_size(mode, |path, length| {
        let mut bytes = vec![0; length + 10];
        let count = File::open(path).expect("open").read(&mut bytes).expect("read");
        assert_eq!(count, length, "one read gives the whole file");
        bytes.truncate(count);
        bytes
    });
}

fn reads_in_odd_pieces(mode: Mode) {
    at_every_size(mode, |path, length| {
        let mut file = File::open(path).expect("open");
        let mut bytes = vec![0; length];
        for piece in bytes.chunks_mut(33_331) {
            assert_eq!(file.read(piece).expect("read"), piece.len(), "no short read inside a file");
        }
        bytes
    });
}

fn preads_at_random_offsets(mode: Mode) {
    at_every_size(mode, |path, length| {
        let file = File::open(path).expect("open");
        let whole = fs::read(path).expect("read");
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..100 {
            let at = random.random_range(0..=length);
            let count = random.random_range(0..=(length - at).min(2 * MIB));
            let mut part = vec![0; count];
            assert_eq!(file.read_at(&mut part, offset(at)).expect("pread"), count);
            assert_same(&part, &whole[at..at + count], "a random range");
        }
        whole
    });
}

fn preadv_into_many_pieces(mode: Mode) {
    at_every_size(mode, |path, length| {
        let file = File::open(path).expect("open");
        let mut bytes = vec![0; length];
        let half = length / 2;
        for (at, end) in [(half, length), (0, half)] {
            let part = &mut bytes[at..end];
            let piece = (part.len() / 70).max(1);
            let expected = part.len();
            let mut slices: Vec<_> = part.chunks_mut(piece).map(IoSliceMut::new).collect();
            if !slices.is_empty() {
                assert_eq!(preadv(&file, &mut slices, signed(at)).expect("preadv"), expected);
            }
        }
        bytes
    });
}

fn open_direct(path: &Path) -> File {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).expect("open with O_DIRECT")
}

/// Reads whole pages with O_DIRECT up to the end of the file.
fn read_direct(file: &File, length: usize) -> Vec<u8> {
    let mut buffer = Aligned::zeroed(length.next_multiple_of(4096) + 4096);
    assert_eq!(file.read_at(buffer.as_mut(), 0).expect("direct pread"), length);
    if length > 8192 {
        let mut page = Aligned::zeroed(4096);
        let at = (length / 2) / 4096 * 4096;
        assert_eq!(file.read_at(page.as_mut(), offset(at)).expect("direct pread"), 4096.min(length - at));
        assert_same(
            &page.as_ref()[..4096.min(length - at)],
            &buffer.as_ref()[at..][..4096.min(length - at)],
            "a page",
        );
    }
    buffer.as_ref()[..length].to_vec()
}

fn direct_reads(mode: Mode) {
    at_every_size(mode, |path, length| read_direct(&open_direct(path), length));
}

fn direct_reads_after_fcntl(mode: Mode) {
    at_every_size(mode, |path, length| {
        let file = File::open(path).expect("open");
        let flags = nix::fcntl::OFlag::O_RDONLY | nix::fcntl::OFlag::O_DIRECT;
        nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_SETFL(flags)).expect("O_DIRECT can be set later");
        read_direct(&file, length)
    });
}

fn a_buffered_and_a_direct_reader_at_once(mode: Mode) {
    at_every_size(mode, |path, length| {
        let (buffered, direct) = (File::open(path).expect("open"), open_direct(path));
        let mapping = (length > 0).then(|| Mapping::shared(&buffered, length).expect("mmap"));
        let bytes = read_direct(&direct, length);
        let mut again = vec![0; length];
        buffered.read_exact_at(&mut again, 0).expect("pread");
        assert_same(&again, &bytes, "the buffered reader");
        if let Some(mapping) = mapping {
            assert_same(&mapping.bytes(), &bytes, "the mapping");
        }
        bytes
    });
}

fn mapped(path: &Path, length: usize, map: impl Fn(&File, usize) -> Result<Mapping, Errno>) -> Vec<u8> {
    if length == 0 {
        return Vec::new();
    }
    // The descriptor is closed before the first touch, as every client does.
    let mapping = map(&File::open(path).expect("open"), length).expect("mmap");
    mapping.bytes()
}

fn a_shared_read_only_mapping(mode: Mode) {
    at_every_size(mode, |path, length| mapped(path, length, Mapping::shared));
}

fn a_private_mapping(mode: Mode) {
    at_every_size(mode, |path, length| mapped(path, length, Mapping::private));
}

fn a_populated_private_mapping(mode: Mode) {
    at_every_size(mode, |path, length| {
        let flags = libc::MAP_PRIVATE | libc::MAP_POPULATE;
        mapped(path, length, |file, length| Mapping::new(file, length, libc::PROT_READ, flags))
    });
}

fn stores_into_a_private_mapping_stay_private(mode: Mode) {
    at_every_size(mode, |path, length| {
        if length > 0 {
            let mapping = Mapping::private(&File::open(path).expect("open"), length).expect("mmap");
            mapping.write(0, &vec![0xEE; length]);
            assert!(mapping.bytes().iter().all(|byte| *byte == 0xEE));
        }
        fs::read(path).expect("read")
    });
}

fn behind_the_end_a_mapped_page_is_zero(mode: Mode) {
    at_every_size(mode, |path, length| {
        if length > 0 {
            let whole_pages = length.next_multiple_of(4096);
            let mapping = Mapping::shared(&File::open(path).expect("open"), whole_pages).expect("mmap");
            let tail = mapping.read(length, whole_pages - length);
            assert!(tail.iter().all(|byte| *byte == 0), "{length}: bytes of another object behind the end");
        }
        fs::read(path).expect("read")
    });
}

fn a_shared_writable_mapping_of_a_read_only_descriptor_is_refused(mode: Mode) {
    at_every_size(mode, |path, length| {
        if length > 0 {
            let file = File::open(path).expect("open");
            assert_eq!(Mapping::shared_writable(&file, length).err(), Some(Errno::EACCES));
            let mapping = Mapping::shared(&file, length).expect("mmap");
            assert_eq!(mapping.protect(libc::PROT_READ | libc::PROT_WRITE), Err(Errno::EACCES), "mprotect");
        }
        fs::read(path).expect("read")
    });
}

fn reads_after_readahead_and_fadvise(mode: Mode) {
    at_every_size(mode, |path, length| {
        let file = File::open(path).expect("open");
        let all = signed(length);
        posix_fadvise(&file, 0, all, PosixFadviseAdvice::POSIX_FADV_SEQUENTIAL).expect("SEQUENTIAL");
        posix_fadvise(&file, 0, all, PosixFadviseAdvice::POSIX_FADV_WILLNEED).expect("WILLNEED");
        // SAFETY: a system call on a descriptor that `file` keeps open.
        let ahead = unsafe { libc::readahead(file.as_raw_fd(), 0, length) };
        Errno::result(ahead).expect("readahead");
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, 0).expect("pread");
        posix_fadvise(&file, 0, all, PosixFadviseAdvice::POSIX_FADV_DONTNEED).expect("DONTNEED");
        file.read_exact_at(&mut bytes, 0).expect("pread after DONTNEED");
        bytes
    });
}

fn reads_at_the_end_are_short_and_behind_it_empty(mode: Mode) {
    at_every_size(mode, |path, length| {
        let file = File::open(path).expect("open");
        let mut buffer = vec![0; 10_000];
        for before in [0, 1, 10, 4096] {
            let Some(at) = length.checked_sub(before) else { continue };
            assert_eq!(
                file.read_at(&mut buffer, offset(at)).expect("pread"),
                before,
                "{before} before the end"
            );
        }
        for behind in [1, 4096, 100 * MIB] {
            assert_eq!(file.read_at(&mut buffer, offset(length + behind)).expect("pread"), 0);
        }
        fs::read(path).expect("read")
    });
}

fn seeks_to_data_and_holes_stay_inside_the_file(mode: Mode) {
    at_every_size(mode, |path, length| {
        let file = File::open(path).expect("open");
        let seek = |whence| nix::unistd::lseek(&file, 0, whence);
        if length == 0 {
            assert_eq!(seek(nix::unistd::Whence::SeekData), Err(Errno::ENXIO));
        } else {
            assert_eq!(seek(nix::unistd::Whence::SeekData), Ok(0), "it begins with data");
            assert_eq!(seek(nix::unistd::Whence::SeekHole), Ok(signed(length)), "its only hole is its end");
        }
        assert_eq!(seek(nix::unistd::Whence::SeekEnd), Ok(signed(length)));
        fs::read(path).expect("read")
    });
}

fn copy_to_another_filesystem(mode: Mode) {
    at_every_size(mode, |path, length| {
        let mut target = tempfile::tempfile().expect("a file elsewhere");
        let count = std::io::copy(&mut File::open(path).expect("open"), &mut target).expect("copy");
        assert_eq!(count, offset(length));
        let mut bytes = Vec::new();
        target.rewind().expect("lseek");
        target.read_to_end(&mut bytes).expect("read");
        bytes
    });
}

fn sendfile_to_another_filesystem(mode: Mode) {
    at_every_size(mode, |path, length| {
        let (source, mut target) =
            (File::open(path).expect("open"), tempfile::tempfile().expect("a file elsewhere"));
        let mut left = length;
        while left > 0 {
            let count = nix::sys::sendfile::sendfile(&target, &source, None, left).expect("sendfile");
            assert_ne!(count, 0, "sendfile stops {left} bytes before the end");
            left -= count;
        }
        let mut bytes = Vec::new();
        target.rewind().expect("lseek");
        target.read_to_end(&mut bytes).expect("read");
        bytes
    });
}

fn descriptors_have_positions_of_their_own(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let bytes = pattern::bytes(1, 100_000);
    publish(&kv.join("key"), &bytes);
    let (mut first, mut second) =
        (File::open(kv.join("key")).expect("open"), File::open(kv.join("key")).expect("open"));
    let mut part = vec![0; 60_000];
    first.read_exact(&mut part).expect("read");
    second.read_exact(&mut part[..10]).expect("read");
    assert_same(&part[..10], &bytes[..10], "the second descriptor starts at 0");
    let mut twin = first.try_clone().expect("dup");
    twin.read_exact(&mut part[..10]).expect("read");
    assert_same(&part[..10], &bytes[60_000..60_010], "a duplicate goes on where the first one is");
}

fn eight_threads_on_one_descriptor(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let bytes = pattern::bytes(1, 8 * MIB + 123);
    publish(&kv.join("key"), &bytes);
    let file = File::open(kv.join("key")).expect("open");
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (file, bytes) = (&file, &bytes);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed);
                for _ in 0..200 {
                    let at = random.random_range(0..bytes.len());
                    let count = random.random_range(1..=(bytes.len() - at).min(200_000));
                    let mut part = vec![0; count];
                    assert_eq!(file.read_at(&mut part, offset(at)).expect("pread"), count);
                    assert_same(&part, &bytes[at..at + count], "a random range");
                }
            });
        }
    });
}
