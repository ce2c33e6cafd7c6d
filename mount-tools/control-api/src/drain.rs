//! Leaving a cluster with nothing lost.

use serde::{Deserialize, Serialize};
use tidefs_engine::types::ByteCount;

/// What is wanted of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainOrder {
    /// To tell how far it is.
    #[default]
    Ask,
    /// To begin, or to go on with another limit.
    Begin,
    /// To stop: the member stays.
    Stop,
}

/// Body of [`crate::routes::DRAIN`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DrainRequest {
    /// The member, by its name or its identity.
    pub member: String,
    /// What it is to do.
    pub order: DrainOrder,
    /// How long it may take, in milliseconds. Absent: as long as it takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within_ms: Option<u64>,
}

/// How far a drain is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainStatus {
    /// Identity of the member.
    pub member: String,
    /// `idle` (none was asked for), `copying`, `left` (nothing is left, and it is no member any more), `late` (the time was
    /// over before) or `stuck` (nobody takes what is left). After the last two it is still a member.
    pub phase: String,
    /// Objects and directories that were there.
    pub objects: u64,
    /// Their bytes.
    pub bytes: ByteCount,
    /// Of these, those that other members may not hold yet.
    pub objects_left: u64,
    /// Their bytes.
    pub bytes_left: ByteCount,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_is_written() {
        let request =
            DrainRequest { member: "gpu-3".to_owned(), order: DrainOrder::Begin, within_ms: Some(60_000) };
        let text = r#"{"member":"gpu-3","order":"begin","within_ms":60000}"#;
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        assert_eq!(serde_json::from_str::<DrainRequest>(text).unwrap(), request);
        let asked: DrainRequest = serde_json::from_str(r#"{"member":"gpu-3"}"#).unwrap();
        assert_eq!(asked.order, DrainOrder::Ask);
    }
}
