//! Reads mount options: `-o capacity=8GiB,noexec,nofail`.
//!
//! The same text comes from a command line, from `/etc/fstab` and from `mount -o`. Three kinds of options stand
//! in it side by side: settings of tidefs, by key or short name; options of every filesystem, obeyed, ignored
//! with a reason, or refused; and options that only mount(8) and its helpers use.
//!
//! Where one ends is said by [`mount_options`], by which the launcher of a daemon looks for some, too.

use std::path::PathBuf;

use tidefs_control_api::mount_options;

use super::error::{Cause, ConfigErrors, Problem};
use super::merge::{Occurrence, Written, check_occurrence};
use super::schema::{Shape, find_setting};
use super::sources::Origin;
use super::value::SettingValue as _;

/// A setting given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The setting's key as it was written.
    pub key: String,
    /// Its value; `None` for a bare name.
    pub value: Option<String>,
    /// The flag as it was written, for messages.
    pub text: String,
}

impl Flag {
    pub(super) fn into_occurrence(self) -> Occurrence {
        let origin = Origin::Flag { flag: self.text };
        let setting = find_setting(&self.key);
        let written = match self.value {
            Some(text) => Written::Text(text),
            None if setting.is_some_and(|setting| setting.shape == Shape::Switch) => {
                Written::Text("true".to_owned())
            }
            None => Written::Bare,
        };
        // Short names belong to options; from here on there are only keys.
        let key = setting.map_or(self.key, |setting| setting.key.to_owned());
        Occurrence { key, written, origin }
    }
}

/// An option that was understood and has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredOption {
    /// The option as it was written.
    pub option: String,
    /// Why it has no effect.
    pub reason: &'static str,
}

/// What a text of mount options says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Settings of tidefs, in the order they were written.
    pub settings: Vec<Flag>,
    /// The configuration file that `config=FILE` names.
    pub config_file: Option<PathBuf>,
    /// Options without effect. A tool may log them; nothing is wrong.
    pub ignored: Vec<IgnoredOption>,
}

impl MountOptions {
    /// Reads and checks mount options by themselves, without files and environment, as fuzzing does.
    ///
    /// # Errors
    /// Unknown options, values that cannot be used, and options that are refused (`ro`, `remount`), all together.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        let (options, mut problems) = read_options(text);
        for flag in &options.settings {
            if let Err(problem) = check_occurrence(&flag.clone().into_occurrence()) {
                problems.push(*problem);
            }
        }
        ConfigErrors::check(problems)?;
        Ok(options)
    }
}

/// What to do with an option that is not specific to tidefs.
enum Generic {
    /// It stands for a setting.
    Setting { key: &'static str, value: &'static str },
    /// It is what happens anyway, or is for someone else.
    Ignored(&'static str),
    /// It cannot be obeyed.
    Refused { reason: &'static str, next_step: &'static str },
}

/// Splits `text`; keys and values of settings are not checked yet.
pub(super) fn read_options(text: &str) -> (MountOptions, Vec<Problem>) {
    let mut options = MountOptions::default();
    let mut problems = Vec::new();
    for option in mount_options::split(text) {
        let flag_text = format!("-o {option}");
        let (key, value) = match option.split_once('=') {
            Some((key, value)) => (key.trim(), Some(value)),
            None => (option.trim(), None),
        };
        if key == "config" {
            let read = match value.filter(|path| !path.is_empty()) {
                // A relative one would be another file for a daemon in the background, which starts in `/`.
                Some(path) => PathBuf::read(path)
                    .map_err(|reason| Cause::Unreadable { reason, expected: PathBuf::KIND.to_owned() }),
                None => Err(Cause::MissingValue),
            };
            match read {
                Ok(path) => options.config_file = Some(path),
                Err(cause) => problems.push(Problem {
                    key: key.to_owned(),
                    value: None,
                    origin: Origin::Flag { flag: flag_text },
                    cause,
                }),
            }
            continue;
        }
        match generic(key, value) {
            None => options.settings.push(Flag {
                key: key.to_owned(),
                value: value.map(str::to_owned),
                text: flag_text,
            }),
            Some(Generic::Setting { key, value }) => options.settings.push(Flag {
                key: key.to_owned(),
                value: Some(value.to_owned()),
                text: flag_text,
            }),
            Some(Generic::Ignored(reason)) => options.ignored.push(IgnoredOption { option, reason }),
            Some(Generic::Refused { reason, next_step }) => problems.push(Problem {
                key: key.to_owned(),
                value: None,
                origin: Origin::Flag { flag: flag_text },
                cause: Cause::RefusedOption { reason, next_step },
            }),
        }
    }
    (options, problems)
}

/// What mount(8) means by `key`, or `None` if it is not an option of every filesystem.
fn generic(key: &str, value: Option<&str>) -> Option<Generic> {
    const ANYWAY: &str = "it is always so on tidefs";
    const NEVER: &str = "tidefs is always mounted nosuid and nodev";
    const TIMES: &str = "tidefs keeps access times in memory at no cost";
    const MOUNT: &str = "it is for mount(8), fstab and systemd, not for the filesystem";
    let answer = match (key, value) {
        ("noexec", None) => Generic::Setting { key: "fuse.exec", value: "false" },
        ("exec", None) => Generic::Setting { key: "fuse.exec", value: "true" },
        ("ro", None) => Generic::Refused {
            reason: "a cache that cannot be written cannot be filled",
            next_step: "leave out `ro`; to keep writers out, set root.mode and the modes of namespaces",
        },
        ("remount", None) => Generic::Refused {
            reason: "tidefs cannot change the options of a live mount",
            next_step: "unmount and mount again; with on_stop=keep no object is lost",
        },
        // The first is of systemd, the other what it was called before.
        ("x-systemd.automount", _) | ("comment", Some("systemd.automount")) => Generic::Refused {
            reason: "tidefs cannot be mounted on demand",
            next_step: "leave it out; nofail keeps a late mount from holding up the boot",
        },
        (
            "rw" | "nosuid" | "nodev" | "async" | "sync" | "dirsync" | "nomand" | "default_permissions",
            None,
        ) => Generic::Ignored(ANYWAY),
        ("suid" | "dev", None) => Generic::Ignored(NEVER),
        (
            "atime" | "noatime" | "relatime" | "norelatime" | "strictatime" | "nostrictatime" | "lazytime"
            | "nolazytime" | "diratime" | "nodiratime" | "iversion" | "noiversion",
            None,
        ) => Generic::Ignored(TIMES),
        (
            "defaults" | "auto" | "noauto" | "nouser" | "users" | "owner" | "group" | "nofail" | "_netdev"
            | "silent" | "loud",
            None,
        )
        | ("user", _)
        | ("comment" | "uhelper" | "helper", Some(_)) => Generic::Ignored(MOUNT),
        (other, _) if other.starts_with("x-") || other.starts_with("X-") => Generic::Ignored(MOUNT),
        _ => return None,
    };
    Some(answer)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn options_that_every_filesystem_takes_are_accepted_beside_settings() {
        let text = "rw,nosuid,nodev,relatime,user=alice,_netdev,nofail,noauto,defaults,x-systemd.requires=a.service,\
                    X-mount.mkdir,comment=hello,suid,dev,exec,capacity=8GiB,allow_other";
        let options = MountOptions::parse(text).unwrap();
        let keys: Vec<_> = options.settings.iter().map(|flag| flag.key.as_str()).collect();
        assert_eq!(keys, ["fuse.exec", "capacity", "allow_other"]);
        assert_eq!(options.ignored.len(), 14);
    }

    #[test]
    fn noexec_is_obeyed_and_not_just_swallowed() {
        let options = MountOptions::parse("noexec").unwrap();
        assert_eq!(options.settings[0].key, "fuse.exec");
        assert_eq!(options.settings[0].value.as_deref(), Some("false"));
    }

    #[test]
    fn a_read_only_mount_is_refused_with_what_to_do_instead() {
        let message = MountOptions::parse("ro").unwrap_err().to_string();
        assert!(message.starts_with("-o ro: "), "{message}");
        assert!(message.contains("root.mode"), "{message}");
        assert!(MountOptions::parse("remount,capacity=1GiB").is_err());
    }

    #[test]
    fn a_mount_on_demand_is_refused_with_what_to_do_instead() {
        for text in ["nofail,x-systemd.automount", "comment=systemd.automount"] {
            let message = MountOptions::parse(text).unwrap_err().to_string();
            assert!(
                message.contains("cannot be mounted on demand") && message.contains("nofail keeps"),
                "{message}"
            );
        }
        assert_eq!(MountOptions::parse("x-systemd.idle-timeout=5min").unwrap().ignored.len(), 1);
    }

    #[test]
    fn a_configuration_file_can_be_named_in_fstab() {
        let options = MountOptions::parse("config=/srv/kv.toml").unwrap();
        assert_eq!(options.config_file, Some(PathBuf::from("/srv/kv.toml")));
        assert!(MountOptions::parse("config=").is_err());
    }

    #[test]
    fn a_configuration_file_by_a_relative_path_is_refused() {
        let (options, _) = read_options("config=kv.toml");
        assert_eq!(options.config_file, None);
        let message = MountOptions::parse("config=kv.toml").unwrap_err().to_string();
        assert!(message.starts_with("-o config=kv.toml: this is not an absolute path"), "{message}");
        assert!(message.ends_with("write an absolute path"), "{message}");
    }

    #[test]
    fn an_unknown_option_and_a_bad_value_are_reported_together() {
        let errors = MountOptions::parse("capcity=8GiB,threads=many").unwrap_err();
        let text = errors.to_string();
        assert_eq!(errors.problems().len(), 2, "{text}");
        assert!(text.contains("`memory.capacity`"), "{text}");
    }

    proptest! {
        #[test]
        fn no_option_text_makes_the_parser_panic(text in ".*") {
            let _ = MountOptions::parse(&text);
        }

        #[test]
        fn no_text_made_of_option_parts_makes_the_parser_panic(
            text in r"([a-z_.]{0,9}|ro|capacity|log|names\.temporary|[=,\\:*\[\]]|[0-9]{1,25}|GiB|é){0,12}"
        ) {
            if let Err(errors) = MountOptions::parse(&text) {
                prop_assert_eq!(errors.to_string().lines().count(), errors.problems().len());
            }
        }
    }
}
