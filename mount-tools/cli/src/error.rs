//! How a command fails: an exit code for scripts, a sentence and the next step for people.

use std::fmt;
use std::io;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Value, json};
use tidefs_control_api::{ApiError, ErrorCode};

/// Exit codes of `tidefs`. They are a promise: scripts branch on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Exit {
    /// It did not work.
    Failed = 1,
    /// The command line is wrong, or does not say which daemon is meant.
    Usage = 2,
    /// No such daemon or mount.
    NoDaemon = 3,
    /// No such object or directory.
    NotFound = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct CliError {
    /// What the process ends with.
    pub(crate) exit: Exit,
    /// Code for programs: the daemon's, or the name of the exit code.
    pub(crate) code: String,
    /// What is wrong.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) next_step: Option<String>,
}

impl CliError {
    /// A failure without advice.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        let code = match exit {
            Exit::Failed => "failed",
            Exit::Usage => "usage",
            Exit::NoDaemon => "no_daemon",
            Exit::NotFound => "not_found",
        };
        Self { exit, code: code.to_owned(), message: message.into(), next_step: None }
    }

    /// [`Exit::Failed`] with the reason that the system gives.
    pub(crate) fn system(what: impl fmt::Display, error: &io::Error) -> Self {
        let failure = Self::new(Exit::Failed, format!("{what}: {error}"));
        match error.kind() {
            io::ErrorKind::PermissionDenied => {
                failure.next_step("run it as root, or as the user that the daemon runs as")
            }
            _ => failure,
        }
    }

    /// The failure for programs.
    pub(crate) fn json(&self) -> Value {
        json!({"code": self.code, "message": self.message, "next_step": self.next_step})
    }

    /// The same failure with advice.
    pub(crate) fn next_step(mut self, next_step: impl Into<String>) -> Self {
        self.next_step = Some(next_step.into());
        self
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.next_step {
            Some(next_step) => write!(f, "\n  next step: {next_step}"),
            None => Ok(()),
        }
    }
}

impl From<ApiError> for CliError {
    fn from(error: ApiError) -> Self {
        let exit = match error.code {
            ErrorCode::NotFound => Exit::NotFound,
            ErrorCode::BadRequest | ErrorCode::TooLarge => Exit::Usage,
            _ => Exit::Failed,
        };
        let code = serde_json::to_value(error.code).ok();
        let code = code.as_ref().and_then(Value::as_str).unwrap_or("internal").to_owned();
        Self { exit, code, message: error.message, next_step: error.next_step }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemons_refusals_have_exit_codes() {
        let exit = |code| CliError::from(ApiError::new(code, "m")).exit;
        assert_eq!(exit(ErrorCode::NotFound), Exit::NotFound);
        assert_eq!(exit(ErrorCode::NoRoute), Exit::Failed, "scripts take 4 for a miss");
        assert_eq!(exit(ErrorCode::UnknownName), Exit::Failed);
        assert_eq!(exit(ErrorCode::BadRequest), Exit::Usage);
        assert_eq!(exit(ErrorCode::Timeout), Exit::Failed);
        assert_eq!(CliError::from(ApiError::new(ErrorCode::Conflict, "m")).code, "conflict");
    }
}
