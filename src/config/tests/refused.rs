//! What is refused, and how it is told: all that is wrong at once, each with its place and what to set instead.

use std::path::Path;

use tidefs_engine::types::ByteCount;

use super::*;

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
fn an_unknown_amount_of_free_disk_is_asked_for_instead_of_guessed() {
    let host = Host { free_space: |_| None, ..host(0) };
    let message = Config::load(&Sources { host: host.clone(), ..sources() }).unwrap_err().to_string();
    assert!(message.contains("set scratch.capacity"), "{message}");
    let options = vec!["scratch.capacity=1GiB".to_owned()];
    assert!(Config::load(&Sources { host, options, ..sources() }).is_ok());
}

#[test]
fn an_array_where_one_value_is_due_is_refused() {
    assert!(from_file("root.mode = [\"755\"]").is_err());
    assert!(from_file("names.temporary = [\"a:b\"]").is_err());
    assert!(from_file("names.temporary = [[\"*.tmp\"]]").is_err());
    assert!(from_file("names.temporary = []").unwrap().config.names.temporary.patterns().is_empty());
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
