//! What `tidefs bench` and `tidefs cluster dev` tell the daemons that they start, which are scripts here.

use std::process::Command;

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
        assert_eq!(notes.lines().find(is_of_host), None, "{line}");
        let given = notes.lines().next().unwrap_or_default();
        let [nothing, own] =
            ["-o config=/dev/null", "-o config=/of/the/trial"].map(|option| given.find(option));
        assert!(nothing.is_some() && nothing < own, "{line}: the last one counts: {notes}");
    }
}
