//! A daemon that is stopped (SIGSTOP), or killed: the kernel goes on serving what is open, at full speed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::common::Mount;
use super::common::pattern::{assert_same, object};
use super::common::sys::Mapping;
use super::common::wait::{HANG, until, within};

/// Objects that are open and mapped.
const OBJECTS: u64 = 8;
const SIZE: usize = 4 << 20;
/// How long each rate is measured.
const MEASURE: Duration = Duration::from_millis(400);

/// What a client holds open.
struct Held {
    objects: Vec<(File, Mapping, Vec<u8>)>,
}

impl Held {
    /// Reads and copies everything again and again, checks every byte once, returns reads and copies per second.
    fn rates(&self) -> (f64, f64) {
        for (file, map, content) in &self.objects {
            let mut found = vec![0; SIZE];
            assert_eq!(file.read_at(&mut found, 0).expect("pread"), SIZE);
            assert_same(&found, content, "read");
            assert_same(&map.bytes(), content, "mapped");
        }
        let mut buffer = vec![0; SIZE];
        let read = rate(|index| {
            assert_eq!(self.objects[index].0.read_at(&mut buffer, 0).expect("pread"), SIZE);
        });
        let mapped = rate(|index| drop(self.objects[index].1.bytes()));
        (read, mapped)
    }
}

/// Calls of `work` per second, over all objects in turn.
fn rate(mut work: impl FnMut(usize)) -> f64 {
    let (began, mut calls) = (Instant::now(), 0_u32);
    while began.elapsed() < MEASURE {
        for index in 0..usize::try_from(OBJECTS).expect("it fits") {
            work(index);
            calls += 1;
        }
    }
    f64::from(calls) / began.elapsed().as_secs_f64()
}

/// Whether the kernel serves what is open; says so when it does not.
fn has_passthrough(mount: &Mount) -> bool {
    let status = mount.control_get("/v1/status").json();
    let has = status["fuse"]["passthrough"] == serde_json::json!(true);
    if !has {
        let reason = &status["fuse"]["passthrough_reason"];
        eprintln!(
            "SKIPPED: this machine has no FUSE passthrough ({reason}), so the daemon serves every read"
        );
    }
    has
}

/// Writes the objects and holds them open and mapped.
fn hold(place: &Path) -> Held {
    let hold = |number: u64| {
        let path = place.join(number.to_string());
        fs::write(&path, object(number, SIZE)).expect("an object");
        let file = File::open(&path).expect("open");
        let map = Mapping::shared(&file, SIZE).expect("mmap");
        (file, map, object(number, SIZE))
    };
    Held { objects: (0..OBJECTS).map(hold).collect() }
}

#[test]
fn descriptors_and_mappings_outlive_a_killed_daemon() {
    let mut mount = Mount::start(&["on_stop=keep"]);
    if !has_passthrough(&mount) {
        return;
    }
    let held = hold(&mount.namespace("ns"));
    mount.kill9();
    let checked = within(HANG, move || {
        held.rates();
        held
    });
    let held = checked.expect("reads and mappings go on without a daemon");
    mount.start_daemon();
    within(HANG, move || held.rates()).expect("they go on beside the next daemon, until they are closed");
    for number in 0..OBJECTS {
        let found = fs::read(mount.join("ns").join(number.to_string())).expect("the object is back");
        assert_same(&found, &object(number, SIZE), "by the next daemon");
    }
}

#[test]
fn open_objects_are_served_at_full_speed_while_the_daemon_is_stopped() {
    let mount = Mount::start(&[]);
    if !has_passthrough(&mount) {
        return;
    }
    let place = mount.namespace("ns");
    let held = hold(&place);
    let before = held.rates();
    mount.signal(Signal::SIGSTOP);
    assert!(until(HANG, || is_stopped(mount.pid().as_raw())), "SIGSTOP stops the daemon");
    let measured = within(HANG, move || {
        let rates = held.rates();
        (held, rates)
    });
    let still_stopped = is_stopped(mount.pid().as_raw());
    mount.signal(Signal::SIGCONT);
    let (held, during) = measured.expect("reads and mappings go on without the daemon");
    assert!(still_stopped, "the daemon was stopped all the time");
    println!("reads/s {:.0} -> {:.0}, copies/s {:.0} -> {:.0}", before.0, during.0, before.1, during.1);
    assert!(during.0 > before.0 / 2.0, "reads per second fell from {} to {}", before.0, during.0);
    assert!(during.1 > before.1 / 2.0, "copies per second fell from {} to {}", before.1, during.1);
    drop(held);
    for number in 0..OBJECTS {
        let found = fs::read(place.join(number.to_string())).expect("the daemon answers again");
        assert_same(&found, &object(number, SIZE), "after SIGCONT");
    }
    fs::write(place.join("new"), object(99, SIZE)).expect("the daemon takes new objects again");
}

/// Whether a process is stopped by a signal: state `T` in proc_pid_stat(5).
fn is_stopped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the daemon lives");
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}
