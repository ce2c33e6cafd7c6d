//! Removing names: what is open or mapped lives on, what is gone gives its bytes back.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;

use crate::common::modes::in_both_modes;
use crate::common::pattern::{self, assert_same};
use crate::common::sys::{Mapping, failure, sorted_names};
use crate::common::{Mode, Peer, wait};
use crate::fixture::{MIB, kv, offset, publish_object};

in_both_modes!(
    an_unlinked_file_stays_readable_for_who_has_it_open,
    an_unlinked_file_stays_readable_for_who_has_it_mapped,
    an_unlinked_file_has_no_links,
    the_ctime_of_what_is_open_moves_when_it_loses_its_name,
    an_unlinked_file_is_opened_again_through_its_descriptor,
    a_file_unlinked_while_written_stays_usable_by_its_writer,
    a_name_unlinked_while_open_can_be_taken_by_another_file,
    an_unlinked_hidden_file_never_appears,
    the_bytes_of_an_unlinked_file_come_back_at_its_last_close,
    an_unlink_is_seen_by_another_process_at_once,
    an_unlink_of_a_missing_name_says_enoent,
    an_unlink_of_a_directory_says_eisdir_and_an_rmdir_of_a_file_enotdir,
    a_directory_with_a_file_is_not_removed,
    an_emptied_directory_is_removed,
);

/// An object that lost its name after it was opened.
fn unlinked_object(kv: &Path, length: usize) -> File {
    let path = kv.join("key");
    publish_object(&path, 1, length);
    let file = File::open(&path).expect("open");
    fs::remove_file(&path).expect("unlink");
    file
}

fn is_that_object(file: &File, length: usize) {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0).expect("pread");
    assert_eq!(pattern::verify_object(&bytes), Ok(1));
}

fn an_unlinked_file_stays_readable_for_who_has_it_open(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [1000, 2 * MIB] {
        let file = unlinked_object(&kv, length);
        is_that_object(&file, length);
        assert_eq!(file.metadata().expect("fstat").len(), offset(length));
    }
}

fn an_unlinked_file_stays_readable_for_who_has_it_mapped(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [1000, 2 * MIB] {
        let path = kv.join("key");
        publish_object(&path, 1, length);
        let mapping = Mapping::shared(&File::open(&path).expect("open"), length).expect("mmap");
        fs::remove_file(&path).expect("unlink");
        // Others of the same size come and would get its memory, if that were free.
        for seed in 2..10 {
            publish_object(&kv.join(format!("other{seed}")), seed, length);
        }
        assert_eq!(pattern::verify_object(&mapping.bytes()), Ok(1), "{length}");
    }
}

fn an_unlinked_file_has_no_links(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("key"), 1, 50_000);
    let file = File::open(kv.join("key")).expect("open");
    assert_eq!(file.metadata().expect("fstat").nlink(), 1);
    fs::remove_file(kv.join("key")).expect("unlink");
    assert_eq!(file.metadata().expect("fstat").nlink(), 0);
}

fn the_ctime_of_what_is_open_moves_when_it_loses_its_name(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (key, other) = (kv.join("key"), kv.join("other"));
    let early = TimeSpec::new(1_000_000_000, 0);
    let ends: [(&str, &dyn Fn()); 2] = [
        ("unlink", &|| fs::remove_file(&key).expect("unlink")),
        ("a rename over it", &|| fs::rename(&other, &key).expect("rename")),
    ];
    for length in [1000, 2 * MIB] {
        for (what, end) in ends {
            publish_object(&key, 1, length);
            publish_object(&other, 2, length);
            let file = File::open(&key).expect("open");
            futimens(&file, &early, &early).expect("futimens");
            let before = file.metadata().expect("fstat");
            std::thread::sleep(Duration::from_millis(20));
            end();
            let after = file.metadata().expect("fstat");
            let ctime = |facts: &fs::Metadata| (facts.ctime(), facts.ctime_nsec());
            assert!(ctime(&after) > ctime(&before), "{what}, {length} bytes");
            assert_eq!((after.nlink(), after.mtime()), (0, 1_000_000_000), "{what}, {length} bytes");
        }
    }
}

fn an_unlinked_file_is_opened_again_through_its_descriptor(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [1000, 2 * MIB] {
        let file = unlinked_object(&kv, length);
        let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("open by descriptor");
        let mut flags: libc::c_long = 0;
        // SAFETY: the kernel writes a number there, if any (ioctl_iflags(2)).
        let outcome = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_GETFLAGS, &raw mut flags) };
        // For which the kernel opens the file, too.
        let refused = Errno::result(outcome).err();
        assert!(!matches!(refused, Some(Errno::ESTALE | Errno::ENOENT)), "{refused:?}");
        drop(file);
        is_that_object(&again, length);
    }
}

fn a_file_unlinked_while_written_stays_usable_by_its_writer(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("slots");
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(&path).expect("create");
    file.write_all_at(&pattern::bytes(1, MIB), 0).expect("write");
    fs::remove_file(&path).expect("unlink");
    assert_same(&read_back(&file, 0, MIB), &pattern::bytes(1, MIB), "what was written before");
    file.write_all_at(&pattern::bytes(2, 10_000), 5000).expect("rewrite in place");
    file.write_all_at(&pattern::bytes(3, MIB), offset(3 * MIB)).expect("grow");
    assert_same(&read_back(&file, 5000, 10_000), &pattern::bytes(2, 10_000), "the rewritten part");
    assert_same(&read_back(&file, 2 * MIB, MIB), &vec![0; MIB], "the hole");
    assert_same(&read_back(&file, 3 * MIB, MIB), &pattern::bytes(3, MIB), "the grown part");
    assert_eq!(file.metadata().expect("fstat").len(), offset(4 * MIB));
    file.set_len(100).expect("ftruncate");
    assert_eq!(file.metadata().expect("fstat").len(), 100);
    assert_eq!(sorted_names(&kv), Vec::<String>::new());
}

fn read_back(file: &File, at: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; length];
    file.read_exact_at(&mut bytes, offset(at)).expect("pread");
    bytes
}

fn a_name_unlinked_while_open_can_be_taken_by_another_file(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    publish_object(&path, 1, 100_000);
    let old = File::open(&path).expect("open");
    fs::remove_file(&path).expect("unlink");
    publish_object(&path, 2, 100_000);
    assert_eq!(pattern::verify_object(&read_back(&old, 0, 100_000)), Ok(1));
    assert_eq!(pattern::verify_object(&fs::read(&path).expect("read")), Ok(2));
    drop(old);
    assert_eq!(pattern::verify_object(&fs::read(&path).expect("read")), Ok(2), "after the old one is closed");
}

fn an_unlinked_hidden_file_never_appears(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let path = kv.join("key");
    let file = File::create(&path).expect("create");
    file.write_all_at(&pattern::bytes(1, 50_000), 0).expect("write");
    fs::remove_file(&path).expect("its writer may unlink it");
    drop(file);
    assert_eq!(other.stat(&path), Err(Errno::ENOENT));
    assert_eq!(failure(fs::metadata(&path), "stat of an unlinked file"), Errno::ENOENT);
}

fn the_bytes_of_an_unlinked_file_come_back_at_its_last_close(mode: Mode) {
    let (mount, kv) = kv(mode);
    let before = mount.usage().used;
    publish_object(&kv.join("key"), 1, 16 * MIB);
    // Unlinked before the daemon has heard of its close it would become scratch, which is not in memory.
    mount.wait_until_closed([kv.join("key")]);
    let file = File::open(kv.join("key")).expect("open");
    fs::remove_file(kv.join("key")).expect("unlink");
    std::thread::sleep(Duration::from_millis(100));
    let held = mount.usage().used;
    assert!(held >= before + offset(16 * MIB), "bytes that are open are in use: {held}, before {before}");
    drop(file);
    let given_back = wait::until(wait::HANG, || mount.usage().used <= before);
    assert!(given_back, "{:?}, before {before}", mount.usage());
}

fn an_unlink_is_seen_by_another_process_at_once(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut remover, mut other) = (Peer::spawn(), Peer::spawn());
    for round in 0..500 {
        let path = kv.join(format!("k{}", round % 10));
        other.publish(&path, round, 5000).expect("publish");
        other.stat(&path).expect("stat");
        remover.unlink(&path).expect("unlink");
        assert_eq!(other.stat(&path), Err(Errno::ENOENT), "round {round}");
    }
}

fn an_unlink_of_a_missing_name_says_enoent(mode: Mode) {
    let (_mount, kv) = kv(mode);
    assert_eq!(failure(fs::remove_file(kv.join("missing")), "unlink"), Errno::ENOENT);
    publish_object(&kv.join("key"), 1, 100);
    fs::remove_file(kv.join("key")).expect("unlink");
    assert_eq!(failure(fs::remove_file(kv.join("key")), "a second unlink"), Errno::ENOENT);
    assert_eq!(failure(fs::remove_dir(kv.join("missing")), "rmdir"), Errno::ENOENT);
}

fn an_unlink_of_a_directory_says_eisdir_and_an_rmdir_of_a_file_enotdir(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::create_dir(kv.join("dir")).expect("mkdir");
    publish_object(&kv.join("file"), 1, 100);
    assert_eq!(failure(fs::remove_file(kv.join("dir")), "unlink of a directory"), Errno::EISDIR);
    assert_eq!(failure(fs::remove_dir(kv.join("file")), "rmdir of a file"), Errno::ENOTDIR);
}

fn a_directory_with_a_file_is_not_removed(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::create_dir_all(kv.join("a/b")).expect("mkdir");
    assert_eq!(failure(fs::remove_dir(kv.join("a")), "rmdir"), Errno::ENOTEMPTY);
    publish_object(&kv.join("a/b/key"), 1, 100);
    assert_eq!(failure(fs::remove_dir(kv.join("a/b")), "rmdir"), Errno::ENOTEMPTY);
    assert_eq!(pattern::verify_object(&fs::read(kv.join("a/b/key")).expect("read")), Ok(1));
}

fn an_emptied_directory_is_removed(mode: Mode) {
    let (mount, kv) = kv(mode);
    fs::create_dir(kv.join("dir")).expect("mkdir");
    publish_object(&kv.join("dir/key"), 1, 100);
    let mut other = Peer::spawn();
    other.stat(&kv.join("dir/key")).expect("stat");
    fs::remove_file(kv.join("dir/key")).expect("unlink");
    fs::remove_dir(kv.join("dir")).expect("rmdir");
    assert_eq!(other.stat(&kv.join("dir")), Err(Errno::ENOENT));
    fs::remove_dir(&kv).expect("an empty namespace can be removed");
    assert_eq!(sorted_names(mount.path()), Vec::<String>::new());
}
