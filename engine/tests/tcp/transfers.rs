//! Bytes that arrive, over every setting that changes how they travel.

use tidefs_engine::error::Error;
use tidefs_engine::link::LinkConfig;
use tidefs_engine::transport::Direction;
use tidefs_engine::transport::tcp::TcpConfig;

use crate::batch::Batch;
use crate::common::Node;

const MIB: u64 = 1 << 20;

/// Both directions of 8 MiB in pieces of many lengths.
async fn moves_everything(link: LinkConfig, config: TcpConfig) {
    let (a, b) = (Node::with(1, link.clone(), config.clone()), Node::with(2, link, config));
    let endpoint = a.connect(b.me, &b.links.addresses()).await;
    let (near, far) = (a.share(1, 8 * MIB, 1), b.share(2, 8 * MIB, 2));
    let lengths = [1, 63, 64, 4096, 65_537, MIB - 1, MIB];
    for direction in [Direction::Read, Direction::Write] {
        let mut batch = Batch::new();
        let mut offset = 0;
        for length in lengths.iter().cycle() {
            let length = (*length).min(8 * MIB - offset);
            batch.add(direction, near.local(offset, length), far.remote(offset));
            offset += length;
            if offset == 8 * MIB {
                break;
            }
        }
        tokio::task::block_in_place(|| {
            batch.post(&endpoint);
            batch.expect_done();
        });
        match direction {
            Direction::Read => near.expect(2, "what was read is not what was there"),
            Direction::Write => far.expect(7, "what was written is not what was sent"),
        }
        near.fill(7);
    }
    let mut empty = Batch::new();
    empty.add(Direction::Read, near.local(0, 0), far.remote(0));
    empty.add(Direction::Write, near.local(0, 0), far.remote(8 * MIB));
    tokio::task::block_in_place(|| {
        empty.post(&endpoint);
        empty.expect_done();
    });
    assert_eq!(endpoint.load()[0].operations, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_of_every_length_move_both_ways() {
    moves_everything(LinkConfig::default(), TcpConfig::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_and_eight_carry_the_same() {
    for connections in [1, 8] {
        moves_everything(LinkConfig::default(), TcpConfig { connections, ..TcpConfig::default() }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn checked_payloads_move_too() {
    moves_everything(LinkConfig::default(), TcpConfig { payload_checksum: true, ..TcpConfig::default() })
        .await;
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread")]
async fn encrypted_payloads_move_too() {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["tidefs.test".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let issuer_pem = params.self_signed(&key).unwrap().pem();
    let issuer = rcgen::Issuer::new(params, key);
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["tidefs.test".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let tls = tidefs_engine::link::TlsConfig {
        authority: write("authority.pem", &issuer_pem),
        certificate: write("certificate.pem", &certificate.pem()),
        key: write("key.pem", &key.serialize_pem()),
        name: "tidefs.test".to_owned(),
    };
    moves_everything(LinkConfig { tls: Some(tls), ..LinkConfig::default() }, TcpConfig::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_over_the_limit_is_refused_here() {
    let (a, b) = (Node::start(1), Node::start(2));
    let endpoint = a.connect(b.me, &b.links.addresses()).await;
    let (near, far) = (a.share(1, 2 * MIB, 1), b.share(2, 2 * MIB, 2));
    let mut batch = Batch::new();
    batch.add(Direction::Read, near.local(0, MIB + 1), far.remote(0));
    tokio::task::block_in_place(|| {
        batch.post(&endpoint);
        assert!(matches!(batch.results()[..], [Err(Error::TooLarge { .. })]));
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_region_registered_anew_is_not_reached_by_an_old_key() {
    use tidefs_engine::transport::Transport;
    let (a, b) = (Node::start(1), Node::start(2));
    let endpoint = a.connect(b.me, &b.links.addresses()).await;
    let (near, old) = (a.share(1, MIB, 1), b.share(2, MIB, 2));
    b.tcp.unregister(old.id).await;
    let new = b.share(2, MIB, 3);
    let mut batch = Batch::new();
    batch.add(Direction::Read, near.local(0, MIB), old.remote(0));
    batch.add(Direction::Write, near.local(0, MIB), old.remote(0));
    tokio::task::block_in_place(|| {
        batch.post(&endpoint);
        let gone = Err(Error::NoSuchRegion { region: old.id });
        assert_eq!(batch.results(), [gone.clone(), gone]);
    });
    near.expect(1, "here");
    new.expect(3, "there");
}
