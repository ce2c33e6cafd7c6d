//! What a cache does not do is refused with an errno that says so, and nothing is left behind.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt};

use nix::errno::Errno;
use nix::sys::stat::{Mode as FileMode, SFlag, mknod};

use crate::common::modes::in_both_modes;
use crate::common::pattern::{self, assert_same};
use crate::common::sys::{failure, failures_of_flags, open_file, set_xattr, sorted_names};
use crate::common::{Mode, Peer, wait};
use crate::fixture::{MIB, kv, kv_with, publish_object};

in_both_modes!(
    hard_links_are_refused,
    symbolic_links_are_refused,
    devices_pipes_and_sockets_are_refused,
    mknod_of_a_regular_file_makes_an_empty_object,
    an_unnamed_temporary_file_is_refused,
    attributes_outside_of_user_are_refused,
    flags_of_files_are_refused_also_when_their_names_are_gone,
    a_file_larger_than_the_cache_is_refused,
    a_negative_or_absurd_size_is_refused,
    fallocate_allocates_and_makes_holes_and_does_nothing_else,
    what_is_refused_without_end_is_told_of_a_hundred_times,
);

fn hard_links_are_refused(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("key"), 1, 100);
    assert_eq!(failure(fs::hard_link(kv.join("key"), kv.join("link")), "link"), Errno::EPERM);
    assert_eq!(sorted_names(&kv), ["key"]);
}

fn symbolic_links_are_refused(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("key"), 1, 100);
    assert_eq!(failure(std::os::unix::fs::symlink("key", kv.join("link")), "symlink"), Errno::EPERM);
    assert_eq!(sorted_names(&kv), ["key"]);
}

fn devices_pipes_and_sockets_are_refused(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for kind in [SFlag::S_IFCHR, SFlag::S_IFBLK, SFlag::S_IFIFO, SFlag::S_IFSOCK] {
        let made = mknod(&kv.join("node"), kind, FileMode::from_bits_retain(0o600), 0);
        assert_eq!(made, Err(Errno::EPERM), "{kind:?}");
    }
    let bound = std::os::unix::net::UnixListener::bind(kv.join("socket"));
    assert_eq!(failure(bound, "bind"), Errno::EPERM);
    assert_eq!(sorted_names(&kv), Vec::<String>::new());
}

fn mknod_of_a_regular_file_makes_an_empty_object(mode: Mode) {
    let (_mount, kv) = kv(mode);
    mknod(&kv.join("key"), SFlag::S_IFREG, FileMode::from_bits_retain(0o640), 0)
        .expect("mknod of a regular file");
    let facts = Peer::spawn().stat(&kv.join("key")).expect("it is sealed at once, for nobody has it open");
    assert_eq!((facts.size, facts.mode & 0o7777), (0, 0o640));
    let again = mknod(&kv.join("key"), SFlag::S_IFREG, FileMode::from_bits_retain(0o640), 0);
    assert_eq!(again, Err(Errno::EEXIST));
    fs::write(kv.join("key"), b"bytes").expect("it can be written like any file");
    assert_eq!(Peer::spawn().read(&kv.join("key")).expect("read"), b"bytes");
    assert!(!fs::metadata(kv.join("key")).expect("stat").file_type().is_fifo());
}

fn an_unnamed_temporary_file_is_refused(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let result = open_file(&kv, libc::O_TMPFILE | libc::O_RDWR);
    assert_eq!(result.err(), Some(Errno::EOPNOTSUPP), "programs then fall back to a name");
}

fn attributes_outside_of_user_are_refused(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("key"), 1, 100);
    for name in ["trusted.x", "system.x"] {
        let error = set_xattr(&kv.join("key"), name, b"x").expect_err("only user attributes");
        assert_eq!(error, Errno::EOPNOTSUPP, "{name}");
    }
    // The kernel reads an access control list before it asks the filesystem, so this one is well-formed
    // (linux/posix_acl_xattr.h): version 2, then tag, permissions and id of owner, group and others.
    let mut list = 2_u32.to_le_bytes().to_vec();
    for tag in [0x01_u16, 0x04, 0x20] {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&6_u16.to_le_bytes());
        list.extend_from_slice(&u32::MAX.to_le_bytes());
    }
    assert_eq!(set_xattr(&kv.join("key"), "system.posix_acl_access", &list), Err(Errno::EOPNOTSUPP));
}

fn flags_of_files_are_refused_also_when_their_names_are_gone(mode: Mode) {
    let (mount, kv) = kv(mode);
    if mount.is_bare() {
        return;
    }
    let key = kv.join("key");
    for length in [1000, 2 * MIB] {
        publish_object(&key, 1, length);
        let file = File::open(&key).expect("open");
        let named = failures_of_flags(&file);
        fs::remove_file(&key).expect("unlink");
        for (ioctl, refused) in named.into_iter().chain(failures_of_flags(&file)) {
            assert_eq!(refused, Some(Errno::ENOTTY), "{ioctl} of {length} bytes");
        }
    }
}

fn a_file_larger_than_the_cache_is_refused(mode: Mode) {
    let (mount, kv) = kv(mode);
    let file = File::create(kv.join("key")).expect("create");
    let capacity = mount.usage().capacity;
    // Below scratch_min (1 GiB), so it would have to fit into the memory of 256 MiB.
    let result = nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, 512 << 20);
    let error = result.expect_err("more than the cache holds");
    assert!(matches!(error, Errno::EFBIG | Errno::ENOSPC), "{error}");
    assert!(mount.usage().used <= capacity);
    drop(file);
    let is_given_back = || mount.usage().used <= capacity / 8;
    assert!(wait::until(wait::HANG, is_given_back), "something of it is kept: {:?}", mount.usage());
}

fn a_negative_or_absurd_size_is_refused(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let file = File::create(kv.join("key")).expect("create");
    assert_eq!(nix::unistd::ftruncate(&file, -1), Err(Errno::EINVAL));
    let none = nix::fcntl::FallocateFlags::empty();
    assert_eq!(nix::fcntl::fallocate(&file, none, 0, 0), Err(Errno::EINVAL));
    assert_eq!(nix::fcntl::fallocate(&file, none, -1, 10), Err(Errno::EINVAL));
    assert_eq!(file.metadata().expect("fstat").len(), 0);
    assert_eq!(nix::unistd::truncate(&kv, 0), Err(Errno::EISDIR));
}

fn fallocate_allocates_and_makes_holes_and_does_nothing_else(mode: Mode) {
    use nix::fcntl::{FallocateFlags as Flags, fallocate};
    let (_mount, kv) = kv(mode);
    let mut bytes = pattern::bytes(1, 100_000);
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(kv.join("key")).expect("create");
    file.write_all_at(&bytes, 0).expect("write");
    let contents = || {
        let mut found = vec![0; usize::try_from(file.metadata().expect("fstat").len()).expect("a length")];
        file.read_exact_at(&mut found, 0).expect("pread");
        found
    };
    let keep_size = Flags::FALLOC_FL_KEEP_SIZE;
    let refused = [
        Flags::FALLOC_FL_ZERO_RANGE,
        Flags::FALLOC_FL_ZERO_RANGE | keep_size,
        Flags::FALLOC_FL_COLLAPSE_RANGE,
        Flags::FALLOC_FL_INSERT_RANGE,
        Flags::FALLOC_FL_UNSHARE_RANGE,
        // Without the other flag no filesystem takes it.
        Flags::FALLOC_FL_PUNCH_HOLE,
    ];
    for flags in refused {
        assert_eq!(fallocate(&file, flags, 4096, 8192), Err(Errno::EOPNOTSUPP), "{flags:?}");
        assert_same(&contents(), &bytes, "what is refused changes nothing");
    }
    fallocate(&file, Flags::FALLOC_FL_PUNCH_HOLE | keep_size, 4096, 8192).expect("a hole");
    bytes[4096..4096 + 8192].fill(0);
    assert_same(&contents(), &bytes, "a hole reads as zeros");
    fallocate(&file, keep_size, 0, 200_000).expect("pages beyond the end");
    assert_same(&contents(), &bytes, "the length is kept");
    fallocate(&file, Flags::empty(), 50_000, 100_000).expect("pages");
    bytes.resize(150_000, 0);
    assert_same(&contents(), &bytes, "the length is that of what was allocated");
}

fn what_is_refused_without_end_is_told_of_a_hundred_times(mode: Mode) {
    let (mount, kv) = kv_with(mode, &["capacity=64MiB"]);
    if mount.is_bare() {
        return;
    }
    let file = File::create(kv.join("key")).expect("create");
    for _ in 0..500 {
        assert_eq!(failure(file.set_len(512 << 20), "ftruncate"), Errno::EFBIG);
    }
    let log = mount.log();
    assert_eq!(log.matches("a request was refused").count(), 100, "{log}");
    assert_eq!(log.matches("lines like the next one are left out").count(), 1, "{log}");
}
