//! The bytes of version 1, and what is refused.

use super::*;

fn payload(record: &impl for<'a> Record<'a>) -> Vec<u8> {
    let mut encoder = Encoder::new(Flags::NONE, 9, 16);
    assert!(encoder.push(record));
    encoder.finish()
}

#[test]
fn version_1_of_a_lookup_has_its_golden_bytes() {
    let mut encoder = Encoder::new(Flags::PROBE, 0x0102, size_of::<Entry>());
    assert!(encoder.push(&Name(b"ab")) && encoder.push(&Name(b"c/d")));
    let bytes = encoder.finish();
    assert_eq!(bytes.len(), 16 + 2 * 32, "the reply is longer than the request");
    assert_eq!(bytes[..16], [1, 0, 2, 0, 2, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[16..25], *b"\x02\0ab\x03\0c/d");
    assert!(bytes[25..].iter().all(|&byte| byte == 0));
}

#[test]
fn version_1_of_the_other_records_has_its_golden_bytes() {
    let create = Create { size: 0x0304, mode: 0o644, name: Name(b"k") };
    let golden = [&[4, 3, 0, 0, 0, 0, 0, 0, 0xa4, 1, 0, 0, 1, 0][..], b"k"].concat();
    assert_eq!(payload_of(&create)[16..31], golden);
    let seal = payload(&Seal { reference: 5, length: 6 });
    assert_eq!(seal[16..32], [5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(payload(&Range { first: 5, count: 6 })[16..32], seal[16..32]);
    let get = Get { offset: 1, length: 2, area: 3, target: 4, name: Name(b"k") };
    let bytes = payload_of(&get);
    assert_eq!([bytes[16], bytes[24], bytes[32], bytes[40], bytes[48], bytes[50]], [1, 2, 3, 4, 1, b'k']);
    let put = Put { area: 1, source: 2, length: 3, mode: 4, name: Name(b"k") };
    let bytes = payload_of(&put);
    assert_eq!([bytes[16], bytes[24], bytes[32], bytes[40], bytes[44], bytes[46]], [1, 2, 3, 4, 1, b'k']);
}

#[test]
fn version_1_of_what_is_followed_and_pinned_has_its_golden_bytes() {
    let ready = payload(&Ready { reference: 1, offset: 2, length: 3 });
    assert_eq!([ready[16], ready[24], ready[32], ready[39]], [1, 2, 3, 0]);
    let bytes = payload_of(&Follow { offset: 1, length: 2, wait_ms: 0x0304, name: Name(b"k") });
    assert_eq!([bytes[16], bytes[24], bytes[32], bytes[33], bytes[36], bytes[38]], [1, 2, 4, 3, 1, b'k']);
    let bytes = payload_of(&Pin { ttl_s: 1, pin: PIN_HARD, name: Name(b"k") });
    assert_eq!([bytes[16], bytes[24], bytes[26], bytes[28]], [1, 2, 1, b'k']);
}

#[test]
fn one_object_is_followed_at_a_time() {
    let mut encoder = Encoder::new(Flags::NONE, 0, 32);
    let follow = Follow { offset: 0, length: 1, wait_ms: 0, name: Name(b"k") };
    assert!(encoder.push(&follow) && encoder.push(&follow));
    let refused = Request::parse(Command::Follow, &encoder.finish()).map(drop);
    assert_eq!(refused, Err(Refusal::Count { count: 2 }));
}

fn payload_of<'a>(record: &impl Record<'a>) -> Vec<u8> {
    let mut encoder = Encoder::new(Flags::NONE, 0, 0);
    assert!(encoder.push(record));
    encoder.finish()
}

#[test]
fn version_1_of_the_results_has_its_golden_bytes() {
    let entry = Entry {
        segment: 1.into(),
        version: 2.into(),
        length: 3.into(),
        offset: 4.into(),
        status: (Status::CopyOnly as u16).into(),
        marks: ENTRY_LASTS.into(),
    };
    let bytes = results_bytes(Flags::RETIRED, 7, &[entry]);
    assert_eq!(bytes[..16], [1, 0, 0, 0x80, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[16..32], [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[32..48], [3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 3, 0, 1, 0]);
    assert_eq!(entry.offset_bytes(), 256);
    let (header, entries) = results::<Entry>(&bytes).unwrap();
    assert_eq!((header.scope.get(), entries), (7, &[entry][..]));
    let outcome = results_bytes(Flags::NONE, 0, &[Outcome::new(Status::NoRoom, 9)]);
    assert_eq!(outcome[16..32], [9, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn numbers_say_command_and_length() {
    // _IOWR(0xd7, 2, char[16368]) of asm-generic/ioctl.h.
    assert_eq!(request_number(Command::Lookup, 16_368), 0xfff0_d702);
    for command in Command::ALL {
        assert_eq!(Command::of_request(request_number(command, 640)), Some((command, 640)));
    }
    assert_eq!(Command::of_request(0xfff0_d7ff), None, "no such command");
    assert_eq!(Command::of_request(0x8008_6602), None, "FS_IOC_GETFLAGS is not ours");
}

#[test]
fn a_request_comes_back_as_it_was_written() {
    let names: Vec<Vec<u8>> = (0..BATCH_MAX).map(|index| format!("{index:028x}").into_bytes()).collect();
    let mut encoder = Encoder::new(Flags::NONE, 3, size_of::<Entry>());
    assert!(names.iter().all(|name| encoder.push(&Name(name))), "511 names of 28 bytes fit into one ioctl");
    assert!(!encoder.push(&Name(b"one more")));
    let bytes = encoder.finish();
    assert!(bytes.len() <= PAYLOAD_MAX);
    let request = Request::parse(Command::Lookup, &bytes).unwrap();
    let Body::Lookup(records) = request.body else { panic!("{request:?}") };
    assert_eq!((request.scope, records.len()), (3, BATCH_MAX));
    assert!(records.iter().map(|name| name.0).eq(names.iter().map(Vec::as_slice)));
}

#[test]
fn what_is_written_is_never_longer_than_what_is_read() {
    let range = Range { first: 0, count: 1 };
    for (flags, most) in [(Flags::NONE, BATCH_MAX), (Flags::IN_AREA, AREA_BATCH_MAX)] {
        let mut encoder = Encoder::with_room(flags, 0, 0, usize::MAX);
        while encoder.push(&range) {}
        assert_eq!(encoder.len(), most);
        assert!(Header::of_request(Command::Release, &encoder.finish()).is_ok());
    }
}

#[test]
fn what_is_not_known_is_refused() {
    let good = {
        let mut encoder = Encoder::new(Flags::NONE, 0, 32);
        encoder.push(&Name(b"name"));
        encoder.finish()
    };
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Request::parse(Command::Lookup, &bytes).map(drop)
    };
    assert_eq!(with(0, 2), Err(Refusal::Version { version: 2 }));
    assert_eq!(with(2, 8), Ok(()), "FLAG_HERE");
    assert_eq!(with(2, 4), Err(Refusal::Flags { flags: 4, command: Command::Lookup }));
    assert_eq!(with(3, 0x80), Err(Refusal::Flags { flags: 0x8000, command: Command::Lookup }));
    assert_eq!(with(5, 2), Err(Refusal::Count { count: 513 }));
    assert_eq!(with(17, 1), Err(Refusal::Records { index: 0 }));
    assert_eq!(Request::parse(Command::Lookup, &good[..15]).map(drop), Err(Refusal::Short { length: 15 }));
    let flags = Refusal::Flags { flags: 2, command: Command::Seal };
    assert_eq!(
        Request::parse(Command::Seal, &{
            let mut bytes = good.clone();
            bytes[2] = 2;
            bytes
        })
        .map(drop),
        Err(flags)
    );
}

#[test]
fn a_status_from_a_later_daemon_means_to_ask_by_file() {
    assert_eq!(Status::of(999), Status::AskByFile);
    for status in Status::ALL {
        assert_eq!(Status::of(status as u16), status);
    }
}
