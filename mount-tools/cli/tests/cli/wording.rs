//! What is said when a command line asks for what cannot be, and that the next step can be typed as it stands.

use std::fs::File;
use std::process::Command;

use serde_json::{Value, json};
use tidefs_control_api::instance::STATE_DIR_VARIABLE;
use tidefs_control_api::{ApiError, ErrorBody, ErrorCode, KeyPath, Pin, Pinned, Status, VerifyEvent};

use crate::fake_daemon::FakeDaemon;
use crate::host::{Ended, Host};

fn value(body: &impl serde::Serialize) -> Value {
    serde_json::to_value(body).unwrap()
}

fn no_object(key: &[u8]) -> ApiError {
    ApiError::no_object(&KeyPath::from_bytes(key))
}

#[test]
fn a_hard_pin_with_a_time_is_refused_before_the_daemon_is_asked() {
    let host = Host::new();
    let daemon = FakeDaemon::serve(&host, &[("POST /v1/pin", 200, value(&Pinned::default()))]);
    let ended = host.run("pin llama --hard --ttl 3s");
    assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{ended:?}");
    assert!(ended.stderr.contains("only a soft pin takes --ttl"), "{ended:?}");
    assert!(ended.stderr.contains("next step: use --soft"), "{ended:?}");
    let ended = host.run("pin llama --hard --ttl 3s --json");
    assert_eq!((ended.code, &ended.json()["error"]["code"]), (2, &json!("usage")));
    assert_eq!(daemon.asked(), [""; 0]);
}

#[test]
fn a_pin_lasts_no_shorter_than_was_asked_for_and_not_for_no_time() {
    let host = Host::new();
    let daemon = FakeDaemon::serve(&host, &[("POST /v1/pin", 200, value(&Pinned::default()))]);
    for (ttl, seconds) in [("1ms", 1), ("1500ms", 2), ("3s", 3)] {
        assert_eq!(host.run(&format!("pin llama --soft --ttl {ttl}")).code, 0, "{ttl}");
        let asked = daemon.asked().pop().unwrap();
        assert!(asked.ends_with(&format!(r#""ttl_s":{seconds}}}"#)), "{ttl}: {asked}");
    }
    let ended = host.run("pin llama --soft --ttl 0s");
    assert!(ended.code == 2 && ended.stderr.contains("next step: leave out --ttl"), "{ended:?}");
    assert_eq!(daemon.asked().len(), 3, "the daemon is not asked");
}

#[test]
fn a_daemon_may_be_named_by_its_directory_alone() {
    let host = Host::new();
    let config = json!({"entries": []});
    let daemon = FakeDaemon::serve(
        &host,
        &[("GET /v1/status", 200, value(&Status::default())), ("GET /v1/config", 200, config)],
    );
    for line in [
        "status MNT",
        "status --json MNT",
        "status .//mnt",
        "config show --effective MNT",
        "tier status MNT",
        "tier status --json MNT",
    ] {
        assert_eq!(host.run(line).code, 0, "{line}");
    }
    assert_eq!(daemon.asked().len(), 6);
    let ended = host.run("status MNT/..");
    assert!(ended.code == 3 && ended.stderr.contains("no daemon serves"), "{ended:?}");
    for line in ["status MNT --mount MNT", "config show MNT --mount MNT", "tier status MNT --mount MNT"] {
        assert_eq!(host.run(line).code, 2, "{line}");
    }
}

#[test]
fn a_next_step_names_the_whole_path() {
    let host = Host::new();
    let refused = value(&ErrorBody { error: no_object(b"ns/small") });
    let event = serde_json::to_string(&VerifyEvent::Error(no_object(b"ns/small"))).unwrap() + "\n";
    let _daemon = FakeDaemon::serve_text(
        &host,
        [("GET /v1/stat", 404, refused.to_string()), ("POST /v1/verify", 200, event)],
    );
    let dir = host.mount_dir().display().to_string();
    let wanted = format!("`tidefs why {dir}/ns/small --mount {dir}` tells what became of it");
    for line in ["stat ns/small --mount MNT", "stat MNT/ns/small --mount MNT", "verify ns/small --mount MNT"]
    {
        let ended = host.run(line);
        assert_eq!(ended.code, 4, "{ended:?}");
        assert!(ended.stderr.contains(&wanted), "{line}: {ended:?}");
    }
    assert_eq!(host.run("stat ns/small --json --mount MNT").json()["error"]["next_step"], json!(wanted));
    // The key alone, where no mount is shown, and the place to look, where the environment does not name it.
    assert!(host.run("stat ns/small").stderr.contains("`tidefs why ns/small` tells"));
    let other = host.path().join("other");
    std::fs::rename(host.state().path(), &other).unwrap();
    let ended = host.run(&format!("stat ns/small --state-dir {}", other.display()));
    let wanted = format!("`tidefs why ns/small --state-dir {}` tells", other.display());
    assert!(ended.stderr.contains(&wanted), "{ended:?}");
}

#[test]
fn what_a_daemon_does_not_know_is_no_missing_object() {
    let host = Host::new();
    let route = ApiError::new(ErrorCode::NoRoute, "no route /v1/where")
        .next_step("the tools and the daemon may be of different versions: compare `tidefs --version`");
    let disk = ApiError::new(ErrorCode::UnknownName, "/mnt/nvme7: no such disk");
    let refused = |error: ApiError| value(&ErrorBody { error });
    let _daemon = FakeDaemon::serve(
        &host,
        &[("GET /v1/where", 404, refused(route)), ("POST /v1/tier/remove", 404, refused(disk))],
    );
    let ended = host.run("where ns/small");
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("different versions") && !ended.stderr.contains("tidefs why"), "{ended:?}");
    let ended = host.run("tier remove /mnt/nvme7 --json");
    assert_eq!((ended.code, &ended.json()["error"]["code"]), (1, &json!("unknown_name")), "{ended:?}");
}

#[test]
fn a_next_step_looks_where_the_command_looked() {
    let host = Host::new();
    let (dir, other) = (host.mount_dir(), host.path().join("other"));
    let (dir, option) = (dir.display(), format!("--state-dir {}", other.display()));
    let ended = host.run(&format!("status MNT {option}"));
    assert!(ended.stderr.contains(&format!("`tidefs mount {dir} {option}` starts one")), "{ended:?}");
    let ended = host.run(&format!("members {option}"));
    assert!(ended.stderr.contains(&format!("`tidefs mount DIR {option}` starts one")), "{ended:?}");
    // The environment names it to the next command, too.
    let ended = host.run("status MNT");
    assert!(ended.stderr.contains(&format!("`tidefs mount {dir}` starts one")), "{ended:?}");
}

#[test]
fn a_command_that_an_answer_names_asks_the_daemon_that_gave_it() {
    let host = Host::new();
    let no_tier =
        ApiError::new(ErrorCode::Conflict, "there is no tier").next_step("`tidefs tier add` makes one");
    let no_tier = value(&ErrorBody { error: no_tier }).to_string();
    let evicted =
        json!({"event": "summary", "objects": 0, "bytes": 0, "missing_bytes": 5}).to_string() + "\n";
    let verified = json!({"event": "summary", "unreadable": 1}).to_string() + "\n";
    let copies = [json!({"member": "m1", "name": "gpu-1", "medium": "memory"})];
    let found = json!({"path": "k", "kind": "file", "copies": copies, "replicas": 2, "is_short": true});
    let _daemon = FakeDaemon::serve_text(
        &host,
        [
            ("POST /v1/tier/drain", 409, no_tier),
            ("GET /v1/status", 200, value(&Status::default()).to_string()),
            ("POST /v1/evict", 200, evicted),
            ("POST /v1/verify", 200, verified),
            ("GET /v1/where", 200, found.to_string()),
        ],
    );
    let other = host.path().join("other");
    std::fs::rename(host.state().path(), &other).unwrap();
    let options = format!("--mount {} --state-dir {}", host.mount_dir().display(), other.display());
    for (line, names) in [
        ("tier drain /mnt/nvme0", "tidefs tier add"),
        ("tier status", "tidefs tier add DIR"),
        ("evict --bytes 1GiB", "tidefs list"),
        ("verify", "tidefs tier status"),
        ("where k", "tidefs members"),
    ] {
        let ended = host.run(&format!("{line} {options}"));
        let told = format!("{}{}", ended.stdout, ended.stderr);
        assert!(told.contains(&format!("`{names} {options}`")), "{line}: {ended:?}");
    }
}

#[test]
fn a_variable_that_is_empty_is_as_one_that_is_not_set() {
    let host = Host::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidefs"));
    command.arg("status").arg(host.mount_dir()).current_dir(host.path());
    let output = command.env(STATE_DIR_VARIABLE, "").env("XDG_RUNTIME_DIR", host.path()).output().unwrap();
    let ended = Ended::from(output);
    assert!(ended.code == 3 && ended.stderr.contains("no daemon serves"), "{ended:?}");
}

#[test]
fn a_host_that_waits_to_join_its_cluster_is_not_told_to_name_one() {
    let host = Host::new();
    let waits = Status {
        mount_point: "/mnt/kv".into(),
        cluster_waits_for: Some("http://etcd:2379 does not answer".into()),
        ..Status::default()
    };
    let _daemon = FakeDaemon::serve(&host, &[("GET /v1/status", 200, value(&waits))]);
    for line in ["members", "catalog stats"] {
        let ended = host.run(line);
        let says = "/mnt/kv has not joined its cluster yet: http://etcd:2379 does not answer";
        assert!(ended.code == 1 && ended.stderr.contains(says), "{line}: {ended:?}");
        assert!(ended.stderr.contains("next step: it joins by itself"), "{line}: {ended:?}");
    }
}

#[test]
fn a_pattern_that_is_not_below_the_mount_is_refused() {
    let host = Host::new();
    let evicted = json!({"event": "summary", "objects": 1, "bytes": 5}).to_string() + "\n";
    let daemon = FakeDaemon::serve_text(&host, [("POST /v1/evict", 200, evicted)]);
    assert_eq!(host.run("evict --mount MNT --pattern MNT/ns/*").code, 0);
    assert_eq!(daemon.asked(), [r#"POST /v1/evict {"pattern":"ns/*","force":false}"#]);
    for line in ["evict --mount MNT --pattern /nowhere/ns/*", "evict --pattern /nowhere/ns/*"] {
        let ended = host.run(line);
        assert!(ended.code == 2 && ended.stderr.contains("/nowhere/ns/* is not below"), "{line}: {ended:?}");
    }
    assert_eq!(daemon.asked().len(), 1);
}

#[test]
fn the_root_of_a_mount_has_a_name() {
    let host = Host::new();
    let pinned = Pinned { pin: Pin::Hard, ..Pinned::default() };
    let _daemon = FakeDaemon::serve(&host, &[("POST /v1/pin", 200, value(&pinned))]);
    let ended = host.run("pin MNT --mount MNT --hard");
    assert_eq!(ended.stdout, "the mount's root is not evicted, until the pin is taken away\n");
}

#[test]
fn a_full_standard_error_changes_no_exit_code() {
    let host = Host::new();
    let refused = |code| value(&ErrorBody { error: ApiError::new(code, "no") });
    let _daemon = FakeDaemon::serve(
        &host,
        &[
            ("GET /v1/list", 404, refused(ErrorCode::NotFound)),
            ("GET /v1/config", 200, json!({"entries": []})),
        ],
    );
    for (line, code) in [("list nope", 4), ("config show", 0)] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidefs"));
        let command = command.args(line.split(' ')).env(STATE_DIR_VARIABLE, host.state().path()).stderr(full);
        assert_eq!(command.current_dir(host.path()).status().unwrap().code(), Some(code), "{line}");
    }
}
