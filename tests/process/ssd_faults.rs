//! Disks that fail, fill up, turn read-only, or are slow, under a mount: each costs hits, says what it is, and the mount
//! serves on.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};

use super::common::Mount;
use super::common::faulty_disk::FaultyDisk;
use super::common::pattern::{assert_same, bytes};
use super::common::sys::set_xattr;
use super::common::wait::{HANG, until};

const MIB: usize = 1 << 20;
/// More than two zones hold.
const OBJECTS: u64 = 20;

fn content(number: u64) -> Vec<u8> {
    bytes(number, MIB + usize::try_from(number).expect("it fits") * 37)
}

fn mount_on(place: &Path, more: &[&str]) -> Mount {
    let dirs = format!("ssd.dirs={}", place.display());
    let mut options = vec!["capacity=64MiB", "ssd.zone=8MiB", "ssd.prefetch_objects=0", dirs.as_str()];
    options.extend(more);
    Mount::start(&options)
}

/// A mount on a faulty disk. What fails says so at once, and a machine that stands still is no late disk.
fn mount_on_faulty(disk: &FaultyDisk) -> Mount {
    mount_on_late(disk, "ssd.deadline_ms=60000")
}

/// The same, whose requests may take as long as `deadline` says.
fn mount_on_late(disk: &FaultyDisk, deadline: &str) -> Mount {
    let options = ["ssd.capacity=256MiB", "ssd.io_uring=false", "ssd.queue_ms=60000", deadline];
    mount_on(disk.path(), &options)
}

fn write(namespace: &Path, number: u64) {
    let path = namespace.join(format!("object{number}"));
    fs::write(path.with_extension("tmp"), content(number)).expect("write");
    fs::rename(path.with_extension("tmp"), &path).expect("rename");
}

fn evict(mount: &Mount) {
    let evicted = mount.control("POST", "/v1/evict", Some(r#"{"bytes":67108864}"#));
    assert_eq!(evicted.status, 200, "{}", evicted.text());
}

/// Objects on disk, and none in memory.
fn write_and_evict(mount: &Mount, namespace: &Path) {
    (0..OBJECTS).for_each(|number| write(namespace, number));
    mount.wait_until_closed((0..OBJECTS).map(|number| namespace.join(format!("object{number}"))));
    evict(mount);
    let records = mount.control_get("/v1/status").json()["ssd"]["records"].as_u64().expect("a number");
    assert!(records >= OBJECTS, "{records} records");
}

/// A faulty disk that holds the objects, faultless so far, its mount, and where they are.
fn faulty_disk_with_objects() -> (FaultyDisk, Mount, PathBuf) {
    let disk = FaultyDisk::new();
    let mount = mount_on_faulty(&disk);
    let namespace = mount.namespace("kv");
    write_and_evict(&mount, &namespace);
    (disk, mount, namespace)
}

fn device(mount: &Mount) -> serde_json::Value {
    mount.control_get("/v1/status").json()["ssd"]["devices"][0].clone()
}

fn state_is(mount: &Mount, wanted: &str) {
    assert!(until(HANG, || device(mount)["state"] == wanted), "{wanted} is not {}", device(mount));
    let status = mount.control_get("/v1/status").json();
    let warnings = status["warnings"].as_array().expect("a list").iter();
    assert!(
        warnings.filter_map(|warning| warning.as_str()).any(|warning| warning.contains(wanted)),
        "{status}"
    );
}

fn found(namespace: &Path, numbers: impl Iterator<Item = u64>) -> u64 {
    let mut count = 0;
    for number in numbers {
        match fs::read(namespace.join(format!("object{number}"))) {
            Ok(found) => {
                assert_same(&found, &content(number), "an object that is there");
                count += 1;
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}: not a miss"),
        }
    }
    count
}

/// New objects are written and read, whatever the disk is.
fn serves(mount: &Mount, namespace: &Path) {
    for number in 1000..1100 {
        write(namespace, number);
        assert_same(
            &fs::read(namespace.join(format!("object{number}"))).expect("read"),
            &content(number),
            "new",
        );
    }
    let usage = mount.usage();
    assert!(usage.used <= usage.capacity, "{usage:?}");
}

#[test]
fn a_block_that_cannot_be_read_costs_its_zone_and_nothing_else() {
    let (disk, mount, namespace) = faulty_disk_with_objects();
    // In the middle of the first zone, which begins at 1 MiB.
    disk.set(|faults| faults.bad = 4 << 20..(4 << 20) + 4096);
    let left = found(&namespace, 0..OBJECTS);
    assert!((OBJECTS - 8..OBJECTS).contains(&left), "{left} of {OBJECTS} objects are left");
    state_is(&mount, "damaged");
    let device = device(&mount);
    assert_eq!((&device["quarantined_zones"], &device["read_errors"]), (&1.into(), &1.into()), "{device}");
    serves(&mount, &namespace);
}

#[test]
fn a_disk_whose_writes_fail_gets_no_more_and_what_it_holds_is_read() {
    let (disk, mount, namespace) = faulty_disk_with_objects();
    disk.set(|faults| faults.write_error = Some(libc::EIO));
    serves(&mount, &namespace);
    evict(&mount);
    state_is(&mount, "failing");
    let left = found(&namespace, 0..OBJECTS);
    // The zone that was being written is given up, and those opened in vain.
    assert!(left >= OBJECTS / 2, "{left} of {OBJECTS} objects are left");
    serves(&mount, &namespace);
}

#[test]
fn a_disk_that_turns_read_only_says_so_and_what_it_holds_is_read() {
    let (disk, mount, namespace) = faulty_disk_with_objects();
    disk.set(|faults| faults.write_error = Some(libc::EROFS));
    serves(&mount, &namespace);
    evict(&mount);
    state_is(&mount, "read_only");
    let left = found(&namespace, 0..OBJECTS);
    assert!(left >= OBJECTS / 2, "{left} of {OBJECTS} objects are left");
    serves(&mount, &namespace);
}

#[test]
fn a_disk_that_fills_up_is_used_as_far_as_it_goes() {
    let (disk, mount, namespace) = faulty_disk_with_objects();
    // Somebody else took what was left of it.
    disk.set(|faults| faults.room = 48 << 20);
    for number in 100..160 {
        write(&namespace, number);
        if number % 10 == 0 {
            evict(&mount);
        }
    }
    evict(&mount);
    state_is(&mount, "full");
    let left = found(&namespace, (0..OBJECTS).chain(100..160));
    // Of 5 zones two are kept free and one takes records; each holds 7 objects.
    assert!((10..40).contains(&left), "{left} objects are left");
    serves(&mount, &namespace);
}

#[test]
fn a_disk_that_answers_too_late_is_a_miss_in_time_and_a_hit_when_it_is_fast_again() {
    let disk = FaultyDisk::new();
    let mount = mount_on_late(&disk, "ssd.deadline_ms=4000");
    let namespace = mount.namespace("kv");
    write_and_evict(&mount, &namespace);
    write(&namespace, 500);
    disk.set(|faults| faults.holds_reads = true);
    assert_eq!(found(&namespace, 0..1), 0);
    assert!(disk.held() > 0, "the open waited for the disk");
    assert_eq!(found(&namespace, 500..501), 1, "an object in memory");
    state_is(&mount, "slow");
    disk.set(|faults| faults.holds_reads = false);
    assert!(until(HANG, || found(&namespace, 0..1) == 1), "it is not asked any more");
    assert_eq!(found(&namespace, 0..OBJECTS), OBJECTS, "nothing was lost");
    serves(&mount, &namespace);
}

#[test]
fn what_is_cut_to_nothing_is_not_read_from_its_disk_first() {
    let disk = FaultyDisk::new();
    let mount = mount_on_late(&disk, "ssd.deadline_ms=4000");
    let namespace = mount.namespace("kv");
    write_and_evict(&mount, &namespace);
    let [rewritten, cut] = ["object0", "object1"].map(|name| namespace.join(name));
    disk.set(|faults| faults.holds_reads = true);
    fs::write(&rewritten, b"another").expect("its disk is late");
    nix::unistd::truncate(&cut, 0).expect("its disk is late");
    assert_eq!(disk.held(), 0, "the disk is read");
    mount.wait_until_closed([&rewritten, &cut]);
    assert_eq!(fs::read(&rewritten).expect("read"), b"another");
    assert_eq!(fs::metadata(&cut).expect("stat").len(), 0);
    disk.set(|faults| faults.holds_reads = false);
    assert_eq!(found(&namespace, 2..OBJECTS), OBJECTS - 2);
}

/// What its record on disk allows would be allowed again after a restart.
#[test]
fn the_mode_of_an_object_whose_disk_is_late_is_not_changed_and_chmod_says_so() {
    let disk = FaultyDisk::new();
    let mut mount = mount_on_late(&disk, "ssd.deadline_ms=4000");
    let namespace = mount.namespace("kv");
    write_and_evict(&mount, &namespace);
    let object = namespace.join("object0");
    let mode = |object: &Path| fs::metadata(object).expect("it is known").permissions().mode() & 0o777;
    let chmod = |mode: u32| fs::set_permissions(&object, fs::Permissions::from_mode(mode));
    let before = mode(&object);
    disk.set(|faults| faults.holds_reads = true);
    let refused = chmod(0o600).expect_err("it cannot be brought back");
    assert_eq!((refused.raw_os_error(), mode(&object)), (Some(libc::ENOENT), before));
    disk.set(|faults| faults.holds_reads = false);
    assert!(until(HANG, || chmod(0o600).is_ok()), "the disk is not asked any more");
    mount.kill9();
    mount.restart();
    assert_eq!(mode(&namespace.join("object0")), 0o600);
}

#[test]
fn a_verification_calls_nothing_corrupt_that_its_disk_is_late_with() {
    let disk = FaultyDisk::new();
    let mount = mount_on_late(&disk, "ssd.deadline_ms=4000");
    let namespace = mount.namespace("kv");
    write_and_evict(&mount, &namespace);
    disk.set(|faults| faults.holds_reads = true);
    let lines = mount.control("POST", "/v1/verify", Some(r#"{"tier":"ssd","path":"kv/object0"}"#)).text();
    disk.set(|faults| faults.holds_reads = false);
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().expect("a line")).expect("JSON");
    let counts = ["checked", "corrupt", "unreadable"].map(|name| last[name].as_u64());
    assert_eq!(counts, [Some(0), Some(0), Some(1)], "{lines}");
    assert!(until(HANG, || found(&namespace, 0..1) == 1), "it is not asked any more");
    assert_eq!(found(&namespace, 0..OBJECTS), OBJECTS, "nothing was lost");
}

#[test]
fn opens_on_a_disk_that_hangs_are_misses_in_time_and_take_memory_once() {
    let disk = FaultyDisk::new();
    let options = [
        "ssd.capacity=256MiB",
        "ssd.io_uring=false",
        "ssd.queue_ms=60000",
        "ssd.deadline_ms=4000",
        "ssd.loads=4",
    ];
    let mount = mount_on(disk.path(), &options);
    let namespace = mount.namespace("kv");
    write_and_evict(&mount, &namespace);
    disk.set(|faults| faults.holds_reads = true);
    // By themselves the loads of one round take five deadlines.
    let open_all = || {
        std::thread::scope(|scope| {
            for number in 0..OBJECTS {
                let namespace = &namespace;
                scope.spawn(move || assert_eq!(found(namespace, number..number + 1), 0));
            }
        });
    };
    let started = Instant::now();
    open_all();
    let before = mount.free_memory();
    (0..4).for_each(|_| open_all());
    assert!(started.elapsed() < HANG, "{:?}", started.elapsed());
    let free = mount.free_memory();
    assert!(free + (4 << 20) >= before, "{free} bytes are free, {before} after the first round");
    state_is(&mount, "slow");
    disk.set(|faults| faults.holds_reads = false);
    assert!(until(HANG, || found(&namespace, 0..1) == 1), "it is not asked any more");
    assert_eq!(found(&namespace, 0..OBJECTS), OBJECTS, "nothing was lost");
}

/// Of 64 MiB a quarter is kept free for writers, and half of that is time for the disk: what has no copy is not dropped
/// before.
#[test]
fn while_a_disk_writes_nothing_is_dropped_for_room_that_nobody_needs_at_once() {
    let disk = FaultyDisk::new();
    let options =
        ["ssd.capacity=256MiB", "ssd.io_uring=false", "ssd.deadline_ms=60000", "ssd.queue_max=1MiB"];
    let mount = mount_on(disk.path(), &options);
    let namespace = mount.namespace("kv");
    write_and_evict(&mount, &namespace);
    disk.set(|faults| faults.holds_writes = true);
    let without_a_copy = 100..145;
    without_a_copy.clone().for_each(|number| write(&namespace, number));
    assert!(until(HANG, || disk.held() > 0), "copies are made of what leaves next");
    let _writer = fs::File::create(namespace.join("writer.tmp")).expect("create");
    assert_eq!(found(&namespace, 0..8), 8, "read from disk");
    let free = || mount.free_memory();
    let before = free();
    assert!((8 << 20..16 << 20).contains(&before), "{before} bytes are free");
    // The thread that keeps room for writers looks some two thousand times in a second.
    std::thread::sleep(Duration::from_millis(200));
    disk.set(|faults| faults.holds_writes = false);
    assert_eq!(found(&namespace, without_a_copy.clone()), 45, "nothing was dropped");
    assert!(until(HANG, || free() >= 16 << 20), "room was made when the disk wrote");
    assert_eq!(found(&namespace, 0..OBJECTS), OBJECTS);
    assert_eq!(found(&namespace, without_a_copy), 45);
}

/// A loop device over a file, detached with the value.
struct LoopDevice {
    path: std::path::PathBuf,
    _file: tempfile::NamedTempFile,
}

impl LoopDevice {
    fn new(bytes: u64) -> Self {
        let file = tempfile::Builder::new().prefix("tidefs-loop").tempfile_in("/var/tmp").expect("a file");
        file.as_file().set_len(bytes).expect("truncate");
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file.path()).output();
        let output = output.expect("losetup starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "no loop device: {}", String::from_utf8_lossy(&output.stderr));
        Self { path: text.trim().into(), _file: file }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

#[test]
fn a_block_device_is_used_whole_and_found_again() {
    let device = LoopDevice::new(128 << 20);
    let mut mount = mount_on(&device.path, &["on_stop=discard"]);
    let namespace = mount.namespace("kv");
    write_and_evict(&mount, &namespace);
    let status = self::device(&mount);
    assert_eq!(status["state"], "ready", "{status}");
    let capacity = status["capacity"].as_u64().expect("a number");
    assert!((100 << 20..=128 << 20).contains(&capacity), "{status}");
    mount.restart();
    assert_eq!(found(&namespace, 0..OBJECTS), OBJECTS);
}

/// One of two disks takes no writes: what is to be durable goes to the other one, whatever stood on the first.
#[test]
fn a_disk_that_fails_costs_no_durability_while_another_takes_everything() {
    let disks = [FaultyDisk::new(), FaultyDisk::new()];
    let dirs = format!("ssd.dirs={}:{}", disks[0].path().display(), disks[1].path().display());
    let options = ["ssd.capacity=512MiB", "ssd.io_uring=false", "ssd.deadline_ms=60000", dirs.as_str()];
    let mount = Mount::start(&[&["capacity=64MiB", "ssd.zone=8MiB"][..], &options[..]].concat());
    let namespace = mount.namespace("kv");
    set_xattr(&namespace, "user.tidefs.durability", b"ssd").expect("setxattr");
    for number in 0..6 {
        fs::create_dir(namespace.join(format!("below{number}"))).expect("mkdir");
    }
    disks[1].set(|faults| faults.write_error = Some(libc::EIO));
    for number in 0..6 {
        let below = namespace.join(format!("below{number}"));
        write(&below, number);
        let path = below.join(format!("object{number}"));
        File::open(&path).and_then(|file| file.sync_all()).expect("fsync");
    }
    disks[0].set(|faults| faults.write_error = Some(libc::EIO));
    let last = namespace.join("below0");
    write(&last, 7);
    let synced = File::open(last.join("object7")).and_then(|file| file.sync_all());
    assert_eq!(synced.expect_err("no disk takes it").raw_os_error(), Some(libc::EIO));
}

#[test]
fn a_directory_that_no_disk_took_at_first_is_found_with_what_is_below_it_by_a_host_that_lost_its_memory() {
    let disk = FaultyDisk::new();
    let mut mount = mount_on_faulty(&disk);
    let namespace = mount.namespace("kv");
    write_and_evict(&mount, &namespace);
    let errors = |mount: &Mount| device(mount)["write_errors"].as_u64().expect("a number");
    disk.set(|faults| faults.write_error = Some(libc::EIO));
    let below = namespace.join("below");
    fs::create_dir(&below).expect("mkdir");
    assert!(until(HANG, || errors(&mount) > 0), "its record was not written");
    disk.set(|faults| faults.write_error = None);
    write(&below, 77);
    mount.wait_until_closed([below.join("object77")]);
    evict(&mount);
    // Every object that is left, and the three directories: what was refused is sent again within seconds.
    let records = || mount.control_get("/v1/status").json()["ssd"]["records"].as_u64().expect("a number");
    let listed = |directory: &Path| fs::read_dir(directory).expect("a listing").count() as u64;
    let wanted = || listed(&namespace) + listed(&below) + 2;
    assert!(until(HANG, || records() == wanted()), "{} records, not {}", records(), wanted());
    let memory = mount.instance_dir().join("memory");
    mount.kill9();
    umount2(&memory, MntFlags::MNT_DETACH).expect("umount of the memory");
    mount.start_daemon();
    assert_same(&fs::read(below.join("object77")).expect("read"), &content(77), "below a directory");
}

/// Of two disks the first hangs, with more reads and then with more writes than a disk may have under way: those of the other
/// are in time, and what stands there is found by the next start, but for what was removed meanwhile.
fn a_disk_that_hangs_and_another(io_uring: &str) {
    const DEADLINE: Duration = Duration::from_secs(4);
    let disks = [FaultyDisk::new(), FaultyDisk::new()];
    let dirs = format!("ssd.dirs={}:{}", disks[0].path().display(), disks[1].path().display());
    let tier = ["ssd.capacity=512MiB", "ssd.zone=8MiB", "ssd.queue_ms=60000", "ssd.prefetch_objects=0"];
    // Half of the queue, at a MiB for each, are more than the threads of a disk, or of the kernel for a ring.
    let queue = "ssd.queue_max=20MiB";
    let more = ["capacity=64MiB", "ssd.deadline_ms=4000", queue, "on_stop=discard", io_uring, dirs.as_str()];
    let mut mount = Mount::start(&[&tier[..], &more[..]].concat());
    let namespace = mount.namespace("kv");
    write_and_evict(&mount, &namespace);
    let second = |mount: &Mount| mount.control_get("/v1/status").json()["ssd"]["devices"][1].clone();

    disks[0].set(|faults| faults.holds_reads = true);
    std::thread::scope(|scope| {
        for number in 0..OBJECTS {
            let namespace = &namespace;
            scope.spawn(move || found(namespace, number..number + 1));
        }
    });
    let on_second: Vec<u64> =
        (0..OBJECTS).filter(|number| found(&namespace, *number..number + 1) == 1).collect();
    assert!(on_second.len() > 2 && on_second.len() < 18, "{on_second:?} are not on the disk that hangs");
    let all_found = |numbers: &[u64]| found(&namespace, numbers.iter().copied()) == numbers.len() as u64;
    let started = Instant::now();
    while started.elapsed() < DEADLINE * 2 {
        evict(&mount);
        assert!(all_found(&on_second), "{}", second(&mount));
    }
    assert_eq!(second(&mount)["state"], "ready", "{}", second(&mount));
    state_is(&mount, "slow");
    disks[0].set(|faults| faults.holds_reads = false);
    assert!(until(HANG, || found(&namespace, 0..OBJECTS) == OBJECTS), "something was lost");

    disks[0].set(|faults| faults.holds_writes = true);
    serves(&mount, &namespace);
    let (removed, kept) = on_second.split_first().expect("there are some");
    fs::remove_file(namespace.join(format!("object{removed}"))).expect("unlink");
    let started = Instant::now();
    for number in 2000.. {
        write(&namespace, number);
        std::thread::sleep(Duration::from_millis(200));
        if started.elapsed() > DEADLINE * 3 {
            break;
        }
    }
    let status = second(&mount);
    assert_eq!((&status["state"], &status["write_errors"]), (&"ready".into(), &0.into()), "{status}");
    disks[0].set(|faults| faults.holds_writes = false);
    mount.restart();
    assert!(until(HANG, || all_found(kept)), "{}", second(&mount));
    assert_eq!(found(&namespace, std::iter::once(*removed)), 0);
}

#[test]
fn a_disk_that_hangs_takes_nothing_from_another() {
    a_disk_that_hangs_and_another("ssd.io_uring=false");
}

#[test]
fn a_disk_that_hangs_takes_nothing_from_another_by_io_uring_either() {
    a_disk_that_hangs_and_another("ssd.io_uring=true");
}
