//! Who was answered is told when that changes, whatever else it is to be told.

use tidefs_engine::types::MemberId;

use super::{NOW, ended_at, owner, publish, start};
use crate::cluster::catalog::wire::{Answered, Revocation};
use crate::cluster::object::Stamp;
use crate::cluster::shards::KeyId;

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
