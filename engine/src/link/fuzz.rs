//! The parsers of this folder for fuzzing.

#[cfg(test)]
use super::frame::Kind;
use super::frame::{HEADER_BYTES, Header};
use super::handshake::{GREETING_BYTES, Greeting, Identity, Verdict};
use super::inbox::Inbox;

/// Longest body that the stream below may have.
const BODY_BYTES_MAX: usize = 32 << 10;

/// A stream of frames, cut into reads whose length the first byte says. Mended headers come through, so that what is behind
/// the checksum is reached too.
pub(crate) fn frames(bytes: &[u8]) {
    let Some((&cut, bytes)) = bytes.split_first() else { return };
    let mut mended = bytes.to_vec();
    if let Some(header) = mended.first_chunk_mut::<HEADER_BYTES>() {
        let checksum = crc32fast::hash(&header[..HEADER_BYTES - 4]);
        header[HEADER_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
    }
    for stream in [bytes, &mended] {
        let (mut inbox, mut delivered) = (Inbox::default(), Vec::new());
        for read in stream.chunks(usize::from(cut) + 1) {
            let mut deliver = |header: Header, body: Vec<u8>| {
                assert_eq!(body.len(), header.length as usize);
                delivered.extend(header.bytes());
                delivered.extend(body);
                Ok(())
            };
            if inbox.take_in(read, BODY_BYTES_MAX, &mut deliver).is_err() {
                break;
            }
        }
        assert!(stream.starts_with(&delivered), "what is delivered is what was sent");
    }
}

#[cfg(test)]
pub(crate) fn frame_seeds() -> Vec<Vec<u8>> {
    let frame = |kind, body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap_or(0);
        let header = Header { correlation: 7, length, ..Header::bare(kind) };
        [&header.bytes()[..], body].concat()
    };
    let (ask, ping) = (frame(Kind::Request, b"question"), frame(Kind::Ping, b""));
    vec![
        [&[23][..], &ask, &ping, &ask].concat(),
        [&[200][..], &frame(Kind::Refusal, "nö".as_bytes())].concat(),
    ]
}

pub(crate) fn greeting(bytes: &[u8]) {
    if let Some(greeting) = bytes.first_chunk::<GREETING_BYTES>()
        && let Ok(parsed) = Greeting::parse(greeting)
    {
        assert_eq!(Greeting::parse(&parsed.bytes()), Ok(parsed));
        let _ = super::handshake::VERSIONS.agree(parsed.versions);
    }
    if let Some(&byte) = bytes.first() {
        let _ = Verdict::parse(byte);
    }
}

#[cfg(test)]
pub(crate) fn greeting_seeds() -> Vec<Vec<u8>> {
    let greeting = Greeting { versions: super::handshake::VERSIONS, nonce: [5; 32] };
    vec![greeting.bytes().to_vec(), vec![1]]
}

pub(crate) fn identity(bytes: &[u8]) {
    if let Ok(parsed) = Identity::parse(bytes)
        && let Ok(again) = parsed.bytes()
    {
        assert_eq!(Identity::parse(&again), Ok(parsed));
    }
}

#[cfg(test)]
pub(crate) fn identity_seeds() -> Vec<Vec<u8>> {
    let identity = Identity {
        peer: crate::types::PeerId::default(),
        boot: super::BootId([9; 16]),
        addresses: ["10.0.0.1:7000", "[fd00::1]:7000"].iter().filter_map(|text| text.parse().ok()).collect(),
        token: Some([3; 32]),
    };
    vec![identity.bytes().unwrap_or_default()]
}
