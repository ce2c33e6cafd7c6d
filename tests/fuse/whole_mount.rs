//! The mount as a whole: statfs, locks, and the control files below `.tidefs`.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::statvfs::statvfs;

use crate::common::modes::in_both_modes;
use crate::common::sys::{failure, sorted_names};
use crate::common::{Mode, Peer, wait};
use crate::fixture::{MIB, kv, kv_with, offset, publish_object};

in_both_modes!(
    statfs_tells_the_capacity_in_blocks_of_4096,
    statfs_moves_within_50_ms_of_an_unlink,
    statfs_counts_a_file_that_is_being_written,
    statfs_is_the_same_on_every_path_of_the_mount,
    the_mount_is_listed_as_tidefs,
    an_exclusive_lock_keeps_another_process_out,
    shared_locks_go_together,
    a_lock_ends_with_its_holder,
    a_lock_file_that_is_cut_when_it_is_used_again_keeps_others_out,
    record_locks_work_between_processes,
    status_is_json_and_tells_capacity_and_use,
    metrics_are_prometheus_text,
    counters_tell_what_was_done,
    config_shows_what_was_set,
    control_files_are_not_listed_and_cannot_be_changed,
    a_user_has_a_bounded_number_of_control_files_open,
    status_inside_and_at_the_socket_agree,
    the_mount_answers_quickly_after_start,
);

fn statfs_tells_the_capacity_in_blocks_of_4096(mode: Mode) {
    let (mount, _) = kv_with(mode, &["capacity=96MiB"]);
    let facts = statvfs(mount.path()).expect("statfs");
    assert_eq!(facts.block_size(), 4096, "f_bsize");
    assert_eq!(facts.fragment_size(), 4096, "f_frsize");
    assert_eq!(facts.blocks() * 4096, 96 << 20, "f_blocks");
    assert!(facts.blocks_available() <= facts.blocks());
    assert!(facts.blocks_available() * 4096 >= 80 << 20, "an empty cache is nearly all free");
    assert_eq!(facts.name_max(), 255);
    assert!(facts.files() > 0 && facts.files_available() > 0, "programs refuse a filesystem without inodes");
}

fn statfs_moves_within_50_ms_of_an_unlink(mode: Mode) {
    let (mount, kv) = kv(mode);
    // The first of twenty that is quick: how long the scheduler lets this process wait is not what is judged.
    let mut took = (0..20).map(|round| {
        publish_object(&kv.join("key"), round, 32 * MIB);
        let full = mount.usage();
        assert!(full.used >= 32 << 20, "{full:?}");
        fs::remove_file(kv.join("key")).expect("unlink");
        let start = Instant::now();
        let moved = wait::until(wait::HANG, || mount.usage().available >= full.available + (31 << 20));
        assert!(moved, "round {round}: {:?} after {:?}, before {full:?}", mount.usage(), start.elapsed());
        start.elapsed()
    });
    assert!(took.any(|took| took <= Duration::from_millis(50)), "it takes longer each time");
}

fn statfs_counts_a_file_that_is_being_written(mode: Mode) {
    let (mount, kv) = kv(mode);
    let before = mount.usage().used;
    let file = File::create(kv.join("key")).expect("create");
    for index in 0..32 {
        file.write_all_at(&vec![1; MIB], offset(index * MIB)).expect("write");
    }
    let counted = wait::until(wait::HANG, || mount.usage().used >= before + (32 << 20));
    assert!(counted, "{:?}, before {before}", mount.usage());
}

fn statfs_is_the_same_on_every_path_of_the_mount(mode: Mode) {
    let (mount, kv) = kv(mode);
    publish_object(&kv.join("key"), 1, MIB);
    let total = mount.usage().capacity;
    for path in [kv.clone(), kv.join("key")] {
        let facts = statvfs(&path).expect("statfs");
        assert_eq!(facts.blocks() * 4096, total, "{}", path.display());
    }
    let facts = nix::sys::statvfs::fstatvfs(File::open(kv.join("key")).expect("open")).expect("fstatfs");
    assert_eq!(facts.blocks() * 4096, total);
}

fn the_mount_is_listed_as_tidefs(mode: Mode) {
    let (mount, _) = kv(mode);
    let table = fs::read_to_string("/proc/self/mountinfo").expect("the table of mounts");
    let point = mount.path().display().to_string();
    let line = table.lines().find(|line| line.split(' ').nth(4) == Some(&point)).expect("it is mounted");
    let tail: Vec<_> = line.split(" - ").nth(1).expect("a tail").split(' ').collect();
    assert_eq!(tail[..2], ["fuse.tidefs", "tidefs"], "{line}");
    assert!(tail[2].contains("default_permissions"), "the kernel checks permissions: {line}");
}

fn an_exclusive_lock_keeps_another_process_out(mode: Mode) {
    let (_mount, kv) = kv(mode);
    publish_object(&kv.join("key.lock"), 1, 100);
    let (mut first, mut second) = (Peer::spawn(), Peer::spawn());
    let a = first.open(&kv.join("key.lock"), libc::O_RDWR).expect("open");
    let b = second.open(&kv.join("key.lock"), libc::O_RDWR).expect("open");
    first.flock(a, libc::LOCK_EX).expect("lock");
    assert_eq!(second.flock(b, libc::LOCK_EX | libc::LOCK_NB), Err(Errno::EWOULDBLOCK));
    assert_eq!(second.flock(b, libc::LOCK_SH | libc::LOCK_NB), Err(Errno::EWOULDBLOCK));
    first.flock(a, libc::LOCK_UN).expect("unlock");
    second.flock(b, libc::LOCK_EX | libc::LOCK_NB).expect("now it is free");
}

fn shared_locks_go_together(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::write(kv.join("key.lock"), b"").expect("write");
    let (mut first, mut second) = (Peer::spawn(), Peer::spawn());
    let a = first.open(&kv.join("key.lock"), libc::O_RDONLY).expect("open");
    let b = second.open(&kv.join("key.lock"), libc::O_RDONLY).expect("open");
    first.flock(a, libc::LOCK_SH).expect("lock");
    second.flock(b, libc::LOCK_SH | libc::LOCK_NB).expect("a second shared lock");
    assert_eq!(second.flock(b, libc::LOCK_EX | libc::LOCK_NB), Err(Errno::EWOULDBLOCK));
}

fn a_lock_ends_with_its_holder(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::write(kv.join("key.lock"), b"").expect("write");
    let mut second = Peer::spawn();
    let b = second.open(&kv.join("key.lock"), libc::O_RDWR).expect("open");
    let mut first = Peer::spawn();
    let a = first.open(&kv.join("key.lock"), libc::O_RDWR).expect("open");
    first.flock(a, libc::LOCK_EX).expect("lock");
    assert_eq!(second.flock(b, libc::LOCK_EX | libc::LOCK_NB), Err(Errno::EWOULDBLOCK));
    first.kill9();
    let free = wait::until(wait::HANG, || second.flock(b, libc::LOCK_EX | libc::LOCK_NB).is_ok());
    assert!(free, "the lock of a dead process is held");
}

fn a_lock_file_that_is_cut_when_it_is_used_again_keeps_others_out(mode: Mode) {
    let (mount, kv) = kv(mode);
    let path = kv.join("key.lock");
    for use_before in [&b""[..], &[1; 100_000][..]] {
        fs::write(&path, use_before).expect("write");
        mount.wait_until_closed([&path]);
        let (mut holder, mut other) = (Peer::spawn(), Peer::spawn());
        // The kernel knows it from then.
        assert_eq!(other.read(&path).expect("read"), use_before);
        let held = holder.open(&path, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC).expect("open");
        holder.flock(held, libc::LOCK_EX).expect("lock");
        holder.record_lock(held, libc::F_WRLCK).expect("lock");
        assert_eq!(other.stat(&path).expect("stat").size, 0, "the one that is held is another file");
        let [reader, writer] = [libc::O_RDONLY, libc::O_RDWR].map(|flags| {
            let opened = other.open(&path, flags).expect("open");
            assert_eq!(other.flock(opened, libc::LOCK_SH | libc::LOCK_NB), Err(Errno::EWOULDBLOCK));
            let error = other.record_lock(opened, libc::F_RDLCK).expect_err("while it is locked");
            assert!(matches!(error, Errno::EAGAIN | Errno::EACCES), "{error}");
            opened
        });
        holder.close(held).expect("close");
        other.flock(reader, libc::LOCK_EX | libc::LOCK_NB).expect("now it is free");
        other.close(writer).expect("close");
        other.close(reader).expect("close");
    }
}

fn record_locks_work_between_processes(mode: Mode) {
    let (_mount, kv) = kv(mode);
    fs::write(kv.join("key.lock"), b"0123456789").expect("write");
    let (mut first, mut second) = (Peer::spawn(), Peer::spawn());
    let a = first.open(&kv.join("key.lock"), libc::O_RDWR).expect("open");
    let b = second.open(&kv.join("key.lock"), libc::O_RDWR).expect("open");
    first.record_lock(a, libc::F_WRLCK).expect("lock");
    let error = second.record_lock(b, libc::F_WRLCK).expect_err("while it is locked");
    assert!(matches!(error, Errno::EAGAIN | Errno::EACCES), "{error}");
    first.record_lock(a, libc::F_UNLCK).expect("unlock");
    second.record_lock(b, libc::F_WRLCK).expect("after it is unlocked");
}

fn status_is_json_and_tells_capacity_and_use(mode: Mode) {
    let (mount, kv) = kv(mode);
    publish_object(&kv.join("large"), 1, 3 * MIB);
    publish_object(&kv.join("small"), 1, 300);
    let status = || -> serde_json::Value {
        let text = fs::read_to_string(mount.join(".tidefs/status")).expect("read");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("no JSON ({error}): {text}"))
    };
    let first = status();
    assert_eq!(first["capacity"], 256 << 20, "{first}");
    assert_eq!(first["objects"], 2, "{first}");
    assert_eq!(first["pid"], mount.pid().as_raw(), "{first}");
    assert_eq!(first["sealed_bytes"], 3 * MIB + 300, "{first}");
    assert!(first["used"].as_u64().expect("a number") >= 3 << 20, "{first}");
    if mode == Mode::Direct {
        assert_eq!(first["fuse"]["passthrough"], false, "{first}");
    }
    publish_object(&kv.join("third"), 1, 300);
    assert_eq!(status()["objects"], 3, "a file that is read again tells what is true now");
}

fn metrics_are_prometheus_text(mode: Mode) {
    let (mount, kv) = kv(mode);
    publish_object(&kv.join("key"), 1, 100_000);
    fs::read(kv.join("key")).expect("read");
    let text = fs::read_to_string(mount.join(".tidefs/metrics")).expect("read");
    assert!(text.lines().filter(|line| line.starts_with("# TYPE tidefs_")).count() >= 10, "{text}");
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let value = line.rsplit(' ').next().expect("a value");
        assert!(value.parse::<f64>().is_ok(), "not a sample: {line}");
    }
}

fn counters_tell_what_was_done(mode: Mode) {
    let (mount, kv) = kv(mode);
    let counters = || {
        let text = mount.control_get("/v1/metrics").text();
        let names = ["seals", "sealed_bytes", "hits", "misses", "replacements", "unlinks", "evictions"];
        names.map(|name| {
            let name = format!("tidefs_{name}_total ");
            let value = text.lines().find_map(|line| line.strip_prefix(&name)?.trim().parse::<u64>().ok());
            value.unwrap_or_else(|| panic!("no counter {name}"))
        })
    };
    let done = |before: [u64; 7], after: [u64; 7]| -> [u64; 7] {
        std::array::from_fn(|index| after[index] - before[index])
    };
    let path = |index: u64| kv.join(format!("k{index}"));
    let mut before = counters();
    (0..10).for_each(|index| publish_object(&path(index), index, 100_000));
    mount.wait_until_closed((0..10).map(path));
    let [seals, bytes, hits, misses, ..] = done(before, counters());
    // The kernel looks up the target of each rename: nobody asked for an object.
    assert_eq!((seals, bytes, hits, misses), (10, 1_000_000, 0, 0));
    before = counters();
    (0..7).for_each(|index| drop(fs::read(path(index)).expect("read")));
    (0..3).for_each(|index| assert!(!kv.join(format!("nowhere{index}")).exists()));
    // Asked for, then computed and put: one miss each.
    (20..22).for_each(|index| {
        assert!(!path(index).exists());
        publish_object(&path(index), index, 100_000);
    });
    let [seals, _, hits, misses, ..] = done(before, counters());
    assert_eq!((seals, hits, misses), (2, 7, 5));
    before = counters();
    publish_object(&path(0), 99, 100_000);
    mount.wait_until_closed([path(0)]);
    (1..3).for_each(|index| fs::remove_file(path(index)).expect("unlink"));
    // Not before the RELEASE of who read it has come.
    let is_evicted = || {
        let evicted = mount.control("POST", "/v1/evict", Some(r#"{"path":"kv/k5"}"#));
        assert_eq!(evicted.status, 200, "{}", evicted.text());
        done(before, counters())[6] > 0
    };
    assert!(wait::until(wait::HANG, is_evicted), "it stays");
    let [seals, _, _, _, replacements, unlinks, evictions] = done(before, counters());
    assert_eq!((seals, replacements, unlinks, evictions), (1, 1, 2, 1));
}

fn config_shows_what_was_set(mode: Mode) {
    let (mount, _) = kv_with(mode, &["capacity=96MiB", "packed_max=16KiB"]);
    let text = fs::read_to_string(mount.join(".tidefs/config")).expect("read");
    assert!(text.contains("96MiB") && text.contains("16KiB"), "{text}");
    assert!(text.contains("capacity") && text.contains("packed_max") && text.contains("scratch"), "{text}");
}

fn control_files_are_not_listed_and_cannot_be_changed(mode: Mode) {
    let (mount, _) = kv(mode);
    assert_eq!(sorted_names(mount.path()), ["kv"]);
    let control = mount.join(".tidefs");
    assert_eq!(sorted_names(&control), ["config", "metrics", "status"]);
    for name in ["config", "metrics", "status"] {
        let path = control.join(name);
        let open = OpenOptions::new().write(true).open(&path);
        assert_eq!(failure(open, "open for writing"), Errno::EACCES, "{name}");
        let refused = |error: Errno| matches!(error, Errno::EACCES | Errno::EPERM);
        assert!(refused(failure(fs::remove_file(&path), "unlink")), "{name}");
        assert!(refused(failure(fs::rename(&path, mount.join("kv/x")), "rename")), "{name}");
        assert!(fs::metadata(&path).expect("stat").is_file());
    }
    for (what, result) in [
        ("create", File::create(control.join("new")).map(drop)),
        ("mkdir", fs::create_dir(control.join("new"))),
        ("rmdir", fs::remove_dir(&control)),
        ("rename", fs::rename(&control, mount.join("moved"))),
        ("rename into it", fs::rename(mount.join("kv"), control.join("kv"))),
        ("rename over it", fs::rename(mount.join("kv"), &control)),
    ] {
        let error = failure(result, what);
        // Which errno is no matter; the kernel answers some of these itself.
        let odd = matches!(error, Errno::EIO | Errno::ESTALE | Errno::ENOTCONN);
        assert!(!odd, "{what} of .tidefs says {error}");
    }
    assert_eq!(sorted_names(mount.path()), ["kv"], "nothing has moved");
    assert_eq!(sorted_names(&control), ["config", "metrics", "status"]);
}

fn a_user_has_a_bounded_number_of_control_files_open(mode: Mode) {
    let (mount, _) = kv(mode);
    let path = mount.join(".tidefs/metrics");
    let mut open: Vec<File> =
        (0..256).map(|index| File::open(&path).unwrap_or_else(|error| panic!("{index}: {error}"))).collect();
    assert_eq!(failure(File::open(&path), "one more"), Errno::ENFILE);
    assert_eq!(failure(File::open(mount.join(".tidefs/status")), "another one"), Errno::ENFILE);
    let mut other = Peer::spawn();
    other.become_user(54_321, 54_321);
    assert!(!other.read(&path).expect("another user").is_empty());
    open.truncate(255);
    // RELEASE comes after close(2) has returned.
    assert!(wait::until(wait::HANG, || File::open(&path).is_ok()), "a closed one still counts");
}

fn status_inside_and_at_the_socket_agree(mode: Mode) {
    let (mount, kv) = kv(mode);
    publish_object(&kv.join("key"), 1, 100_000);
    let inside: serde_json::Value =
        serde_json::from_slice(&fs::read(mount.join(".tidefs/status")).expect("read")).expect("JSON");
    let answer = mount.control_get("/v1/status");
    assert_eq!(answer.status, 200);
    let socket = answer.json();
    for field in ["pid", "capacity", "objects", "mount_point", "version"] {
        assert_eq!(inside[field], socket[field], "{field}");
    }
    assert_eq!(mount.control_get("/healthz").text().trim(), "ok");
    assert_eq!(mount.control_get("/v1/no-such-thing").status, 404);
}

fn the_mount_answers_quickly_after_start(mode: Mode) {
    // The quickest of three: how long the scheduler lets this process wait is not what is judged.
    let starts = (0..3).map(|_| {
        let start = Instant::now();
        let (mount, _) = kv(mode);
        let took = start.elapsed();
        assert_eq!(fs::read_dir(mount.path()).expect("list").count(), 1);
        took
    });
    let quickest = starts.min().expect("three starts");
    assert!(quickest < Duration::from_secs(3), "{quickest:?} to start");
}
