//! What a daemon holds, and whether that grows over a run.

use std::fs;

use super::Mount;

/// What tables and the allocator may keep beyond what they had in the first half of a run.
const MEMORY_GROWTH_MAX: u64 = 24 << 20;
const DESCRIPTOR_GROWTH_MAX: usize = 24;

/// What a daemon holds at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    /// Anonymous memory, in bytes.
    pub(crate) memory: u64,
    /// Open descriptors.
    pub(crate) descriptors: usize,
}

impl Held {
    /// What the daemon of `mount` holds now.
    #[track_caller]
    pub(crate) fn by(mount: &Mount) -> Self {
        let pid = mount.pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status of the daemon");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a line of it");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("descriptors").count();
        Self { memory: kib << 10, descriptors }
    }

    /// The most of each.
    fn most(samples: &[Self]) -> Self {
        let memory = samples.iter().map(|held| held.memory).max().unwrap_or_default();
        let descriptors = samples.iter().map(|held| held.descriptors).max().unwrap_or_default();
        Self { memory, descriptors }
    }
}

/// Fails when the last quarter of a run holds more than its first half. Prints both.
#[track_caller]
pub(crate) fn expect_none(samples: &[Held]) {
    let quarter = samples.len() / 4;
    let (before, after) =
        (Held::most(&samples[..2 * quarter]), Held::most(&samples[samples.len() - quarter..]));
    println!(
        "memory {} -> {} MiB, descriptors {} -> {}",
        before.memory >> 20,
        after.memory >> 20,
        before.descriptors,
        after.descriptors
    );
    assert!(after.memory <= before.memory + MEMORY_GROWTH_MAX, "memory grew: {before:?}, then {after:?}");
    let most = before.descriptors + DESCRIPTOR_GROWTH_MAX;
    assert!(after.descriptors <= most, "descriptors grew: {before:?}, then {after:?}");
}

/// Steps of a run below which the noise of single samples says more than what each step costs.
const STEPS_MIN: usize = 32;

/// Fails when each step of a run leaves more than `bytes_max` of memory behind, by what was held in the middle of either half
/// after the first quarter, in which tables grow to their size. Prints what was held, and what each step left.
#[track_caller]
pub(crate) fn expect_none_by_step(samples: &[Held], bytes_max: u64) {
    let Some((first, last)) = samples.first().zip(samples.last()) else { return };
    let steady = &samples[samples.len() / 4..];
    let (before, after) = steady.split_at(steady.len() / 2);
    let steps = (before.len() + after.len()) / 2;
    let growth = median(after).saturating_sub(median(before));
    let by_step = growth / u64::try_from(steps.max(1)).unwrap_or(u64::MAX);
    println!(
        "memory {:.1} MiB in the beginning, {:.1} in the middle, {:.1} in the end; {by_step} bytes more for each of {steps} steps",
        mib(first.memory),
        mib(samples[samples.len() / 2].memory),
        mib(last.memory),
    );
    if samples.len() >= STEPS_MIN {
        assert!(by_step <= bytes_max, "each step leaves {by_step} bytes behind, {bytes_max} are allowed");
    }
}

fn median(samples: &[Held]) -> u64 {
    let mut memory: Vec<u64> = samples.iter().map(|held| held.memory).collect();
    memory.sort_unstable();
    memory.get(memory.len() / 2).copied().unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "a number to read")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
