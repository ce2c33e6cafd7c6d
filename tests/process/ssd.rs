//! What leaves memory comes back from disk: while the daemon runs, after it was killed, and when its memory is gone.
//!
//! How: a mount of 64 MiB with a directory for the SSD tier; each writer waits for the room that the tier makes ahead of
//! it, so that nothing is dropped for want of time.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use super::common::modes::in_both_modes;
use super::common::pattern::{assert_same, bytes};
use super::common::small_disk::SmallDisk;
use super::common::sys::{get_xattr_text, set_xattr};
use super::common::wait::{HANG, until};
use super::common::{Mode, Mount, kernel};

const MIB: usize = 1 << 20;
const MODE: Mode = Mode::Passthrough;
/// More than memory holds.
const OBJECTS: u64 = 120;

/// A mount with an SSD tier in `disk`.
pub(super) fn mount_on(mode: Mode, disk: &Path, more: &[&str]) -> Mount {
    let dirs = format!("ssd.dirs={}", disk.display());
    let mut options =
        vec!["capacity=64MiB", "ssd.capacity=512MiB", "ssd.zone=8MiB", "on_stop=keep", dirs.as_str()];
    // On a loaded machine nothing is dropped because its disk is late.
    options.push("ssd.queue_ms=60000");
    options.extend(more);
    Mount::start(&mode.options(&options))
}

pub(super) fn disk() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("tidefs-ssd").tempdir_in("/var/tmp").expect("a directory on a disk")
}

/// Waits for the room that is kept ahead of writers.
pub(super) fn wait_for_room(mount: &Mount) {
    assert!(until(HANG, || mount.free_memory() >= 18 << 20), "no room was made ahead of the writer");
}

fn length(number: u64) -> usize {
    // Solo objects of odd lengths, and some that are packed.
    if number % 10 == 9 { 5000 } else { MIB + usize::try_from(number).unwrap() * 37 }
}

pub(super) fn content(number: u64) -> Vec<u8> {
    bytes(number, length(number))
}

fn write_all(mount: &Mount, namespace: &Path) {
    for number in 0..OBJECTS {
        let path = namespace.join(format!("object{number}"));
        fs::write(path.with_extension("tmp"), content(number)).expect("write");
        fs::rename(path.with_extension("tmp"), &path).expect("rename");
        wait_for_room(mount);
    }
}

fn check_all(mount: &Mount, namespace: &Path) {
    for number in 0..OBJECTS {
        let path = namespace.join(format!("object{number}"));
        let length = fs::metadata(&path).map(|metadata| metadata.len());
        let why = || mount.control_get(&format!("/v1/why?path=kv/object{number}")).text();
        let length = length.unwrap_or_else(|error| panic!("object{number}: {error}: {}", why()));
        assert_eq!(length, content(number).len() as u64);
        let found = fs::read(&path).unwrap_or_else(|error| panic!("read of {}: {error}", path.display()));
        assert_same(&found, &content(number), &path.display().to_string());
        wait_for_room(mount);
    }
}

pub(super) fn tier_of(path: &Path) -> String {
    get_xattr_text(path, "user.tidefs.tier")
}

fn twice_as_much_as_memory_holds_is_read_back_and_survives_a_kill(mode: Mode) {
    let disk = disk();
    let mut mount = mount_on(mode, disk.path(), &[]);
    let namespace = mount.namespace("kv");
    write_all(&mount, &namespace);
    assert_eq!(fs::read_dir(&namespace).expect("readdir").count() as u64, OBJECTS);
    assert_eq!(tier_of(&namespace.join("object0")), "ssd");
    check_all(&mount, &namespace);
    let status = mount.control_get("/v1/status").json();
    assert_eq!(status["ssd"]["devices"][0]["state"], "ready", "{status}");
    assert!(status["ssd"]["records"].as_u64().expect("a number") > OBJECTS / 3, "{status}");
    mount.kill9();
    mount.restart();
    check_all(&mount, &namespace);
    assert!(mount.stop().success());
}

#[test]
fn a_host_that_lost_its_memory_finds_what_was_on_disk_with_its_folders() {
    let disk = disk();
    let mut mount = mount_on(MODE, disk.path(), &["on_stop=discard"]);
    let namespace = mount.namespace("kv");
    fs::create_dir_all(namespace.join("a/b")).expect("mkdir");
    write_all(&mount, &namespace);
    let deep = namespace.join("a/b/deep");
    fs::write(&deep, content(1)).expect("write");
    fs::set_permissions(&deep, Permissions::from_mode(0o640)).expect("chmod");
    let objects = (0..OBJECTS).map(|number| namespace.join(format!("object{number}")));
    mount.wait_until_closed(objects.filter(|path| path.exists()).chain([deep.clone()]));
    let evicted = mount.control("POST", "/v1/evict", Some(r#"{"bytes":67108864}"#));
    assert_eq!(evicted.status, 200, "{}", evicted.text());
    let lost = (0..OBJECTS).find(|number| !namespace.join(format!("object{number}")).exists());
    assert_eq!(lost, None, "an object was lost before the stop");
    // A clean stop with `discard` gives up all memory, as a reboot does.
    assert!(mount.stop().success());
    mount.restart();
    assert_same(&fs::read(&deep).expect("read"), &content(1), "the deep object");
    assert_eq!(fs::metadata(&deep).expect("stat").permissions().mode() & 0o777, 0o640);
    check_all(&mount, &namespace);
}

#[test]
fn no_object_comes_back_from_disk_without_what_programs_attached_to_it() {
    let disk = disk();
    let mut mount = mount_on(MODE, disk.path(), &[]);
    let namespace = mount.namespace("kv");
    let [plain, own] = ["plain", "own"].map(|name| namespace.join(name));
    for path in [&plain, &own] {
        fs::write(path, content(1)).expect("write");
    }
    mount.wait_until_closed([&plain, &own]);
    set_xattr(&own, "user.own", b"x").expect("setxattr");
    mount.kill9();
    mount.restart();
    let evicted = mount.control("POST", "/v1/evict", Some(r#"{"bytes":67108864}"#));
    assert_eq!(evicted.status, 200, "{}", evicted.text());
    assert_eq!(tier_of(&plain), "ssd");
    assert!(!own.exists(), "it is on no disk");
}

#[test]
fn a_rename_in_a_durable_directory_survives_the_loss_of_memory() {
    let disk = disk();
    let mut mount = mount_on(MODE, disk.path(), &[]);
    let namespace = mount.namespace("kv");
    set_xattr(&namespace, "user.tidefs.durability", b"ssd").expect("setxattr");
    for number in 0..8_u64 {
        let path = namespace.join(format!("object{number}"));
        fs::write(path.with_extension("tmp"), content(number)).expect("write");
        fs::rename(path.with_extension("tmp"), &path).expect("rename");
        assert_ne!(tier_of(&path), "ssd", "it is in memory too");
    }
    let written = namespace.join("written in place");
    fs::write(&written, content(8)).expect("write");
    mount.wait_until_closed([&written]);
    File::open(&written).and_then(|file| file.sync_all()).expect("fsync");
    fs::write(namespace.join("not durable"), content(9)).expect("write");
    // Killed, and its memory is taken away, as by a power cut.
    let memory = mount.instance_dir().join("memory");
    mount.kill9();
    nix::mount::umount2(&memory, nix::mount::MntFlags::MNT_DETACH).expect("umount of the memory");
    mount.start_daemon();
    for number in 0..8_u64 {
        let found = fs::read(namespace.join(format!("object{number}"))).expect("read");
        assert_same(&found, &content(number), "a durable object");
    }
    assert_same(&fs::read(&written).expect("read"), &content(8), "an object after fsync");
    assert_eq!(get_xattr_text(&namespace, "user.tidefs.durability"), "ssd");
    assert!(!namespace.join("not durable").exists(), "memory was not lost: this shows nothing");
}

#[test]
fn what_is_deleted_renamed_or_replaced_on_disk_stays_so_after_a_kill() {
    let disk = disk();
    let mut mount = mount_on(MODE, disk.path(), &[]);
    let namespace = mount.namespace("kv");
    write_all(&mount, &namespace);
    let object = |number: u64| namespace.join(format!("object{number}"));
    assert!((0..4).all(|number| tier_of(&object(number)) == "ssd"));
    fs::remove_file(object(0)).expect("unlink");
    fs::rename(object(1), namespace.join("renamed")).expect("rename");
    fs::write(object(2), b"new").expect("replace");
    fs::set_permissions(object(3), Permissions::from_mode(0o600)).expect("chmod");
    mount.kill9();
    mount.restart();
    assert!(!object(0).exists() && !object(1).exists());
    let why = || mount.control_get("/v1/why?path=kv/renamed").text();
    let renamed = fs::read(namespace.join("renamed")).unwrap_or_else(|error| panic!("{error}: {}", why()));
    assert_same(&renamed, &content(1), "the renamed object");
    assert_eq!(fs::read(object(2)).expect("read"), b"new");
    assert_eq!(fs::metadata(object(3)).expect("stat").permissions().mode() & 0o777, 0o600);
    assert_same(&fs::read(object(3)).expect("read"), &content(3), "the object with another mode");
}

#[test]
fn many_readers_of_one_object_on_disk_share_one_load_and_others_are_served_meanwhile() {
    let disk = disk();
    // Loads ahead of their use are counted too.
    let mount = mount_on(MODE, disk.path(), &["ssd.prefetch_objects=0"]);
    let namespace = mount.namespace("kv");
    write_all(&mount, &namespace);
    std::thread::scope(|scope| {
        for reader in 0..16_u64 {
            let namespace = &namespace;
            scope.spawn(move || {
                let shared = namespace.join("object1");
                assert_same(&fs::read(&shared).expect("read"), &content(1), "the shared object");
                let own = namespace.join(format!("object{}", 10 + reader));
                let file = File::open(&own).expect("open");
                let mut found = vec![0; length(10 + reader)];
                file.read_exact_at(&mut found, 0).expect("read");
                assert_same(&found, &content(10 + reader), "an object of its own");
            });
        }
    });
    let metrics = mount.control_get("/v1/metrics").text();
    let promotions: u64 = metrics
        .lines()
        .find_map(|line| line.strip_prefix("tidefs_ssd_promotions_total "))
        .and_then(|value| value.trim().parse().ok())
        .expect("the counter");
    assert!(promotions <= 17, "{promotions} loads for 17 objects");
}

/// The value of a counter, from the metrics of the mount.
pub(super) fn counter(mount: &Mount, name: &str) -> u64 {
    let text = mount.control_get("/v1/metrics").text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.trim().parse().ok()).expect("the counter")
}

fn write_and_evict_chain(mount: &Mount, namespace: &Path, objects: u64) {
    let object = |number: u64| namespace.join(format!("object{number}"));
    for number in 0..objects {
        let path = object(number);
        fs::write(path.with_extension("tmp"), content(number)).expect("write");
        fs::rename(path.with_extension("tmp"), &path).expect("rename");
    }
    // Who uses them in this order makes them a chain, however slowly; making them does so only without a pause.
    (0..objects).for_each(|number| drop(File::open(object(number)).expect("open")));
    mount.wait_until_closed((0..objects).map(object));
    let evicted = mount.control("POST", "/v1/evict", Some(r#"{"bytes":67108864}"#));
    assert_eq!(evicted.status, 200, "{}", evicted.text());
    assert!((0..objects).all(|number| tier_of(&object(number)) == "ssd"));
}

#[test]
fn the_next_objects_of_a_chain_are_loaded_while_the_first_is_read_and_counted_when_they_are_used() {
    let disk = disk();
    let mount = mount_on(MODE, disk.path(), &["ssd.prefetch_objects=4"]);
    let namespace = mount.namespace("kv");
    write_and_evict_chain(&mount, &namespace, 20);
    let object = |number: u64| namespace.join(format!("object{number}"));
    assert_same(&fs::read(object(0)).expect("read"), &content(0), "the first");
    // Counted when a load has ended, a moment after its object is in memory.
    let are_counted = || counter(&mount, "tidefs_ssd_prefetches_total") >= 4;
    assert!(until(HANG, are_counted), "nothing was loaded ahead");
    assert!((1..=4).all(|number| tier_of(&object(number)) != "ssd"));
    assert_eq!(tier_of(&object(6)), "ssd", "no more than was asked for");
    let before = counter(&mount, "tidefs_ssd_prefetches_useful_total");
    assert_same(&fs::read(object(1)).expect("read"), &content(1), "the second");
    assert_eq!(counter(&mount, "tidefs_ssd_prefetches_useful_total"), before + 1);
    assert!(until(HANG, || tier_of(&object(5)) != "ssd"), "the reader is not followed");
    fs::remove_file(object(2)).expect("unlink");
    assert_eq!(counter(&mount, "tidefs_ssd_prefetches_wasted_total"), 1);
}

#[test]
fn objects_come_back_whole_into_segments_that_were_made_before_they_were_asked_for() {
    let disk = disk();
    let mount = mount_on(MODE, disk.path(), &["ssd.prefetch_objects=0"]);
    let namespace = mount.namespace("kv");
    let object = |number: u64| namespace.join(format!("object{number}"));
    // Of one length, as the blocks of a model are, and not of whole pages.
    let content = |number: u64| bytes(number, 200_003);
    let is_cold = |number: u64| tier_of(&object(number)) == "ssd";
    for number in 0..20 {
        fs::write(object(number), content(number)).expect("write");
    }
    mount.wait_until_closed((0..20).map(object));
    let free = mount.free_memory();
    let evicted = mount.control("POST", "/v1/evict", Some(r#"{"bytes":67108864}"#));
    assert_eq!(evicted.status, 200, "{}", evicted.text());
    for number in (0..20).filter(|&number| is_cold(number)) {
        let made = counter(&mount, "tidefs_blanks_made_total");
        assert_same(&fs::read(object(number)).expect("read"), &content(number), "an object that was on disk");
        let is_ready = || counter(&mount, "tidefs_blanks_made_total") > made;
        assert!(until(HANG, is_ready), "no segment was made for the next one");
    }
    assert!(counter(&mount, "tidefs_blanks_taken_total") >= 10, "segments were made and not used");
    // All objects are in memory again, beside what waits for the next ones.
    let is_all_told = || {
        // Read in this order: one may be made and taken in between.
        let taken = counter(&mount, "tidefs_blanks_taken_total");
        let blank = counter(&mount, "tidefs_blanks_made_total").saturating_sub(taken);
        free.saturating_sub(mount.free_memory()) <= blank * 200_704
    };
    assert!(until(HANG, is_all_told), "segments that were taken are in use twice");
}

#[test]
fn what_a_client_prefetches_is_in_memory_and_nothing_else_is() {
    if !kernel::has_fast_path() {
        return;
    }
    let disk = disk();
    let mount = mount_on(MODE, disk.path(), &["ssd.prefetch_objects=0"]);
    let namespace = mount.namespace("kv");
    write_and_evict_chain(&mount, &namespace, 16);
    let cache = tidefs_client::Cache::open(&namespace).expect("open");
    let keys = ["object3", "nowhere", "object4", "no/where", "object5"];
    cache.prefetch(&keys).expect("a hint never fails");
    let tier = |number: u64| tier_of(&namespace.join(format!("object{number}")));
    assert!(until(HANG, || (3..=5).all(|number| tier(number) != "ssd")), "nothing was loaded");
    assert!((6..9).all(|number| tier(number) == "ssd"), "nobody asked for the others");
    // Counted when a load has ended, a moment after its object is in memory.
    assert!(until(HANG, || counter(&mount, "tidefs_ssd_prefetches_total") == 3), "they are not counted");
    for number in 3..=5 {
        let view = cache.get(format!("object{number}")).expect("get").expect("a hit");
        assert_eq!(view.is_mapped(), cache.is_fast());
        assert_same(&view, &content(number), "a prefetched object");
    }
    assert_eq!(counter(&mount, "tidefs_ssd_prefetches_useful_total"), 3);
}

#[test]
fn cold_objects_that_are_asked_for_together_are_loaded_side_by_side() {
    if !kernel::has_fast_path() {
        return;
    }
    let disk = disk();
    let mount = mount_on(MODE, disk.path(), &["ssd.prefetch_objects=0", "ssd.prefetch_max=32MiB"]);
    let namespace = mount.namespace("kv");
    write_and_evict_chain(&mount, &namespace, 16);
    let cache = tidefs_client::Cache::open(&namespace).expect("open");
    let prefetched = || counter(&mount, "tidefs_ssd_prefetches_total");
    let view = cache.get("object9").expect("get").expect("a hit");
    assert_same(&view, &content(9), "one alone");
    assert_eq!(prefetched(), 0, "there is nothing to bring beside it");
    let keys: Vec<String> = (0..8).map(|number| format!("object{number}")).chain(["none".into()]).collect();
    let mut views = cache.lookup_many(&keys).expect("a batch");
    assert!(views.pop().expect("one for each key").is_none());
    for (view, number) in views.into_iter().zip(0..) {
        assert_same(&view.expect("a hit"), &content(number), "one of many");
    }
    // Counted when a load has ended, a moment after its object is in memory.
    assert!(until(HANG, || prefetched() >= 8), "{} were loaded ahead", prefetched());
    // All were in line before the first of them was opened, which makes none a second time.
    assert_eq!(prefetched(), 8);
    assert_eq!(counter(&mount, "tidefs_ssd_promotions_total"), 9);
    assert!((10..16).all(|number| tier_of(&namespace.join(format!("object{number}"))) == "ssd"));
}

#[test]
fn a_verification_of_the_disk_finds_the_damaged_record_and_keeps_to_its_rate() {
    let disk = disk();
    let mount = mount_on(MODE, disk.path(), &["ssd.prefetch_objects=0"]);
    let namespace = mount.namespace("kv");
    write_and_evict_chain(&mount, &namespace, 8);
    let log = disk.path().join("tidefs.ssd");
    let bytes = fs::read(&log).expect("read the log");
    let wanted = &content(3)[4096..4160];
    let at = bytes.windows(wanted.len()).position(|window| window == wanted).expect("the object is there");
    let file = fs::OpenOptions::new().write(true).open(&log).expect("open the log");
    file.write_all_at(&[bytes[at] ^ 1], at as u64).expect("damage");
    file.sync_all().expect("fsync");
    let began = std::time::Instant::now();
    let body = r#"{"tier":"ssd","bytes_per_second":16777216}"#;
    let lines = mount.control("POST", "/v1/verify", Some(body)).text();
    assert!(began.elapsed() >= std::time::Duration::from_millis(400), "7 MiB at 16 MiB/s");
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&last["checked"], &last["corrupt"]), (&8.into(), &1.into()), "{lines}");
    assert_eq!(last["corrupt_paths"][0], "kv/object3", "{lines}");
    for number in 0..8_u64 {
        let found = fs::read(namespace.join(format!("object{number}")));
        assert_eq!(found.is_ok(), number != 3, "object{number}");
    }
}

#[test]
fn what_is_faster_computed_than_loaded_is_a_miss_at_once_where_the_namespace_says_so() {
    let disk = disk();
    let mount = mount_on(MODE, disk.path(), &["ssd.prefetch_objects=0"]);
    let namespace = mount.namespace("kv");
    write_and_evict_chain(&mount, &namespace, 20);
    let open = |number: u64| File::open(namespace.join(format!("object{number}")));
    assert!((0..4).all(|number| open(number).is_ok()), "without a rate nothing is refused");
    // Nothing is loaded at that rate.
    set_xattr(&namespace, "user.tidefs.recompute_bytes_per_second", b"1000TiB").expect("setxattr");
    let refused = (4..8).filter(|number| open(*number).is_err()).count();
    assert!(refused >= 3, "{refused} of 4 opens were refused, one is tried");
    assert!(counter(&mount, "tidefs_ssd_too_slow_total") >= 3);
    // Nor ahead of its use: many that are asked for together are misses as each of them is.
    let cache = tidefs_client::Cache::open(&namespace).expect("open");
    let keys: Vec<String> = (8..20).map(|number| format!("object{number}")).collect();
    let found = cache.lookup_many(&keys).expect("a batch").into_iter().flatten().count();
    assert!(found <= 2, "{found} of 12 were loaded, one of 16 is tried");
    cache.prefetch(&keys).expect("a hint");
    assert_eq!(counter(&mount, "tidefs_ssd_prefetches_total"), 0);
    set_xattr(&namespace, "user.tidefs.recompute_bytes_per_second", b"1").expect("setxattr");
    assert_same(
        &fs::read(namespace.join("object7")).expect("read"),
        &content(7),
        "an object that was refused",
    );
}

#[test]
fn slot_files_live_on_the_disk_of_the_tier_and_a_killed_daemon_leaves_none() {
    let disk = disk();
    let mut mount = mount_on(MODE, disk.path(), &["scratch.dir", "scratch.capacity=64MiB"]);
    let namespace = mount.namespace("slots");
    set_xattr(&namespace, "user.tidefs.scratch", b"true").expect("setxattr");
    let file = File::create(namespace.join("slots")).expect("create");
    file.write_all_at(&content(1), 0).expect("write");
    let status = mount.control_get("/v1/status").json();
    assert!(status["scratch"]["bytes"].as_u64().expect("a number") >= content(1).len() as u64, "{status}");
    let links = fs::read_dir(format!("/proc/{}/fd", mount.pid())).expect("descriptors of the daemon");
    let targets = links.filter_map(|link| fs::read_link(link.ok()?.path()).ok());
    let is_slot_file = |target: &std::path::PathBuf| {
        target.starts_with(disk.path()) && target.to_string_lossy().ends_with("(deleted)")
    };
    assert!(targets.filter(is_slot_file).count() >= 1, "the slot file is somewhere else");
    mount.kill9();
    drop(file);
    mount.restart();
    let status = mount.control_get("/v1/status").json();
    assert_eq!(status["scratch"]["files"], 0, "{status}");
    let homes = fs::read_dir(disk.path()).expect("readdir").map(|entry| entry.expect("an entry").path());
    let homes: Vec<_> = homes.filter(|path| path.is_dir()).collect();
    assert_eq!(homes.len(), 1, "{homes:?}");
    assert_eq!(fs::read_dir(&homes[0]).expect("readdir").count(), 0, "a file is left in {homes:?}");
}

#[test]
fn a_disk_that_is_not_there_is_no_error_of_the_mount() {
    let mount = mount_on(MODE, Path::new("/var/tmp/tidefs-no-such-disk"), &[]);
    let namespace = mount.namespace("kv");
    for number in 0..OBJECTS {
        fs::write(namespace.join(format!("object{number}")), content(number)).expect("write");
    }
    let last = namespace.join(format!("object{}", OBJECTS - 1));
    assert_same(&fs::read(&last).expect("read"), &content(OBJECTS - 1), "the last object");
    assert!(!namespace.join("object0").exists(), "an object that left memory has nowhere to be");
    let status = mount.control_get("/v1/status").json();
    assert_eq!(status["ssd"]["devices"][0]["state"], "missing", "{status}");
    let warnings = status["warnings"].as_array().expect("warnings");
    let of_disk = |warning: &serde_json::Value| {
        warning.as_str().is_some_and(|warning| warning.contains("tidefs-no-such-disk"))
    };
    assert!(warnings.iter().any(of_disk), "{warnings:?}");
}

#[test]
fn a_disk_with_less_room_than_configured_is_used_as_far_as_it_goes_and_says_so() {
    let disk = SmallDisk::new("48m", nix::mount::MsFlags::empty());
    let mount = mount_on(MODE, disk.path(), &[]);
    let namespace = mount.namespace("kv");
    for number in 0..OBJECTS {
        let path = namespace.join(format!("object{number}"));
        fs::write(path.with_extension("tmp"), content(number)).expect("write");
        fs::rename(path.with_extension("tmp"), &path).expect("rename");
    }
    let status = || mount.control_get("/v1/status").json();
    assert!(until(HANG, || status()["ssd"]["devices"][0]["state"] == "full"), "{}", status());
    let mut found = 0;
    for number in 0..OBJECTS {
        if let Ok(bytes) = fs::read(namespace.join(format!("object{number}"))) {
            assert_same(&bytes, &content(number), "an object that is there");
            found += 1;
        }
    }
    assert!(found > 40, "{found} objects are left");
}

#[test]
fn a_disk_that_cannot_be_written_is_no_error_of_the_mount() {
    let disk = SmallDisk::new("48m", nix::mount::MsFlags::MS_RDONLY);
    let mount = mount_on(MODE, disk.path(), &[]);
    let namespace = mount.namespace("kv");
    fs::write(namespace.join("object"), content(0)).expect("write");
    assert_same(&fs::read(namespace.join("object")).expect("read"), &content(0), "the object");
    let status = mount.control_get("/v1/status").json();
    assert_eq!(status["ssd"]["devices"][0]["state"], "read_only", "{status}");
}

in_both_modes!(twice_as_much_as_memory_holds_is_read_back_and_survives_a_kill);
