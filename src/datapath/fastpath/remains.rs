//! What requests of the fast path took out of the tables, and what is to be freed of it before they are answered: objects that were
//! given up, replaced, or had lost their names and are let go of. Cutting takes a gigabyte a good part of a second, and one request
//! may name all that a client has, so whoever answers the kernel, and has others waiting, is given what is much of it, to have it
//! freed elsewhere.
//!
//! Invariant: what waits to be freed is found by no name and by no restart, and is in use still: its room is promised to nobody.

use std::mem;

use tidefs_engine::types::ByteCount;

use super::pool::Planned;
use super::{AREA_MAX, LOCKED_AT_ONCE};
use crate::datapath::burial::Doomed;
use crate::datapath::room::footprint;
use crate::datapath::{Datapath, Place};

/// What a thread frees at once that others wait for: as many bytes as it copies for one request, counting what is cut, and as many
/// objects as a payload names one by one.
const BYTES_MAX: ByteCount = AREA_MAX;
const COUNT_MAX: usize = LOCKED_AT_ONCE;

/// What is out of the tables and not freed.
#[derive(Debug, Default)]
#[must_use = "it stays in use until it is freed"]
pub struct Remains {
    pub(super) doomed: Vec<Doomed>,
    /// Bytes, and how many they are.
    pub(super) places: Vec<(Place, ByteCount)>,
}

impl Remains {
    /// Whether there is nothing to free.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.doomed.is_empty() && self.places.is_empty()
    }

    /// What is to be freed now, and how many bytes each is.
    fn parts(&self) -> impl Iterator<Item = (&Place, ByteCount)> {
        let doomed = self.doomed.iter();
        let of_doomed = doomed.filter_map(|doomed| Some((doomed.place.as_ref()?, doomed.resident_bytes())));
        of_doomed.chain(self.places.iter().map(|(place, size)| (place, footprint(*size))))
    }
}

impl Datapath {
    /// Frees what requests left. Takes long when it is much.
    pub fn free_remains(&self, remains: Remains) {
        self.free_remains_until(remains, || false);
    }

    /// The same. What is left when `is_stopping` says so is for the next start, which removes it.
    pub(super) fn free_remains_until(&self, remains: Remains, is_stopping: impl Fn() -> bool) {
        let Remains { doomed, places } = remains;
        for doomed in doomed {
            if is_stopping() {
                return;
            }
            self.bury(doomed);
        }
        for (place, _) in places {
            if is_stopping() {
                return;
            }
            self.free_place(place);
        }
    }

    fn is_much(&self, remains: &Remains) -> bool {
        if remains.doomed.len() + remains.places.len() > COUNT_MAX {
            return true;
        }
        let sum = |bytes: ByteCount, (_, more): (&Place, ByteCount)| bytes.saturating_add(more);
        if remains.parts().fold(ByteCount::ZERO, sum) <= BYTES_MAX {
            return false;
        }
        // Of clients that store what they stored before most is not cut.
        let (segments, mut planned) = (self.fast.segments.lock(), Planned::default());
        let is_cut = |part: &(&Place, ByteCount)| match part.0 {
            Place::Solo(segment) => !segments.would_wait(*segment, &mut planned),
            _ => true,
        };
        remains.parts().filter(is_cut).fold(ByteCount::ZERO, sum) > BYTES_MAX
    }

    /// Frees what is little. What is much is returned, to be freed before the request that left it is answered.
    pub(super) fn free_what_is_little(&self, mut remains: Remains) -> Remains {
        if !self.is_much(&remains) {
            self.free_remains(mem::take(&mut remains));
        }
        // Not left to a thread that may not come to it before the stop: the next start would give them their names back.
        let records = remains.doomed.iter_mut().filter_map(|doomed| doomed.on_ssd.take());
        records.for_each(|record| self.remove_from_ssd(&record));
        remains
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tidefs_engine::types::{PAGE, SegmentId};

    use super::super::pool::Shape;
    use super::super::segments::{Shared, Use};
    use super::*;
    use crate::datapath::rights::AccessClass;
    use crate::datapath::testing::{attach_disk, caller, directory, unprivileged};
    use crate::datapath::{BeginRequest, Credentials, Located, SealRequest, Session};
    use crate::namespace::Ino;

    #[test]
    fn what_is_more_than_a_request_copies_or_names_is_much() {
        let (_place, datapath) = unprivileged();
        let is_much = |sizes: &[ByteCount]| {
            let place = || Place::Solo(SegmentId(7));
            let (doomed, places) = sizes.split_at(sizes.len() / 2);
            let doomed = doomed.iter().map(|&size| Doomed::bytes_only(place(), size, Ino(1))).collect();
            let places = places.iter().map(|&size| (place(), size)).collect();
            datapath.is_much(&Remains { doomed, places })
        };
        let half = ByteCount(BYTES_MAX.get() / 2);
        assert!(!is_much(&[]) && !is_much(&[BYTES_MAX]) && !is_much(&[half, half]));
        assert!(is_much(&[BYTES_MAX, ByteCount(1)]) && is_much(&[ByteCount(u64::MAX), ByteCount(u64::MAX)]));
        assert!(!is_much(&[PAGE; COUNT_MAX]) && is_much(&[PAGE; COUNT_MAX + 1]));
    }

    #[test]
    fn what_waits_for_the_next_object_is_not_counted_for_it_is_not_cut() {
        let (_place, datapath) = unprivileged();
        let shape = Shape { class: AccessClass::for_test(1), pages: PAGE };
        let know = |segment: u64, is_tainted: bool| {
            let shared = Shared::new(Use::Object(Ino(1)), Some(shape), is_tainted);
            datapath.fast.segments.lock().known.insert(SegmentId(segment), shared);
        };
        (0..3).for_each(|segment| know(segment, segment == 2));
        let large = BYTES_MAX.saturating_add(PAGE);
        let is_much = |segments: &[u64]| {
            let place = |&segment: &u64| (Place::Solo(SegmentId(segment)), large);
            datapath.is_much(&Remains { doomed: Vec::new(), places: segments.iter().map(place).collect() })
        };
        assert!(is_much(&[0]), "nobody wished for it");
        assert!(datapath.fast.segments.lock().pool.take(shape).is_none());
        assert!(!is_much(&[0]) && !is_much(&[1]));
        assert!(is_much(&[0, 1]), "one was wished for");
        assert!(is_much(&[2]), "somebody may look at it");
    }

    /// A client.
    fn client(datapath: &Datapath) -> Session {
        datapath.begin_session(Credentials::of_request(0, 0, caller().thread), true)
    }

    /// Memory that is in use and does not wait for the next object.
    fn in_use(datapath: &Datapath) -> ByteCount {
        datapath.tier.usage().unwrap().used.saturating_sub(datapath.pooled())
    }

    /// Begins an object of a page for each name. Returns the reference to the first.
    fn begin(datapath: &Datapath, session: &Session, names: &[String]) -> u64 {
        let requests =
            names.iter().map(|name| BeginRequest { name: name.as_bytes(), size: PAGE, mode: 0o600 });
        datapath.begin(session, Ino::ROOT, requests, |begun| {
            assert!(matches!(begun, Located::Here { .. }), "{begun:?}");
        })
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("key-{number}")).collect()
    }

    #[test]
    fn what_is_given_up_at_once_is_freed_by_somebody_else_when_it_is_much() {
        let (_place, datapath) = unprivileged();
        let (session, names, nothing) = (client(&datapath), names(COUNT_MAX + 1), in_use(&datapath));
        let all = || std::iter::once((0, u64::MAX));
        begin(&datapath, &session, &names[..COUNT_MAX]);
        assert!(in_use(&datapath) > nothing);
        assert!(datapath.abort(&session, all()).is_empty(), "it is little");
        assert_eq!(in_use(&datapath), nothing);
        begin(&datapath, &session, &names);
        let before = in_use(&datapath);
        let remains = datapath.abort(&session, all());
        assert_eq!((session.held(), in_use(&datapath)), ((0, ByteCount::ZERO), before));
        datapath.free_remains(remains);
        assert_eq!(in_use(&datapath), nothing);
    }

    /// Seals an object of a page under each name, looks it up and unlinks it. Returns the reference to the first.
    fn hold_without_names(datapath: &Datapath, session: &Session, names: &[String]) -> u64 {
        let begun = begin(datapath, session, names);
        let seals = (begun..).take(names.len()).map(|reference| SealRequest { reference, length: PAGE });
        let left = datapath.seal_begun(session, &caller(), seals, |sealed| {
            assert!(sealed.is_ok(), "{sealed:?}");
        });
        assert!(left.is_empty());
        let keys = names.iter().map(String::as_bytes);
        let first = datapath.locate(session, &caller(), Ino::ROOT, keys, false, |found| {
            assert!(matches!(found, Located::Here { .. }), "{found:?}");
        });
        for name in names {
            datapath.unlink(&caller(), Ino::ROOT, name.as_bytes()).unwrap();
        }
        first
    }

    #[test]
    fn a_stop_does_not_wait_for_what_an_ended_client_held_without_a_name() {
        let (_place, datapath) = unprivileged();
        let session = client(&datapath);
        hold_without_names(&datapath, &session, &names(COUNT_MAX + 1));
        let before = in_use(&datapath);
        datapath.end_session_until(&session, || true);
        assert_eq!((session.held(), in_use(&datapath)), ((0, ByteCount::ZERO), before));
    }

    #[test]
    fn what_is_left_for_later_is_gone_from_the_disk_at_once() {
        let (_place, mut datapath) = unprivileged();
        datapath.settings.deadline = Duration::from_secs(60);
        let (datapath, disk) = (Arc::new(datapath), tempfile::tempdir().unwrap());
        attach_disk(&datapath, disk.path(), ByteCount::mib(8));
        let (ns, session) = (directory(&datapath, b"ns"), client(&datapath));
        let length = ByteCount::mib(1);
        let request = BeginRequest { name: b"key", size: length, mode: 0o600 };
        let reference = datapath.begin(&session, ns, std::iter::once(request), |begun| {
            assert!(matches!(begun, Located::Here { .. }), "{begun:?}");
        });
        // What is begun below a directory that is durable already is stored otherwise.
        datapath.set_attribute(ns, b"user.tidefs.durability", b"ssd", None).unwrap();
        let seal = std::iter::once(SealRequest { reference, length });
        let left = datapath.seal_begun(&session, &caller(), seal, |sealed| assert!(sealed.is_ok()));
        assert!(left.is_empty());
        datapath.loader.close();
        datapath.run_loads();
        let state = datapath.lock();
        let record = state.ssd_record(state.tree.by_path(b"ns/key").unwrap()).unwrap();
        drop(state);
        let key = record.key.clone();
        let is_held = || datapath.ssd().unwrap().holds(&key).is_some();
        assert!(is_held());
        let mut doomed: Vec<Doomed> = (0..COUNT_MAX).map(|_| Doomed::nothing(Ino(1))).collect();
        doomed.push(Doomed::record_only(record, Ino(1)));
        let left = datapath.free_what_is_little(Remains { doomed, places: Vec::new() });
        assert!(!left.is_empty() && !is_held());
    }

    #[test]
    fn what_lost_its_name_and_is_let_go_of_is_freed_by_somebody_else_when_it_is_much() {
        let (_place, datapath) = unprivileged();
        let (session, names) = (client(&datapath), names(COUNT_MAX + 1));
        for count in [COUNT_MAX, COUNT_MAX + 1] {
            let nothing = in_use(&datapath);
            let first = hold_without_names(&datapath, &session, &names[..count]);
            let before = in_use(&datapath);
            assert!(before > nothing, "a client may look at it");
            let remains = datapath.give_back(&session, std::iter::once((first, u64::MAX)));
            assert_eq!(remains.is_empty(), count == COUNT_MAX);
            if count > COUNT_MAX {
                assert_eq!(in_use(&datapath), before);
            }
            datapath.free_remains(remains);
            assert_eq!(in_use(&datapath), nothing);
        }
    }
}
