//! What a bench prints for programs, and what is left of one that is ended half-way.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::host::Host;

/// A daemon that never mounts, and needs a moment to end.
const SLOW: &str = r#"
    trap 'sleep 0.3; echo stopped >>"$FAKE_NOTES"; exit 0' TERM
    echo started >>"$FAKE_NOTES"
    i=0; while [ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done"#;

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().next().is_none()
}

fn temporary(host: &Host) -> PathBuf {
    host.path().join("tmp")
}

/// A bench that waits for its daemon to mount, started by the program with arguments `under`, if there is one.
fn start(host: &Host, under: &[&str]) -> Child {
    let program = host.install("tidefs", SLOW);
    let trace = host.path().join("trace");
    std::fs::create_dir(temporary(host)).unwrap();
    std::fs::write(&trace, "{\"hash_ids\": [1, 2]}\n").unwrap();
    let mut command = match under.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(&program);
            command
        }
        None => Command::new(&program),
    };
    let bench = command
        .args(["bench", "replay", "--capacity-objects", "10", "--object-size", "4KiB"])
        .arg(&trace)
        .env("TMPDIR", temporary(host))
        .env("FAKE_NOTES", host.path().join("notes"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the daemon starts", || host.notes().contains("started"));
    bench
}

fn send(bench: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(bench.id()).unwrap()), signal).unwrap();
}

#[test]
fn a_bench_that_a_signal_ends_leaves_no_directory_and_no_daemon() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let host = Host::new();
        let mut bench = start(&host, &[]);
        let temporary = temporary(&host);
        assert!(!is_empty(&temporary), "the bench works in a directory of its own");
        send(&bench, signal);
        let ended = bench.wait().unwrap();
        assert_eq!((ended.code(), ended.signal()), (Some(code), None));
        assert!(is_empty(&temporary), "its directory stays after {signal}");
        assert!(host.notes().contains("stopped"), "it ends before its daemon: {}", host.notes());
    }
}

#[test]
fn a_bench_that_was_started_to_outlive_its_terminal_does() {
    let host = Host::new();
    let mut bench = start(&host, &["sh", "-c", "trap '' HUP; exec \"$0\" \"$@\""]);
    send(&bench, Signal::SIGHUP);
    send(&bench, Signal::SIGTERM);
    assert_eq!(bench.wait().unwrap().code(), Some(143), "it ended by the first of the two");
}

#[test]
fn a_bench_that_cannot_run_says_so_in_the_form_that_is_asked_for() {
    let host = Host::new();
    let ended = host.run("bench replay missing --json");
    let error = &ended.json()["error"];
    assert_eq!((ended.code, &error["code"]), (1, &serde_json::json!("failed")), "{ended:?}");
    assert!(error["message"].as_str().unwrap().contains("missing"), "{ended:?}");
    let ended = host.run("bench replay missing");
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{ended:?}");
    assert!(ended.stderr.contains("tidefs: ") && ended.stderr.contains("missing"), "{ended:?}");
}
