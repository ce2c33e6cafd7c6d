//! Members: the daemons that form a cluster, as they are registered and as everyone sees them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tidefs_engine::engine::PeerDescriptor;
use tidefs_engine::types::{ByteCount, Incarnation, MemberId};

use super::catalog::wire::{OLDEST, VERSION};

/// Label that names the rack of a host: replicas go to distinct ones where members have it.
pub const RACK: &str = "topology.rack";

/// What the names of labels begin with that name where a host stands.
const PLACE: &str = "topology.";

/// Identity of a cluster, drawn when its first member joins. A member that knows another one is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(pub u64);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Versions of the protocol between members that one of them speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtocolRange {
    /// The oldest.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
}

impl ProtocolRange {
    /// What this build speaks.
    pub const OURS: Self = Self { oldest: OLDEST as u16, newest: VERSION as u16 };

    /// The newest version that both speak.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

impl fmt::Display for ProtocolRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.oldest, self.newest)
    }
}

/// One daemon of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The same across its restarts.
    pub id: MemberId,
    /// Which start of it.
    pub incarnation: Incarnation,
    /// What operators call it, the host name by default. Not an identity.
    pub name: String,
    /// How its engine is reached.
    pub engine: PeerDescriptor,
    /// Where it stands, as `topology.rack`, and whatever else operators label hosts with.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Bytes that it caches at most, memory and SSD together.
    pub capacity: ByteCount,
    /// What it speaks.
    pub protocol: ProtocolRange,
    /// Which registration this is: another number than any other of it had, unchanged for as long as it is in every view. The
    /// coordinator sets it, whatever a member says; zero for what was registered before there were numbers.
    #[serde(default)]
    pub since: u64,
}

impl Member {
    /// The rack that it is labelled with.
    #[must_use]
    pub fn rack(&self) -> Option<&str> {
        self.labels.get(RACK).map(String::as_str)
    }

    /// In how many of the labels that name where this one stands the other one stands elsewhere, or nobody knows where.
    #[must_use]
    pub fn distance(&self, other: &Self) -> usize {
        let places = self.labels.iter().filter(|(name, _)| name.starts_with(PLACE));
        places.filter(|(name, value)| other.labels.get(*name) != Some(value)).count()
    }
}

/// The members at one moment. All decisions about who is responsible for what are made from one view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Grows with each change.
    pub number: u64,
    /// Ordered by id, each id once.
    members: Arc<[Member]>,
}

impl View {
    /// A view of `members`; of several with one id the latest incarnation counts.
    #[must_use]
    pub fn new(number: u64, mut members: Vec<Member>) -> Self {
        members.sort_by_key(|member| (member.id, std::cmp::Reverse(member.incarnation)));
        members.dedup_by_key(|member| member.id);
        Self { number, members: members.into() }
    }

    /// Everyone, ordered by id.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The member with this id.
    #[must_use]
    pub fn member(&self, id: MemberId) -> Option<&Member> {
        let index = self.members.binary_search_by_key(&id, |member| member.id).ok()?;
        self.members.get(index)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use tidefs_engine::types::PeerId;

    /// A member with this id and as many GiB.
    pub(crate) fn member(id: u64, gib: u64) -> Member {
        let peer = PeerId { member: MemberId(id), incarnation: Incarnation(1) };
        Member {
            id: MemberId(id),
            incarnation: Incarnation(1),
            name: format!("host-{id}"),
            engine: PeerDescriptor {
                id: peer,
                addresses: vec![([127, 0, 0, 1], 7000).into()],
                transports: vec!["tcp".to_owned()],
            },
            labels: BTreeMap::new(),
            capacity: ByteCount::gib(gib),
            protocol: ProtocolRange::OURS,
            since: 0,
        }
    }

    /// The same, in a rack.
    pub(crate) fn in_rack(id: u64, gib: u64, rack: &str) -> Member {
        let mut member = member(id, gib);
        member.labels.insert(RACK.to_owned(), rack.to_owned());
        member
    }
}

#[cfg(test)]
mod tests {
    use super::testing::member;
    use super::*;

    #[test]
    fn a_view_has_each_member_once_in_its_latest_incarnation() {
        let mut restarted = member(2, 8);
        restarted.incarnation = Incarnation(9);
        let view = View::new(5, vec![member(3, 8), member(2, 8), restarted.clone(), member(1, 8)]);
        let ids: Vec<u64> = view.members().iter().map(|member| member.id.0).collect();
        assert_eq!(ids, [1, 2, 3]);
        assert_eq!(view.member(MemberId(2)), Some(&restarted));
        assert_eq!(view.member(MemberId(4)), None);
    }

    #[test]
    fn neighbours_in_version_understand_each_other_and_strangers_do_not() {
        let range = |oldest, newest| ProtocolRange { oldest, newest };
        assert_eq!(range(1, 2).common(range(2, 3)), Some(2));
        assert_eq!(range(1, 3).common(range(2, 2)), Some(2));
        assert_eq!(range(1, 1).common(range(2, 3)), None);
    }

    #[test]
    fn a_member_is_read_back_from_what_is_registered() {
        let written = serde_json::to_string(&testing::in_rack(7, 64, "r1")).unwrap();
        let read: Member = serde_json::from_str(&written).unwrap();
        assert_eq!(read, testing::in_rack(7, 64, "r1"));
    }
}
