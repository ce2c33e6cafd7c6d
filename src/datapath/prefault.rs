//! Touches free memory ahead of objects, where the first touch of memory is slow.
//!
//! A virtual machine gets memory from its host when it touches it, and may give back what was free for some seconds: the first
//! write of 4 MiB then takes ten milliseconds where half of one is usual. A machine that gives back says so; for others it
//! is measured whether that is so: memory is touched, freed, and touched again.
//!
//! Invariant: what is held is within what is free in the tier, so that both together stay within the capacity; close to a full
//! cache nothing is held, since what is evicted was touched.
//! Limits: `memory.prefault_max`, and nothing while the machine, or this daemon's control group, has little memory left; a chunk
//! every [`BUSY_PAUSE`] while the processors have little time.
//! Threads: the thread of [`Datapath::make_blanks`], at idle priority.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tidefs_engine::types::ByteCount;

use super::Datapath;
use super::processors::Processors;
use crate::ffi::IdlePriority;
use crate::tier::memory::{CHUNK, HugePage, Prefault};

/// Chunks that are touched twice to see whether the first time is slower.
const SAMPLE: u32 = 4;
/// How many times slower: zeroing takes as long each time, give or take the rest of the machine.
const SLOWER: u32 = 4;
/// How long until that is looked at again, at first and at last: memory that others had freed is fast.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How long after the start nothing is touched: a daemon that begins has more urgent things to do.
const START: Duration = Duration::from_secs(1);
/// How often it is looked at whether there is memory to spare.
const SPARE_LOOK: Duration = Duration::from_secs(1);
/// How long nothing is touched after a chunk that was touched while others work: until the host has given it, nobody else has
/// that processor.
const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// Where the devices are that a virtual machine has from its host.
const DEVICES: &str = "/sys/bus/virtio/devices";
/// The kind of the one by which it gives memory back.
const BALLOON: &str = "0x0005";
/// The bit, among its features, by which it does so with all that is free (`VIRTIO_BALLOON_F_REPORTING`).
const REPORTING: usize = 5;

/// What the thread that touches knows.
#[derive(Debug)]
pub(super) struct Prefaulting {
    is_slow: bool,
    /// Until when nothing is touched.
    resume: Duration,
    /// How long the last pause was.
    pause: Duration,
    has_spare: bool,
    /// When it is looked at again whether there is memory to spare.
    spare_look: Duration,
    processors: Processors,
    /// Where it touches.
    page: Option<HugePage>,
}

impl Prefaulting {
    /// That of a thread that begins `now`, and touches memory in `page`, if there is one.
    pub(super) fn new(now: Duration, page: Option<HugePage>) -> Self {
        let (is_slow, has_spare) = (false, false);
        let processors = Processors::default();
        let (resume, pause) = (now + START, Duration::ZERO);
        Self { is_slow, resume, pause, has_spare, spare_look: now, processors, page }
    }

    /// Touches nothing for a while, each time for twice as long.
    fn wait(&mut self, now: Duration) {
        self.pause = self.pause.saturating_mul(2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.resume = now + self.pause;
    }
}

impl Datapath {
    /// Touches a chunk of memory, if one is to be. Returns whether another one may be.
    pub(super) fn prefault(&self, work: &mut Prefaulting, idle: &IdlePriority) -> bool {
        let Some(prefault) = self.tier.prefault() else { return false };
        let now = self.clock.monotonic();
        if now >= work.spare_look {
            work.spare_look = now + SPARE_LOOK;
            work.has_spare = (self.settings.has_spare_memory)();
        }
        let free = self.tier.usage().map_or(ByteCount::ZERO, |usage| usage.free);
        let free = if work.has_spare { free } else { ByteCount::ZERO };
        let held = idle.suspended(|| {
            self.give_up_prefault(free);
            prefault.bytes()
        });
        let target = self.prefault_target(prefault, free);
        if now < work.resume || target.saturating_sub(held) < CHUNK {
            return false;
        }
        if !work.is_slow {
            if target < ByteCount(u64::from(SAMPLE) * CHUNK.get()) {
                return false;
            }
            if !gives_memory_back(Path::new(DEVICES)) && !is_first_touch_slow(prefault, &mut work.page, idle)
            {
                work.wait(now);
                return false;
            }
            tracing::info!(
                bytes = %target,
                in_steps = work.page.is_some(),
                "the first touch of memory is slow here, as in a virtual machine: memory is touched ahead of objects"
            );
            work.is_slow = true;
            return true;
        }
        let have_time = work.processors.have_time(now);
        match prefault.touch(&mut work.page, idle) {
            Ok(_) => {
                // Others have written since: at idle priority a touch takes as long as they let it.
                let free = self.tier.usage().map_or(ByteCount::ZERO, |usage| usage.free);
                idle.suspended(|| self.give_up_prefault(free));
                if !have_time {
                    work.resume = self.clock.monotonic() + BUSY_PAUSE;
                }
                have_time
            }
            Err(error) => {
                tracing::debug!(%error, "no memory is touched ahead for a while");
                work.wait(now);
                false
            }
        }
    }

    /// Gives up what is held beyond the part of `free` bytes of the tier that may be.
    pub(super) fn give_up_prefault(&self, free: ByteCount) {
        let Some(prefault) = self.tier.prefault() else { return };
        prefault.give_up(prefault.bytes().saturating_sub(self.prefault_target(prefault, free)));
    }

    /// How much is to be held while so much is free: nothing of what the cache is about to use again itself.
    fn prefault_target(&self, prefault: &Prefault, free: ByteCount) -> ByteCount {
        let headroom = self.settings.write_headroom;
        free.saturating_sub(headroom.saturating_add(headroom)).min(prefault.bytes_max())
    }

    /// Bytes of free memory that are touched ahead, beside what is in use.
    pub(super) fn prefaulted(&self) -> ByteCount {
        self.tier.prefault().map_or(ByteCount::ZERO, Prefault::bytes)
    }
}

/// Whether this is a virtual machine that gives its host all memory that is free for some seconds.
///
/// # Source
/// Virtual I/O Device specification 1.2, 5.5.3; sysfs writes the features as one digit for each bit, the lowest first.
fn gives_memory_back(devices: &Path) -> bool {
    let is_such = |device: &Path| {
        let read = |name| fs::read_to_string(device.join(name)).unwrap_or_default();
        read("device").trim() == BALLOON && read("features").as_bytes().get(REPORTING) == Some(&b'1')
    };
    fs::read_dir(devices)
        .is_ok_and(|mut all| all.any(|device| device.is_ok_and(|device| is_such(&device.path()))))
}

/// Whether memory that nobody touched lately takes much longer than memory that was just freed. Nothing is held after that.
fn is_first_touch_slow(prefault: &Prefault, page: &mut Option<HugePage>, idle: &IdlePriority) -> bool {
    let mut touch_all = || {
        let took: Option<Duration> = (0..SAMPLE).map(|_| prefault.touch(page, idle).ok()).sum();
        idle.suspended(|| prefault.give_up(prefault.bytes()));
        took
    };
    let (first, again) = (touch_all(), touch_all());
    first.zip(again).is_some_and(|(first, again)| is_slower(first, again))
}

fn is_slower(first: Duration, again: Duration) -> bool {
    first > again.saturating_mul(SLOWER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_gives_memory_back_when_its_balloon_reports_what_is_free() {
        let devices = tempfile::tempdir().unwrap();
        assert!(!gives_memory_back(devices.path()) && !gives_memory_back(&devices.path().join("none")));
        for (name, kind, features, gives) in [
            ("a", "0x0001", "111111", false),
            ("b", "0x0005", "111110", false),
            ("c", "0x0005", "000001", true),
        ] {
            let device = devices.path().join(name);
            fs::create_dir(&device).unwrap();
            fs::write(device.join("device"), format!("{kind}\n")).unwrap();
            fs::write(device.join("features"), format!("{features}0000\n")).unwrap();
            assert_eq!(gives_memory_back(devices.path()), gives, "{name}");
        }
    }

    #[test]
    fn the_first_touch_is_slow_when_it_takes_many_times_as_long_as_the_next() {
        let usual = Duration::from_micros(400);
        assert!(!is_slower(usual, usual) && !is_slower(usual * 4, usual));
        assert!(is_slower(Duration::from_millis(19), usual));
    }
}
