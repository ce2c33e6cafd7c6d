//! Some of the data connections to a peer carry nothing, although they stand, and the others do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::error::Error;
use tidefs_engine::link::LinkConfig;
use tidefs_engine::transport::tcp::{TcpConfig, ZeroCopy};
use tidefs_engine::transport::{Direction, Endpoint, EndpointState};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::batch::{Batch, Shared};
use crate::common::{Node, soon};
use crate::faults::carry;

const MIB: u64 = 1 << 20;

/// Holds each connection of a way still; the first is the link.
type Holds = Arc<Mutex<Vec<watch::Sender<bool>>>>;

/// A way to an engine.
async fn way_to(target: SocketAddr) -> (SocketAddr, Holds) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let holds = Holds::default();
    let all = Arc::clone(&holds);
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(target).await.unwrap();
            let (hold, is_still) = watch::channel(false);
            all.lock().push(hold);
            tokio::spawn(async move {
                let (_never, is_never) = watch::channel(false);
                carry(near, far, is_never, is_still).await;
            });
        }
    });
    (address, holds)
}

struct Scene {
    holds: Holds,
    endpoint: Arc<dyn Endpoint>,
    near: Shared,
    far: Shared,
    _ends: (Node, Node),
}

impl Scene {
    /// The first `held` of four data connections carry nothing.
    async fn with(held: usize) -> Self {
        let config = TcpConfig { zero_copy: ZeroCopy::Off, ..TcpConfig::default() };
        let node = |member| Node::with(member, LinkConfig::default(), config.clone());
        let (a, b) = (node(1), node(2));
        let (address, holds) = way_to(b.links.addresses()[0]).await;
        let endpoint = a.connect(b.me, &[address]).await;
        // Those that take longer than a moment follow.
        let limit = soon();
        while holds.lock().len() < 5 {
            assert!(Instant::now() < limit, "not all connections are made");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for hold in &holds.lock()[1..=held] {
            hold.send_replace(true);
        }
        let (near, far) = (a.share(1, 4 * MIB, 1), b.share(2, 4 * MIB, 2));
        Self { holds, endpoint, near, far, _ends: (a, b) }
    }

    /// What becomes of four operations, one for each connection.
    fn results(&self, direction: Direction, deadline: Instant) -> Vec<Result<(), Error>> {
        let mut batch = Batch::until(deadline);
        for index in 0..4 {
            batch.add(direction, self.near.local(index * MIB, MIB), self.far.remote(index * MIB));
        }
        tokio::task::block_in_place(|| {
            batch.post(&self.endpoint);
            batch.results()
        })
    }
}

/// The others have nothing to do, once they have done what was theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_by_a_dead_connection_fails_before_its_deadline_when_others_hear_the_peer() {
    let scene = Scene::with(1).await;
    let results = scene.results(Direction::Read, soon());
    let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(matches!(failed[..], [Error::TransportFailed { .. }]), "{results:?}");
    assert_eq!(scene.endpoint.state(), EndpointState::Ready);
    let limit = soon();
    while scene.holds.lock().len() == 5 {
        assert!(Instant::now() < limit, "it is not made again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(scene.results(Direction::Read, soon()), vec![Ok(()); 4]);
    scene.near.expect(2, "by other connections");
}

/// Neither is a write taken from a dead connection, which may still deliver it, nor a read where nobody hears the peer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_to_be_tried_elsewhere_keeps_its_time() {
    for (direction, held) in [(Direction::Write, 1), (Direction::Read, 4)] {
        let scene = Scene::with(held).await;
        let results = scene.results(direction, Instant::now() + Duration::from_secs(4));
        let late = results.iter().filter(|result| **result == Err(Error::DeadlinePassed)).count();
        let done = results.iter().filter(|result| result.is_ok()).count();
        assert!(late >= held && late + done == 4, "{direction:?}: {results:?}");
    }
}
