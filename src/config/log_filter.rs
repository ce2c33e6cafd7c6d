//! What is logged, in the syntax of `tracing_subscriber::EnvFilter`.

use serde::Serialize;
use tracing_subscriber::EnvFilter;

use super::value::SettingValue;

/// A checked log filter such as `info` or `tidefs=debug,fuser=warn`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct LogFilter(String);

impl LogFilter {
    /// The default: state changes, warnings and errors.
    #[must_use]
    pub fn info() -> Self {
        Self("info".to_owned())
    }

    /// The filter's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The filter for the subscriber.
    #[must_use]
    pub fn to_env_filter(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }
}

impl SettingValue for LogFilter {
    const KIND: &'static str = "a log level or filter";

    fn read(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("an empty filter would log errors only; write `error` for that".to_owned());
        }
        // A bare word that is no level is a valid filter on a target of that name: almost always a slip.
        let word = text.chars().all(|letter| letter.is_ascii_alphabetic());
        let levels = ["off", "error", "warn", "info", "debug", "trace"];
        if word && !levels.iter().any(|level| level.eq_ignore_ascii_case(text)) {
            return Err(format!("this is not one of {}", levels.join(", ")));
        }
        EnvFilter::try_new(text).map_err(|error| format!("this is not a log filter: {error}"))?;
        Ok(Self(text.to_owned()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_per_target_filters_are_taken() {
        for text in ["info", "WARN", "off", "info,tidefs::fuse=debug", "tidefs[request{ino=1}]=trace"] {
            assert!(LogFilter::read(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_misspelt_level_is_refused_instead_of_taken_for_a_target() {
        for text in ["inf", "verbose", "", "tidefs=loud"] {
            assert!(LogFilter::read(text).is_err(), "{text}");
        }
    }
}
