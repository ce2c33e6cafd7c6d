//! Merges what was written into one configuration, and keeps where each value came from.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::Serialize;
use tidefs_control_api::shell;

use super::defaults::lasting_dir;
use super::environment::read_environment;
use super::error::{Cause, ConfigErrors, Problem};
use super::file::read_file;
use super::instance::{MountPlace, StatePaths};
use super::options::{Flag, IgnoredOption, read_options};
use super::patterns::SEPARATOR;
use super::schema::{Range, Setting, Shape, find_setting, nearest_setting, read_within};
use super::settings::Config;
use super::sources::{Origin, Sources};
use super::validate::validate;
use super::value::SettingValue;

/// A name that was written somewhere, with what stands beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Occurrence {
    pub(super) key: String,
    pub(super) written: Written,
    pub(super) origin: Origin,
}

/// What stands beside a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// One text.
    Text(String),
    /// An array of texts.
    List(Vec<String>),
    /// Nothing: `-o key`.
    Bare,
    /// A section without content.
    Section,
    /// An array or table that no setting can be.
    Nested,
}

/// A configuration with the place each value came from.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The resolved settings.
    pub config: Config,
    /// Every setting as text with its origin, in the order of the documentation.
    pub entries: Vec<EffectiveEntry>,
    /// Name of this mount among those of the host.
    pub instance: String,
    /// Where the state of this mount is.
    pub state: StatePaths,
    /// `/var/lib/tidefs/<instance>` as root, else `$XDG_STATE_HOME/tidefs/<instance>`: what outlives a restart of the machine is
    /// kept there when the state directory does not. Need not exist.
    pub lasting: PathBuf,
    /// Mount options that were understood and have no effect.
    pub ignored_options: Vec<IgnoredOption>,
}

impl Effective {
    /// What a command of `tidefs` takes at its end to find this daemon; empty where it does without.
    #[must_use]
    pub fn state_dir_option(&self) -> String {
        let is_named = |entry: &EffectiveEntry| {
            entry.key == "runtime.state_dir" && !matches!(entry.origin, Origin::Default)
        };
        match self.entries.iter().any(is_named) {
            true => shell::state_dir_option(&self.config.runtime.state_dir),
            false => String::new(),
        }
    }
}

/// One setting as it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EffectiveEntry {
    /// Its key.
    pub key: &'static str,
    /// Its value, as an option would take it.
    pub value: String,
    /// What would hold if nobody had set it.
    pub default: String,
    /// Where the value was written.
    pub origin: Origin,
}

impl Config {
    /// Merges and checks `sources`.
    ///
    /// # Errors
    /// Every problem of every source, together.
    pub fn load(sources: &Sources) -> Result<Effective, ConfigErrors> {
        let mut problems = Vec::new();
        let mut occurrences = Vec::new();
        for file in &sources.files {
            occurrences.extend(read_file(file, &mut problems));
        }
        occurrences.extend(read_environment(&sources.environment, &mut problems));
        let mut ignored_options = Vec::new();
        for text in &sources.options {
            let (options, refused) = read_options(text);
            problems.extend(refused);
            ignored_options.extend(options.ignored);
            occurrences.extend(options.settings.into_iter().map(Flag::into_occurrence));
        }
        occurrences.extend(sources.flags.iter().cloned().map(Flag::into_occurrence));

        let mut given = Given { problems, ..Given::default() };
        for occurrence in occurrences {
            given.add(occurrence);
        }
        let mount = MountPlace::new(&sources.mount_dir);
        let config = Self::resolve(&mut given, &sources.host, &mount);
        validate(&config, &sources.host, &mount, &mut given);
        ConfigErrors::check(given.problems)?;
        let state = StatePaths::new(&config.runtime.state_dir, &mount.dir);
        let lasting = lasting_dir(&sources.host, &mount.instance);
        let (entries, instance) = (given.entries, mount.instance);
        Ok(Effective { config, entries, instance, state, lasting, ignored_options })
    }
}

/// The setting an occurrence means and its checked text, or what is wrong with it.
pub(super) fn check_occurrence(occurrence: &Occurrence) -> Result<(&'static Setting, String), Box<Problem>> {
    let value = match &occurrence.written {
        Written::Text(text) => Some(text.clone()),
        Written::List(texts) => Some(texts.join(&SEPARATOR.to_string())),
        Written::Bare | Written::Section | Written::Nested => None,
    };
    let problem = |cause| {
        Box::new(Problem {
            key: occurrence.key.clone(),
            value: value.clone(),
            origin: occurrence.origin.clone(),
            cause,
        })
    };
    // Not `find_setting`: options have turned short names into keys, and nobody else may use them.
    let setting = find_setting(&occurrence.key)
        .filter(|setting| setting.key == occurrence.key)
        .ok_or_else(|| problem(Cause::UnknownKey { nearest: nearest_setting(&occurrence.key).key }))?;
    let unreadable = |reason: &str| {
        problem(Cause::Unreadable { reason: reason.to_owned(), expected: setting.kind.to_owned() })
    };
    match (&occurrence.written, &value) {
        (Written::List(_), _) if setting.shape != Shape::List => Err(unreadable("this is a list")),
        (Written::Bare, _) => Err(problem(Cause::MissingValue)),
        (_, Some(text)) => {
            setting.check(text).map_err(problem)?;
            Ok((setting, text.clone()))
        }
        (_, None) => Err(unreadable("this is a table, or a list of something else than plain names")),
    }
}

/// What was written, per setting; consumed in declared order by `Config::resolve`.
#[derive(Debug, Default)]
pub(super) struct Given {
    winners: HashMap<&'static str, (String, Origin)>,
    pub(super) entries: Vec<EffectiveEntry>,
    pub(super) problems: Vec<Problem>,
}

impl Given {
    /// Takes one occurrence in. A later one wins over an earlier one.
    fn add(&mut self, occurrence: Occurrence) {
        match check_occurrence(&occurrence) {
            Ok((setting, text)) => {
                self.winners.insert(setting.key, (text, occurrence.origin));
            }
            Err(problem) => self.problems.push(*problem),
        }
    }

    /// The value of `key`: the one that was written last, else `default`.
    pub(super) fn take<T: SettingValue + PartialOrd>(
        &mut self,
        key: &'static str,
        range: &Range<T>,
        default: T,
    ) -> T {
        let default_text = default.show();
        let (value, origin) = match self.winners.remove(key) {
            None => (default, Origin::Default),
            Some((text, origin)) => {
                let value = read_within(&text, range)
                    .unwrap_or_else(|cause| panic!("{key} was checked when it was added: {cause}"));
                (value, origin)
            }
        };
        self.entries.push(EffectiveEntry { key, value: value.show(), default: default_text, origin });
        value
    }

    /// Whether something is wrong with what was written for `key`, so that a default stands in for it.
    pub(super) fn is_faulty(&self, key: &str) -> bool {
        self.problems.iter().any(|problem| problem.key == key)
    }

    /// Value and origin of a setting that was taken.
    pub(super) fn entry(&self, key: &str) -> &EffectiveEntry {
        self.entries
            .iter()
            .find(|entry| entry.key == key)
            .unwrap_or_else(|| panic!("{key} is declared, so it was taken"))
    }
}
