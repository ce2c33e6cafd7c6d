//! What the commands about objects take: which are meant, and what is done with them.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tidefs_control_api::{Pin, SortOrder};
use tidefs_engine::types::ByteCount;

use super::{Select, Spelling};

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Directory whose objects are listed, on all levels; default: the whole mount
    pub(crate) path: Option<PathBuf>,
    /// Order of the list
    #[arg(long, value_enum, default_value_t = Sort::Heat)]
    pub(crate) sort: Sort,
    /// Objects to list
    #[arg(long, value_name = "COUNT", default_value_t = 100, conflicts_with = "all",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: u64,
    /// List all objects
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) spelling: Spelling,
    #[command(flatten)]
    pub(crate) select: Select,
}

/// Order of a list.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Sort {
    /// Last to be evicted first
    Heat,
    /// By name
    Name,
    /// Largest first
    Size,
    /// Oldest first
    Age,
}

impl From<Sort> for SortOrder {
    fn from(sort: Sort) -> Self {
        match sort {
            Sort::Heat => Self::Heat,
            Sort::Name => Self::Name,
            Sort::Size => Self::Size,
            Sort::Age => Self::Age,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PathArgs {
    /// Path below a mount; outside of any mount, a relative path is a key of the daemon
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) spelling: Spelling,
    #[command(flatten)]
    pub(crate) select: Select,
}

#[derive(Debug, Args)]
pub(crate) struct EvictArgs {
    #[command(flatten)]
    pub(crate) what: EvictWhat,
    /// Evict pinned and open objects too; not with --bytes, which takes what is coldest
    #[arg(long, conflicts_with = "bytes")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) spelling: Spelling,
    #[command(flatten)]
    pub(crate) select: Select,
}

/// Exactly one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct EvictWhat {
    /// Object, or directory with all below it
    pub(crate) path: Option<PathBuf>,
    /// Glob over whole keys, or over paths below the mount; `*` stays within one name, `**` does not
    #[arg(long, value_name = "GLOB")]
    pub(crate) pattern: Option<String>,
    /// The coldest objects that add up to this much, for example 4GiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) bytes: Option<ByteCount>,
}

#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// Object, or directory whose objects inherit the pin
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) strength: PinStrength,
    /// End a soft pin after this time, for example 90s, 10m or 2h, rounded up to whole seconds; default: never
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with = "none")]
    pub(crate) ttl: Option<std::time::Duration>,
    #[command(flatten)]
    pub(crate) spelling: Spelling,
    #[command(flatten)]
    pub(crate) select: Select,
}

/// Exactly one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct PinStrength {
    /// Do not evict, until the pin is taken away
    #[arg(long)]
    hard: bool,
    /// Evict last
    #[arg(long)]
    soft: bool,
    /// Take the pin away
    #[arg(long)]
    none: bool,
}

impl PinStrength {
    /// The order that was given.
    pub(crate) fn pin(&self) -> Pin {
        match (self.hard, self.soft) {
            (true, _) => Pin::Hard,
            (_, true) => Pin::Soft,
            _ => Pin::None,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Object, or directory with all below it; default: everything
    pub(crate) path: Option<PathBuf>,
    /// Verify the records of this tier instead of what is in memory
    #[arg(long, value_name = "TIER")]
    pub(crate) tier: Option<VerifiedTier>,
    /// Most bytes to read a second, for example 200MiB [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub(crate) rate: Option<ByteCount>,
    #[command(flatten)]
    pub(crate) spelling: Spelling,
    #[command(flatten)]
    pub(crate) select: Select,
}

/// Tiers that are verified by themselves.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum VerifiedTier {
    /// The records on disk
    Ssd,
}
