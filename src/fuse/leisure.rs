//! Requests of the fast path that may take long: they are answered off the session threads.
//!
//! What is begun is allocated in full before its client is told of it, a gigabyte in a good part of a second, and others may have
//! to leave memory for it. Copies have a bound of their own, which many objects keep that are made of few bytes each; they and pins
//! write a record for each entry, which 511 may and 65,536 may not. What takes long elsewhere is bounded by the number of entries.

use tidefs_control_api::ioctl::{Body, Command, Flags, Header, Request};
use tidefs_engine::types::ByteCount;

use crate::datapath::AREA_MAX;

/// Whether a request begins more than a session thread allocates while others wait for it, which is as many bytes as it copies at
/// most, or writes many records. What lies in an area is not looked at, which its client may change meanwhile: such a request
/// has many entries.
pub(super) fn is_long(command: Command, payload: &[u8]) -> bool {
    if !matches!(command, Command::Create | Command::PutFrom | Command::Pin) {
        return false;
    }
    let is_in_area = |header: Header| Flags(header.flags.get()).has(Flags::IN_AREA) && header.records() > 0;
    if Header::of_request(command, payload).is_ok_and(is_in_area) {
        return true;
    }
    Request::parse(command, payload).is_ok_and(|request| match &request.body {
        Body::Create(records) => {
            let add = |sum: ByteCount, size| sum.saturating_add(ByteCount(size));
            records.iter().map(|create| create.size).fold(ByteCount::ZERO, add) > AREA_MAX
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use tidefs_control_api::ioctl::{AreaCall, Create, Encoder, Name, PIN_HARD, Pin};
    use zerocopy::IntoBytes as _;

    use super::*;

    #[test]
    fn what_begins_more_than_an_area_holds_takes_long() {
        let begins = |sizes: &[u64]| {
            let mut request = Encoder::new(Flags::NONE, 0, 0);
            for &size in sizes {
                assert!(request.push(&Create { size, mode: 0o600, name: Name(b"key") }));
            }
            is_long(Command::Create, &request.finish())
        };
        let most = AREA_MAX.get();
        assert!(!begins(&[]) && !begins(&[most]) && !begins(&[most / 2, most / 2]));
        assert!(begins(&[most + 1]) && begins(&[most / 2, most / 2, 1]) && begins(&[u64::MAX, u64::MAX]));
        assert!(!is_long(Command::Create, b"no request"));
    }

    #[test]
    fn what_writes_as_many_records_as_lie_in_an_area_takes_long() {
        let asks = |flags: Flags, command: Command| {
            let mut request = Encoder::new(flags, 0, 0);
            assert!(request.push(&Pin { ttl_s: 0, pin: PIN_HARD, name: Name(b"key") }));
            let header = request.header();
            let rest = if flags == Flags::NONE {
                request.records().to_vec()
            } else {
                vec![0; size_of::<AreaCall>()]
            };
            is_long(command, &[header.as_bytes(), &rest[..]].concat())
        };
        for command in [Command::PutFrom, Command::Pin] {
            assert!(asks(Flags::IN_AREA, command) && !asks(Flags::NONE, command), "{command:?}");
        }
        for command in [Command::Lookup, Command::Prefix, Command::Release, Command::GetInto] {
            assert!(!asks(Flags::IN_AREA, command), "{command:?}");
        }
    }
}
