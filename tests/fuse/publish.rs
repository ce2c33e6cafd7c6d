//! Shape (a): a temporary name, then rename. Rename is the moment of truth, also while the writer goes on.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};

use nix::errno::Errno;

use crate::common::modes::in_both_modes;
use crate::common::pattern::{self, assert_same};
use crate::common::sys::{Mapping, checksum_of};
use crate::common::{Mode, Peer};
use crate::fixture::{MIB, kv, offset};

in_both_modes!(
    the_new_name_is_whole_when_rename_returns_with_the_writer_still_open,
    writes_after_the_rename_are_in_the_object_once_the_writer_closed,
    growth_after_the_rename_is_in_the_object_once_the_writer_closed,
    the_version_changes_when_a_writer_kept_open_writes_after_the_rename,
    a_closed_temporary_file_can_be_reopened_and_filled_before_the_rename,
    a_temporary_file_reopened_once_per_layer_is_published_with_every_layer,
    a_mapping_filled_after_close_is_whole_at_the_rename,
    a_file_sized_first_written_renamed_and_then_closed_keeps_its_mode,
    a_rename_to_another_directory_publishes,
    a_rename_succeeds_while_another_descriptor_appends,
    a_rename_publishes_after_others_were_told_that_the_name_is_absent,
    the_temporary_name_is_gone_for_everyone_after_the_rename,
    a_killed_writer_leaves_no_temporary_file,
    a_temporary_file_shows_itself_while_it_is_written_and_its_key_does_not,
    a_writer_killed_after_the_rename_leaves_what_it_renamed,
    every_publish_of_two_thousand_is_whole_for_another_process_at_once,
);

fn the_new_name_is_whole_when_rename_returns_with_the_writer_still_open(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    for length in [0, 1, 4096, 32 * 1024 - 1, 32 * 1024, 40_000, MIB, 5 * MIB + 1] {
        let (temporary, name) = (kv.join(format!("{length}.tmp")), kv.join(length.to_string()));
        let bytes = pattern::bytes(offset(length), length);
        let mut file = File::create(&temporary).expect("create");
        file.write_all(&bytes).expect("write");
        assert_eq!(other.stat(&name), Err(Errno::ENOENT), "{length}: before the rename");
        fs::rename(&temporary, &name).expect("rename");
        assert_eq!(other.stat(&name).expect("stat after rename").size, offset(length));
        assert_same(&other.read(&name).expect("read after rename"), &bytes, "while the writer has it open");
        drop(file);
        assert_same(&other.read(&name).expect("read after close"), &bytes, "after the writer closed it");
    }
}

fn a_rename_succeeds_while_another_descriptor_appends(mode: Mode) {
    let (_mount, kv) = kv(mode);
    for round in 0..50 {
        let (temporary, name) = (kv.join(format!("{round}.tmp")), kv.join(round.to_string()));
        fs::write(&temporary, [1; 100]).expect("write");
        let mut other = OpenOptions::new().append(true).open(&temporary).expect("open");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..16 {
                    other.write_all(&[2; 64 * 1024]).expect("append");
                }
            });
            fs::rename(&temporary, &name).expect("rename");
            fs::set_permissions(&name, fs::Permissions::from_mode(0o640)).expect("chmod");
        });
        assert_eq!(fs::metadata(&name).expect("stat").len(), 100 + offset(MIB), "round {round}");
    }
}

fn writes_after_the_rename_are_in_the_object_once_the_writer_closed(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    for length in [10_000, 3 * MIB] {
        let (temporary, name) = (kv.join("a.tmp"), kv.join("a"));
        let mut expected = pattern::bytes(1, length);
        let file = File::create(&temporary).expect("create");
        file.write_all_at(&expected, 0).expect("write");
        fs::rename(&temporary, &name).expect("rename");
        assert_same(&other.read(&name).expect("read"), &expected, "at the rename");
        let late = pattern::bytes(2, 5000);
        file.write_all_at(&late, 4000).expect("a kept descriptor can still write");
        expected[4000..9000].copy_from_slice(&late);
        drop(file);
        assert_same(&other.read(&name).expect("read"), &expected, "after close");
    }
}

fn growth_after_the_rename_is_in_the_object_once_the_writer_closed(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let (temporary, name) = (kv.join("a.tmp"), kv.join("a"));
    let bytes = pattern::bytes(3, 2 * MIB + 7);
    let mut file = File::create(&temporary).expect("create");
    file.write_all(&bytes[..1000]).expect("write");
    fs::rename(&temporary, &name).expect("rename");
    assert_eq!(other.stat(&name).expect("stat").size, 1000);
    file.write_all(&bytes[1000..]).expect("write");
    drop(file);
    assert_eq!(other.stat(&name).expect("stat").size, offset(bytes.len()));
    assert_same(&other.read(&name).expect("read"), &bytes, "after close");
}

fn the_version_changes_when_a_writer_kept_open_writes_after_the_rename(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (temporary, name) = (kv.join("a.tmp"), kv.join("a"));
    for round in 0..2_u64 {
        let file = File::create(&temporary).expect("create");
        file.write_all_at(&pattern::bytes(round, MIB), 0).expect("write");
        fs::rename(&temporary, &name).expect("rename");
        file.write_all_at(&pattern::bytes(round + 10, 4096), 0).expect("write");
        drop(file);
        let first = checksum_of(&name);
        // The same bytes written in one go must have the same checksum: it was taken after the last write.
        let again = kv.join("again");
        let expected = fs::read(&name).expect("read");
        fs::write(&again, &expected).expect("write");
        assert_eq!(first, checksum_of(&again), "the checksum is that of the final bytes");
    }
}

fn a_closed_temporary_file_can_be_reopened_and_filled_before_the_rename(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let (temporary, name) = (kv.join("key.tmp0000"), kv.join("key"));
    let (head, body) = (pattern::bytes(4, 4096), pattern::bytes(5, 3 * MIB));
    fs::write(&temporary, &head).expect("write the header and close");
    let file = OpenOptions::new().read(true).write(true).open(&temporary).expect("reopen");
    file.set_len(offset(head.len() + body.len())).expect("ftruncate");
    file.write_all_at(&body, 4096).expect("write the body");
    drop(file);
    fs::rename(&temporary, &name).expect("rename");
    assert_same(&other.read(&name).expect("read"), &[head, body].concat(), "published");
}

fn a_temporary_file_reopened_once_per_layer_is_published_with_every_layer(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let (temporary, name) = (kv.join("block.tmp"), kv.join("block"));
    let bytes = pattern::bytes(6, 16 * 40_960);
    for layer in [3, 0, 1, 15, 2, 4, 5, 7, 6, 8, 9, 10, 12, 11, 13, 14] {
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).open(&temporary).expect("open");
        file.write_all_at(&bytes[layer * 40_960..][..40_960], offset(layer * 40_960)).expect("pwrite");
    }
    fs::rename(&temporary, &name).expect("rename");
    assert_same(&other.read(&name).expect("read"), &bytes, "published");
}

fn a_mapping_filled_after_close_is_whole_at_the_rename(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    for (round, length) in [4096 + 5000, 4096 + 2 * MIB].into_iter().enumerate() {
        let (temporary, name) = (kv.join(format!("{round}.tmp")), kv.join(round.to_string()));
        let bytes = pattern::bytes(7, length);
        fs::write(&temporary, &bytes[..4096]).expect("write the header");
        let file = OpenOptions::new().read(true).write(true).open(&temporary).expect("reopen");
        file.set_len(offset(length)).expect("ftruncate");
        let mapping = Mapping::shared_writable(&file, length).expect("mmap");
        drop(file);
        mapping.write(4096, &bytes[4096..]);
        // LMCache unmaps before the rename; a client that renames first must be served as well.
        let mapping = (round == 1).then_some(mapping);
        fs::rename(&temporary, &name).expect("rename");
        assert_same(&other.read(&name).expect("read"), &bytes, "at the rename");
        drop(mapping);
        assert_same(&other.read(&name).expect("read"), &bytes, "after munmap");
        let copy = kv.join("copy");
        fs::write(&copy, &bytes).expect("write");
        assert_eq!(checksum_of(&name), checksum_of(&copy), "the checksum covers what the mapping stored");
    }
}

fn a_file_sized_first_written_renamed_and_then_closed_keeps_its_mode(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let (temporary, name) = (kv.join(".tmpAbCdEf"), kv.join("layer.safetensors"));
    let bytes = pattern::bytes(8, MIB + 83);
    let mut options = OpenOptions::new();
    let mut file =
        options.read(true).write(true).create_new(true).mode(0o600).open(&temporary).expect("create");
    file.set_len(offset(bytes.len())).expect("ftruncate");
    file.write_all(&bytes).expect("write");
    fs::rename(&temporary, &name).expect("rename");
    drop(file);
    let facts = other.stat(&name).expect("stat");
    assert_eq!((facts.size, facts.mode & 0o7777), (offset(bytes.len()), 0o600));
    assert_same(&other.read(&name).expect("read"), &bytes, "published");
}

fn a_rename_to_another_directory_publishes(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    fs::create_dir_all(kv.join("tmp")).expect("mkdir");
    fs::create_dir_all(kv.join("ab/cd")).expect("mkdir");
    let (temporary, name) = (kv.join("tmp/x"), kv.join("ab/cd/x"));
    let bytes = pattern::bytes(9, 300_000);
    let mut file = File::create(&temporary).expect("create");
    file.write_all(&bytes).expect("write");
    fs::rename(&temporary, &name).expect("rename");
    assert_same(&other.read(&name).expect("read"), &bytes, "published");
    assert_eq!(other.list(&kv.join("tmp")).expect("list"), Vec::<String>::new());
    assert_eq!(other.list(&kv.join("ab/cd")).expect("list"), ["x"]);
}

fn a_rename_publishes_after_others_were_told_that_the_name_is_absent(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    for round in 0..200_u64 {
        let name = kv.join(format!("k{round}"));
        assert_eq!(other.stat(&name), Err(Errno::ENOENT));
        assert_eq!(other.access(&name, libc::F_OK), Err(Errno::ENOENT));
        crate::fixture::publish_object(&name, round, 5000);
        other.access(&name, libc::F_OK).unwrap_or_else(|error| panic!("round {round}: access says {error}"));
        assert_eq!(other.stat(&name).expect("stat").size, 5000);
    }
}

fn the_temporary_name_is_gone_for_everyone_after_the_rename(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let mut other = Peer::spawn();
    let (temporary, name) = (kv.join("a.tmp"), kv.join("a"));
    fs::write(&temporary, b"closed before the rename").expect("write");
    other.stat(&temporary).expect("a closed file is there under its temporary name");
    fs::rename(&temporary, &name).expect("rename");
    assert_eq!(other.stat(&temporary), Err(Errno::ENOENT));
    assert_eq!(fs::metadata(&temporary).err().and_then(|error| error.raw_os_error()), Some(libc::ENOENT));
    assert_eq!(other.list(&kv).expect("list"), ["a"]);
}

fn a_killed_writer_leaves_no_temporary_file(mode: Mode) {
    let (mount, kv) = kv(mode);
    let before = mount.usage().used;
    for round in 0..20 {
        let temporary = kv.join(format!("{round}.tmp"));
        let mut writer = Peer::spawn();
        let handle = writer.open(&temporary, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL).expect("create");
        writer.write_at(handle, 0, &pattern::bytes(round, MIB)).expect("write");
        writer.kill9();
        assert_eq!(Peer::spawn().stat(&temporary), Err(Errno::ENOENT), "round {round}");
    }
    assert_eq!(crate::common::sys::sorted_names(&kv), Vec::<String>::new());
    let given_back = crate::common::wait::until(crate::common::wait::HANG, || mount.usage().used <= before);
    assert!(given_back, "the bytes of killed writers stay in use: {:?}, before {before}", mount.usage());
}

fn a_writer_killed_after_the_rename_leaves_what_it_renamed(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (temporary, name) = (kv.join("a.tmp"), kv.join("a"));
    let bytes = pattern::bytes(11, MIB);
    let mut writer = Peer::spawn();
    let handle = writer.open(&temporary, libc::O_RDWR | libc::O_CREAT).expect("create");
    writer.write_at(handle, 0, &bytes).expect("write");
    writer.rename(&temporary, &name).expect("rename");
    writer.kill9();
    assert_same(&Peer::spawn().read(&name).expect("read"), &bytes, "after the writer was killed");
}

fn every_publish_of_two_thousand_is_whole_for_another_process_at_once(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut writer, mut reader) = (Peer::spawn(), Peer::spawn());
    for round in 0..2000_u64 {
        let name = kv.join(format!("k{}", round % 50));
        let length = if round % 10 == 0 { 100_000 } else { 1000 };
        writer.publish(&name, round, length).expect("publish");
        let found = reader.read(&name).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(pattern::verify_object(&found), Ok(round));
    }
}

fn a_temporary_file_shows_itself_while_it_is_written_and_its_key_does_not(mode: Mode) {
    let (_mount, kv) = kv(mode);
    let (mut writer, mut other) = (Peer::spawn(), Peer::spawn());
    let (temporary, name) = (kv.join("a.tmp"), kv.join("a"));
    let bytes = pattern::bytes(12, MIB);
    let handle = writer.open(&temporary, libc::O_WRONLY | libc::O_CREAT).expect("create");
    assert_eq!(other.stat(&temporary).expect("stat").size, 0);
    writer.write_at(handle, 0, &bytes[..1000]).expect("write");
    assert_eq!(other.stat(&temporary).expect("stat").size, 1000);
    writer.write_at(handle, 1000, &bytes[1000..]).expect("write");
    assert_eq!(other.stat(&temporary).expect("stat").size, offset(MIB));
    assert_same(&other.read(&temporary).expect("read"), &bytes, "the temporary file");
    assert_eq!(other.stat(&name), Err(Errno::ENOENT), "the key before the rename");
    other.rename(&temporary, &name).expect("rename by another process");
    assert_same(&other.read(&name).expect("read"), &bytes, "published");
    assert_eq!(other.stat(&temporary), Err(Errno::ENOENT), "the temporary name after the rename");
}
