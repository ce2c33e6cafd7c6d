//! A sealed object never changes: whoever has it open or mapped keeps its bytes, whatever happens to the name.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;

use crate::common::modes::in_both_modes;
use crate::common::pattern::{self, assert_same};
use crate::common::sys::{Mapping, checksum_of, get_xattr_text};
use crate::common::wait::{HANG, until};
use crate::common::{Mode, Peer, kernel};
use crate::fixture::{MIB, kv, offset, publish, publish_object};

in_both_modes!(
    a_reader_keeps_the_old_bytes_when_a_rename_replaces_the_name,
    a_mapping_keeps_the_old_bytes_when_a_rename_replaces_the_name,
    a_truncating_open_leaves_readers_the_old_bytes,
    a_rewrite_in_place_leaves_readers_the_old_bytes,
    an_append_leaves_readers_the_old_bytes,
    a_truncation_by_name_leaves_readers_the_old_bytes,
    a_shared_writable_mapping_of_a_sealed_object_leaves_readers_the_old_bytes,
    a_rewrite_without_readers_never_shows_a_half,
    an_open_for_writing_that_writes_nothing_changes_nothing,
    two_rewrites_at_once_end_in_one_file,
    a_replacement_of_another_size_has_no_tail_of_the_old_one,
    every_version_has_its_own_number_and_checksum,
    a_reader_that_reopens_in_a_loop_sees_each_replacement_in_order,
    a_rename_over_a_file_that_is_rewritten_shows_each_process_its_own_at_once,
    versions_that_were_replaced_give_their_memory_back_though_nobody_asks_for_their_names_again,
);

/// Checks that a writer opened by `change` on a referenced object is seen by nobody else before it closes.
#[track_caller]
fn assert_copied_up(mode: Mode, length: usize, flags: i32, change: impl Fn(&mut Vec<u8>) -> (u64, Vec<u8>)) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    let old = pattern::object(1, length);
    publish(&path, &old);
    let mut reader = Peer::spawn();
    let handle = reader.open(&path, libc::O_RDONLY).expect("open");
    let map = reader.map(handle, length, false).expect("mmap");

    let mut expected = old.clone();
    let (at, written) = change(&mut expected);
    let mut writer = Peer::spawn();
    let open = writer.open(&path, flags).expect("a sealed object can be opened for writing");
    writer.write_at(open, at, &written).expect("write");

    assert_same(
        &reader.read_at(handle, 0, length + 1).expect("pread"),
        &old,
        "the open handle, before close",
    );
    assert_same(&reader.map_read(map, 0, length), &old, "the mapping, before close");
    assert_same(
        &Peer::spawn().read(&path).expect("open"),
        &old,
        "a new open of another process, before close",
    );
    writer.close(open).expect("close");
    assert_same(&Peer::spawn().read(&path).expect("open"), &expected, "a new open, after close");
    assert_same(&reader.read(&path).expect("open"), &expected, "a new open of the old reader, after close");
    assert_same(&reader.read_at(handle, 0, length + 1).expect("pread"), &old, "the open handle, after close");
    assert_same(&reader.map_read(map, 0, length), &old, "the mapping, after close");
    reader.close(handle).expect("close");
    assert_same(&reader.map_read(map, 0, length), &old, "the mapping, after its handle is closed");
}

fn a_reader_keeps_the_old_bytes_when_a_rename_replaces_the_name(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [1000, 100_000, 3 * MIB] {
        let path = kv.join(format!("k{length}"));
        publish_object(&path, 1, length);
        let reader = File::open(&path).expect("open");
        let inode = reader.metadata().expect("fstat").ino();
        publish_object(&path, 2, length + 10);
        let mut held = vec![0; length];
        reader.read_exact_at(&mut held, 0).expect("pread");
        assert_eq!(pattern::verify_object(&held), Ok(1), "the open handle");
        assert_eq!(reader.metadata().expect("fstat").len(), offset(length), "fstat of the old version");
        assert_eq!(pattern::verify_object(&fs::read(&path).expect("open")), Ok(2), "a new open");
        assert_ne!(fs::metadata(&path).expect("stat").ino(), inode, "another file has the name now");
    }
}

fn a_mapping_keeps_the_old_bytes_when_a_rename_replaces_the_name(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    for length in [1000, 100_000, 3 * MIB] {
        publish_object(&path, 1, length);
        let file = File::open(&path).expect("open");
        let shared = Mapping::shared(&file, length).expect("mmap");
        let private = Mapping::private(&file, length).expect("mmap");
        drop(file);
        for seed in 2..6 {
            publish_object(&path, seed, length);
        }
        assert_eq!(pattern::verify_object(&shared.bytes()), Ok(1), "the shared mapping of {length}");
        assert_eq!(pattern::verify_object(&private.bytes()), Ok(1), "the private mapping of {length}");
    }
}

fn a_truncating_open_leaves_readers_the_old_bytes(mode: Mode) {
    for length in [1000, 2 * MIB] {
        assert_copied_up(mode, length, libc::O_WRONLY | libc::O_TRUNC, |expected| {
            *expected = pattern::object(2, length / 2);
            (0, expected.clone())
        });
    }
}

fn a_rewrite_in_place_leaves_readers_the_old_bytes(mode: Mode) {
    for length in [1000, 2 * MIB] {
        assert_copied_up(mode, length, libc::O_RDWR, |expected| {
            expected[200..300].fill(b'x');
            (200, vec![b'x'; 100])
        });
    }
}

fn an_append_leaves_readers_the_old_bytes(mode: Mode) {
    for length in [1000, 2 * MIB] {
        assert_copied_up(mode, length, libc::O_WRONLY | libc::O_APPEND, |expected| {
            expected.extend_from_slice(b"appended");
            (0, b"appended".to_vec())
        });
    }
}

fn a_truncation_by_name_leaves_readers_the_old_bytes(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [1000, 2 * MIB] {
        let path = kv.join(format!("k{length}"));
        let old = pattern::object(1, length);
        publish(&path, &old);
        let mut reader = Peer::spawn();
        let handle = reader.open(&path, libc::O_RDONLY).expect("open");
        nix::unistd::truncate(&path, 100).expect("truncate");
        assert_same(&reader.read_at(handle, 0, length).expect("pread"), &old, "the open handle");
        assert_same(&reader.read(&path).expect("open"), &old[..100], "a new open");
        assert_eq!(reader.stat(&path).expect("stat").size, 100);
    }
}

fn a_shared_writable_mapping_of_a_sealed_object_leaves_readers_the_old_bytes(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    let old = pattern::object(1, MIB);
    publish(&path, &old);
    let mut reader = Peer::spawn();
    let handle = reader.open(&path, libc::O_RDONLY).expect("open");
    let map = reader.map(handle, MIB, false).expect("mmap");
    let mut writer = Peer::spawn();
    let open = writer.open(&path, libc::O_RDWR).expect("open for writing");
    let stores = writer.map(open, MIB, true).expect("mmap");
    writer.map_write(stores, 5000, b"stored through a mapping");
    assert_same(&reader.read_at(handle, 0, MIB).expect("pread"), &old, "the open handle");
    assert_same(&reader.map_read(map, 0, MIB), &old, "the mapping");
    writer.unmap(stores);
    writer.close(open).expect("close");
    let found = reader.read(&path).expect("open");
    assert_eq!(&found[5000..5024], b"stored through a mapping");
    assert_same(&reader.map_read(map, 0, MIB), &old, "the mapping, after close");
}

/// ENOENT or one whole version: what anyone may see of a key at any time.
#[track_caller]
fn assert_whole_or_absent(other: &mut Peer, path: &Path, allowed: &[u64], when: &str) {
    match other.read(path) {
        Err(error) => assert_eq!(error, Errno::ENOENT, "{when}"),
        Ok(found) => {
            let seed = pattern::verify_object(&found).unwrap_or_else(|reason| panic!("{when}: {reason}"));
            assert!(allowed.contains(&seed), "{when}: version {seed}, not one of {allowed:?}");
        }
    }
}

fn a_rewrite_without_readers_never_shows_a_half(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    for (flags, length) in [(libc::O_RDWR, 5000), (libc::O_RDWR, MIB), (libc::O_WRONLY | libc::O_TRUNC, MIB)]
    {
        let path = kv.join(format!("k{flags}-{length}"));
        publish_object(&path, 1, length);
        let mut writer = Peer::spawn();
        let handle = writer.open(&path, flags).expect("open for writing");
        assert_whole_or_absent(&mut other, &path, &[1], "after the open");
        let new = pattern::object(2, length);
        writer.write_at(handle, 0, &new[..length / 2]).expect("write");
        assert_whole_or_absent(&mut other, &path, &[1], "half way");
        writer.write_at(handle, offset(length / 2), &new[length / 2..]).expect("write");
        writer.close(handle).expect("close");
        assert_eq!(pattern::verify_object(&other.read(&path).expect("read")), Ok(2), "after close");
    }
}

fn an_open_for_writing_that_writes_nothing_changes_nothing(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    for length in [1000, MIB] {
        let path = kv.join(format!("k{length}"));
        publish_object(&path, 1, length);
        let modified = fs::metadata(&path).expect("stat").modified().expect("mtime");
        drop(OpenOptions::new().read(true).write(true).open(&path).expect("open for writing"));
        assert_eq!(pattern::verify_object(&other.read(&path).expect("read")), Ok(1));
        assert_eq!(fs::metadata(&path).expect("stat").modified().expect("mtime"), modified, "mtime");
    }
}

fn two_rewrites_at_once_end_in_one_file(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    publish(&path, &vec![b'-'; MIB]);
    let (mut first, mut second) = (Peer::spawn(), Peer::spawn());
    // Hidden while it is rewritten, so that the second writer joins as a creator does.
    let a = first.open(&path, libc::O_RDWR | libc::O_CREAT).expect("open");
    let b = second.open(&path, libc::O_RDWR | libc::O_CREAT).expect("open");
    first.write_at(a, 0, &vec![b'a'; MIB / 2]).expect("write");
    second.write_at(b, offset(MIB / 2), &vec![b'b'; MIB / 2]).expect("write");
    first.close(a).expect("close");
    second.close(b).expect("close");
    let expected = [vec![b'a'; MIB / 2], vec![b'b'; MIB / 2]].concat();
    assert_same(&Peer::spawn().read(&path).expect("read"), &expected, "both writers");
}

fn a_replacement_of_another_size_has_no_tail_of_the_old_one(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let path = kv.join("key");
    for (round, length) in [MIB, 100, 3 * MIB, 40_000, MIB - 1, 33 * 1024, MIB].into_iter().enumerate() {
        publish_object(&path, offset(round), length);
        assert_eq!(other.stat(&path).expect("stat").size, offset(length));
        assert_eq!(pattern::verify_object(&other.read(&path).expect("read")), Ok(offset(round)), "{length}");
        let handle = other.open(&path, libc::O_RDONLY).expect("open");
        assert_eq!(
            other.read_at(handle, offset(length), 10_000).expect("pread"),
            b"",
            "nothing behind the end"
        );
        other.close(handle).expect("close");
    }
}

fn every_version_has_its_own_number_and_checksum(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    let mut seen = Vec::new();
    for seed in 0..5 {
        publish_object(&path, seed, 50_000);
        seen.push(get_xattr_text(&path, "user.tidefs.version") + "/" + &checksum_of(&path));
    }
    let mut versions: Vec<_> = seen.iter().map(|pair| pair.split('/').next()).collect();
    let mut sums: Vec<_> = seen.iter().map(|pair| pair.split('/').nth(1)).collect();
    versions.sort_unstable();
    versions.dedup();
    sums.sort_unstable();
    sums.dedup();
    assert_eq!((versions.len(), sums.len()), (5, 5), "{seen:?}");
}

fn a_reader_that_reopens_in_a_loop_sees_each_replacement_in_order(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    publish_object(&path, 0, 50_000);
    let target = path.clone();
    let writer = std::thread::spawn(move || {
        for seed in 1..400 {
            let temporary = target.with_extension("next");
            let mut file = File::create(&temporary).expect("create");
            let length = if seed % 2 == 0 { 50_000 } else { 9000 };
            file.write_all(&pattern::object(seed, length)).expect("write");
            fs::rename(&temporary, &target).expect("rename");
        }
    });
    let (mut last, mut reads) = (0, 0_u32);
    while !writer.is_finished() || reads == 0 {
        let found = fs::read(&path).expect("a replaced name is never absent");
        let seed = pattern::verify_object(&found).expect("whole");
        assert!(seed >= last, "version {seed} after version {last}");
        (last, reads) = (seed, reads + 1);
    }
    writer.join().expect("the writer ends well");
    assert_eq!(pattern::verify_object(&fs::read(&path).expect("read")), Ok(399));
}

/// The writer of a name keeps seeing its own version after somebody else has put another object there. The kernel has
/// the other one's attributes at hand, and must have forgotten them when the rename returns.
fn a_rename_over_a_file_that_is_rewritten_shows_each_process_its_own_at_once(mode: Mode) {
    // Older ones show the object to the process that rewrites the name, too, until it looks it up again.
    if !kernel::is_at_least((6, 16), "a name that stands for something else for one process at once") {
        return;
    }
    let (_mount, kv) = kv(mode);
    let (mut reader, mut writer) = (Peer::spawn(), Peer::spawn());
    for round in 0..20 {
        let (path, other) = (kv.join(format!("k{round}")), kv.join(format!("o{round}")));
        publish_object(&path, 1, 50_000);
        publish_object(&other, 2, 30_000);
        // Because somebody reads it, what the writer makes is another version.
        let held = reader.open(&path, libc::O_RDONLY).expect("open");
        let open = writer.open(&path, libc::O_RDWR).expect("open for writing");
        writer.truncate(open, 70_000).expect("ftruncate");
        assert_eq!(fs::metadata(&other).expect("stat").len(), 30_000);
        let held_other = (round % 2 == 0).then(|| reader.open(&other, libc::O_RDONLY).expect("open"));
        fs::rename(&other, &path).expect("rename");
        assert_eq!(writer.stat(&path).expect("stat").size, 70_000, "round {round}: as its writer sees it");
        assert_eq!(fs::metadata(&path).expect("stat").len(), 30_000, "round {round}: as others see it");
        writer.close(open).expect("close");
        for handle in [Some(held), held_other].into_iter().flatten() {
            reader.close(handle).expect("close");
        }
    }
}

fn versions_that_were_replaced_give_their_memory_back_though_nobody_asks_for_their_names_again(mode: Mode) {
    const COUNT: usize = 12;
    let (mount, kv) = kv(mode);
    let path_of = |index: usize| kv.join(format!("key{index}"));
    (0..COUNT).for_each(|index| publish_object(&path_of(index), 1, MIB));
    let mut other = Peer::spawn();
    for index in 0..COUNT {
        let mut writer = File::create(path_of(index)).expect("a new version");
        writer.write_all(&pattern::object(2, MIB)).expect("write");
        // It sees the old one, so that is what the kernel knows the name for when the new one takes it.
        assert_eq!(other.stat(&path_of(index)).expect("the old version").size, offset(MIB));
    }
    let one_each = offset((COUNT + 1) * MIB);
    assert!(until(HANG, || mount.usage().used <= one_each), "{:?}", mount.usage());
    for index in 0..COUNT {
        assert_eq!(pattern::verify_object(&other.read(&path_of(index)).expect("it is there")), Ok(2));
    }
}
