//! What is told of names that are watched beyond the limit.

use super::*;

/// As [`owner`], but it is to remember of no name who was answered; with names that it decides about.
fn forgetful(count: usize) -> (Owner, Vec<Vec<u8>>) {
    let (mut owner, _) = owner();
    owner.watches = Watches::new(0);
    let is_mine = |path: &Vec<u8>| owner.role(KeyId::of(path).shard()) == Role::Primary;
    let all = (0..).map(|number| format!("kv/{number}").into_bytes());
    let names = all.filter(is_mine).take(count).collect();
    (owner, names)
}

#[test]
fn names_that_the_same_members_watched_are_told_together_in_the_order_in_which_they_were_asked_for() {
    let (mut owner, names) = forgetful(4);
    let [one, other] = [start(2, 1), start(3, 1)];
    for (name, asker) in [(2, other), (0, one), (2, one), (1, one), (3, one)] {
        assert_eq!(owner.find(asker, &names[name]), Answered::Absent { is_watched: true });
    }
    // By both, as the third, and last of all.
    assert_eq!(owner.find(other, &names[3]), Answered::Absent { is_watched: true });
    let surplus = |watchers: &[PeerId], dropped: &[usize]| {
        let path = |&name: &usize| names[name].clone();
        let told = || dropped.iter().map(|name| Revocation::Appeared { path: path(name) }).collect();
        Surplus {
            keys: dropped.iter().map(|name| KeyId::of(&path(name))).collect(),
            tell: watchers.iter().map(|watcher| (watcher.member, told())).collect(),
        }
    };
    assert_eq!(owner.drop_surplus(3), [surplus(&[one], &[0, 1]), surplus(&[one, other], &[2])]);
    assert_eq!(owner.sizes().watches, 1, "no more than was asked for");
    assert_eq!(owner.drop_surplus(3), [surplus(&[one, other], &[3])]);
    assert!(owner.drop_surplus(3).is_empty());
    assert_eq!((owner.sizes().watches, owner.watches.bytes()), (0, 0));
}

#[test]
fn of_what_is_watched_no_more_who_holds_it_is_told_as_a_holder_and_the_others_through_which_version() {
    let (mut owner, names) = forgetful(2);
    let [holds, asks] = [start(2, 1), start(3, 1)];
    for name in &names {
        publish(&mut owner, holds, name, Stamp(20));
        owner.find(holds, name);
    }
    owner.find(asks, &names[1]);
    let withdraw = Revocation::Withdraw { path: names[1].clone(), through: Stamp(20), seen: 0 };
    let told = Surplus { keys: vec![KeyId::of(&names[1])], tell: vec![(asks.member, vec![withdraw])] };
    assert_eq!(owner.drop_surplus(10), [told]);
    assert_eq!(owner.sizes().watches, 0);
}
