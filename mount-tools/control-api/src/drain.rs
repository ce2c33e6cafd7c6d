//! Leaving a cluster with nothing lost.

use serde::{Deserialize, Serialize};
use tidefs_engine::types::ByteCount;

use crate::display::display_as_in_json;

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

/// Where a drain is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainPhase {
    /// None was asked for.
    Idle,
    /// It goes on.
    Copying,
    /// Nothing is left, and it is no member any more.
    Left,
    /// The time was over before; it is still a member.
    Late,
    /// Nobody takes what is left; it is still a member.
    Stuck,
    /// A phase that this version does not know.
    #[default]
    #[serde(other)]
    Other,
}

display_as_in_json! {
    DrainPhase {
        Idle => "idle", Copying => "copying", Left => "left", Late => "late", Stuck => "stuck", Other => "other",
    }
}

/// How far a drain is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DrainStatus {
    /// Identity of the member.
    pub member: String,
    /// Where it is.
    pub phase: DrainPhase,
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
