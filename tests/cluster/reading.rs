//! Bytes across hosts: whole, checked, and kept.

use std::fs;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::thread;

use nix::errno::Errno;

use crate::common::sys::failures_of_flags;
use crate::common::wait;
use crate::fixture::{Hosts, object, publish};

#[test]
fn an_object_of_any_size_is_read_on_another_host_with_all_its_bytes() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0"));
    for (seed, size) in
        [(1, 16), (2, 4096), (3, 32_767), (4, 32_768), (5, 65_537), (6, 1 << 20), (7, (4 << 20) + 1)]
    {
        let name = format!("key-{size}");
        publish(&a.join(&name), &object(seed, size));
        assert_eq!(fs::read(b.join(&name)).expect("its bytes"), object(seed, size), "{size} bytes");
    }
    fs::write(a.join("empty"), b"").expect("an empty file");
    assert_eq!(fs::read(b.join("empty")).expect("no bytes"), b"");
}

#[test]
fn what_was_fetched_is_mapped_and_read_at_any_place() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0/key"));
    let bytes = object(9, 3 << 20);
    publish(&a, &bytes);
    let mut file = fs::File::open(&b).expect("the object");
    file.seek(SeekFrom::Start(1_234_567)).expect("a seek");
    let mut part = vec![0; 4567];
    file.read_exact(&mut part).expect("a part");
    assert_eq!(part, bytes[1_234_567..1_234_567 + 4567]);
    // SAFETY: the object is sealed, so nobody changes it while it is mapped.
    let map = unsafe { memmap2::Mmap::map(&file) }.expect("a mapping");
    assert_eq!(&map[..], &bytes[..]);
}

/// The kernel opens it for that once more, and looks up nothing.
#[test]
fn who_has_an_object_open_is_told_the_same_of_its_flags_when_its_name_is_gone() {
    let hosts = Hosts::start(1, &[]);
    let key = hosts.mounts[0].join("whole-0/key");
    for (length, is_replaced) in [(300, false), (300, true), (2 << 20, false), (2 << 20, true)] {
        publish(&key, &object(1, length));
        let file = fs::File::open(&key).expect("the object");
        if is_replaced {
            publish(&key, &object(2, length));
        } else {
            fs::remove_file(&key).expect("the unlink");
        }
        for (ioctl, refused) in failures_of_flags(&file) {
            assert_eq!(refused, Some(Errno::ENOTTY), "{ioctl} of {length} bytes, replaced: {is_replaced}");
        }
    }
}

#[test]
fn many_readers_of_one_object_share_one_fetch() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0/key"));
    let bytes = object(9, 8 << 20);
    publish(&a, &bytes);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert_eq!(fs::read(&b).expect("the object"), bytes));
        }
    });
    // Counted a moment after its bytes are there.
    assert_eq!(hosts.metric_at_rest(1, "tidefs_remote_fetches_total", 1), 1);
}

#[test]
fn what_is_lent_to_another_host_is_no_open() {
    let hosts = Hosts::start(2, &[]);
    let [a, b] = [0, 1].map(|index| hosts.mounts[index].join("whole-0/key"));
    publish(&a, &object(9, 2 << 20));
    let opens =
        || ["tidefs_direct_opens_total", "tidefs_passthrough_opens_total"].map(|name| hosts.metric(0, name));
    let before = opens();
    assert_eq!(fs::read(&b).expect("the object"), object(9, 2 << 20));
    assert!(hosts.metric(0, "tidefs_remote_lends_total") > 0);
    assert_eq!(opens(), before);
}

#[test]
fn a_copy_outlives_the_host_that_wrote_it() {
    let mut hosts = Hosts::start(3, &[]);
    let name = "whole-0/key";
    let bytes = object(3, 2 << 20);
    publish(&hosts.mounts[0].join(name), &bytes);
    assert_eq!(fs::read(hosts.mounts[1].join(name)).expect("a copy"), bytes);
    hosts.mounts[0].kill9();
    assert_eq!(fs::read(hosts.mounts[1].join(name)).expect("the copy"), bytes);
    // Perhaps only who died had heard of the copy: its holder says it again.
    let there = hosts.mounts[2].join(name);
    assert!(
        wait::until(wait::HANG, || fs::read(&there).is_ok_and(|found| found == bytes)),
        "a copy of the copy"
    );
}

/// The catalog keeps what a dead host holds for as long as that may come back. To the others it is a miss, which they fill.
#[test]
fn what_a_dead_host_holds_is_written_anew_by_others_in_any_way() {
    let mut hosts = Hosts::start(3, &["cluster.grace_s=600"]);
    let name = |number: u64| format!("whole-0/{number}");
    for number in 0..90 {
        publish(&hosts.mounts[0].join(name(number)), &object(number, 100_000));
        assert!(hosts.mounts[1].join(name(number)).exists());
    }
    hosts.mounts[0].kill9();
    for number in 0..90 {
        let writer = 1 + usize::try_from(number).expect("small") % 2;
        let path = hosts.mounts[writer].join(name(number));
        let bytes = object(number + 1000, 60_000);
        let written = match number % 3 {
            0 => {
                let found = fs::read(&path).map(|bytes| bytes.len());
                assert_eq!(found.expect_err("nobody has its bytes").kind(), ErrorKind::NotFound);
                fs::write(&path, &bytes)
            }
            1 => fs::write(&path, &bytes),
            _ => fs::File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .and_then(|mut file| file.write_all(&bytes)),
        };
        written.unwrap_or_else(|error| panic!("{number} cannot be written: {error}"));
        for reader in [1, 2] {
            let found = fs::read(hosts.mounts[reader].join(name(number)));
            assert!(found.expect("what was written") == bytes, "{number} on host {reader}");
        }
    }
}

#[test]
fn objects_of_many_hosts_are_read_by_many_at_once() {
    let hosts = Hosts::start(3, &[]);
    thread::scope(|scope| {
        for (index, mount) in hosts.mounts.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..40_u64 {
                    let size = 10_000 + usize::try_from(number).expect("small") * 5000;
                    publish(&mount.join(format!("whole-0/{index}-{number}")), &object(number, size));
                }
            });
        }
    });
    thread::scope(|scope| {
        for mount in &hosts.mounts {
            scope.spawn(move || {
                for index in 0..3 {
                    for number in 0..40_u64 {
                        let size = 10_000 + usize::try_from(number).expect("small") * 5000;
                        let found = fs::read(mount.join(format!("whole-0/{index}-{number}")));
                        assert_eq!(found.expect("it is there"), object(number, size), "{index}-{number}");
                    }
                }
            });
        }
    });
}

#[test]
fn an_object_whose_writer_keeps_it_open_is_a_miss_elsewhere_until_it_is_closed() {
    let hosts = Hosts::start(2, &[]);
    let [here, there] = [0, 1].map(|index| hosts.mounts[index].join("whole-0/key"));
    let bytes = object(5, 200_000);
    let temporary = here.with_extension("tmp");
    let mut file = fs::File::create(&temporary).expect("a temporary file");
    file.write_all(&bytes).expect("its bytes");
    fs::rename(&temporary, &here).expect("the rename");
    // Longer than a reader waits for a writer's close.
    assert_eq!(fs::read(&there).expect_err("it may still change").kind(), ErrorKind::NotFound);
    drop(file);
    assert!(wait::until(wait::HANG, || fs::read(&there).is_ok_and(|found| found == bytes)));
}

#[test]
fn hosts_that_read_an_object_on_the_disk_of_another_at_once_share_one_load_of_it() {
    const OBJECT: usize = 8 << 20;
    let disk =
        tempfile::Builder::new().prefix("tidefs-ssd").tempdir_in("/var/tmp").expect("a directory on a disk");
    let hosts = Hosts::start_each(3, &["capacity=64MiB"], |host| match host {
        0 => vec![
            "ssd.capacity=512MiB".to_owned(),
            "ssd.zone=16MiB".to_owned(),
            format!("ssd.dirs={}", disk.path().display()),
        ],
        _ => Vec::new(),
    });
    for round in 0..8 {
        let name = format!("whole-0/key-{round}");
        publish(&hosts.mounts[0].join(&name), &object(round, OBJECT));
        let is_on_disk = || {
            let mount = &hosts.mounts[0];
            mount.control("POST", "/v1/evict", Some("{\"bytes\":67108864}"));
            mount.control_get(&format!("/v1/stat?path={name}")).json()["tier"] == "ssd"
        };
        assert!(wait::until(wait::HANG, is_on_disk), "{name} stays in memory");
        thread::scope(|scope| {
            for host in [1, 2] {
                let path = hosts.mounts[host].join(&name);
                scope.spawn(move || assert_eq!(fs::read(path).expect("the object"), object(round, OBJECT)));
            }
        });
    }
    assert_eq!(hosts.metric(0, "tidefs_ssd_promotion_misses_total"), 0);
    // Counted a moment after the object is in memory.
    assert_eq!(hosts.metric_at_rest(0, "tidefs_ssd_promotions_total", 8), 8);
}
