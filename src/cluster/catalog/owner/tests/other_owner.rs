//! What an owner makes of what the other owner of a shard says, and what it tells that one: each is to know all that the other
//! has heard, and nothing that it has heard otherwise since.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidefs_engine::types::MemberId;

use super::*;
use crate::cluster::catalog::wire::{Answered, Known, Replicate, Revocation};
use crate::cluster::object::Medium;

#[test]
fn a_copy_that_is_announced_late_is_known_to_the_other_owner_which_lost_it_by_an_earlier_word() {
    let (mut owner, path) = owner();
    let key = KeyId::of(&path);
    let (map, backup) = (Arc::clone(&owner.map), owner.other_owner(key.shard()).unwrap());
    let announce = Change::Announce {
        path: path.clone(),
        stamp: Stamp(20),
        facts: facts_of(20),
        medium: Medium::Memory,
        contact_age_ms: 0,
    };
    // It was started again, and is told by one after the other. That goes to both owners.
    owner.set_map(map, &[key.shard()], [MemberId(3)].into());
    assert_eq!(owner.change(start(1, 1), &announce, NOW).replicate, None);
    assert_eq!(owner.change(start(2, 1), &announce, NOW).replicate, None);
    let let_go = Change::LetGo { path: path.clone(), stamp: Stamp(20) };
    let told = Some((backup, key, Stamp(20)));
    assert_eq!(owner.change(start(1, 1), &let_go, NOW).replicate, told);
    assert_eq!(owner.change(start(3, 1), &announce, NOW).replicate, told);
    assert_eq!(owner.change(start(3, 1), &announce, NOW).replicate, None, "that is known");
}

#[test]
fn a_copy_that_was_let_go_of_while_its_shard_is_handed_over_is_not_named_again() {
    let (mut owner, path) = owner();
    let (key, map) = (KeyId::of(&path), Arc::clone(&owner.map));
    owner.set_map(map, &[key.shard()], [MemberId(2), MemberId(3)].into());
    let let_go = Change::LetGo { path: path.clone(), stamp: Stamp(20) };
    let hold = Change::Hold { path: path.clone(), stamp: Stamp(20), medium: Medium::Memory };
    let copy = |id| Copy { member: MemberId(id), medium: Medium::Memory };
    // Who served the shard before has not heard of what is told here.
    let present = Known::Present { stamp: Stamp(20), facts: facts_of(20), copies: vec![copy(2), copy(3)] };
    let word = |keys: Vec<(u128, Known)>, complete| Replicate {
        view: 1,
        is_decided: false,
        keys,
        complete,
        horizon_age_ms: None,
        away_ms: Vec::new(),
    };
    let keys = word(vec![(key.0, present)], Vec::new());
    owner.change(start(3, 1), &let_go, NOW);
    owner.learn(MemberId(2), &keys, &keys.keys, NOW);
    assert_eq!(holders(&owner, &path), [2]);
    owner.change(start(3, 1), &hold, NOW);
    owner.change(start(2, 1), &let_go, NOW);
    // All have announced what they hold before the last of that word comes.
    assert!(owner.announced(start(2, 1), 1) && owner.announced(start(3, 1), 1));
    owner.learn(MemberId(2), &keys, &keys.keys, NOW);
    assert_eq!(holders(&owner, &path), [3]);
    assert!(owner.learn_rest(MemberId(2), &word(Vec::new(), vec![key.shard().number()]), NOW));
    // What a backup tells from then on it decided in the place of this one.
    owner.learn(MemberId(2), &keys, &keys.keys, NOW);
    assert_eq!(holders(&owner, &path), [3, 2]);
}

#[test]
fn a_word_about_keys_that_others_serve_is_learned_by_nobody_and_said_to_be_so() {
    let (mut owner, path) = owner();
    let view = View::new(1, (1..=3).map(|id| member(id, 8)).collect());
    let map = ShardMap::new(&view);
    let other = (0..).map(|number| format!("kv/{number}").into_bytes());
    let other = other.map(|name| KeyId::of(&name)).find(|key| !map.is_served_by(key.shard(), MemberId(1)));
    let (mine, other) = (KeyId::of(&path), other.unwrap());
    let known = |key: KeyId| (key.0, Known::Removed { stamp: Stamp(9), age_ms: 0 });
    let word = |keys: &[KeyId]| Replicate {
        view: 1,
        is_decided: false,
        keys: keys.iter().copied().map(known).collect(),
        complete: vec![other.shard().number()],
        horizon_age_ms: None,
        away_ms: Vec::new(),
    };
    let both = word(&[mine, other]);
    assert!(owner.learn(MemberId(2), &both, &both.keys, NOW).is_stranger);
    assert_eq!(owner.table.tombstones().through(mine), Some(Stamp(9)));
    assert_eq!(owner.table.tombstones().through(other), None);
    let one = word(&[mine]);
    assert!(!owner.learn(MemberId(2), &one, &one.keys, NOW).is_stranger);
    assert!(!owner.learn_rest(MemberId(2), &one, NOW));
}

#[test]
fn what_was_asked_of_a_backup_before_it_was_lost_again_does_not_make_its_primary_answer() {
    let (mut owner, path) = owner();
    publish(&mut owner, start(1, 1), &path, Stamp(10));
    let backup = owner.map.owners(KeyId::of(&path).shard()).unwrap().backup.unwrap();
    let earlier = owner.fall_behind(backup);
    let later = owner.fall_behind(backup);
    let answers = |owner: &mut Owner| matches!(owner.find(start(3, 1), &path), Answered::Present { .. });
    owner.catch_up(backup, earlier);
    assert!(!answers(&mut owner), "what the backup decided since is not learned");
    owner.catch_up(backup, later);
    assert!(answers(&mut owner));
}

#[test]
fn who_was_passed_over_does_not_know_all_by_what_it_was_told_before_it_forgot_it() {
    let (mut owner, path) = owner();
    let (key, shard) = (KeyId::of(&path), KeyId::of(&path).shard());
    // Others served the shard in view 2, of which this one heard nothing but that.
    owner.note_claim(std::iter::once(shard), 2);
    let copies = vec![Copy { member: MemberId(3), medium: Medium::Memory }];
    let present = Known::Present { stamp: Stamp(10), facts: facts_of(10), copies };
    let word = |keys: Vec<(u128, Known)>, complete| Replicate {
        view: 3,
        is_decided: false,
        keys,
        complete,
        horizon_age_ms: None,
        away_ms: Vec::new(),
    };
    let (keys, whole) = (word(vec![(key.0, present)], Vec::new()), word(Vec::new(), vec![shard.number()]));
    let all = BTreeSet::from([MemberId(2), MemberId(3)]);
    assert!(!owner.learn(MemberId(2), &keys, &keys.keys, NOW).is_stranger);
    // Between the keys and the end of them it hears of view 3, in which it serves the shard again.
    owner.forget_passed(std::iter::once(shard));
    let map = ShardMap::new(&View::new(3, (1..=3).map(|id| member(id, 8)).collect()));
    owner.set_map(Arc::new(map), &[shard], all);
    assert!(!owner.learn_rest(MemberId(2), &whole, NOW), "it is to be told once more");
    assert_eq!(owner.find(start(3, 1), &path), Answered::Incomplete);
    assert!(!owner.learn(MemberId(2), &keys, &keys.keys, NOW).is_stranger);
    assert!(owner.learn_rest(MemberId(2), &whole, NOW));
    assert!(matches!(owner.find(start(3, 1), &path), Answered::Present { .. }));
    assert!(owner.learn_rest(MemberId(2), &whole, NOW));
}

/// What the other owner says when the last copy of a version that it knows is gone, and who is away from it.
fn ended_at(path: &[u8], stamp: Stamp, away_ms: Vec<(MemberId, u64)>) -> Replicate {
    Replicate {
        view: 1,
        is_decided: false,
        keys: vec![(KeyId::of(path).0, Known::Gone { stamp })],
        complete: Vec::new(),
        horizon_age_ms: None,
        away_ms,
    }
}

#[test]
fn who_is_told_of_the_end_of_a_last_copy_refuses_earlier_versions_while_somebody_is_away() {
    let told = |away_ms| {
        let (mut owner, path) = owner();
        let word = ended_at(&path, Stamp(20), away_ms);
        owner.learn(MemberId(2), &word, &word.keys, NOW);
        announce(&mut owner, start(3, 1), &path, Stamp(19), facts_of(19))
    };
    assert_eq!(told(vec![(MemberId(3), 5)]), Outcome::Refused { through: Stamp(19) });
    assert_eq!(told(Vec::new()), Outcome::Done { stamp: Stamp(19) });
}

#[test]
fn what_ended_at_the_other_owner_ends_here_but_for_copies_of_whom_that_one_has_lost() {
    let told = |held, away_ms| {
        let (mut owner, path) = owner();
        publish(&mut owner, start(3, 1), &path, Stamp(held));
        let word = ended_at(&path, Stamp(20), away_ms);
        let learned = owner.learn(MemberId(2), &word, &word.keys, NOW);
        (holders(&owner, &path), learned.tell, learned.ours_later.len())
    };
    let (lost, again) = (|| vec![(MemberId(3), 5)], || vec![(MemberId(3), Revocation::AnnounceAgain)]);
    assert_eq!(told(20, Vec::new()), (vec![], again(), 0));
    assert_eq!(told(20, lost()), (vec![3], vec![], 0));
    assert_eq!(told(10, lost()), (vec![], again(), 0), "a version before it does not stand");
    assert_eq!(told(30, Vec::new()), (vec![3], vec![], 1));
}

/// What the other owner says of a version that stands, as far as it has heard.
fn stands_at(path: &[u8], stamp: Stamp, holders: &[u64]) -> Replicate {
    let copy = |&member: &u64| Copy { member: MemberId(member), medium: Medium::Memory };
    let copies = holders.iter().map(copy).collect();
    let known = Known::Present { stamp, facts: facts_of(stamp.0), copies };
    Replicate { keys: vec![(KeyId::of(path).0, known)], ..ended_at(path, stamp, Vec::new()) }
}

#[test]
fn an_owner_that_let_go_of_a_copy_is_not_named_for_it_by_who_has_not_heard_of_that() {
    let (mut owner, path) = owner();
    let (me, stamp) = (start(1, 1), Stamp(20));
    publish(&mut owner, me, &path, stamp);
    let let_go = Change::LetGo { path: path.clone(), stamp };
    owner.change(me, &let_go, NOW);
    let hears_of = |owner: &mut Owner, named: &[u64]| {
        let word = stands_at(&path, stamp, named);
        owner.learn(MemberId(2), &word, &word.keys, NOW);
        holders(owner, &path)
    };
    assert_eq!(hears_of(&mut owner, &[1]), [0_u64; 0], "it knows best what it holds");
    assert_eq!(hears_of(&mut owner, &[1, 3]), [3]);
    // It says that it has one, and that it was decided elsewhere changes nothing about that.
    let backup = owner.map().owners(KeyId::of(&path).shard()).and_then(|owners| owners.backup).unwrap();
    owner.fall_behind(backup);
    let publish = Change::Publish { number: 2, path: path.clone(), proposed: stamp, facts: facts_of(20) };
    assert_eq!(owner.change(me, &publish, NOW).outcome, Outcome::Moved);
    assert_eq!(hears_of(&mut owner, &[1, 3]), [3, 1]);
    owner.change(me, &let_go, NOW);
    assert_eq!(hears_of(&mut owner, &[1, 3]), [3]);
    // Others may have been told in another view.
    let map = Arc::clone(owner.map());
    owner.set_map(map, &[], BTreeSet::new());
    assert_eq!(hears_of(&mut owner, &[1, 3]), [3, 1]);
}

#[test]
fn who_names_only_a_copy_that_this_owner_let_go_of_is_told_that_it_is_gone() {
    let (mut owner, path) = owner();
    let (me, key) = (start(1, 1), KeyId::of(&path));
    owner.change(me, &Change::Remove { path: path.clone(), at: Stamp(10) }, NOW);
    owner.change(me, &Change::LetGo { path: path.clone(), stamp: Stamp(20) }, NOW);
    let mut ended = |stamp, named: &[u64]| {
        let word = stands_at(&path, Stamp(stamp), named);
        owner.learn(MemberId(2), &word, &word.keys, NOW).ended
    };
    assert_eq!(ended(20, &[1]), [(key.0, Known::Gone { stamp: Stamp(20) })]);
    assert_eq!(ended(20, &[1, 3]), [], "another has one");
    assert_eq!(ended(21, &[1]), [], "it may have that one");
}

/// Two members ask for what one of them is named for, and the other owner says that no copy is left.
#[test]
fn a_holder_that_was_answered_about_what_has_ended_forgets_the_answer_and_keeps_what_it_holds() {
    let (mut owner, path) = owner();
    publish(&mut owner, start(3, 1), &path, Stamp(20));
    for asker in [2, 3] {
        assert!(matches!(owner.find(start(asker, 1), &path), Answered::Present { .. }));
    }
    let word = ended_at(&path, Stamp(20), Vec::new());
    let told = owner.learn(MemberId(2), &word, &word.keys, NOW).tell;
    let forget = Revocation::Forget { shards: vec![KeyId::of(&path).shard().number()], view: 0 };
    let withdraw = Revocation::Withdraw { path, through: Stamp(20), seen: 0 };
    let expected = [(MemberId(2), withdraw), (MemberId(3), Revocation::AnnounceAgain), (MemberId(3), forget)];
    assert_eq!(told, expected);
}

#[test]
fn who_holds_several_names_that_are_said_to_be_gone_announces_what_it_has_once() {
    let (mut owner, path) = owner();
    let map = Arc::clone(owner.map());
    let is_mine = |name: &Vec<u8>| {
        map.owners(KeyId::of(name).shard()).is_some_and(|owners| owners.primary == MemberId(1))
    };
    let second = (0..).map(|number| format!("kw/{number}").into_bytes()).find(is_mine).unwrap();
    let mut word = ended_at(&path, Stamp(20), Vec::new());
    word.keys.extend(ended_at(&second, Stamp(20), Vec::new()).keys);
    for name in [&path, &second] {
        publish(&mut owner, start(3, 1), name, Stamp(20));
    }
    let told = owner.learn(MemberId(2), &word, &word.keys, NOW).tell;
    assert_eq!(told, [(MemberId(3), Revocation::AnnounceAgain)]);
}
