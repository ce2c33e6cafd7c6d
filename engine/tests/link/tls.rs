//! Links with encryption.
#![cfg(feature = "tls")]

use std::fs;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tidefs_engine::error::Error;
use tidefs_engine::link::{LinkConfig, TlsConfig};

use crate::common::{ECHO, Node, config, peer, soon};

const NAME: &str = "tidefs.test";

/// Writes an authority and a certificate that it signed.
fn certified(folder: &Path, authority: &Issuer<'_, KeyPair>, authority_pem: &str) -> TlsConfig {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
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
        name: NAME.to_owned(),
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
async fn plain_and_encrypted_engines_do_not_connect() {
    let folder = tempfile::tempdir().unwrap();
    let (issuer, pem) = authority();
    let encrypted = LinkConfig { tls: Some(certified(folder.path(), &issuer, &pem)), ..config() };
    let (a, b) = (Node::start(1), Node::with(peer(2, 1), encrypted));
    assert!(a.connect(&b).await.is_err());
    assert!(b.connect(&a).await.is_err());
}

#[test]
fn a_missing_file_is_named() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let nowhere = Path::new("/nowhere/authority.pem").to_owned();
    let tls = TlsConfig {
        authority: nowhere.clone(),
        certificate: nowhere.clone(),
        key: nowhere,
        name: NAME.to_owned(),
    };
    let config = LinkConfig { tls: Some(tls), ..config() };
    let events = std::sync::Arc::new(crate::common::Recorder::default());
    let refused =
        tidefs_engine::link::Links::start(runtime.handle().clone(), config, peer(1, 1), events).unwrap_err();
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused}");
    assert!(refused.to_string().contains("/nowhere/authority.pem"), "{refused}");
}
