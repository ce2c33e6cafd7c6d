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
    use super::replay::{self, replay};
    use super::*;

    fn by_name(name: &str) -> fn(&[u8]) {
        TARGETS.iter().find(|(known, _)| *known == name).unwrap().1
    }

    /// Every target has a test here.
    macro_rules! targets {
        ($($name:ident: $seeds:path, $mutants:expr;)*) => {
            $(#[test] fn $name() {
                let (name, run) = (stringify!($name), by_name(stringify!($name)));
                replay(&replay::Target { name, run, seeds: $seeds, mutants: $mutants });
            })*

            #[test]
            fn every_target_is_replayed() {
                let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
                assert_eq!(names, [$(stringify!($name)),*]);
            }
        };
    }

    targets!(
        ssd_frames: ssd::fuzz::frame_seeds, replay::MUTANTS;
        // Each is a start.
        ssd_disk: ssd::fuzz::disk_seeds, replay::MUTANTS / 8;
        ssd_state_files: ssd::fuzz::state_file_seeds, replay::MUTANTS;
        packed_blocks: memory::fuzz::block_seeds, replay::MUTANTS;
    );
}
