//! How much was copied, and how much was not.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::View;

/// What a cache has shown and copied since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Views of the bytes of the cache themselves.
    pub mapped_views: u64,
    /// Look-ups that a kept reference answered, without the daemon.
    pub kept_views: u64,
    /// Views of bytes that were copied: of small objects, and of what came by file.
    pub copied_views: u64,
    /// Bytes that those hold.
    pub copied_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    mapped_views: AtomicU64,
    kept_views: AtomicU64,
    copied_views: AtomicU64,
    copied_bytes: AtomicU64,
}

impl Counters {
    /// Counts the views of one batch.
    pub(crate) fn count<'a>(&self, views: impl Iterator<Item = &'a View>) {
        let mut sum = Statistics::default();
        for view in views {
            if view.is_mapped() {
                sum.mapped_views += 1;
            } else {
                sum.copied_views += 1;
                sum.copied_bytes += view.len() as u64;
            }
        }
        let pairs = [
            (&self.mapped_views, sum.mapped_views),
            (&self.copied_views, sum.copied_views),
            (&self.copied_bytes, sum.copied_bytes),
        ];
        for (counter, more) in pairs.into_iter().filter(|(_, more)| *more > 0) {
            counter.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Counts look-ups that the daemon was not asked for.
    pub(crate) fn count_kept(&self, views: usize) {
        self.kept_views.fetch_add(views as u64, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Statistics {
        Statistics {
            mapped_views: self.mapped_views.load(Ordering::Relaxed),
            kept_views: self.kept_views.load(Ordering::Relaxed),
            copied_views: self.copied_views.load(Ordering::Relaxed),
            copied_bytes: self.copied_bytes.load(Ordering::Relaxed),
        }
    }
}
