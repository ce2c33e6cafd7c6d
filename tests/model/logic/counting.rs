//! What counts as a hit, a miss or an open, and what does not.

use tidefs::datapath::{Credentials, Datapath};
use tidefs::namespace::Ino;
use tidefs_engine::types::ByteCount;

use super::resent::CREATE;
use super::{Logic, Setup, caller};
use crate::common::pattern::bytes;
use crate::system::System;

/// Writes an object as programs do, straight to its name.
pub(super) fn write(logic: &mut Logic, path: &str) {
    let writer = logic.open(0, path, CREATE).expect("create");
    logic.write(0, writer, 0, &bytes(1, 50_000)).expect("write");
    logic.close(0, writer);
}

/// Hits and misses of the fast path, and those of each namespace.
fn counted(datapath: &Datapath) -> (u64, u64, Vec<(u64, u64)>) {
    let namespaces = datapath.overview().expect("the tier answers").namespaces;
    let each = namespaces.iter().map(|namespace| (namespace.hits, namespace.misses)).collect();
    let telemetry = datapath.telemetry();
    (telemetry.fast_hits.get(), telemetry.fast_misses.get(), each)
}

#[test]
fn a_run_and_a_prefetch_count_nothing_however_many_directories_their_names_are_in() {
    let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
    for directory in ["a", "b"] {
        logic.mkdir(0, directory).expect("mkdir");
        write(&mut logic, &format!("{directory}/k"));
    }
    let datapath = logic.datapath();
    let before = counted(datapath);
    let session = datapath.begin_session(Credentials::of_request(0, 0, caller(0).thread), false);
    let names = [&b"a/k"[..], b"b/k", b"a/none", b"b/k"];
    let run = datapath.run_length(&session, &caller(0), Ino::ROOT, names.into_iter());
    assert_eq!(run.length, 2);
    datapath.find_below(&session, Ino::ROOT, names.into_iter(), |_, _| ());
    assert_eq!(counted(datapath), before);
    datapath.locate(&session, &caller(0), Ino::ROOT, names.into_iter(), true, |_| ());
    let (hits, misses, _) = counted(datapath);
    assert_eq!((hits, misses), (before.0 + 3, before.1 + 1), "a look-up counts");
    datapath.end_session(&session);
}
