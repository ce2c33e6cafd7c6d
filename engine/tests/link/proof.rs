//! Who is let in, and what the others learn.

use std::time::Duration;

use tidefs_engine::error::Error;
use tidefs_engine::link::{ClusterKey, LinkConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::common::{ECHO, Event, Node, config, peer, soon};

/// Bytes of an acceptor's greeting, which is a nonce and version numbers.
const GREETING_BYTES: usize = 48;

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_of_another_cluster_or_key_is_not_let_in_by_either_end() {
    let ours = Node::start(1);
    for theirs in [
        LinkConfig { key: Some(ClusterKey::new(*b"another key")), ..config() },
        LinkConfig { key: None, ..config() },
        LinkConfig { cluster: "another".to_owned(), ..config() },
    ] {
        let stranger = Node::with(peer(2, 1), theirs);
        for (from, to) in [(&ours, &stranger), (&stranger, &ours)] {
            let refused = from.connect(to).await.unwrap_err();
            assert!(matches!(refused, Error::Unproven { .. }), "{refused}");
        }
        assert_eq!(stranger.seen.events(), []);
    }
    assert_eq!(ours.seen.events(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_key_the_name_of_the_cluster_decides() {
    let keyless = || LinkConfig { key: None, ..config() };
    let (a, b) = (Node::with(peer(1, 1), keyless()), Node::with(peer(2, 1), keyless()));
    assert!(a.connect(&b).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_proves_nothing_learns_a_nonce_and_nothing_else() {
    let node = Node::with(
        peer(0x7171_7171_7171_7171, 1),
        LinkConfig { proof_timeout: Duration::from_millis(100), ..config() },
    );
    let mut socket = TcpStream::connect(node.links.addresses()[0]).await.unwrap();
    let mut greeting = b"TDLH\x01\0\x01\0".to_vec();
    greeting.resize(GREETING_BYTES, 0);
    socket.write_all(&greeting).await.unwrap();
    let mut learnt = vec![0; GREETING_BYTES];
    socket.read_exact(&mut learnt).await.unwrap();
    socket.write_all(&[0; 32]).await.unwrap();
    let mut rest = Vec::new();
    // A reset says as little as the end of the stream.
    let _ = socket.read_to_end(&mut rest).await;
    assert_eq!(rest, b"");
    assert!(!learnt.windows(4).any(|window| window == [0x71; 4]));
}

/// Connections that say nothing.
async fn silent(node: &Node, count: usize) -> Vec<TcpStream> {
    let mut silent = Vec::new();
    for _ in 0..count {
        silent.push(TcpStream::connect(node.links.addresses()[0]).await.unwrap());
    }
    silent
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_are_dropped_in_time_and_hold_nobody_up() {
    let node = Node::with(
        peer(1, 1),
        LinkConfig { proof_timeout: Duration::from_millis(200), unproven_max: 4, ..config() },
    );
    let silent = silent(&node, 8).await;
    let honest = Node::start(2);
    assert!(honest.connect(&node).await.is_ok());
    for mut socket in silent {
        // Either end of the stream: it was dropped.
        let dropped = tokio::time::timeout(Duration::from_secs(20), socket.read(&mut [0])).await.unwrap();
        assert!(matches!(dropped, Ok(0) | Err(_)), "{dropped:?}");
    }
}

/// More than have a place at once, who would keep theirs for 7 s: so long nobody else was let in. Of the four the first goes after
/// 1.4 s, and one more each 0.35 s.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_say_nothing_give_way_to_others_long_before_their_time_is_over() {
    let node = Node::with(
        peer(1, 1),
        LinkConfig { proof_timeout: Duration::from_secs(7), unproven_max: 4, ..config() },
    );
    let mut silent = silent(&node, 6).await;
    // It is the third to find a place, and gives up after 5 s.
    let honest = Node::start(2);
    let link = honest.connect(&node).await.unwrap();
    assert_eq!(link.call(ECHO, vec![1], soon()).await, Ok(vec![1]));
    let dropped = tokio::time::timeout(Duration::from_secs(5), silent[0].read(&mut [0])).await.unwrap();
    assert!(matches!(dropped, Ok(0) | Err(_)), "{dropped:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn random_bytes_to_the_port_end_the_connection_and_nothing_else() {
    let node = Node::start(1);
    let mut state = 0x1234_5678_9abc_def0_u64;
    for round in 0..64_usize {
        let mut bytes = vec![0_u8; 1 + round * 17];
        for byte in &mut bytes {
            // xorshift: reproducible, and not the protocol.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state.to_le_bytes()[3];
        }
        if round % 2 == 0 && bytes.len() > 8 {
            bytes[..8].copy_from_slice(b"TDLH\x01\0\x01\0");
        }
        let mut socket = TcpStream::connect(node.links.addresses()[0]).await.unwrap();
        // It may be closed while we write.
        let _ = socket.write_all(&bytes).await;
        // Nothing more comes, so that nobody waits for the rest.
        let _ = socket.shutdown().await;
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
        assert!(answer.len() <= GREETING_BYTES, "{} bytes were told", answer.len());
    }
    let honest = Node::start(2);
    let link = honest.connect(&node).await.unwrap();
    assert_eq!(link.call(ECHO, vec![1], soon()).await, Ok(vec![1]));
    assert_eq!(node.seen.events(), [Event::Connected(honest.me)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_incarnation_at_the_address_is_a_peer_that_is_gone() {
    let (a, b) = (Node::start(1), Node::with(peer(2, 8), config()));
    let gone = a.links.connect(peer(2, 7), &b.links.addresses(), soon()).await.unwrap_err();
    assert!(matches!(gone, Error::PeerGone { peer: who, .. } if who == peer(2, 7)), "{gone}");
    assert!(a.links.link(b.me).is_none());
    assert_eq!(b.seen.events(), []);
    assert!(a.connect(&b).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_incarnation_takes_the_place_of_an_earlier_one() {
    let node = Node::start(1);
    let earlier = Node::with(peer(2, 1), config());
    let link = earlier.connect(&node).await.unwrap();
    let later = Node::with(peer(2, 2), config());
    later.connect(&node).await.unwrap();
    let (old, new) = (earlier.me, later.me);
    let wanted = [Event::Connected(old), Event::Disconnected(old), Event::Connected(new)];
    node.seen.wait_for(&Event::Connected(new)).await;
    assert_eq!(node.seen.events(), wanted);
    assert!(link.call(ECHO, Vec::new(), soon()).await.is_err());
    let refused = earlier.connect(&node).await.unwrap_err();
    assert!(matches!(refused, Error::PeerGone { .. }), "{refused}");
}

/// The earlier one is halted, say: its process lives, and would go on with what it was granted.
#[tokio::test(flavor = "multi_thread")]
async fn a_later_incarnation_that_is_dialled_takes_the_place_of_an_earlier_one_too() {
    let node = Node::start(1);
    let earlier = Node::with(peer(2, 1), config());
    let link = earlier.connect(&node).await.unwrap();
    let later = Node::with(peer(2, 2), config());
    node.connect(&later).await.unwrap();
    let (old, new) = (earlier.me, later.me);
    let wanted = [Event::Connected(old), Event::Disconnected(old), Event::Connected(new)];
    assert_eq!(node.seen.events(), wanted);
    assert!(link.call(ECHO, Vec::new(), soon()).await.is_err());
    let refused = node.connect(&earlier).await.unwrap_err();
    assert!(matches!(refused, Error::PeerGone { .. }), "{refused}");
    assert_eq!(node.seen.events(), wanted);
    assert!(node.links.link(new).is_some() && node.links.link(old).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_at_the_address_is_said_with_the_address() {
    let a = Node::start(1);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = a.links.connect(peer(2, 1), &[free], soon()).await.unwrap_err();
    assert!(refused.to_string().contains(&free.to_string()), "{refused}");
    let nowhere = a.links.connect(peer(2, 1), &[], soon()).await.unwrap_err();
    assert!(matches!(nowhere, Error::Unreachable { .. }), "{nowhere}");
}

#[tokio::test(flavor = "multi_thread")]
async fn both_families_and_brackets_reach_one_listener() {
    let listen = vec!["[::]:0".parse().unwrap()];
    let b = Node::with(peer(2, 1), LinkConfig { listen, ..config() });
    let port = b.links.addresses()[0].port();
    for (member, host) in [(3, "127.0.0.1"), (4, "[::1]")] {
        let a = Node::start(member);
        let address = format!("{host}:{port}").parse().unwrap();
        let link = a.links.connect(b.me, &[address], soon()).await.unwrap();
        assert_eq!(link.call(ECHO, vec![1], soon()).await, Ok(vec![1]), "{host}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_dead_does_not_hide_one_that_answers() {
    let (a, b) = (Node::start(1), Node::start(2));
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let addresses = [free, b.links.addresses()[0]];
    assert!(a.links.connect(b.me, &addresses, soon()).await.is_ok());
}
