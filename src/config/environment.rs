//! Reads settings from variables `TIDEFS_<SECTION>_<NAME>`.
//!
//! One that is empty is not set, unless its setting has a value that is empty: a list of nothing, no file, no address.
//!
//! Any other variable that starts with `TIDEFS_` is a mistake and reported, except the ones that are no
//! settings by design:
//! - `TIDEFS_CONFIG` names the configuration file;
//! - `TIDEFS_LIBFABRIC` names the library of a transport, which the engine looks for;
//! - `TIDEFS_TEST_*` and `TIDEFS_BENCH_*` steer tests and benchmarks of this project;
//! - Kubernetes sets `TIDEFS_SERVICE_HOST`, `TIDEFS_PORT_80_TCP` and the like in each pod when a service is
//!   called `tidefs`, and nobody can take these away.

use std::ffi::OsString;

use super::error::{Cause, Problem};
use super::merge::{Occurrence, Written};
use super::schema::Setting;
use super::settings::SETTINGS;
use super::sources::Origin;

const PREFIX: &str = "TIDEFS_";

/// Reads the settings among `variables`.
pub(super) fn read_environment(
    variables: &[(OsString, OsString)],
    problems: &mut Vec<Problem>,
) -> Vec<Occurrence> {
    let mut occurrences = Vec::new();
    for (variable, value) in variables {
        let variable = variable.to_string_lossy().into_owned();
        let Some(rest) = variable.strip_prefix(PREFIX).filter(|rest| !is_reserved(rest)) else { continue };
        let setting = SETTINGS.iter().find(|setting| setting.variable() == variable);
        let key = setting.map_or_else(|| rest.to_ascii_lowercase(), |setting| setting.key.to_owned());
        let origin = Origin::Environment { variable: variable.clone() };
        match value.to_str() {
            // Who empties a variable takes it back, but for a setting that can be empty.
            Some("") if setting.is_some_and(|setting| setting.check("").is_err()) => {}
            Some(text) => {
                occurrences.push(Occurrence { key, written: Written::Text(text.to_owned()), origin })
            }
            None => problems.push(Problem {
                key,
                value: Some(value.to_string_lossy().into_owned()),
                origin,
                cause: Cause::Unreadable {
                    reason: "the value is not UTF-8".to_owned(),
                    expected: setting.map_or("UTF-8", |setting: &Setting| setting.kind).to_owned(),
                },
            }),
        }
    }
    // The order of an environment means nothing; problems are to be reported in the same order each time.
    occurrences.sort_by(|one, other| one.key.cmp(&other.key));
    occurrences
}

/// Whether the variable with this name after the prefix is known to be no setting.
fn is_reserved(rest: &str) -> bool {
    let of_kubernetes = rest.contains("SERVICE_HOST")
        || rest.contains("SERVICE_PORT")
        || rest == "PORT"
        || rest.ends_with("_PORT")
        || rest.split("PORT_").skip(1).any(|after| after.starts_with(|first: char| first.is_ascii_digit()));
    let names_a_file = matches!(rest, "CONFIG" | "LIBFABRIC");
    of_kubernetes || names_a_file || rest.starts_with("TEST_") || rest.starts_with("BENCH_")
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn read(variable: &str, value: impl Into<OsString>) -> (Vec<Occurrence>, Vec<Problem>) {
        let mut problems = Vec::new();
        let found = read_environment(&[(variable.into(), value.into())], &mut problems);
        (found, problems)
    }

    #[test]
    fn every_setting_has_a_variable_that_is_read_and_not_reserved() {
        for setting in SETTINGS {
            let (found, problems) = read(&setting.variable(), setting.example);
            assert_eq!(problems, []);
            assert_eq!(found.len(), 1, "{}", setting.variable());
            assert_eq!(found[0].key, setting.key);
        }
    }

    #[test]
    fn variables_that_kubernetes_sets_for_a_service_called_tidefs_are_no_settings() {
        for variable in [
            "TIDEFS_SERVICE_HOST",
            "TIDEFS_SERVICE_PORT",
            "TIDEFS_SERVICE_PORT_METRICS",
            "TIDEFS_PORT",
            "TIDEFS_PORT_9100_TCP",
            "TIDEFS_PORT_9100_TCP_ADDR",
            "TIDEFS_MEMORY_SERVICE_HOST",
            "TIDEFS_MEMORY_PORT_80_TCP_PROTO",
        ] {
            assert!(read(variable, "10.0.0.1").0.is_empty(), "{variable}");
        }
    }

    #[test]
    fn the_variable_that_names_libfabric_is_no_setting_and_no_mistake() {
        assert_eq!(read("TIDEFS_LIBFABRIC", "/opt/lib/libfabric.so.1"), (Vec::new(), Vec::new()));
        assert_eq!(read("TIDEFS_LIBFABRIC_DIR", "/opt/lib").0.len(), 1, "no name of a variable");
    }

    #[test]
    fn a_variable_without_the_prefix_is_not_looked_at() {
        assert!(read("MEMORY_CAPACITY", "8GiB").0.is_empty());
    }

    #[test]
    fn an_empty_variable_is_not_set_unless_its_setting_can_be_empty() {
        for variable in ["TIDEFS_RUNTIME_STATE_DIR", "TIDEFS_MEMORY_CAPACITY", "TIDEFS_LOG_FORMAT"] {
            assert_eq!(read(variable, ""), (Vec::new(), Vec::new()), "{variable}");
        }
        for variable in ["TIDEFS_SSD_DIRS", "TIDEFS_CLUSTER_ETCD"] {
            assert_eq!(read(variable, "").0.len(), 1, "{variable}");
        }
        assert_eq!(read("TIDEFS_NO_SUCH_SETTING", "").0.len(), 1, "a name that is not known is a mistake");
    }

    #[test]
    fn a_value_that_is_not_utf8_is_reported_and_not_guessed() {
        let (found, problems) = read("TIDEFS_SCRATCH_DIR", OsString::from_vec(vec![b'/', 0xff]));
        assert!(found.is_empty());
        assert_eq!(problems.len(), 1);
    }
}
