//! Commands that ask a daemon: what they ask, what they print, how they end.

use serde_json::{Value, json};
use tidefs_control_api::{
    ApiError, ChecksumHex, ConfigEntry, ConfigOrigin, Counters, EffectiveConfig, ErrorBody, ErrorCode,
    EvictEvent, EvictProgress, Evicted, EvictionCause, EvictionStatus, FuseStatus, KeyPath, ListEntry,
    ListEvent, ListPart, ListSummary, MemoryStatus, NamespaceStatus, ObjectStat, PackedStatus, Pin, Pinned,
    SkipReason, Skipped, Status, Tier, Timestamp, Verdict, VerifyEvent, VerifyProgress, VerifySummary, Why,
};
use tidefs_engine::types::{ByteCount, Checksum, ObjectCount, SegmentId, Version};

use crate::fake_daemon::FakeDaemon;
use crate::host::Host;

fn value(body: &impl serde::Serialize) -> Value {
    serde_json::to_value(body).unwrap()
}

fn time(seconds: u64) -> Timestamp {
    Timestamp::from_unix_millis(1_795_215_845_000 + seconds * 1000)
}

fn status() -> Status {
    Status {
        api_version: 1,
        version: "0.1.0".into(),
        mount_point: "/mnt/kv".into(),
        pid: 4711,
        started_at: time(0),
        uptime_s: 11_525,
        capacity: ByteCount::gib(64),
        used: ByteCount::gib(16),
        free: ByteCount::gib(48),
        objects: ObjectCount(12_345),
        sealed_bytes: ByteCount::gib(15),
        unsealed_files: 2,
        unsealed_bytes: ByteCount::mib(24),
        packed: PackedStatus {
            objects: ObjectCount(345),
            bytes: ByteCount::mib(3),
            segments: 1,
            segment_bytes: ByteCount::mib(4),
        },
        eviction: EvictionStatus {
            policy: "leaf_bonus".into(),
            evicted_objects: ObjectCount(77),
            evicted_bytes: ByteCount::gib(1),
            order_bytes: ByteCount::mib(77),
        },
        fuse: FuseStatus {
            passthrough: false,
            passthrough_reason: Some("no right: CAP_SYS_ADMIN".into()),
            threads: 2,
            kernel_abi: "7.45".into(),
            flags: vec!["PARALLEL_DIRECT_WRITES".into()],
        },
        memory: MemoryStatus {
            page_size: Some(ByteCount::mib(2)),
            private_mount: true,
            prefaulted: ByteCount::mib(512),
            waiting: ByteCount::mib(64),
            held: ByteCount::ZERO,
            warnings: vec!["the kernel has no noswap for tmpfs".into()],
        },
        counters: Counters { hits: 3000, misses: 1000, opens: 2900, creates: 50 },
        namespaces: vec![NamespaceStatus {
            name: "llama".into(),
            bytes: ByteCount::gib(15),
            unsealed_bytes: ByteCount::mib(16),
            objects: ObjectCount(12_345),
            quota: Some(ByteCount::gib(32)),
            policy: "lru".into(),
            evicted: ObjectCount(77),
            hits: 3,
            misses: 1,
            ..NamespaceStatus::default()
        }],
        warnings: vec!["reads are slower than they could be".into()],
        ..Status::default()
    }
}

#[test]
fn status_is_told_to_people_and_programs() {
    let host = Host::new();
    let _daemon = FakeDaemon::serve(&host, &[("GET /v1/status", 200, value(&status()))]);
    let json = host.run("status --json --mount MNT");
    assert_eq!((json.code, json.stderr.as_str()), (0, ""));
    insta::assert_json_snapshot!("status_json", json.json());
    insta::assert_snapshot!("status_human", host.run("status").stdout);
}

#[test]
fn status_says_each_warning_once_and_no_page_size_that_was_not_probed() {
    let host = Host::new();
    let why = "the page size is unknown: no room";
    let memory = MemoryStatus { warnings: vec![why.into()], ..MemoryStatus::default() };
    let status = Status { memory, warnings: vec![why.into()], ..Status::default() };
    let _daemon = FakeDaemon::serve(&host, &[("GET /v1/status", 200, value(&status))]);
    assert_eq!(host.run("status --json").json()["memory"]["page_size"], json!(null));
    let human = host.run("status").stdout;
    assert!(human.contains("size unknown; objects are lost with the daemon"), "{human}");
    assert_eq!(human.matches(why).count(), 1, "{human}");
}

#[test]
fn json_shows_what_this_version_does_not_know() {
    let host = Host::new();
    let _daemon = FakeDaemon::serve(&host, &[("GET /v1/status", 200, json!({"pid": 7, "weather": "fine"}))]);
    assert_eq!(host.run("status --json").json(), json!({"pid": 7, "weather": "fine"}));
}

fn entry(name: &str) -> ListEntry {
    ListEntry {
        path: KeyPath::from_bytes(name.as_bytes()),
        size: ByteCount::mib(5),
        hits: 3,
        sealed_at: Some(time(0)),
        last_used: Some(time(9)),
        pin: Pin::Soft,
        tier: Tier::Memory,
    }
}

#[test]
fn list_asks_for_the_order_and_the_limit_and_joins_the_parts() {
    let host = Host::new();
    let part = |name| ListEvent::Progress(ListPart { entries: vec![entry(name)] });
    let summary = ListEvent::Summary(ListSummary { total: ObjectCount(9) });
    let lines = events(&[part("llama/a b.bin"), part("llama/c.bin"), summary]);
    let daemon = FakeDaemon::serve_text(&host, [("GET /v1/list", 200, lines)]);
    let listed = host.run("list llama --sort=size --limit 2 --json");
    assert_eq!(listed.code, 0, "{listed:?}");
    insta::assert_json_snapshot!("list_json", listed.json());
    let human = host.run("ls MNT/llama --limit 2 --mount MNT");
    assert!(human.stdout.contains("llama/a b.bin") && human.stderr.contains("2 of 9"), "{human:?}");
    assert_eq!(host.run("list --all").stderr, "");
    assert_eq!(
        daemon.asked(),
        [
            "GET /v1/list?path=llama&sort=size&limit=2",
            "GET /v1/list?path=llama&sort=heat&limit=2",
            "GET /v1/list?path=&sort=heat"
        ]
    );
}

#[test]
fn a_list_of_nothing_is_a_document_and_a_header() {
    let host = Host::new();
    let lines = events(&[ListEvent::Summary(ListSummary::default())]);
    let _daemon = FakeDaemon::serve_text(&host, [("GET /v1/list", 200, lines)]);
    assert_eq!(host.run("list --json").json(), json!({"entries": [], "total": 0}));
    assert!(host.run("list").stdout.starts_with("SIZE  TIER"));
}

#[test]
fn a_list_that_is_cut_off_is_told_so_in_a_whole_document() {
    let host = Host::new();
    let lines = events(&[ListEvent::Progress(ListPart { entries: vec![entry("llama/a")] })]);
    let _daemon = FakeDaemon::serve_text(&host, [("GET /v1/list", 200, lines)]);
    let ended = host.run("list --all --json");
    let (json, code) = (ended.json(), ended.code);
    assert_eq!((code, &json["entries"][0]["path"]), (1, &json!("llama/a")), "{json}");
    assert!(json["error"]["message"].to_string().contains("broke off"), "{json}");
    let ended = host.run("list --all");
    assert!(ended.code == 1 && ended.stdout.contains("llama/a"), "{ended:?}");
    assert!(ended.stderr.contains("broke off"), "{ended:?}");
}

#[test]
fn stat_and_why_take_a_path_below_the_mount() {
    let host = Host::new();
    let stat = ObjectStat {
        path: KeyPath::from_bytes(b"llama/k"),
        size: ByteCount(4096),
        version: Some(Version(3)),
        checksum: Some(ChecksumHex(Checksum(0xdead_beef))),
        tier: Some(Tier::Packed),
        sealed_at: Some(time(1)),
        last_used: Some(time(2)),
        hits: Some(5),
        references: 1,
        pin: Pin::Hard,
        priority: -1,
        ttl_left_s: Some(60),
        predecessor: Some(KeyPath::from_bytes(b"llama/j")),
        eviction_rank: None,
        segment: Some(SegmentId(8)),
        ..ObjectStat::default()
    };
    let why = Why::new(
        KeyPath::from_bytes(b"llama/k"),
        Verdict::Evicted {
            at: time(5),
            for_whom: Some("qwen".into()),
            cause: EvictionCause::Room,
            reason: "cold".into(),
        },
    );
    let daemon =
        FakeDaemon::serve(&host, &[("GET /v1/stat", 200, value(&stat)), ("GET /v1/why", 200, value(&why))]);
    let stat = host.run("stat --json --mount MNT MNT/x/../llama/k");
    insta::assert_json_snapshot!("stat_json", stat.json());
    let told = host.run("why llama/k");
    assert_eq!(told.code, 0, "that a key is gone is an answer, not a failure");
    insta::assert_snapshot!("why_human", told.stdout);
    insta::assert_json_snapshot!("why_json", host.run("why llama/k --json").json());
    assert_eq!(daemon.asked()[0], "GET /v1/stat?path=llama%2Fk");
}

#[test]
fn evict_sends_exactly_what_was_named() {
    let host = Host::new();
    let evicted = Evicted {
        objects: ObjectCount(2),
        bytes: ByteCount::mib(10),
        held_bytes: ByteCount::mib(2),
        elsewhere_bytes: ByteCount::ZERO,
        missing_bytes: ByteCount::ZERO,
        skipped_objects: ObjectCount(3),
        skipped: vec![Skipped { path: KeyPath::from_bytes(b"llama/p"), reason: SkipReason::Pinned }],
    };
    let lines = events(&[EvictEvent::Progress(EvictProgress::default()), EvictEvent::Summary(evicted)]);
    let daemon = FakeDaemon::serve_text(&host, [("POST /v1/evict", 200, lines)]);
    let stays = host.run("evict llama/p");
    assert_eq!(stays.code, 1, "the object that was named stays");
    insta::assert_snapshot!("evict_human", stays.stdout);
    insta::assert_json_snapshot!("evict_json", host.run("evict --bytes 4GiB --json").json());
    assert_eq!(host.run("evict --pattern llama/** --force --mount MNT").code, 0);
    assert_eq!(
        daemon.asked(),
        [
            r#"POST /v1/evict {"path":"llama/p","force":false}"#,
            r#"POST /v1/evict {"bytes":4294967296,"force":false}"#,
            r#"POST /v1/evict {"pattern":"llama/**","force":true}"#,
        ]
    );
}

#[test]
fn pin_sends_strength_and_time() {
    let host = Host::new();
    let pinned = Pinned { path: KeyPath::from_bytes(b"llama"), pin: Pin::Soft, ttl_left_s: Some(600) };
    let daemon = FakeDaemon::serve(&host, &[("POST /v1/pin", 200, value(&pinned))]);
    let human = host.run("pin llama --soft --ttl 10m");
    assert_eq!(human.stdout, "llama is evicted last, for 10m\n");
    insta::assert_json_snapshot!("pin_json", host.run("pin llama --none --json").json());
    assert_eq!(
        daemon.asked(),
        [
            r#"POST /v1/pin {"path":"llama","pin":"soft","ttl_s":600}"#,
            r#"POST /v1/pin {"path":"llama","pin":"none"}"#,
        ]
    );
    assert_eq!(host.run("pin llama --soft --ttl 0s").code, 2);
}

fn events(events: &[impl serde::Serialize]) -> String {
    events.iter().map(|event| serde_json::to_string(event).unwrap() + "\n").collect()
}

#[test]
fn verify_tells_what_is_corrupt_and_fails_then() {
    let host = Host::new();
    let progress =
        VerifyProgress { checked: ObjectCount(1), total: ObjectCount(2), ..VerifyProgress::default() };
    let summary = VerifySummary {
        checked: ObjectCount(2),
        checked_bytes: ByteCount::mib(2),
        corrupt: ObjectCount(1),
        corrupt_paths: vec![KeyPath::from_bytes(b"llama/bad")],
        elapsed_ms: 1500,
        ..VerifySummary::default()
    };
    let lines = events(&[VerifyEvent::Progress(progress), VerifyEvent::Summary(summary)]);
    let daemon = FakeDaemon::serve_text(&host, [("POST /v1/verify", 200, lines)]);
    let human = host.run("verify llama");
    assert_eq!(human.code, 1, "corruption is a failure for scripts");
    insta::assert_snapshot!("verify_human", human.stdout);
    let json = host.run("verify --json");
    assert_eq!(json.code, 1);
    insta::assert_json_snapshot!("verify_json", json.json());
    assert_eq!(daemon.asked(), [r#"POST /v1/verify {"path":"llama"}"#, "POST /v1/verify {}"]);
}

#[test]
fn a_verification_that_is_cut_off_is_not_called_intact() {
    let host = Host::new();
    let lines = events(&[VerifyEvent::Progress(VerifyProgress::default())]);
    let _daemon = FakeDaemon::serve_text(&host, [("POST /v1/verify", 200, lines)]);
    let ended = host.run("verify");
    assert!(ended.code == 1 && ended.stderr.contains("broke off"), "{ended:?}");
}

#[test]
fn a_daemon_that_dies_while_it_answers_is_not_of_another_version() {
    let host = Host::new();
    let lines = events(&[VerifyEvent::Progress(VerifyProgress::default())]);
    let answers = [("POST /v1/verify", 200, lines), ("GET /v1/status", 200, "{".to_owned())];
    let _daemon = FakeDaemon::serve_and_die(&host, answers);
    for command in ["verify", "status"] {
        let ended = host.run(command);
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(ended.stderr.contains("broke off") && !ended.stderr.contains("version"), "{ended:?}");
    }
}

#[test]
fn config_show_hides_defaults_unless_asked() {
    let host = Host::new();
    let entry = |key: &str, origin| ConfigEntry {
        key: key.into(),
        value: "8GiB".into(),
        default: Some("4GiB".into()),
        origin,
    };
    let config = EffectiveConfig {
        entries: vec![
            entry("memory.capacity", ConfigOrigin::Flag { flag: "--capacity".into() }),
            entry("memory.packed_max", ConfigOrigin::Default),
            entry("scratch.min", ConfigOrigin::File { path: "/etc/tidefs/a.toml".into(), line: Some(3) }),
        ],
    };
    let _daemon = FakeDaemon::serve(&host, &[("GET /v1/config", 200, value(&config))]);
    insta::assert_snapshot!("config_human", host.run("config show").stdout);
    let all = host.run("config show --effective --json");
    assert_eq!(all.json()["entries"].as_array().unwrap().len(), 3);
    insta::assert_json_snapshot!("config_json", host.run("config show --json").json());
}

#[test]
fn a_refusal_has_its_exit_code_and_its_json() {
    let host = Host::new();
    let refuse = |error| value(&ErrorBody { error });
    let path = KeyPath::from_bytes(b"llama/k");
    let _daemon = FakeDaemon::serve(
        &host,
        &[
            ("GET /v1/stat", 404, refuse(ApiError::no_object(&path))),
            ("GET /v1/why", 500, refuse(ApiError::new(ErrorCode::Internal, "it broke"))),
            ("GET /v1/list", 400, refuse(ApiError::new(ErrorCode::BadRequest, "no such cursor"))),
            ("GET /v1/config", 503, json!("not an error of ours")),
        ],
    );
    let ended = host.run("stat llama/k --json");
    assert_eq!((ended.code, ended.stderr.as_str()), (4, ""));
    insta::assert_json_snapshot!("error_json", ended.json());
    let ended = host.run("stat llama/k");
    assert_eq!((ended.code, ended.stdout.as_str()), (4, ""));
    assert!(ended.stderr.contains("next step: `tidefs why"), "{ended:?}");
    assert_eq!(host.run("why llama/k").code, 1);
    assert_eq!(host.run("list").code, 2);
    let ended = host.run("config show");
    assert!(ended.code == 1 && ended.stderr.contains("503"), "{ended:?}");
}

#[test]
fn what_a_later_daemon_says_of_its_cluster_is_in_the_json_too() {
    let host = Host::new();
    let mut status = value(&status());
    let catalog = json!({"entries": 5, "of_later": 6});
    status["cluster"] = json!({"cluster": "c", "of_later": 7, "short_of_copies": 8, "catalog": catalog});
    let _daemon = FakeDaemon::serve(&host, &[("GET /v1/status", 200, status)]);
    let members = host.run("members --json").json();
    assert_eq!((&members["cluster"], &members["of_later"]), (&json!("c"), &json!(7)), "{members}");
    let catalog = host.run("catalog stats --json").json();
    assert_eq!((&catalog["entries"], &catalog["of_later"]), (&json!(5), &json!(6)), "{catalog}");
    assert_eq!(catalog["short_of_copies"], json!(8), "{catalog}");
}

#[test]
fn garbage_from_a_daemon_is_an_error_and_not_a_crash() {
    let host = Host::new();
    let _daemon = FakeDaemon::serve_text(
        &host,
        [
            ("GET /v1/status", 200, "<html>".to_owned()),
            ("GET /v1/why", 200, r#"{"path":7}"#.to_owned()),
            ("POST /v1/verify", 200, "\u{0}\n".to_owned()),
        ],
    );
    for line in ["status", "why x", "verify"] {
        let ended = host.run(line);
        assert!(ended.code == 1 && ended.stderr.contains("not usable"), "{line}: {ended:?}");
    }
}

#[test]
fn without_a_daemon_the_exit_code_is_3() {
    let host = Host::new();
    let ended = host.run("status --json");
    assert_eq!(ended.code, 3, "{ended:?}");
    assert_eq!(ended.json()["error"]["code"], "no_daemon");
    assert_eq!(host.run("stat MNT/x").code, 3, "an absolute path below no mount");
    assert_eq!(host.run("status --mount MNT").code, 3);
    // A daemon that has its lock and not yet its socket.
    std::fs::create_dir_all(host.instance().dir()).unwrap();
    let _lock = tidefs_control_api::lock::InstanceLock::acquire(&host.instance().lock()).unwrap();
    let ended = host.run("status");
    assert!(ended.code == 3 && ended.stderr.contains("just starting"), "{ended:?}");
}

#[test]
fn a_wrong_command_line_is_exit_code_2() {
    let host = Host::new();
    for line in
        ["nothing", "status --verbose", "evict", "evict a --bytes 1GiB", "list --sort=warmth", "pin a"]
    {
        assert_eq!(host.run(line).code, 2, "{line}");
    }
}

#[test]
fn completions_and_manual_pages_are_made() {
    let host = Host::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(host.run(&format!("completions {shell}")).stdout.contains("tidefs"), "{shell}");
    }
    let program = host.install("tidefs", "test \"$*\" = --man-page && echo the page of tidefsd");
    let ended = host.run_program(&program, "manpages man --json");
    assert_eq!(ended.code, 0, "{ended:?}");
    let of_the_daemon = std::fs::read_to_string(host.path().join("man/tidefsd.8")).unwrap();
    assert_eq!(of_the_daemon, "the page of tidefsd\n");
    let older = host.install("tidefs", "exit 2");
    let ended = host.run_program(&older, "manpages man");
    assert!(ended.code == 1 && ended.stderr.contains("of the same version"), "{ended:?}");
    let page = std::fs::read_to_string(host.path().join("man/tidefs-evict.1")).unwrap();
    assert!(page.starts_with(".ie") || page.contains(".TH tidefs-evict 1"), "{page}");
}
