//! What other users, and clients that keep to no rule, can do by the fast path: nothing that they may not do by file.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::{setfsgid, setfsuid};
use tidefs_control_api::ioctl::{
    Command, Create, Encoder, Entry, Flags, Get, Name, Outcome, Ready, Status, results,
};

use crate::common::{Mode, Mount, Peer, kernel, pattern, sys, wait};
use crate::fixture::{MIB, kv, kv_with, offset, publish_object};
use crate::ioctl::{Control, metric};

/// A user who owns nothing.
const STRANGER: u32 = 54_322;

/// What `call` says to another user.
fn call_as<T>(user: u32, call: impl FnOnce() -> T) -> T {
    // Of this thread alone, which is the test's own.
    let (root, root_group) = (setfsuid(user.into()), setfsgid(user.into()));
    let said = call();
    setfsuid(root);
    setfsgid(root_group);
    said
}

/// A session of another user, opened by this process.
fn open_as(mount: &Mount, user: u32) -> Control {
    call_as(user, || Control::open(mount))
}

/// Makes an object of the session and seals it. Returns its segment.
fn make(control: &Control, name: &[u8], mode: u32, seed: u64) -> u64 {
    let (reference, segment, file) = control.begin(name, mode);
    file.write_all_at(&pattern::object(seed, MIB), 0).expect("write");
    assert_eq!(control.seal(reference), Status::Ok);
    segment
}

fn stranger() -> Peer {
    let mut stranger = Peer::spawn();
    stranger.become_user(STRANGER, STRANGER);
    stranger
}

#[test]
fn an_object_that_may_not_be_read_fails_none_that_is_looked_up_with_it() {
    for mode in [Mode::Passthrough, Mode::Direct] {
        let (_mount, kv) = kv(mode);
        for (name, rights) in [("open", 0o644), ("secret", 0o600), ("other", 0o644)] {
            publish_object(&kv.join(name), 1, MIB);
            fs::set_permissions(kv.join(name), fs::Permissions::from_mode(rights)).expect("chmod");
        }
        let keys = ["open", "secret", "none", "other"];
        let (each, many) = call_as(STRANGER, || {
            let cache = tidefs_client::Cache::open(&kv).expect("the cache opens");
            (cache.lookup_each(&keys), cache.lookup_many(&keys))
        });
        let each = each.expect("the keys are keys");
        let denied = [each[1].as_ref().expect_err("it may not be read"), &many.expect_err("nor here")];
        for error in denied {
            assert_eq!(error.errno(), libc::EACCES);
            assert!(error.to_string().contains(kv.join("secret").to_str().expect("a text")), "{error}");
        }
        assert!(matches!(each[2], Ok(None)));
        for found in [&each[0], &each[3]] {
            let view = found.as_ref().expect("it may be read").as_ref().expect("a hit");
            assert_eq!(pattern::verify_object(view), Ok(1));
        }
    }
}

#[test]
fn nothing_is_written_through_a_control_file() {
    for mode in [Mode::Passthrough, Mode::Direct] {
        let (mount, kv) = kv(mode);
        publish_object(&kv.join("sealed"), 1, MIB);
        mount.wait_until_closed([kv.join("sealed")]);
        let reader = File::open(kv.join("sealed")).expect("open");
        let writer =
            File::options().read(true).write(true).create_new(true).open(kv.join("open")).expect("create");
        writer.write_all_at(&pattern::object(2, MIB), 0).expect("write");
        let mut stranger = stranger();
        for path in ["control", "status"] {
            let path = mount.join(".tidefs").join(path);
            // As many as there are handles of others, so that each number is met.
            for _ in 0..32 {
                let Ok(handle) = stranger.open(&path, libc::O_RDWR) else { break };
                assert_eq!(stranger.write_at(handle, 0, b"EVIL"), Err(Errno::EINVAL));
                assert!(stranger.truncate(handle, 0).is_err());
            }
        }
        let control = Control::open(&mount);
        for _ in 0..32 {
            let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            let others =
                File::options().read(true).write(true).open(mount.join(".tidefs/control")).expect("open");
            assert_eq!(fallocate(&others, punch, 0, 4096), Err(Errno::EOPNOTSUPP));
            assert!(fallocate(&control.file, FallocateFlags::empty(), 0, 1 << 40).is_err());
        }
        let read_all = |file: &File| {
            let mut bytes = vec![0; MIB];
            file.read_exact_at(&mut bytes, 0).expect("read");
            pattern::verify_object(&bytes)
        };
        assert_eq!((read_all(&reader), read_all(&writer)), (Ok(1), Ok(2)));
        drop(writer);
        mount.wait_until_closed([kv.join("open")]);
        assert_eq!(pattern::verify_object(&fs::read(kv.join("open")).expect("it was sealed")), Ok(2));
    }
}

#[test]
fn a_segment_that_others_may_have_mapped_is_not_used_again_for_what_they_may_not_read() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    let control = Control::open(&mount);
    fs::create_dir(kv.join("private")).expect("mkdir");
    fs::set_permissions(kv.join("private"), fs::Permissions::from_mode(0o700)).expect("chmod");
    // Begun where nobody else may look, and moved to where all may.
    let segment = make(&control, b"kv/private/one", 0o644, 1);
    let (mut stranger, path) = (stranger(), control.segment(segment));
    assert_eq!(stranger.open(&path, libc::O_RDONLY).err(), Some(Errno::EACCES));
    fs::rename(kv.join("private/one"), kv.join("one")).expect("rename");
    let handle = stranger.open(&path, libc::O_RDONLY).expect("it may be read now");
    let map = stranger.map(handle, MIB, false).expect("mmap");
    assert_eq!(pattern::verify_object(&stranger.map_read(map, 0, MIB)), Ok(1));
    fs::remove_file(kv.join("one")).expect("unlink");
    for seed in 2..6 {
        let next = make(&control, format!("kv/private/{seed}").as_bytes(), 0o644, seed);
        assert_ne!(next, segment, "its pages are in the mapping of somebody who may not read {seed}");
    }
}

#[test]
fn a_segment_that_others_mapped_while_it_was_written_is_not_used_again_for_what_they_may_not_read() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    let control = Control::open(&mount);
    let private = kv.join("private");
    let allow = |mode| fs::set_permissions(&private, fs::Permissions::from_mode(mode)).expect("chmod");
    fs::create_dir(&private).expect("mkdir");
    allow(0o700);
    let (reference, segment, file) = control.begin(b"kv/private/one", 0o644);
    file.write_all_at(&pattern::object(1, MIB), 0).expect("write");
    let part = Ready { reference, offset: 0, length: offset(MIB) };
    let (_, outcome) = control.one::<Outcome>(Command::Ready, &part);
    assert_eq!(outcome.status(), Status::Ok);
    allow(0o755);
    let (mut stranger, path) = (stranger(), control.segment(segment));
    let handle = stranger.open(&path, libc::O_RDONLY).expect("what is ready may be read");
    let map = stranger.map(handle, MIB, false).expect("mmap");
    assert_eq!(pattern::verify_object(&stranger.map_read(map, 0, MIB)), Ok(1));
    allow(0o700);
    drop(file);
    assert_eq!(control.seal(reference), Status::Ok);
    fs::remove_file(kv.join("private/one")).expect("unlink");
    for seed in 2..6 {
        let next = make(&control, format!("kv/private/{seed}").as_bytes(), 0o644, seed);
        assert_ne!(next, segment, "its pages are in the mapping of somebody who may not read {seed}");
    }
}

#[test]
fn what_lost_its_name_is_opened_by_its_owner_alone() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    let control = Control::open(&mount);
    fs::set_permissions(&kv, fs::Permissions::from_mode(0o700)).expect("chmod");
    let segment = make(&control, b"kv/secret", 0o644, 1);
    let (_, found) = control.one::<Entry>(Command::Lookup, &Name(b"kv/secret"));
    assert_eq!((found.status(), found.segment.get()), (Status::Ok, segment));
    let (mut stranger, path) = (stranger(), control.segment(segment));
    assert_eq!(stranger.open(&path, libc::O_RDONLY).err(), Some(Errno::EACCES));
    fs::remove_file(kv.join("secret")).expect("unlink");
    assert_eq!(
        stranger.open(&path, libc::O_RDONLY).err(),
        Some(Errno::EACCES),
        "its directory is still private"
    );
    assert_eq!(pattern::verify_object(&fs::read(&path).expect("the reference keeps it")), Ok(1));
}

#[test]
fn nobody_learns_the_length_of_an_object_from_its_segment() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, _kv) = kv(Mode::Passthrough);
    let control = Control::open(&mount);
    let segment = control.segment(make(&control, b"kv/secret", 0o600, 1));
    assert_eq!(stranger().stat(&segment).expect("numbers are no secret").size, 0);
    assert_eq!(pattern::verify_object(&fs::read(&segment).expect("its owner reads it")), Ok(1));
}

#[test]
fn an_object_is_as_long_as_it_is_sealed_whatever_its_client_made_of_the_segment() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    let control = Control::open(&mount);
    let (reference, _, file) = control.begin(b"kv/key", 0o600);
    file.write_all_at(&pattern::object(3, MIB), 0).expect("write");
    for behind in [offset(MIB), 1 << 40] {
        let refused = file.write_all_at(b"x", behind).expect_err("it is behind its end");
        assert_eq!(refused.raw_os_error(), Some(libc::EFBIG));
    }
    assert_eq!(control.seal(reference), Status::Ok);
    let refused = file.write_all_at(b"x", 0).expect_err("it is sealed");
    assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    assert_eq!(fs::metadata(kv.join("key")).expect("stat").len(), offset(MIB));
    assert_eq!(pattern::verify_object(&fs::read(kv.join("key")).expect("read")), Ok(3));
    sys::checksum_of(&kv.join("key"));
}

#[test]
fn what_may_not_be_replaced_by_rename_is_not_replaced_by_a_seal() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    fs::set_permissions(&kv, fs::Permissions::from_mode(0o1777)).expect("chmod");
    let control = open_as(&mount, STRANGER);
    let [taken, free, closed] =
        [&b"kv/taken"[..], b"kv/free", b"kv/closed"].map(|name| control.begin(name, 0o600).0);
    // Since then somebody else made the name, in a directory where only owners replace.
    publish_object(&kv.join("taken"), 1, MIB);
    assert_eq!((control.seal(taken), control.seal(free)), (Status::Denied, Status::Ok));
    assert_eq!(pattern::verify_object(&fs::read(kv.join("taken")).expect("read")), Ok(1));
    fs::set_permissions(&kv, fs::Permissions::from_mode(0o755)).expect("chmod");
    assert_eq!(control.seal(closed), Status::Denied, "the directory takes no more names of its");
    assert!(!kv.join("closed").exists());
}

#[test]
fn nothing_is_made_in_a_directory_that_was_removed() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv_with(Mode::Passthrough, &["capacity=64MiB"]);
    let control = Control::open(&mount);
    fs::create_dir(kv.join("directory")).expect("mkdir");
    // The kernel knows its inode for as long as it is open.
    let held = File::open(kv.join("directory")).expect("open");
    let scope = held.metadata().expect("stat").ino();
    let (reference, _, file) = control.begin(b"kv/directory/key", 0o600);
    file.write_all_at(&pattern::object(1, MIB), 0).expect("write");
    fs::remove_dir(kv.join("directory")).expect("what is begun in it does not keep it");
    assert_eq!(control.seal(reference), Status::Absent);
    let create = Create { size: offset(MIB), mode: 0o600, name: Name(b"other") };
    let mut request = Encoder::new(Flags::NONE, scope, size_of::<Entry>());
    assert!(request.push(&create));
    assert_eq!(control.call(Command::Create, request.finish()).err(), Some(Errno::ESTALE));
    drop(held);
    for seed in 0..200 {
        publish_object(&kv.join(format!("k{seed}")), seed, MIB);
    }
    assert_eq!(pattern::verify_object(&fs::read(kv.join("k199")).expect("read")), Ok(199));
    assert!(!kv.join("directory").exists());
}

#[test]
fn areas_take_no_more_than_their_part_of_the_cache() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv_with(Mode::Passthrough, &["capacity=128MiB"]);
    for seed in 0..100 {
        publish_object(&kv.join(format!("k{seed}")), seed, MIB);
    }
    let held = || fs::read_dir(&kv).expect("list").count();
    let before = held();
    // One user may have a 32nd of the cache, in however many sessions, and all users a 16th.
    let count_as = |user: u32| {
        let sessions: Vec<Control> = (0..8).map(|_| open_as(&mount, user)).collect();
        let granted =
            sessions.iter().flat_map(|control| (0..4).map(move |_| control.register(offset(MIB)).is_ok()));
        let granted = granted.filter(|is_granted| *is_granted).count();
        (granted, sessions)
    };
    let (first, first_sessions) = count_as(STRANGER);
    let (second, _second_sessions) = count_as(STRANGER + 1);
    let (third, _) = count_as(STRANGER + 2);
    assert_eq!((first, second, third), (4, 4, 0));
    assert!(held() + 9 >= before, "{} of {before} objects are left", held());
    drop(first_sessions);
    assert!(wait::until(wait::HANG, || count_as(STRANGER + 2).0 > 0), "what ended is given back");
}

/// Far more than the cache holds is written behind the end of an area of one page, before and after it is given back.
#[test]
fn what_is_written_behind_the_end_of_an_area_takes_no_room() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv_with(Mode::Passthrough, &["capacity=64MiB"]);
    for seed in 0..16 {
        publish_object(&kv.join(format!("k{seed}")), seed, MIB);
    }
    let control = open_as(&mount, STRANGER);
    let area = control.register(4096).expect("an area").segment.get();
    let mut stranger = stranger();
    let handle = stranger.open(&control.segment(area), libc::O_RDWR).expect("its own area");
    let map = stranger.map(handle, 4096, true).expect("it is mapped");
    stranger.write_at(handle, 0, b"written").expect("within its end");
    stranger.map_write(map, 7, b" and mapped");
    assert_eq!(stranger.read_at(handle, 0, 18).expect("read"), b"written and mapped");
    let before = mount.usage().used;
    let zeros = vec![0; MIB];
    let mut fill = |refusal| {
        for part in 0..256 {
            assert_eq!(stranger.write_at(handle, 1 + part * offset(MIB), &zeros), Err(refusal));
        }
    };
    fill(Errno::EFBIG);
    control.call(Command::Unregister, Encoder::new(Flags::NONE, area, 0).finish()).expect("given back");
    fill(Errno::EPERM);
    let usage = mount.usage();
    assert!(usage.used <= before + offset(MIB), "{before} bytes before, {usage:?} now");
    for seed in 0..16 {
        let found = fs::read(kv.join(format!("k{seed}"))).expect("it is still there");
        assert_eq!(pattern::verify_object(&found), Ok(seed));
    }
}

#[test]
fn one_request_copies_no_more_than_an_area_holds() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    publish_object(&kv.join("key"), 1, 8 * MIB);
    mount.wait_until_closed([kv.join("key")]);
    let control = Control::open(&mount);
    let (area, _) = control.area(offset(8 * MIB));
    let mut request = Encoder::new(Flags::NONE, 0, size_of::<Entry>());
    for _ in 0..10 {
        assert!(request.push(&Get {
            offset: 0,
            length: offset(8 * MIB),
            area,
            target: 0,
            name: Name(b"kv/key")
        }));
    }
    let reply = control.call(Command::GetInto, request.finish()).expect("a reply");
    let (_, found) = results::<Entry>(&reply).expect("a whole reply");
    let done = found.iter().map(Entry::status).filter(|status| *status == Status::Ok).count();
    assert_eq!((done, found[8].status(), found[9].status()), (8, Status::TooMany, Status::TooMany));
}

#[test]
fn nothing_is_begun_when_its_results_have_no_place() {
    if !kernel::has_fast_path() {
        return;
    }
    let (mount, kv) = kv(Mode::Passthrough);
    let control = Control::open(&mount);
    let create = || {
        let mut request = Encoder::new(Flags::NONE, 0, 0);
        assert!(request.push(&Create { size: offset(MIB), mode: 0o600, name: Name(b"kv/key") }));
        request.finish()
    };
    assert_eq!(control.call(Command::Create, create()).err(), Some(Errno::EINVAL));
    assert_eq!(metric(&mount, "tidefs_fast_creates_total"), 0);
    assert!(!kv.join("key").exists());
}
