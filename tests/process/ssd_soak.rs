//! Objects that are written, replaced, read, renamed and removed for a while, twice as many as memory holds and more than
//! the disk does: every byte that is read is right, and the daemon's memory and descriptors do not grow.
//!
//! 15 seconds, or `TIDEFS_TEST_SECONDS`: `packaging/dev.sh soak ssd` runs 20 minutes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::common::Mount;
use super::common::growth::{self, Held};
use super::common::pattern::{object, verify_object};
use super::common::wait::{HANG, until};

const WORKERS: u64 = 4;
/// Names of each worker: all together are 384 objects of 600 KiB on average.
const NAMES: u64 = 96;

fn length_of_run() -> Duration {
    let told = std::env::var("TIDEFS_TEST_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(told.unwrap_or(15))
}

#[derive(Debug, Default)]
struct Deeds {
    written: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    removed: AtomicU64,
}

/// Works on names of its own, so that it knows what may be there.
fn work(namespace: &Path, worker: u64, deeds: &Deeds, is_over: &AtomicBool) {
    let mut random = SmallRng::seed_from_u64(worker);
    let path = |name: u64| -> PathBuf { namespace.join(format!("{worker}-{name}")) };
    // The number of what each name holds, if it holds anything; zero for nothing.
    let mut holds = vec![0_u64; usize::try_from(NAMES).expect("it fits")];
    let mut next = 1;
    while !is_over.load(Ordering::Relaxed) {
        let name = random.random_range(0..NAMES);
        let slot = usize::try_from(name).expect("it fits");
        match random.random_range(0..10) {
            0..4 => {
                let length =
                    if random.random_bool(0.3) { 3000 } else { random.random_range(40_000..1_700_000) };
                let number = worker << 40 | next;
                next += 1;
                let temporary = path(name).with_extension("tmp");
                fs::write(&temporary, object(number, length)).expect("write");
                fs::rename(&temporary, path(name)).expect("rename");
                holds[slot] = number;
                deeds.written.fetch_add(1, Ordering::Relaxed);
            }
            4..9 => match fs::read(path(name)) {
                Ok(found) => {
                    let number = verify_object(&found).expect("a whole object");
                    assert_eq!(number, holds[slot], "{} is older, or came back", path(name).display());
                    deeds.hits.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}: not a miss");
                    deeds.misses.fetch_add(1, Ordering::Relaxed);
                }
            },
            _ if random.random_bool(0.5) => {
                // What is gone already is fine.
                let _ = fs::remove_file(path(name));
                holds[slot] = 0;
                deeds.removed.fetch_add(1, Ordering::Relaxed);
            }
            _ => {
                let other = random.random_range(0..NAMES);
                let target = usize::try_from(other).expect("it fits");
                if other != name && fs::rename(path(name), path(other)).is_ok() {
                    holds[target] = std::mem::take(&mut holds[slot]);
                }
            }
        }
    }
}

#[test]
fn days_of_work_on_both_tiers_keep_every_byte_and_grow_nothing() {
    let disk = tempfile::Builder::new().prefix("tidefs-ssd").tempdir_in("/var/tmp").expect("a directory");
    let dirs = format!("ssd.dirs={}", disk.path().display());
    let mount = Mount::start(&["capacity=96MiB", "ssd.capacity=160MiB", "ssd.zone=8MiB", dirs.as_str()]);
    let namespace = mount.namespace("kv");
    let (began, length) = (Instant::now(), length_of_run());
    let deeds = Deeds::default();
    let mut samples = Vec::new();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (namespace, deeds, is_over) = (&namespace, &deeds, &is_over);
            scope.spawn(move || work(namespace, worker, deeds, is_over));
        }
        while began.elapsed() < length {
            std::thread::sleep(length / 64);
            samples.push(Held::by(&mount));
        }
        // A slow machine takes longer to fill the disk once.
        let reclaimed =
            || mount.control_get("/v1/status").json()["ssd"]["reclaimed_zones"].as_u64() > Some(0);
        until(4 * HANG, reclaimed);
        is_over.store(true, Ordering::Relaxed);
    });
    let status = mount.control_get("/v1/status").json();
    let ssd = &status["ssd"];
    println!(
        "{length:?}: {deeds:?}; {} zones taken back, {} written, {} read",
        ssd["reclaimed_zones"], ssd["devices"][0]["written"], ssd["devices"][0]["read"]
    );
    growth::expect_none(&samples);
    assert!(ssd["reclaimed_zones"].as_u64().expect("a number") > 0, "no zone was taken back: {ssd}");
    for what in ["corrupt_records", "lost_removals"] {
        assert_eq!(ssd[what], 0, "{what}: {ssd}");
    }
    assert_eq!(ssd["devices"][0]["write_errors"], 0, "{ssd}");
    let loaded = mount.control_get("/v1/metrics").text();
    let promotions = loaded.lines().find_map(|line| line.strip_prefix("tidefs_ssd_promotions_total "));
    let promotions: u64 = promotions.and_then(|value| value.trim().parse().ok()).expect("the counter");
    assert!(promotions > 0, "nothing came back from the disk");
}
