//! Names move: files and whole directories, with the errors that POSIX has for each impossible move.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use nix::errno::Errno;

use crate::common::modes::in_both_modes;
use crate::common::pattern;
use crate::common::sys::{failure, rename_with, sorted_names};
use crate::common::{Mode, Peer};
use crate::fixture::{kv, publish_object};

in_both_modes!(
    a_directory_moves_with_everything_in_it,
    a_directory_replaces_an_empty_one,
    a_directory_does_not_replace_a_full_one,
    a_file_and_a_directory_do_not_replace_each_other,
    a_directory_does_not_move_into_itself,
    a_rename_of_a_missing_name_says_enoent,
    a_rename_to_a_missing_directory_says_enoent,
    a_rename_to_the_same_name_changes_nothing,
    noreplace_moves_only_to_a_free_name,
    noreplace_sees_a_file_that_is_being_written,
    exchange_is_refused_with_einval,
    whiteout_is_refused,
    a_moved_file_keeps_its_inode_and_mtime,
    a_hidden_file_moved_over_an_object_replaces_it,
);

fn a_directory_moves_with_everything_in_it(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    fs::create_dir_all(kv.join("from/deep/er")).expect("mkdir");
    fs::create_dir(kv.join("into")).expect("mkdir");
    for seed in 0..20 {
        publish_object(
            &kv.join(format!("from/deep/er/k{seed}")),
            seed,
            3000 + 10_000 * usize::from(seed == 3),
        );
        other.stat(&kv.join(format!("from/deep/er/k{seed}"))).expect("stat");
    }
    let open = File::open(kv.join("from/deep/er/k3")).expect("open");
    fs::rename(kv.join("from"), kv.join("into/to")).expect("rename");
    for seed in 0..20 {
        let found =
            other.read(&kv.join(format!("into/to/deep/er/k{seed}"))).expect("read under the new name");
        assert_eq!(pattern::verify_object(&found), Ok(seed));
        assert_eq!(other.stat(&kv.join(format!("from/deep/er/k{seed}"))), Err(Errno::ENOENT));
    }
    assert_eq!(open.metadata().expect("fstat").len(), 13_000);
    assert_eq!(sorted_names(&kv), ["into"]);
    assert_eq!(sorted_names(&kv.join("into/to/deep/er")).len(), 20);
    publish_object(&kv.join("into/to/deep/er/new"), 99, 100);
    assert_eq!(other.stat(&kv.join("into/to/deep/er/new")).expect("stat").size, 100);
}

fn a_directory_replaces_an_empty_one(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::create_dir(kv.join("a")).expect("mkdir");
    fs::create_dir(kv.join("b")).expect("mkdir");
    publish_object(&kv.join("a/key"), 1, 100);
    fs::rename(kv.join("a"), kv.join("b")).expect("rename over an empty directory");
    assert_eq!(sorted_names(&kv), ["b"]);
    assert_eq!(sorted_names(&kv.join("b")), ["key"]);
}

fn a_directory_does_not_replace_a_full_one(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::create_dir(kv.join("a")).expect("mkdir");
    fs::create_dir(kv.join("b")).expect("mkdir");
    publish_object(&kv.join("b/key"), 1, 100);
    let error = failure(fs::rename(kv.join("a"), kv.join("b")), "rename over a full directory");
    assert!(matches!(error, Errno::ENOTEMPTY | Errno::EEXIST), "{error}");
    assert_eq!(sorted_names(&kv.join("b")), ["key"]);
}

fn a_file_and_a_directory_do_not_replace_each_other(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::create_dir(kv.join("dir")).expect("mkdir");
    publish_object(&kv.join("file"), 1, 100);
    assert_eq!(failure(fs::rename(kv.join("file"), kv.join("dir")), "file over directory"), Errno::EISDIR);
    assert_eq!(failure(fs::rename(kv.join("dir"), kv.join("file")), "directory over file"), Errno::ENOTDIR);
    assert_eq!(sorted_names(&kv), ["dir", "file"]);
}

fn a_directory_does_not_move_into_itself(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::create_dir_all(kv.join("a/b")).expect("mkdir");
    assert_eq!(failure(fs::rename(kv.join("a"), kv.join("a/b/c")), "a into a/b/c"), Errno::EINVAL);
    assert_eq!(failure(fs::rename(kv.join("a"), kv.join("a/b")), "a into a/b"), Errno::EINVAL);
    assert_eq!(sorted_names(&kv.join("a")), ["b"]);
}

fn a_rename_of_a_missing_name_says_enoent(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("target"), 1, 100);
    assert_eq!(failure(fs::rename(kv.join("missing"), kv.join("target")), "rename"), Errno::ENOENT);
    assert_eq!(pattern::verify_object(&fs::read(kv.join("target")).expect("read")), Ok(1));
}

fn a_rename_to_a_missing_directory_says_enoent(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("key"), 1, 100);
    assert_eq!(failure(fs::rename(kv.join("key"), kv.join("missing/key")), "rename"), Errno::ENOENT);
    publish_object(&kv.join("file"), 2, 100);
    assert_eq!(
        failure(fs::rename(kv.join("key"), kv.join("file/key")), "rename below a file"),
        Errno::ENOTDIR
    );
    assert_eq!(pattern::verify_object(&fs::read(kv.join("key")).expect("read")), Ok(1));
}

fn a_rename_to_the_same_name_changes_nothing(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("key"), 1, 50_000);
    fs::rename(kv.join("key"), kv.join("key")).expect("rename");
    assert_eq!(pattern::verify_object(&fs::read(kv.join("key")).expect("read")), Ok(1));
}

fn noreplace_moves_only_to_a_free_name(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("a"), 1, 100);
    publish_object(&kv.join("b"), 2, 100);
    assert_eq!(rename_with(&kv.join("a"), &kv.join("b"), libc::RENAME_NOREPLACE), Err(Errno::EEXIST));
    assert_eq!(pattern::verify_object(&fs::read(kv.join("b")).expect("read")), Ok(2));
    rename_with(&kv.join("a"), &kv.join("c"), libc::RENAME_NOREPLACE).expect("a free name");
    assert_eq!(pattern::verify_object(&fs::read(kv.join("c")).expect("read")), Ok(1));
    assert_eq!(sorted_names(&kv), ["b", "c"]);
}

fn noreplace_sees_a_file_that_is_being_written(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut writer = Peer::spawn();
    let handle = writer.open(&kv.join("key"), libc::O_WRONLY | libc::O_CREAT).expect("create");
    writer.write_at(handle, 0, b"first").expect("write");
    publish_object(&kv.join("mine"), 1, 100);
    assert_eq!(rename_with(&kv.join("mine"), &kv.join("key"), libc::RENAME_NOREPLACE), Err(Errno::EEXIST));
    writer.close(handle).expect("close");
    assert_eq!(fs::read(kv.join("key")).expect("read"), b"first");
}

fn exchange_is_refused_with_einval(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("a"), 1, 100);
    publish_object(&kv.join("b"), 2, 100);
    assert_eq!(rename_with(&kv.join("a"), &kv.join("b"), libc::RENAME_EXCHANGE), Err(Errno::EINVAL));
    assert_eq!(pattern::verify_object(&fs::read(kv.join("a")).expect("read")), Ok(1));
    assert_eq!(pattern::verify_object(&fs::read(kv.join("b")).expect("read")), Ok(2));
}

fn whiteout_is_refused(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("a"), 1, 100);
    let error = rename_with(&kv.join("a"), &kv.join("b"), libc::RENAME_WHITEOUT).expect_err("no whiteouts");
    assert!(matches!(error, Errno::EINVAL | Errno::EPERM), "{error}");
    assert_eq!(sorted_names(&kv), ["a"]);
}

fn a_moved_file_keeps_its_inode_and_mtime(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::create_dir(kv.join("dir")).expect("mkdir");
    fs::write(kv.join("a.tmp"), b"bytes").expect("write");
    let before = fs::metadata(kv.join("a.tmp")).expect("stat");
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::rename(kv.join("a.tmp"), kv.join("dir/a")).expect("rename");
    let after = fs::metadata(kv.join("dir/a")).expect("stat");
    assert_eq!(
        (after.ino(), after.mtime(), after.mtime_nsec()),
        (before.ino(), before.mtime(), before.mtime_nsec())
    );
}

fn a_hidden_file_moved_over_an_object_replaces_it(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    publish_object(&kv.join("key"), 1, 60_000);
    let held = other.open(&kv.join("key"), libc::O_RDONLY).expect("open");
    let file = File::create(kv.join("straight")).expect("create");
    std::os::unix::fs::FileExt::write_all_at(&file, &pattern::object(2, 70_000), 0).expect("write");
    fs::rename(kv.join("straight"), kv.join("key")).expect("rename while open");
    assert_eq!(pattern::verify_object(&other.read(&kv.join("key")).expect("read")), Ok(2));
    assert_eq!(pattern::verify_object(&other.read_at(held, 0, 60_001).expect("pread")), Ok(1));
    drop(file);
    assert_eq!(pattern::verify_object(&other.read(&kv.join("key")).expect("read")), Ok(2));
}
