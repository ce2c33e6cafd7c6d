//! A cache in which nothing can be evicted: who writes is told, whole or not at all, and nobody is killed for it.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::common::modes::in_both_modes;
use crate::common::pattern;
use crate::common::sys::{Mapping, errno, set_xattr};
use crate::common::{Mode, Mount, Peer, wait};
use crate::fixture::{MIB, kv_with, offset, publish_object};

in_both_modes!(
    a_write_that_meets_the_end_of_room_leaves_no_object,
    stores_into_a_sized_and_mapped_file_find_their_pages_in_a_full_cache,
    a_file_that_cannot_be_sized_says_so_before_it_is_mapped,
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
        let file = (name == "open.tmp").then_some(file);
        if let Some(target) = renamed {
            let outcome = fs::rename(kv.join(name), kv.join(target));
            let error = outcome.expect_err("what its writer did not mean is no object");
            assert!(matches!(errno(&error), Errno::ENOENT | Errno::ENOSPC), "{error}");
        }
        drop(file);
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
