//! Clusters that strangers do not get into: certificates between members, and towards etcd.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use crate::common::etcd::Etcd;
use crate::common::{Mount, pattern, wait};
use crate::fixture::{Hosts, publish};

/// A folder with an authority, what it signed for one holder, and a user of etcd.
struct Secrets {
    folder: TempDir,
}

impl Secrets {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
        let names = || vec!["tidefs".to_owned(), "127.0.0.1".to_owned()];
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(names()).expect("names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        write("authority.pem", &params.self_signed(&key).expect("a certificate").pem());
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(names()).expect("names");
        let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();
        write("certificate.pem", &certificate);
        write("key.pem", &key.serialize_pem());
        write("identity.pem", &format!("{certificate}{}", key.serialize_pem()));
        write("user", "root:a password with spaces\n");
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    /// `cluster.KEY=FILE` for each.
    fn options(&self, files: &[(&str, &str)]) -> Vec<String> {
        files.iter().map(|(key, file)| format!("cluster.{key}={}", self.path(file))).collect()
    }
}

fn etcdctl(etcd: &Etcd, secrets: &Secrets, arguments: &[&str]) {
    let status = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &etcd.endpoint(), "--dial-timeout", "20s", "--command-timeout", "20s"])
        .args(["--cacert", &secrets.path("authority.pem")])
        .args(["--cert", &secrets.path("certificate.pem"), "--key", &secrets.path("key.pem")])
        .args(arguments)
        .stdout(Stdio::null())
        .status()
        .expect("etcdctl is installed (packaging/dev.sh deps)");
    assert!(status.success(), "etcdctl {arguments:?}");
}

fn moves_an_object(hosts: &Hosts) {
    let bytes = pattern::object(3, 300_000);
    publish(&hosts.mounts[0].join("whole-0/key"), &bytes);
    assert_eq!(fs::read(hosts.mounts[1].join("whole-0/key")).expect("its bytes"), bytes);
}

#[test]
fn members_meet_by_an_etcd_that_asks_for_certificates_and_a_password() {
    let secrets = Secrets::new();
    let of_etcd =
        [("trusted-ca-file", "authority.pem"), ("cert-file", "certificate.pem"), ("key-file", "key.pem")];
    let mut options = vec!["--client-cert-auth".to_owned()];
    options.extend(of_etcd.iter().map(|(option, file)| format!("--{option}={}", secrets.path(file))));
    let etcd = Etcd::start_with("https", options);
    etcdctl(&etcd, &secrets, &["user", "add", "root:a password with spaces"]);
    etcdctl(&etcd, &secrets, &["user", "grant-role", "root", "root"]);
    etcdctl(&etcd, &secrets, &["auth", "enable"]);
    let options = secrets.options(&[
        ("etcd_authority", "authority.pem"),
        ("etcd_identity", "identity.pem"),
        ("etcd_user_file", "user"),
    ]);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    moves_an_object(&Hosts::start_by(etcd, 2, &options));
}

#[test]
fn members_with_certificates_move_bytes_and_who_has_none_sees_nothing() {
    let secrets = Secrets::new();
    let options = secrets.options(&[("tls_authority", "authority.pem"), ("tls_identity", "identity.pem")]);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let hosts = Hosts::start(2, &options);
    moves_an_object(&hosts);
    let endpoint = format!("cluster.etcd={}", hosts.endpoint());
    let stranger = Mount::start(&[&endpoint, "cluster.listen=127.0.0.1:0", "cluster.patience_ms=500"]);
    assert!(!stranger.join("whole-0/key").exists());
    assert!(Path::new(&hosts.mounts[1].join("whole-0/key")).exists());
    // Who asks a member is told why the stranger is not connected to.
    let status = || hosts.mounts[0].control_get("/v1/status").json();
    let tells_why = || {
        let members = status()["cluster"]["members"].as_array().cloned().unwrap_or_default();
        members.iter().any(|member| member["trouble"].is_string())
    };
    assert!(wait::until(wait::HANG, tells_why), "{}", status());
}
