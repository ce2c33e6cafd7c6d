//! Data connections that break, stand still, or are dialled by somebody without a grant.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::error::Error;
use tidefs_engine::link::LinkConfig;
use tidefs_engine::transport::tcp::{TcpConfig, ZeroCopy};
use tidefs_engine::transport::{Direction, Endpoint, EndpointState, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::batch::{Batch, Shared};
use crate::common::{Node, soon};

const MIB: u64 = 1 << 20;

/// A way to an engine whose connections can be reset one by one, and held still.
struct Relay {
    address: SocketAddr,
    resets: Arc<Mutex<Vec<watch::Sender<bool>>>>,
    still: watch::Sender<bool>,
}

impl Relay {
    /// Whose sockets hold `held` bytes at most, where that is said, so that the rest stays with who sends it.
    async fn to(target: SocketAddr, held: Option<usize>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (still, is_still) = watch::channel(false);
        let resets = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&resets);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(target).await.unwrap();
                for socket in [&near, &far].into_iter().filter(|_| held.is_some()) {
                    let held = held.unwrap_or_default();
                    socket2::SockRef::from(socket).set_recv_buffer_size(held).unwrap();
                }
                let (reset, is_reset) = watch::channel(false);
                all.lock().push(reset);
                tokio::spawn(carry(near, far, is_reset, is_still.clone()));
            }
        });
        Self { address, resets, still }
    }

    /// Resets the connection that was made as number `index`; the first is the link.
    fn reset(&self, index: usize) {
        self.resets.lock()[index].send_replace(true);
    }

    fn count(&self) -> usize {
        self.resets.lock().len()
    }
}

pub(crate) async fn carry(
    mut near: TcpStream,
    mut far: TcpStream,
    mut is_reset: watch::Receiver<bool>,
    is_still: watch::Receiver<bool>,
) {
    {
        let (mut near_read, mut near_write) = near.split();
        let (mut far_read, mut far_write) = far.split();
        tokio::select! {
            () = pump(&mut near_read, &mut far_write, is_still.clone()) => {}
            () = pump(&mut far_read, &mut near_write, is_still) => {}
            _ = is_reset.wait_for(|reset| *reset) => {}
        }
    }
    for socket in [&near, &far] {
        // Fails only for a socket that is closed already.
        let _ = socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO));
    }
}

async fn pump(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    mut is_still: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if is_still.wait_for(|still| !still).await.is_err() || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// As one of several paths that is dead: it takes connections, and carries the first `carried` of them.
async fn carry_few(target: SocketAddr, carried: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (never, is_never) = watch::channel(false);
        let mut hung = Vec::new();
        for count in 0.. {
            let Ok((near, _)) = listener.accept().await else { break };
            if count < carried {
                let far = TcpStream::connect(target).await.unwrap();
                tokio::spawn(carry(near, far, is_never.clone(), is_never.clone()));
            } else {
                hung.push(near);
            }
        }
        drop(never);
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_hang_hold_up_none_that_is_up() {
    let patient = TcpConfig { connect_timeout: Duration::from_secs(60), ..TcpConfig::default() };
    let node = |member| Node::with(member, LinkConfig::default(), patient.clone());
    let (a, b) = (node(1), node(2));
    // The link and one of the four.
    let address = carry_few(b.links.addresses()[0], 2).await;
    let endpoint = tokio::time::timeout(Duration::from_secs(20), a.connect(b.me, &[address])).await.unwrap();
    let (near, far) = (a.share(1, MIB, 1), b.share(2, MIB, 2));
    tokio::task::block_in_place(|| {
        let mut batch = Batch::until(soon());
        batch.read(near.local(0, MIB), far.remote(0));
        batch.post(&endpoint);
        batch.expect_done();
    });
    near.expect(2, "over the connection that is up");
}

struct Scene {
    relay: Relay,
    a: Node,
    b: Node,
    endpoint: Arc<dyn Endpoint>,
    near: Shared,
    far: Shared,
}

impl Scene {
    async fn start() -> Self {
        Self::with(TcpConfig::default(), None).await
    }

    async fn with(config: TcpConfig, held: Option<usize>) -> Self {
        let node = |member| Node::with(member, LinkConfig::default(), config.clone());
        let (a, b) = (node(1), node(2));
        let relay = Relay::to(b.links.addresses()[0], held).await;
        // The link goes through the relay, and data connections go where the link goes.
        let endpoint = a.connect(b.me, &[relay.address]).await;
        assert_eq!(relay.count(), 5);
        let (near, far) = (a.share(1, 16 * MIB, 1), b.share(2, 16 * MIB, 2));
        Self { relay, a, b, endpoint, near, far }
    }

    fn batch(&self, direction: Direction, deadline: Instant) -> Batch {
        let mut batch = Batch::until(deadline);
        for index in 0..16 {
            batch.add(direction, self.near.local(index * MIB, MIB), self.far.remote(index * MIB));
        }
        batch
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_connection_fails_its_own_operations_and_is_dialled_again() {
    let scene = Scene::start().await;
    for direction in [Direction::Read, Direction::Write] {
        let connections = scene.relay.count();
        scene.relay.still.send_replace(true);
        let mut batch = scene.batch(direction, soon());
        batch.post(&scene.endpoint);
        scene.relay.reset(connections - 1);
        // Four of sixteen went over each connection, and nothing else can end while the way is still.
        tokio::task::block_in_place(|| batch.wait_for(4));
        scene.relay.still.send_replace(false);
        let results = tokio::task::block_in_place(|| batch.results());
        let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        assert_eq!(failed.len(), 4, "{results:?}");
        assert!(failed.iter().all(|error| matches!(error, Error::TransportFailed { .. })), "{failed:?}");
        assert_eq!(scene.endpoint.state(), EndpointState::Ready);
        while scene.relay.count() == connections {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::task::block_in_place(|| {
            let mut again = scene.batch(direction, soon());
            again.post(&scene.endpoint);
            again.expect_done();
        });
    }
    scene.near.expect(2, "here");
    scene.far.expect(2, "there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_that_stand_still_end_by_their_deadline_and_touch_nothing_afterwards() {
    let scene = Scene::start().await;
    for direction in [Direction::Read, Direction::Write] {
        scene.near.fill(1);
        scene.relay.still.send_replace(true);
        let mut batch = scene.batch(direction, Instant::now() + Duration::from_millis(100));
        batch.post(&scene.endpoint);
        let results = tokio::task::block_in_place(|| batch.results());
        assert!(results.iter().all(|result| *result == Err(Error::DeadlinePassed)), "{results:?}");
        // Their memory is the caller's again, although payload is under way in both directions.
        scene.near.fill(9);
        scene.relay.still.send_replace(false);
        let other = scene.a.share(10 + direction as u64, 16 * MIB, 4);
        tokio::task::block_in_place(|| {
            let mut fence = Batch::new();
            for index in 0..16 {
                fence.add(Direction::Read, other.local(index * MIB, MIB), scene.far.remote(index * MIB));
            }
            fence.post(&scene.endpoint);
            fence.expect_done();
        });
        scene.near.expect(9, "something was stored after the end");
    }
    // The connections kept their place in the stream.
    assert_eq!(scene.relay.count(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_batch_half_under_way_ends_at_once_and_others_go_on() {
    let scene = Scene::start().await;
    for direction in [Direction::Read, Direction::Write] {
        scene.near.fill(1);
        scene.relay.still.send_replace(true);
        let mut batch = scene.batch(direction, soon());
        batch.post(&scene.endpoint);
        let other = scene.a.share(20 + direction as u64, MIB, 4);
        let mut going_on = Batch::new();
        going_on.add(Direction::Read, other.local(0, MIB), scene.far.remote(0));
        going_on.post(&scene.endpoint);
        scene.endpoint.cancel(batch.id);
        let results = tokio::task::block_in_place(|| batch.results());
        assert!(results.iter().all(|result| *result == Err(Error::Cancelled)), "{results:?}");
        scene.near.fill(9);
        scene.relay.still.send_replace(false);
        tokio::task::block_in_place(|| going_on.expect_done());
        scene.near.expect(9, "something was stored after the end");
    }
    assert_eq!(scene.relay.count(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_is_withdrawn_at_once_although_peers_stand_still() {
    let scene = Scene::start().await;
    for direction in [Direction::Read, Direction::Write] {
        scene.relay.still.send_replace(true);
        let mut batch = scene.batch(direction, soon());
        batch.post(&scene.endpoint);
        // Some payload reaches the region's engine before it stands still, and must go no further.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let withdrawn = scene.b.share(30 + direction as u64, MIB, 5);
        scene.b.tcp.unregister(withdrawn.id).await;
        if direction == Direction::Write {
            scene.b.tcp.unregister(scene.far.id).await;
            scene.far.fill(8);
        }
        scene.relay.still.send_replace(false);
        let results = tokio::task::block_in_place(|| batch.results());
        match direction {
            Direction::Read => assert!(results.iter().all(Result::is_ok), "{results:?}"),
            Direction::Write => {
                let gone = Err(Error::NoSuchRegion { region: scene.far.id });
                assert!(results.iter().all(|result| *result == gone), "{results:?}");
                scene.far.expect(8, "something was stored after it was withdrawn");
            }
        }
    }
}

/// A scene in which much of what is sent without a copy stays with the kernel of who sends it.
async fn narrow_scene() -> Scene {
    let config = TcpConfig { zero_copy: ZeroCopy::On, ..TcpConfig::default() };
    Scene::with(config, Some(32 << 10)).await
}

/// Whether the kernel holds memory of `node`.
fn is_sending(node: &Node) -> bool {
    let counted = node.metrics.snapshot();
    counted.zero_copy_sends_total > counted.zero_copy_done_total
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_the_kernel_still_sends_ends_with_its_connection_and_not_before() {
    let scene = narrow_scene().await;
    scene.relay.still.send_replace(true);
    let mut batch = scene.batch(Direction::Write, Instant::now() + Duration::from_millis(100));
    batch.post(&scene.endpoint);
    let results = tokio::task::block_in_place(|| batch.results());
    assert!(!is_sending(&scene.a), "a handle was early");
    assert!(scene.a.metrics.snapshot().zero_copy_sends_total > 0);
    let is_told = |result: &Result<(), Error>| {
        matches!(result, Err(Error::DeadlinePassed | Error::TransportFailed { .. }))
    };
    assert!(results.iter().all(is_told), "{results:?}");
    scene.relay.still.send_replace(false);
    while scene.relay.count() == 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_that_the_kernel_still_sends_is_withdrawn_with_its_connection_and_not_before() {
    let scene = narrow_scene().await;
    let batch = loop {
        let before = scene.b.metrics.snapshot().zero_copy_sends_total;
        let mut batch = scene.batch(Direction::Read, soon());
        batch.post(&scene.endpoint);
        while scene.b.metrics.snapshot().zero_copy_sends_total == before {
            tokio::task::yield_now().await;
        }
        scene.relay.still.send_replace(true);
        tokio::time::sleep(Duration::from_millis(20)).await;
        if is_sending(&scene.b) {
            break batch;
        }
        // All of it was through before the way stood still.
        scene.relay.still.send_replace(false);
        tokio::task::block_in_place(|| batch.expect_done());
    };
    scene.b.tcp.unregister(scene.far.id).await;
    assert!(!is_sending(&scene.b), "the region was let go too early");
    scene.relay.still.send_replace(false);
    // What was on the connections fails, what is asked anew finds no region.
    let results = tokio::task::block_in_place(|| batch.results());
    assert!(results.iter().any(Result::is_err), "{results:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_the_link_ends_everything_at_both_ends() {
    let scene = Scene::start().await;
    scene.relay.still.send_replace(true);
    let mut batch = scene.batch(Direction::Read, soon());
    batch.post(&scene.endpoint);
    scene.relay.reset(0);
    let results = tokio::task::block_in_place(|| batch.results());
    // Whichever end notices first closes the connections.
    let is_told = |result: &_| matches!(result, Err(Error::PeerGone { .. } | Error::TransportFailed { .. }));
    assert!(results.iter().all(is_told), "{results:?}");
    scene.near.fill(9);
    scene.relay.still.send_replace(false);
    while scene.endpoint.state() == EndpointState::Ready {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(matches!(scene.endpoint.state(), EndpointState::Failed(Error::PeerGone { .. })));
    tokio::join!(scene.a.tcp.close(), scene.b.tcp.close());
    scene.near.expect(9, "afterwards");
}
