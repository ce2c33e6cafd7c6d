//! What stays in memory once everything is closed: what has a name, and nothing else.

use std::time::Duration;

use tidefs_engine::types::ByteCount;

use super::Logic;
use crate::system::{System, WATCHER};

/// Longer than anything waits for somebody to come back.
const LONG: Duration = Duration::from_secs(120);

impl Logic {
    /// Closes everything, lets the time pass for which things wait, and sees that names account for the memory that is in use.
    /// The kernel forgets nothing by itself.
    pub(crate) fn assert_all_is_accounted_for(&mut self) {
        for token in self.handles.keys().copied().collect::<Vec<_>>() {
            self.close(WATCHER, token);
        }
        self.clock.advance(LONG);
        self.datapath().expire();
        (0..2).for_each(|_| self.datapath().sweep());

        let mut sizes = Vec::new();
        self.sizes_below("", &mut sizes);
        let overview = self.datapath().overview().expect("the tier answers");
        let (packed, used) = (overview.packed, overview.usage.used);
        let named: u64 = sizes.iter().map(|size| ByteCount(*size).round_up_to_pages().get()).sum();
        assert!(
            used.get() <= named + packed.bytes_allocated.get(),
            "{used} are in use, names account for {named} bytes; packed: {packed:?}"
        );
        let is_all_in_segments =
            overview.scratch_files == 0 && !self.setup.has_ssd && self.setup.packed_max.get() == 0;
        if is_all_in_segments {
            assert!(used.get() >= named, "a hole is left: {used} for {named} bytes");
        }
        let small = sizes.iter().filter(|size| **size < self.setup.packed_max.get()).count() as u64;
        assert!(packed.objects.0 <= small, "{small} names of small objects, and {packed:?}");
    }

    fn sizes_below(&mut self, path: &str, sizes: &mut Vec<u64>) {
        for name in self.list(WATCHER, path).expect("a directory") {
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            // Named by the listing a moment ago; nothing else goes on.
            let facts = self.stat(WATCHER, &path).expect("it is there");
            if facts.is_directory {
                self.sizes_below(&path, sizes);
            } else {
                sizes.push(facts.size);
            }
        }
    }
}
