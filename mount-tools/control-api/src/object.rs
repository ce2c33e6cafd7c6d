//! Single objects on the admin socket: facts, lists, `eviction`, pins.

mod eviction;

use std::fmt;

use serde::{Deserialize, Serialize};
use tidefs_engine::types::{ByteCount, Checksum, ObjectCount, SegmentId, Version};

use crate::display::display_as_in_json;
use crate::{ApiError, ErrorCode, Event, KeyPath, Timestamp};

pub use self::eviction::{
    EvictEvent, EvictProgress, EvictRequest, EvictTarget, Evicted, SkipReason, Skipped,
};

/// Query of [`crate::routes::STAT`] and [`crate::routes::WHY`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathQuery {
    /// The object or directory asked about.
    pub path: KeyPath,
}

/// What a path names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKind {
    /// A file: one object, or one being written.
    #[default]
    File,
    /// A directory; its size is a sum over what is below it, and so are the hits of one at the top of the mount.
    Directory,
    /// A kind that this version does not know.
    #[serde(other)]
    Other,
}

/// Where the bytes of an object are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// A segment of shared memory of its own.
    #[default]
    Memory,
    /// A segment shared with other small objects.
    Packed,
    /// A file that is rewritten in place and never sealed.
    Scratch,
    /// A local disk alone; it is brought back to memory when it is opened.
    Ssd,
    /// On other members of the cluster alone; it is fetched when it is opened.
    Remote,
    /// Not sealed yet: hidden from all but its writers.
    Writing,
    /// A place that this version does not know.
    #[serde(other)]
    Other,
}

/// Order not to evict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pin {
    /// No order.
    #[default]
    None,
    /// Evict last.
    Soft,
    /// Do not evict.
    Hard,
}

display_as_in_json! {
    ObjectKind { File => "file", Directory => "directory", Other => "other" }
    Tier {
        Memory => "memory", Packed => "packed", Scratch => "scratch", Ssd => "ssd", Remote => "remote",
        Writing => "writing", Other => "other",
    }
    Pin { None => "none", Soft => "soft", Hard => "hard" }
    SortOrder { Heat => "heat", Name => "name", Size => "size", Age => "age" }
}

/// All that is known of one object. Fields that do not apply (a checksum before the seal) are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectStat {
    /// Its key.
    pub path: KeyPath,
    /// File or directory.
    pub kind: ObjectKind,
    /// Length; of a directory, what the objects below it take of memory.
    pub size: ByteCount,
    /// Number of its seal.
    pub version: Option<Version>,
    /// Checksum over its bytes, 16 hex digits of xxh3-64.
    pub checksum: Option<ChecksumHex>,
    /// Where its bytes are; absent for a directory.
    pub tier: Option<Tier>,
    /// When it was sealed.
    pub sealed_at: Option<Timestamp>,
    /// When it was last opened or read.
    pub last_used: Option<Timestamp>,
    /// How often it was opened since it was sealed; of a directory at the top of the mount, how often what is below it was since
    /// the start. Absent for directories below, where that is not counted.
    pub hits: Option<u64>,
    /// Open files, mappings and transfers that keep its bytes, and views of the client library, which gives many back together, some
    /// time after they were dropped.
    pub references: u64,
    /// Order not to evict it.
    pub pin: Pin,
    /// Seconds until a soft pin that was given a time ends; absent for a directory, below which each object has its own.
    pub pin_ttl_left_s: Option<u64>,
    /// Priority in eviction; higher stays longer.
    pub priority: i32,
    /// Seconds until it expires; absent if it does not.
    pub ttl_left_s: Option<u64>,
    /// The object before it in its chain.
    pub predecessor: Option<KeyPath>,
    /// How many objects of its namespace leave before it; absent if it cannot be evicted or this is not known.
    pub eviction_rank: Option<u64>,
    /// The segment that holds its bytes.
    pub segment: Option<SegmentId>,
}

/// A checksum as people and `sha*sum`-like tools write it.
///
/// JSON numbers lose bits beyond 2^53 in many readers, so it travels as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChecksumHex(pub Checksum);

impl fmt::Display for ChecksumHex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0.0)
    }
}

impl Serialize for ChecksumHex {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ChecksumHex {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map(|bits| Self(Checksum(bits))).map_err(serde::de::Error::custom)
    }
}

/// Order of a list. Equal ones stand in the order of their inode numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SortOrder {
    /// Last to be evicted first.
    #[default]
    Heat,
    /// By name.
    Name,
    /// Largest first.
    Size,
    /// Oldest seal first.
    Age,
}

/// Query of [`crate::routes::LIST`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListQuery {
    /// The directory whose objects are listed, all levels below it. Empty: the whole mount.
    pub path: KeyPath,
    /// Order of the list.
    pub sort: SortOrder,
    /// Most objects to tell of, the first ones in the order. Absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// A part of the answer of [`crate::routes::LIST`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListPart {
    /// The next objects, sealed and unsealed.
    pub entries: Vec<ListEntry>,
}

impl ListPart {
    /// Largest number of objects in one part.
    pub const ENTRIES_MAX: usize = 64;
}

/// The end of the answer of [`crate::routes::LIST`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListSummary {
    /// Objects that there were when they were put in order, told of or not. What went or left the directory before its turn
    /// was not told of.
    pub total: ObjectCount,
}

/// One line of the answer of [`crate::routes::LIST`]. Every object that keeps its path meanwhile is in one part, once.
pub type ListEvent = Event<ListPart, ListSummary>;

/// One object of a list; the fields are those of [`ObjectStat`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListEntry {
    /// Its key.
    pub path: KeyPath,
    /// Its length.
    pub size: ByteCount,
    /// Where its bytes are.
    pub tier: Tier,
    /// How often it was opened since it was sealed.
    pub hits: u64,
    /// When it was last opened or read.
    pub last_used: Option<Timestamp>,
    /// When it was sealed.
    pub sealed_at: Option<Timestamp>,
    /// Order not to evict it.
    pub pin: Pin,
}

/// Body of [`crate::routes::PIN`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinRequest {
    /// The object, or a directory, whose objects inherit the pin.
    pub path: KeyPath,
    /// The order.
    pub pin: Pin,
    /// Seconds until the order ends, for [`Pin::Soft`] alone. Absent: it does not end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
}

impl PinRequest {
    /// Checks what the types cannot say.
    ///
    /// # Errors
    /// [`ErrorCode::BadRequest`] for a time on `none` or `hard`, or a time of zero.
    pub fn validate(&self) -> Result<(), ApiError> {
        match (self.pin, self.ttl_s) {
            (Pin::None, Some(_)) => Err(ApiError::new(ErrorCode::BadRequest, "`none` takes no time to live")),
            (Pin::Hard, Some(_)) => {
                Err(ApiError::new(ErrorCode::BadRequest, "only a soft pin takes a time to live").next_step(
                    "pin `soft` for a time, or leave `ttl_s` out: a hard pin holds until it is taken away",
                ))
            }
            (_, Some(0)) => Err(ApiError::new(ErrorCode::BadRequest, "a pin of zero seconds pins nothing")
                .next_step("leave `ttl_s` out for a pin without end")),
            _ => Ok(()),
        }
    }
}

/// Answer of [`crate::routes::PIN`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pinned {
    /// What was pinned or freed.
    pub path: KeyPath,
    /// The order that holds now.
    pub pin: Pin,
    /// Seconds until it ends.
    pub ttl_left_s: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_displayed_is_what_json_says() {
        for pin in [Pin::None, Pin::Soft, Pin::Hard] {
            assert_eq!(serde_json::to_string(&pin).unwrap(), format!("\"{pin}\""));
        }
        for tier in [Tier::Memory, Tier::Packed, Tier::Scratch, Tier::Writing] {
            assert_eq!(serde_json::to_string(&tier).unwrap(), format!("\"{tier}\""));
        }
        for sort in [SortOrder::Heat, SortOrder::Name, SortOrder::Size, SortOrder::Age] {
            assert_eq!(serde_json::to_string(&sort).unwrap(), format!("\"{sort}\""));
        }
    }

    #[test]
    fn an_unknown_field_of_a_request_is_refused() {
        let error = serde_json::from_str::<PinRequest>(r#"{"path":"a","pin":"hard","ttl":5}"#).unwrap_err();
        assert!(error.to_string().contains("`ttl`"), "{error}");
        assert!(serde_json::from_str::<EvictRequest>(r#"{"paht":"a"}"#).is_err());
    }

    #[test]
    fn a_pin_of_no_time_is_refused() {
        let pin = |pin, ttl_s| PinRequest { path: KeyPath::root(), pin, ttl_s }.validate().is_ok();
        assert!(pin(Pin::Hard, None) && pin(Pin::Soft, Some(1)) && pin(Pin::None, None));
        assert!(!pin(Pin::Soft, Some(0)) && !pin(Pin::None, Some(1)));
    }

    #[test]
    fn a_hard_pin_with_a_time_is_refused() {
        let timed = PinRequest { path: KeyPath::root(), pin: Pin::Hard, ttl_s: Some(3) };
        let refused = timed.validate().unwrap_err();
        assert_eq!(refused.code, ErrorCode::BadRequest);
        assert!(refused.message.contains("only a soft pin") && refused.next_step.is_some(), "{refused}");
    }

    #[test]
    fn a_checksum_travels_as_hex_text() {
        let checksum = ChecksumHex(Checksum(0xfedc_ba98_7654_3210));
        assert_eq!(serde_json::to_string(&checksum).unwrap(), "\"fedcba9876543210\"");
        assert_eq!(serde_json::from_str::<ChecksumHex>("\"fedcba9876543210\"").unwrap(), checksum);
    }
}
