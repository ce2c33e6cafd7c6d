//! Messages as recorded bytes, one file for each version that this build speaks. Members of different builds talk to each
//! other, so what is recorded is read as it was meant, and written to the same bytes again.
//!
//! `TIDEFS_TEST_BLESS=1 cargo nextest run -p tidefs --lib catalog::wire::fixtures` records the newest version. What an older
//! one wrote is never recorded again: this build did not write it. When the version is raised, the file of the one before stays
//! as it is, and that of the one before it goes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidefs_engine::types::{ByteCount, MemberId};

use super::*;
use crate::cluster::object::{FileFacts, ListedName};

/// Asserts that these bytes are the message as that version has it.
type Read = Box<dyn Fn(u8, &[u8])>;

/// One message: what it is, and how it is written and read.
struct Case {
    kind: &'static str,
    name: String,
    since: u8,
    write: Box<dyn Fn(u8) -> Vec<u8>>,
    read: Read,
}

fn case<M: Message + Clone + PartialEq + Debug + 'static>(label: &str, message: M) -> Case {
    let read = message.clone();
    Case {
        kind: M::NAME,
        name: if label.is_empty() { M::NAME.to_owned() } else { format!("{}/{label}", M::NAME) },
        since: M::SINCE,
        write: Box::new(move |version| message.clone().encode_for(version).unwrap()),
        read: Box::new(move |version, bytes| {
            assert_eq!(M::decode(bytes), Ok(read.clone().older(version)), "version {version}");
        }),
    }
}

fn facts(replicas: u8) -> Facts {
    let (size, checksum) = (ByteCount(300), Some(5));
    Facts::File(FileFacts { size, mtime_ns: -2, mode: 0o644, uid: 1, gid: 2, checksum, replicas })
}

fn copies(medium: Medium) -> Vec<Copy> {
    vec![Copy { member: MemberId(9), medium }]
}

const STAMP: Stamp = Stamp(7);

fn path() -> Vec<u8> {
    b"kv/a".to_vec()
}

fn answers() -> Vec<Answered> {
    let present = Answered::Present { stamp: STAMP, facts: facts(1), copies: copies(Medium::Ssd) };
    vec![Answered::Moved, Answered::Incomplete, Answered::Absent { is_watched: true }, present]
}

fn changes() -> Vec<Change> {
    let (path, stamp) = (path(), STAMP);
    let medium = Medium::Ssd;
    vec![
        Change::Publish { number: 4, path: path.clone(), proposed: stamp, facts: facts(1) },
        Change::Remove { path: path.clone(), at: stamp },
        Change::Hold { path: path.clone(), stamp, medium: Medium::Memory },
        Change::LetGo { path: path.clone(), stamp },
        Change::Announce { path, stamp, facts: facts(1), medium, contact_age_ms: 6 },
        Change::Announced { view: 3 },
    ]
}

/// What came with version 2, and is a removal to the version before.
fn late_removal() -> Change {
    Change::RemoveThrough { path: path(), through: STAMP }
}

fn outcomes() -> Vec<Outcome> {
    let stamp = STAMP;
    vec![
        Outcome::Done { stamp },
        Outcome::Late { stamp },
        Outcome::Moved,
        Outcome::Refused { through: stamp },
    ]
}

fn known() -> Vec<Known> {
    let stamp = STAMP;
    vec![
        Known::Gone { stamp },
        Known::Removed { stamp, age_ms: 8 },
        Known::Present { stamp, facts: facts(1), copies: copies(Medium::Ssd) },
    ]
}

fn revocations() -> Vec<Revocation> {
    vec![
        Revocation::Withdraw { path: path(), through: STAMP, seen: 4 },
        Revocation::Appeared { path: path() },
        Revocation::Forget { shards: vec![1], view: 3 },
        Revocation::AnnounceAgain,
        Revocation::Inherit { keys: vec![5] },
    ]
}

fn lendings() -> [(&'static str, Lending); 3] {
    [
        ("not-held", Lending::NotHeld),
        ("inline", Lending::Inline { bytes: vec![8], checksum: 5 }),
        ("region", Lending::Region { loan: 2, length: 300, checksum: 5, region: vec![8] }),
    ]
}

fn kept() -> [(&'static str, Kept); 4] {
    [("done", Kept::Done), ("gone", Kept::Gone), ("not-now", Kept::NotNow), ("leaving", Kept::Leaving)]
}

fn orders() -> [(&'static str, DrainOrder); 3] {
    [
        ("ask", DrainOrder::Ask),
        ("begin", DrainOrder::Begin { within_ms: Some(7) }),
        ("stop", DrainOrder::Stop),
    ]
}

fn phases() -> [(&'static str, DrainPhase); 5] {
    [
        ("idle", DrainPhase::Idle),
        ("copying", DrainPhase::Copying),
        ("left", DrainPhase::Left),
        ("late", DrainPhase::Late),
        ("stuck", DrainPhase::Stuck),
    ]
}

/// What came with version 2 within messages that were there before.
fn soft() -> [Case; 3] {
    let (stamp, facts) = (STAMP, facts(3));
    let (soft, medium) = (copies(Medium::Soft), Medium::Soft);
    let present = Answered::Present { stamp, facts, copies: soft.clone() };
    let changes = vec![
        Change::Publish { number: 4, path: path(), proposed: stamp, facts },
        Change::Hold { path: path(), stamp, medium },
        Change::Announce { path: path(), stamp, facts, medium, contact_age_ms: 6 },
    ];
    let replicate = Replicate {
        view: 3,
        is_decided: false,
        keys: vec![(3, Known::Present { stamp, facts, copies: soft })],
        complete: Vec::new(),
        horizon_age_ms: None,
        away_ms: Vec::new(),
    };
    [
        case("soft", Answers { view: 3, answers: vec![present] }),
        case("soft", Changes { view: 3, wait_ms: 100, changes }),
        case("soft", replicate),
    ]
}

fn cases() -> Vec<Case> {
    let replicate = Replicate {
        view: 3,
        is_decided: true,
        keys: (1..).zip(known()).collect(),
        complete: vec![4095],
        horizon_age_ms: Some(8),
        away_ms: vec![(MemberId(9), 4)],
    };
    let names = vec![ListedName { cookie: 5, name: b"a".to_vec(), is_directory: true }];
    let mut cases = vec![
        case("", Find { view: 3, paths: vec![path()] }),
        case("", Answers { view: 3, answers: answers() }),
        case("", Changes { view: 3, wait_ms: 100, changes: changes() }),
        case("", Results { view: 3, outcomes: outcomes() }),
        case("", replicate),
        case("", Revoke { items: revocations() }),
        case("", Lend { path: path(), stamp: STAMP, for_ms: 100 }),
        case("", Release { loans: vec![2, 3] }),
        case("", List { directory: path(), after: 5, max: 7 }),
        case("", Listed { names }),
        case("", Done {}),
        case("", Keep { path: path(), stamp: STAMP, replicas: 2, head: 5 }),
        case("", Agreed { revision: 300 }),
    ];
    cases.push(case("late", Changes { view: 3, wait_ms: 100, changes: vec![late_removal()] }));
    cases.extend(soft());
    cases.extend(lendings().map(|(label, lending)| case(label, lending)));
    cases.extend(kept().map(|(label, kept)| case(label, kept)));
    cases.extend(orders().map(|(label, order)| case(label, Drain { order })));
    cases.extend(phases().map(|(label, phase)| {
        case(label, DrainReport { phase, objects: 3, bytes: 300, objects_left: 1, bytes_left: 2 })
    }));
    cases
}

fn file(version: u8) -> PathBuf {
    let below = format!("src/cluster/catalog/wire/fixtures/version-{version}.txt");
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(below)
}

/// Recorded bytes by name.
fn recorded(version: u8) -> BTreeMap<String, Vec<u8>> {
    let text = std::fs::read_to_string(file(version)).unwrap();
    let line = |line: &str| {
        let (name, hex) = line.split_once(':').unwrap();
        let byte = |digits| u8::from_str_radix(digits, 16).unwrap();
        (name.to_owned(), hex.split_whitespace().map(byte).collect())
    };
    text.lines().map(line).collect()
}

fn bless() {
    let line = |case: &Case| {
        let bytes = (case.write)(VERSION);
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}: {}\n", case.name, hex.join(" "))
    };
    std::fs::write(file(VERSION), cases().iter().map(line).collect::<String>()).unwrap();
}

#[test]
fn recorded_messages_of_both_versions_are_read_and_written_as_they_were() {
    if std::env::var_os("TIDEFS_TEST_BLESS").is_some() {
        bless();
    }
    for version in OLDEST..=VERSION {
        let recorded = recorded(version);
        for case in cases().iter().filter(|case| case.since <= version) {
            let Some(bytes) = recorded.get(&case.name) else { panic!("{} of {version}", case.name) };
            (case.read)(version, bytes);
            assert_eq!(&(case.write)(version), bytes, "{} of version {version}", case.name);
        }
        let known: BTreeSet<String> =
            cases().into_iter().filter(|case| case.since <= version).map(|case| case.name).collect();
        assert_eq!(recorded.into_keys().collect::<BTreeSet<_>>(), known, "version {version}");
    }
}

/// How many variants an enum has: zeros are a value of each field of all messages.
fn variants<E: DeserializeOwned>() -> BTreeSet<u8> {
    let is_variant = |index: u8| {
        let bytes: Vec<u8> = std::iter::once(index).chain([0; 64]).collect();
        postcard::take_from_bytes::<E>(&bytes).is_ok()
    };
    (0..u8::MAX).take_while(|&index| is_variant(index)).collect()
}

fn assert_all<E: Serialize + DeserializeOwned>(values: &[E]) {
    let index = |value: &E| postcard::to_allocvec(value).unwrap()[0];
    assert_eq!(values.iter().map(index).collect::<BTreeSet<_>>(), variants::<E>());
}

#[test]
fn every_kind_of_message_and_every_variant_in_it_is_recorded() {
    let kinds: BTreeSet<&str> = cases().iter().map(|case| case.kind).collect();
    let all: BTreeSet<&str> = [KINDS, contents::KINDS, placing::KINDS].concat().into_iter().collect();
    assert_eq!(kinds, all);
    assert_all(&answers());
    assert_all(&[changes(), vec![late_removal()]].concat());
    assert_all(&outcomes());
    assert_all(&known());
    assert_all(&revocations());
    assert_all(&lendings().map(|(_, lending)| lending));
    assert_all(&kept().map(|(_, kept)| kept));
    assert_all(&orders().map(|(_, order)| order));
    assert_all(&phases().map(|(_, phase)| phase));
    assert_all(&[Medium::Memory, Medium::Ssd, Medium::Soft]);
}

#[test]
fn what_a_version_does_not_know_is_refused_and_never_written() {
    let keep = Keep { path: path(), stamp: STAMP, replicas: 2, head: 5 };
    let refused = keep.clone().encode_for(OLDEST).unwrap_err().to_string();
    assert_eq!(refused, "a Keep is known from version 2 on, the other member speaks version 1");
    let strange = WireError::Version { found: VERSION + 1 };
    assert_eq!(keep.clone().encode_for(VERSION + 1), Err(strange.clone()));
    let mut newer = keep.encode();
    newer[0] = VERSION + 1;
    assert_eq!(Keep::decode(&newer), Err(strange));
    // A variant that nobody has yet.
    let unknown = [VERSION, 1, 99];
    assert!(matches!(Revoke::decode(&unknown), Err(WireError::Malformed { what: "Revoke", .. })));
}
