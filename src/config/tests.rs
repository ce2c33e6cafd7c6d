//! The promises of the configuration as a whole: precedence, names, reports. Parts are tested in their files.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
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
        .map(|entry| format!("{}={}", entry.key, entry.value.replace(',', "\\,")))
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
fn an_unknown_key_is_an_error_that_names_the_nearest_known_one_as_it_is_written_there() {
    let message = from_file("[memory]\ncapacty = \"1GiB\"").unwrap_err().to_string();
    assert_eq!(
        message,
        "/etc/tidefs/tidefs.toml:2: memory.capacty = `1GiB`: no setting has this name; \
         the nearest known one is `capacity` in section `[memory]`"
    );
    let environment = vec![variable("TIDEFS_MEMORY_CAPACTY", "1GiB")];
    let message = Config::load(&Sources { environment, ..sources() }).unwrap_err().to_string();
    assert!(message.ends_with("the nearest known one is `TIDEFS_MEMORY_CAPACITY`"), "{message}");
    let message = from_options("polcy=lru").unwrap_err().to_string();
    assert_eq!(message, "-o polcy=lru: no setting has this name; the nearest known one is `eviction.policy`");
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

/// The transcript in `docs/CONFIGURATION.md` is what really comes out.
#[test]
fn the_mistakes_shown_in_the_documentation_are_reported_as_shown() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/CONFIGURATION.md"));
    let command = "$ tidefsd /mnt/kv -o ";
    let page = page.unwrap();
    let transcript = &page[page.find(command).unwrap() + command.len()..];
    let (options, output) = transcript.split_once('\n').unwrap();
    let errors = from_options(options).unwrap_err().to_string();
    let lines: Vec<String> = errors.lines().map(|line| format!("tidefsd: {line}")).collect();
    let errors = lines.join("\n");
    assert!(output.starts_with(&format!("{errors}\n```")), "the page shows another output than\n{errors}");
}

#[test]
fn short_names_are_for_options_only_and_a_file_is_told_the_whole_key() {
    let message = from_file("capacity = \"1GiB\"").unwrap_err().to_string();
    assert!(message.ends_with("`capacity` in section `[memory]`"), "{message}");
    let environment = vec![variable("TIDEFS_CAPACITY", "1GiB")];
    let message = Config::load(&Sources { environment, ..sources() }).unwrap_err().to_string();
    assert!(message.ends_with("`TIDEFS_MEMORY_CAPACITY`"), "{message}");
}

#[test]
fn a_misspelt_empty_section_and_a_key_that_is_nested_too_deep_are_errors() {
    assert_eq!(from_file("[memroy]\n").unwrap_err().problems().len(), 1);
    assert_eq!(
        from_file("[memory.capacity]\nsize = 1").unwrap_err().problems()[0].key,
        "memory.capacity.size"
    );
}

/// One mistake of each kind in each source; all are told at once, each with its place and the key to change.
#[test]
fn every_problem_of_every_source_is_reported_together() {
    let sources = Sources {
        files: vec![
            file("/a.toml", "[memory]\ncapacity = \"lots\"\nnope = 1\n[fuse]\nthreads = 0\n[log]\nlevel ="),
            ConfigFile { path: "/b.toml".into(), text: Err("permission denied".to_owned()) },
        ],
        environment: vec![variable("TIDEFS_FUSE_ENTRY_TTL_S", "-1")],
        options: vec!["ro,policy=fifo,scratch_min".to_owned()],
        ..sources()
    };
    let errors = Config::load(&sources).unwrap_err();
    let text = errors.to_string();
    assert_eq!(text.lines().count(), errors.problems().len(), "{text}");
    for expected in [
        "/a.toml:2: memory.capacity = `lots`: this is not a size; set `capacity` in section `[memory]` to a size, \
         for example `64GiB`",
        "/a.toml:3: memory.nope",
        "/a.toml:5: fuse.threads = `0`: this is outside of the allowed range, `1` to `64`",
        "/a.toml:7: this is not TOML",
        "/b.toml: the file cannot be read: permission denied",
        "environment TIDEFS_FUSE_ENTRY_TTL_S: fuse.entry_ttl_s = `-1`: this is not a whole number",
        "-o ro: ",
        "-o policy=fifo: this is not `leaf_bonus` or `lru` or `s3fifo`; set `eviction.policy` to",
        "-o scratch_min: the option needs a value; write `scratch.min=4GiB`",
    ] {
        assert!(text.contains(expected), "missing {expected}\nin\n{text}");
    }
}

#[test]
fn a_bad_value_is_reported_even_if_a_later_source_overrides_it() {
    let sources = Sources {
        files: vec![file("/a.toml", "memory.capacity = \"lots\"")],
        options: vec!["capacity=1GiB".to_owned()],
        ..sources()
    };
    assert_eq!(Config::load(&sources).unwrap_err().problems().len(), 1);
}

#[test]
fn a_too_small_capacity_is_refused_and_the_minimum_is_named() {
    let message = from_options("capacity=31MiB").unwrap_err().to_string();
    assert!(message.contains("at least `32MiB`"), "{message}");
    assert!(from_options("capacity=32MiB").is_ok());
}

#[test]
fn a_capacity_beyond_the_memory_of_the_machine_is_refused() {
    let message = from_options("capacity=65GiB").unwrap_err().to_string();
    assert!(message.contains("64.0 GiB of memory") && message.contains("memory.capacity"), "{message}");
}

#[test]
fn packed_max_reaches_from_never_to_one_mebibyte() {
    assert_eq!(from_options("packed_max=0").unwrap().config.memory.packed_max, ByteCount::ZERO);
    assert!(from_options("packed_max=1MiB").is_ok());
    assert!(from_options("packed_max=1048577").is_err());
}

#[test]
fn write_headroom_of_more_than_half_the_capacity_is_a_contradiction() {
    assert!(from_options("capacity=1GiB,memory.write_headroom=512MiB").is_ok());
    let message = from_options("capacity=1GiB,memory.write_headroom=513MiB").unwrap_err().to_string();
    assert!(message.contains("at most 512MiB"), "{message}");
}

#[test]
fn a_rule_is_not_judged_on_a_default_that_stands_in_for_a_faulty_value() {
    let errors = from_options("capacity=lots,memory.write_headroom=20GiB").unwrap_err();
    assert_eq!(errors.problems().len(), 1, "{errors}");
}

/// `free_space` panics if it is asked: a path in the mount must not even be looked at.
#[test]
fn state_and_scratch_in_the_mount_are_refused_without_touching_the_mount() {
    let host = Host { free_space: |path| panic!("{} was looked at", path.display()), ..host(0) };
    let options = vec!["scratch.dir=/mnt/kv/scratch,state_dir=/mnt/kv".to_owned()];
    let errors = Config::load(&Sources { host, options, ..sources() }).unwrap_err();
    assert_eq!(errors.problems().len(), 2, "{errors}");
    assert!(errors.to_string().contains("the daemon would wait for itself"), "{errors}");
}

#[test]
fn a_user_without_a_runtime_directory_is_asked_for_a_state_dir() {
    let host = Host { runtime_dir: None, ..host(1000) };
    let message = Config::load(&Sources { host: host.clone(), ..sources() }).unwrap_err().to_string();
    assert!(message.contains("set runtime.state_dir"), "{message}");
    let options = vec!["state_dir=/home/user/state".to_owned()];
    assert!(Config::load(&Sources { host, options, ..sources() }).is_ok());
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
fn an_unknown_amount_of_free_disk_is_asked_for_instead_of_guessed() {
    let host = Host { free_space: |_| None, ..host(0) };
    let message = Config::load(&Sources { host: host.clone(), ..sources() }).unwrap_err().to_string();
    assert!(message.contains("set scratch.capacity"), "{message}");
    let options = vec!["scratch.capacity=1GiB".to_owned()];
    assert!(Config::load(&Sources { host, options, ..sources() }).is_ok());
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
fn an_array_where_one_value_is_due_is_refused() {
    assert!(from_file("root.mode = [\"755\"]").is_err());
    assert!(from_file("names.temporary = [\"a:b\"]").is_err());
    assert!(from_file("names.temporary = [[\"*.tmp\"]]").is_err());
    assert!(from_file("names.temporary = []").unwrap().config.names.temporary.patterns().is_empty());
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

#[test]
fn what_is_set_for_etcd_and_would_not_be_used_is_refused() {
    let refused = |options: &str| from_options(options).unwrap_err().to_string();
    let sound = "cluster.etcd=https://a:1 https://b:1,cluster.etcd_authority=/ca,cluster.etcd_identity=/me";
    for options in [sound, "cluster.etcd=http://a:1,cluster.etcd_user_file=/user", "cluster.etcd=http://a:1"]
    {
        from_options(options).unwrap();
    }
    for (options, key, says) in [
        ("cluster.etcd=http://a:1 https://b:1,cluster.etcd_authority=/ca", "cluster.etcd", "some are not"),
        ("cluster.etcd=https://a:1", "cluster.etcd", "cluster.etcd_authority is not set"),
        ("cluster.etcd=http://a:1,cluster.etcd_authority=/ca", "cluster.etcd_authority", "not encrypted"),
        ("cluster.etcd=http://a:1,cluster.etcd_identity=/me", "cluster.etcd_identity", "not encrypted"),
    ] {
        let refusal = refused(options);
        assert!(refusal.contains(key) && refusal.contains(says), "{options}: {refusal}");
    }
    let both = refused("cluster.etcd=http://a:1,cluster.etcd_authority=/ca,cluster.etcd_identity=/me");
    assert_eq!(both.lines().count(), 2, "each is told: {both}");
}
