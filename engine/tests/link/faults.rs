//! Links whose other end, or whose way to it, fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidefs_engine::error::Error;
use tidefs_engine::link::LinkConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::common::{ECHO, Event, NEVER, Node, config, peer, soon, until};

/// What the way between two engines does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Carries.
    Open,
    /// Swallows everything, and says nothing: a partition.
    Silent,
    /// Resets the connections.
    Reset,
    /// Sends bytes that nobody sent.
    Garbage,
}

/// A way that can be broken: forwards connections to an engine.
struct Relay {
    address: SocketAddr,
    way: watch::Sender<Way>,
    taken: Arc<Mutex<usize>>,
}

impl Relay {
    async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (way, seen) = watch::channel(Way::Open);
        let taken = Arc::new(Mutex::new(0));
        let count = Arc::clone(&taken);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                *count.lock() += 1;
                let far = TcpStream::connect(target).await.unwrap();
                tokio::spawn(carry(near, far, seen.clone()));
            }
        });
        Self { address, way, taken }
    }
}

async fn carry(mut near: TcpStream, mut far: TcpStream, mut way: watch::Receiver<Way>) {
    loop {
        let now = *way.borrow_and_update();
        match now {
            Way::Open => {
                tokio::select! {
                    // Both ends are done.
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
                    changed = way.changed() => if changed.is_err() { return },
                }
            }
            Way::Silent => {
                if way.changed().await.is_err() {
                    return;
                }
            }
            Way::Reset => {
                for socket in [&near, &far] {
                    socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO)).unwrap();
                }
                return;
            }
            Way::Garbage => {
                near.write_all(&[0x55; 100]).await.unwrap();
                return;
            }
        }
    }
}

async fn broken_by(way: Way) -> (Node, Node, Result<Vec<u8>, Error>) {
    let quick = LinkConfig { silence_max: Duration::from_millis(600), ..config() };
    let (a, b) = (Node::with(peer(1, 1), quick.clone()), Node::with(peer(2, 1), quick));
    let relay = Relay::to(b.links.addresses()[0]).await;
    let link = a.links.connect(b.me, &[relay.address], soon()).await.unwrap();
    assert_eq!(link.call(ECHO, vec![1], soon()).await, Ok(vec![1]));
    let asking = {
        let link = Arc::clone(&link);
        tokio::spawn(async move { link.call(NEVER, Vec::new(), soon()).await })
    };
    relay.way.send_replace(way);
    let answer = asking.await.unwrap();
    until(|| !link.is_up()).await;
    a.seen.wait_for(&Event::Disconnected(b.me)).await;
    b.seen.wait_for(&Event::Disconnected(a.me)).await;
    // The way is good again, and so is the next link.
    relay.way.send_replace(Way::Open);
    let anew = a.links.connect(b.me, &[relay.address], soon()).await.unwrap();
    assert_eq!(anew.call(ECHO, vec![2], soon()).await, Ok(vec![2]));
    assert_eq!(*relay.taken.lock(), 2);
    (a, b, answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_partition_is_noticed_by_both_ends_and_heals() {
    let (_, b, answer) = broken_by(Way::Silent).await;
    assert!(matches!(&answer, Err(Error::PeerGone { peer, .. }) if *peer == b.me), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_ends_the_calls_and_heals() {
    let (_, b, answer) = broken_by(Way::Reset).await;
    assert!(matches!(&answer, Err(Error::PeerGone { peer, .. }) if *peer == b.me), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_frame_end_the_link_and_heal() {
    let (_, _, answer) = broken_by(Way::Garbage).await;
    assert!(matches!(answer, Err(Error::Protocol { .. })), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_link_outlives_many_silence_limits() {
    let quick = LinkConfig { silence_max: Duration::from_secs(2), ..config() };
    let (a, b) = (Node::with(peer(1, 1), quick.clone()), Node::with(peer(2, 1), quick));
    let link = a.connect(&b).await.unwrap();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(link.is_up());
    assert_eq!(a.seen.events(), [Event::Connected(b.me)]);
}

/// An address that takes no connection and says nothing of it: its queue is full.
fn dead_address() -> (Vec<socket2::Socket>, SocketAddr) {
    let new = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let listener = new();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let first = new();
    first.connect(&address).unwrap();
    (vec![listener, first], address.as_socket().unwrap())
}

#[tokio::test]
async fn an_address_that_does_not_answer_holds_up_none_that_follow_it() {
    let far = Node::start(2);
    let patient = LinkConfig { connect_timeout: Duration::from_secs(120), ..config() };
    let near = Node::with(peer(1, 1), patient);
    let (_held, dead) = dead_address();
    let addresses = [vec![dead, dead], far.links.addresses()].concat();
    let link = near.links.connect(far.me, &addresses, soon()).await.unwrap();
    assert_eq!(link.remote(), far.links.addresses()[0]);
}

#[tokio::test]
async fn addresses_that_do_not_answer_are_named_when_the_time_is_over() {
    let near = Node::with(peer(1, 1), LinkConfig { connect_timeout: Duration::from_millis(600), ..config() });
    let (_held, dead) = dead_address();
    let refused = near.links.connect(peer(2, 1), &[dead], soon()).await.unwrap_err();
    let Error::Unreachable { address, cause } = &refused else { panic!("{refused:?}") };
    assert_eq!(**address, dead.to_string());
    assert!(cause.starts_with("no answer within "), "{refused}");
}
