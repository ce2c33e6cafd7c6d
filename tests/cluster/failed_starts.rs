//! Hosts whose start fails half-way: they undo what they did before.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::common::mount::mounts_below;
use crate::common::place::Place;
use crate::common::{program, wait};
use crate::fixture::Hosts;
use crate::way::free_port;

/// Longest time for a start that fails.
const LIMIT: Duration = Duration::from_secs(60);
/// Exit code: the machine lacks something that the daemon needs.
const EXIT_ENVIRONMENT: i32 = 4;

/// The arguments of a daemon of this place.
fn arguments(place: &Place, options: &[&str]) -> Vec<String> {
    let scratch = place.base.path().join("scratch");
    let mut arguments = vec![place.point.display().to_string(), "--capacity".into(), "64MiB".into()];
    let own = [
        format!("runtime.state_dir={}", place.state.display()),
        format!("scratch.dir={}", scratch.display()),
        "on_stop=discard".into(),
    ];
    for option in own.into_iter().chain(options.iter().map(|option| (*option).to_owned())) {
        arguments.extend(["-o".into(), option]);
    }
    arguments
}

/// The names and addresses of the members, as etcd has them.
fn registered(endpoint: &str) -> String {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3");
    command.args(["--endpoints", endpoint, "get", "--prefix", "/tidefs/", "--print-value-only"]);
    program::run(&mut command, LIMIT).success("etcdctl get").output
}

/// By the mount that fails and not by its lease, which it would have for seconds after.
#[test]
fn a_host_that_joined_and_cannot_mount_is_no_member_when_it_has_ended() {
    let hosts = Hosts::start(1, &[]);
    assert!(registered(&hosts.endpoint()).contains("host-0"), "etcd shows who is a member");
    let place = Place::new();
    let etcd = format!("cluster.etcd={}", hosts.endpoint());
    let arguments = arguments(&place, &[&etcd, "cluster.host=unmounted", "cluster.listen=127.0.0.1:0"]);
    let script = "mount --bind /dev/null /dev/fuse && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_tidefsd")]).args(arguments);
    let finished = program::run(&mut command, LIMIT);
    let left = registered(&hosts.endpoint());
    assert_eq!(finished.status.code(), Some(EXIT_ENVIRONMENT), "{finished:?}");
    let errors = &finished.errors;
    assert!(errors.contains("joined the cluster") && errors.contains("/dev/fuse"), "{finished:?}");
    assert!(left.contains("host-0") && !left.contains("unmounted"), "it is registered still: {left}");
    assert!(wait::until(wait::HANG, || hosts.members(0) == 1), "its end is not told");
}

#[test]
fn a_host_that_cannot_join_leaves_no_memory_where_a_stop_leaves_none() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let listen = format!("cluster.listen={}", taken.local_addr().expect("its address"));
    let coordinator = format!("cluster.coordinator=127.0.0.1:{}", free_port());
    let place = Place::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidefsd"));
    command.args(arguments(&place, &[&coordinator, &listen]));
    let finished = program::run(&mut command, LIMIT);
    assert_eq!(finished.status.code(), Some(EXIT_ENVIRONMENT), "{finished:?}");
    assert!(finished.errors.contains("cluster.listen"), "{finished:?}");
    assert_eq!(mounts_below(place.base.path()), Vec::<PathBuf>::new(), "what holds memory is left");
}
