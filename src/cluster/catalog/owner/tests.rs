//! What an owner makes of what comes late, and of members that are away, were started again, or are forgotten.

mod other_owner;
mod surplus;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tidefs_engine::types::{ByteCount, Incarnation, MemberId, PeerId};

use super::*;
use crate::cluster::catalog::wire::{Change, Known, Outcome};
use crate::cluster::member::View;
use crate::cluster::member::testing::member;
use crate::cluster::object::{FileFacts, Medium};

const NOW: Duration = Duration::from_secs(100);

fn start(id: u64, incarnation: u64) -> PeerId {
    PeerId { member: MemberId(id), incarnation: Incarnation(incarnation) }
}

/// The owner that is member 1 of 3, and a name that it decides about.
fn owner() -> (Owner, Vec<u8>) {
    let map = ShardMap::new(&View::new(1, (1..=3).map(|id| member(id, 8)).collect()));
    let is_mine = |name: &String| {
        map.owners(KeyId::of(name.as_bytes()).shard()).is_some_and(|owners| owners.primary == MemberId(1))
    };
    let name = (0..).map(|number| format!("kv/{number}")).find(is_mine).unwrap();
    let tombstones = Tombstones::new(Duration::from_secs(600), 1000);
    let mut owner = Owner::new(MemberId(1), tombstones, Watches::new(1 << 20));
    owner.set_map(Arc::new(map), &[], BTreeSet::new());
    (1..=3).for_each(|id| owner.meet(start(id, 1)));
    (owner, name.into_bytes())
}

fn facts_of(checksum: u64) -> Facts {
    Facts::File(FileFacts {
        size: ByteCount(10),
        mtime_ns: 0,
        mode: 0o644,
        uid: 0,
        gid: 0,
        checksum: Some(checksum),
        replicas: 1,
    })
}

fn publish(owner: &mut Owner, from: PeerId, path: &[u8], proposed: Stamp) {
    let facts = facts_of(proposed.0);
    let change = Change::Publish { number: 1, path: path.to_vec(), proposed, facts };
    assert_eq!(owner.change(from, &change, NOW).outcome, Outcome::Done { stamp: proposed });
}

fn stamp(owner: &Owner, path: &[u8]) -> Option<Stamp> {
    Some(owner.table.get(KeyId::of(path))?.stamp())
}

fn holders(owner: &Owner, path: &[u8]) -> Vec<u64> {
    let Known::Present { copies, .. } = owner.known(KeyId::of(path), Stamp(0), NOW) else {
        return Vec::new();
    };
    copies.iter().map(|copy| copy.member.0).collect()
}

#[test]
fn an_owner_that_may_not_know_who_holds_a_name_tells_all_that_it_was_removed_or_replaced() {
    let (mut owner, path) = owner();
    let withdrawn = |tell: Vec<(MemberId, Revocation)>| -> Vec<(u64, Stamp)> {
        let through = |(member, revocation): (MemberId, Revocation)| match revocation {
            Revocation::Withdraw { through, .. } => Some((member.0, through)),
            _ => None,
        };
        tell.into_iter().filter_map(through).collect()
    };
    let remove = Change::Remove { path: path.clone(), at: Stamp(20) };
    let facts = facts_of(30);
    let replace = Change::Publish { number: 1, path: path.clone(), proposed: Stamp(30), facts };
    // It knows all there is: nobody holds anything.
    assert_eq!(withdrawn(owner.change(start(2, 1), &remove, NOW).tell), []);
    let map = Arc::clone(&owner.map);
    let shard = KeyId::of(&path).shard();
    owner.set_map(map, &[shard], [MemberId(3)].into());
    assert_eq!(withdrawn(owner.change(start(2, 1), &remove, NOW).tell), [(1, Stamp(20)), (3, Stamp(20))]);
    assert_eq!(withdrawn(owner.change(start(2, 1), &replace, NOW).tell), [(1, Stamp(29)), (3, Stamp(29))]);
    // When all have announced what they hold it knows again.
    owner.announced(start(3, 1), u64::MAX);
    let replace = Change::Publish { number: 2, path, proposed: Stamp(40), facts: facts_of(40) };
    assert_eq!(withdrawn(owner.change(start(2, 1), &replace, NOW).tell), []);
}

#[test]
fn a_removal_that_is_told_late_leaves_what_was_written_since() {
    let (mut owner, path) = owner();
    publish(&mut owner, start(2, 1), &path, Stamp(20));
    let late = |through| Change::RemoveThrough { path: path.clone(), through };
    let effects = owner.change(start(2, 1), &late(Stamp(10)), NOW);
    assert_eq!(effects.outcome, Outcome::Done { stamp: Stamp(10) });
    assert_eq!((effects.tell, effects.replicate), (Vec::new(), None));
    assert_eq!(stamp(&owner, &path), Some(Stamp(20)));
    owner.change(start(3, 1), &late(Stamp(20)), NOW);
    assert_eq!(stamp(&owner, &path), None);
    // A removal of now removes whatever stands, however the clocks are.
    publish(&mut owner, start(2, 1), &path, Stamp(40));
    owner.change(start(3, 1), &Change::Remove { path: path.clone(), at: Stamp(30) }, NOW);
    assert_eq!(stamp(&owner, &path), None);
}

#[test]
fn a_copy_of_what_nobody_knows_of_is_to_be_announced() {
    let (mut owner, path) = owner();
    let hold = |stamp| Change::Hold { path: path.clone(), stamp, medium: Medium::Soft };
    let refused = |stamp| Outcome::Refused { through: stamp };
    assert_eq!(owner.change(start(3, 1), &hold(Stamp(20)), NOW).outcome, refused(Stamp(20)));
    publish(&mut owner, start(2, 1), &path, Stamp(20));
    assert_eq!(owner.change(start(3, 1), &hold(Stamp(10)), NOW).outcome, refused(Stamp(10)));
    for _ in 0..2 {
        assert_eq!(
            owner.change(start(3, 1), &hold(Stamp(20)), NOW).outcome,
            Outcome::Done { stamp: Stamp(20) }
        );
    }
    assert_eq!(holders(&owner, &path), [2, 3]);
}

#[test]
fn what_an_earlier_start_of_a_member_held_is_named_where_nobody_else_holds_it() {
    let (mut owner, path) = owner();
    publish(&mut owner, start(2, 1), &path, Stamp(20));
    owner.meet(start(2, 2));
    assert_eq!(holders(&owner, &path), [2]);
    let hold = Change::Hold { path: path.clone(), stamp: Stamp(20), medium: Medium::Memory };
    owner.change(start(3, 1), &hold, NOW);
    assert_eq!(holders(&owner, &path), [3]);
    owner.change(start(2, 2), &hold, NOW);
    assert_eq!(holders(&owner, &path), [3, 2]);
}

#[test]
fn what_an_earlier_start_held_is_dropped_when_the_later_one_holds_nothing_and_says_so_before_it_is_met() {
    let (mut owner, path) = owner();
    publish(&mut owner, start(2, 1), &path, Stamp(20));
    let announced = Change::Announced { view: 2 };
    assert_eq!(owner.change(start(2, 2), &announced, NOW).outcome, Outcome::Done { stamp: Stamp(0) });
    assert_eq!(owner.change(start(2, 1), &announced, NOW).outcome, Outcome::Moved, "it is started again");
    for slot in owner.take_stale() {
        owner.drop_copies(KeyId::of(&path).shard(), slot, NOW);
        owner.free_slot(slot);
    }
    assert!(holders(&owner, &path).is_empty());
}

#[test]
fn the_copy_that_counts_when_the_others_are_gone_is_of_a_member_that_is_there() {
    let (mut owner, path) = owner();
    publish(&mut owner, start(1, 1), &path, Stamp(5));
    for id in [2, 3] {
        let hold = Change::Hold { path: path.clone(), stamp: Stamp(5), medium: Medium::Soft };
        owner.change(start(id, 1), &hold, NOW);
    }
    owner.set_suspect(MemberId(2), true);
    let let_go = Change::LetGo { path: path.clone(), stamp: Stamp(5) };
    let heirs = |tell: Vec<(MemberId, Revocation)>| -> Vec<u64> {
        let is_heir = |told: &&(MemberId, Revocation)| matches!(told.1, Revocation::Inherit { .. });
        tell.iter().filter(is_heir).map(|(member, _)| member.0).collect()
    };
    assert_eq!(heirs(owner.change(start(1, 1), &let_go, NOW).tell), [3]);
    owner.set_suspect(MemberId(3), true);
    // One of the two will be back.
    assert_eq!(heirs(owner.find_heirs(KeyId::of(&path).shard())), [2]);
}

/// Nobody believes any more that this start holds anything.
fn drop_start(owner: &mut Owner, peer: PeerId, shard: Shard) {
    for slot in owner.forget_start(peer) {
        owner.drop_copies(shard, slot, NOW);
        owner.free_slot(slot);
    }
}

/// What becomes of what a start that knows nothing of removals says that it holds.
fn announce(owner: &mut Owner, from: PeerId, path: &[u8], stamp: Stamp, facts: Facts) -> Outcome {
    let (path, medium, contact_age_ms) = (path.to_vec(), Medium::Memory, u64::MAX);
    owner.change(from, &Change::Announce { path, stamp, facts, medium, contact_age_ms }, NOW).outcome
}

#[test]
fn what_was_let_go_of_while_a_holder_was_away_stands_again_with_it_and_no_earlier_version_does() {
    let (mut owner, path) = owner();
    publish(&mut owner, start(2, 1), &path, Stamp(20));
    let hold = Change::Hold { path: path.clone(), stamp: Stamp(20), medium: Medium::Soft };
    owner.change(start(3, 1), &hold, NOW);
    owner.note_contact(MemberId(2), NOW);
    drop_start(&mut owner, start(2, 1), KeyId::of(&path).shard());
    let let_go = Change::LetGo { path: path.clone(), stamp: Stamp(20) };
    owner.change(start(3, 1), &let_go, NOW);
    assert!(holders(&owner, &path).is_empty());
    owner.meet(start(2, 2));
    let mut brought = |stamp| announce(&mut owner, start(2, 2), &path, Stamp(stamp), facts_of(stamp));
    assert_eq!(brought(19), Outcome::Refused { through: Stamp(19) });
    assert_eq!(brought(20), Outcome::Done { stamp: Stamp(20) });
    assert_eq!(holders(&owner, &path), [2]);
}

#[test]
fn what_is_published_or_removed_is_later_than_what_a_member_that_is_away_may_bring_back() {
    let (mut owner, path) = owner();
    owner.note_contact(MemberId(2), NOW);
    let end = |owner: &mut Owner| {
        publish(owner, start(3, 1), &path, Stamp(20));
        owner.change(start(3, 1), &Change::LetGo { path: path.clone(), stamp: Stamp(20) }, NOW);
    };
    end(&mut owner);
    let late = Change::RemoveThrough { path: path.clone(), through: Stamp(10) };
    owner.change(start(1, 1), &late, NOW);
    let facts = facts_of(5);
    let publish = Change::Publish { number: 1, path: path.clone(), proposed: Stamp(5), facts };
    assert_eq!(owner.change(start(1, 1), &publish, NOW).outcome, Outcome::Done { stamp: Stamp(21) });

    let (mut owner, _) = self::owner();
    owner.note_contact(MemberId(2), NOW);
    end(&mut owner);
    // By a clock that is behind.
    let remove = Change::Remove { path: path.clone(), at: Stamp(5) };
    assert_eq!(owner.change(start(1, 1), &remove, NOW).outcome, Outcome::Done { stamp: Stamp(20) });
    let brought = announce(&mut owner, start(2, 1), &path, Stamp(20), facts_of(20));
    assert_eq!(brought, Outcome::Refused { through: Stamp(20) });
}

#[test]
fn who_comes_back_is_refused_nothing_for_how_much_others_let_go_of_meanwhile() {
    let (mut owner, path) = owner();
    let shard = KeyId::of(&path).shard();
    publish(&mut owner, start(2, 1), &path, Stamp(20));
    owner.note_contact(MemberId(2), NOW);
    drop_start(&mut owner, start(2, 1), shard);
    let map = Arc::clone(&owner.map);
    let is_mine = |name: &Vec<u8>| {
        map.owners(KeyId::of(name).shard()).is_some_and(|owners| owners.primary == MemberId(1))
    };
    // One more than is remembered.
    let others = (0..).map(|number| format!("kv/other-{number}").into_bytes()).filter(is_mine).take(1001);
    for other in others {
        publish(&mut owner, start(3, 1), &other, Stamp(30));
        owner.change(start(3, 1), &Change::LetGo { path: other, stamp: Stamp(30) }, NOW);
    }
    owner.meet(start(2, 2));
    let brought = announce(&mut owner, start(2, 2), &path, Stamp(20), facts_of(20));
    assert_eq!(brought, Outcome::Done { stamp: Stamp(20) });
    let lost = [(); 2].map(|()| owner.expire(NOW).ends_lost);
    assert_eq!(lost, [1, 0], "it is said once what was forgotten");
}

#[test]
fn a_directory_that_only_lost_members_knew_is_there_again_with_the_first_that_comes_back() {
    let (mut owner, path) = owner();
    let facts = Facts::Directory(crate::cluster::object::DirectoryFacts { mode: 0o755, uid: 0, gid: 0 });
    let publish = Change::Publish { number: 1, path: path.clone(), proposed: Stamp(0), facts };
    owner.change(start(2, 1), &publish, NOW);
    [2, 3].into_iter().for_each(|lost| owner.note_contact(MemberId(lost), NOW));
    drop_start(&mut owner, start(2, 1), KeyId::of(&path).shard());
    assert_eq!(stamp(&owner, &path), None);
    owner.meet(start(2, 2));
    let brought = announce(&mut owner, start(2, 2), &path, Stamp(0), facts);
    assert_eq!(brought, Outcome::Done { stamp: Stamp(0) });
    assert!(stamp(&owner, &path).is_some());
}

#[test]
fn copies_are_counted_for_every_member_and_not_for_its_earlier_starts() {
    let (mut owner, path) = owner();
    publish(&mut owner, start(2, 1), &path, Stamp(20));
    let counted = |owner: &Owner| Vec::from_iter(owner.copies_by_member());
    let copies = |second: usize| [(MemberId(1), 0), (MemberId(2), second), (MemberId(3), 0)];
    assert_eq!(counted(&owner), copies(1));
    owner.meet(start(2, 2));
    assert_eq!(counted(&owner), copies(0));
}

#[test]
fn who_is_forgotten_is_not_shown_what_it_would_not_be_told_of() {
    let (mut owner, path) = owner();
    publish(&mut owner, start(2, 1), &path, Stamp(20));
    let is_shown = |owner: &mut Owner| matches!(owner.find(start(3, 1), &path), Answered::Present { .. });
    assert!(is_shown(&mut owner));
    owner.forget_start(start(3, 1));
    assert_eq!(owner.find(start(3, 1), &path), Answered::Moved);
    owner.meet(start(3, 1));
    assert!(is_shown(&mut owner));
}

#[test]
fn what_collapsed_or_was_in_conflict_is_counted_of_publishes_over_another_hosts_copy_alone() {
    let (mut owner, path) = owner();
    let mut counted = |from: PeerId, change: &Change| {
        let effects = owner.change(from, change, NOW);
        assert!(matches!(effects.outcome, Outcome::Done { .. }), "{change:?}: {effects:?}");
        (effects.is_collapsed, effects.is_conflict)
    };
    let publish = |proposed: u64, checksum: u64| {
        let (path, proposed, facts) = (path.clone(), Stamp(proposed), facts_of(checksum));
        Change::Publish { number: 1, path, proposed, facts }
    };
    let announce = |stamp: u64, checksum: u64| {
        let (path, stamp, facts) = (path.clone(), Stamp(stamp), facts_of(checksum));
        Change::Announce { path, stamp, facts, medium: Medium::Memory, contact_age_ms: 0 }
    };
    assert_eq!(counted(start(2, 1), &publish(20, 1)), (false, false));
    assert_eq!(counted(start(2, 1), &publish(21, 1)), (false, false), "it has published that itself");
    assert_eq!(counted(start(2, 2), &publish(22, 1)), (false, false), "its earlier start has");
    assert_eq!(counted(start(3, 1), &announce(20, 1)), (false, false), "that is no publish");
    assert_eq!(counted(start(1, 1), &publish(23, 1)), (true, false));
    assert_eq!(counted(start(3, 1), &publish(30, 2)), (false, true));
    assert_eq!(counted(start(2, 2), &announce(40, 3)), (false, false), "that is no publish");
}

#[test]
fn who_is_lost_again_before_it_has_heard_all_was_in_touch_before_it_was_lost_first() {
    let (mut owner, path) = owner();
    let at = |seconds| NOW + Duration::from_secs(seconds);
    publish(&mut owner, start(2, 1), &path, Stamp(20));
    owner.note_contact(MemberId(2), NOW);
    let remove = Change::Remove { path: path.clone(), at: Stamp(30) };
    owner.change(start(3, 1), &remove, at(100));
    // It was there for a moment, and not told.
    owner.note_contact(MemberId(2), at(200));
    let forgotten = at(100 + 600);
    owner.expire(forgotten);
    assert_eq!(owner.table.tombstones().len(), 0);
    let brought = |owner: &mut Owner| announce(owner, start(2, 1), &path, Stamp(20), facts_of(20));
    assert_eq!(brought(&mut owner), Outcome::Refused { through: Stamp(20) });
    // Once more, when it had been away for so long already that nothing is known of that.
    owner.note_contact(MemberId(2), at(800));
    assert_eq!(brought(&mut owner), Outcome::Refused { through: Stamp(20) });
    // All that is not valid was taken from it.
    owner.change(start(2, 1), &Change::Announced { view: 1 }, NOW);
    owner.note_contact(MemberId(2), at(900));
    assert_eq!(brought(&mut owner), Outcome::Done { stamp: Stamp(20) });
}

#[test]
fn who_is_away_for_longer_than_removals_are_remembered_is_believed_in_what_others_hold_alone() {
    let (mut owner, path) = owner();
    let late = NOW + Duration::from_secs(600);
    publish(&mut owner, start(2, 1), &path, Stamp(20));
    owner.note_contact(MemberId(2), NOW);
    drop_start(&mut owner, start(2, 1), KeyId::of(&path).shard());
    let mut disbelieved = |now| owner.expire(now).disbelieved;
    assert_eq!(disbelieved(late - Duration::from_millis(1)), []);
    assert_eq!(disbelieved(late), [MemberId(2)]);
    assert_eq!(disbelieved(late), [], "it is said once");
    owner.meet(start(2, 2));
    let brought = |owner: &mut Owner| announce(owner, start(2, 2), &path, Stamp(20), facts_of(20));
    assert_eq!(brought(&mut owner), Outcome::Refused { through: Stamp(20) });
    publish(&mut owner, start(3, 1), &path, Stamp(20));
    assert_eq!(brought(&mut owner), Outcome::Done { stamp: Stamp(20) });
}

#[test]
fn who_did_not_notice_that_it_was_lost_is_not_believed_to_have_been_in_touch() {
    let (mut owner, path) = owner();
    let late = NOW + Duration::from_secs(600);
    let brought = |owner: &mut Owner| {
        let (stamp, facts, medium) = (Stamp(20), facts_of(20), Medium::Memory);
        let change = Change::Announce { path: path.clone(), stamp, facts, medium, contact_age_ms: 0 };
        owner.change(start(2, 1), &change, late).outcome
    };
    owner.note_contact(MemberId(2), NOW);
    // It was removed while that one was away, which is forgotten.
    owner.table.tombstones_mut().raise_horizon(NOW + Duration::from_secs(1));
    assert_eq!(brought(&mut owner), Outcome::Refused { through: Stamp(20) });
    assert_eq!(owner.expire(late).disbelieved, [MemberId(2)]);
    assert_eq!(brought(&mut owner), Outcome::Refused { through: Stamp(20) });
    owner.change(start(2, 1), &Change::Announced { view: 1 }, late);
    assert_eq!(brought(&mut owner), Outcome::Done { stamp: Stamp(20) });
}
