//! Shape (b): written straight to its final name. Nobody but its writers sees the file until the last of them let go.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::common::modes::in_both_modes;
use crate::common::pattern::{self, assert_same};
use crate::common::{Mode, Peer, wait};
use crate::fixture::{MIB, kv, offset};

in_both_modes!(
    a_file_being_written_is_absent_for_others_until_its_writer_closes,
    a_file_being_written_is_there_for_its_own_process,
    a_duplicated_descriptor_keeps_the_file_hidden_until_its_own_close,
    an_inherited_descriptor_keeps_the_file_hidden_until_its_holder_ends,
    a_writer_sees_its_file_after_it_started_another_program,
    a_killed_child_takes_nothing_that_its_parent_writes,
    a_killed_child_takes_nothing_that_a_shell_redirects,
    another_process_joins_with_o_creat_and_both_halves_are_sealed_at_the_last_close,
    who_has_closed_the_file_sees_nothing_of_what_another_goes_on_writing,
    who_has_closed_a_new_version_sees_the_old_one_until_the_others_have,
    processes_that_write_the_same_key_and_read_it_back_see_it_whole_or_not_at_all,
    another_process_with_o_excl_is_told_that_the_file_exists,
    a_hidden_file_does_not_make_its_directory_removable,
    a_file_is_visible_to_another_process_at_once_after_its_last_close,
    a_file_is_visible_at_once_although_others_were_told_that_it_is_absent,
    a_killed_writer_leaves_nothing,
    who_makes_a_file_that_he_cannot_write_leaves_it_when_he_is_killed,
    who_writes_beside_a_killed_writer_sees_its_file_until_its_close,
    a_writer_killed_after_close_leaves_its_object,
    a_writer_killed_while_rewriting_leaves_the_sealed_object,
    a_file_written_by_a_shell_redirection_is_sealed_when_the_command_ends,
    a_writer_that_exits_without_close_has_its_file_sealed,
);

/// What a process that is no writer must see of a hidden file.
#[track_caller]
fn assert_absent(other: &mut Peer, path: &Path, when: &str) {
    let name = path.file_name().expect("a name").to_string_lossy().into_owned();
    assert_eq!(other.stat(path), Err(Errno::ENOENT), "stat {when}");
    assert_eq!(other.access(path, libc::F_OK), Err(Errno::ENOENT), "access {when}");
    assert_eq!(other.open(path, libc::O_RDONLY).err(), Some(Errno::ENOENT), "open {when}");
    let names = other.list(path.parent().expect("a directory")).expect("list");
    assert!(!names.contains(&name), "readdir shows {name} {when}");
}

fn a_file_being_written_is_absent_for_others_until_its_writer_closes(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    for length in [0, 100, 40_000, 2 * MIB] {
        let path = kv.join(format!("hidden {length}"));
        let bytes = pattern::bytes(1, length);
        let mut file = File::create(&path).expect("create");
        assert_absent(&mut other, &path, "after create");
        file.write_all(&bytes).expect("write");
        assert_absent(&mut other, &path, "after write");
        file.sync_all().expect("fsync");
        assert_absent(&mut other, &path, "after fsync");
        // Also for one who asks the first time and so has nothing cached.
        assert_absent(&mut Peer::spawn(), &path, "for a fresh process");
        drop(file);
        assert_eq!(other.stat(&path).expect("stat after close").size, offset(length));
        assert_same(&other.read(&path).expect("read after close"), &bytes, "after close");
    }
}

fn a_file_being_written_is_there_for_its_own_process(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("mine");
    let bytes = pattern::bytes(2, MIB);
    let mut file = File::create(&path).expect("create");
    file.write_all(&bytes).expect("write");
    let facts = fs::metadata(&path).expect("its own process finds it");
    assert_eq!(facts.ino(), file.metadata().expect("fstat").ino());
    assert_eq!(facts.len(), offset(MIB), "stat shows what was written");
    assert_same(&fs::read(&path).expect("its own process reads it"), &bytes, "read beside the writer");
    let second = OpenOptions::new().write(true).open(&path).expect("its own process opens it for writing");
    second.write_all_at(b"second", 10).expect("write");
    drop(file);
    assert_eq!(Peer::spawn().stat(&path), Err(Errno::ENOENT), "one of its writers is still there");
    drop(second);
    let found = Peer::spawn().read(&path).expect("read");
    assert_eq!(&found[10..16], b"second");
}

fn a_duplicated_descriptor_keeps_the_file_hidden_until_its_own_close(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let path = kv.join("dup");
    let mut file = File::create(&path).expect("create");
    let twin = file.try_clone().expect("dup");
    file.write_all(b"first half, ").expect("write");
    drop(file);
    assert_absent(&mut other, &path, "after the first of two closes");
    (&twin).write_all(b"second half").expect("write");
    drop(twin);
    assert_eq!(other.read(&path).expect("read"), b"first half, second half");
}

fn an_inherited_descriptor_keeps_the_file_hidden_until_its_holder_ends(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut writer, mut other) = (Peer::spawn(), Peer::spawn());
    let path = kv.join("inherited");
    let handle = writer.open(&path, libc::O_WRONLY | libc::O_CREAT).expect("create");
    writer.write_at(handle, 0, &pattern::bytes(3, 50_000)).expect("write");
    let child = writer.fork();
    writer.close(handle).expect("close");
    assert_absent(&mut other, &path, "while a forked child holds the descriptor");
    std::thread::sleep(Duration::from_millis(50));
    assert_absent(&mut other, &path, "while a forked child holds the descriptor, later");
    writer.end_child(child);
    let visible = wait::until(wait::HANG, || other.stat(&path).is_ok());
    assert!(visible, "the file is not there after the last descriptor is gone");
    assert_same(&other.read(&path).expect("read"), &pattern::bytes(3, 50_000), "after the last descriptor");
}

fn a_writer_sees_its_file_after_it_started_another_program(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut writer, mut joined, mut other) = (Peer::spawn(), Peer::spawn(), Peer::spawn());
    let path = kv.join("forked");
    let options = libc::O_RDWR | libc::O_CREAT;
    let handles =
        [writer.open(&path, options), joined.open(&path, options)].map(|opened| opened.expect("open"));
    // What the child of a fork does with what it inherited when it starts a program, or ends.
    let child = writer.fork();
    writer.end_child(child);
    assert!(writer.stat(&path).is_ok(), "the writer does not see what it has open");
    assert_absent(&mut other, &path, "while it is open");
    writer.write_at(handles[0], 0, &pattern::bytes(6, 50_000)).expect("write");
    writer.close(handles[0]).expect("close");
    assert_absent(&mut other, &path, "while another writer has it open");
    joined.close(handles[1]).expect("close");
    assert_same(&other.read(&path).expect("read"), &pattern::bytes(6, 50_000), "after the last close");
}

fn a_killed_child_takes_nothing_that_its_parent_writes(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut writer, mut other) = (Peer::spawn(), Peer::spawn());
    let bytes = pattern::bytes(7, 50_000);
    for (name, key) in [("final", "final"), ("renamed.tmp", "renamed")] {
        let path = kv.join(name);
        let handle = writer.open(&path, libc::O_WRONLY | libc::O_CREAT).expect("create");
        writer.write_at(handle, 0, &bytes[..20_000]).expect("write");
        let child = writer.fork();
        nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).expect("a child can be killed");
        writer.end_child(child);
        writer.write_at(handle, 20_000, &bytes[20_000..]).expect("write");
        writer.close(handle).expect("close");
        if name != key {
            writer.rename(&path, &kv.join(key)).expect("rename");
        }
        assert_same(&other.read(&kv.join(key)).expect("read"), &bytes, name);
    }
}

/// A shell closes the descriptor that it opened once it has another one of it.
fn a_killed_child_takes_nothing_that_a_shell_redirects(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for name in ["final", "later.tmp"] {
        let path = kv.join(name);
        let script = format!("{{ sh -c 'kill -9 $$'; echo whole; }} > {}", path.display());
        let status = std::process::Command::new("sh").args(["-c", &script]).status().expect("a shell");
        assert!(status.success(), "{status}");
        assert_eq!(std::fs::read(&path).expect("it was closed"), b"whole\n", "{name}");
    }
}

fn another_process_joins_with_o_creat_and_both_halves_are_sealed_at_the_last_close(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut first, mut second, mut other) = (Peer::spawn(), Peer::spawn(), Peer::spawn());
    let path = kv.join("joined");
    let bytes = pattern::bytes(4, 4 * MIB);
    let (front, back) = bytes.split_at(2 * MIB);
    let a = first.open(&path, libc::O_RDWR | libc::O_CREAT).expect("create");
    let b = second.open(&path, libc::O_RDWR | libc::O_CREAT).expect("join");
    assert_eq!(
        first.stat(&path).expect("stat").inode,
        second.stat(&path).expect("a joined writer sees the file").inode,
        "one file"
    );
    for at in (0..2 * MIB).step_by(512 * 1024) {
        second.write_at(b, offset(2 * MIB + at), &back[at..at + 512 * 1024]).expect("write");
        first.write_at(a, offset(at), &front[at..at + 512 * 1024]).expect("write");
    }
    first.close(a).expect("close");
    assert_absent(&mut other, &path, "while the joined writer has it open");
    second.close(b).expect("close");
    assert_same(&other.read(&path).expect("read"), &bytes, "after the last close");
}

const TRUNCATED: i32 = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;

fn who_has_closed_the_file_sees_nothing_of_what_another_goes_on_writing(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut first, mut second) = (Peer::spawn(), Peer::spawn());
    let path = kv.join("same");
    let bytes = pattern::bytes(1, MIB);
    let of_first = first.open(&path, TRUNCATED).expect("create");
    first.write_at(of_first, 0, &bytes).expect("write");
    let of_second = second.open(&path, TRUNCATED).expect("it joins, and cuts it");
    first.close(of_first).expect("close");
    assert_absent(&mut first, &path, "for who has closed it");
    second.write_at(of_second, 0, &bytes[..MIB / 2]).expect("write");
    assert_absent(&mut first, &path, "while the other has written half of it");
    second.truncate(of_second, MIB as u64).expect("ftruncate");
    second.write_at(of_second, offset(MIB / 2), &bytes[MIB / 2..]).expect("write");
    second.close(of_second).expect("close");
    for peer in [&mut first, &mut second] {
        assert_same(&peer.read(&path).expect("read"), &bytes, "after the last close");
    }
}

fn who_has_closed_a_new_version_sees_the_old_one_until_the_others_have(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut first, mut second) = (Peer::spawn(), Peer::spawn());
    let path = kv.join("versions");
    let (old, new) = (pattern::bytes(1, MIB), pattern::bytes(2, MIB));
    fs::write(&path, &old).expect("write");
    let reader = File::open(&path).expect("somebody reads it");
    let of_first = first.open(&path, TRUNCATED).expect("open");
    let of_second = second.open(&path, TRUNCATED).expect("open");
    first.write_at(of_first, 0, &new).expect("write");
    first.close(of_first).expect("close");
    assert_same(&first.read(&path).expect("read"), &old, "while the other has it open");
    second.close(of_second).expect("close");
    assert_same(&first.read(&path).expect("read"), &new, "after the last close");
    drop(reader);
}

/// Two engines that compute the same block both publish it and read it.
fn processes_that_write_the_same_key_and_read_it_back_see_it_whole_or_not_at_all(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let bytes = pattern::bytes(1, 200_000);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut engine = Peer::spawn();
                for round in 0..400 {
                    let path = kv.join(format!("k{}", round % 3));
                    match engine.open(&path, TRUNCATED) {
                        Ok(file) => {
                            engine.write_at(file, 0, &bytes).expect("write");
                            engine.close(file).expect("close");
                        }
                        // Replaced twice within one open(2).
                        Err(error) => assert!([Errno::ESTALE, Errno::ENOENT].contains(&error), "{error}"),
                    }
                    match engine.read(&path) {
                        Ok(found) => assert_same(&found, &bytes, "what was read back"),
                        Err(error) => assert_eq!(error, Errno::ENOENT, "a read is a hit or a miss"),
                    }
                }
            });
        }
    });
}

fn another_process_with_o_excl_is_told_that_the_file_exists(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let path = kv.join("exclusive");
    let file = File::create(&path).expect("create");
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    assert_eq!(other.open(&path, flags).err(), Some(Errno::EEXIST));
    assert_eq!(
        OpenOptions::new().write(true).create_new(true).open(&path).err().map(|e| e.kind()),
        Some(std::io::ErrorKind::AlreadyExists)
    );
    assert_absent(&mut other, &path, "after the answer EEXIST");
    drop(file);
    assert_eq!(other.open(&path, flags).err(), Some(Errno::EEXIST));
    assert_eq!(other.stat(&path).expect("stat").size, 0);
}

fn a_hidden_file_does_not_make_its_directory_removable(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let directory = kv.join("dir");
    fs::create_dir(&directory).expect("mkdir");
    let mut file = File::create(directory.join("hidden")).expect("create");
    assert_eq!(other.rmdir(&directory), Err(Errno::ENOTEMPTY), "a writer's file must not lose its directory");
    file.write_all(b"bytes").expect("write");
    drop(file);
    assert_eq!(other.read(&directory.join("hidden")).expect("read"), b"bytes");
}

fn a_file_is_visible_to_another_process_at_once_after_its_last_close(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut writer, mut reader) = (Peer::spawn(), Peer::spawn());
    for round in 0..2000_u64 {
        let path = kv.join(format!("k{round}"));
        let length = if round % 8 == 0 { 70_000 } else { 600 };
        writer.write(&path, round, length).expect("write and close");
        let found = reader.read(&path).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(pattern::verify_object(&found), Ok(round));
    }
    assert_eq!(reader.list(&kv).expect("list").len(), 2000);
}

fn a_file_is_visible_at_once_although_others_were_told_that_it_is_absent(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut writer, mut reader) = (Peer::spawn(), Peer::spawn());
    for round in 0..500_u64 {
        let path = kv.join(format!("k{round}"));
        let handle = writer.open(&path, libc::O_WRONLY | libc::O_CREAT).expect("create");
        assert_eq!(reader.stat(&path), Err(Errno::ENOENT), "round {round}: while hidden");
        writer.write_at(handle, 0, &pattern::object(round, 3000)).expect("write");
        writer.close(handle).expect("close");
        let facts = reader.stat(&path).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(facts.size, 3000, "round {round}: the size is not behind");
    }
}

/// As flock(1) makes the file that it locks: another that waits for the lock has it open.
fn who_makes_a_file_that_he_cannot_write_leaves_it_when_he_is_killed(mode: Mode) {
    let (mount, kv) = kv(mode);
    for name in ["job.lock", "job"] {
        let path = kv.join(name);
        let (mut first, mut second) = (Peer::spawn(), Peer::spawn());
        first.open(&path, libc::O_RDONLY | libc::O_CREAT).expect("create");
        second.open(&path, libc::O_RDONLY | libc::O_CREAT).expect("open");
        let inode_at = || fs::metadata(&path).ok().map(|facts| facts.ino());
        let before = inode_at();
        assert_eq!(before.is_some(), name == "job.lock", "others are hidden until they are closed");
        first.kill9();
        let stat = format!("/v1/stat?path=kv/{name}");
        assert!(wait::until(wait::HANG, || mount.control_get(&stat).json()["tier"] != "writing"));
        let after = inode_at().expect("who opens it now is not to lock another one");
        assert!(before.is_none_or(|before| before == after));
    }
}

fn a_killed_writer_leaves_nothing(mode: Mode) {
    let (mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let before = mount.usage().used;
    for round in 0..20_u64 {
        let path = kv.join("key");
        let mut writer = Peer::spawn();
        let handle = writer.open(&path, libc::O_WRONLY | libc::O_CREAT).expect("create");
        writer.write_at(handle, 0, &pattern::bytes(round, 200_000)).expect("write");
        writer.kill9();
        let end = Instant::now() + Duration::from_millis(20);
        while Instant::now() < end {
            assert_absent(&mut other, &path, "after its writer was killed");
        }
    }
    let given_back = wait::until(wait::HANG, || mount.usage().used <= before);
    assert!(given_back, "the bytes of killed writers stay in use: {:?}, before {before}", mount.usage());
    other.write(&kv.join("key"), 99, 5000).expect("the name is free");
    assert_eq!(pattern::verify_object(&fs::read(kv.join("key")).expect("read")), Ok(99));
}

fn who_writes_beside_a_killed_writer_sees_its_file_until_its_close(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for name in ["key", "key.tmp"] {
        let path = kv.join(name);
        let mut killed = Peer::spawn();
        let handle = killed.open(&path, libc::O_RDWR | libc::O_CREAT).expect("create");
        killed.write_at(handle, 0, &[1; 5000]).expect("write");
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).expect("join");
        killed.kill9();
        // At once, and when the daemon has heard of the end.
        for _ in 0..50 {
            assert_eq!(file.metadata().expect("fstat").len(), 5000, "{name}");
            assert_eq!(file.seek(SeekFrom::End(0)).expect("lseek"), 5000, "{name}");
            std::thread::sleep(Duration::from_millis(2));
        }
        drop(file);
        let mut other = Peer::spawn();
        let is_gone = wait::until(wait::HANG, || other.stat(&path) == Err(Errno::ENOENT));
        assert!(is_gone, "{name} of a killed writer became an object");
    }
}

fn a_writer_killed_after_close_leaves_its_object(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for round in 0..20_u64 {
        let path = kv.join(format!("k{round}"));
        let mut writer = Peer::spawn();
        writer.write(&path, round, 100_000).expect("write and close");
        writer.kill9();
        let found = Peer::spawn().read(&path).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(pattern::verify_object(&found), Ok(round));
    }
}

fn a_writer_killed_while_rewriting_leaves_the_sealed_object(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let path = kv.join("key");
    for length in [5000, MIB] {
        Peer::spawn().write(&path, 7, length).expect("write and close");
        let mut reader = Peer::spawn();
        let open = reader.open(&path, libc::O_RDONLY).expect("open");
        let mut writer = Peer::spawn();
        let handle = writer.open(&path, libc::O_WRONLY | libc::O_TRUNC).expect("open for writing");
        writer.write_at(handle, 0, b"half of something else").expect("write");
        writer.kill9();
        let held = reader.read_at(open, 0, length + 1).expect("pread");
        assert_eq!(pattern::verify_object(&held), Ok(7), "a reader's handle");
        let found = Peer::spawn().read(&path).expect("the sealed object is still there");
        assert_eq!(pattern::verify_object(&found), Ok(7), "after the killed rewrite");
        // The end of who was killed may still be on its way: it takes nothing from who comes after.
        Peer::spawn().write(&path, 8, length).expect("write and close");
        let found = Peer::spawn().read(&path).expect("the sealed object is still there");
        assert_eq!(pattern::verify_object(&found), Ok(8), "after the next rewrite");
    }
}

fn a_file_written_by_a_shell_redirection_is_sealed_when_the_command_ends(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let source = tempfile::NamedTempFile::new().expect("a file elsewhere");
    let bytes = pattern::bytes(12, MIB + 5);
    fs::write(source.path(), &bytes).expect("write");
    for round in 0..20 {
        let path = kv.join(format!("k{round}"));
        let script = format!("cat '{}' > '{}'", source.path().display(), path.display());
        assert!(Command::new("sh").args(["-c", &script]).status().expect("sh runs").success());
        let visible = wait::until(wait::HANG, || other.stat(&path).is_ok());
        assert!(visible, "round {round}: the file of an exited command is not there");
        assert_same(&other.read(&path).expect("read"), &bytes, "written by cat");
    }
}

fn a_writer_that_exits_without_close_has_its_file_sealed(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    for round in 0..20 {
        let path = kv.join(format!("k{round}"));
        // Programs that leave closing to exit are common; only death by a signal is a failed write.
        let script = format!("exec 9> '{}'; echo some bytes >&9; exit 3", path.display());
        assert_eq!(Command::new("sh").args(["-c", &script]).status().expect("sh runs").code(), Some(3));
        let visible = wait::until(wait::HANG, || other.stat(&path).is_ok());
        assert!(visible, "round {round}: a file open at exit is not there");
        assert_eq!(other.read(&path).expect("read"), b"some bytes\n");
    }
}
