//! Shards of the key space, and who serves the catalog of each: a primary and a backup, from the members alone.

use tidefs_engine::types::MemberId;
use twox_hash::XxHash3_128;

use super::member::{Member, View};
use super::rendezvous::{Cost, Weight};

/// Number of shards. A part of the protocol: all members cut the key space alike.
pub const SHARDS: u16 = 4096;

/// A key of the cluster, the same on every host: a hash of 128 bits of its path below the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u128);

impl KeyId {
    /// The key at `path`, which is relative to the mount and has no empty, `.` or `..` part.
    #[must_use]
    pub fn of(path: &[u8]) -> Self {
        Self(XxHash3_128::oneshot(path))
    }

    /// The shard that it belongs to.
    #[must_use]
    pub fn shard(self) -> Shard {
        // The top bits; what is below stays for tables inside of a shard. 12 bits always fit.
        Shard(u16::try_from(self.0 >> (128 - SHARDS.ilog2())).unwrap_or(0))
    }
}

/// One part of the key space, below [`SHARDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(u16);

impl Shard {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        (0..SHARDS).map(Self)
    }

    /// The shard with this number, if there is one.
    #[must_use]
    pub fn with_number(number: u16) -> Option<Self> {
        (number < SHARDS).then_some(Self(number))
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }
}

/// Who serves the catalog of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owners {
    /// Who is asked first.
    pub primary: MemberId,
    /// Who knows the same and is asked when the primary does not answer. `None` in a cluster of one.
    pub backup: Option<MemberId>,
}

impl Owners {
    /// Whether `member` is one of the two.
    #[must_use]
    pub fn contains(&self, member: MemberId) -> bool {
        self.primary == member || self.backup == Some(member)
    }
}

/// Who serves which shard, in one view.
#[derive(Clone, Debug)]
pub struct ShardMap {
    /// The view's number.
    pub view: u64,
    owners: Box<[Option<Owners>]>,
}

impl ShardMap {
    /// The map of a view. It takes a draw for each shard and member.
    #[must_use]
    pub fn new(view: &View) -> Self {
        Self { view: view.number, owners: Shard::all().map(|shard| owners(view.members(), shard)).collect() }
    }

    /// Who serves `shard`; `None` when there are no members.
    #[must_use]
    pub fn owners(&self, shard: Shard) -> Option<Owners> {
        self.owners.get(usize::from(shard.0)).copied().flatten()
    }

    /// Whether `member` serves `shard`, as primary or backup.
    #[must_use]
    pub fn is_served_by(&self, shard: Shard, member: MemberId) -> bool {
        self.owners(shard).is_some_and(|owners| owners.contains(member))
    }

    /// Shards that `member` serves, as primary or backup.
    pub fn served_by(&self, member: MemberId) -> impl Iterator<Item = Shard> {
        Shard::all().filter(move |&shard| self.is_served_by(shard, member))
    }
}

fn cost(member: &Member, item: u64) -> Cost {
    Cost::new(item, member.id, Weight::of(member.capacity))
}

fn owners(members: &[Member], shard: Shard) -> Option<Owners> {
    // A catalog's shards are small and equal; they are spread by count of hosts that can answer, weighted like bytes.
    let item = u64::from(shard.0);
    let primary = members.iter().min_by_key(|member| cost(member, item))?;
    let others = || members.iter().filter(|member| member.id != primary.id);
    let elsewhere = others()
        .filter(|member| member.rack() != primary.rack())
        .min_by_key(|member| cost(member, item))
        .filter(|_| primary.rack().is_some());
    let backup = elsewhere.or_else(|| others().min_by_key(|member| cost(member, item)));
    Some(Owners { primary: primary.id, backup: backup.map(|member| member.id) })
}

/// What hosts draw for, of a chain. Not its shard's number: the owner of a shard is not to hold all bytes of its keys.
fn replica_item(head: KeyId) -> u64 {
    u64::try_from(head.0 & u128::from(u64::MAX)).unwrap_or(u64::MAX)
}

/// The host for one replica more of what belongs to the chain that begins with `head` and is on `held` already: the first
/// of those that `is_candidate`, in a rack where there is none if there is such a one.
///
/// All objects of a chain get the same hosts, so that a host that is lost takes whole chains with it and no holes into all.
#[must_use]
pub fn replica_target(
    view: &View,
    head: KeyId,
    held: &[MemberId],
    is_candidate: impl Fn(MemberId) -> bool,
) -> Option<MemberId> {
    let item = replica_item(head);
    let racks: Vec<&str> = held.iter().filter_map(|&id| view.member(id)).filter_map(Member::rack).collect();
    let candidates =
        || view.members().iter().filter(|member| !held.contains(&member.id) && is_candidate(member.id));
    let is_far = |member: &&Member| member.rack().is_none_or(|rack| !racks.contains(&rack));
    let far = candidates().filter(is_far).min_by_key(|member| cost(member, item));
    far.or_else(|| candidates().min_by_key(|member| cost(member, item))).map(|member| member.id)
}

#[cfg(test)]
mod tests {
    use super::super::member::testing::{in_rack, member};
    use super::*;
    use proptest::prelude::*;

    fn view(members: Vec<Member>) -> View {
        View::new(1, members)
    }

    #[test]
    fn a_key_is_in_the_same_shard_in_every_build() {
        // Golden: a change of this moves every key of every running cluster.
        assert_eq!(KeyId::of(b"kv/0000").shard().number(), GOLDEN_SHARD);
    }

    const GOLDEN_SHARD: u16 = 1085;

    #[test]
    fn keys_spread_over_all_shards() {
        let mut keys = vec![0_u32; usize::from(SHARDS)];
        for number in 0..409_600_u32 {
            keys[usize::from(KeyId::of(format!("kv/{number:x}").as_bytes()).shard().number())] += 1;
        }
        // 100 each, give or take six standard deviations.
        assert!(keys.iter().all(|&count| (40..=160).contains(&count)), "{:?}", keys.iter().max());
    }

    #[test]
    fn nobody_serves_where_nobody_is_and_one_serves_alone() {
        assert_eq!(ShardMap::new(&view(vec![])).owners(Shard(0)), None);
        let alone = ShardMap::new(&view(vec![member(1, 8)]));
        assert_eq!(alone.owners(Shard(7)), Some(Owners { primary: MemberId(1), backup: None }));
        assert_eq!(alone.served_by(MemberId(1)).count(), usize::from(SHARDS));
    }

    #[test]
    fn primary_and_backup_stand_in_different_racks_where_they_can() {
        let racks =
            view(vec![in_rack(1, 8, "a"), in_rack(2, 8, "a"), in_rack(3, 8, "a"), in_rack(4, 8, "b")]);
        let map = ShardMap::new(&racks);
        for shard in Shard::all() {
            let owners = map.owners(shard).unwrap();
            let pair = [owners.primary, owners.backup.unwrap()];
            assert!(pair.contains(&MemberId(4)), "{shard:?}: {pair:?}");
        }
    }

    #[test]
    fn who_leaves_makes_its_backups_primaries_and_moves_nothing_else() {
        let before = ShardMap::new(&view((1..=5).map(|id| member(id, 8)).collect()));
        let after = ShardMap::new(&view((1..=5).filter(|&id| id != 3).map(|id| member(id, 8)).collect()));
        for shard in Shard::all() {
            let (old, new) = (before.owners(shard).unwrap(), after.owners(shard).unwrap());
            if old.primary == MemberId(3) {
                assert_eq!(Some(new.primary), old.backup, "{shard:?}");
            } else {
                assert_eq!(new.primary, old.primary, "{shard:?}");
                assert!(new.backup == old.backup || old.backup == Some(MemberId(3)), "{shard:?}");
            }
        }
    }

    /// Hosts for `count` replicas of what belongs to a chain, found one by one, as it is done.
    fn hosts_one_by_one(view: &View, head: KeyId, count: usize) -> Vec<MemberId> {
        let mut held = Vec::new();
        while held.len() < count
            && let Some(next) = replica_target(view, head, &held, |_| true)
        {
            held.push(next);
        }
        held
    }

    /// The same in one go: distinct hosts always, distinct racks as far as there are.
    fn hosts_at_once(view: &View, head: KeyId, count: usize) -> Vec<MemberId> {
        let item = replica_item(head);
        let mut ranked: Vec<(Cost, &Member)> =
            view.members().iter().map(|member| (cost(member, item), member)).collect();
        ranked.sort_by_key(|&(cost, _)| cost);
        let mut hosts: Vec<&Member> = Vec::with_capacity(count.min(ranked.len()));
        for wants_new_rack in [true, false] {
            for &(_, member) in &ranked {
                if hosts.len() == count {
                    break;
                }
                let is_taken = hosts.iter().any(|host| host.id == member.id);
                let is_near =
                    member.rack().is_some() && hosts.iter().any(|host| host.rack() == member.rack());
                let is_wanted = !(wants_new_rack && is_near);
                if is_wanted && !is_taken {
                    hosts.push(member);
                }
            }
        }
        hosts.into_iter().map(|member| member.id).collect()
    }

    proptest! {
        #[test]
        fn replicas_are_on_distinct_hosts_and_on_as_many_racks_as_there_are(
            key: u128,
            racks in proptest::collection::vec(proptest::option::of(0_u8..4), 0..12),
            count in 0_usize..6,
        ) {
            let members: Vec<Member> = racks
                .iter()
                .zip(1..)
                .map(|(rack, id)| match rack {
                    Some(rack) => in_rack(id, 8, &rack.to_string()),
                    None => member(id, 8),
                })
                .collect();
            let view = view(members);
            let hosts = hosts_one_by_one(&view, KeyId(key), count);
            prop_assert_eq!(hosts.len(), count.min(view.members().len()));
            let distinct: std::collections::BTreeSet<_> = hosts.iter().collect();
            prop_assert_eq!(distinct.len(), hosts.len());
            // A host without a label stands alone.
            let place = |id: &MemberId| match view.member(*id).unwrap().rack() {
                Some(rack) => rack.to_owned(),
                None => format!("host {id}"),
            };
            let used: std::collections::BTreeSet<String> = hosts.iter().map(place).collect();
            let there: std::collections::BTreeSet<String> =
                view.members().iter().map(|member| place(&member.id)).collect();
            prop_assert_eq!(used.len(), there.len().min(count));
        }

        #[test]
        fn replicas_that_are_found_one_by_one_are_those_that_are_found_together(
            key: u128,
            racks in proptest::collection::vec(proptest::option::of(0_u8..4), 1..12),
            count in 0_usize..6,
        ) {
            let in_its_rack = |(rack, id): (&Option<u8>, u64)| match rack {
                Some(rack) => in_rack(id, 8, &rack.to_string()),
                None => member(id, 8),
            };
            let view = view(racks.iter().zip(1..).map(in_its_rack).collect());
            let head = KeyId(key);
            prop_assert_eq!(hosts_one_by_one(&view, head, count), hosts_at_once(&view, head, count));
        }

        #[test]
        fn a_host_that_is_lost_changes_only_the_chains_that_it_held(key: u128, lost in 1_u64..=6) {
            let all = view((1..=6).map(|id| member(id, 8)).collect());
            let rest = view((1..=6).filter(|&id| id != lost).map(|id| member(id, 8)).collect());
            let hosts = |view| hosts_one_by_one(view, KeyId(key), 2);
            let (before, after) = (hosts(&all), hosts(&rest));
            if before.contains(&MemberId(lost)) {
                prop_assert!(before.iter().filter(|&&id| id != MemberId(lost)).all(|id| after.contains(id)));
            } else {
                prop_assert_eq!(before, after);
            }
        }
    }
}
