//! What `tidefs bench` and `tidefs cluster dev` tell the daemons that they start, which are scripts here.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidefs_control_api::instance::STATE_DIR_VARIABLE;

use crate::host::{Ended, Host};

/// Notes what it knows of its environment, and ends.
const DAEMON: &str = "env | grep ^TIDEFS_ >>\"$FAKE_NOTES\"; exit 4";

/// What a daemon that the words of `line` start notes, on a host that is configured for others.
fn told_by(line: &str) -> String {
    let host = Host::new();
    let program = host.install("tidefs", DAEMON);
    std::fs::write(host.path().join("trace"), "{\"hash_ids\": [1, 2]}\n").unwrap();
    let mut command = Command::new(program);
    command.args(line.split(' ')).current_dir(host.path()).env("TMPDIR", host.path());
    command.env("FAKE_NOTES", host.path().join("notes")).env(STATE_DIR_VARIABLE, host.state().path());
    for variable in ["TIDEFS_CONFIG", "TIDEFS_CLUSTER_ETCD", "TIDEFS_SSD_DIRS", "TIDEFS_COMMIT"] {
        command.env(variable, "/of/this/host");
    }
    command.env("TIDEFS_LIBFABRIC", "/of/any/daemon");
    let ended = Ended::from(command.output().unwrap());
    assert_ne!(ended.code, 0, "{ended:?}");
    assert!(host.notes().starts_with("args: "), "no daemon was started: {ended:?}");
    host.notes()
}

#[test]
fn a_trial_goes_by_nothing_that_its_host_is_configured_for() {
    let replay = "bench replay trace --capacity-objects 10 --object-size 4KiB -o config=/of/the/trial";
    let dev = "cluster dev --hosts 1 --without-etcd --dir hosts -o config=/of/the/trial";
    for line in [replay, dev] {
        let notes = told_by(line);
        // Those of tests are there as they are for the tests themselves.
        let is_of_host = |line: &&str| line.starts_with("TIDEFS_") && !line.starts_with("TIDEFS_TEST_");
        let (library, of_host): (Vec<_>, Vec<_>) =
            notes.lines().filter(is_of_host).partition(|line| *line == "TIDEFS_LIBFABRIC=/of/any/daemon");
        assert!(of_host.is_empty(), "{line}: {of_host:?}");
        assert!(!library.is_empty(), "{line}: a daemon finds the library of a transport");
        let given = notes.lines().next().unwrap_or_default();
        let [nothing, own] =
            ["-o config=/dev/null", "-o config=/of/the/trial"].map(|option| given.find(option));
        assert!(nothing.is_some() && nothing < own, "{line}: the last one counts: {notes}");
    }
}

#[test]
fn a_trial_that_is_interrupted_starts_no_further_hosts_and_ends_those_that_run() {
    // Each takes a while to mount, and serves until it is told to stop.
    const SLOW: &str = r#"
        trap 'echo stopped >>"$FAKE_NOTES"; exit 0' TERM
        sleep 0.3; echo "tidefs: mounted on $1"; exec 1>&-
        i=0; while [ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done"#;
    let host = Host::new();
    let mut command = Command::new(host.install("tidefs", SLOW));
    command.args(["cluster", "dev", "--hosts", "32", "--without-etcd", "--dir", "hosts", "--json"]);
    command.current_dir(host.path()).env("FAKE_NOTES", host.path().join("notes"));
    command.env(STATE_DIR_VARIABLE, host.state().path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let trial = command.spawn().unwrap();
    let noted = |word: &str| host.notes().lines().filter(|line| line.starts_with(word)).count();
    let deadline = Instant::now() + Duration::from_secs(30);
    while noted("args: ") < 2 {
        assert!(Instant::now() < deadline, "no second host starts: {}", host.notes());
        std::thread::sleep(Duration::from_millis(10));
    }
    kill(Pid::from_raw(i32::try_from(trial.id()).unwrap()), Signal::SIGINT).unwrap();
    let ended = Ended::from(trial.wait_with_output().unwrap());
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.json()["error"]["message"].to_string().contains("told to end"), "{ended:?}");
    let started = noted("args: ");
    assert!(started < 32 && noted("stopped") == started, "{}", host.notes());
}
