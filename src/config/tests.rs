//! The promises of the configuration as a whole: precedence, names, defaults. Parts are tested in their files.

mod refused;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tidefs_control_api::mount_options;
use tidefs_engine::types::ByteCount;

use super::*;

/// A machine of 64 GiB with 8 CPUs and a disk of 100 GiB.
fn host(uid: u32) -> Host {
    Host {
        memory: ByteCount::gib(64),
        memory_usable: ByteCount::gib(64),
        cpus: 8,
        uid,
        gid: uid,
        runtime_dir: Some(PathBuf::from(format!("/run/user/{uid}"))),
        state_home: PathBuf::from("/home/user/.local/state"),
        free_space: |_| Some(ByteCount::gib(100)),
    }
}

fn sources() -> Sources {
    Sources::new(host(0), PathBuf::from("/mnt/kv"))
}

fn file(path: &str, text: &str) -> ConfigFile {
    ConfigFile { path: PathBuf::from(path), text: Ok(text.to_owned()) }
}

fn variable(name: &str, value: &str) -> (OsString, OsString) {
    (name.into(), value.into())
}

fn from_file(text: &str) -> Result<Effective, ConfigErrors> {
    Config::load(&Sources { files: vec![file("/etc/tidefs/tidefs.toml", text)], ..sources() })
}

fn from_options(text: &str) -> Result<Effective, ConfigErrors> {
    Config::load(&Sources { options: vec![text.to_owned()], ..sources() })
}

fn entry<'a>(effective: &'a Effective, key: &str) -> &'a EffectiveEntry {
    effective.entries.iter().find(|entry| entry.key == key).unwrap()
}

#[test]
fn without_any_source_each_setting_has_its_documented_default() {
    let config = Config::load(&sources()).unwrap().config;
    assert_eq!(config.memory.capacity, ByteCount::gib(8));
    assert_eq!(config.memory.packed_max, ByteCount::kib(32));
    assert_eq!(config.memory.write_headroom, ByteCount::mib(256));
    assert_eq!(config.fuse.threads, 8);
    assert!(config.fuse.allow_other && config.fuse.exec);
    assert_eq!(config.names.temporary.patterns(), NamePatterns::TEMPORARY);
    assert_eq!(config.scratch.capacity, ByteCount::gib(75));
    assert_eq!(config.runtime.state_dir, Path::new("/run/tidefs"));
    assert_eq!(config.root.mode, FileMode(0o1777));
    let scratch = format!("/var/lib/tidefs/{}/scratch", instance_name(Path::new("/mnt/kv")));
    assert_eq!(config.scratch.dir.paths(), [Path::new(&scratch)]);
}

#[test]
fn an_ordinary_user_gets_directories_and_rights_of_its_own() {
    let config = Config::load(&Sources { host: host(1000), ..sources() }).unwrap().config;
    assert_eq!(config.runtime.state_dir, Path::new("/run/user/1000/tidefs"));
    assert!(config.scratch.dir.paths()[0].starts_with("/home/user/.local/state/tidefs"));
    assert_eq!((config.root.mode, config.root.uid, config.root.gid), (FileMode(0o700), 1000, 1000));
    assert!(!config.fuse.allow_other);
}

#[test]
fn the_default_capacity_respects_the_control_group_and_stays_usable_on_small_machines() {
    let with = |memory_usable| {
        let sources = Sources { host: Host { memory_usable, ..host(0) }, ..sources() };
        Config::load(&sources).unwrap().config.memory
    };
    assert_eq!(with(ByteCount::gib(4)).capacity, ByteCount::mib(512));
    assert_eq!(with(ByteCount::mib(64)).capacity, ByteCount::mib(32));
    assert_eq!(with(ByteCount::mib(64)).write_headroom, ByteCount::mib(16));
}

/// Adds one source after the other; each wins over all before it.
#[test]
fn default_yields_to_file_file_to_environment_and_environment_to_flags() {
    let mut sources = sources();
    let capacity = |sources: &Sources| {
        let effective = Config::load(sources).unwrap();
        (effective.config.memory.capacity, entry(&effective, "memory.capacity").origin.clone())
    };
    assert_eq!(capacity(&sources), (ByteCount::gib(8), Origin::Default));

    sources.files.push(file("/etc/tidefs/tidefs.toml", "# all\n[memory]\ncapacity = \"1GiB\"\n"));
    let origin = Origin::File { path: "/etc/tidefs/tidefs.toml".into(), line: Some(3) };
    assert_eq!(capacity(&sources), (ByteCount::gib(1), origin));

    sources.files.push(file("/etc/tidefs/kv.toml", "memory.capacity = \"2GiB\""));
    let origin = Origin::File { path: "/etc/tidefs/kv.toml".into(), line: Some(1) };
    assert_eq!(capacity(&sources), (ByteCount::gib(2), origin));

    sources.environment.push(variable("TIDEFS_MEMORY_CAPACITY", "3GiB"));
    let origin = Origin::Environment { variable: "TIDEFS_MEMORY_CAPACITY".to_owned() };
    assert_eq!(capacity(&sources), (ByteCount::gib(3), origin));

    sources.options.push("capacity=4GiB".to_owned());
    assert_eq!(capacity(&sources), (ByteCount::gib(4), Origin::Flag { flag: "-o capacity=4GiB".to_owned() }));

    sources.options.push("memory.capacity=5GiB,memory.capacity=6GiB".to_owned());
    assert_eq!(capacity(&sources).0, ByteCount::gib(6));

    sources.flags.push(Flag {
        key: "memory.capacity".to_owned(),
        value: Some("7GiB".to_owned()),
        text: "--capacity 7GiB".to_owned(),
    });
    let origin = Origin::Flag { flag: "--capacity 7GiB".to_owned() };
    assert_eq!(capacity(&sources), (ByteCount::gib(7), origin));
}

#[test]
fn every_setting_takes_its_example_from_file_environment_and_option_alike() {
    for setting in SETTINGS {
        let value = |effective: Result<Effective, ConfigErrors>| {
            let effective = effective.unwrap_or_else(|errors| panic!("{errors}"));
            let entry = entry(&effective, setting.key);
            assert_ne!(entry.origin, Origin::Default, "{}", setting.key);
            entry.value.clone()
        };
        let toml = if setting.shape == Shape::List {
            let items: Vec<_> = setting.example.split(':').map(|item| format!("\"{item}\"")).collect();
            format!("[{}]\n{} = [{}]", setting.section, setting.name, items.join(", "))
        } else {
            format!("[{}]\n{} = \"{}\"", setting.section, setting.name, setting.example)
        };
        let in_file = value(from_file(&toml));
        let environment = vec![variable(&setting.variable(), setting.example)];
        assert_eq!(value(Config::load(&Sources { environment, ..sources() })), in_file);
        for name in [setting.key].iter().chain(setting.aliases) {
            assert_eq!(value(from_options(&format!("{name}={}", setting.example))), in_file, "{name}");
        }
    }
}

#[test]
fn every_example_differs_from_the_default_or_shows_a_computed_one() {
    for setting in SETTINGS {
        assert_ne!(setting.default_text(), format!("`{}`", setting.example), "{}", setting.key);
    }
}

#[test]
fn what_is_shown_as_effective_gives_the_same_configuration_again() {
    let effective = from_options(r"capacity=3GiB,policy=lru,log=info\,tidefs=debug,root.mode=0750").unwrap();
    let options: Vec<String> = effective
        .entries
        .iter()
        .map(|entry| format!("{}={}", entry.key, mount_options::escaped(&entry.value)))
        .collect();
    let again = from_options(&options.join(",")).unwrap();
    assert_eq!(again.config, effective.config);
}

#[test]
fn entries_list_every_setting_in_documented_order_with_value_default_and_origin() {
    let effective = from_options("capacity=3GiB").unwrap();
    let keys: Vec<_> = effective.entries.iter().map(|entry| entry.key).collect();
    assert_eq!(keys, SETTINGS.iter().map(|setting| setting.key).collect::<Vec<_>>());
    let json = serde_json::to_value(entry(&effective, "memory.capacity")).unwrap();
    let expected = serde_json::json!({
        "key": "memory.capacity", "value": "3GiB", "default": "8GiB",
        "origin": { "kind": "flag", "flag": "-o capacity=3GiB" },
    });
    assert_eq!(json, expected);
}

#[test]
fn entries_are_what_the_admin_socket_sends() {
    let effective = from_file("[eviction]\npolicy = \"lru\"").unwrap();
    let json = serde_json::json!({ "entries": effective.entries });
    let sent: tidefs_control_api::EffectiveConfig = serde_json::from_value(json).unwrap();
    let policy = sent.entries.iter().find(|entry| entry.key == "eviction.policy").unwrap();
    assert_eq!((policy.value.as_str(), policy.default.as_deref()), ("lru", Some("leaf_bonus")));
    assert!(policy.origin.to_string().contains("/etc/tidefs/tidefs.toml"));
}

#[test]
fn the_example_file_of_the_documentation_is_a_right_one() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/CONFIGURATION.md"));
    let page = page.unwrap();
    let (_, example) = page.split_once("```toml\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let files = vec![file("/etc/tidefs/tidefs.toml", example)];
    let host = Host { memory: ByteCount::gib(1024), ..host(0) };
    let effective =
        Config::load(&Sources { host, files, ..sources() }).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(effective.config.scratch.dir.paths(), [Path::new("/mnt/nvme/tidefs")]);
}

#[test]
fn a_command_is_told_of_a_state_dir_that_it_does_not_look_into_by_itself() {
    assert_eq!(from_options("capacity=1GiB").unwrap().state_dir_option(), "");
    let named = from_options("state_dir=/run/my state").unwrap();
    assert_eq!(named.state_dir_option(), " --state-dir '/run/my state'");
}

#[test]
fn scratch_lives_on_the_disks_of_the_ssd_tier_unless_it_is_told_otherwise() {
    let options = vec!["ssd.dirs=/mnt/a:/mnt/b".to_owned()];
    let config = Config::load(&Sources { options: options.clone(), ..sources() }).unwrap().config;
    let name = format!("scratch-{}", instance_name(Path::new("/mnt/kv")));
    let expected = ["/mnt/a", "/mnt/b"].map(|disk| Path::new(disk).join(&name));
    assert_eq!(config.scratch.dir.paths(), expected);
    // An eighth of 100 GiB on each.
    assert_eq!(config.scratch.capacity, ByteCount::mib(2 * 12_800));
    let told = [options, vec!["scratch.dir=/var/scratch".to_owned()]].concat();
    let config = Config::load(&Sources { options: told, ..sources() }).unwrap().config;
    assert_eq!(config.scratch.dir.paths(), [Path::new("/var/scratch")]);
    assert_eq!(config.scratch.capacity, ByteCount::gib(75));
}

#[test]
fn values_of_a_file_may_be_toml_numbers_booleans_and_arrays() {
    let config = from_file(
        "[memory]\ncapacity = 1_073_741_824\n[fuse]\nallow_other = false\ncached_inodes_max = 1_000_000\n\
         [names]\ntemporary = [\"*.partial\", \"*.tmp\"]\n[eviction]\nbonus = 1.5\n[root]\nmode = 0o755\n",
    )
    .unwrap()
    .config;
    assert_eq!(config.memory.capacity, ByteCount::gib(1));
    assert!(!config.fuse.allow_other);
    assert_eq!(config.fuse.cached_inodes_max, 1_000_000);
    assert_eq!(config.names.temporary.patterns(), ["*.partial", "*.tmp"]);
    assert!((config.eviction.bonus - 1.5).abs() < f64::EPSILON);
    assert_eq!(config.root.mode, FileMode(0o755));
}

#[test]
fn a_switch_alone_means_true_and_other_settings_need_a_value() {
    let host = host(1000);
    let options = vec!["allow_other".to_owned()];
    assert!(Config::load(&Sources { host, options, ..sources() }).unwrap().config.fuse.allow_other);
    assert!(from_options("capacity").is_err());
    assert!(!from_options("noexec").unwrap().config.fuse.exec);
}

#[test]
fn generic_mount_options_are_kept_apart_and_told() {
    let effective = from_options("rw,suid,noatime,x-systemd.requires=a.service,capacity=1GiB").unwrap();
    let ignored: Vec<_> = effective.ignored_options.iter().map(|option| option.option.as_str()).collect();
    assert_eq!(ignored, ["rw", "suid", "noatime", "x-systemd.requires=a.service"]);
}

#[test]
fn a_named_configuration_file_must_exist_and_stands_for_the_default_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kv.toml");
    std::fs::write(&path, "memory.capacity = \"1GiB\"").unwrap();
    let mut args = DaemonArgs {
        mount_dir: "/mnt/kv".into(),
        capacity: None,
        options: vec![format!("config={}", path.display())],
        config: None,
        check_config: false,
        json: false,
    };
    let files = |args: &DaemonArgs| Sources::of_process(args, "/mnt/kv".into(), host(0)).files;
    assert_eq!(files(&args), [ConfigFile { path, text: Ok("memory.capacity = \"1GiB\"".to_owned()) }]);
    args.config = Some("/does/not/exist.toml".into());
    let message = Config::load(&Sources { files: files(&args), ..sources() }).unwrap_err().to_string();
    assert!(message.starts_with("/does/not/exist.toml: the file cannot be read"), "{message}");
}

proptest! {
    #[test]
    fn no_text_of_a_file_makes_loading_panic(text in "(?s).*") {
        let _ = from_file(&text);
    }

    /// Text that is nearly TOML reaches further than random letters.
    #[test]
    fn no_nearly_right_file_makes_loading_panic(
        text in r#"(\[?(memory|fuse|names|root|x)\]?\.?|capacity|temporary|mode|= |"[*:/\[]{0,4}"|\[|\]|\{|\}|[0-9.xo_-]{0,22}|true|GiB|\n|,|1979-05-27|é){0,30}"#
    ) {
        if let Err(errors) = from_file(&text) {
            prop_assert!(!errors.problems().is_empty());
            prop_assert_eq!(errors.to_string().lines().count(), errors.problems().len());
        }
    }

    #[test]
    fn no_option_makes_loading_panic(
        key in proptest::sample::select(SETTINGS.iter().map(|setting| setting.key).collect::<Vec<_>>()),
        value in ".*",
    ) {
        if let Err(errors) = from_options(&format!("{key}={value}")) {
            prop_assert_eq!(errors.to_string().lines().count(), errors.problems().len());
        }
    }

    #[test]
    fn no_variable_makes_loading_panic(name in "TIDEFS_[A-Z_]{0,30}", value in ".*") {
        let environment = vec![variable(&name, &value)];
        let _ = Config::load(&Sources { environment, ..sources() });
    }
}
