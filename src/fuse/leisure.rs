//! Requests of the fast path that may take long: they are answered off the session threads.
//!
//! What is begun is allocated in full before its client is told of it, a gigabyte in a good part of a second, and others may have
//! to leave memory for it. What is sealed shorter than it was begun is cut, which takes no less. Copies have a bound of their own,
//! which many objects keep that are made of few bytes each; they and pins write a record for each entry, which 511 may and 65,536
//! may not. What takes long elsewhere is bounded by the number of entries, but for what is freed, of which no request tells
//! how much it is: that is left over when it is done ([`Remains`](crate::datapath::Remains)).

use tidefs_control_api::ioctl::{Body, Command, Flags, Header, Request};
use tidefs_engine::types::ByteCount;

use crate::datapath::{AREA_MAX, Session};

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

/// Whether a request of `session` cuts more than a session thread does while others wait for it. Of one in an area it is looked at
/// when its records are had, which its client does not change any more.
pub(super) fn cuts_much(session: &Session, request: &Request<'_>) -> bool {
    let Body::Seal(records) = &request.body else { return false };
    session.surplus(records.iter().map(|seal| (seal.reference, ByteCount(seal.length)))) > AREA_MAX
}

#[cfg(test)]
mod tests {
    use tidefs_control_api::ioctl::{AreaCall, Create, Encoder, Name, PIN_HARD, Pin, Seal};
    use zerocopy::IntoBytes as _;

    use super::*;
    use crate::datapath::testing::unprivileged;
    use crate::datapath::{BeginRequest, Credentials, Located};
    use crate::namespace::{Ino, ThreadId};

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
    fn what_cuts_more_than_an_area_holds_takes_long() {
        let (_place, datapath) = unprivileged();
        let session = datapath.begin_session(Credentials::of_request(0, 0, ThreadId(1)), true);
        // There is no room for more than that here: an entry that comes again has more of it cut in all.
        let size = ByteCount(AREA_MAX.get() / 2);
        let request = BeginRequest { name: b"key", size, mode: 0o600 };
        let reference = datapath.begin(&session, Ino::ROOT, std::iter::once(request), |begun| {
            assert!(matches!(begun, Located::Here { .. }), "{begun:?}");
        });
        let seals = |lengths: &[u64], reference: u64| {
            let mut request = Encoder::new(Flags::NONE, 0, 0);
            for &length in lengths {
                assert!(request.push(&Seal { reference, length }));
            }
            let payload = request.finish();
            Request::parse(Command::Seal, &payload).is_ok_and(|request| cuts_much(&session, &request))
        };
        assert!(!seals(&[], reference) && !seals(&[size.get(); 511], reference));
        assert!(!seals(&[u64::MAX; 511], reference), "it is refused");
        assert!(!seals(&[0; 2], reference) && seals(&[0, 0, size.get() - 1], reference));
        assert!(!seals(&[0; 511], reference + 1), "it is of no begun object");
        datapath.end_session(&session);
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
        for command in [Command::Lookup, Command::Prefix, Command::Release, Command::Seal, Command::GetInto] {
            assert!(!asks(Flags::IN_AREA, command), "{command:?}");
        }
    }
}
