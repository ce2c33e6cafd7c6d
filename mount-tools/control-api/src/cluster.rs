//! The cluster as one of its members sees it.

use serde::{Deserialize, Serialize};
use tidefs_engine::types::ByteCount;

use crate::display::display_as_in_json;
use crate::{DrainStatus, KeyPath};

/// What a member knows of its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterStatus {
    /// Identity of the cluster.
    pub cluster: String,
    /// Identity of the member that says all this.
    pub me: String,
    /// Number of the view: it grows when members come and go.
    pub view: u64,
    /// Why the coordinator cannot be reached, when it cannot. Members do not come or go then; reads and writes go on.
    pub coordinator_away: Option<String>,
    /// Addresses, not only of this host, at which whoever knows the cluster's name is a member: neither a key nor TLS proves
    /// who it is.
    pub unproven_addresses: Vec<String>,
    /// Everyone.
    pub members: Vec<MemberStatus>,
    /// What this member serves of the catalog.
    pub catalog: CatalogStatus,
    /// Objects of this member that wait for copies on others.
    pub copies_to_make: u64,
    /// Objects that this member sees to, and of which fewer members hold a copy than wanted.
    pub short_of_copies: u64,
    /// Where a drain of this member is, if one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainStatus>,
}

/// How the member that says this is connected to another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberLink {
    /// It is the one that says this.
    Myself,
    /// It is connected.
    Up,
    /// It is not connected yet.
    Connecting,
    /// It is not heard of.
    Suspect,
    /// A state that this version does not know.
    #[default]
    #[serde(other)]
    Other,
}

/// One member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberStatus {
    /// Its identity.
    pub id: String,
    /// Which start of it.
    pub incarnation: u64,
    /// What operators call it.
    pub name: String,
    /// Whether it is connected.
    pub link: MemberLink,
    /// Milliseconds that it has been suspect for.
    pub suspect_for_ms: Option<u64>,
    /// Why it could not be connected to last, while it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Whether it is registered.
    pub is_registered: bool,
    /// Where it stands, as `NAME=VALUE`.
    pub labels: Vec<String>,
    /// Bytes that it caches at most.
    pub capacity: ByteCount,
    /// Shards of the catalog that it serves first.
    pub primary_shards: u64,
    /// Shards that it serves when the first does not answer.
    pub backup_shards: u64,
    /// Copies that the asked member's catalog has of it.
    pub copies: u64,
    /// Bytes a second in the last reads from it; 0 when there were none.
    pub read_bytes_per_second: u64,
}

/// The part of the catalog that one member serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CatalogStatus {
    /// Names that stand for something.
    pub entries: u64,
    /// Removed names that are remembered.
    pub tombstones: u64,
    /// Names of which it is remembered who was answered.
    pub watches: u64,
    /// Memory of all that.
    pub bytes: ByteCount,
    /// Shards of which it may not know everything yet.
    pub incomplete_shards: u64,
    /// Shards that it has still to announce to others.
    pub shards_to_announce: u64,
    /// Objects that it lends to readers now.
    pub loans: u64,
}

/// What the catalog says of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhereKind {
    /// An object.
    File,
    /// A directory, which every member knows.
    Directory,
    /// No member holds it.
    Absent,
    /// Nobody could be asked in time, or it is a kind that this version does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Where a member has its copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CopyMedium {
    /// In memory.
    Memory,
    /// On a disk.
    Ssd,
    /// In memory, fetched for readers there: it leaves before what no other member holds.
    #[serde(rename = "memory, leaves first")]
    LeavesFirst,
    /// A place that this version does not know.
    #[default]
    #[serde(other)]
    Other,
}

display_as_in_json! {
    MemberLink {
        Myself => "myself", Up => "up", Connecting => "connecting", Suspect => "suspect", Other => "other",
    }
    WhereKind { File => "file", Directory => "directory", Absent => "absent", Unknown => "unknown" }
    CopyMedium { Memory => "memory", Ssd => "ssd", LeavesFirst => "memory, leaves first", Other => "other" }
}

/// Who holds one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Where {
    /// The key.
    pub path: KeyPath,
    /// What it is.
    pub kind: WhereKind,
    /// Its length.
    pub size: Option<ByteCount>,
    /// Members that hold its bytes, the best source first.
    pub copies: Vec<CopyPlace>,
    /// How many members are to hold it. Copies that leave first do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u64>,
    /// Whether fewer do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_short: bool,
}

/// One copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyPlace {
    /// Identity of the member.
    pub member: String,
    /// What operators call it, when it is known.
    pub name: Option<String>,
    /// Where it has it.
    pub medium: CopyMedium,
}
