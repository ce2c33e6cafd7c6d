//! What reads bytes of a peer, as functions for fuzzing: each may refuse them, and may not panic, hang or take memory
//! that was only announced. See tests/fuzz at the root of the checkout.

use crate::{engine, link, transport};

/// A name, and what reads the bytes.
pub type Target = (&'static str, fn(&[u8]));

/// The parsers by name.
pub const TARGETS: &[Target] = &[
    ("link_frames", link::fuzz::frames),
    ("link_greeting", link::fuzz::greeting),
    ("link_identity", link::fuzz::identity),
    ("engine_descriptors", engine::fuzz::descriptors),
    ("engine_questions", engine::fuzz::questions),
    ("tcp_frames", transport::tcp::fuzz::frames),
    ("tcp_grants", transport::tcp::fuzz::grants),
    ("shm_packets", transport::shm::fuzz::packets),
    ("libfabric_messages", transport::libfabric::fuzz::messages),
];

#[cfg(test)]
#[path = "../../tests/fuzz/replay.rs"]
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
        ($($name:ident: $seeds:path),* $(,)?) => {
            $(#[test] fn $name() {
                let (name, run) = (stringify!($name), by_name(stringify!($name)));
                replay(&replay::Target { name, run, seeds: $seeds, mutants: replay::MUTANTS });
            })*

            #[test]
            fn every_target_is_replayed() {
                let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
                assert_eq!(names, [$(stringify!($name)),*]);
            }
        };
    }

    targets!(
        link_frames: link::fuzz::frame_seeds,
        link_greeting: link::fuzz::greeting_seeds,
        link_identity: link::fuzz::identity_seeds,
        engine_descriptors: engine::fuzz::descriptor_seeds,
        engine_questions: engine::fuzz::question_seeds,
        tcp_frames: transport::tcp::fuzz::frame_seeds,
        tcp_grants: transport::tcp::fuzz::grant_seeds,
        shm_packets: transport::shm::fuzz::packet_seeds,
        libfabric_messages: transport::libfabric::fuzz::message_seeds,
    );
}
