//! What is no message, and how facts are packed. The bytes of each message are in [`super::fixtures`].

use tidefs_engine::types::ByteCount;

use super::*;
use crate::cluster::object::FileFacts;

fn facts() -> Facts {
    Facts::File(FileFacts {
        size: ByteCount(300),
        mtime_ns: -2,
        mode: 0o644,
        uid: 1,
        gid: 2,
        checksum: Some(5),
        replicas: 1,
    })
}

const FACTS: &[u8] = &[0, 0xac, 2, 3, 0xa4, 3, 1, 2, 1, 5];
#[test]
fn how_many_copies_are_wanted_rides_in_the_mode_and_one_costs_nothing() {
    let Facts::File(one) = facts() else { panic!("a file") };
    let wanted = |replicas| postcard::to_allocvec(&Facts::File(FileFacts { replicas, ..one })).unwrap();
    assert_eq!(wanted(1), FACTS);
    for replicas in 1..=16 {
        let read: Facts = postcard::from_bytes(&wanted(replicas)).unwrap();
        assert_eq!(read, Facts::File(FileFacts { replicas, ..one }));
    }
}

#[test]
fn what_is_no_message_is_refused_with_its_fault() {
    let refused = |bytes: &[u8]| Find::decode(bytes).unwrap_err().to_string();
    assert!(refused(&[]).contains("no bytes"));
    assert!(refused(&[3, 3, 0]).contains("version 3, this member reads versions 1 to 2"));
    assert!(refused(&[1, 3]).contains("not a Find"));
    assert!(refused(&[1, 3, 0, 0]).contains("1 bytes follow"));
    let many = Find { view: 0, paths: vec![Vec::new(); ITEMS_MAX + 1] };
    assert!(refused(&many.encode()).contains("8193 names, 8192 are allowed"));
    let long = Find { view: 0, paths: vec![vec![b'a'; PATH_MAX + 1]] };
    assert!(refused(&long.encode()).contains("4097 bytes in a path"));
}
