//! What the table keeps under any sequence of what members do.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tidefs_engine::types::ByteCount;

use super::*;
use crate::cluster::object::FileFacts;

const RETENTION: Duration = Duration::from_secs(60);

fn slot(number: u16) -> Slot {
    Slot::new(number).unwrap()
}

fn file(content: u64) -> Facts {
    let checksum = (content != 0).then_some(content);
    Facts::File(FileFacts {
        size: ByteCount(4096),
        mtime_ns: 5,
        mode: 0o644,
        uid: 1,
        gid: 2,
        checksum,
        replicas: 1,
    })
}

fn table() -> Table {
    Table::new(Tombstones::new(RETENTION, 1000))
}

/// Keys of a few shards.
fn key(number: u8) -> KeyId {
    KeyId((u128::from(number % 3) << 120) | u128::from(number))
}

#[derive(Clone, Debug)]
enum Step {
    Publish { key: u8, slot: u16, proposed: u64, content: u64 },
    Remove { key: u8, slot: u16, at: u64 },
    Hold { key: u8, slot: u16, behind: u64 },
    LetGo { key: u8, slot: u16, behind: u64 },
    Announce { key: u8, slot: u16, stamp: u64, content: u64 },
    Drop { slot: u16 },
    Wait { seconds: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (key, slot) = (|| 0_u8..9, || 0_u16..5);
    let step = prop_oneof![
        4 => (key(), slot(), 0_u64..50, 0_u64..4).prop_map(|(key, slot, proposed, content)| {
            Step::Publish { key, slot, proposed, content }
        }),
        2 => (key(), slot(), 0_u64..50).prop_map(|(key, slot, at)| Step::Remove { key, slot, at }),
        2 => (key(), slot(), 0_u64..2).prop_map(|(key, slot, behind)| Step::Hold { key, slot, behind }),
        2 => (key(), slot(), 0_u64..2).prop_map(|(key, slot, behind)| Step::LetGo { key, slot, behind }),
        2 => (key(), slot(), 1_u64..50, 0_u64..4).prop_map(|(key, slot, stamp, content)| {
            Step::Announce { key, slot, stamp, content }
        }),
        1 => slot().prop_map(|slot| Step::Drop { slot }),
        1 => (0_u64..50).prop_map(|seconds| Step::Wait { seconds }),
    ];
    proptest::collection::vec(step, 0..80)
}

impl Table {
    fn shards(&self) -> BTreeSet<u16> {
        (0..9).map(|number| key(number).shard().number()).collect()
    }

    fn copies_of(&self, slot: Slot) -> usize {
        self.copies().get(slot.index()).copied().unwrap_or_default()
    }

    fn check(&self) {
        let (mut entries, mut copies) = (0, [0_usize; 5]);
        for part in &self.parts {
            entries += part.entries.len();
            let mut held: BTreeMap<Slot, BTreeSet<KeyId>> = BTreeMap::new();
            for (&key, entry) in &part.entries {
                assert!(self.tombstones.through(key).is_none(), "{key:?} stands and was removed");
                assert!(self.ends.through(key).is_none(), "{key:?} stands and has ended");
                assert!(!entry.copies.is_empty(), "{key:?} stands without a copy");
                for (slot, _) in entry.copies.iter() {
                    held.entry(slot).or_default().insert(key);
                }
            }
            let index: BTreeMap<Slot, BTreeSet<KeyId>> =
                part.held.iter().map(|(slot, keys)| (*slot, keys.iter().copied().collect())).collect();
            assert_eq!(index, held);
            held.iter().for_each(|(slot, keys)| copies[slot.index()] += keys.len());
        }
        assert_eq!(entries, self.entries);
        assert_eq!([0, 1, 2, 3, 4].map(|number| self.copies_of(slot(number))), copies);
    }

    fn run(&mut self, step: &Step, now: &mut Duration) {
        let version = |table: &Self, number: u8, behind: u64| {
            table.get(key(number)).map_or(Stamp(1), |entry| Stamp(entry.stamp().0.saturating_sub(behind)))
        };
        match *step {
            Step::Publish { key: number, slot: by, proposed, content } => {
                let before = self.get(key(number)).map(Entry::stamp);
                let removed = self.tombstones.through(key(number));
                let put = self.publish(key(number), slot(by), Stamp(proposed), file(content));
                let entry = self.get(key(number)).unwrap();
                assert!(entry.copies.contains(slot(by)));
                match put {
                    Put::Collapsed { stamp } => assert_eq!(Some(stamp), before),
                    Put::Appeared { stamp } => {
                        assert_eq!((before, stamp), (None, entry.stamp()));
                        assert!(removed.is_none_or(|through| stamp > through), "{removed:?}");
                        assert!(stamp >= Stamp(proposed));
                    }
                    Put::Replaced { stamp, through, holders } => {
                        assert_eq!(Some(through), before);
                        assert!(stamp > through && stamp >= Stamp(proposed) && !holders.contains(&slot(by)));
                        assert_eq!(entry.copies.len(), 1);
                    }
                    Put::Refused { .. } => panic!("a publish is never refused"),
                }
            }
            Step::Remove { key: number, slot: by, at } => {
                let before = self.get(key(number)).map(Entry::stamp);
                let removal = self.remove(key(number), slot(by), Stamp(at), *now);
                assert!(removal.through >= Stamp(at) && before.is_none_or(|stamp| removal.through >= stamp));
                assert!(self.get(key(number)).is_none());
            }
            Step::Hold { key: number, slot: by, behind } => {
                let stamp = version(self, number, behind);
                let before = self.get(key(number)).cloned();
                let changes = self.hold(key(number), slot(by), stamp, Medium::Ssd);
                assert_eq!(changes, before.as_ref() != self.get(key(number)));
            }
            Step::LetGo { key: number, slot: by, behind } => {
                let stamp = version(self, number, behind);
                let was_last = self.let_go(key(number), slot(by), stamp);
                assert_eq!(
                    matches!(was_last, Some(Some(_))),
                    was_last.is_some() && self.get(key(number)).is_none()
                );
            }
            Step::Announce { key: number, slot: by, stamp, content } => {
                let removed = self.tombstones.through(key(number));
                let put = self.announce(
                    key(number),
                    slot(by),
                    Stamp(stamp),
                    file(content),
                    Medium::Memory,
                    Some(*now),
                );
                if removed.is_some_and(|through| through >= Stamp(stamp)) {
                    assert!(matches!(put, Put::Refused { .. }), "a removed version came back: {put:?}");
                }
            }
            Step::Drop { slot: lost } => {
                for shard in self.shards() {
                    self.drop_copies(Shard::with_number(shard).unwrap(), slot(lost));
                }
                assert_eq!(self.copies_of(slot(lost)), 0);
            }
            Step::Wait { seconds } => {
                *now += Duration::from_secs(seconds);
                self.tombstones.expire(*now);
            }
        }
    }
}

proptest! {
    #[test]
    fn whatever_members_do_the_index_matches_and_stamps_grow(steps in steps()) {
        let (mut table, mut now) = (table(), Duration::ZERO);
        for step in &steps {
            table.run(step, &mut now);
            table.check();
        }
    }

    #[test]
    fn owners_that_worked_apart_agree_after_they_told_each_other(one in steps(), other in steps()) {
        let (mut first, mut second) = (table(), table());
        let (mut now, mut later) = (Duration::ZERO, Duration::ZERO);
        for step in one.iter().filter(|step| !matches!(step, Step::Wait { .. })) {
            first.run(step, &mut now);
        }
        for step in other.iter().filter(|step| !matches!(step, Step::Wait { .. })) {
            second.run(step, &mut later);
        }
        let told: Vec<State> = (0..9).map(|number| first.state(key(number), Stamp(0))).collect();
        let answered: Vec<State> = (0..9).map(|number| second.state(key(number), Stamp(0))).collect();
        for (number, (told, answered)) in (0..9).zip(told.into_iter().zip(answered)) {
            second.adopt(key(number), told, false, now);
            first.adopt(key(number), answered, false, now);
            first.check();
            second.check();
            match (first.state(key(number), Stamp(0)), second.state(key(number), Stamp(0))) {
                (State::Present(mine), State::Present(theirs)) => {
                    prop_assert_eq!(mine.stamp(), theirs.stamp());
                    let holders = |entry: &Entry| entry.copies.iter().map(|(slot, _)| slot).collect::<BTreeSet<_>>();
                    prop_assert_eq!(holders(&mine), holders(&theirs));
                }
                (mine, theirs) => prop_assert_eq!(mine, theirs),
            }
        }
    }
}

#[test]
fn an_entry_with_two_copies_costs_at_most_256_bytes() {
    let mut table = table();
    let count = 200_000_u32;
    for number in 0..count {
        let key = KeyId::of(format!("kv/{number:x}").as_bytes());
        table.publish(key, slot(1), Stamp(1), file(7));
        assert!(table.hold(key, slot(2), Stamp(1), Medium::Memory));
    }
    let fixed = super::Table::new(Tombstones::new(RETENTION, 1)).bytes();
    let each = (table.bytes() - fixed) / count as usize;
    assert!((100..=256).contains(&each), "{each} bytes");
}

#[test]
fn what_was_removed_is_refused_and_so_is_the_unknown_from_before_the_horizon() {
    let (mut table, start) = (table(), Duration::from_secs(1000));
    table.publish(key(1), slot(1), Stamp(10), file(1));
    table.remove(key(1), slot(2), Stamp(20), start);
    let mut announce = |number, now, contact| {
        table.tombstones.expire(now);
        table.announce(key(number), slot(1), Stamp(10), file(1), Medium::Memory, contact)
    };
    let before = Some(start - Duration::from_secs(1));
    assert_eq!(announce(1, start, before), Put::Refused { through: Stamp(20) });
    let later = start + RETENTION;
    // The removal is forgotten now: who was away then is not believed, whatever it announces; who was there is.
    assert_eq!(announce(1, later, before), Put::Refused { through: Stamp(10) });
    assert_eq!(announce(1, later, None), Put::Refused { through: Stamp(10) });
    assert_eq!(announce(2, later, Some(later)), Put::Appeared { stamp: Stamp(10) });
}

#[test]
fn losing_a_member_takes_what_only_it_held() {
    let mut table = table();
    for number in 0..9 {
        table.publish(key(number), slot(1), Stamp(5), file(1));
        if number % 2 == 0 {
            table.hold(key(number), slot(2), Stamp(5), Medium::Memory);
        }
    }
    let mut gone: Vec<KeyId> = Vec::new();
    for shard in table.shards() {
        gone.extend(
            table.drop_copies(Shard::with_number(shard).unwrap(), slot(1)).gone.iter().map(|&(key, _)| key),
        );
    }
    gone.sort_unstable_by_key(|key| key.0 & 0xff);
    assert_eq!(gone, [1, 3, 5, 7].map(key));
    assert_eq!(table.len(), 5);
    table.check();
}

#[test]
fn what_another_owner_heard_adds_copies_and_changes_none() {
    let (mut table, key) = (table(), key(1));
    table.publish(key, slot(0), Stamp(5), file(1));
    table.hold(key, slot(1), Stamp(5), Medium::Memory);
    let mut heard = Entry::new(Stamp(5), file(1));
    heard.copies.put(slot(1), Medium::Soft);
    heard.copies.put(slot(2), Medium::Soft);
    let copies = |table: &Table| table.get(key).unwrap().copies.iter().collect::<BTreeMap<_, _>>();
    let of = |mediums: &[(u16, Medium)]| mediums.iter().map(|&(at, medium)| (slot(at), medium)).collect();
    table.adopt(key, State::Present(heard.clone()), false, Duration::ZERO);
    let both: BTreeMap<_, _> = of(&[(0, Medium::Memory), (1, Medium::Memory), (2, Medium::Soft)]);
    assert_eq!(copies(&table), both);
    // Who decides is believed.
    table.adopt(key, State::Present(heard), true, Duration::ZERO);
    assert_eq!(copies(&table), of(&[(1, Medium::Soft), (2, Medium::Soft)]));
}

#[test]
fn a_directory_that_is_made_anew_is_later_and_the_same_to_who_knew_it() {
    let directory =
        || Facts::Directory(crate::cluster::object::DirectoryFacts { mode: 0o755, uid: 0, gid: 0 });
    for is_decided in [true, false] {
        let (mut one, mut other, key) = (table(), table(), key(1));
        one.publish(key, slot(1), Stamp(0), directory());
        other.publish(key, slot(2), Stamp(0), directory());
        let anew = one.publish(key, slot(1), Stamp(8), directory());
        assert_eq!(anew, Put::Collapsed { stamp: Stamp(8) });
        assert_eq!(one.latest(key), Some(Stamp(8)), "a removal through an earlier version leaves it");
        let told = one.state(key, Stamp(0));
        assert_eq!(other.adopt(key, told, is_decided, Duration::ZERO), Adopted::default());
        other.check();
        let entry = other.get(key).unwrap();
        assert_eq!((entry.stamp(), entry.copies.contains(slot(1))), (Stamp(8), true));
        assert_eq!(entry.copies.contains(slot(2)), !is_decided, "who decides is believed");
    }
}
