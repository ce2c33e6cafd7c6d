//! kill -9 of the daemon at random moments under load. Afterwards every object that a writer was told is stored is
//! there, whole and in its latest version (or evicted, where there is less room than data); everything else is whole
//! or absent. Writers get errors, not hangs.
//!
//! *Told* means that rename (or close, of a final name) returned without an error before the daemon died. The writer
//! is a child with four threads and keeps that record; the test kills the daemon, collects the record, starts the
//! daemon again and compares. Objects live on from round to round.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::child;
use super::common::modes::in_both_modes;
use super::common::mount::wait_for;
use super::common::pattern::{HEAD_BYTES, object, verify_object};
use super::common::sys::errno;
use super::common::wait::HANG;
use super::common::{Mode, Mount};

/// Threads of the writer.
const THREADS: u64 = 4;
/// Names that each thread writes again and again.
const NAMES: u64 = 24;
/// Largest object.
const SIZE_MAX: usize = 2 << 20;

/// What a writer is to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    place: PathBuf,
    round: u64,
}

/// What became of the last write to one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// Seed of the last version that was acknowledged.
    acknowledged: Option<u64>,
    /// Seed of the version that was on its way when the daemon died.
    unknown: Option<u64>,
    /// Whether that one was written over the final name, which may take the version before with it.
    in_place: bool,
}

/// What the writer tells at its end.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    records: BTreeMap<String, Record>,
    /// How each thread stopped.
    errors: Vec<Stopped>,
    writes: u64,
}

/// The first call of a thread that failed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Stopped {
    errno: i32,
    /// Whether it was a write(2).
    was_write: bool,
    /// When it had failed, see [`now_ns`].
    at_ns: i128,
}

impl Stopped {
    fn by(error: Errno, was_write: bool) -> Self {
        Self { errno: error as i32, was_write, at_ns: now_ns() }
    }

    /// Whether this is how a call ends whose daemon was killed, not before `killed_ns`.
    ///
    /// A write whose bytes the daemon was taking over from the kernel when it died ends with EIO: the kernel's copy into its
    /// memory fails (`fuse_dev_do_read`). The call had not begun to be served, and before the kill there is no such error.
    fn is_death(&self, killed_ns: i128) -> bool {
        match Errno::from_raw(self.errno) {
            Errno::ENOTCONN | Errno::ECONNABORTED => true,
            Errno::EIO => self.was_write && self.at_ns >= killed_ns,
            _ => false,
        }
    }
}

/// A clock that all processes of this boot share.
fn now_ns() -> i128 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("every Linux has it");
    i128::from(now.tv_sec()) * 1_000_000_000 + i128::from(now.tv_nsec())
}

/// One way to store an object; an error is that of the first call that failed.
fn store(path: &Path, content: &[u8], in_place: bool) -> Result<(), Stopped> {
    let other = |error| Stopped::by(error, false);
    let mode = nix::sys::stat::Mode::from_bits_retain(0o644);
    let target = if in_place { path.to_owned() } else { path.with_extension("tmp") };
    let flags = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_TRUNC | OFlag::O_CLOEXEC;
    let file: OwnedFd = nix::fcntl::open(&target, flags, mode).map_err(other)?;
    let mut rest = content;
    while !rest.is_empty() {
        rest = &rest[nix::unistd::write(&file, rest).map_err(|error| Stopped::by(error, true))?..];
    }
    if in_place {
        return nix::unistd::close(file).map_err(other);
    }
    // half of the clients rename while the descriptor is still open
    if content.len().is_multiple_of(2) {
        nix::unistd::close(file).map_err(other)?;
        return fs::rename(&target, path).map_err(|error| other(errno(&error)));
    }
    fs::rename(&target, path).map_err(|error| other(errno(&error)))
}

/// The child: writes until a call fails, then reports.
pub(crate) fn write_until_the_mount_dies(orders: &Orders) -> Report {
    let mut report = Report { records: BTreeMap::new(), errors: Vec::new(), writes: 0 };
    let lanes: Vec<_> = (0..THREADS)
        .map(|lane| {
            let (place, round) = (orders.place.clone(), orders.round);
            thread::spawn(move || write_lane(&place, round, lane))
        })
        .collect();
    println!("\nwriting");
    std::io::stdout().flush().expect("the test listens");
    for lane in lanes {
        let (records, error, writes) = lane.join().expect("a writing thread does not panic");
        report.records.extend(records);
        report.errors.push(error);
        report.writes += writes;
    }
    report
}

fn write_lane(place: &Path, round: u64, lane: u64) -> (BTreeMap<String, Record>, Stopped, u64) {
    let mut random = StdRng::seed_from_u64(round << 8 | lane);
    let mut records: BTreeMap<String, Record> = BTreeMap::new();
    for write in 0.. {
        let number = random.random_range(0..NAMES);
        let name = format!("d{}/w{lane}-{number}", number % 3);
        // The seed grows from write to write and from round to round: a larger one is a later version of its name.
        let seed = round << 32 | write << 8 | lane;
        let magnitude = random.random_range(4..=21);
        let length = random.random_range(HEAD_BYTES..=(1_usize << magnitude).min(SIZE_MAX));
        // Odd numbers are written in place, so a name is always written in one way.
        let in_place = number % 2 == 1;
        let record = records.entry(name.clone()).or_default();
        (record.unknown, record.in_place) = (Some(seed), in_place);
        if let Err(error) = store(&place.join(&name), &object(seed, length), in_place) {
            return (records, error, write);
        }
        *record = Record { acknowledged: Some(seed), unknown: None, in_place };
    }
    unreachable!("the loop ends with an error")
}

/// What the test knows of each name, over all rounds.
type Books = HashMap<String, Record>;

fn enter(books: &mut Books, report: Report) {
    for (name, record) in report.records {
        let entry = books.entry(name).or_default();
        let acknowledged = record.acknowledged.or(entry.acknowledged);
        *entry = Record { acknowledged, ..record };
    }
}

/// Compares the mount with the books and settles what was unknown; returns how many objects were absent.
fn compare(mount: &Mount, place: &Path, books: &mut Books, may_be_evicted: bool) -> usize {
    let mut absent = 0;
    for (name, record) in books.iter_mut() {
        let found = match fs::read(place.join(name)) {
            Ok(content) => {
                let seed =
                    verify_object(&content).unwrap_or_else(|wrong| panic!("{name}: {wrong}; {record:?}"));
                Some(seed)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => panic!("{name}: {error}; {record:?}"),
        };
        let may_be_absent =
            may_be_evicted || record.acknowledged.is_none() || (record.unknown.is_some() && record.in_place);
        match found {
            None => {
                assert!(may_be_absent, "{name} is lost: {record:?}");
                absent += 1;
            }
            Some(seed) => assert!(
                Some(seed) == record.acknowledged || Some(seed) == record.unknown,
                "{name} holds version {seed:#x}, which is neither the last one nor the one on its way: {record:x?}"
            ),
        }
        *record = Record { acknowledged: found, unknown: None, in_place: record.in_place };
    }
    for folder in 0..3 {
        for entry in fs::read_dir(place.join(format!("d{folder}"))).expect("a readable directory") {
            let path = entry.expect("a readable entry").path();
            match fs::read(&path) {
                Ok(content) => {
                    verify_object(&content).unwrap_or_else(|wrong| panic!("{}: {wrong}", path.display()));
                }
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}", path.display()),
            }
        }
    }
    let usage = mount.usage();
    assert!(usage.used <= usage.capacity, "{usage:?}");
    absent
}

/// Waits for the line that says that the child writes.
fn wait_until_it_writes(writer: &mut Child) -> String {
    let output = writer.stdout.as_mut().expect("stdout is a pipe");
    let mut printed = Vec::new();
    while !String::from_utf8_lossy(&printed).contains("writing\n") {
        let mut byte = [0];
        assert_eq!(output.read(&mut byte).expect("a readable pipe"), 1, "the writer ended before it wrote");
        printed.push(byte[0]);
    }
    String::from_utf8_lossy(&printed).into_owned()
}

fn rounds() -> u64 {
    if env::var_os("TIDEFS_TEST_LONG").is_some() { 50 } else { 10 }
}

fn kill_again_and_again(mode: Mode, options: &[&str], may_be_evicted: bool) {
    let mut mount = Mount::start(&mode.options(&[options, &["on_stop=keep"]].concat()));
    let place = mount.namespace("ns");
    for folder in 0..3 {
        fs::create_dir(place.join(format!("d{folder}"))).expect("a directory");
    }
    let mut random = StdRng::seed_from_u64(7);
    let (mut books, mut writes, mut absent) = (Books::new(), 0, 0);
    let mut round = 0;
    // On a slow machine it takes more kills until enough was written.
    while round < rounds() || (writes <= rounds() * 10 && round < 5 * rounds()) {
        round += 1;
        let mut writer = child::spawn("fault writer", &Orders { place: place.clone(), round });
        wait_until_it_writes(&mut writer);
        thread::sleep(Duration::from_millis(random.random_range(10..500)));
        let killed_ns = now_ns();
        mount.kill9();
        let ended = wait_for(&mut writer, HANG);
        if ended.is_none() {
            let _ = writer.kill();
            panic!("round {round}: the writers hang {HANG:?} after the daemon died");
        }
        let mut printed = String::new();
        writer.stdout.take().expect("a pipe").read_to_string(&mut printed).expect("a readable pipe");
        let report: Report = child::report(&printed).unwrap_or_else(|wrong| panic!("round {round}: {wrong}"));
        for error in &report.errors {
            assert!(
                error.is_death(killed_ns),
                "round {round}: a writer met {}, killed at {killed_ns}: {error:?}",
                Errno::from_raw(error.errno)
            );
        }
        writes += report.writes;
        enter(&mut books, report);
        mount.start_daemon();
        absent += compare(&mount, &place, &mut books, may_be_evicted);
    }
    println!("{round} rounds, {writes} objects stored, {absent} absent afterwards");
    assert!(writes > rounds() * 10, "the writers hardly wrote: {writes} objects");
}

fn every_acknowledged_object_survives_kill9(mode: Mode) {
    // 96 names of at most 2 MiB, and as much again for what is being written: nothing is evicted
    kill_again_and_again(mode, &["capacity=512MiB"], false);
}

fn with_too_little_room_objects_are_whole_or_evicted_after_kill9(mode: Mode) {
    kill_again_and_again(mode, &["capacity=32MiB"], true);
}

fn with_a_disk_below_no_older_version_and_no_deleted_object_comes_back_after_kill9(mode: Mode) {
    let disk = tempfile::Builder::new().prefix("tidefs-ssd").tempdir_in("/var/tmp").expect("a disk");
    let dirs = format!("ssd.dirs={}", disk.path().display());
    // So small that zones are taken back all the time.
    let ssd = ["capacity=64MiB", "ssd.capacity=96MiB", "ssd.zone=8MiB", dirs.as_str()];
    kill_again_and_again(mode, &ssd, true);
}

in_both_modes!(
    every_acknowledged_object_survives_kill9,
    with_too_little_room_objects_are_whole_or_evicted_after_kill9,
    with_a_disk_below_no_older_version_and_no_deleted_object_comes_back_after_kill9,
);
