//! What is wrong with a configuration, in a form that tells the next step.

use std::fmt;

use super::schema::{Setting, find_setting};
use super::sources::Origin;

/// Why one written thing cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// No setting has this name. `nearest` is the known key that is most like it.
    #[error("no setting has this name")]
    UnknownKey {
        /// Key of the setting that is most like it.
        nearest: &'static str,
    },
    /// The value is not of the setting's type.
    #[error("{reason}")]
    Unreadable {
        /// What is wrong with the text.
        reason: String,
        /// What would be right.
        expected: String,
    },
    /// The value is of the right type, but not allowed.
    #[error("this is outside of the allowed range, {range}")]
    OutOfRange {
        /// The allowed values.
        range: String,
    },
    /// An option stands without a value.
    #[error("the option needs a value")]
    MissingValue,
    /// The value does not go together with another one or with this machine.
    #[error("{reason}")]
    Contradiction {
        /// Which facts do not go together.
        reason: String,
        /// What to change.
        next_step: String,
    },
    /// A mount option that tidefs cannot obey.
    #[error("{reason}")]
    RefusedOption {
        /// Why it cannot.
        reason: &'static str,
        /// What to do instead.
        next_step: &'static str,
    },
    /// A configuration file cannot be read.
    #[error("the file cannot be read: {reason}")]
    UnreadableFile {
        /// What the system says.
        reason: String,
    },
    /// A configuration file is not TOML.
    #[error("this is not TOML: {reason}")]
    Syntax {
        /// What the parser says.
        reason: String,
    },
}

/// One problem: where, what, why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The name as it was written; empty if the place has none (a file that cannot be read).
    pub key: String,
    /// The value as it was written, if there is one.
    pub value: Option<String>,
    /// Where it was written.
    pub origin: Origin,
    /// Why it cannot be used.
    pub cause: Cause,
}

impl Problem {
    /// What to do about it.
    #[must_use]
    pub fn next_step(&self) -> String {
        let setting = find_setting(&self.key);
        let spelled = |setting: &Setting| setting.spelled_for(&self.origin);
        match &self.cause {
            Cause::UnknownKey { nearest } => {
                let nearest = find_setting(nearest).map_or_else(|| format!("`{nearest}`"), spelled);
                format!("the nearest known one is {nearest}")
            }
            Cause::Unreadable { expected, .. } => match setting {
                Some(setting) => {
                    format!("set {} to {expected}, for example `{}`", spelled(setting), setting.example)
                }
                None => format!("write {expected}"),
            },
            Cause::OutOfRange { range } => {
                format!("set {} to {range}", setting.map_or_else(|| format!("`{}`", self.key), spelled))
            }
            Cause::MissingValue => match setting {
                Some(setting) => format!("write `{}={}`", self.key, setting.example),
                None => format!("write `{}=VALUE`", self.key),
            },
            Cause::Contradiction { next_step, .. } => next_step.clone(),
            Cause::RefusedOption { next_step, .. } => (*next_step).to_owned(),
            Cause::UnreadableFile { .. } => "correct its path or permissions".to_owned(),
            Cause::Syntax { .. } => "correct this line".to_owned(),
        }
    }
}

impl fmt::Display for Problem {
    /// Writes one line: place, name and value, cause, next step.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        // A flag's place already shows name and value.
        let placed = matches!(self.origin, Origin::Flag { .. });
        match &self.value {
            _ if placed || self.key.is_empty() => {}
            None => write!(f, "{}: ", excerpt(&self.key))?,
            Some(value) => write!(f, "{} = `{}`: ", excerpt(&self.key), excerpt(value))?,
        }
        write!(f, "{}; {}", one_line(&self.cause.to_string()), one_line(&self.next_step()))
    }
}

/// All problems of one configuration. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors(Vec<Problem>);

impl ConfigErrors {
    /// `Ok` if there are no problems, else all of them.
    ///
    /// # Errors
    /// The problems, if there are any.
    pub(super) fn check(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self(problems)) }
    }

    /// The problems, in the order file, environment, flags, contradictions.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    /// Writes one problem per line, without a newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

/// `text` on one line and short enough to read: control characters escaped, the rest cut.
pub(super) fn excerpt(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    let mut short = one_line(&text.chars().take(CHARS_MAX).collect::<String>());
    if text.chars().nth(CHARS_MAX).is_some() {
        short.push_str("...");
    }
    short
}

fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() {
            line.extend(letter.escape_default());
        } else {
            line.push(letter);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_short_line_whatever_was_written() {
        let problem = Problem {
            key: "memory.capacity".to_owned(),
            value: Some("a\nb\u{1b}[31m".to_owned() + &"x".repeat(1000)),
            origin: Origin::Environment { variable: "TIDEFS_MEMORY_CAPACITY".to_owned() },
            cause: Cause::OutOfRange { range: "at least `32MiB`".to_owned() },
        };
        let line = problem.to_string();
        assert!(!line.chars().any(char::is_control), "{line}");
        assert!(line.len() < 400, "{line}");
        assert!(line.ends_with("set `TIDEFS_MEMORY_CAPACITY` to at least `32MiB`"), "{line}");
    }
}
