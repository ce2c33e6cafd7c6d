//! What most tests of this target begin with.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Mode, Mount, pattern};

/// One MiB, as a length.
pub(crate) const MIB: usize = 1 << 20;

/// The sizes at which something changes: nothing, a page, the packed limit, a huge page's half, the largest request.
pub(crate) const SIZES: [usize; 14] = [
    0,
    1,
    4095,
    4096,
    4097,
    32 * 1024 - 1,
    32 * 1024,
    32 * 1024 + 1,
    MIB - 1,
    MIB,
    MIB + 1,
    16 * MIB - 1,
    16 * MIB,
    16 * MIB + 1,
];

/// [`SIZES`], without those above `TIDEFS_TEST_LARGEST` bytes where that is set: for machines that are emulated.
pub(crate) fn sizes() -> impl Iterator<Item = usize> {
    let largest = std::env::var("TIDEFS_TEST_LARGEST").map_or(usize::MAX, |bytes| {
        bytes.parse().unwrap_or_else(|_| panic!("TIDEFS_TEST_LARGEST={bytes} is no number of bytes"))
    });
    SIZES.into_iter().filter(move |length| *length <= largest)
}

/// A mount in this mode with a namespace `kv`, and the path of that namespace.
pub(crate) fn kv(mode: Mode) -> (Mount, PathBuf) {
    kv_with(mode, &[])
}

/// [`kv`] with more options.
pub(crate) fn kv_with(mode: Mode, options: &[&str]) -> (Mount, PathBuf) {
    let mount = Mount::start(&mode.options(options));
    let namespace = mount.namespace("kv");
    (mount, namespace)
}

/// Writes `bytes` by a temporary name and a rename, as most clients publish.
#[track_caller]
pub(crate) fn publish(path: &Path, bytes: &[u8]) {
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, bytes).unwrap_or_else(|error| panic!("write {}: {error}", temporary.display()));
    fs::rename(&temporary, path).unwrap_or_else(|error| panic!("rename to {}: {error}", path.display()));
}

/// Publishes the self-describing object `seed`.
#[track_caller]
pub(crate) fn publish_object(path: &Path, seed: u64, length: usize) {
    publish(path, &pattern::object(seed, length));
}

/// `usize` as an offset of a file.
pub(crate) fn offset(value: usize) -> u64 {
    u64::try_from(value).expect("usize fits u64")
}

/// `usize` as `off_t`.
pub(crate) fn signed(value: usize) -> i64 {
    i64::try_from(value).expect("the offset fits off_t")
}
