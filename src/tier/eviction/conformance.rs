//! What every policy owes its callers, checked for all of them.

use std::collections::HashSet;

use proptest::prelude::*;

use super::leaf_bonus::LeafBonusParameters;
use super::standing::last_to_leave_first;
use super::*;

const SLOTS: u32 = 48;

fn each_policy(mut fact: impl FnMut(&mut dyn Eviction)) {
    for name in POLICY_NAMES {
        let mut policy = policy_by_name(name, &EvictionParameters::default()).unwrap();
        fact(policy.as_mut());
    }
}

fn insert(policy: &mut dyn Eviction, slot: u32, class: RetentionClass) {
    policy.insert(ObjectSlot(slot), KeyHash(slot.into()), None, class);
}

/// Evicts until nothing is evictable; returns the order.
fn drain(policy: &mut dyn Eviction) -> Vec<ObjectSlot> {
    std::iter::from_fn(|| {
        let victim = policy.victim()?;
        assert_eq!(policy.victim(), Some(victim), "{}: asked twice, the same answer", policy.name());
        policy.remove(victim, Departure::Evicted);
        Some(victim)
    })
    .collect()
}

#[test]
fn a_policy_is_known_by_its_name_alone() {
    each_policy(|policy| assert!(POLICY_NAMES.contains(&policy.name())));
    for name in POLICY_NAMES {
        assert_eq!(policy_by_name(name, &EvictionParameters::default()).unwrap().name(), name);
    }
    assert!(policy_by_name("LRU", &EvictionParameters::default()).is_none());
}

#[test]
fn an_empty_policy_has_no_victim_and_ignores_unknown_objects() {
    each_policy(|policy| {
        for slot in [0, 7, u32::MAX] {
            policy.touch(ObjectSlot(slot));
            policy.set_held(ObjectSlot(slot), true);
            policy.set_class(ObjectSlot(slot), RetentionClass::SOFT_PIN);
            policy.remove(ObjectSlot(slot), Departure::Evicted);
            assert_eq!(policy.last_touch(ObjectSlot(slot)), None);
        }
        assert!(policy.is_empty() && policy.victim().is_none() && policy.coldest(5).is_empty());
    });
}

#[test]
fn unused_objects_leave_in_the_order_they_came() {
    each_policy(|policy| {
        (0..10).for_each(|slot| insert(policy, slot, RetentionClass::NORMAL));
        assert_eq!(drain(policy), (0..10).map(ObjectSlot).collect::<Vec<_>>(), "{}", policy.name());
    });
}

#[test]
fn lower_classes_leave_first_whatever_their_recency() {
    each_policy(|policy| {
        for slot in 0..30 {
            insert(policy, slot, RetentionClass([100, 254, 3][slot as usize % 3]));
        }
        for _ in 0..5 {
            (0..30).filter(|slot| slot % 3 == 2).for_each(|slot| policy.touch(ObjectSlot(slot)));
        }
        policy.set_class(ObjectSlot(0), RetentionClass(255));
        let order: Vec<u32> = drain(policy).iter().map(|slot| [1, 2, 0][slot.0 as usize % 3]).collect();
        assert!(order[..29].is_sorted(), "{}: {order:?}", policy.name());
        assert_eq!(order.len(), 30);
    });
}

#[test]
fn a_held_object_stays_and_keeps_its_place() {
    each_policy(|policy| {
        (0..10).for_each(|slot| insert(policy, slot, RetentionClass::NORMAL));
        policy.set_held(ObjectSlot(0), true);
        policy.set_held(ObjectSlot(0), true);
        assert_eq!(policy.victim(), Some(ObjectSlot(1)));
        policy.set_held(ObjectSlot(0), false);
        assert_eq!(policy.victim(), Some(ObjectSlot(0)), "{}: released, it is the coldest", policy.name());
        (0..10).for_each(|slot| policy.set_held(ObjectSlot(slot), true));
        assert_eq!((policy.victim(), policy.len()), (None, 10));
    });
}

#[test]
fn touches_count_upwards_and_holding_is_no_touch() {
    each_policy(|policy| {
        insert(policy, 1, RetentionClass::NORMAL);
        insert(policy, 2, RetentionClass::NORMAL);
        let first = policy.last_touch(ObjectSlot(1)).unwrap();
        assert_eq!(policy.last_touch(ObjectSlot(2)), Some(first + 1));
        policy.set_held(ObjectSlot(1), true);
        policy.set_class(ObjectSlot(1), RetentionClass(7));
        assert_eq!(policy.last_touch(ObjectSlot(1)), Some(first));
        policy.touch(ObjectSlot(1));
        assert_eq!(policy.last_touch(ObjectSlot(1)), Some(first + 2), "{}", policy.name());
    });
}

#[test]
fn an_object_may_come_back_in_its_slot_or_in_another() {
    each_policy(|policy| {
        for round in 0..50 {
            (0..8).for_each(|slot| {
                policy.insert(
                    ObjectSlot(slot + round % 3),
                    KeyHash(slot.into()),
                    None,
                    RetentionClass::NORMAL,
                );
            });
            assert_eq!(policy.len(), 8);
            assert_eq!(drain(policy).len(), 8, "{} in round {round}", policy.name());
        }
    });
}

/// 1,000,000 objects pass through a cache of 10,000.
#[test]
fn churn_does_not_grow_memory() {
    each_policy(|policy| {
        let mut warm = 0;
        for number in 0..1_000_000u32 {
            let slot = if number < 10_000 {
                ObjectSlot(number)
            } else {
                let victim = policy.victim().unwrap();
                policy.remove(victim, Departure::Evicted);
                victim
            };
            policy.insert(slot, KeyHash(number.into()), None, RetentionClass::NORMAL);
            if number % 3 == 0 {
                policy.touch(slot);
            }
            if number == 200_000 {
                warm = policy.memory_bytes();
            }
        }
        assert_eq!(policy.len(), 10_000);
        assert!(policy.memory_bytes() <= warm, "{} grew from {warm}", policy.name());
        assert!(warm < 10_000 * 100, "{} takes {warm} bytes", policy.name());
    });
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u32, Option<u32>, u8),
    Touch(u32),
    Hold(u32, bool),
    Class(u32, u8),
    Remove(u32),
    Evict,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let slot = 0..SLOTS;
    let op = prop_oneof![
        6 => (slot.clone(), prop::option::of(slot.clone()), 0u8..3)
            .prop_map(|(slot, predecessor, class)| Op::Insert(slot, predecessor, class)),
        5 => slot.clone().prop_map(Op::Touch),
        2 => (slot.clone(), any::<bool>()).prop_map(|(slot, held)| Op::Hold(slot, held)),
        1 => (slot.clone(), 0u8..3).prop_map(|(slot, class)| Op::Class(slot, class)),
        1 => slot.prop_map(Op::Remove),
        2 => Just(Op::Evict),
    ];
    prop::collection::vec(op, 0..300)
}

/// What a caller knows beside the policy.
#[derive(Debug, Default)]
struct Known {
    present: HashSet<u32>,
    held: HashSet<u32>,
}

fn apply(op: &Op, policy: &mut dyn Eviction, known: &mut Known) {
    match *op {
        Op::Insert(slot, predecessor, class) => {
            if known.present.insert(slot) {
                let key = KeyHash(slot.into());
                policy.insert(ObjectSlot(slot), key, predecessor.map(ObjectSlot), RetentionClass(class));
            }
        }
        Op::Touch(slot) => policy.touch(ObjectSlot(slot)),
        Op::Hold(slot, held) => {
            policy.set_held(ObjectSlot(slot), held);
            if held && known.present.contains(&slot) {
                known.held.insert(slot);
            } else {
                known.held.remove(&slot);
            }
        }
        Op::Class(slot, class) => policy.set_class(ObjectSlot(slot), RetentionClass(class)),
        Op::Remove(slot) => {
            policy.remove(ObjectSlot(slot), Departure::Gone);
            known.present.remove(&slot);
            known.held.remove(&slot);
        }
        Op::Evict => {
            if let Some(victim) = policy.victim() {
                policy.remove(victim, Departure::Evicted);
                known.present.remove(&victim.0);
            }
        }
    }
}

proptest! {
    #[test]
    fn a_victim_is_present_and_free_and_found_whenever_there_is_one(ops in ops()) {
        for name in POLICY_NAMES {
            let mut policy = policy_by_name(name, &EvictionParameters::default()).unwrap();
            let mut known = Known::default();
            for op in &ops {
                apply(op, policy.as_mut(), &mut known);
                let victim = policy.victim();
                prop_assert_eq!(policy.len(), known.present.len(), "{}", name);
                prop_assert_eq!(victim.is_some(), known.present.len() > known.held.len(), "{}", name);
                if let Some(victim) = victim {
                    prop_assert!(known.present.contains(&victim.0), "{} names a stranger", name);
                    prop_assert!(!known.held.contains(&victim.0), "{} evicts a held object", name);
                }
            }
        }
    }

    #[test]
    fn objects_by_their_standing_are_the_victims_backwards(ops in ops()) {
        // Patience shrinks with the cache: what is told of one object is of the cache as it is.
        let leaf_bonus = LeafBonusParameters { link_patience: 1e6, ..LeafBonusParameters::default() };
        let parameters = EvictionParameters { leaf_bonus, ..EvictionParameters::default() };
        for name in [LEAF_BONUS, LRU] {
            let mut policy = policy_by_name(name, &parameters).unwrap();
            let mut known = Known::default();
            for op in ops.iter().filter(|op| !matches!(op, Op::Hold(_, true))) {
                apply(op, policy.as_mut(), &mut known);
            }
            let slots = || (0..SLOTS).map(ObjectSlot);
            let standings: Vec<_> = slots().map(|slot| (slot, slot, policy.standing(slot))).collect();
            let mut order = last_to_leave_first(&standings);
            let strangers = order.split_off(known.present.len());
            prop_assert!(strangers.iter().all(|slot| !known.present.contains(&slot.0)), "{}", name);
            order.reverse();
            prop_assert_eq!(order, drain(policy.as_mut()), "{}", name);
        }
    }

    #[test]
    fn the_coldest_are_the_victims_one_after_another(ops in ops(), limit in 0usize..60) {
        for name in POLICY_NAMES {
            let mut policy = policy_by_name(name, &EvictionParameters::default()).unwrap();
            let mut known = Known::default();
            for op in &ops {
                apply(op, policy.as_mut(), &mut known);
            }
            let coldest = policy.coldest(limit);
            let mut order = drain(policy.as_mut());
            order.truncate(limit);
            prop_assert_eq!(coldest, order, "{}", name);
        }
    }
}
