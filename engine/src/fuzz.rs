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
    use super::replay::{self, replayed};
    use super::*;

    replayed!(
        TARGETS =>
        link_frames: link::fuzz::frame_seeds;
        link_greeting: link::fuzz::greeting_seeds;
        link_identity: link::fuzz::identity_seeds;
        engine_descriptors: engine::fuzz::descriptor_seeds;
        engine_questions: engine::fuzz::question_seeds;
        tcp_frames: transport::tcp::fuzz::frame_seeds;
        tcp_grants: transport::tcp::fuzz::grant_seeds;
        shm_packets: transport::shm::fuzz::packet_seeds;
        libfabric_messages: transport::libfabric::fuzz::message_seeds;
    );
}
