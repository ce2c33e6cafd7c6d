//! What the others notice when a member is killed that held many objects.
//!
//! The first host holds the objects and is killed; names of the last one, and names of nobody, are looked up on the second,
//! each once, before that and until everything the first one held is forgotten.

use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use tidefs_client::Cache;
use tidefs_engine::types::ByteCount;

use super::ClusterArgs;
use super::hosts::{Hosts, Start};
use crate::bench::error::Error;
use crate::bench::local::progress_bar;
use crate::bench::machine;
use crate::bench::report::{Row, Target, Unit};
use crate::bench::statistics::{Spread, percentile};

/// Hosts: one that is lost, one that looks, one whose names are looked up.
pub(super) const HOSTS: u16 = 3;
/// Bytes of an object.
const SIZE: ByteCount = ByteCount::kib(4);
/// Objects of the host that stays.
const KEPT: u32 = 40_000;
/// Objects that are put at once.
const BATCH: u32 = 500;
/// Memory of a host beside the objects and what they take in shared memory.
const SLACK: ByteCount = ByteCount::mib(512);
/// Every how many of the lost names are looked at, to see that all hosts know them, and have forgotten them.
const PROBED: u32 = 997;
/// How long what was put may take to be known to all.
const KNOWN: Duration = Duration::from_secs(60);
/// How long a lost member is waited for: `cluster.grace_s`.
const GRACE_S: u64 = 10;
/// Look-ups of as long are judged together.
const WINDOW: Duration = Duration::from_secs(5);
/// Windows before the loss, and after it: until its registration has run out, the grace has passed, and for a while more.
const WINDOWS: [usize; 2] = [3, 7];
/// Between look-ups.
const PAUSE: Duration = Duration::from_millis(1);
/// How much longer than before one look-up in a hundred may take.
const MOST: f64 = 2.0;

/// What is looked up: each name once, until those of the host that stays are used up.
struct Looks<'a> {
    directory: &'a Path,
    number: u32,
}

impl Looks<'_> {
    /// Looks names up for the time of a window. Returns how long each took, in microseconds and in order.
    fn window(&mut self) -> Result<Vec<f64>, Error> {
        let until = Instant::now() + WINDOW;
        let mut times = Vec::new();
        while Instant::now() < until {
            let is_kept = self.number.is_multiple_of(2);
            let name = if is_kept { kept(self.number / 2 % KEPT) } else { format!("none-{}", self.number) };
            self.number += 1;
            let path = self.directory.join(name);
            let started = Instant::now();
            let exists = path.exists();
            times.push(started.elapsed().as_secs_f64() * 1e6);
            if exists != is_kept {
                let what = if exists { "is there, though nobody wrote it" } else { "is not found" };
                return Err(Error::Invalid(format!("{} {what}", path.display())));
            }
            std::thread::sleep(PAUSE);
        }
        times.sort_unstable_by(f64::total_cmp);
        Ok(times)
    }
}

/// Kills a host that holds `count` objects, and returns the rows and what there is to note.
///
/// # Errors
/// When memory is short, a host does not start or says no, a name of the host that stays is not found, or one of the lost
/// host is found in the end.
pub(super) fn measure(args: &ClusterArgs, count: u32) -> Result<(Vec<Row>, String), Error> {
    let capacity = capacity_for(count)?;
    let options: Vec<String> =
        [format!("cluster.grace_s={GRACE_S}")].into_iter().chain(args.options.iter().cloned()).collect();
    let start = Start { hosts: HOSTS, capacity, transport: &args.transport, options: &options };
    let hosts = Hosts::start(&start)?;
    let [lost_at, there, kept_at] = &hosts.directories[..] else {
        return Err(Error::Invalid(format!("there are not {HOSTS} hosts")));
    };
    let (lost_at, there, kept_at) = (lost_at.clone(), there.clone(), kept_at.clone());
    let progress = progress_bar((u64::from(count) + u64::from(KEPT)) / u64::from(BATCH));
    progress.set_message("objects");
    put(&lost_at, count, lost, &progress)?;
    put(&kept_at, KEPT, kept, &progress)?;
    let probes: Vec<_> = (0..count).step_by(PROBED as usize).map(|number| there.join(lost(number))).collect();
    // What is asked for in order to see it is not asked for again.
    let known = [lost_at.join(kept(KEPT - 1)), lost_at.join(kept(0))];
    wait_until("all names are known", || probes.iter().chain(&known).all(|path| path.exists()))?;

    progress.set_message("before the loss");
    let mut looks = Looks { directory: &there, number: 0 };
    let mut before = Vec::new();
    for _ in 0..WINDOWS[0] {
        before.push(percentile(&looks.window()?, 0.99));
    }
    hosts.kill(0)?;
    progress.set_message("after the loss");
    let (mut after, mut longest) = (Vec::new(), 0.0_f64);
    for _ in 0..WINDOWS[1] {
        let times = looks.window()?;
        after.push(percentile(&times, 0.99));
        longest = times.last().copied().unwrap_or_default().max(longest);
    }
    if let Some(found) = probes.iter().find(|path| path.exists()) {
        return Err(Error::Invalid(format!("{} is found, whose host was killed", found.display())));
    }
    progress.finish_and_clear();
    let each: Vec<String> = after.iter().map(|time| format!("{time:.0}")).collect();
    let seconds = WINDOW.as_secs();
    let note = format!("p99 of each {seconds} s after the loss, in microseconds: {}", each.join(", "));
    Ok((rows(&before, &after, longest), note))
}

fn rows(before: &[f64], after: &[f64], longest: f64) -> Vec<Row> {
    let (usual, worst) = (Spread::of(before), after.iter().copied().fold(0.0, f64::max));
    let ratio = usual.map(|usual| Spread::single(worst / usual.median));
    let case = format!("look-up, p99 of the worst {} s after the loss", WINDOW.as_secs());
    let plain = |case: &str, value, target| Row::plain(case, None, Unit::Microseconds, value, target);
    vec![
        plain("look-up, p99 before the loss", usual, None),
        Row {
            baseline: usual,
            baseline_name: "before",
            ratio,
            ..plain(&case, Some(Spread::single(worst)), Some(Target::RatioAtMost(MOST)))
        },
        plain("the longest look-up after the loss", Some(Spread::single(longest)), None),
    ]
}

fn lost(number: u32) -> String {
    format!("lost-{number:08}")
}

fn kept(number: u32) -> String {
    format!("kept-{number:08}")
}

fn put(
    directory: &Path,
    count: u32,
    name: impl Fn(u32) -> String,
    progress: &ProgressBar,
) -> Result<(), Error> {
    let bytes = vec![7; usize::try_from(SIZE.get()).unwrap_or(usize::MAX)];
    let refused = |error: tidefs_client::Error| Error::Invalid(format!("{}: {error}", directory.display()));
    let cache = Cache::open(directory).map_err(refused)?;
    for first in (0..count).step_by(BATCH as usize) {
        let names: Vec<String> = (first..count.min(first + BATCH)).map(&name).collect();
        let objects: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &bytes[..])).collect();
        cache.put_many(&objects).map_err(refused)?;
        progress.inc(1);
    }
    Ok(())
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) -> Result<(), Error> {
    let until = Instant::now() + KNOWN;
    while !is_so() {
        if Instant::now() >= until {
            return Err(Error::Invalid(format!("not so after {} s: {what}", KNOWN.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Memory of each host. Only the one that is lost fills it.
fn capacity_for(count: u32) -> Result<ByteCount, Error> {
    let objects = u64::from(count.max(KEPT)) * SIZE.get();
    let capacity = ByteCount(objects + objects / 4 + SLACK.get());
    let needed = ByteCount(capacity.get() + u64::from(HOSTS - 1) * SLACK.get());
    let available = machine::meminfo("MemAvailable");
    if available < needed {
        let advice = "give a smaller --lose-objects";
        return Err(Error::Memory { what: "this bench", needed, available, advice });
    }
    Ok(capacity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::Verdict;

    #[test]
    fn the_worst_window_is_judged_by_the_usual_one_before() {
        let rows = rows(&[300.0, 500.0, 400.0], &[350.0, 790.0, 360.0], 9000.0);
        assert_eq!(rows[1].ratio.unwrap().median, 790.0 / 400.0);
        assert_eq!(rows[1].verdict(), Verdict::Pass);
        assert_eq!(super::rows(&[400.0], &[350.0, 801.0], 9000.0)[1].verdict(), Verdict::Below);
    }
}
