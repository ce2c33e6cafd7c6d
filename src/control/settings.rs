//! The settings in force, each with where it came from.

use tidefs_control_api::{ConfigEntry, ConfigOrigin, EffectiveConfig};

use crate::config::{Effective, Origin};

/// What the daemon runs with.
pub(super) fn of(effective: &Effective) -> EffectiveConfig {
    let entries = effective
        .entries
        .iter()
        .map(|entry| ConfigEntry {
            key: entry.key.to_owned(),
            value: entry.value.clone(),
            default: Some(entry.default.clone()),
            origin: match &entry.origin {
                Origin::Default => ConfigOrigin::Default,
                Origin::File { path, line } => ConfigOrigin::File {
                    path: path.to_string_lossy().into_owned(),
                    line: line.map(|line| line as u64),
                },
                Origin::Environment { variable } => ConfigOrigin::Environment { variable: variable.clone() },
                Origin::Flag { flag } => ConfigOrigin::Flag { flag: flag.clone() },
            },
        })
        .collect();
    EffectiveConfig { entries }
}
