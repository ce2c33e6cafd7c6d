//! What the daemon says when it refuses: a code for programs, a sentence for people, and what to do next.

use serde::{Deserialize, Serialize};

/// Kind of a refusal; each has one HTTP status ([`ErrorCode::http_status`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request is not one the daemon understands.
    BadRequest,
    /// The caller is neither root nor the daemon's own user.
    Forbidden,
    /// No such object or directory in the cache. Nothing else is told by it: programs take it for a miss.
    NotFound,
    /// No such route: the caller is of a later version, or mistaken.
    NoRoute,
    /// No disk, and no member, is called so.
    UnknownName,
    /// The method does not fit the route.
    MethodNotAllowed,
    /// The daemon did not come to an answer in time.
    Timeout,
    /// The state of the object does not permit it, or that of the cache: open for writing, in use, pinned, no room.
    Conflict,
    /// The request is larger than the daemon reads.
    TooLarge,
    /// The daemon is stopping, does too much of this at once, or another member or the coordinator is away.
    Unavailable,
    /// A fault of the daemon; its log says more.
    #[serde(other)]
    Internal,
}

impl ErrorCode {
    /// Status code of the HTTP reply.
    #[must_use]
    pub const fn http_status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Forbidden => 403,
            Self::NotFound | Self::NoRoute | Self::UnknownName => 404,
            Self::MethodNotAllowed => 405,
            Self::Timeout => 504,
            Self::Conflict => 409,
            Self::TooLarge => 413,
            Self::Unavailable => 503,
            Self::Internal => 500,
        }
    }
}

/// A refusal of the admin API.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct ApiError {
    /// Kind of the refusal.
    pub code: ErrorCode,
    /// What is wrong, one sentence, lower case.
    pub message: String,
    /// What the caller may do about it, if the daemon knows.
    #[serde(default)]
    pub next_step: Option<String>,
}

impl ApiError {
    /// A refusal without advice.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), next_step: None }
    }

    /// The same refusal with advice.
    #[must_use]
    pub fn next_step(mut self, next_step: impl Into<String>) -> Self {
        self.next_step = Some(next_step.into());
        self
    }

    /// [`ErrorCode::NotFound`] for an object that is not in the cache; `why` tells its history.
    #[must_use]
    pub fn no_object(path: &crate::KeyPath) -> Self {
        Self::new(ErrorCode::NotFound, format!("no object at `{path}`"))
            .next_step(format!("`tidefs why {path}` tells what became of it"))
    }
}

/// Body of each reply that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The refusal.
    pub error: ApiError,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_an_object_with_code_message_and_next_step() {
        let body = ErrorBody {
            error: ApiError::new(ErrorCode::Conflict, "`a` is being written")
                .next_step("wait for its writer"),
        };
        assert_eq!(
            serde_json::to_string(&body).unwrap(),
            r#"{"error":{"code":"conflict","message":"`a` is being written","next_step":"wait for its writer"}}"#
        );
    }

    #[test]
    fn a_code_of_a_later_daemon_is_read_as_internal() {
        let json = r#"{"error":{"code":"from_the_future","message":"m"}}"#;
        assert_eq!(serde_json::from_str::<ErrorBody>(json).unwrap().error.code, ErrorCode::Internal);
    }
}
