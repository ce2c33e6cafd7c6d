//! `tidefs members`, `tidefs catalog stats`, `tidefs where`.

use std::time::Duration;

use serde_json::Value;
use tidefs_control_api::{ClusterStatus, MemberStatus, PathQuery, Status, Where, WhereKind, routes};
use tidefs_engine::types::ByteCount;

use crate::args::{PathArgs, StatusArgs};
use crate::error::{CliError, Exit};
use crate::locate;
use crate::output::{Column, Output, duration, facts, grouped, table};

/// The cluster of the daemon that is meant, for people and as it was sent.
fn cluster(args: &StatusArgs) -> Result<(ClusterStatus, Value), CliError> {
    let client = locate::connect(&args.of.select())?;
    let mut value = client.get(routes::STATUS, &())?;
    let status: Status = client.read(value.clone())?;
    match status.cluster {
        Some(cluster) => Ok((cluster, value["cluster"].take())),
        None => Err(alone(&status.mount_point, status.cluster_waits_for.as_deref())),
    }
}

/// That the host mounted on `mount` takes part in no cluster, or not yet.
fn alone(mount: &str, waits_for: Option<&str>) -> CliError {
    match waits_for {
        Some(why) => CliError::new(Exit::Failed, format!("{mount} has not joined its cluster yet: {why}"))
            .next_step("it joins by itself; look at the address, the key and the coordinator"),
        None => CliError::new(Exit::Failed, format!("{mount} is a host alone, in no cluster"))
            .next_step("name etcd's address with -o etcd=http://HOST:2379, or one host with -o coordinator=HOST:7401; or try `tidefs cluster dev`"),
    }
}

pub(crate) fn members(args: &StatusArgs, output: Output) -> Result<(), CliError> {
    let (cluster, value) = cluster(args)?;
    output.result(&value, || {
        let away = cluster.coordinator_away.as_ref().map(|why| format!("\nthe coordinator is away: {why}\n"));
        format!(
            "cluster {}, view {}\n\n{}{}{}",
            cluster.cluster,
            cluster.view,
            table_of(&cluster.members),
            troubles_of(&cluster.members),
            away.unwrap_or_default()
        )
    })
}

/// Why members are not connected to.
fn troubles_of(members: &[MemberStatus]) -> String {
    let told = |member: &MemberStatus| {
        let trouble = member.trouble.as_ref()?;
        Some(format!("\n{} ({}) is not connected to: {trouble}\n", member.name, member.id))
    };
    members.iter().filter_map(told).collect()
}

fn table_of(members: &[MemberStatus]) -> String {
    let rows = members.iter().map(|member| {
        let link = match member.suspect_for_ms {
            Some(since) => format!("{} for {}", member.link, duration(Duration::from_millis(since))),
            None => member.link.to_string(),
        };
        vec![
            member.name.clone(),
            member.id.clone(),
            link,
            member.capacity.to_string(),
            format!("{}+{}", member.primary_shards, member.backup_shards),
            grouped(member.copies),
            match member.read_bytes_per_second {
                0 => "-".to_owned(),
                rate => format!("{}/s", ByteCount(rate)),
            },
            member.labels.join(" "),
        ]
    });
    table(
        &[
            Column::Left("MEMBER"),
            Column::Left("ID"),
            Column::Left("LINK"),
            Column::Right("CAPACITY"),
            Column::Right("SHARDS"),
            Column::Right("COPIES"),
            Column::Right("READ AT"),
            Column::Left("LABELS"),
        ],
        rows,
    )
}

pub(crate) fn catalog(args: &StatusArgs, output: Output) -> Result<(), CliError> {
    let (cluster, mut sent) = cluster(args)?;
    let (catalog, short, waiting) = (&cluster.catalog, cluster.short_of_copies, cluster.copies_to_make);
    let mut value = sent["catalog"].take();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("short_of_copies".to_owned(), short.into());
        fields.insert("copies_to_make".to_owned(), waiting.into());
    }
    output.result(&value, || {
        facts(&[
            ("entries", Some(grouped(catalog.entries))),
            ("removed keys remembered", Some(grouped(catalog.tombstones))),
            ("watched names", Some(grouped(catalog.watches))),
            ("memory", Some(catalog.bytes.to_string())),
            ("incomplete shards", Some(grouped(catalog.incomplete_shards))),
            ("shards to announce", Some(grouped(catalog.shards_to_announce))),
            ("objects lent now", Some(grouped(catalog.loans))),
            ("objects with too few copies", Some(grouped(short))),
            ("objects that wait for copies", Some(grouped(waiting))),
        ])
    })
}

pub(crate) fn locate(args: &PathArgs, output: Output) -> Result<(), CliError> {
    let (client, path) = locate::connect_to(&args.select, &args.path, args.spelling)?;
    let value = client.get(routes::WHERE, &PathQuery { path })?;
    let found: Where = client.read(value.clone())?;
    output.result(&value, || human(&found, &locate::same_daemon(&args.select)))
}

/// `same_daemon`: options by which another command asks the same one.
fn human(found: &Where, same_daemon: &str) -> String {
    let name = found.path.in_words();
    match found.kind {
        WhereKind::File if found.copies.is_empty() => {
            format!("{name} is known, and no member holds its bytes")
        }
        WhereKind::File => {
            let rows = found.copies.iter().map(|copy| {
                vec![copy.name.clone().unwrap_or_default(), copy.member.clone(), copy.medium.to_string()]
            });
            let size = found.size.unwrap_or_default();
            let columns = [Column::Left("MEMBER"), Column::Left("ID"), Column::Left("IN")];
            let wanted = match (found.replicas, found.is_short) {
                (Some(replicas), true) => {
                    format!(
                        "\nfewer than the {replicas} copies that are wanted: `tidefs members{same_daemon}` shows who is \
                         there\n"
                    )
                }
                _ => String::new(),
            };
            format!("{name}, {size}\n\n{}{wanted}", table(&columns, rows))
        }
        WhereKind::Directory => format!("{name} is a directory: every member knows it"),
        WhereKind::Absent => format!("no member holds {name}"),
        WhereKind::Unknown => format!("nobody who serves the catalog of {name} answered in time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidefs_control_api::{CopyMedium, CopyPlace, KeyPath, MemberLink};

    #[test]
    fn where_names_each_holder_and_its_tier() {
        let copy =
            |name: &str, medium| CopyPlace { member: "m1".to_owned(), name: Some(name.to_owned()), medium };
        let found = Where {
            path: KeyPath::from_bytes(b"kv/key"),
            kind: WhereKind::File,
            size: Some(ByteCount::mib(4)),
            copies: vec![copy("gpu-1", CopyMedium::Memory), copy("gpu-2", CopyMedium::Ssd)],
            replicas: Some(2),
            is_short: false,
        };
        let text = human(&found, "");
        assert!(text.contains("gpu-1") && text.contains("gpu-2") && text.contains("ssd"), "{text}");
        assert!(!text.contains("wanted"), "{text}");
        let short = Where { replicas: Some(3), is_short: true, ..found.clone() };
        assert!(human(&short, "").contains("fewer than the 3 copies"), "{}", human(&short, ""));
        let nowhere = Where { kind: WhereKind::Absent, copies: Vec::new(), ..found };
        assert!(human(&nowhere, "").contains("no member holds `kv/key`"));
    }

    #[test]
    fn members_show_who_is_not_heard_of_and_since_when() {
        let member = MemberStatus {
            name: "gpu-3".to_owned(),
            link: MemberLink::Suspect,
            suspect_for_ms: Some(12_000),
            ..MemberStatus::default()
        };
        assert!(table_of(&[member]).contains("suspect for 12"), "{}", table_of(&[]));
    }
}
