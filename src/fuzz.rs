//! What reads bytes of a disk or of a file that an earlier daemon left, as functions for fuzzing: each may refuse them, and may
//! not panic, hang or take memory that was only announced. See tests/fuzz at the root of the checkout.

use crate::tier::{memory, ssd};

/// A name, and what reads the bytes.
pub type Target = (&'static str, fn(&[u8]));

/// The parsers by name.
pub const TARGETS: &[Target] = &[
    ("ssd_frames", ssd::fuzz::frames),
    ("ssd_disk", ssd::fuzz::disk),
    ("ssd_state_files", ssd::fuzz::state_files),
    ("packed_blocks", memory::fuzz::blocks),
];

#[cfg(test)]
#[path = "../tests/fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::{self, replayed};
    use super::*;

    replayed!(
        TARGETS =>
        ssd_frames: ssd::fuzz::frame_seeds;
        // Each is a start.
        ssd_disk: ssd::fuzz::disk_seeds, replay::MUTANTS / 8;
        ssd_state_files: ssd::fuzz::state_file_seeds;
        packed_blocks: memory::fuzz::block_seeds;
    );
}
