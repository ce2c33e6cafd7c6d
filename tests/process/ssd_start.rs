//! A mount is served before the objects on its disk have their names, and nothing comes back that was taken away meanwhile.
//!
//! How: the disk answers what is read for the first time, and holds what is read again. A start reads each footer once for
//! its index and again for the names, so it stays between the two for as long as a test likes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::Signal;

use super::common::Mount;
use super::common::faulty_disk::FaultyDisk;
use super::common::pattern::{assert_same, bytes};
use super::common::wait::{HANG, until, within};

const OBJECTS: u64 = 24;

fn content(number: u64) -> Vec<u8> {
    bytes(number, 40_000 + usize::try_from(number).expect("it fits") * 37)
}

/// A mount on `disk` that holds [`OBJECTS`] objects in `kv/a`, all on disk, none in memory, and whose names are held back.
fn start_without_names(disk: &FaultyDisk) -> Mount {
    let dirs = format!("ssd.dirs={}", disk.path().display());
    let options = [
        "ssd.io_uring=false",
        "capacity=64MiB",
        "ssd.capacity=256MiB",
        "ssd.zone=8MiB",
        "on_stop=discard",
        dirs.as_str(),
    ];
    let mut mount = Mount::start(&options);
    let namespace = mount.namespace("kv/a");
    for number in 0..OBJECTS {
        let path = namespace.join(format!("object{number}"));
        fs::write(path.with_extension("tmp"), content(number)).expect("write");
        fs::rename(path.with_extension("tmp"), &path).expect("rename");
    }
    mount.wait_until_closed((0..OBJECTS).map(|number| namespace.join(format!("object{number}"))));
    let evicted = mount.control("POST", "/v1/evict", Some(r#"{"bytes":67108864}"#));
    assert_eq!(evicted.status, 200, "{}", evicted.text());
    // The footer is written, and memory given up.
    assert!(mount.stop().success());
    disk.set(|faults| faults.holds_repeated_reads = true);
    mount.start_daemon();
    assert_eq!(listed(&namespace), 0, "the names are held back");
    mount
}

fn listed(directory: &Path) -> usize {
    fs::read_dir(directory).expect("readdir").count()
}

fn naming(mount: &Mount) -> serde_json::Value {
    mount.control_get("/v1/status").json()["ssd"]["naming"].clone()
}

fn let_go(disk: &FaultyDisk, mount: &Mount) {
    disk.set(|faults| faults.holds_repeated_reads = false);
    assert!(until(HANG, || naming(mount).is_null()), "names are missing: {}", naming(mount));
}

/// Kills the daemon before it can do anything with the answers that its disk holds back.
fn kill(disk: &FaultyDisk, mount: &mut Mount) {
    mount.signal(Signal::SIGKILL);
    // It dies when its reads are answered.
    disk.set(|faults| faults.holds_repeated_reads = false);
    mount.kill9();
}

/// Kills the daemon and takes its memory away, as a power cut does, then starts it on a sound disk.
fn lose_power(disk: &FaultyDisk, mount: &mut Mount) {
    let memory = mount.instance_dir().join("memory");
    kill(disk, mount);
    umount2(&memory, MntFlags::MNT_DETACH).expect("umount of the memory");
    mount.start_daemon();
    assert!(until(HANG, || naming(mount).is_null()), "names are missing: {}", naming(mount));
}

#[test]
fn what_is_looked_up_is_found_before_its_turn_and_the_rest_is_listed_when_it_comes() {
    let disk = FaultyDisk::new();
    let mount = start_without_names(&disk);
    let namespace = mount.join("kv/a");
    assert_eq!(naming(&mount)["objects"], OBJECTS);
    assert_eq!(naming(&mount)["named"], 0);
    // What is new is served at once, though the disk answers nobody who lists it.
    fs::write(namespace.join("new"), b"new").expect("write");
    assert_eq!(fs::read(namespace.join("new")).expect("read"), b"new");
    assert!(!namespace.join("absent").exists());
    for number in [3, 17] {
        let path = namespace.join(format!("object{number}"));
        assert_eq!(fs::metadata(&path).expect("stat").len(), content(number).len() as u64);
        assert_same(&fs::read(&path).expect("read"), &content(number), "an object without its name");
    }
    assert_eq!(listed(&namespace), 3);
    let_go(&disk, &mount);
    assert_eq!(listed(&namespace) as u64, OBJECTS + 1);
    for number in 0..OBJECTS {
        let found = fs::read(namespace.join(format!("object{number}"))).expect("read");
        assert_same(&found, &content(number), "an object with its name");
    }
}

#[test]
fn until_a_daemon_that_starts_again_mounts_programs_meet_the_dead_mount_and_write_nothing_below_it() {
    let disk = FaultyDisk::new();
    let mut mount = start_without_names(&disk);
    let_go(&disk, &mount);
    mount.kill9();
    disk.set(|faults| faults.holds_reads = true);
    let object = mount.join("kv/a/object0");
    std::thread::scope(|scope| {
        let written = scope.spawn(|| {
            let waits = until(HANG, || disk.held() > 0);
            let written = fs::write(&object, b"lost");
            disk.set(|faults| faults.holds_reads = false);
            assert!(waits, "the start reads its disk");
            written
        });
        // On this thread: a daemon ends with the thread that started it.
        mount.start_daemon();
        let error = written.join().expect("it tries").expect_err("nobody serves it");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    });
    assert_same(&fs::read(&object).expect("read"), &content(0), "what stood there");
}

/// Removes the first object, renames the second, and replaces the third by `new`.
fn change_the_first_three(namespace: &Path) {
    let object = |number: u64| namespace.join(format!("object{number}"));
    fs::remove_file(object(0)).expect("unlink");
    fs::rename(object(1), namespace.join("renamed")).expect("rename");
    fs::write(namespace.join("two.tmp"), b"new").expect("write");
    fs::rename(namespace.join("two.tmp"), object(2)).expect("rename over");
}

#[test]
fn what_is_removed_renamed_or_replaced_before_it_has_its_name_stays_so_after_names_came_and_after_a_crash() {
    let disk = FaultyDisk::new();
    let mut mount = start_without_names(&disk);
    let namespace = mount.join("kv/a");
    let object = |number: u64| namespace.join(format!("object{number}"));
    change_the_first_three(&namespace);
    fs::write(object(3), b"rewritten").expect("rewrite");
    fs::rename(object(4), object(5)).expect("rename over another");
    let check = |when: &str| {
        assert!([0, 1, 4].iter().all(|&number| !object(number).exists()), "{when}: something came back");
        assert_eq!(fs::read(object(2)).expect("read"), b"new", "{when}");
        assert_eq!(fs::read(object(3)).expect("read"), b"rewritten", "{when}");
        assert_same(&fs::read(object(5)).expect("read"), &content(4), when);
        assert_same(&fs::read(namespace.join("renamed")).expect("read"), &content(1), when);
        assert_same(&fs::read(object(6)).expect("read"), &content(6), when);
    };
    check("before");
    kill(&disk, &mut mount);
    disk.set(|faults| faults.holds_repeated_reads = true);
    // Killed before any name came, it starts again without them.
    mount.start_daemon();
    check("after a kill");
    let_go(&disk, &mount);
    check("with all names");
    assert_eq!(listed(&namespace) as u64, OBJECTS - 2);
}

#[test]
fn after_a_power_cut_nothing_older_comes_back_than_what_was_removed_or_replaced_without_its_name() {
    let disk = FaultyDisk::new();
    let mut mount = start_without_names(&disk);
    let namespace = mount.join("kv/a");
    let object = |number: u64| namespace.join(format!("object{number}"));
    change_the_first_three(&namespace);
    lose_power(&disk, &mut mount);
    // What was new was in memory alone. What was there before it must not be there again.
    assert!([0, 1, 2].iter().all(|&number| !object(number).exists()), "something came back");
    assert_eq!(listed(&namespace) as u64, OBJECTS - 3);
}

#[test]
fn a_directory_is_not_removed_before_it_is_known_what_is_in_it() {
    let disk = FaultyDisk::new();
    let mount = start_without_names(&disk);
    let namespace = mount.join("kv/a");
    let own = mount.join("kv/b");
    fs::create_dir(&own).expect("mkdir");
    fs::remove_dir(&own).expect("rmdir of a directory of this life");
    let waits = namespace.clone();
    assert!(
        within(Duration::from_millis(300), move || fs::remove_dir(waits)).is_none(),
        "rmdir does not wait"
    );
    let_go(&disk, &mount);
    let error = fs::remove_dir(&namespace).expect_err("it is not empty");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTEMPTY), "{error}");
    assert_eq!(listed(&namespace) as u64, OBJECTS);
}
