//! The policy again, naively: no heaps, every answer by a scan over all objects. Random operations on both must
//! give the same answers.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidefs_engine::types::KeyHash;

use super::super::ghost::{Fingerprint, Ghost};
use super::super::{Departure, Eviction, ObjectSlot, RetentionClass};
use super::{LeafBonus, LeafBonusParameters};

const SLOTS: u32 = 40;

#[derive(Clone, Debug)]
struct Object {
    life: u64,
    key: KeyHash,
    class: RetentionClass,
    held: bool,
    hits: u8,
    touched: u64,
    bonus: u64,
    /// Slot and life of the predecessor.
    predecessor: Option<(u32, u64)>,
    newcomer: bool,
}

impl Object {
    fn score(&self) -> u64 {
        self.touched + self.bonus
    }
}

#[derive(Debug)]
struct Model {
    objects: BTreeMap<u32, Object>,
    ghost: Ghost,
    clock: u64,
    lives: u64,
    parameters: LeafBonusParameters,
}

impl Model {
    fn new(parameters: LeafBonusParameters) -> Self {
        let ghost = Ghost::new(parameters.ghost_factor);
        Self { objects: BTreeMap::new(), ghost, clock: 0, lives: 0, parameters }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small positive factors")]
    fn share(&self, amount: usize, factor: f64) -> u64 {
        // Exact for the factors of this test, which are multiples of 1/4, as long as caches are small.
        u64::try_from(amount).unwrap() * ((factor * 4.0) as u64) / 4
    }

    fn bonus(&self, hits: u8) -> u64 {
        let counted = usize::from(hits.min(self.parameters.hits_max));
        self.share(self.objects.len() * counted, self.parameters.bonus)
    }

    fn insert(&mut self, slot: u32, key: KeyHash, predecessor: Option<u32>, class: RetentionClass) {
        self.remove(slot, Departure::Gone);
        self.clock += 1;
        self.lives += 1;
        let predecessor = predecessor.and_then(|it| self.objects.get(&it).map(|object| (it, object.life)));
        let hits = self.ghost.take(Fingerprint::of(key)).map_or(0, |hits| (hits + 1).min(15));
        let (life, touched) = (self.lives, self.clock);
        let newcomer = true;
        let object = Object { life, key, class, held: false, hits, touched, bonus: 0, predecessor, newcomer };
        self.objects.insert(slot, object);
        self.objects.get_mut(&slot).unwrap().bonus = self.bonus(hits);
        let newcomers_max = usize::from(self.parameters.newcomers_max).min(self.objects.len() / 8);
        while self.objects.values().filter(|object| object.newcomer).count() > newcomers_max {
            let oldest = self.objects.values_mut().filter(|object| object.newcomer);
            oldest.min_by_key(|object| object.life).unwrap().newcomer = false;
        }
    }

    fn touch(&mut self, slot: u32) {
        let Some(object) = self.objects.get(&slot) else { return };
        let refuted = self.predecessor(object).is_some_and(|predecessor| {
            predecessor.touched + u64::from(self.parameters.refutation_slack) < object.touched
        });
        let hits = (object.hits + 1).min(15);
        let bonus = self.bonus(hits);
        self.clock += 1;
        let touched = self.clock;
        let object = self.objects.get_mut(&slot).unwrap();
        *object = Object { hits, bonus, touched, ..object.clone() };
        if refuted {
            object.predecessor = None;
        }
    }

    fn predecessor(&self, object: &Object) -> Option<&Object> {
        let (slot, life) = object.predecessor?;
        self.objects.get(&slot).filter(|predecessor| predecessor.life == life)
    }

    fn remove(&mut self, slot: u32, departure: Departure) {
        if let Some(object) = self.objects.remove(&slot)
            && departure == Departure::Evicted
        {
            self.ghost.record(Fingerprint::of(object.key), object.hits, self.objects.len());
        }
    }

    fn victim(&self) -> Option<u32> {
        let is_leaf =
            |life| !self.objects.values().any(|it| it.predecessor.is_some_and(|(_, before)| before == life));
        let free = || self.objects.iter().filter(|(_, object)| !object.held);
        let coldest = |leaf: bool| {
            free()
                .filter(|(_, object)| !object.newcomer && is_leaf(object.life) == leaf)
                .map(|(&slot, object)| (object.class, object.score(), slot))
                .min()
        };
        let patience = self.share(self.objects.len(), self.parameters.link_patience);
        let settled = match (coldest(true), coldest(false)) {
            (Some(leaf), Some(inner)) if (leaf.0, leaf.1) <= (inner.0, inner.1 + patience) => Some(leaf),
            (leaf, inner) => inner.or(leaf),
        };
        let newcomer = free()
            .filter(|(_, object)| object.newcomer)
            .map(|(&slot, object)| (object.class, !is_leaf(object.life), object.score(), slot))
            .min();
        match (settled, newcomer) {
            (Some(settled), Some(newcomer)) if newcomer.0 < settled.0 => Some(newcomer.3),
            (settled, newcomer) => settled.map(|it| it.2).or(newcomer.map(|it| it.3)),
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert { slot: u32, key: u64, predecessor: Option<u32>, class: u8 },
    Touch(u32),
    Hold(u32, bool),
    Class(u32, u8),
    Delete(u32),
    Evict,
}

fn op() -> impl Strategy<Value = Op> {
    let slot = 0..SLOTS;
    prop_oneof![
        6 => (slot.clone(), 0u64..60, prop::option::weighted(0.8, slot.clone()), 0u8..3)
            .prop_map(|(slot, key, predecessor, class)| Op::Insert {
                slot, key, predecessor, class: class.saturating_sub(1)
            }),
        6 => slot.clone().prop_map(Op::Touch),
        2 => (slot.clone(), any::<bool>()).prop_map(|(slot, held)| Op::Hold(slot, held)),
        1 => (slot.clone(), 0u8..2).prop_map(|(slot, class)| Op::Class(slot, class)),
        1 => slot.prop_map(Op::Delete),
        3 => Just(Op::Evict),
    ]
}

fn parameters() -> impl Strategy<Value = LeafBonusParameters> {
    let quarters = |max: u32| (0..max).prop_map(|count| f64::from(count) / 4.0);
    (quarters(8), 0u8..6, 0u32..9, quarters(20), 0u8..4, 0u32..3).prop_map(
        |(bonus, hits_max, ghost_factor, link_patience, newcomers_max, refutation_slack)| {
            LeafBonusParameters {
                bonus,
                hits_max,
                ghost_factor,
                link_patience,
                newcomers_max,
                refutation_slack,
            }
        },
    )
}

fn apply(op: Op, policy: &mut LeafBonus, model: &mut Model) {
    match op {
        Op::Insert { slot, key, predecessor, class } => {
            let class = RetentionClass(class);
            policy.insert(ObjectSlot(slot), KeyHash(key), predecessor.map(ObjectSlot), class);
            model.insert(slot, KeyHash(key), predecessor.filter(|&it| it != slot), class);
        }
        Op::Touch(slot) => {
            policy.touch(ObjectSlot(slot));
            model.touch(slot);
        }
        Op::Hold(slot, held) => {
            policy.set_held(ObjectSlot(slot), held);
            model.objects.entry(slot).and_modify(|object| object.held = held);
        }
        Op::Class(slot, class) => {
            policy.set_class(ObjectSlot(slot), RetentionClass(class));
            model.objects.entry(slot).and_modify(|object| object.class = RetentionClass(class));
        }
        Op::Delete(slot) => {
            policy.remove(ObjectSlot(slot), Departure::Gone);
            model.remove(slot, Departure::Gone);
        }
        Op::Evict => {
            if let Some(slot) = model.victim() {
                policy.remove(ObjectSlot(slot), Departure::Evicted);
                model.remove(slot, Departure::Evicted);
            }
        }
    }
}

proptest! {
    #[test]
    fn the_policy_answers_like_a_scan_over_all_objects(
        parameters in parameters(),
        ops in prop::collection::vec(op(), 0..400),
    ) {
        let mut policy = LeafBonus::new(parameters);
        let mut model = Model::new(parameters);
        for op in ops {
            apply(op, &mut policy, &mut model);
            prop_assert_eq!(policy.victim(), model.victim().map(ObjectSlot));
            prop_assert_eq!(policy.len(), model.objects.len());
            for slot in 0..SLOTS {
                let touched = model.objects.get(&slot).map(|object| object.touched);
                prop_assert_eq!(policy.last_touch(ObjectSlot(slot)), touched);
            }
        }
    }
}

fn chain(policy: &mut LeafBonus, slots: std::ops::Range<u32>) {
    let mut before = None;
    for slot in slots {
        policy.insert(ObjectSlot(slot), KeyHash(slot.into()), before, RetentionClass::NORMAL);
        before = Some(ObjectSlot(slot));
    }
}

/// Pure recency and no newcomers, so that the order is plain to see.
fn plain() -> LeafBonusParameters {
    LeafBonusParameters {
        bonus: 0.0,
        newcomers_max: 0,
        refutation_slack: 0,
        ..LeafBonusParameters::default()
    }
}

#[test]
fn a_chain_leaves_from_its_end() {
    let mut policy = LeafBonus::new(plain());
    chain(&mut policy, 0..4);
    assert_eq!(policy.coldest(9), [3, 2, 1, 0].map(ObjectSlot));
}

#[test]
fn a_used_object_outlives_newer_ones_by_its_bonus() {
    let mut policy = LeafBonus::new(LeafBonusParameters { bonus: 1.0, ..plain() });
    for slot in 0..4 {
        chain(&mut policy, slot..slot + 1);
    }
    policy.touch(ObjectSlot(0));
    for slot in 4..7 {
        chain(&mut policy, slot..slot + 1);
    }
    assert_eq!(policy.coldest(9), [1, 2, 3, 4, 5, 6, 0].map(ObjectSlot));
}

#[test]
fn hits_are_remembered_over_an_eviction_but_not_over_a_deletion() {
    for (departure, last) in [(Departure::Evicted, 0), (Departure::Gone, 3)] {
        let mut policy = LeafBonus::new(LeafBonusParameters { bonus: 1.0, ..plain() });
        for slot in 0..3 {
            chain(&mut policy, slot..slot + 1);
        }
        policy.remove(ObjectSlot(0), departure);
        chain(&mut policy, 0..1);
        chain(&mut policy, 3..4);
        assert_eq!(policy.coldest(9).last(), Some(&ObjectSlot(last)), "{departure:?}");
    }
}

#[test]
fn a_link_is_dropped_when_its_successor_is_used_without_its_predecessor() {
    let mut policy = LeafBonus::new(plain());
    chain(&mut policy, 0..2);
    policy.touch(ObjectSlot(1));
    policy.touch(ObjectSlot(1));
    assert_eq!(policy.coldest(9), [0, 1].map(ObjectSlot));
}

#[test]
fn a_link_survives_uses_in_any_order_within_the_slack() {
    let mut policy = LeafBonus::new(LeafBonusParameters { refutation_slack: 4, ..plain() });
    chain(&mut policy, 0..3);
    for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2], [2, 0, 1], [1, 2, 0]] {
        order.into_iter().for_each(|slot| policy.touch(ObjectSlot(slot)));
    }
    assert_eq!(policy.coldest(9), [2, 1, 0].map(ObjectSlot));
}

#[test]
fn a_true_link_survives_any_number_of_uses() {
    let mut policy = LeafBonus::new(plain());
    chain(&mut policy, 0..3);
    for _ in 0..100 {
        (0..3).for_each(|slot| policy.touch(ObjectSlot(slot)));
    }
    assert_eq!(policy.coldest(9), [2, 1, 0].map(ObjectSlot));
}

#[test]
fn successors_of_a_deleted_object_become_roots_even_if_its_slot_is_used_again() {
    let mut policy = LeafBonus::new(plain());
    chain(&mut policy, 0..2);
    policy.remove(ObjectSlot(0), Departure::Gone);
    chain(&mut policy, 0..1);
    assert_eq!(policy.coldest(9), [1, 0].map(ObjectSlot), "slot 0 is a new object without successors");
    policy.remove(ObjectSlot(1), Departure::Gone);
    assert_eq!(policy.victim(), Some(ObjectSlot(0)));
}

#[test]
fn a_chain_whose_end_is_held_gives_its_coldest_object() {
    let mut policy = LeafBonus::new(plain());
    chain(&mut policy, 0..3);
    policy.set_held(ObjectSlot(2), true);
    assert_eq!(policy.coldest(9), [0, 1].map(ObjectSlot));
}

/// One wrong link after another would let the oldest objects stay for ever.
#[test]
fn what_is_colder_than_the_leaves_by_more_than_patience_leaves_in_spite_of_links() {
    let mut policy = LeafBonus::new(LeafBonusParameters { link_patience: 2.0, ..plain() });
    chain(&mut policy, 0..10);
    let mut end = ObjectSlot(9);
    let mut left_after = None;
    for round in 0..40 {
        let victim = policy.victim().unwrap();
        policy.remove(victim, Departure::Evicted);
        if victim == ObjectSlot(0) {
            left_after = Some(round);
            break;
        }
        let before = (victim != end).then_some(end).or(Some(ObjectSlot(victim.0 - 1)));
        policy.insert(victim, KeyHash(1000 + round), before, RetentionClass::NORMAL);
        end = victim;
    }
    let rounds = left_after.expect("the root of the dead chain leaves");
    assert!((10..15).contains(&rounds), "when it is two capacities older than the end, here {rounds}");
}

#[test]
fn a_new_chain_does_not_evict_itself_when_all_others_were_used() {
    let mut policy = LeafBonus::new(LeafBonusParameters { newcomers_max: 4, ..Default::default() });
    for slot in 0..40 {
        chain(&mut policy, slot..slot + 1);
        policy.touch(ObjectSlot(slot));
    }
    let mut before = None;
    for block in 0..20 {
        let victim = policy.victim().unwrap();
        assert_ne!(Some(victim), before, "block {block} would push out the one before it");
        policy.remove(victim, Departure::Evicted);
        policy.insert(victim, KeyHash(1000 + block), before, RetentionClass::NORMAL);
        before = Some(victim);
    }
}
