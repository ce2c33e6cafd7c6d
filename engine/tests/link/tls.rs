//! Links with encryption.
#![cfg(feature = "tls")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tidefs_engine::error::Error;
use tidefs_engine::link::{LinkConfig, TlsConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{ECHO, Node, config, peer, soon};

const NAME: &str = "tidefs.test";

/// Writes an authority and a certificate that it signed.
fn certified(folder: &Path, authority: &Issuer<'_, KeyPair>, authority_pem: &str) -> TlsConfig {
    certified_as(&[NAME], folder, authority, authority_pem)
}

/// [`certified`] for these names. Whom it dials is to bear the first of them.
fn certified_as(
    names: &[&str],
    folder: &Path,
    authority: &Issuer<'_, KeyPair>,
    authority_pem: &str,
) -> TlsConfig {
    let key = KeyPair::generate().unwrap();
    let params =
        CertificateParams::new(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()).unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path
    };
    TlsConfig {
        authority: write("authority.pem", authority_pem),
        certificate: write("certificate.pem", &certificate.pem()),
        key: write("key.pem", &key.serialize_pem()),
        name: names[0].to_owned(),
    }
}

fn authority() -> (Issuer<'static, KeyPair>, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).unwrap().pem();
    (Issuer::new(params, key), pem)
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_every_length_work_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    let (issuer, pem) = authority();
    let encrypted = LinkConfig { tls: Some(certified(folder.path(), &issuer, &pem)), ..config() };
    let (a, b) = (Node::with(peer(1, 1), encrypted.clone()), Node::with(peer(2, 1), encrypted));
    let link = a.connect(&b).await.unwrap();
    for length in [0, 1, 16 << 10, 300_000, 4 << 20] {
        let body: Vec<u8> = (0..=250).cycle().take(length).collect();
        let answer = link.call(ECHO, body.clone(), soon()).await.unwrap();
        assert!(answer == body, "a body of {length} bytes came back different");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_another_authority_is_refused_by_both_ends() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let encrypted = |folder: &Path| {
        let (issuer, pem) = authority();
        LinkConfig { tls: Some(certified(folder, &issuer, &pem)), ..config() }
    };
    let (a, b) =
        (Node::with(peer(1, 1), encrypted(ours.path())), Node::with(peer(2, 1), encrypted(theirs.path())));
    for (from, to) in [(&a, &b), (&b, &a)] {
        let refused = from.connect(to).await.unwrap_err();
        assert!(matches!(refused, Error::Unproven { .. }), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_dials_with_a_certificate_of_the_authority_for_another_name_is_let_in_nowhere() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (issuer, pem) = authority();
    let encrypted = |names: &[&str], folder: &Path| {
        let tls = Some(certified_as(names, folder, &issuer, &pem));
        LinkConfig { tls, ..config() }
    };
    let member = Node::with(peer(1, 1), encrypted(&[NAME, "other.test"], ours.path()));
    let stranger = Node::with(peer(2, 1), encrypted(&["other.test"], theirs.path()));
    stranger.connect(&member).await.unwrap_err();
    let refused = member.connect(&stranger).await.unwrap_err();
    assert!(matches!(refused, Error::Unproven { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_and_encrypted_engines_do_not_connect() {
    let folder = tempfile::tempdir().unwrap();
    let (issuer, pem) = authority();
    let encrypted = LinkConfig { tls: Some(certified(folder.path(), &issuer, &pem)), ..config() };
    let (a, b) = (Node::start(1), Node::with(peer(2, 1), encrypted));
    assert!(a.connect(&b).await.is_err());
    assert!(b.connect(&a).await.is_err());
}

/// Twice as many end so as the runtime has threads: none of them may be held by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_that_ends_its_stream_in_the_handshake_is_dropped_and_holds_no_thread() {
    let folder = tempfile::tempdir().unwrap();
    let (issuer, pem) = authority();
    let encrypted = LinkConfig { tls: Some(certified(folder.path(), &issuer, &pem)), ..config() };
    let (a, b) = (Node::with(peer(1, 1), encrypted.clone()), Node::with(peer(2, 1), encrypted));
    // How a ClientHello begins.
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3];
    let mut strangers = Vec::new();
    for said in [&hello[..0], &hello[..], &hello[..0], &hello[..]] {
        let mut stranger = TcpStream::connect(b.links.addresses()[0]).await.unwrap();
        stranger.write_all(said).await.unwrap();
        stranger.shutdown().await.unwrap();
        strangers.push(stranger);
    }
    assert!(a.connect(&b).await.is_ok());
    let limit = Duration::from_secs(20);
    for mut stranger in strangers {
        let mut rest = Vec::new();
        // A reset says as much as the end of the stream.
        let _ = tokio::time::timeout(limit, stranger.read_to_end(&mut rest)).await.expect("it was dropped");
    }
    tokio::time::timeout(limit, b.links.close()).await.expect("nothing is left that does not end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_ends_its_stream_in_the_handshake_has_proved_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (issuer, pem) = authority();
    let encrypted = LinkConfig { tls: Some(certified(folder.path(), &issuer, &pem)), ..config() };
    let a = Node::with(peer(1, 1), encrypted);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listening = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let heard = socket.read(&mut [0; 4096]).await.unwrap();
        socket.shutdown().await.unwrap();
        (heard, socket)
    });
    let refused = a.links.connect(peer(2, 1), &[address], soon()).await.unwrap_err();
    assert!(matches!(refused, Error::Unproven { .. }), "{refused}");
    assert!(refused.to_string().contains("ended in the handshake"), "{refused}");
    assert!(listening.await.unwrap().0 > 0, "a ClientHello was heard");
}

fn refusal(tls: TlsConfig) -> String {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = LinkConfig { tls: Some(tls), ..config() };
    let events = std::sync::Arc::new(crate::common::Recorder::default());
    let refused =
        tidefs_engine::link::Links::start(runtime.handle().clone(), config, peer(1, 1), events).unwrap_err();
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused}");
    refused.to_string()
}

#[test]
fn an_authority_that_has_expired_signs_for_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let pem = params.self_signed(&key).unwrap().pem();
    let refused = refusal(certified(folder.path(), &Issuer::new(params, key), &pem));
    assert!(refused.contains("authority.pem") && refused.contains("expired"), "{refused}");
    // One beside it that has not expired is enough.
    let (issuer, good) = authority();
    let encrypted = certified(folder.path(), &issuer, &format!("{pem}{good}"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let encrypted = LinkConfig { tls: Some(encrypted), ..config() };
        let (a, b) = (Node::with(peer(1, 1), encrypted.clone()), Node::with(peer(2, 1), encrypted));
        assert!(a.connect(&b).await.is_ok());
    });
}

#[test]
fn a_certificate_that_does_not_bear_the_name_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let (issuer, pem) = authority();
    let tls =
        TlsConfig { name: NAME.to_owned(), ..certified_as(&["other.test"], folder.path(), &issuer, &pem) };
    let refused = refusal(tls);
    assert!(refused.contains("certificate.pem") && refused.contains(NAME), "{refused}");
}

#[test]
fn a_missing_file_is_named() {
    let nowhere = Path::new("/nowhere/authority.pem").to_owned();
    let tls = TlsConfig {
        authority: nowhere.clone(),
        certificate: nowhere.clone(),
        key: nowhere,
        name: NAME.to_owned(),
    };
    let refused = refusal(tls);
    assert!(refused.contains("/nowhere/authority.pem"), "{refused}");
}
