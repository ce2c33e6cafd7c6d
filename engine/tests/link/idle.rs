//! What a link costs that nothing is sent over: memory of this process, for both ends.
//!
//! Other tests of the same process would take memory meanwhile: where there may be some, as under `cargo test`, the test runs
//! again in a process of its own.

use std::process::Command;
use std::{env, fs};

use crate::common::{ECHO, Node, soon};

const PEERS: u64 = 128;
/// Bytes that one end of an idle link may hold.
const IDLE_BYTES_MAX: u64 = 64 << 10;

/// Set in the process that is for the test alone.
const ALONE: &str = "TIDEFS_TEST_ALONE";

/// Whether no other test runs in this process: cargo-nextest gives each test one.
fn is_alone() -> bool {
    ["NEXTEST", ALONE].into_iter().any(|name| env::var_os(name).is_some())
}

/// Runs the test `name` in a process of its own.
fn run_alone(name: &str) {
    let mut command = Command::new(env::current_exe().unwrap());
    let ran = command.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let [said, failed] = [&ran.stdout, &ran.stderr].map(|text| String::from_utf8_lossy(text));
    print!("{said}");
    assert!(ran.status.success() && said.contains("1 passed"), "{}: {said}{failed}", ran.status);
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_peer_costs_little_memory_even_after_large_messages() {
    if !is_alone() {
        return run_alone("idle::an_idle_peer_costs_little_memory_even_after_large_messages");
    }
    let hub = Node::start(1);
    // Once, so that what the process keeps for all of them is there.
    let first = Node::start(2);
    let link = first.connect(&hub).await.unwrap();
    link.call(ECHO, vec![1; 1 << 20], soon()).await.unwrap();
    let before = resident();
    let mut peers = Vec::new();
    for member in 0..PEERS {
        let peer = Node::start(10 + member);
        let link = peer.connect(&hub).await.unwrap();
        link.call(ECHO, vec![1; 64 << 10], soon()).await.unwrap();
        peers.push((peer, link));
    }
    // Both ends of each, and the listener and tasks of its engine.
    let each = resident().saturating_sub(before) / PEERS / 2;
    assert!(each <= IDLE_BYTES_MAX, "an idle end of a link holds {each} bytes");
    println!("an idle end of a link holds {each} bytes");
}
