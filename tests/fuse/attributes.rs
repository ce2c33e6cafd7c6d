//! Attributes of sealed objects: clients touch times to keep what is hot, and probe rights before they read.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, posix_fallocate};
use nix::sys::stat::{UtimensatFlags, futimens, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{AccessFlags, access};

use crate::common::modes::in_both_modes;
use crate::common::pattern;
use crate::common::sys::{checksum_of, failure};
use crate::common::wait::{HANG, until};
use crate::common::{Mode, Peer};
use crate::fixture::{MIB, kv, offset, publish_object};

in_both_modes!(
    chmod_and_chown_change_a_sealed_object_and_not_its_bytes,
    utimensat_sets_both_times_of_a_sealed_object,
    utimensat_with_omit_leaves_the_other_time,
    times_before_1970_are_what_was_set,
    a_directory_changes_when_a_name_in_it_shows,
    a_directory_stays_as_it_is_after_a_close,
    utime_to_now_works_and_moves_mtime_forward,
    times_and_mode_survive_a_rename,
    times_set_through_an_open_writer_survive_its_close,
    a_write_after_futimens_is_the_time_of_the_file,
    a_time_ahead_stays_until_something_is_written,
    mtime_is_the_time_of_writing,
    ctime_moves_with_each_change_of_attributes,
    ctime_moves_with_what_is_written,
    ctime_moves_with_a_rename_whatever_the_names,
    a_close_changes_no_times_of_a_file,
    access_for_writing_succeeds_on_a_sealed_object,
    a_created_file_has_the_mode_asked_for_less_the_umask,
    touching_times_does_not_change_version_or_checksum,
    fsync_and_its_relatives_succeed,
    who_has_a_file_open_sees_its_attributes_after_another_descriptor_was_closed_and_the_file_renamed,
    an_empty_file_stays_empty_and_readable,
    fstat_of_a_growing_file_tells_its_size,
    attributes_of_another_process_are_seen_at_once,
);

const EARLY: TimeSpec = TimeSpec::new(1_000_000_000, 123_456_789);
/// After the test, whenever that runs.
const AHEAD: TimeSpec = TimeSpec::new(4_000_000_000, 0);
const LATER: TimeSpec = TimeSpec::new(1_500_000_000, 987_654_321);

fn times(path: &Path) -> ((i64, i64), (i64, i64)) {
    let facts = fs::metadata(path).expect("stat");
    ((facts.atime(), facts.atime_nsec()), (facts.mtime(), facts.mtime_nsec()))
}

fn set_times(path: &Path, atime: TimeSpec, mtime: TimeSpec) {
    utimensat(AT_FDCWD, path, &atime, &mtime, UtimensatFlags::FollowSymlink).expect("utimensat");
}

fn chmod_and_chown_change_a_sealed_object_and_not_its_bytes(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [100, MIB] {
        let path = kv.join(format!("k{length}"));
        publish_object(&path, 1, length);
        let reader = File::open(&path).expect("open");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("chmod");
        std::os::unix::fs::chown(&path, Some(1234), Some(4321)).expect("chown");
        let facts = Peer::spawn().stat(&path).expect("stat");
        assert_eq!((facts.mode & 0o7777, facts.user, facts.group), (0o640, 1234, 4321));
        assert_eq!(reader.metadata().expect("fstat").mode() & 0o7777, 0o640);
        assert_eq!(pattern::verify_object(&fs::read(&path).expect("read")), Ok(1));
    }
    fs::set_permissions(&kv, Permissions::from_mode(0o750)).expect("chmod of a directory");
    assert_eq!(fs::metadata(&kv).expect("stat").mode() & 0o7777, 0o750);
}

fn utimensat_sets_both_times_of_a_sealed_object(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [100, MIB] {
        let path = kv.join(format!("k{length}"));
        publish_object(&path, 1, length);
        set_times(&path, EARLY, LATER);
        assert_eq!(times(&path), ((1_000_000_000, 123_456_789), (1_500_000_000, 987_654_321)));
        futimens(File::open(&path).expect("open").as_fd(), &LATER, &EARLY).expect("futimens");
        assert_eq!(times(&path), ((1_500_000_000, 987_654_321), (1_000_000_000, 123_456_789)));
    }
    set_times(&kv, EARLY, LATER);
    assert_eq!(times(&kv), ((1_000_000_000, 123_456_789), (1_500_000_000, 987_654_321)), "a directory");
}

fn utimensat_with_omit_leaves_the_other_time(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    publish_object(&path, 1, 50_000);
    set_times(&path, EARLY, EARLY);
    let before = SystemTime::now() - Duration::from_secs(1);
    set_times(&path, TimeSpec::UTIME_NOW, TimeSpec::UTIME_OMIT);
    let facts = fs::metadata(&path).expect("stat");
    assert!(facts.accessed().expect("atime") >= before, "atime is now");
    assert_eq!(times(&path).1, (1_000_000_000, 123_456_789), "mtime is kept");
    set_times(&path, TimeSpec::UTIME_OMIT, LATER);
    assert!(fs::metadata(&path).expect("stat").accessed().expect("atime") >= before, "atime is kept");
    assert_eq!(times(&path).1, (1_500_000_000, 987_654_321));
}

fn times_before_1970_are_what_was_set(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let key = kv.join("key");
    publish_object(&key, 1, MIB);
    set_times(&key, TimeSpec::new(-2, 800_000_000), TimeSpec::new(-5, 0));
    assert_eq!(times(&key), ((-2, 800_000_000), (-5, 0)));
}

fn a_directory_changes_when_a_name_in_it_shows(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let key = kv.join("key");
    let writer = File::create(&key).expect("create");
    let mut other = Peer::spawn();
    assert!(other.stat(&key).is_err(), "it is hidden while it is written");
    let before = fs::metadata(&kv).expect("stat").modified().expect("a time");
    std::thread::sleep(Duration::from_millis(20));
    drop(writer);
    assert!(until(HANG, || other.stat(&key).is_ok()));
    let after = fs::metadata(&kv).expect("stat").modified().expect("a time");
    assert!(after > before, "who looks at the directory alone would not see it");
}

fn a_directory_stays_as_it_is_after_a_close(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let changed = || fs::metadata(&kv).expect("stat").modified().expect("a time");
    for round in 0..100 {
        let writer = File::create(kv.join(format!("key-{round}"))).expect("create");
        std::thread::sleep(Duration::from_millis(3));
        drop(writer);
        let at_close = changed();
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(changed(), at_close, "round {round}: nobody made a name since");
    }
}

fn utime_to_now_works_and_moves_mtime_forward(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    publish_object(&path, 1, 50_000);
    set_times(&path, EARLY, EARLY);
    let before = SystemTime::now() - Duration::from_secs(1);
    set_times(&path, TimeSpec::UTIME_NOW, TimeSpec::UTIME_NOW);
    assert!(fs::metadata(&path).expect("stat").modified().expect("mtime") >= before);
    // Another user without any right but to write may do this, and nothing else (utime(2)).
    fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("chmod");
    let mut other = Peer::spawn();
    other.become_user(1234, 1234);
    other.access(&path, libc::W_OK).expect("the mode lets it write");
}

fn times_and_mode_survive_a_rename(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::write(kv.join("a.tmp"), pattern::bytes(1, 50_000)).expect("write");
    fs::set_permissions(kv.join("a.tmp"), Permissions::from_mode(0o604)).expect("chmod");
    set_times(&kv.join("a.tmp"), EARLY, LATER);
    fs::rename(kv.join("a.tmp"), kv.join("a")).expect("rename");
    assert_eq!(times(&kv.join("a")), ((1_000_000_000, 123_456_789), (1_500_000_000, 987_654_321)));
    assert_eq!(fs::metadata(kv.join("a")).expect("stat").mode() & 0o7777, 0o604);
}

fn times_set_through_an_open_writer_survive_its_close(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [100, MIB] {
        let path = kv.join(format!("k{length}"));
        let file = File::create(&path).expect("create");
        file.write_all_at(&pattern::bytes(1, length), 0).expect("write");
        // As `cp -p` and tar do: times last, before close.
        futimens(file.as_fd(), &EARLY, &LATER).expect("futimens");
        file.set_permissions(Permissions::from_mode(0o640)).expect("fchmod");
        drop(file);
        assert_eq!(times(&path), ((1_000_000_000, 123_456_789), (1_500_000_000, 987_654_321)), "{length}");
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o640);
    }
}

fn a_write_after_futimens_is_the_time_of_the_file(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mtime = |path: &Path| fs::metadata(path).expect("stat").modified().expect("mtime");
    for (length, time) in [(100, EARLY), (MIB, EARLY), (100, AHEAD), (MIB, AHEAD)] {
        let path = kv.join(format!("k{length}.{time}"));
        let file = File::create(&path).expect("create");
        file.write_all_at(&pattern::bytes(1, length), 0).expect("write");
        futimens(file.as_fd(), &time, &time).expect("futimens");
        let before = coarse_now();
        file.write_all_at(b"again", 20).expect("write");
        let written = mtime(&path);
        assert!(written >= before && written <= SystemTime::now(), "{length}, {time}: {written:?}");
        drop(file);
        checksum_of(&path);
        assert_eq!(mtime(&path), written, "{length}, {time}");
    }
}

fn a_time_ahead_stays_until_something_is_written(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mtime = |path: &Path| fs::metadata(path).expect("stat").modified().expect("mtime");
    let ahead = SystemTime::UNIX_EPOCH + Duration::from(AHEAD);
    for length in [100, MIB] {
        let path = kv.join(format!("k{length}"));
        publish_object(&path, 1, length);
        set_times(&path, AHEAD, AHEAD);
        let open = || File::options().append(true).open(&path).expect("open to append");
        drop(open());
        checksum_of(&path);
        assert_eq!(mtime(&path), ahead, "{length}: nothing was written");
        let before = coarse_now();
        let mut file = open();
        file.write_all(b"more").expect("write");
        drop(file);
        checksum_of(&path);
        let written = mtime(&path);
        assert!(written >= before && written <= SystemTime::now(), "{length}: {written:?}");
    }
}

/// By the clock that file systems stamp with.
fn coarse_now() -> SystemTime {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME_COARSE).expect("a clock");
    SystemTime::UNIX_EPOCH + Duration::from(now)
}

fn mtime_is_the_time_of_writing(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [100, MIB] {
        let path = kv.join(format!("k{length}"));
        let before = coarse_now();
        publish_object(&path, 1, length);
        let first = fs::metadata(&path).expect("stat").modified().expect("mtime");
        assert!(first >= before && first <= SystemTime::now(), "{first:?}");
        assert!(until(HANG, || coarse_now() > first), "the clock stands still");
        let file = File::options().write(true).open(&path).expect("open for writing");
        file.write_all_at(b"again", 20).expect("write");
        drop(file);
        let second = fs::metadata(&path).expect("stat").modified().expect("mtime");
        assert!(second > first, "a rewrite of {length} bytes moves mtime: {first:?} {second:?}");
    }
}

fn ctime_moves_with_each_change_of_attributes(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    publish_object(&path, 1, 100);
    let ctime = || {
        std::thread::sleep(Duration::from_millis(15));
        let facts = fs::metadata(&path).expect("stat");
        (facts.ctime(), facts.ctime_nsec())
    };
    let (user, group) = (nix::unistd::getuid(), nix::unistd::getgid());
    let changes: [(&str, &dyn Fn()); 4] = [
        ("chmod", &|| fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("chmod")),
        ("utimensat", &|| set_times(&path, EARLY, EARLY)),
        ("chown", &|| nix::unistd::chown(&path, Some(user), Some(group)).expect("chown")),
        ("setxattr", &|| crate::common::sys::set_xattr(&path, "user.own", b"x").expect("setxattr")),
    ];
    for (what, change) in changes {
        for which in ["the first", "the same again"] {
            let before = ctime();
            change();
            assert!(ctime() > before, "{what}, {which}, moves ctime");
        }
    }
}

fn ctime_moves_with_what_is_written(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let file = File::create_new(kv.join("key.tmp")).expect("create");
    let ctime = || {
        let facts = file.metadata().expect("fstat");
        (facts.ctime(), facts.ctime_nsec())
    };
    let changes: [(&str, &dyn Fn()); 4] = [
        ("fallocate", &|| posix_fallocate(&file, 0, 100_000).expect("fallocate")),
        ("a write", &|| file.write_all_at(&[1; 5000], 0).expect("write")),
        ("ftruncate", &|| file.set_len(3000).expect("ftruncate")),
        ("fchmod", &|| file.set_permissions(Permissions::from_mode(0o600)).expect("fchmod")),
    ];
    for (what, change) in changes {
        let before = ctime();
        std::thread::sleep(Duration::from_millis(20));
        change();
        assert!(ctime() > before, "{what} moves ctime");
    }
}

fn ctime_moves_with_a_rename_whatever_the_names(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::write(kv.join("a.tmp"), [1; 5000]).expect("write");
    let ctime = |name: &str| {
        let facts = fs::metadata(kv.join(name)).expect("stat");
        (facts.ctime(), facts.ctime_nsec())
    };
    for (name, new_name) in [("a.tmp", "b.tmp"), ("b.tmp", "key"), ("key", "other")] {
        let before = ctime(name);
        std::thread::sleep(Duration::from_millis(20));
        fs::rename(kv.join(name), kv.join(new_name)).expect("rename");
        assert!(ctime(new_name) > before, "{name} to {new_name}");
    }
}

fn a_close_changes_no_times_of_a_file(mode: Mode) {
    let (mount, kv) = kv(mode);
    for length in [0, 100, 100_000] {
        let path = kv.join(format!("key{length}"));
        let times =
            |facts: &fs::Metadata| ((facts.mtime(), facts.mtime_nsec()), (facts.ctime(), facts.ctime_nsec()));
        let file = File::create_new(&path).expect("create");
        file.write_all_at(&vec![1; length], 0).expect("write");
        let open = times(&file.metadata().expect("fstat"));
        std::thread::sleep(Duration::from_millis(20));
        drop(file);
        mount.wait_until_closed([&path]);
        assert_eq!(times(&fs::metadata(&path).expect("stat")), open, "mtime and ctime of {length} bytes");
    }
}

fn access_for_writing_succeeds_on_a_sealed_object(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    publish_object(&path, 1, 50_000);
    let all = AccessFlags::F_OK | AccessFlags::R_OK | AccessFlags::W_OK;
    access(&path, all).expect("access(F_OK | R_OK | W_OK)");
    assert_eq!(access(&path, AccessFlags::X_OK), Err(Errno::EACCES), "it is no program");
    let mut user = Peer::spawn();
    std::os::unix::fs::chown(&path, Some(1234), Some(1234)).expect("chown");
    user.become_user(1234, 1234);
    user.access(&path, libc::R_OK | libc::W_OK).expect("its owner may write");
}

fn a_created_file_has_the_mode_asked_for_less_the_umask(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    // Of a process of its own: other tests may be making files in this one.
    let mut peer = Peer::spawn();
    peer.set_umask(0o027);
    let handle = peer.open_with_mode(&path, libc::O_WRONLY | libc::O_CREAT, 0o666).expect("create");
    peer.close(handle).expect("close");
    assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o640);
    peer.mkdir(&kv.join("dir"), 0o777).expect("mkdir");
    assert_eq!(fs::metadata(kv.join("dir")).expect("stat").mode() & 0o7777, 0o750);
    let mut options = File::options();
    drop(options.write(true).create_new(true).mode(0o400).open(kv.join("ro")).expect("create read-only"));
    assert_eq!(fs::metadata(kv.join("ro")).expect("stat").mode() & 0o7777, 0o400);
}

fn touching_times_does_not_change_version_or_checksum(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    publish_object(&path, 1, 50_000);
    checksum_of(&path);
    let facts = |path: &Path| {
        ["user.tidefs.version", "user.tidefs.checksum"]
            .map(|name| crate::common::sys::get_xattr_text(path, name))
    };
    let before = facts(&path);
    set_times(&path, EARLY, LATER);
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("chmod");
    assert_eq!(facts(&path), before);
}

fn fsync_and_its_relatives_succeed(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [100, MIB] {
        let path = kv.join(format!("k{length}"));
        let file = File::create(&path).expect("create");
        file.write_all_at(&pattern::bytes(1, length), 0).expect("write");
        file.sync_all().expect("fsync of a file being written");
        file.sync_data().expect("fdatasync of a file being written");
        drop(file);
        let file = File::open(&path).expect("open");
        file.sync_all().expect("fsync of a sealed object");
        nix::unistd::syncfs(&file).expect("syncfs");
    }
    File::open(&kv).expect("open a directory").sync_all().expect("fsync of a directory");
}

fn who_has_a_file_open_sees_its_attributes_after_another_descriptor_was_closed_and_the_file_renamed(
    mode: Mode,
) {
    let (_mount, kv) = kv(mode);
    let (before, after) = (kv.join("before"), kv.join("after"));
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&before);
    let file = file.expect("create");
    file.write_all_at(b"bytes", 0).expect("write");
    drop(File::options().write(true).open(&before).expect("another descriptor"));
    fs::rename(&before, &after).expect("rename");
    let appender = File::options().append(true).open(&after).expect("a new version");
    assert_eq!(file.metadata().expect("fstat").len(), 5);
    drop(appender);
}

fn an_empty_file_stays_empty_and_readable(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    drop(File::create(kv.join("key.lock")).expect("create"));
    assert_eq!(other.stat(&kv.join("key.lock")).expect("stat").size, 0);
    assert_eq!(other.read(&kv.join("key.lock")).expect("read"), b"");
    drop(File::create(kv.join("key.lock")).expect("create again, as touch does"));
    assert_eq!(other.read(&kv.join("key.lock")).expect("read"), b"");
    assert_eq!(failure(File::create_new(kv.join("key.lock")), "O_EXCL"), Errno::EEXIST);
}

fn fstat_of_a_growing_file_tells_its_size(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    let file = File::create(&path).expect("create");
    for count in 1..=100 {
        file.write_all_at(&[7; 5000], offset((count - 1) * 5000)).expect("write");
        assert_eq!(file.metadata().expect("fstat").len(), offset(count * 5000));
        assert_eq!(fs::metadata(&path).expect("stat").len(), offset(count * 5000));
    }
}

fn attributes_of_another_process_are_seen_at_once(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    publish_object(&path, 1, 100);
    let mut other = Peer::spawn();
    for mode in [0o600, 0o644, 0o700, 0o640] {
        other.chmod(&path, mode).expect("chmod");
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, mode);
    }
    other.publish(&path, 2, 7000).expect("publish");
    assert_eq!(fs::metadata(&path).expect("stat").len(), 7000, "the size of a replaced name");
}
