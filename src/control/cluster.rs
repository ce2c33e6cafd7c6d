//! The cluster as operators see it: in `status`, in `tidefs members` and `tidefs where`, and as metrics.

use std::time::{Duration, Instant};

use tidefs_control_api::{
    CatalogStatus, ClusterStatus, CopyMedium, CopyPlace, DrainPhase, KeyPath, MemberLink, MemberStatus, Tier,
    Verdict, Where, WhereKind,
};
use tidefs_engine::metrics::MetricsSnapshot;

use crate::cluster::coordinator::Reachability;
use crate::cluster::status::{self, LinkState};
use crate::cluster::{self, Cluster, Facts, Found, Medium};
use crate::datapath::ClusterSide;
use crate::telemetry::Family;

/// How long the catalog is asked for one name.
const PATIENCE: Duration = Duration::from_secs(5);

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn member(member: status::MemberStatus) -> MemberStatus {
    let (link, suspect_for) = match member.link {
        LinkState::Myself => (MemberLink::Myself, None),
        LinkState::Up => (MemberLink::Up, None),
        LinkState::Connecting => (MemberLink::Connecting, None),
        LinkState::Suspect(since) => (MemberLink::Suspect, Some(since)),
    };
    MemberStatus {
        id: member.id.to_string(),
        incarnation: member.incarnation.0,
        name: member.name,
        link,
        suspect_for_ms: suspect_for.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
        trouble: member.trouble,
        is_registered: member.is_registered,
        labels: member.labels,
        capacity: member.capacity,
        primary_shards: count(member.primary_shards),
        backup_shards: count(member.backup_shards),
        copies: count(member.copies),
        read_bytes_per_second: member.read_bytes_per_second,
    }
}

/// The cluster's status, as the admin socket tells it.
pub(super) fn status(cluster: &Cluster) -> ClusterStatus {
    let status = cluster.status();
    let coordinator_away = match status.coordinator {
        Reachability::Reached => None,
        Reachability::Away { since, reason } => {
            Some(format!("not reached for {} s: {reason}", since.elapsed().as_secs()))
        }
        Reachability::Refused { since, reason } => {
            Some(format!("not gone by for {} s: {reason}", since.elapsed().as_secs()))
        }
    };
    ClusterStatus {
        cluster: status.cluster.to_string(),
        me: status.me.to_string(),
        view: status.view,
        coordinator_away,
        unproven_addresses: status.unproven_addresses.iter().map(ToString::to_string).collect(),
        members: status.members.into_iter().map(member).collect(),
        catalog: CatalogStatus {
            entries: count(status.entries),
            tombstones: count(status.tombstones),
            watches: count(status.watches),
            bytes: status.table_bytes,
            incomplete_shards: count(status.incomplete_shards),
            shards_to_announce: count(status.shards_to_announce),
            loans: count(status.loans),
        },
        copies_to_make: count(status.copies_to_make),
        short_of_copies: count(status.short_of_copies),
        drain: (status.drain.phase != cluster::DrainPhase::Idle)
            .then(|| super::drain::status(status.me, &status.drain)),
    }
}

/// What an operator should know.
pub(super) fn warnings(status: &ClusterStatus) -> Vec<String> {
    let away = status.coordinator_away.as_ref();
    let coordinator = away.map(|why| format!("the coordinator is away, members do not come or go: {why}"));
    let suspects = status.members.iter().filter(|member| member.link == MemberLink::Suspect);
    let suspects = suspects.map(|member| {
        let cause = member.trouble.as_ref().map(|trouble| format!(": {trouble}")).unwrap_or_default();
        format!("member {} ({}) is not heard of{cause}", member.name, member.id)
    });
    let short = (status.short_of_copies > 0).then(|| {
        format!("{} objects have fewer copies than wanted: add members, or room", status.short_of_copies)
    });
    let drain = status.drain.as_ref().and_then(|drain| match drain.phase {
        DrainPhase::Left => Some("this member has left its cluster: stop the daemon".to_owned()),
        DrainPhase::Copying => Some(format!("this member drains: {} objects are left", drain.objects_left)),
        _ => None,
    });
    let unproven = (!status.unproven_addresses.is_empty()).then(|| {
        format!(
            "whoever reaches {} and knows the cluster's name is a member, and reads and writes all objects: set \
             cluster.key_file on all members",
            status.unproven_addresses.join(" ")
        )
    });
    coordinator.into_iter().chain(unproven).chain(suspects).chain(short).chain(drain).collect()
}

/// The cluster's metrics.
pub(super) fn metrics(cluster: &Cluster) -> Vec<Family> {
    let transfers = cluster.engine().map(|engine| engine.metrics().snapshot());
    let transfers = transfers.iter().flat_map(MetricsSnapshot::rows);
    let counters = cluster.counters().rows().chain(transfers);
    let mut families: Vec<Family> =
        counters.map(|(name, help, value)| Family::counter(name, help, value)).collect();
    let status = status(cluster);
    let gauges = [
        ("tidefs_cluster_members", "Members of the cluster.", count(status.members.len())),
        (
            "tidefs_catalog_entries",
            "Names in the part of the catalog that is served here.",
            status.catalog.entries,
        ),
        ("tidefs_catalog_bytes", "Bytes of that part.", status.catalog.bytes.get()),
        (
            "tidefs_cluster_copies_to_make",
            "Objects that wait for copies on other members.",
            status.copies_to_make,
        ),
        (
            "tidefs_cluster_short_of_copies",
            "Objects that this member sees to, and of which there are fewer copies than wanted.",
            status.short_of_copies,
        ),
        ("tidefs_cluster_loans", "Objects that are lent to readers on other members.", status.catalog.loans),
    ];
    families.extend(gauges.map(|(name, help, value)| Family::gauge(name, help, value)));
    families.push(coordinator_away(status.coordinator_away.is_some()));
    families
}

/// Of the cluster's metrics that which a host has, too, that has not joined yet.
pub(super) fn coordinator_away(is_away: bool) -> Family {
    let help = "Whether the coordinator cannot be reached, or is not gone by: 1 when so.";
    Family::gauge("tidefs_coordinator_away", help, u64::from(is_away))
}

/// What the cluster knows of what was never looked up on this host, if anything. Waits; not on a thread of the cluster's runtime.
pub(super) fn verdict(side: &ClusterSide, path: &KeyPath, bytes: Vec<u8>) -> Option<Verdict> {
    let found = locate(side, path, bytes);
    if found.kind == WhereKind::Directory {
        return Some(Verdict::Present { tier: Tier::Other });
    }
    let held_by: Vec<_> = found.copies.into_iter().map(|copy| copy.name.unwrap_or(copy.member)).collect();
    (!held_by.is_empty()).then_some(Verdict::Elsewhere { held_by })
}

/// Asks the catalog who holds `path`. Waits; not on a thread of the cluster's runtime.
pub(super) fn locate(side: &ClusterSide, path: &KeyPath, bytes: Vec<u8>) -> Where {
    if path.is_root() {
        let (path, kind) = (path.clone(), WhereKind::Directory);
        return Where { path, kind, size: None, copies: Vec::new(), replicas: None, is_short: false };
    }
    let cluster = side.cluster();
    let deadline = Instant::now() + PATIENCE;
    let found = side.runtime().block_on(cluster.find(vec![bytes], deadline)).pop().unwrap_or(Found::Unknown);
    let names = cluster.names();
    let (kind, size, copies, replicas) = match found {
        Found::Unknown => (WhereKind::Unknown, None, Vec::new(), None),
        Found::Absent { .. } => (WhereKind::Absent, None, Vec::new(), None),
        Found::Present { facts: Facts::Directory(_), .. } => (WhereKind::Directory, None, Vec::new(), None),
        Found::Present { facts: Facts::File(facts), copies, .. } => {
            (WhereKind::File, Some(facts.size), copies, Some(facts.replicas))
        }
    };
    let relied_on = copies.iter().filter(|copy| copy.medium.is_hard()).count();
    let replicas = replicas.map(u64::from);
    let is_short = replicas.is_some_and(|replicas| count(relied_on) < replicas);
    let copies = copies.into_iter().map(|copy| CopyPlace {
        member: copy.member.to_string(),
        name: names.get(&copy.member).cloned(),
        medium: match copy.medium {
            Medium::Memory => CopyMedium::Memory,
            Medium::Ssd => CopyMedium::Ssd,
            Medium::Soft => CopyMedium::LeavesFirst,
        },
    });
    Where { path: path.clone(), kind, size, copies: copies.collect(), replicas, is_short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_anybody_may_join_is_warned_of() {
        let mut status = ClusterStatus::default();
        assert!(warnings(&status).is_empty());
        status.unproven_addresses = vec!["10.0.0.1:7400".to_owned(), "[::]:0".to_owned()];
        let warnings = warnings(&status);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("whoever reaches 10.0.0.1:7400 [::]:0 and"), "{warnings:?}");
        assert!(warnings[0].contains("cluster.key_file on all members"), "{warnings:?}");
    }
}
