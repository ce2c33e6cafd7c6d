//! Messages are these bytes, in every build of this version: members of different builds talk to each other.

use tidefs_engine::types::{ByteCount, MemberId};

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
const PATH: &[u8] = &[4, b'k', b'v', b'/', b'a'];

fn path() -> Vec<u8> {
    b"kv/a".to_vec()
}

fn copies() -> Vec<Copy> {
    vec![Copy { member: MemberId(9), medium: Medium::Ssd }]
}

fn is<M: Message + PartialEq + std::fmt::Debug>(message: M, golden: &[&[u8]]) {
    let golden = [&[1][..], &golden.concat()].concat();
    assert_eq!(message.encode(), golden, "{message:?}");
    assert_eq!(M::decode(&golden), Ok(message));
}

#[test]
fn version_1_of_each_message_is_these_bytes() {
    let stamp = Stamp(7);
    is(Agreed { revision: 300 }, &[&[0xac, 2]]);
    is(Find { view: 3, paths: vec![path()] }, &[&[3, 1], PATH]);
    let present = Answered::Present { stamp, facts: facts(), copies: copies() };
    let answers = vec![Answered::Moved, Answered::Incomplete, Answered::Absent { is_watched: true }, present];
    is(Answers { view: 3, answers }, &[&[3, 4, 0, 1, 2, 1, 3, 7], FACTS, &[1, 9, 1]]);
    let changes = vec![
        Change::Publish { number: 4, path: path(), proposed: stamp, facts: facts() },
        Change::Remove { path: path(), at: stamp },
        Change::Hold { path: path(), stamp, medium: Medium::Memory },
        Change::LetGo { path: path(), stamp },
        Change::Announce { path: path(), stamp, facts: facts(), medium: Medium::Ssd, contact_age_ms: 6 },
        Change::Announced { view: 3 },
    ];
    is(
        Changes { view: 3, wait_ms: 100, changes },
        &[
            &[3, 100, 6],
            &[0, 4],
            PATH,
            &[7],
            FACTS,
            &[1],
            PATH,
            &[7],
            &[2],
            PATH,
            &[7, 0],
            &[3],
            PATH,
            &[7],
            &[4],
            PATH,
            &[7],
            FACTS,
            &[1, 6],
            &[5, 3],
        ],
    );
    let outcomes = vec![
        Outcome::Done { stamp },
        Outcome::Late { stamp },
        Outcome::Moved,
        Outcome::Refused { through: stamp },
    ];
    is(Results { view: 3, outcomes }, &[&[3, 4, 0, 7, 1, 7, 2, 3, 7]]);
    let keys = vec![
        (1, Known::Gone { stamp }),
        (2, Known::Removed { stamp, age_ms: 8 }),
        (3, Known::Present { stamp, facts: facts(), copies: copies() }),
    ];
    is(
        Replicate {
            view: 3,
            is_decided: true,
            keys,
            complete: vec![4095],
            horizon_age_ms: Some(8),
            away_ms: vec![(MemberId(9), 4)],
        },
        &[&[3, 1, 3, 1, 0, 7, 2, 1, 7, 8, 3, 2, 7], FACTS, &[1, 9, 1, 1, 0xff, 0x1f, 1, 8, 1, 9, 4]],
    );
    let items = vec![
        Revocation::Withdraw { path: path(), through: stamp, seen: 4 },
        Revocation::Appeared { path: path() },
        Revocation::Forget { shards: vec![1], view: 3 },
        Revocation::AnnounceAgain,
        Revocation::Inherit { keys: vec![5] },
    ];
    is(Revoke { items }, &[&[5, 0], PATH, &[7, 4, 1], PATH, &[2, 1, 1, 3, 3, 4, 1, 5]]);
    is(Lend { path: path(), stamp, for_ms: 100 }, &[PATH, &[7, 100]]);
    is(Lending::NotHeld, &[&[0]]);
    is(Lending::Inline { bytes: vec![8], checksum: 5 }, &[&[1, 1, 8, 5]]);
    is(Lending::Region { loan: 2, length: 300, checksum: 5, region: vec![8] }, &[&[2, 2, 0xac, 2, 5, 1, 8]]);
    is(Release { loans: vec![2, 3] }, &[&[2, 2, 3]]);
    is(List { directory: path(), after: 5, max: 7 }, &[PATH, &[5, 7]]);
    let names = vec![ListedName { cookie: 5, name: b"a".to_vec(), is_directory: true }];
    is(Listed { names }, &[&[1, 5, 1, b'a', 1]]);
    is(Done {}, &[]);
    is(Keep { path: path(), stamp, replicas: 2, head: 5 }, &[PATH, &[7, 2, 5]]);
    for (kept, golden) in [(Kept::Done, 0), (Kept::Gone, 1), (Kept::NotNow, 2), (Kept::Leaving, 3)] {
        is(kept, &[&[golden]]);
    }
    is(Drain { order: DrainOrder::Ask }, &[&[0]]);
    is(Drain { order: DrainOrder::Begin { within_ms: Some(7) } }, &[&[1, 1, 7]]);
    is(Drain { order: DrainOrder::Stop }, &[&[2]]);
    let report =
        DrainReport { phase: DrainPhase::Left, objects: 3, bytes: 300, objects_left: 1, bytes_left: 2 };
    is(report, &[&[2, 3, 0xac, 2, 1, 2]]);
}

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
    assert!(refused(&[2, 3, 0]).contains("version 2, this member reads version 1"));
    assert!(refused(&[1, 3]).contains("not a Find"));
    assert!(refused(&[1, 3, 0, 0]).contains("1 bytes follow"));
    let many = Find { view: 0, paths: vec![Vec::new(); ITEMS_MAX + 1] };
    assert!(refused(&many.encode()).contains("8193 names, 8192 are allowed"));
    let long = Find { view: 0, paths: vec![vec![b'a'; PATH_MAX + 1]] };
    assert!(refused(&long.encode()).contains("4097 bytes in a path"));
}
