//! The settings a daemon runs with, each with the place it came from.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Answer of [`crate::routes::CONFIG`]: every setting, in the order of the documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EffectiveConfig {
    /// The settings.
    pub entries: Vec<ConfigEntry>,
}

/// One setting.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigEntry {
    /// Its name, as `-o` takes it.
    pub key: String,
    /// What holds now, as it would be written in the file.
    pub value: String,
    /// What would hold if nobody had set it; absent if it is computed from the machine.
    pub default: Option<String>,
    /// Who set it.
    pub origin: ConfigOrigin,
}

/// Where a setting came from. Later ones win over earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ConfigOrigin {
    /// Nobody set it.
    #[default]
    Default,
    /// A configuration file.
    File {
        /// Path of the file.
        path: String,
        /// Line in it, from 1.
        #[serde(default)]
        line: Option<u64>,
    },
    /// An environment variable.
    Environment {
        /// Name of the variable.
        variable: String,
    },
    /// The command line.
    Flag {
        /// The flag as it was written, for example `-o capacity=8GiB`.
        flag: String,
    },
    /// A place that this version does not know.
    #[serde(other)]
    Other,
}

impl fmt::Display for ConfigOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.pad("default"),
            Self::File { path, line: Some(line) } => f.pad(&format!("{path}:{line}")),
            Self::File { path, line: None } => f.pad(path),
            Self::Environment { variable } => f.pad(&format!("environment {variable}")),
            Self::Flag { flag } => f.pad(flag),
            Self::Other => f.pad("other"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_a_later_daemon_is_read_with_what_is_known() {
        let json =
            r#"{"entries":[{"key":"capacity","value":"8GiB","origin":{"kind":"etcd","key":"/x"},"new":1}]}"#;
        let config: EffectiveConfig = serde_json::from_str(json).unwrap();
        assert_eq!(config.entries[0].key, "capacity");
        assert_eq!(config.entries[0].origin, ConfigOrigin::Other);
    }
}
