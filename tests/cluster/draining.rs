//! A host that leaves with nothing lost.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::common::program::{self, Finished};
use crate::common::wait;
use crate::fixture::{Hosts, object, publish};

const COMMAND: Duration = Duration::from_secs(60);
const BUILD: Duration = Duration::from_secs(600);

/// `tidefs drain` with these arguments, by the daemon of `host`.
fn drain(hosts: &Hosts, host: usize, arguments: &[&str]) -> Finished {
    let path = Path::new(env!("CARGO_BIN_EXE_tidefsd")).with_file_name("tidefs");
    if !path.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--package", "tidefs-cli"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        program::run(&mut cargo, BUILD).success("cargo build --package tidefs-cli");
    }
    let mut command = Command::new(path);
    command.arg("drain").args(arguments).arg("--state-dir").arg(hosts.mounts[host].state_dir());
    program::run(&mut command, COMMAND)
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.output).unwrap_or_else(|error| panic!("{error}: {}", finished.output))
}

fn length(number: u64) -> usize {
    [16, 5000, 100_000, 2 << 20][usize::try_from(number % 4).expect("small")]
}

#[test]
fn a_drained_host_is_gone_and_nothing_is_missed() {
    let mut hosts = Hosts::start(3, &[]);
    fs::create_dir_all(hosts.mounts[0].join("deep/er/empty")).expect("directories");
    let name = |number: u64| format!("deep/er/{number}");
    for number in 0..40 {
        publish(&hosts.mounts[0].join(name(number)), &object(number, length(number)));
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Readers go on all the time, and miss nothing.
        scope.spawn(|| {
            for number in (0..40).cycle().take_while(|_| !is_over.load(Ordering::Relaxed)) {
                let found = fs::read(hosts.mounts[1].join(name(number)));
                let found = found.unwrap_or_else(|error| panic!("{number} is missed: {error}"));
                assert_eq!(found, object(number, length(number)), "{number}");
            }
        });
        let done = drain(&hosts, 2, &["host-0", "--json"]).success("the drain");
        is_over.store(true, Ordering::Relaxed);
        let status = json(&done);
        assert_eq!((&status["phase"], &status["objects_left"]), (&"left".into(), &0.into()), "{status}");
    });
    let have_heard = || [1, 2].into_iter().all(|host| hosts.has_met(host, 2));
    assert!(wait::until(COMMAND, have_heard));
    assert!(hosts.mounts[0].stop().success());
    for host in [1, 2] {
        assert!(hosts.mounts[host].join("deep/er/empty").is_dir(), "an empty directory is lost");
        for number in 0..40 {
            let found = fs::read(hosts.mounts[host].join(name(number)));
            let found = found.unwrap_or_else(|error| panic!("{number} on host {host}: {error}"));
            assert_eq!(found, object(number, length(number)), "{number}");
        }
    }
}

#[test]
fn a_drain_without_time_leaves_the_host_where_it_is_and_goes_on_later() {
    let hosts = Hosts::start(2, &[]);
    for number in 0..60 {
        publish(&hosts.mounts[0].join(format!("whole-0/{number}")), &object(number, 1 << 20));
    }
    let late = drain(&hosts, 0, &["host-0", "--deadline", "1ms"]);
    assert_eq!(late.status.code(), Some(1), "{}", late.output);
    assert!(late.output.contains("still a member") && late.output.contains("--deadline"), "{}", late.output);
    assert_eq!(hosts.members(1), 2);
    assert_eq!(fs::read(hosts.mounts[1].join("whole-0/7")).expect("it is there"), object(7, 1 << 20));
    // It takes part as before.
    publish(&hosts.mounts[0].join("whole-0/new"), &object(99, 1 << 20));
    assert_eq!(fs::read(hosts.mounts[1].join("whole-0/new")).expect("it is there"), object(99, 1 << 20));
    let done = drain(&hosts, 0, &["host-0"]).success("the drain");
    assert!(done.output.contains("has left") && done.output.contains("stop its daemon"), "{}", done.output);
    for number in 0..60 {
        let found = fs::read(hosts.mounts[1].join(format!("whole-0/{number}")));
        assert_eq!(found.expect("it is there"), object(number, 1 << 20), "{number}");
    }
}

#[test]
fn a_drain_copies_first_what_was_used_last() {
    // Host 1 takes so little at first that there is time to look.
    let hosts = Hosts::start(2, &["cluster.ingest_rate=1MiB"]);
    for number in 0..30 {
        publish(&hosts.mounts[0].join(format!("whole-0/{number}")), &object(number, 1 << 20));
    }
    let hot = [3, 17, 22, 29];
    for number in hot {
        fs::read(hosts.mounts[0].join(format!("whole-0/{number}"))).expect("it is there");
    }
    let is_copied = |number: u64| hosts.copies(1, &format!("whole-0/{number}")).contains_key("host-1");
    let have_come = || hot.into_iter().all(is_copied);
    thread::scope(|scope| {
        let draining = scope.spawn(|| drain(&hosts, 1, &["host-0"]));
        let have_they = wait::until(COMMAND / 2, have_come);
        let copied: Vec<u64> = (0..30).filter(|&number| is_copied(number)).collect();
        drain(&hosts, 1, &["host-0", "--stop"]).success("the stop");
        assert_eq!(draining.join().expect("it ended").status.code(), Some(1));
        assert!(have_they && copied.len() < 30, "{copied:?}");
    });
}

#[test]
fn what_cannot_drain_says_why_and_what_to_do() {
    let hosts = Hosts::start(1, &[]);
    let nobody = drain(&hosts, 0, &["host-7"]);
    assert!(nobody.errors.contains("no member is called `host-7`"), "{}", nobody.errors);
    assert!(nobody.errors.contains("tidefs members"), "{}", nobody.errors);
    let alone = drain(&hosts, 0, &["host-0"]);
    assert!(
        alone.errors.contains("no other member") && alone.errors.contains("on_stop=keep"),
        "{}",
        alone.errors
    );
    let error = json(&drain(&hosts, 0, &["host-7", "--json"]));
    assert_eq!(error["error"]["code"], "unknown_name", "{error}");
}

#[test]
fn a_drained_host_shows_nothing_of_others_as_it_is_not_told_of_what_becomes_of_it() {
    let hosts = Hosts::start(2, &[]);
    let [drained, there] = [0, 1].map(|host| hosts.mounts[host].join("whole-1/key"));
    publish(&there, &object(1, 100_000));
    assert_eq!(fs::metadata(&drained).expect("it is there").len(), 100_000);
    drain(&hosts, 1, &["host-0"]).success("the drain");
    let is_miss = || fs::metadata(&drained).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    assert!(wait::until(wait::HANG, is_miss), "what it was answered before stands");
    publish(&there, &object(2, 50_000));
    assert!(is_miss(), "it asks those who tell it nothing");
}
