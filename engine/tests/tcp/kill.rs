//! A peer process that is killed while payload moves in both directions.
//!
//! The peer is this test binary again, told by its environment to serve a region until it is killed.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tidefs_engine::error::Error;
use tidefs_engine::link::LinkConfig;
use tidefs_engine::transport::Direction;
use tidefs_engine::transport::tcp::{TcpConfig, ZeroCopy};

use crate::batch::{Batch, Shared};
use crate::common::{Node, peer};

const SERVE: &str = "TIDEFS_TEST_SERVE";
const MIB: u64 = 1 << 20;
const LENGTH: u64 = 32 * MIB;

/// Not a test of its own: what the peer process runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_until_killed() {
    let Ok(zero_copy) = std::env::var(SERVE) else { return };
    let node = Node::with(2, LinkConfig::default(), config(zero_copy == "on"));
    let shared = node.share(1, LENGTH, 2);
    let key: Vec<String> = shared.key.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("serving {} {}", node.links.addresses()[0], key.concat());
    // Its parent kills it; should that have died, it ends by itself.
    tokio::time::sleep(Duration::from_secs(60)).await;
}

/// Kills the process at the end of a test, however that ends.
struct Peer {
    child: Child,
    address: SocketAddr,
    key: Vec<u8>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Killed before, perhaps.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(is_zero_copy: bool) -> TcpConfig {
    let zero_copy = if is_zero_copy { ZeroCopy::On } else { ZeroCopy::Off };
    TcpConfig { zero_copy, ..TcpConfig::default() }
}

fn start_peer(is_zero_copy: bool) -> Peer {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::serve_until_killed", "--nocapture", "--test-threads=1"])
        .env(SERVE, if is_zero_copy { "on" } else { "off" })
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    for line in output.lines() {
        let line = line.unwrap();
        let Some((_, told)) = line.split_once("serving ") else { continue };
        let (address, key) = told.split_once(' ').unwrap();
        let key = (0..key.len() / 2).map(|at| u8::from_str_radix(&key[at * 2..][..2], 16).unwrap()).collect();
        return Peer { child, address: address.parse().unwrap(), key };
    }
    panic!("the peer process ended before it served");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_killed_under_transfers_of_both_directions_ends_each_once() {
    a_peer_is_killed(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_killed_while_the_kernel_sends_without_a_copy_ends_each_once() {
    let a = a_peer_is_killed(true).await;
    let sent = a.metrics.snapshot();
    assert!(sent.zero_copy_sends_total > 0);
    assert_eq!(sent.zero_copy_sends_total, sent.zero_copy_done_total, "a handle was early");
}

async fn a_peer_is_killed(is_zero_copy: bool) -> Node {
    let mut served = start_peer(is_zero_copy);
    let a = Node::with(1, LinkConfig::default(), config(is_zero_copy));
    let endpoint = a.connect(peer(2), &[served.address]).await;
    let near = [a.share(1, LENGTH, 3), a.share(2, LENGTH, 4)];
    let far = Shared {
        region: std::sync::Arc::clone(&near[0].region),
        id: tidefs_engine::types::RegionId(1),
        key: served.key.clone().into(),
    };
    let batch = || {
        let mut batch = Batch::new();
        for index in 0..32 {
            batch.add(Direction::Read, near[0].local(index * MIB, MIB), far.remote(index * MIB));
            batch.add(Direction::Write, near[1].local(index * MIB, MIB), far.remote(index * MIB));
        }
        batch
    };
    let (before, under_way) = tokio::task::block_in_place(|| {
        let mut before = batch();
        before.post(&endpoint);
        before.expect_done();
        let mut under_way = batch();
        under_way.post(&endpoint);
        served.child.kill().unwrap();
        served.child.wait().unwrap();
        (before, under_way)
    });
    drop(before);
    let results = tokio::task::block_in_place(|| under_way.results());
    let is_told = |result: &Result<(), Error>| match result {
        Ok(()) => true,
        Err(error) => matches!(error, Error::PeerGone { .. } | Error::TransportFailed { .. }),
    };
    assert!(results.iter().all(is_told), "{results:?}");
    // What is posted now ends too, and long before its deadline.
    near[0].fill(9);
    let begin = Instant::now();
    let mut late = batch();
    tokio::task::block_in_place(|| {
        late.post(&endpoint);
        assert!(late.results().iter().all(Result::is_err));
    });
    assert!(begin.elapsed() < Duration::from_secs(20));
    near[0].expect(9, "something was stored after the end");
    a
}
