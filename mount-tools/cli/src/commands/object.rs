//! `tidefs stat` and `tidefs why`.

use std::time::{Duration, SystemTime};

use tidefs_control_api::{KeyPath, ObjectStat, PathQuery, Timestamp, Why, routes};

use crate::args::PathArgs;
use crate::error::CliError;
use crate::locate;
use crate::output::{Output, age, duration, facts, grouped};

pub(crate) fn stat(args: &PathArgs, output: Output) -> Result<(), CliError> {
    let (client, path) = locate::connect_to(&args.select, &args.path, args.spelling)?;
    let value = client.get(routes::STAT, &PathQuery { path })?;
    let stat: ObjectStat = client.read(value.clone())?;
    output.result(&value, || human(&stat, SystemTime::now()))
}

pub(crate) fn why(args: &PathArgs, output: Output) -> Result<(), CliError> {
    let (client, path) = locate::connect_to(&args.select, &args.path, args.spelling)?;
    let value = client.get(routes::WHY, &PathQuery { path })?;
    let why: Why = client.read(value.clone())?;
    output.result(&value, || why.explanation)
}

fn human(stat: &ObjectStat, now: SystemTime) -> String {
    let when = |time: Option<Timestamp>| time.map(|time| format!("{time} ({} ago)", age(time, now)));
    let root = || format!("({})", KeyPath::ROOT_IN_WORDS);
    let path = if stat.path.is_root() { root() } else { stat.path.to_string() };
    facts(&[
        ("path", Some(path)),
        ("kind", Some(stat.kind.to_string())),
        ("size", Some(format!("{} ({} bytes)", stat.size, grouped(stat.size.get())))),
        ("tier", stat.tier.map(|tier| tier.to_string())),
        ("segment", stat.segment.map(|segment| segment.to_string())),
        ("version", stat.version.map(|version| version.to_string())),
        ("checksum", stat.checksum.map(|checksum| checksum.to_string())),
        ("sealed", when(stat.sealed_at)),
        ("last used", when(stat.last_used)),
        ("hits", stat.hits.map(grouped)),
        ("references", Some(grouped(stat.references))),
        ("pin", Some(pin(stat))),
        ("priority", Some(stat.priority.to_string())),
        ("expires in", stat.ttl_left_s.map(|seconds| duration(Duration::from_secs(seconds)))),
        ("follows", stat.predecessor.as_ref().map(ToString::to_string)),
        ("evicted after", stat.eviction_rank.map(|rank| format!("{} others", grouped(rank)))),
    ])
}

fn pin(stat: &ObjectStat) -> String {
    match stat.pin_ttl_left_s {
        Some(seconds) => format!("{}, for {}", stat.pin, duration(Duration::from_secs(seconds))),
        None => stat.pin.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidefs_control_api::{ChecksumHex, Pin, Tier};
    use tidefs_engine::types::{ByteCount, Checksum, SegmentId, Version};

    #[test]
    fn people_see_the_facts_that_apply_and_no_others() {
        let stat = ObjectStat {
            path: KeyPath::from_bytes(b"llama/0a.bin"),
            size: ByteCount::mib(5),
            version: Some(Version(42)),
            checksum: Some(ChecksumHex(Checksum(0xabc))),
            tier: Some(Tier::Memory),
            sealed_at: Some(Timestamp::from_unix_millis(1_000)),
            hits: Some(1234),
            pin: Pin::Soft,
            pin_ttl_left_s: Some(30),
            ttl_left_s: Some(90),
            eviction_rank: Some(7),
            segment: Some(SegmentId(9)),
            ..ObjectStat::default()
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(61);
        let expected = "\
path           llama/0a.bin
kind           file
size           5.0 MiB (5,242,880 bytes)
tier           memory
segment        9
version        42
checksum       0000000000000abc
sealed         1970-01-01T00:00:01.000Z (1m ago)
hits           1,234
references     0
pin            soft, for 30s
priority       0
expires in     1m 30s
evicted after  7 others
";
        assert_eq!(human(&stat, now), expected);
    }
}
