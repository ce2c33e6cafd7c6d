//! Names across hosts: what is made, replaced or removed on one is so on all when the call returns.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::common::wait;
use crate::fixture::{Hosts, object, publish};

fn listing(directory: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a listing");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

#[test]
fn a_name_that_was_absent_is_there_on_every_host_when_its_rename_returns() {
    let hosts = Hosts::start(3, &[]);
    let [a, b, c] = [0, 1, 2].map(|index| hosts.mounts[index].join("whole-0"));
    for round in 0..50_u64 {
        let name = format!("key-{round}");
        for other in [&b, &c] {
            // Twice: the second answer comes from what was remembered.
            assert!(!other.join(&name).exists() && !other.join(&name).exists());
        }
        publish(&a.join(&name), &object(round, 40_000));
        for other in [&b, &c] {
            assert_eq!(fs::metadata(other.join(&name)).expect("it is there").len(), 40_000, "{name}");
        }
    }
}

#[test]
fn a_file_written_straight_to_its_name_is_there_on_every_host_when_its_close_returns() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0"));
    for round in 0..30_u64 {
        let name = format!("key-{round}");
        assert!(!b.join(&name).exists());
        let bytes = object(round, 50_000);
        fs::write(a.join(&name), &bytes).expect("a file");
        assert_eq!(fs::read(b.join(&name)).expect("it is there"), bytes, "{name}");
    }
}

#[test]
fn what_one_host_removes_is_gone_on_all_when_unlink_returns() {
    let hosts = Hosts::start(3, &[]);
    let [a, b, c] = [0, 1, 2].map(|index| hosts.mounts[index].join("whole-1"));
    for round in 0..30_u64 {
        let name = format!("key-{round}");
        publish(&a.join(&name), &object(round, 40_000));
        assert!(fs::read(b.join(&name)).is_ok() && c.join(&name).exists());
        fs::remove_file(c.join(&name)).expect("the unlink");
        for host in [&a, &b, &c] {
            assert_eq!(fs::metadata(host.join(&name)).expect_err("it is gone").kind(), ErrorKind::NotFound);
        }
    }
}

#[test]
fn what_one_host_removes_is_gone_on_a_host_that_has_it_open_and_is_read_there_to_its_end() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0"));
    // Of a segment of its own, and packed with others.
    for (name, length) in [("large", 400_000), ("small", 500)] {
        let bytes = object(1, length);
        publish(&a.join(name), &bytes);
        for (holder, remover) in [(&a, &b), (&b, &a)] {
            publish(&a.join(name), &bytes);
            let mut open = fs::File::open(holder.join(name)).expect("open");
            fs::remove_file(remover.join(name)).expect("the unlink");
            for host in [&a, &b] {
                assert!(!host.join(name).exists(), "{name} is shown where it is open");
            }
            let mut kept = Vec::new();
            std::io::Read::read_to_end(&mut open, &mut kept).expect("read on");
            assert_eq!(kept, bytes);
        }
    }
}

#[test]
fn a_replaced_object_has_its_new_bytes_everywhere_and_its_old_ones_where_it_is_open() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0"));
    let (old, new) = (object(1, 70_000), object(2, 90_000));
    publish(&a.join("key"), &old);
    assert_eq!(fs::read(b.join("key")).expect("the old one"), old);
    let mut open = fs::File::open(a.join("key")).expect("the old one");
    publish(&b.join("key"), &new);
    assert_eq!(fs::read(a.join("key")).expect("the new one"), new);
    assert_eq!(fs::read(b.join("key")).expect("the new one"), new);
    let mut kept = Vec::new();
    std::io::Read::read_to_end(&mut open, &mut kept).expect("the old one");
    assert_eq!(kept, old);
}

#[test]
fn a_listing_shows_what_every_host_holds_once() {
    let hosts = Hosts::start(3, &[]);
    let mut expected = Vec::new();
    for (index, mount) in hosts.mounts.iter().enumerate() {
        for number in 0..200_u64 {
            let name = format!("key-{index}-{number}");
            fs::write(mount.join("whole-2").join(&name), object(number, 64)).expect("a file");
            expected.push(name);
        }
    }
    // A copy of another host's object adds no name.
    fs::read(hosts.mounts[0].join("whole-2/key-1-7")).expect("a copy");
    expected.sort();
    for mount in &hosts.mounts {
        assert_eq!(listing(&mount.join("whole-2")), expected);
    }
}

#[test]
fn a_directory_with_entries_of_another_host_is_not_removed() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0"));
    fs::create_dir(a.join("sub")).expect("a directory");
    fs::write(b.join("sub/key"), object(1, 64)).expect("a file in it");
    let refused = fs::remove_dir(a.join("sub")).expect_err("it is not empty");
    assert_eq!(refused.raw_os_error(), Some(libc::ENOTEMPTY));
    fs::remove_file(a.join("sub/key")).expect("the unlink");
    fs::remove_dir(a.join("sub")).expect("it is empty");
    assert!(!a.join("sub").exists() && !b.join("sub").exists());
}

#[test]
fn a_renamed_object_has_its_new_name_alone_everywhere() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0"));
    let bytes = object(5, 40_000);
    publish(&a.join("old"), &bytes);
    // By the host that does not hold it.
    fs::rename(b.join("old"), b.join("new")).expect("the rename");
    for host in [&a, &b] {
        assert!(!host.join("old").exists());
        assert_eq!(fs::read(host.join("new")).expect("the new name"), bytes);
    }
}

#[test]
fn two_hosts_use_one_temporary_name_at_once() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0"));
    fs::write(a.join(".key.tmp"), b"of a").expect("a temporary file");
    assert!(!b.join(".key.tmp").exists());
    fs::write(b.join(".key.tmp"), b"of b").expect("a temporary file");
    assert_eq!(fs::read(a.join(".key.tmp")).expect("its own"), b"of a");
    fs::rename(a.join(".key.tmp"), a.join("key-a")).expect("a rename");
    fs::rename(b.join(".key.tmp"), b.join("key-b")).expect("a rename");
    assert_eq!(fs::read(b.join("key-a")).expect("that of a"), b"of a");
    assert_eq!(fs::read(a.join("key-b")).expect("that of b"), b"of b");
}

#[test]
fn owner_mode_and_times_are_those_of_the_host_that_wrote_it() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0/key"));
    publish(&a, &object(1, 40_000));
    let (here, there) = (fs::metadata(&a).expect("here"), fs::metadata(&b).expect("there"));
    assert_eq!((here.mode(), here.uid(), here.gid()), (there.mode(), there.uid(), there.gid()));
    assert_eq!((here.mtime(), here.mtime_nsec()), (there.mtime(), there.mtime_nsec()));
}

/// A close that was told to the others, while a copy of the descriptor is open still.
fn closed_for_most(path: &std::path::Path, bytes: &[u8]) -> File {
    let mut file = File::create(path).expect("create");
    file.write_all(bytes).expect("write");
    let kept = file.try_clone().expect("a copy of the descriptor");
    drop(file);
    kept
}

#[test]
fn a_name_is_removed_while_its_new_version_is_closed_but_for_one_descriptor() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0"));
    for (round, remover) in [&a, &b, &a, &b].into_iter().enumerate() {
        let name = format!("key-{round}");
        publish(&a.join(&name), &object(1, 40_000));
        let kept = closed_for_most(&a.join(&name), &object(2, 50_000));
        fs::remove_file(remover.join(&name)).expect("the unlink");
        drop(kept);
        for host in [&a, &b] {
            let found = fs::metadata(host.join(&name));
            assert_eq!(found.expect_err("it is gone").kind(), ErrorKind::NotFound, "{name}");
        }
        publish(&b.join(&name), &object(3, 40_000));
        assert_eq!(fs::read(a.join(&name)).expect("both daemons go on"), object(3, 40_000));
    }
}

#[test]
fn what_was_closed_but_for_one_descriptor_does_not_hide_what_another_host_put_in_its_place() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-1"));
    for round in 0..10 {
        let name = format!("key-{round}");
        let kept = closed_for_most(&a.join(&name), &object(1, 40_000));
        assert_eq!(fs::read(b.join(&name)).ok().unwrap_or_default().len() % 40_000, 0);
        publish(&b.join(&name), &object(2, 50_000));
        drop(kept);
        for _ in 0..20 {
            assert!(fs::read(a.join(&name)).expect("the new one") == object(2, 50_000), "{name}");
        }
    }
}

/// Another host replaces or removes what stands under a name while this one writes over it: only the old version goes, and what
/// is written is the object when it is closed, on all hosts.
#[test]
fn what_is_being_written_over_a_name_is_sealed_though_another_host_replaced_or_removed_that_meanwhile() {
    let hosts = Hosts::start(3, &[]);
    let [a, b, c] = [0, 1, 2].map(|index| hosts.mounts[index].join("whole-0"));
    // What stood there is of the host that writes over it, or of the one that replaces or removes it.
    for (round, publisher) in [&a, &b, &a, &b].into_iter().enumerate() {
        let name = format!("key-{round}");
        publish(&publisher.join(&name), &object(1, 40_000));
        let mut file = File::create(a.join(&name)).expect("a new version");
        file.write_all(&object(2, 50_000)).expect("a part of its bytes");
        if round < 2 {
            publish(&b.join(&name), &object(3, 60_000));
            // Who does not write it finds that until then, as on any other host.
            let found = Command::new("cat").arg(a.join(&name)).output().expect("cat");
            assert!(found.stdout == object(3, 60_000), "{name}: {:?}", found.stderr);
        } else {
            fs::remove_file(b.join(&name)).expect("the unlink");
        }
        file.write_all(b"and the rest").expect("the rest of its bytes");
        drop(file);
        let written = [&*object(2, 50_000), b"and the rest"].concat();
        for host in [&a, &b, &c] {
            assert!(fs::read(host.join(&name)).expect("the last one") == written, "{name}");
        }
    }
    assert_eq!(hosts.metric(0, "tidefs_discarded_writes_total"), 0);
}

#[test]
fn what_another_host_publishes_is_found_by_all_but_who_is_writing_that_name_and_by_those_until_it_is_closed()
{
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-1/new"));
    let cat = || Command::new("cat").arg(&a).output().expect("cat");
    let mut file = File::create(&a).expect("a new file");
    file.write_all(&object(1, 40_000)).expect("its bytes");
    assert!(!cat().status.success(), "nobody published it");
    publish(&b, &object(2, 50_000));
    assert!(cat().stdout == object(2, 50_000));
    assert_eq!(fs::metadata(&a).expect("its own").len(), 40_000, "its writer sees what it writes");
    drop(file);
    for host in [&a, &b] {
        assert!(fs::read(host).expect("the last one") == object(1, 40_000));
    }
}

#[test]
fn a_file_is_published_when_it_is_closed_and_not_when_a_child_of_its_writer_lets_go_of_it() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0/key"));
    publish(&b, &object(1, 40_000));
    let mut file = File::create(&a).expect("a new version");
    file.write_all(&object(2, 50_000)).expect("a part of its bytes");
    // It inherits the descriptor, and closes it when it begins another program.
    assert!(Command::new("true").status().expect("true").success());
    assert!(fs::read(&b).expect("the old version") == object(1, 40_000));
    file.write_all(b"the rest").expect("the rest of its bytes");
    drop(file);
    assert_eq!(fs::metadata(&b).expect("the new version").len(), 50_008);
}

/// As a shell does that writes a file with several programs: it closes the descriptor once before it begins.
#[test]
fn what_is_written_after_a_close_of_one_descriptor_is_sealed_though_another_host_replaced_or_removed_that() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-1"));
    for (round, removes) in [false, true].into_iter().enumerate() {
        let name = format!("key-{round}");
        let mut kept = closed_for_most(&a.join(&name), &object(1, 40_000));
        publish(&b.join(&name), &object(2, 60_000));
        if removes {
            fs::remove_file(b.join(&name)).expect("the unlink");
        }
        kept.write_all(b"and more").expect("what is written since");
        drop(kept);
        let written = [&*object(1, 40_000), b"and more"].concat();
        for host in [&a, &b] {
            assert!(fs::read(host.join(&name)).expect("the last one") == written, "{name}");
        }
    }
}

#[test]
fn an_object_that_is_written_on_is_sealed_with_what_it_had_though_another_host_replaced_it_meanwhile() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-1/key"));
    publish(&a, &object(1, 40_000));
    let reader = File::open(&a).expect("so that it is not written in place");
    let mut file = fs::OpenOptions::new().append(true).open(&a).expect("a new version");
    file.write_all(b"more").expect("its bytes");
    publish(&b, &object(3, 60_000));
    drop(file);
    let written = [&*object(1, 40_000), b"more"].concat();
    for host in [&a, &b] {
        assert!(fs::read(host).expect("the last one") == written);
    }
    drop(reader);
}

#[test]
fn a_slot_file_that_takes_the_place_of_an_object_leaves_nothing_of_it_on_any_host() {
    let hosts = Hosts::start(2, &["scratch.min=16MiB"]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0/key"));
    publish(&a, &object(1, 50_000));
    assert_eq!(fs::read(&b).expect("it is there"), object(1, 50_000));
    // Who opens it to read, too, is served by the daemon, which can move it to disk.
    let slots = File::options().read(true).write(true).truncate(true).open(&a).expect("open");
    slots.set_len(16 << 20).expect("as long as a slot file");
    drop(slots);
    assert!(wait::until(wait::HANG, || !b.exists()), "the other host finds the object");
    assert_eq!(fs::metadata(&a).expect("it is of this host").len(), 16 << 20);
    fs::remove_file(&a).expect("the unlink");
    for host in [&a, &b] {
        assert_eq!(fs::metadata(host).expect_err("it is gone").kind(), ErrorKind::NotFound);
    }
}
