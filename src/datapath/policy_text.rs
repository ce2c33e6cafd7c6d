//! Policies as `setfattr` spells them: their names, how values are read and written, and what is refused.

use std::fmt::Write as _;

use super::Error;
use super::xattrs::{FACTS, Presence};
use crate::cluster::REPLICAS_MAX;
use crate::tier::eviction::POLICY_NAMES;
use crate::tier::memory::{Pin, PolicyRecord};

/// Settable names below [`PREFIX`](super::xattrs::PREFIX), in the order in which they are listed.
pub(super) const SETTABLE: [&str; 10] =
    ["quota", "floor", "ttl", "pin", "priority", "policy", "scratch", "durability", "replicas", RECOMPUTE];
/// Bytes a second that computing an object again yields.
pub(super) const RECOMPUTE: &str = "recompute_bytes_per_second";

/// A policy as `setfattr` spells it; `None` when it is not set.
pub(super) fn written(policy: &PolicyRecord, key: &str) -> Option<String> {
    match key {
        "quota" => policy.quota.map(|quota| quota.get().to_string()),
        "floor" => policy.floor.map(|floor| floor.get().to_string()),
        "ttl" => policy.ttl_s.map(|ttl_s| format!("{ttl_s}s")),
        "pin" => policy.pin.map(pin_text),
        "priority" => policy.priority.map(|priority| priority.to_string()),
        "policy" => policy.eviction.clone(),
        "scratch" => policy.scratch.map(|scratch| scratch.to_string()),
        "durability" => policy.durable.map(|durable| if durable { "ssd" } else { "memory" }.to_owned()),
        "replicas" => policy.replicas.map(|replicas| replicas.to_string()),
        RECOMPUTE => policy.recompute_bytes_per_second.map(|rate| rate.get().to_string()),
        _ => None,
    }
}

pub(super) fn is_settable(key: &str) -> Result<(), Error> {
    if FACTS.contains(&key) {
        return Err(Error::NotPermitted("this attribute is a fact, not a setting"));
    }
    if !SETTABLE.contains(&key) {
        return Err(Error::Unsupported("no such policy; see docs/SEMANTICS.md for the names"));
    }
    Ok(())
}

/// Whether one field of a directory's `own` policy can be changed so.
///
/// # Errors
/// As [`set_attribute`](super::Datapath::set_attribute) and [`remove_attribute`](super::Datapath::remove_attribute).
pub(super) fn check(
    own: &PolicyRecord,
    key: &str,
    value: Option<&str>,
    only: Option<Presence>,
) -> Result<(), Error> {
    is_settable(key)?;
    Presence::check(only, written(own, key).is_some())?;
    if apply(&mut own.clone(), key, value)? { Ok(()) } else { Err(Error::NoAttribute) }
}

/// Changes one field. Returns whether there was anything to change.
pub(super) fn apply(policy: &mut PolicyRecord, key: &str, value: Option<&str>) -> Result<bool, Error> {
    fn set<T>(field: &mut Option<T>, value: Option<Result<T, Error>>) -> Result<bool, Error> {
        match value {
            Some(value) => *field = Some(value?),
            None => return Ok(field.take().is_some()),
        }
        Ok(true)
    }
    let size = |text: &str| text.parse().map_err(|_| Error::Invalid("write a size, for example 64GiB"));
    match key {
        "quota" => set(&mut policy.quota, value.map(size)),
        "floor" => set(&mut policy.floor, value.map(size)),
        "ttl" => set(&mut policy.ttl_s, value.map(seconds)),
        "pin" => set(&mut policy.pin, value.map(pin)),
        "priority" => set(
            &mut policy.priority,
            value.map(|text| {
                text.parse()
                    .ok()
                    .filter(|priority: &i8| (-100..=100).contains(priority))
                    .ok_or(Error::Invalid("write a priority from -100 to 100"))
            }),
        ),
        "policy" => set(
            &mut policy.eviction,
            value.map(|text| {
                POLICY_NAMES
                    .contains(&text)
                    .then(|| text.to_owned())
                    .ok_or(Error::Invalid("write leaf_bonus, lru or s3fifo"))
            }),
        ),
        "scratch" => set(
            &mut policy.scratch,
            value.map(|text| text.parse().map_err(|_| Error::Invalid("write true or false"))),
        ),
        "durability" => set(
            &mut policy.durable,
            value.map(|text| match text {
                "ssd" => Ok(true),
                "memory" => Ok(false),
                _ => Err(Error::Invalid("write ssd or memory")),
            }),
        ),
        "replicas" => set(
            &mut policy.replicas,
            value.map(|text| {
                text.parse()
                    .ok()
                    .filter(|replicas| (1..=REPLICAS_MAX).contains(replicas))
                    .ok_or(Error::Invalid("write how many members are to hold each object, from 1 to 16"))
            }),
        ),
        RECOMPUTE => set(&mut policy.recompute_bytes_per_second, value.map(size)),
        _ => Err(Error::Unsupported("no such policy")),
    }
}

/// `90`, `90s`, `15m`, `2h`, `7d` in seconds.
fn seconds(text: &str) -> Result<u64, Error> {
    let error = || Error::Invalid("write a time, for example 90s, 15m, 2h or 7d");
    let digits = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86400,
        _ => return Err(error()),
    };
    let number: u64 = digits.parse().map_err(|_| error())?;
    number.checked_mul(factor).ok_or_else(error)
}

/// `hard`, `soft`, `soft:15m` or `none`.
fn pin(text: &str) -> Result<Pin, Error> {
    match text.split_once(':') {
        None if text == "hard" => Ok(Pin::Hard),
        None if text == "soft" => Ok(Pin::Soft { ttl_s: None }),
        None if text == "none" => Ok(Pin::None),
        Some(("soft", time)) => Ok(Pin::Soft { ttl_s: Some(seconds(time)?) }),
        _ => Err(Error::Invalid("write hard, soft, soft:TIME or none")),
    }
}

fn pin_text(pin: Pin) -> String {
    let mut text = String::from(match pin {
        Pin::Hard => "hard",
        Pin::None => "none",
        Pin::Soft { .. } => "soft",
    });
    if let Pin::Soft { ttl_s: Some(ttl_s) } = pin {
        // Writing to a String cannot fail.
        let _ = write!(text, ":{ttl_s}s");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_pins_are_read_and_nonsense_is_refused() {
        assert_eq!(seconds("15m").unwrap(), 900);
        assert_eq!(seconds("90").unwrap(), 90);
        for bad in ["", "m", "-1s", "1w", "99999999999999999999d"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        assert_eq!(pin("soft:2h").unwrap(), Pin::Soft { ttl_s: Some(7200) });
        assert_eq!(pin_text(pin("soft:2h").unwrap()), "soft:7200s");
        assert!(pin("firm").is_err());
    }
}
