//! Whose limit on memory the pages of objects count against, and whether there is memory to spare.

use std::fs;
use std::sync::Once;

use tidefs_engine::types::ByteCount;

use crate::config::MemoryGroup;
use crate::datapath::{SparePredicate, ThreadPredicate};

/// Part of the machine's memory, and of what this daemon's control group may have, that is left to others.
const LEFT: u64 = 16;

/// Tells writers whose control group has a limit on memory that is not this daemon's: what they write without it counts there.
pub(super) fn limited_apart() -> ThreadPredicate {
    let own = MemoryGroup::of_this_process();
    let told = Once::new();
    Box::new(move |thread| {
        let Some(own) = &own else { return false };
        // Who is not known may be in a container.
        let is_apart = MemoryGroup::of_thread(thread.0).is_none_or(|group| group.is_limited_apart_from(own));
        if is_apart {
            told.call_once(|| {
                tracing::info!(
                    "programs with a limit on memory of their own write: files of unknown size go through the daemon, so \
                     that their pages do not count there"
                );
            });
        }
        is_apart
    })
}

/// Tells whether memory may be held that no object uses yet.
pub(super) fn spare() -> SparePredicate {
    let own = MemoryGroup::of_this_process();
    Box::new(move || {
        let machine = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        machine_leaves(&machine, LEFT) && own.as_ref().is_none_or(|group| group.leaves(LEFT))
    })
}

/// Whether a machine with this `/proc/meminfo` has more than this part of its memory available.
fn machine_leaves(meminfo: &str, part: u64) -> bool {
    let field = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    field("MemAvailable").zip(field("MemTotal")).is_some_and(|(available, total)| available > total / part)
}

/// Says so when the control group of this daemon allows less memory than the objects may take.
pub(super) fn warn_of_own_limit(capacity: ByteCount) {
    let limit = MemoryGroup::of_this_process().and_then(|group| group.limit());
    if let Some(limit) = limit.filter(|limit| *limit < capacity) {
        tracing::warn!(%limit, %capacity,
            "the control group of this daemon allows less memory than the capacity: the kernel kills the daemon when objects \
             need more than the limit; raise the limit (systemd: MemoryMax, containers: --memory) or lower memory.capacity");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_has_available_counts() {
        let machine =
            |available: &str| format!("MemTotal:  1600 kB\nMemFree: 7 kB\nMemAvailable: {available} kB\n");
        assert!(machine_leaves(&machine("101"), 16));
        for none in [&machine("100"), &machine("many"), "MemTotal: 1600 kB\n", ""] {
            assert!(!machine_leaves(none, 16), "{none}");
        }
    }
}
