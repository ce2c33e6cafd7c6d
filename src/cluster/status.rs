//! What a member tells operators about the cluster as it sees it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tidefs_engine::types::{ByteCount, Incarnation, MemberId, PeerId};

use super::catalog::wire::DrainReport;
use super::coordinator::{CoordinatorError, Reachability};
use super::core::{Core, Seen};
use super::member::{ClusterId, Member};
use super::peers::Link;
use super::shards::Shard;

macro_rules! counters {
    ($($field:ident: $name:literal, $help:literal;)*) => {
        /// Everything that is counted here. Counters are relaxed atomics.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(#[doc = $help] pub $field: crate::telemetry::Counter,)*
        }

        impl Counters {
            /// Name, help and value of each counter.
            pub fn rows(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$(($name, $help, self.$field.get()),)*].into_iter()
            }
        }
    };
}

counters! {
    finds: "tidefs_cluster_finds_total", "Names that were asked for in the catalog.";
    find_messages: "tidefs_cluster_find_messages_total", "Messages that were sent to ask for names.";
    unknown: "tidefs_cluster_unknown_total", "Names that nobody could be asked for in time.";
    publishes: "tidefs_cluster_publishes_total", "Objects and directories that were published.";
    publish_failures: "tidefs_cluster_publish_failures_total", "Of these, those that nobody could be told of in time.";
    removals: "tidefs_cluster_removals_total", "Names that were removed for the whole cluster.";
    removals_later: "tidefs_cluster_removals_later_total", "Of these, those that nobody could be told of at once: they are told again.";
    removals_lost: "tidefs_cluster_removals_lost_total", "Of these, those that are not told again, because too many were.";
    ends_lost: "tidefs_cluster_ends_lost_total", "Names of which the last copy went while members were away, and that were forgotten before their time, because there were too many: who comes back may bring an earlier version.";
    change_messages: "tidefs_cluster_change_messages_total", "Messages with publishes, removals, notes and announcements.";
    conflicts: "tidefs_cluster_conflicts_total", "Publishes that replaced a version of another host with different bytes.";
    collapsed: "tidefs_cluster_collapsed_total", "Publishes of what another host had published alike.";
    revocations: "tidefs_cluster_revocations_total", "Names of which members were told that they changed.";
    owed: "tidefs_cluster_owed_total", "Of these, those that could not be told at once.";
    withdrawals: "tidefs_cluster_withdrawals_total", "Names that were withdrawn here.";
    let_go_lost: "tidefs_cluster_let_go_lost_total", "Copies that are gone, and of which the catalog is not told again, because too many are.";
    copies_moved: "tidefs_cluster_copies_moved_total", "Copies here of which the catalog was told that they went to a disk or came back.";
    inherited: "tidefs_cluster_inherited_total", "Copies here that became the ones to rely on, since the others were let go of or lost.";
    announced: "tidefs_cluster_announced_total", "Things that were announced because shards moved.";
    refused: "tidefs_cluster_refused_total", "Of these, those that are not valid any more.";
    moved: "tidefs_cluster_moved_total", "Questions that reached a member which does not serve the shard.";
    dropped_copies: "tidefs_cluster_dropped_copies_total", "Copies that were forgotten with their member.";
    watches_dropped: "tidefs_cluster_watches_dropped_total", "Watched names that were revoked for lack of room.";
    queue_overflows: "tidefs_cluster_queue_overflows_total", "Times a queue to a member was full.";
    fetches: "tidefs_cluster_fetches_total", "Objects that were read from other members.";
    fetched_bytes: "tidefs_cluster_fetched_bytes_total", "Their bytes.";
    fetch_retries: "tidefs_cluster_fetch_retries_total", "Sources that failed before another one was tried.";
    fetch_failures: "tidefs_cluster_fetch_failures_total", "Objects that no source gave.";
    corrupt: "tidefs_cluster_corrupt_total", "Objects whose bytes did not match their checksum when they arrived.";
    lent: "tidefs_cluster_lent_total", "Objects that were lent to readers on other members.";
    lent_bytes: "tidefs_cluster_lent_bytes_total", "Their bytes.";
    loans_expired: "tidefs_cluster_loans_expired_total", "Loans that ended because their time was over.";
    loans_refused: "tidefs_cluster_loans_refused_total", "Objects that were not lent to a reader because too many are, or wait for a NIC to be.";
    copies_made: "tidefs_cluster_copies_made_total", "Copies that other members made because this one asked for them.";
    copied_bytes: "tidefs_cluster_copied_bytes_total", "Their bytes.";
    copies_refused: "tidefs_cluster_copies_refused_total", "Copies that were asked for, and not made that time.";
    copies_kept: "tidefs_cluster_copies_kept_total", "Copies that this member made because another one asked for them.";
    takeovers: "tidefs_cluster_takeovers_total", "Times this member began to answer for others.";
    views_refused: "tidefs_cluster_views_refused_total", "Times a member spoke of a view that there cannot be.";
    stalls: "tidefs_cluster_stalls_total", "Times this member itself stood still.";
}

/// How another member is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// It is this member.
    Myself,
    /// Connected.
    Up,
    /// Not connected yet.
    Connecting,
    /// Silent or lost for so long.
    Suspect(Duration),
}

/// One member.
#[derive(Clone, Debug)]
pub struct MemberStatus {
    /// Who.
    pub id: MemberId,
    /// Which start of it.
    pub incarnation: Incarnation,
    /// What operators call it.
    pub name: String,
    /// Its labels, as `key=value`.
    pub labels: Vec<String>,
    /// What it caches at most.
    pub capacity: ByteCount,
    /// How it is reached.
    pub link: LinkState,
    /// Why it could not be connected to last, while it is not.
    pub trouble: Option<String>,
    /// Whether it is in the view.
    pub is_registered: bool,
    /// Shards whose first catalog it serves.
    pub primary_shards: usize,
    /// Shards whose second catalog it serves.
    pub backup_shards: usize,
    /// Copies that the tables of this member name it for.
    pub copies: usize,
    /// Bytes in a second that were read from it last; 0 when nothing was.
    pub read_bytes_per_second: u64,
}

/// The cluster as this member sees it.
#[derive(Clone, Debug)]
pub struct ClusterStatus {
    /// Which cluster.
    pub cluster: ClusterId,
    /// This member.
    pub me: MemberId,
    /// This start of it.
    pub incarnation: Incarnation,
    /// Number of the view.
    pub view: u64,
    /// See [`ClusterConfig::unproven_addresses`](super::ClusterConfig::unproven_addresses).
    pub unproven_addresses: Vec<SocketAddr>,
    /// Everyone, ordered by id.
    pub members: Vec<MemberStatus>,
    /// Whether the coordinator can be reached.
    pub coordinator: Reachability,
    /// Entries in the tables of this member.
    pub entries: usize,
    /// Removed keys that it remembers.
    pub tombstones: usize,
    /// Names of which it remembers who was answered.
    pub watches: usize,
    /// Bytes of all these tables.
    pub table_bytes: ByteCount,
    /// Shards that it serves and of which it may not know everything yet.
    pub incomplete_shards: usize,
    /// Shards that are still to be announced to those who serve them now.
    pub shards_to_announce: usize,
    /// Objects that are lent now.
    pub loans: usize,
    /// Objects of this member that wait for copies on others.
    pub copies_to_make: usize,
    /// Objects that this member sees to, and of which there are fewer copies than wanted.
    pub short_of_copies: usize,
    /// Whether, and how far, this member drains.
    pub drain: DrainReport,
}

impl Core {
    /// Starts of all other members that are connected.
    pub(super) fn others(&self) -> Vec<PeerId> {
        self.peers.lock().values().filter(|peer| peer.link == Link::Up).map(|peer| peer.id).collect()
    }

    /// Whether the coordinator can be reached. It does not listen to a member of which a later start is there.
    fn coordinator_as_shown(&self) -> Reachability {
        let Some(&(latest, since)) = self.successor.get() else { return self.coordinator.reachability() };
        let (member, ours) = (self.me.member, self.me.incarnation);
        let superseded = CoordinatorError::Superseded { member, ours, latest };
        Reachability::Refused { since, reason: superseded.to_string().into() }
    }

    /// What operators call the members.
    pub(super) fn names(&self) -> BTreeMap<MemberId, String> {
        self.seen().view.members().iter().map(|member| (member.id, member.name.clone())).collect()
    }

    pub(super) fn status(&self) -> ClusterStatus {
        let seen = self.seen();
        let owner = self.owner.lock();
        let (copies, catalog) = (owner.copies_by_member(), owner.sizes());
        drop(owner);
        let (copies_to_make, short_of_copies) = self.copying.sizes();
        ClusterStatus {
            cluster: self.cluster,
            me: self.me.member,
            incarnation: self.me.incarnation,
            view: seen.view.number,
            unproven_addresses: self.config.unproven_addresses(),
            members: self.members_as_shown(&seen, &copies),
            coordinator: self.coordinator_as_shown(),
            entries: catalog.entries,
            tombstones: catalog.tombstones,
            watches: catalog.watches,
            table_bytes: ByteCount(catalog.bytes as u64),
            incomplete_shards: catalog.incomplete_shards,
            // Who is alone has nobody to tell.
            shards_to_announce: if seen.is_alone { 0 } else { self.plan.len() },
            loans: self.loans.len(),
            copies_to_make,
            short_of_copies,
            drain: self.drain_report(),
        }
    }

    /// The members of the view that is `seen`. `copies`: as many as the catalog names each of them for.
    fn members_as_shown(&self, seen: &Seen, copies: &BTreeMap<MemberId, usize>) -> Vec<MemberStatus> {
        let mut served: BTreeMap<MemberId, (usize, usize)> = BTreeMap::new();
        for owners in Shard::all().filter_map(|shard| seen.map.owners(shard)) {
            served.entry(owners.primary).or_default().0 += 1;
            if let Some(backup) = owners.backup {
                served.entry(backup).or_default().1 += 1;
            }
        }
        let as_this_one = |member: &Member| {
            let (primary_shards, backup_shards) = served.get(&member.id).copied().unwrap_or_default();
            MemberStatus {
                id: member.id,
                incarnation: member.incarnation,
                name: member.name.clone(),
                labels: member.labels.iter().map(|(key, value)| format!("{key}={value}")).collect(),
                capacity: member.capacity,
                link: LinkState::Myself,
                trouble: None,
                is_registered: true,
                primary_shards,
                backup_shards,
                copies: copies.get(&member.id).copied().unwrap_or_default(),
                read_bytes_per_second: 0,
            }
        };
        let mut members: Vec<MemberStatus> = seen.view.members().iter().map(as_this_one).collect();
        let now = self.now();
        for (id, peer) in &*self.peers.lock() {
            let Some(member) = members.iter_mut().find(|member| member.id == *id) else { continue };
            member.link = match peer.link {
                Link::Up if !peer.is_slow => LinkState::Up,
                Link::Connecting(_) => LinkState::Connecting,
                Link::Up | Link::Down(_) => {
                    LinkState::Suspect(now.saturating_sub(peer.lost_at.unwrap_or(now)))
                }
            };
            member.trouble = peer.trouble.clone().filter(|_| peer.link != Link::Up);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a rate, which is not negative"
            )]
            let rate = peer.read_rate as u64;
            member.read_bytes_per_second = rate;
        }
        members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_md_has_a_row_for_each_counter() {
        let document = include_str!("../../docs/METRICS.md");
        let transfers = tidefs_engine::metrics::MetricsSnapshot::default();
        for (name, help, _) in Counters::default().rows().chain(transfers.rows()) {
            assert!(document.contains(&format!("| `{name}` | {help} |")), "| `{name}` | {help} |");
        }
    }
}
