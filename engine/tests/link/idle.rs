//! What a link costs that nothing is sent over: memory of this process, for both ends.

use std::fs;

use crate::common::{ECHO, Node, soon};

const PEERS: u64 = 128;
/// Bytes that one end of an idle link may hold.
const IDLE_BYTES_MAX: u64 = 64 << 10;

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_peer_costs_little_memory_even_after_large_messages() {
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
