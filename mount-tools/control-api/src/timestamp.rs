//! Times of day on the admin socket: RFC 3339 text in UTC with milliseconds, for people and programs alike.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A time of day. Written `2026-11-20T23:04:05.123Z`; what is finer than a millisecond is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub SystemTime);

impl Timestamp {
    /// Now, by the machine's clock.
    #[must_use]
    pub fn now() -> Self {
        Self(SystemTime::now())
    }

    /// `millis` milliseconds after the start of 1970.
    #[must_use]
    pub fn from_unix_millis(millis: u64) -> Self {
        Self(SystemTime::UNIX_EPOCH + Duration::from_millis(millis))
    }

    /// How long before `now` this is; zero if it is later.
    #[must_use]
    pub fn age_at(self, now: SystemTime) -> Duration {
        now.duration_since(self.0).unwrap_or_default()
    }
}

impl Default for Timestamp {
    /// The start of 1970.
    fn default() -> Self {
        Self(SystemTime::UNIX_EPOCH)
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        Self(time)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Before 1970 and after 9999 there is no form; a file's stamps can be set to such times.
        let last = SystemTime::UNIX_EPOCH + Duration::from_secs(253_402_300_799);
        let time = self.0.clamp(SystemTime::UNIX_EPOCH, last);
        humantime::format_rfc3339_millis(time).fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_rfc3339(&text).map(Self).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_rfc_3339_with_milliseconds_and_read_back() {
        let time = Timestamp::from_unix_millis(1_795_215_845_123);
        let json = serde_json::to_string(&time).unwrap();
        assert_eq!(json, "\"2026-11-20T23:04:05.123Z\"");
        assert_eq!(serde_json::from_str::<Timestamp>(&json).unwrap(), time);
    }

    #[test]
    fn times_without_a_form_are_clamped_instead_of_failing() {
        let early = Timestamp(SystemTime::UNIX_EPOCH - Duration::from_secs(5));
        assert_eq!(early.to_string(), "1970-01-01T00:00:00.000Z");
        let late = Timestamp(SystemTime::UNIX_EPOCH + Duration::from_secs(300_000_000_000));
        assert_eq!(late.to_string(), "9999-12-31T23:59:59.000Z");
    }
}
