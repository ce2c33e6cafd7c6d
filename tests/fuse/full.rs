//! A cache in which nothing can be evicted: who writes is told, whole or not at all, and nobody is killed for it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use tidefs_control_api::ioctl::{
    Command, Create, Encoder, Entry, Flags, Name, Outcome, Put, Status, results,
};

use crate::common::modes::in_both_modes;
use crate::common::sys::{Mapping, errno, set_xattr};
use crate::common::{Mode, Mount, Peer, kernel, pattern, wait};
use crate::fixture::{MIB, kv_with, offset, publish_object};
use crate::ioctl::Control;

in_both_modes!(
    a_write_that_meets_the_end_of_room_leaves_no_object,
    stores_into_a_sized_and_mapped_file_find_their_pages_in_a_full_cache,
    a_file_that_cannot_be_sized_says_so_before_it_is_mapped,
    a_length_that_is_refused_leaves_what_was_there,
    a_temporary_file_whose_hole_finds_no_pages_says_so_at_its_close,
    what_is_cut_by_name_needs_room_for_what_is_left_of_it_alone,
);

const CAPACITY_MIB: usize = 64;

/// A mount in which what is published below the second path stays for ever, and everything else may go.
fn with_pins(mode: Mode) -> (Mount, PathBuf, PathBuf) {
    let (mount, kv) =
        kv_with(mode, &["capacity=64MiB", "memory.write_headroom=2MiB", "runtime.deadline_ms=500"]);
    let pinned = mount.namespace("pinned");
    set_xattr(&pinned, "user.tidefs.pin", b"hard").expect("setxattr");
    (mount, kv, pinned)
}

/// Pins objects of 1 MiB until one is refused. Returns how many there are.
fn fill_with_pins(pinned: &Path) -> usize {
    for index in 0..=CAPACITY_MIB {
        let path = pinned.join(format!("k{index}"));
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&pattern::object(offset(index), MIB))?;
            nix::unistd::close(file).map_err(std::io::Error::from)
        });
        match written {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(errno(&error), Errno::ENOSPC);
                return index;
            }
        }
    }
    panic!("{CAPACITY_MIB} MiB are pinned in a cache of {CAPACITY_MIB} MiB");
}

/// Closes a file of which a write was refused: close(2) says that nothing becomes of it.
#[track_caller]
fn close_refused(file: File) {
    assert_eq!(nix::unistd::close(file), Err(Errno::ENOSPC), "close(2) of what is dropped");
}

fn a_write_that_meets_the_end_of_room_leaves_no_object(mode: Mode) {
    let (mount, kv, pinned) = with_pins(mode);
    // So that it is known how large objects are there; the next is a surprise.
    for index in 0..8 {
        publish_object(&kv.join(format!("small{index}")), index, 100_000);
    }
    fill_with_pins(&pinned);
    for index in 0..12 {
        fs::remove_file(pinned.join(format!("k{index}"))).expect("unlink");
    }
    let bytes = pattern::object(1, 16 * MIB);
    // What was refused gives its room back when the daemon hears of its close.
    let has_room =
        || assert!(wait::until(wait::HANG, || mount.usage().available >= 8 << 20), "{:?}", mount.usage());
    // From here on nothing of it can go unseen: what is there is pinned.
    set_xattr(&kv, "user.tidefs.pin", b"hard").expect("setxattr");
    for (name, renamed) in [("straight", None), ("renamed.tmp", Some("renamed")), ("open.tmp", Some("open"))]
    {
        has_room();
        let mut file = File::create(kv.join(name)).expect("create");
        // A client that takes whatever write(2) says for a success, as some do.
        let outcome = file.write(&bytes);
        assert!(!matches!(outcome, Ok(count) if count == bytes.len()), "16 MiB into 12 free ones");
        let mut file = Some(file);
        if name == "renamed.tmp" {
            file.take().into_iter().for_each(close_refused);
        }
        if let Some(target) = renamed {
            let outcome = fs::rename(kv.join(name), kv.join(target));
            let error = outcome.expect_err("what its writer did not mean is no object");
            assert!(matches!(errno(&error), Errno::ENOENT | Errno::ENOSPC), "{error}");
        }
        file.into_iter().for_each(close_refused);
        let seen = renamed.unwrap_or(name);
        let found = Peer::spawn().stat(&kv.join(seen));
        assert_eq!(found.err(), Some(Errno::ENOENT), "{seen}: the write said {outcome:?}");
    }
    has_room();
    publish_object(&kv.join("fits"), 7, 2 * MIB);
    assert_eq!(pattern::verify_object(&fs::read(kv.join("fits")).expect("read")), Ok(7));
}

fn stores_into_a_sized_and_mapped_file_find_their_pages_in_a_full_cache(mode: Mode) {
    let (_mount, kv, pinned) = with_pins(mode);
    let length = 8 * MIB;
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(kv.join("key.tmp")).expect("create");
    file.set_len(offset(length)).expect("ftruncate");
    let mapping = Mapping::shared_writable(&file, length).expect("mmap");
    let pins = fill_with_pins(&pinned);
    assert!(pins <= CAPACITY_MIB - 8, "{pins} MiB are pinned beside a file of 8 MiB");
    // A page that is missing now would kill this process.
    let bytes = pattern::object(3, length);
    mapping.write(0, &bytes);
    drop((mapping, file));
    for index in 0..16 {
        fs::remove_file(pinned.join(format!("k{index}"))).expect("unlink");
    }
    fs::rename(kv.join("key.tmp"), kv.join("key")).expect("rename");
    assert_eq!(pattern::verify_object(&Peer::spawn().read(&kv.join("key")).expect("read")), Ok(3));
}

fn a_file_that_cannot_be_sized_says_so_before_it_is_mapped(mode: Mode) {
    let (_mount, kv, pinned) = with_pins(mode);
    fill_with_pins(&pinned);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(kv.join("key.tmp")).expect("create");
    let error = file.set_len(offset(8 * MIB)).expect_err("there is no room for it");
    assert_eq!(errno(&error), Errno::ENOSPC);
    assert_eq!(file.metadata().expect("fstat").len(), 0, "a refused ftruncate changes nothing");
    let error = nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, 8 << 20);
    assert_eq!(error, Err(Errno::ENOSPC));
}

fn a_length_that_is_refused_leaves_what_was_there(mode: Mode) {
    let (mount, kv, _pinned) = with_pins(mode);
    let is_too_large = |error: std::io::Error| assert_eq!(errno(&error), Errno::EFBIG);
    let too_large = 2 * offset(CAPACITY_MIB * MIB);
    let key = kv.join("key");
    publish_object(&key, 1, MIB);
    // Then it is written where it is.
    mount.wait_until_closed([&key]);
    let file = OpenOptions::new().read(true).write(true).open(&key).expect("open to write");
    is_too_large(file.set_len(too_large).expect_err("more than the cache holds"));
    nix::unistd::close(file).expect("close");
    assert_eq!(pattern::verify_object(&Peer::spawn().read(&key).expect("the object of before")), Ok(1));
    let truncated = nix::unistd::truncate(&key, i64::try_from(too_large).expect("a length"));
    assert_eq!(truncated, Err(Errno::EFBIG));
    assert_eq!(pattern::verify_object(&Peer::spawn().read(&key).expect("the object of before")), Ok(1));

    for name in ["new", "new.tmp"] {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create_new(true).open(kv.join(name)).expect("create");
        let length = i64::try_from(too_large).expect("a length");
        let refused = nix::fcntl::fallocate(&file, nix::fcntl::FallocateFlags::empty(), 0, length);
        assert_eq!(refused, Err(Errno::EFBIG));
        // The program goes on without.
        file.write_all(&pattern::object(2, MIB)).expect("write");
        nix::unistd::close(file).expect("close");
        assert_eq!(pattern::verify_object(&Peer::spawn().read(&kv.join(name)).expect(name)), Ok(2));
    }
}

fn a_temporary_file_whose_hole_finds_no_pages_says_so_at_its_close(mode: Mode) {
    use nix::fcntl::FallocateFlags as Flags;
    let (_mount, kv, pinned) = with_pins(mode);
    let path = kv.join("key.tmp");
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(&path).expect("create");
    file.set_len(offset(8 * MIB)).expect("ftruncate");
    let flags = Flags::FALLOC_FL_PUNCH_HOLE | Flags::FALLOC_FL_KEEP_SIZE;
    nix::fcntl::fallocate(&file, flags, 0, 8 << 20).expect("a hole");
    fill_with_pins(&pinned);
    close_refused(file);
    let mut other = Peer::spawn();
    let is_gone = wait::until(wait::HANG, || other.stat(&path) == Err(Errno::ENOENT));
    assert!(is_gone, "close(2) said that there is no room for it, and it is there");
}

fn what_is_cut_by_name_needs_room_for_what_is_left_of_it_alone(mode: Mode) {
    let (mount, kv, _pinned) = with_pins(mode);
    let length = CAPACITY_MIB / 2 * MIB + 8 * MIB;
    for left in [0, 5000] {
        let path = kv.join(format!("k{left}"));
        publish_object(&path, 1, length);
        // Who reads it keeps it, so that it is not cut where it is.
        let reader = File::open(&path).expect("open");
        nix::unistd::truncate(&path, i64::from(left)).expect("truncate");
        let expected = &pattern::object(1, length)[..usize::try_from(left).expect("a length")];
        assert_eq!(Peer::spawn().read(&path).expect("read"), expected);
        let mut held = vec![0; length];
        reader.read_exact_at(&mut held, 0).expect("pread");
        assert_eq!(pattern::verify_object(&held), Ok(1));
        drop(reader);
        assert!(wait::until(wait::HANG, || mount.usage().used < 8 << 20), "{:?}", mount.usage());
    }
}

#[test]
fn a_request_for_many_objects_waits_for_room_no_longer_than_one_for_one() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, _kv, pinned) = with_pins(Mode::Passthrough);
    let control = Control::open(&mount);
    let (area, _file) = control.area(offset(MIB));
    fill_with_pins(&pinned);
    let names: Vec<String> = (0..400).map(|number| format!("kv/k{number}")).collect();
    let (size, mode) = (64 << 10, 0o600);
    let mut creates = Encoder::new(Flags::NONE, 0, size_of::<Entry>());
    let mut puts = Encoder::new(Flags::NONE, 0, size_of::<Outcome>());
    for name in &names {
        let name = Name(name.as_bytes());
        assert!(creates.push(&Create { size, mode, name }));
        assert!(puts.push(&Put { area, source: 0, length: size, mode, name }));
    }
    let began = Instant::now();
    let reply = control.call(Command::Create, creates.finish()).expect("a reply");
    let (_, begun) = results::<Entry>(&reply).expect("a whole reply");
    assert_eq!(begun.last().map(Entry::status), Some(Status::NoRoom));
    let reply = control.call(Command::PutFrom, puts.finish()).expect("a reply");
    let (_, made) = results::<Outcome>(&reply).expect("a whole reply");
    assert_eq!(made.last().map(Outcome::status), Some(Status::NoRoom));
    // 20 ms for each would be 16 s.
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
