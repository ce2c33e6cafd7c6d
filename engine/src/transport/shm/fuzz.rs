//! The parsers of this folder for fuzzing.

use super::wire::Packet;
use super::{Question, Reply};

/// Packets of a connection, and what is asked and answered before there is one.
pub(crate) fn packets(bytes: &[u8]) {
    if let Some(packet) = Packet::decode(bytes) {
        assert_eq!(Packet::decode(&packet.encode()), Some(packet));
    }
    let _ = postcard::take_from_bytes::<Question>(bytes);
    let _ = postcard::from_bytes::<Reply>(bytes);
}

#[cfg(test)]
pub(crate) fn packet_seeds() -> Vec<Vec<u8>> {
    use crate::types::{ByteCount, RegionId};
    let id = RegionId(5);
    let packets = [
        Packet::Welcome,
        Packet::Map { id },
        Packet::Mapped { id, length: ByteCount(4096), is_writable: true, word: 9 },
        Packet::Revoked { id },
    ];
    let mut seeds: Vec<_> = packets.iter().map(|packet| packet.encode().to_vec()).collect();
    let granted = Reply::Granted { name: b"tidefs-shm-".to_vec(), token: [1; 16] };
    let question = postcard::to_allocvec(&Question { version: 1, boot_id: [2; 16] });
    seeds.extend([postcard::to_allocvec(&granted), question].into_iter().flatten());
    seeds
}
