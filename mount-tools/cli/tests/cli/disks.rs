//! Commands that change the disks of the SSD tier: what they ask, and what they say of how long it lasts.

use serde_json::json;
use tidefs_control_api::event::ALIVE;
use tidefs_control_api::{ApiError, ErrorBody, ErrorCode, Status};

use crate::fake_daemon::FakeDaemon;
use crate::host::Host;

#[test]
fn a_disk_that_is_added_is_told_with_how_long_that_lasts_and_what_makes_it_stay() {
    let host = Host::new();
    let changed = |as_configured| {
        json!({
            "disks": ["/mnt/nvme0/tidefs"],
            "as_configured": as_configured,
            "setting": "ssd.dirs = [\"/mnt/nvme0/tidefs\"]",
        })
    };
    let daemon = FakeDaemon::serve(
        &host,
        &[("POST /v1/tier/add", 200, changed(false)), ("POST /v1/tier/remove", 200, changed(true))],
    );
    let added = host.run("tier add /mnt/nvme0/tidefs --capacity 2TiB");
    assert_eq!(added.code, 0, "{added:?}");
    insta::assert_snapshot!("tier_add_human", added.stdout);
    let removed = host.run("tier remove /mnt/nvme1/tidefs");
    assert_eq!(removed.stdout, "removed /mnt/nvme1/tidefs\nthe configuration names the same disks\n");
    assert_eq!(host.run("tier add /mnt/nvme0/tidefs --json").json(), changed(false));
    let asked = r#"POST /v1/tier/add {"path":"/mnt/nvme0/tidefs","capacity":2199023255552}"#;
    assert_eq!(daemon.asked()[0], asked);
    // A shell that completes the name of a directory ends it with a slash.
    assert_eq!(host.run("tier remove /mnt/nvme1/tidefs/").code, 0);
    assert_eq!(daemon.asked()[3], daemon.asked()[1]);
}

#[test]
fn the_next_step_after_a_drain_can_be_typed_as_it_stands() {
    let host = Host::new();
    let lines = json!({"event": "summary", "moved": 2, "left": 0}).to_string() + "\n";
    let _daemon = FakeDaemon::serve_text(&host, [("POST /v1/tier/drain", 200, lines)]);
    let other = host.path().join("other");
    std::fs::rename(host.state().path(), &other).unwrap();
    let ended = host.run(&format!("tier drain /mnt/it's --mount MNT --state-dir {}", other.display()));
    let options = format!("--mount {} --state-dir {}", host.mount_dir().display(), other.display());
    let wanted = format!(r"`tidefs tier remove '/mnt/it'\''s' {options}` takes it out");
    assert!(ended.code == 0 && ended.stdout.contains(&wanted), "{ended:?}");
}

#[test]
fn signs_of_life_between_the_lines_of_a_drain_are_passed_by() {
    let host = Host::new();
    let line = |event: &str, moved: u64| json!({"event": event, "moved": moved, "left": 2 - moved});
    let lines = format!("{}\n{ALIVE}{ALIVE}{}\n", line("progress", 1), line("summary", 2));
    let _daemon = FakeDaemon::serve_text(&host, [("POST /v1/tier/drain", 200, lines)]);
    let drained = host.run("tier drain /mnt/nvme0/tidefs --json");
    assert_eq!((drained.code, &drained.json()["moved"]), (0, &json!(2)), "{drained:?}");
}

#[test]
fn without_a_disk_the_status_says_how_to_get_one() {
    let host = Host::new();
    let status = serde_json::to_value(Status::default()).unwrap();
    let _daemon = FakeDaemon::serve(&host, &[("GET /v1/status", 200, status)]);
    let told = host.run("tier status");
    assert!(told.stdout.contains("none; `tidefs tier add DIR` gives it a disk"), "{told:?}");
}

#[test]
fn a_tier_that_cannot_start_is_an_error_with_its_reason() {
    let host = Host::new();
    let text = "/mnt/nvme0/tidefs: the SSD tier cannot start: no threads for it";
    let error = ApiError::new(ErrorCode::Internal, text).next_step("the daemon goes on without");
    let body = serde_json::to_value(ErrorBody { error }).unwrap();
    let _daemon = FakeDaemon::serve(&host, &[("POST /v1/tier/add", 500, body)]);
    let told = host.run("tier add /mnt/nvme0/tidefs");
    assert_ne!(told.code, 0);
    assert!(told.stderr.contains(text) && told.stderr.contains("the daemon goes on"), "{told:?}");
}
