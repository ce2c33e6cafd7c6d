//! Eviction that is asked for on the admin socket: of which objects, how far it is, and what it did.

use std::fmt;

use serde::{Deserialize, Serialize};
use tidefs_engine::types::{ByteCount, ObjectCount};

use crate::{ApiError, ErrorCode, Event, KeyPath};

/// Body of [`crate::routes::EVICT`]: exactly one of `path`, `pattern` and `bytes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvictRequest {
    /// One object, or a directory with all below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<KeyPath>,
    /// A glob over whole keys, for example `llama/*/0.bin`. `*` does not cross a slash, `**` does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// As much as it takes to free this many bytes, coldest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<ByteCount>,
    /// Evict pinned objects too.
    pub force: bool,
}

/// What an [`EvictRequest`] asks to evict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictTarget {
    /// One object, or a directory with all below it.
    Path(KeyPath),
    /// A glob over whole keys.
    Pattern(String),
    /// The coldest objects of this many bytes.
    Bytes(ByteCount),
}

impl EvictRequest {
    /// The one thing that is asked for.
    ///
    /// # Errors
    /// [`ErrorCode::BadRequest`] if none or several are given, zero bytes, or a pattern that no key can fit because it starts
    /// with a slash.
    pub fn target(&self) -> Result<EvictTarget, ApiError> {
        match (&self.path, &self.pattern, self.bytes) {
            (Some(path), None, None) => Ok(EvictTarget::Path(path.clone())),
            (None, Some(pattern), None) if pattern.starts_with('/') => {
                let message = format!("no key fits the pattern `{pattern}`: keys start with no slash");
                Err(ApiError::new(ErrorCode::BadRequest, message)
                    .next_step("leave the mount point out of it"))
            }
            (None, Some(pattern), None) => Ok(EvictTarget::Pattern(pattern.clone())),
            (None, None, Some(bytes)) if bytes > ByteCount::ZERO => Ok(EvictTarget::Bytes(bytes)),
            _ => Err(ApiError::new(ErrorCode::BadRequest, "what to evict is not clear")
                .next_step("give exactly one of `path`, `pattern` and `bytes` (above zero)")),
        }
    }
}

/// Why an object that was asked for was not evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// It is pinned, and `force` was not given.
    Pinned,
    /// A process has it open or mapped, and `force` was not given.
    Referenced,
    /// It is not sealed yet.
    BeingWritten,
    /// It is scratch, whose owner alone deletes it.
    Scratch,
    /// A reason that this version does not know.
    #[default]
    #[serde(other)]
    Other,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pinned => "pinned",
            Self::Referenced => "referenced",
            Self::BeingWritten => "being written",
            Self::Scratch => "scratch",
            Self::Other => "other",
        })
    }
}

/// An object that was asked for and was not evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Skipped {
    /// Its key.
    pub path: KeyPath,
    /// Why.
    pub reason: SkipReason,
}

/// How far an eviction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvictProgress {
    /// Objects evicted.
    pub objects: ObjectCount,
    /// Bytes of theirs.
    pub bytes: ByteCount,
    /// Files that were looked at; none for [`EvictTarget::Bytes`].
    pub looked_at: ObjectCount,
    /// Objects that there were to look at, as counted at the start.
    pub total: ObjectCount,
}

/// One line of the answer of [`crate::routes::EVICT`]. Progress may be left out when the reader is slow.
pub type EvictEvent = Event<EvictProgress, Evicted>;

/// What an eviction did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evicted {
    /// Objects evicted.
    pub objects: ObjectCount,
    /// Bytes of memory of theirs that are free now.
    pub bytes: ByteCount,
    /// Bytes of memory of theirs that become free when the programs that have them open, or may have them mapped, let go.
    pub held_bytes: ByteCount,
    /// Bytes of those that were on disk, or on another member, alone: no memory of this host is freed.
    pub elsewhere_bytes: ByteCount,
    /// Of the bytes that were asked for, those that are not free now; only for [`EvictTarget::Bytes`].
    pub missing_bytes: ByteCount,
    /// Objects that were asked for and stay.
    pub skipped_objects: ObjectCount,
    /// The first of them.
    pub skipped: Vec<Skipped>,
}

impl Evicted {
    /// Largest number of objects that [`Evicted::skipped`] names; further ones are counted.
    pub const SKIPPED_LISTED_MAX: usize = 100;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eviction_names_exactly_one_target() {
        let path = EvictRequest { path: Some(KeyPath::from_bytes(b"a")), ..EvictRequest::default() };
        assert_eq!(path.target(), Ok(EvictTarget::Path(KeyPath::from_bytes(b"a"))));
        assert_eq!(EvictRequest::default().target().unwrap_err().code, ErrorCode::BadRequest);
        let both = EvictRequest { bytes: Some(ByteCount(1)), ..path };
        assert_eq!(both.target().unwrap_err().code, ErrorCode::BadRequest);
        let nothing = EvictRequest { bytes: Some(ByteCount::ZERO), ..EvictRequest::default() };
        assert_eq!(nothing.target().unwrap_err().code, ErrorCode::BadRequest);
    }

    #[test]
    fn a_pattern_that_starts_with_a_slash_is_refused() {
        let request = EvictRequest { pattern: Some("/mnt/kv/ns/*".to_owned()), ..EvictRequest::default() };
        let refused = request.target().unwrap_err();
        assert!(refused.message.contains("`/mnt/kv/ns/*`") && refused.next_step.is_some(), "{refused}");
    }
}
