//! Answers that take long, told line by line while they go on.

use serde::{Deserialize, Serialize};

use crate::ApiError;

/// A line that says that the work goes on, where there is nothing else to say for ten seconds: a reader may take a daemon for stuck
/// that says nothing for longer. To [`Event`] it is one of the lines that are not known, which readers pass by.
pub const ALIVE: &str = "{\"event\":\"alive\"}\n";

/// One line of such an answer. The last line is a [`Event::Summary`] or an [`Event::Error`]; an answer that ends otherwise
/// was cut off. What goes wrong before anything was told is told by the status of the reply instead, with an
/// [`crate::ErrorBody`].
///
/// The daemon ends the work when its reader leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<P, S> {
    /// It goes on: how far it is, or the next part of what was asked for.
    Progress(P),
    /// It is done.
    Summary(S),
    /// It was given up.
    Error(ApiError),
    /// A line that this version does not know, or [`ALIVE`].
    #[serde(other)]
    Other,
}

#[cfg(test)]
mod tests {
    use super::ALIVE;
    use crate::{VerifyEvent, VerifyProgress};
    use tidefs_engine::types::ObjectCount;

    #[test]
    fn each_line_names_its_event() {
        let progress =
            VerifyProgress { checked: ObjectCount(3), total: ObjectCount(9), ..Default::default() };
        let line = serde_json::to_string(&VerifyEvent::Progress(progress)).unwrap();
        assert_eq!(
            line,
            r#"{"event":"progress","checked":3,"passed_by":0,"total":9,"checked_bytes":0,"corrupt":0}"#
        );
        for unknown in [r#"{"event":"new"}"#, ALIVE] {
            assert_eq!(serde_json::from_str::<VerifyEvent>(unknown).unwrap(), VerifyEvent::Other);
        }
    }
}
