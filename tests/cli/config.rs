//! `tidefs config show`: every setting with its origin; what `tidefsd --check-config` tells programs; its manual page.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::common::{Mount, program, wait};
use super::tool::{argument, binary, json as run_json, parse, text};

fn entry<'a>(config: &'a Value, key: &str) -> Option<&'a Value> {
    let entries = config["entries"].as_array().expect("entries");
    entries.iter().find(|entry| entry["key"] == json!(key))
}

#[test]
fn config_show_effective_names_each_value_and_its_origin() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("tidefs.toml");
    fs::write(&file, "[fuse]\nthreads = 2\n[eviction]\npolicy = \"lru\"\n").expect("a file");
    let config_flag = format!("--config={}", file.display());
    let mount = Mount::start(&["capacity=96MiB", "eviction.policy=s3fifo", &config_flag]);
    let config = run_json(&mount, &["config", "show", "--effective"]);
    let of = |key: &str| entry(&config, key).unwrap_or_else(|| panic!("{key} is not in {config}"));
    assert_eq!(of("memory.capacity")["value"], json!("96MiB"), "{config}");
    assert_eq!(of("memory.capacity")["origin"]["kind"], json!("flag"), "{config}");
    assert_eq!(of("fuse.threads")["value"], json!("2"), "{config}");
    assert_eq!(of("fuse.threads")["origin"]["kind"], json!("file"), "{config}");
    let path = of("fuse.threads")["origin"]["path"].as_str().expect("a path").to_owned();
    assert!(path.ends_with("tidefs.toml"), "{config}");
    assert_eq!(of("eviction.policy")["value"], json!("s3fifo"), "a flag wins over a file: {config}");
    assert_eq!(of("eviction.ghost_factor")["origin"]["kind"], json!("default"), "{config}");
    assert_eq!(of("eviction.ghost_factor")["default"], json!("8"), "{config}");
    let some = run_json(&mount, &["config", "show"]);
    assert!(entry(&some, "memory.capacity").is_some(), "what somebody set is shown: {some}");
    assert!(entry(&some, "eviction.ghost_factor").is_none(), "what nobody set is not: {some}");
    let human = text(&mount, &["config", "show", "--effective"]);
    let line = human.lines().find(|line| line.contains("fuse.threads")).expect("a line for each setting");
    assert!(line.contains('2') && line.contains("tidefs.toml"), "{line}");
    // the same stands in the mount
    let inside = fs::read_to_string(mount.join(".tidefs/config")).expect("readable");
    assert!(inside.contains("96MiB") && inside.contains("s3fifo"), "{inside}");
}

#[test]
fn a_check_of_the_configuration_is_told_to_programs_as_one_document() {
    let place = tempfile::tempdir().expect("a directory");
    let check = |option: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidefsd"));
        command.arg(place.path()).args(["-o", option, "--check-config", "--json"]);
        program::run(&mut command, wait::HANG)
    };
    let sound = check("capacity=1GiB").success("a sound configuration");
    assert!(parse(&sound.output)["settings"].as_u64() > Some(20), "{sound:?}");
    let wrong = check("capcity=1GiB,on_stop=maybe");
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    let error = &parse(&wrong.output)["error"];
    let message = error["message"].as_str().expect("a message");
    assert_eq!(error["code"], json!("bad_request"), "{wrong:?}");
    assert!(message.contains("capcity") && message.contains("maybe"), "{wrong:?}");
    assert_eq!(wrong.errors, "");
}

#[test]
fn a_check_of_the_configuration_looks_at_what_it_names_and_tells_all_that_is_wrong() {
    let folder = tempfile::tempdir().expect("a directory");
    let place = |name: &str| folder.path().join(name);
    for (name, text) in [("key", "0123456789abcdef"), ("ca", "no certificate"), ("host", "nor this")] {
        fs::write(place(name), text).expect("a file");
    }
    fs::create_dir(place("disk")).expect("a directory");
    fs::create_dir(place("mount")).expect("a mount point");
    let check = |point: &str, options: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidefsd"));
        command.arg(place(point)).args(["-o", options, "--check-config"]);
        program::run(&mut command, wait::HANG)
    };
    let (here, coordinator) = (folder.path().display(), "cluster.coordinator=127.0.0.1:7401");
    check("mount", &format!("ssd.dirs={here}/disk")).success("what is there");
    let wrong = check(
        "absent",
        &format!(
            "ssd.dirs={here}/disk:{here}/no-disk:{here}/key,{coordinator},cluster.key_file={here}/key,\
             cluster.tls_authority={here}/ca,cluster.tls_identity={here}/host"
        ),
    );
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    for said in [
        "no-disk: it does not exist; make the directory",
        "key: it is neither a directory nor a block device",
        "there is no certificate in it",
        "mkdir -p",
    ] {
        assert!(wrong.errors.contains(said), "{said}: {}", wrong.errors);
    }
    assert_eq!(wrong.errors.matches("it does not exist").count(), 1, "{}", wrong.errors);
    assert_eq!(fs::read_dir(place("disk")).expect("the disk").count(), 0, "nothing is made");
    let wrong = check("mount", &format!("cluster.etcd=http://a:1,cluster.etcd_user_file={here}/key"));
    assert!(wrong.errors.contains("write NAME:PASSWORD into it"), "{}", wrong.errors);
}

#[test]
fn the_daemon_has_a_manual_page_with_its_settings() {
    let place = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(binary());
    command.args(["manpages", argument(place.path())]);
    program::run(&mut command, wait::HANG).success("tidefs manpages");
    let page = fs::read_to_string(place.path().join("tidefsd.8")).expect("its page");
    assert!(page.contains(".TH tidefsd 8") && page.contains("memory.capacity"), "{page}");
}
