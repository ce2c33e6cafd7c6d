//! Eight processes write ten times the capacity in all three shapes while everybody reads and checks every byte, and
//! two more are killed (SIGKILL) in the middle of their writes all the time.
//!
//! Shown: no ENOSPC, no EIO, no torn or wrong byte; the bytes in use, as statfs tells them and as the private memory
//! counts them, are at most the capacity at every sample; killed writers leave nothing behind.

use std::env;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::child;
use super::common::modes::in_both_modes;
use super::common::mount::wait_for;
use super::common::pattern::{assert_same, object, verify_object};
use super::common::wait::until;
use super::common::{Mode, Mount};
use super::worker::{Orders, Report};

/// Processes that write and read to the end.
const WRITERS: u64 = 8;
/// Processes that are killed and replaced all the time.
const MORTALS: u64 = 2;
/// All that write.
const PROCESSES: u64 = WRITERS + MORTALS;
/// Bytes of the cache.
const CAPACITY: u64 = 192 << 20;
/// What a writer leaves that is killed between two of its system calls is dropped ten seconds later: until then it may
/// come back to open what it was promised.
const DEAD_WRITER_GRACE: Duration = Duration::from_secs(20);
/// Longest time beyond the one asked for.
const HANG_GUARD: Duration = Duration::from_secs(240);

fn bytes_of(content: &[u8]) -> u64 {
    u64::try_from(content.len()).expect("usize fits u64")
}

fn seconds() -> u64 {
    env::var("TIDEFS_TEST_SECONDS").map_or(8, |text| text.parse().expect("TIDEFS_TEST_SECONDS is a number"))
}

/// Looks at the bytes in use every few milliseconds; the first wrong sample, if there was one.
fn sample(mount: &Mount, stop: &AtomicBool, samples: &AtomicU64, peak: &AtomicU64) -> Result<(), String> {
    let memory = mount.instance_dir().join("memory");
    while !stop.load(Ordering::Relaxed) {
        let usage = mount.usage();
        if usage.used > usage.capacity || usage.capacity != CAPACITY {
            return Err(format!("statfs of the mount: {usage:?}"));
        }
        let facts = statvfs(&memory).map_err(|error| format!("statfs of the memory: {error}"))?;
        let held = (facts.blocks() - facts.blocks_free()) * facts.fragment_size();
        if held > CAPACITY {
            return Err(format!("the memory holds {held} bytes, the capacity is {CAPACITY}"));
        }
        peak.fetch_max(held, Ordering::Relaxed);
        samples.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Kills and replaces the mortals until told to stop; returns how many were killed.
fn reap_mortals(place: &Path, stop: &AtomicBool) -> Result<u64, String> {
    let mut random = StdRng::seed_from_u64(99);
    let mut killed = 0;
    let spawn = |number: u64, life: u64| {
        let number = WRITERS + number;
        let orders = Orders {
            place: place.to_owned(),
            number,
            processes: PROCESSES,
            seconds: 0,
            bytes_at_least: 0,
            life,
        };
        child::spawn("mortal", &orders)
    };
    let mut mortals: Vec<Child> = (0..MORTALS).map(|number| spawn(number, 0)).collect();
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(random.random_range(50..300)));
        let index = random.random_range(0..mortals.len());
        end_mortal(&mut mortals[index])?;
        killed += 1;
        mortals[index] = spawn(u64::try_from(index).expect("usize fits u64"), killed);
    }
    for mortal in &mut mortals {
        end_mortal(mortal)?;
    }
    Ok(killed + MORTALS)
}

fn end_mortal(mortal: &mut Child) -> Result<(), String> {
    let _ = mortal.kill();
    if wait_for(mortal, HANG_GUARD).is_none() {
        return Err("a killed writer does not die".into());
    }
    let mut printed = String::new();
    mortal.stdout.take().expect("a pipe").read_to_string(&mut printed).map_err(|error| error.to_string())?;
    match printed.lines().find_map(|line| line.strip_prefix("failure: ")) {
        Some(failure) => Err(failure.to_owned()),
        None => Ok(()),
    }
}

fn ten_times_the_capacity_in_all_shapes(mode: Mode) {
    let mount = Mount::start(&mode.options(&[&format!("capacity={CAPACITY}")]));
    let place = mount.namespace("ns");
    for folder in (0..8).map(|n| format!("d{n}")).chain((0..PROCESSES).map(|n| format!("own{n}"))) {
        fs::create_dir(place.join(folder)).expect("a directory");
    }
    let before = mount.usage();
    let (stop, samples, peak) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let bytes_at_least = 10 * CAPACITY / WRITERS;
    let reports: Vec<Report> = thread::scope(|scope| {
        let sampler = scope.spawn(|| sample(&mount, &stop, &samples, &peak));
        let reaper = scope.spawn(|| reap_mortals(&place, &stop));
        let orders = |number| Orders {
            place: place.clone(),
            number,
            processes: PROCESSES,
            seconds: seconds(),
            bytes_at_least,
            life: 0,
        };
        let mut writers: Vec<Child> =
            (0..WRITERS).map(|number| child::spawn("stress", &orders(number))).collect();
        let deadline = Instant::now() + Duration::from_secs(seconds()) + HANG_GUARD;
        let mut reports = Vec::new();
        for writer in &mut writers {
            let ended = wait_for(writer, deadline.saturating_duration_since(Instant::now()));
            let mut printed = String::new();
            if ended.is_some() {
                writer.stdout.take().expect("a pipe").read_to_string(&mut printed).expect("a readable pipe");
            } else {
                let _ = writer.kill();
            }
            let failure = |wrong| Report { failure: Some(wrong), ..Report::default() };
            reports.push(child::report(&printed).unwrap_or_else(failure));
        }
        stop.store(true, Ordering::Relaxed);
        let killed =
            reaper.join().expect("the reaper does not panic").unwrap_or_else(|wrong| panic!("{wrong}"));
        sampler.join().expect("the sampler does not panic").unwrap_or_else(|wrong| panic!("{wrong}"));
        println!("{killed} writers killed");
        reports
    });
    for report in &reports {
        assert_eq!(report.failure, None, "a writer or reader failed: {report:?}");
    }
    let written: u64 = reports.iter().map(|report| report.written_bytes).sum();
    let checked: u64 = reports.iter().map(|report| report.checked_objects).sum();
    let missed: u64 = reports.iter().map(|report| report.missed_objects).sum();
    let samples = samples.into_inner();
    println!(
        "{} MiB written, {checked} objects checked, {missed} absent, {samples} samples, peak {} of {} MiB",
        written >> 20,
        peak.into_inner() >> 20,
        CAPACITY >> 20
    );
    assert!(
        written >= 10 * CAPACITY && checked > 100 && samples > 100,
        "too little was done to show anything"
    );
    only_sealed_objects_are_left(&mount, &place, before.used);
}

/// All that is in use belongs to objects that can be read; and when they are deleted, nothing is left.
fn only_sealed_objects_are_left(mount: &Mount, place: &Path, used_before: u64) {
    let settled = || mount.control_get("/v1/status").json()["unsealed_files"] == serde_json::json!(0);
    assert!(until(DEAD_WRITER_GRACE, settled), "hidden files of dead writers are left");
    let (mut sum, mut paths) = (0, Vec::new());
    for folder in fs::read_dir(place).expect("a readable directory") {
        for entry in fs::read_dir(folder.expect("an entry").path()).expect("a readable directory") {
            let path = entry.expect("an entry").path();
            let content = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            verify_object(&content).unwrap_or_else(|wrong| panic!("{}: {wrong}", path.display()));
            sum += bytes_of(&content).next_multiple_of(4096);
            assert!(fs::metadata(&path).expect("stat").blocks() * 512 >= bytes_of(&content) / 2);
            paths.push(path);
        }
    }
    let packed = mount.control_get("/v1/status").json()["packed"]["segment_bytes"].as_u64().unwrap_or(0);
    // What was read, replaced or deleted is given back when the kernel has let go of it, which it says later.
    let used = || mount.usage().used.saturating_sub(used_before);
    assert!(
        until(super::common::wait::HANG, || used() <= sum + packed),
        "{} bytes are in use, the sealed objects have {sum} and the packed {packed}",
        used()
    );
    for path in paths {
        fs::remove_file(&path).expect("an object can be deleted");
    }
    let back = || mount.usage().used <= used_before + packed;
    let usage = || mount.usage();
    assert!(
        until(super::common::wait::HANG, back),
        "{:?} after all was deleted, {used_before} before",
        usage()
    );
    fs::write(place.join("d0/last"), object(1, 1 << 20)).expect("the cache still takes objects");
    assert_same(
        &fs::read(place.join("d0/last")).expect("it is there"),
        &object(1, 1 << 20),
        "the last object",
    );
}

in_both_modes!(ten_times_the_capacity_in_all_shapes);
