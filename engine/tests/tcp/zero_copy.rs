//! Payload that the kernel sends from where it lies, over the loopback, on which it copies all the same and says so.

use std::time::Duration;

use tidefs_engine::link::LinkConfig;
use tidefs_engine::metrics::MetricsSnapshot;
use tidefs_engine::transport::tcp::{TcpConfig, ZeroCopy};
use tidefs_engine::transport::{Direction, Endpoint, Transport, ZeroCopyStatus};

use crate::batch::{Batch, Shared};
use crate::common::Node;

const MIB: u64 = 1 << 20;

/// Two ends, and a region of each.
struct Scene {
    a: Node,
    b: Node,
    endpoint: std::sync::Arc<dyn Endpoint>,
    near: Shared,
    far: Shared,
}

impl Scene {
    async fn start(zero_copy: ZeroCopy) -> Self {
        let config = TcpConfig { zero_copy, ..TcpConfig::default() };
        let node = |member| Node::with(member, LinkConfig::default(), config.clone());
        let (a, b) = (node(1), node(2));
        let endpoint = a.connect(b.me, &b.links.addresses()).await;
        let (near, far) = (a.share(1, 16 * MIB, 1), b.share(2, 16 * MIB, 2));
        Self { a, b, endpoint, near, far }
    }

    /// Moves all of the regions, each megabyte an operation.
    fn go(&self, direction: Direction) {
        let mut batch = Batch::new();
        for index in 0..16 {
            batch.add(direction, self.near.local(index * MIB, MIB), self.far.remote(index * MIB));
        }
        tokio::task::block_in_place(|| {
            batch.post(&self.endpoint);
            batch.expect_done();
        });
    }

    fn status(&self) -> [ZeroCopyStatus; 2] {
        [self.a.tcp.zero_copy(self.b.me).unwrap(), self.b.tcp.zero_copy(self.a.me).unwrap()]
    }
}

/// What `node` has counted when the kernel is done with everything.
async fn settled(node: &Node) -> MetricsSnapshot {
    loop {
        let counted = node.metrics.snapshot();
        if counted.zero_copy_sends_total == counted.zero_copy_done_total {
            return counted;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auto_leaves_it_where_the_kernel_copies() {
    let scene = Scene::start(ZeroCopy::Auto).await;
    assert_eq!(scene.status(), [ZeroCopyStatus { on: 0, off: 0, untried: 4 }; 2]);
    for _ in 0..4 {
        scene.go(Direction::Write);
        scene.far.expect(1, "what was written is not what was sent");
        scene.go(Direction::Read);
    }
    for node in [&scene.a, &scene.b] {
        let counted = settled(node).await;
        assert_eq!(counted.zero_copy_sends_total, 4, "one send of each connection tries it");
        assert_eq!(counted.zero_copy_copied_total, 4);
        assert_eq!(counted.zero_copy_left_total, 4);
    }
    assert_eq!(scene.status(), [ZeroCopyStatus { on: 0, off: 4, untried: 0 }; 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_keeps_it_and_every_byte_and_notice_arrives() {
    let scene = Scene::start(ZeroCopy::On).await;
    for seed in 10..20 {
        scene.near.fill(seed);
        scene.go(Direction::Write);
        scene.far.expect(seed, "what was written is not what was sent");
        scene.far.fill(seed + 100);
        scene.go(Direction::Read);
        scene.near.expect(seed + 100, "what was read is not what was there");
    }
    for node in [&scene.a, &scene.b] {
        let counted = settled(node).await;
        // Where memory may not be locked, the kernel refuses some, which are copied.
        assert!(counted.zero_copy_sends_total + counted.zero_copy_refused_total >= 320, "{counted:?}");
        assert!(counted.zero_copy_sends_total > 0);
        assert_eq!(counted.zero_copy_copied_total, counted.zero_copy_sends_total);
        assert_eq!(counted.zero_copy_left_total, 0);
    }
    assert_eq!(scene.status(), [ZeroCopyStatus { on: 4, off: 0, untried: 0 }; 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn off_asks_the_kernel_for_nothing() {
    let scene = Scene::start(ZeroCopy::Off).await;
    scene.go(Direction::Write);
    scene.go(Direction::Read);
    for node in [&scene.a, &scene.b] {
        assert_eq!(node.metrics.snapshot().zero_copy_sends_total, 0);
    }
    assert_eq!(scene.status(), [ZeroCopyStatus { on: 0, off: 4, untried: 0 }; 2]);
}
