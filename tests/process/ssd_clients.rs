//! The client library on a mount with disks.

use std::fs;
use std::sync::Barrier;
use std::thread;

use nix::mount::{MntFlags, umount2};
use tidefs_client::{Cache, Pin};

use super::common::modes::in_fast_modes;
use super::common::pattern::assert_same;
use super::common::sys::{get_xattr_text, set_xattr};
use super::common::{Mode, Mount};
use super::ssd::{content, counter, disk, mount_on, tier_of};

in_fast_modes!(what_is_stored_in_a_durable_directory_survives_the_loss_of_memory);

/// Kills the daemon and takes its memory away, as a power cut does.
fn lose_memory(mount: &mut Mount) {
    let memory = mount.instance_dir().join("memory");
    mount.kill9();
    umount2(&memory, MntFlags::MNT_DETACH).expect("umount of the memory");
    mount.start_daemon();
}

fn what_is_stored_in_a_durable_directory_survives_the_loss_of_memory(mode: Mode) {
    let disk = disk();
    let mut mount = mount_on(mode, disk.path(), &[]);
    let namespace = mount.namespace("kv");
    set_xattr(&namespace, "user.tidefs.durability", b"ssd").expect("setxattr");
    let cache = Cache::open(&namespace).expect("open");
    assert_eq!(cache.is_fast(), mode == Mode::Passthrough);
    let objects: Vec<(String, Vec<u8>)> =
        (0..8).map(|number| (format!("object{number}"), content(number))).collect();
    let batch: Vec<(&str, &[u8])> = objects.iter().map(|(key, bytes)| (&**key, &**bytes)).collect();
    cache.put_many(&batch).expect("put");
    let mut writer = cache.create("begun", content(8).len()).expect("create");
    writer.copy_from_slice(&content(8));
    writer.seal().expect("seal");
    drop(cache);
    assert_eq!(counter(&mount, "tidefs_ssd_durability_failures_total"), 0);
    fs::write(namespace.join("not durable"), content(9)).expect("write");
    lose_memory(&mut mount);
    for (key, bytes) in &objects {
        assert_same(&fs::read(namespace.join(key)).expect("read"), bytes, key);
    }
    assert_same(&fs::read(namespace.join("begun")).expect("read"), &content(8), "what was begun");
    assert!(!namespace.join("not durable").exists(), "memory was not lost: this shows nothing");
}

#[test]
fn what_is_pinned_on_disk_comes_into_memory_and_stays_pinned_after_a_kill() {
    let disk = disk();
    let mut mount = mount_on(Mode::Passthrough, disk.path(), &[]);
    let namespace = mount.namespace("kv");
    let pinned = ["client", "operator"].map(|name| namespace.join(name));
    for (path, number) in pinned.iter().zip(1..) {
        fs::write(path, content(number)).expect("write");
    }
    mount.wait_until_closed(&pinned);
    let evicted = mount.control("POST", "/v1/evict", Some(r#"{"bytes":67108864}"#));
    assert_eq!(evicted.status, 200, "{}", evicted.text());
    assert!(pinned.iter().all(|path| tier_of(path) == "ssd"));
    let cache = Cache::open(&namespace).expect("open");
    assert!(cache.pin("client", Pin::Hard).expect("pin"));
    let answer = mount.control("POST", "/v1/pin", Some(r#"{"path":"kv/operator","pin":"hard"}"#));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(pinned.iter().all(|path| tier_of(path) == "memory"));
    drop(cache);
    mount.kill9();
    mount.restart();
    for path in &pinned {
        assert_eq!(get_xattr_text(path, "user.tidefs.pin"), "hard", "{}", path.display());
    }
}

#[test]
fn pins_of_one_object_on_disk_that_come_at_once_all_hold() {
    let disk = disk();
    let mount = mount_on(Mode::Passthrough, disk.path(), &[]);
    let namespace = mount.namespace("kv");
    for number in 0..8 {
        let path = namespace.join(format!("wanted{number}"));
        fs::write(&path, content(number)).expect("write");
        mount.wait_until_closed([&path]);
        let evicted = mount.control("POST", "/v1/evict", Some(r#"{"bytes":67108864}"#));
        assert_eq!(evicted.status, 200, "{}", evicted.text());
        assert_eq!(tier_of(&path), "ssd", "nothing is to be loaded: {}", evicted.text());
        let all_are_there = Barrier::new(6);
        let request = format!(r#"{{"path":"kv/wanted{number}","pin":"soft"}}"#);
        let pin = || {
            all_are_there.wait();
            mount.control("POST", "/v1/pin", Some(&request))
        };
        let answers: Vec<_> = thread::scope(|scope| {
            let pinning: Vec<_> = (0..6).map(|_| scope.spawn(pin)).collect();
            pinning.into_iter().map(|one| one.join().expect("a thread that pins")).collect()
        });
        for answer in &answers {
            assert_eq!(answer.status, 200, "of load {number}: {}", answer.text());
        }
        assert_same(&fs::read(&path).expect("read"), &content(number), "what is pinned");
    }
}
