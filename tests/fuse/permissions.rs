//! Who may do what: uid, gid and mode as on any local filesystem, enforced for other users' processes.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::common::modes::in_both_modes;
use crate::common::pattern;
use crate::common::{Mode, Mount, Peer};
use crate::fixture::{kv, publish_object};

in_both_modes!(
    a_private_file_of_another_user_is_not_opened,
    a_readable_file_is_read_by_another_user_through_the_kernel,
    a_private_namespace_hides_everything_below_it,
    a_group_may_what_the_mode_gives_it,
    a_file_belongs_to_its_creator,
    a_directory_without_write_permission_takes_no_names,
    a_shared_directory_lets_others_replace_and_unlink,
    a_sticky_directory_protects_the_files_of_others,
    any_user_may_make_a_namespace_and_no_other_may_remove_it,
    only_the_owner_changes_mode_and_only_root_the_owner,
    a_set_group_id_directory_hands_its_group_down,
    policy_of_another_users_namespace_cannot_be_set,
    a_handle_opened_before_a_chmod_keeps_its_rights,
    a_hidden_file_of_another_user_is_not_joined,
    who_may_only_read_cuts_nothing_by_opening_to_read,
    who_opens_to_read_and_cuts_leaves_an_empty_object,
    a_hidden_file_of_another_user_is_not_replaced_where_only_owners_may,
    a_version_that_is_being_written_has_the_rights_that_were_given_meanwhile,
    who_may_write_a_directory_does_not_set_its_policy,
    attributes_of_programs_are_bounded,
    who_is_sent_to_look_again_opens_nothing_that_it_may_not_write,
    what_others_change_loses_its_set_id_bits,
);

const USER: u32 = 54_321;
const STRANGER: u32 = 54_322;
const GROUP: u32 = 54_400;

fn user(user: u32, group: u32) -> Peer {
    let mut peer = Peer::spawn();
    peer.become_user(user, group);
    peer
}

/// A namespace that belongs to [`USER`] and everyone may use as its mode says.
fn users_namespace(mount: &Mount, name: &str, mode: u32) -> PathBuf {
    let path = mount.namespace(name);
    std::os::unix::fs::chown(&path, Some(USER), Some(GROUP)).expect("chown");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("chmod");
    path
}

fn owned_file(path: &Path, length: usize, mode: u32) {
    publish_object(path, 1, length);
    std::os::unix::fs::chown(path, Some(USER), Some(GROUP)).expect("chown");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

fn a_private_file_of_another_user_is_not_opened(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [100, 100_000] {
        let path = kv.join(format!("k{length}"));
        owned_file(&path, length, 0o600);
        let mut stranger = user(STRANGER, STRANGER);
        assert_eq!(stranger.read(&path), Err(Errno::EACCES));
        assert_eq!(stranger.open(&path, libc::O_RDWR).err(), Some(Errno::EACCES));
        assert_eq!(stranger.access(&path, libc::R_OK), Err(Errno::EACCES));
        assert_eq!(stranger.stat(&path).expect("its attributes are no secret").mode & 0o7777, 0o600);
        let found = user(USER, USER).read(&path).expect("its owner reads it");
        assert_eq!(pattern::verify_object(&found), Ok(1));
    }
}

fn a_readable_file_is_read_by_another_user_through_the_kernel(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for length in [100, 2 << 20] {
        let path = kv.join(format!("k{length}"));
        owned_file(&path, length, 0o644);
        let mut stranger = user(STRANGER, STRANGER);
        let handle = stranger.open(&path, libc::O_RDONLY).expect("open");
        let found = stranger.read_at(handle, 0, length + 1).expect("pread");
        assert_eq!(pattern::verify_object(&found), Ok(1));
        let map = stranger.map(handle, length, false).expect("mmap");
        assert_eq!(pattern::verify_object(&stranger.map_read(map, 0, length)), Ok(1));
        assert_eq!(stranger.open(&path, libc::O_WRONLY).err(), Some(Errno::EACCES));
    }
}

fn a_private_namespace_hides_everything_below_it(mode: Mode) {
    let (mount, _) = kv(mode);
    let private = users_namespace(&mount, "private", 0o700);
    owned_file(&private.join("key"), 50_000, 0o666);
    let (mut owner, mut stranger) = (user(USER, USER), user(STRANGER, STRANGER));
    owner.read(&private.join("key")).expect("its owner reads it");
    assert_eq!(stranger.read(&private.join("key")), Err(Errno::EACCES));
    assert_eq!(stranger.stat(&private.join("key")), Err(Errno::EACCES));
    assert_eq!(stranger.stat(&private.join("missing")), Err(Errno::EACCES));
    assert_eq!(stranger.list(&private), Err(Errno::EACCES));
    assert_eq!(
        stranger.open(&private.join("new"), libc::O_CREAT | libc::O_WRONLY).err(),
        Some(Errno::EACCES)
    );
}

fn a_group_may_what_the_mode_gives_it(mode: Mode) {
    let (_mount, kv) = kv(mode);
    owned_file(&kv.join("key"), 50_000, 0o640);
    let mut member = user(STRANGER, GROUP);
    member.read(&kv.join("key")).expect("the group may read");
    assert_eq!(member.open(&kv.join("key"), libc::O_WRONLY).err(), Some(Errno::EACCES));
    assert_eq!(user(STRANGER, STRANGER).read(&kv.join("key")), Err(Errno::EACCES));
    fs::set_permissions(kv.join("key"), Permissions::from_mode(0o660)).expect("chmod");
    let handle = member.open(&kv.join("key"), libc::O_WRONLY).expect("now it may write");
    member.close(handle).expect("close");
}

fn a_file_belongs_to_its_creator(mode: Mode) {
    let (mount, _) = kv(mode);
    let shared = users_namespace(&mount, "shared", 0o777);
    let mut stranger = user(STRANGER, GROUP);
    stranger.publish(&shared.join("key"), 1, 50_000).expect("publish");
    stranger.mkdir(&shared.join("dir"), 0o755).expect("mkdir");
    for name in ["key", "dir"] {
        let facts = fs::metadata(shared.join(name)).expect("stat");
        assert_eq!((facts.uid(), facts.gid()), (STRANGER, GROUP), "{name}");
    }
    let found = stranger.read(&shared.join("key")).expect("read");
    assert_eq!(pattern::verify_object(&found), Ok(1));
}

fn a_directory_without_write_permission_takes_no_names(mode: Mode) {
    let (mount, _) = kv(mode);
    let closed = users_namespace(&mount, "closed", 0o755);
    owned_file(&closed.join("key"), 100, 0o666);
    let mut stranger = user(STRANGER, STRANGER);
    assert_eq!(stranger.write(&closed.join("new"), 1, 100), Err(Errno::EACCES));
    assert_eq!(stranger.mkdir(&closed.join("dir"), 0o755), Err(Errno::EACCES));
    assert_eq!(stranger.unlink(&closed.join("key")), Err(Errno::EACCES));
    assert_eq!(stranger.rename(&closed.join("key"), &closed.join("moved")), Err(Errno::EACCES));
    stranger.write(&closed.join("key"), 2, 200).expect("the file itself may be written");
    assert_eq!(pattern::verify_object(&fs::read(closed.join("key")).expect("read")), Ok(2));
    let facts = fs::metadata(closed.join("key")).expect("stat");
    assert_eq!((facts.uid(), facts.mode() & 0o7777), (USER, 0o666), "a new version keeps owner and mode");
}

fn a_shared_directory_lets_others_replace_and_unlink(mode: Mode) {
    let (mount, _) = kv(mode);
    let shared = users_namespace(&mount, "shared", 0o777);
    owned_file(&shared.join("key"), 50_000, 0o600);
    let mut stranger = user(STRANGER, STRANGER);
    stranger.publish(&shared.join("key"), 2, 60_000).expect("replacing needs the directory only");
    assert_eq!(fs::metadata(shared.join("key")).expect("stat").uid(), STRANGER);
    owned_file(&shared.join("other"), 100, 0o600);
    stranger.unlink(&shared.join("other")).expect("and so does unlink");
}

fn a_sticky_directory_protects_the_files_of_others(mode: Mode) {
    let (mount, _) = kv(mode);
    let sticky = mount.namespace("sticky");
    fs::set_permissions(&sticky, Permissions::from_mode(0o1777)).expect("chmod");
    owned_file(&sticky.join("key"), 50_000, 0o666);
    let mut stranger = user(STRANGER, STRANGER);
    assert_eq!(stranger.unlink(&sticky.join("key")), Err(Errno::EPERM));
    assert_eq!(stranger.rename(&sticky.join("key"), &sticky.join("moved")), Err(Errno::EPERM));
    assert_eq!(stranger.publish(&sticky.join("key"), 2, 100), Err(Errno::EPERM));
    user(USER, USER).unlink(&sticky.join("key")).expect("its owner may");
}

fn any_user_may_make_a_namespace_and_no_other_may_remove_it(mode: Mode) {
    let (mount, _) = kv(mode);
    let path = mount.join("mine");
    let mut owner = user(USER, USER);
    owner.mkdir(&path, 0o777).expect("any user may make a namespace");
    let mut stranger = user(STRANGER, STRANGER);
    assert_eq!(stranger.rmdir(&path), Err(Errno::EPERM));
    assert_eq!(stranger.rename(&path, &mount.join("theirs")), Err(Errno::EPERM));
    assert_eq!(fs::metadata(mount.path()).expect("stat").mode() & 0o7777, 0o1777, "the root is sticky");
    owner.rmdir(&path).expect("its owner may");
}

fn only_the_owner_changes_mode_and_only_root_the_owner(mode: Mode) {
    let (_mount, kv) = kv(mode);
    owned_file(&kv.join("key"), 100, 0o644);
    let (mut owner, mut stranger) = (user(USER, USER), user(STRANGER, STRANGER));
    assert_eq!(stranger.chmod(&kv.join("key"), 0o666), Err(Errno::EPERM));
    assert_eq!(stranger.chown(&kv.join("key"), STRANGER, STRANGER), Err(Errno::EPERM));
    owner.chmod(&kv.join("key"), 0o600).expect("its owner may change the mode");
    assert_eq!(owner.chown(&kv.join("key"), STRANGER, STRANGER), Err(Errno::EPERM));
}

fn a_set_group_id_directory_hands_its_group_down(mode: Mode) {
    let (mount, _) = kv(mode);
    let shared = users_namespace(&mount, "shared", 0o2777);
    let mut stranger = user(STRANGER, STRANGER);
    stranger.publish(&shared.join("key"), 1, 100).expect("publish");
    stranger.mkdir(&shared.join("dir"), 0o755).expect("mkdir");
    assert_eq!(fs::metadata(shared.join("key")).expect("stat").gid(), GROUP);
    let directory = fs::metadata(shared.join("dir")).expect("stat");
    assert_eq!((directory.gid(), directory.mode() & 0o7777), (GROUP, 0o2755));
}

fn policy_of_another_users_namespace_cannot_be_set(mode: Mode) {
    let (mount, _) = kv(mode);
    let theirs = users_namespace(&mount, "theirs", 0o755);
    owned_file(&theirs.join("key"), 100, 0o644);
    let mut stranger = user(STRANGER, STRANGER);
    for path in [&theirs, &theirs.join("key")] {
        let error = stranger.set_xattr(path, "user.tidefs.pin", b"hard").expect_err("not theirs");
        assert!(matches!(error, Errno::EACCES | Errno::EPERM), "{error}");
    }
    user(USER, USER).set_xattr(&theirs, "user.tidefs.pin", b"hard").expect("its owner may");
}

fn a_handle_opened_before_a_chmod_keeps_its_rights(mode: Mode) {
    let (_mount, kv) = kv(mode);
    owned_file(&kv.join("key"), 50_000, 0o644);
    let mut stranger = user(STRANGER, STRANGER);
    let handle = stranger.open(&kv.join("key"), libc::O_RDONLY).expect("open");
    fs::set_permissions(kv.join("key"), Permissions::from_mode(0o600)).expect("chmod");
    let found = stranger.read_at(handle, 0, 50_001).expect("pread");
    assert_eq!(pattern::verify_object(&found), Ok(1));
    assert_eq!(stranger.read(&kv.join("key")), Err(Errno::EACCES));
}

/// A directory in which everybody may make names, and only owners take them.
fn shared_by_all(mount: &Mount) -> PathBuf {
    users_namespace(mount, "shared", 0o1777)
}

fn a_hidden_file_of_another_user_is_not_joined(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    let path = shared_by_all(&mount).join("key");
    let (mut writer, mut stranger) = (user(USER, GROUP), user(STRANGER, STRANGER));
    let handle = writer.open_with_mode(&path, libc::O_RDWR | libc::O_CREAT, 0o600).expect("create");
    writer.write_at(handle, 0, &pattern::object(1, 100_000)).expect("write");
    assert_eq!(stranger.stat(&path).err(), Some(Errno::ENOENT));
    for flags in [libc::O_RDONLY, libc::O_RDWR, libc::O_WRONLY, libc::O_WRONLY | libc::O_TRUNC] {
        let joined = stranger.open_with_mode(&path, flags | libc::O_CREAT, 0o666);
        assert_eq!(joined.err(), Some(Errno::EACCES), "{flags:#o}");
    }
    writer.close(handle).expect("close");
    assert_eq!(pattern::verify_object(&writer.read(&path).expect("read")), Ok(1));
    // Who may open it joins.
    let open = path.with_file_name("open");
    let first = writer.open_with_mode(&open, libc::O_RDWR | libc::O_CREAT, 0o666).expect("create");
    writer.chmod(&open, 0o666).expect("chmod");
    let second = stranger.open_with_mode(&open, libc::O_RDWR | libc::O_CREAT, 0o600).expect("join");
    stranger.write_at(second, 0, &pattern::object(2, 5000)).expect("write");
    stranger.close(second).expect("close");
    writer.close(first).expect("close");
    assert_eq!(writer.stat(&open).expect("stat").user, USER);
}

/// `O_RDONLY|O_TRUNC` asks for the right to write (open(2) leaves its effect open; on Linux it cuts).
const READ_AND_CUT: i32 = libc::O_RDONLY | libc::O_TRUNC;

fn who_may_only_read_cuts_nothing_by_opening_to_read(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    let shared = users_namespace(&mount, "shared", 0o777);
    let (mut owner, mut stranger) = (user(USER, GROUP), user(STRANGER, STRANGER));
    // An object, and a file of which the kernel was told that it is not there.
    owned_file(&shared.join("sealed"), 100_000, 0o644);
    let hidden = shared.join("hidden");
    let handle = owner.open_with_mode(&hidden, libc::O_RDWR | libc::O_CREAT, 0o644).expect("create");
    owner.write_at(handle, 0, &pattern::object(1, 100_000)).expect("write");
    for name in ["sealed", "hidden"] {
        let opened = stranger.open_with_mode(&shared.join(name), READ_AND_CUT | libc::O_CREAT, 0o666);
        assert_eq!(opened.err(), Some(Errno::EACCES), "{name}");
    }
    owner.close(handle).expect("close");
    for name in ["sealed", "hidden"] {
        assert_eq!(pattern::verify_object(&owner.read(&shared.join(name)).expect("read")), Ok(1), "{name}");
    }
}

fn who_opens_to_read_and_cuts_leaves_an_empty_object(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    let shared = users_namespace(&mount, "shared", 0o777);
    for length in [100, 100_000] {
        let path = shared.join(format!("k{length}"));
        owned_file(&path, length, 0o644);
        mount.wait_until_closed([&path]);
        let mut owner = user(USER, GROUP);
        let handle = owner.open(&path, READ_AND_CUT).expect("open");
        assert_eq!(owner.read_at(handle, 0, 10).expect("read"), b"");
        owner.close(handle).expect("close");
        let mut other = Peer::spawn();
        let is_cut = crate::common::wait::until(crate::common::wait::HANG, || {
            other.stat(&path).is_ok_and(|found| found.size == 0)
        });
        assert!(is_cut, "{:?}", other.stat(&path));
        assert_eq!(other.read(&path).as_deref(), Ok(&b""[..]));
    }
}

fn a_hidden_file_of_another_user_is_not_replaced_where_only_owners_may(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    let path = shared_by_all(&mount).join("key");
    let (mut writer, mut stranger) = (user(USER, GROUP), user(STRANGER, STRANGER));
    let handle = writer.open_with_mode(&path, libc::O_WRONLY | libc::O_CREAT, 0o644).expect("create");
    writer.write_at(handle, 0, &pattern::object(1, 100_000)).expect("write");
    assert_eq!(stranger.publish(&path, 2, 5000), Err(Errno::EPERM));
    writer.close(handle).expect("close");
    assert_eq!(pattern::verify_object(&stranger.read(&path).expect("read")), Ok(1));
}

fn a_version_that_is_being_written_has_the_rights_that_were_given_meanwhile(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    let path = users_namespace(&mount, "kv", 0o777).join("key");
    owned_file(&path, 100_000, 0o666);
    mount.wait_until_closed([&path]);
    let (mut owner, mut stranger) = (user(USER, GROUP), user(STRANGER, STRANGER));
    // With a reader, so that it is not written in place.
    let reader = owner.open(&path, libc::O_RDONLY).expect("open");
    let handle = stranger.open(&path, libc::O_WRONLY).expect("it may");
    owner.chmod(&path, 0o600).expect("chmod");
    crate::common::sys::set_xattr(&path, "user.own", b"x").expect("setxattr");
    stranger.write_at(handle, 0, &pattern::object(2, 100_000)).expect("write");
    stranger.close(handle).expect("close");
    mount.wait_until_closed([&path]);
    owner.close(reader).expect("close");
    assert_eq!(pattern::verify_object(&owner.read(&path).expect("read")), Ok(2), "the new version");
    assert_eq!(owner.stat(&path).expect("stat").mode & 0o7777, 0o600);
    assert_eq!(crate::common::sys::get_xattr(&path, "user.own").as_deref(), Ok(&b"x"[..]));
    assert_eq!(stranger.read(&path), Err(Errno::EACCES));
}

fn who_may_write_a_directory_does_not_set_its_policy(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    let path = users_namespace(&mount, "kv", 0o777);
    crate::common::sys::set_xattr(&path, "user.tidefs.quota", b"1MiB").expect("root may");
    let mut stranger = user(STRANGER, STRANGER);
    for (name, value) in [("quota", "1GiB"), ("ttl", "1s"), ("scratch", "true"), ("floor", "1GiB")] {
        let name = format!("user.tidefs.{name}");
        assert_eq!(stranger.set_xattr(&path, &name, value.as_bytes()), Err(Errno::EPERM), "{name}");
    }
    let mut owner = user(USER, GROUP);
    owner.set_xattr(&path, "user.tidefs.ttl", b"1h").expect("the owner may");
    // It takes from all others.
    assert_eq!(owner.set_xattr(&path, "user.tidefs.floor", b"1MiB"), Err(Errno::EPERM));
    let own = path.join("key");
    owner.publish(&own, 1, 5000).expect("publish");
    owner.chmod(&own, 0o666).expect("chmod");
    assert_eq!(stranger.set_xattr(&own, "user.tidefs.ttl", b"1s"), Err(Errno::EPERM));
    stranger.set_xattr(&own, "user.note", b"x").expect("attributes of programs are for who may write");
}

/// What many names would take from all other users, outside of what the cache counts.
fn attributes_of_programs_are_bounded(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    let path = users_namespace(&mount, "kv", 0o777);
    let key = path.join("key");
    owned_file(&key, 100_000, 0o644);
    for node in [&key, &path] {
        let mut owner = user(USER, GROUP);
        let mut set =
            |number: usize, length| owner.set_xattr(node, &format!("user.a{number}"), &vec![7; length]);
        assert_eq!(
            (0..3).map(|number| set(number, 60_000)).collect::<Vec<_>>(),
            [Ok(()), Ok(()), Err(Errno::ENOSPC)]
        );
        set(1, 10).expect("a shorter value in place of a long one");
        let small = (10..300).take_while(|number| set(*number, 10).is_ok()).count();
        assert_eq!(small, 126, "in {}", node.display());
    }
}

fn what_others_change_loses_its_set_id_bits(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    let shared = users_namespace(&mount, "shared", 0o777);
    let path = shared.join("key");
    owned_file(&path, 100_000, 0o644);
    mount.wait_until_closed([&path]);
    let mode_of = || fs::metadata(&path).expect("stat").permissions().mode() & 0o7777;
    let give = || {
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).expect("chmod");
        assert_eq!(mode_of(), 0o6777);
    };
    let mut stranger = user(STRANGER, STRANGER);
    for flags in [libc::O_WRONLY, libc::O_WRONLY | libc::O_TRUNC, libc::O_RDWR | libc::O_APPEND] {
        give();
        let handle = stranger.open(&path, flags).expect("open");
        stranger.write_at(handle, 0, b"its own").expect("write");
        stranger.close(handle).expect("close");
        mount.wait_until_closed([&path]);
        assert_eq!(mode_of(), 0o777, "{flags:#o}");
    }
    give();
    std::os::unix::fs::chown(&path, Some(USER), Some(GROUP)).expect("chown");
    assert_eq!(mode_of(), 0o777, "after chown");
    // Where the group runs nothing the bit stands for something else, and root's writes change nothing.
    fs::set_permissions(&path, Permissions::from_mode(0o2767)).expect("chmod");
    std::os::unix::fs::chown(&path, Some(USER), Some(GROUP)).expect("chown");
    assert_eq!(mode_of(), 0o2767);
    give();
    fs::OpenOptions::new().append(true).open(&path).expect("open");
    mount.wait_until_closed([&path]);
    assert_eq!(mode_of(), 0o6777, "root may");
}

/// A program that walks by way of a link which is turned meanwhile may be sent to look up a name of one directory and look it
/// up in another one.
fn who_is_sent_to_look_again_opens_nothing_that_it_may_not_write(mode: Mode) {
    let mount = Mount::start(&mode.options(&[]));
    let place = users_namespace(&mount, "kv", 0o755);
    let (victims, own) = (place.join("victim"), place.join("own"));
    for (path, owner) in [(&victims, USER), (&own, STRANGER)] {
        fs::create_dir(path).expect("mkdir");
        std::os::unix::fs::chown(path, Some(owner), Some(owner)).expect("chown");
    }
    let links = tempfile::tempdir().expect("a directory");
    fs::set_permissions(links.path(), Permissions::from_mode(0o777)).expect("chmod");
    let link = links.path().join("way");
    std::os::unix::fs::symlink(&own, &link).expect("symlink");
    owned_file(&victims.join("f"), 100_000, 0o644);
    mount.wait_until_closed([victims.join("f")]);
    let (mut reader, mut stranger) = (user(STRANGER, STRANGER), user(STRANGER, STRANGER));
    stranger.publish(&own.join("f"), 2, 100_000).expect("publish");
    mount.wait_until_closed([own.join("f")]);
    let held = reader.open(&own.join("f"), libc::O_RDONLY).expect("open");
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let turned = links.path().join("turned");
            for to in [&victims, &own].into_iter().cycle() {
                if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                std::os::unix::fs::symlink(to, &turned).expect("symlink");
                fs::rename(&turned, &link).expect("rename");
            }
        });
        for round in 0..400 {
            if let Ok(handle) = stranger.open(&link.join("f"), libc::O_WRONLY) {
                stranger.close(handle).expect("close");
            }
            let seen = reader.stat(&victims.join("f"));
            assert!(seen.is_ok(), "it is hidden in round {round}: {seen:?}");
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    reader.close(held).expect("close");
}
