//! The parsers of this folder for fuzzing.

use super::descriptor::{Bytes, Describe, Described, Exchanged, PeerDescriptor, RegionDescriptor};

/// What engines publish about themselves.
pub(crate) fn descriptors(bytes: &[u8]) {
    if let Ok(peer) = PeerDescriptor::decode(bytes) {
        assert_eq!(PeerDescriptor::decode(&peer.encode()), Ok(peer));
    }
    if let Ok(region) = RegionDescriptor::decode(bytes) {
        assert_eq!(RegionDescriptor::decode(&region.encode()), Ok(region));
    }
}

#[cfg(test)]
pub(crate) fn descriptor_seeds() -> Vec<Vec<u8>> {
    use crate::types::{ByteCount, PeerId, RegionId};
    let peer = PeerDescriptor {
        id: PeerId::default(),
        addresses: ["10.0.0.1:7000", "[fd00::1]:7000"].iter().filter_map(|text| text.parse().ok()).collect(),
        transports: vec!["shm".to_owned(), "tcp".to_owned()],
    };
    let keys = vec![("tcp".to_owned(), vec![1; 8]), ("libfabric".to_owned(), vec![2; 100])];
    let region = RegionDescriptor { id: RegionId(3), length: ByteCount::gib(1), is_writable: true, keys };
    vec![peer.encode(), region.encode(), Described { regions: vec![Some(region), None] }.to_bytes()]
}

/// What engines ask each other about regions and transports.
pub(crate) fn questions(bytes: &[u8]) {
    let _ = Describe::from_bytes(bytes);
    let _ = Described::from_bytes(bytes);
    if let Ok(exchanged) = Exchanged::from_bytes(bytes) {
        let again = Exchanged::from_bytes(&exchanged.to_bytes());
        assert!(again.is_ok_and(|again| again.request == exchanged.request));
    }
}

#[cfg(test)]
pub(crate) fn question_seeds() -> Vec<Vec<u8>> {
    let describe = Describe { regions: (1..40).map(crate::types::RegionId).collect() };
    let exchanged = Exchanged { transport: "shm".to_owned(), request: vec![1, 2, 3] };
    let mut seeds = descriptor_seeds();
    seeds.extend([describe.to_bytes(), exchanged.to_bytes()]);
    seeds
}
