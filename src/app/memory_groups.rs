//! Whose limit on memory the pages of objects count against.

use std::sync::Once;

use tidefs_engine::types::ByteCount;

use crate::config::MemoryGroup;
use crate::datapath::ThreadPredicate;

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

/// Says so when the control group of this daemon allows less memory than the objects may take.
pub(super) fn warn_of_own_limit(capacity: ByteCount) {
    let limit = MemoryGroup::of_this_process().and_then(|group| group.limit());
    if let Some(limit) = limit.filter(|limit| *limit < capacity) {
        tracing::warn!(%limit, %capacity,
            "the control group of this daemon allows less memory than the capacity: the kernel kills the daemon when objects \
             need more than the limit; raise the limit (systemd: MemoryMax, containers: --memory) or lower memory.capacity");
    }
}
