//! A real etcd for tests, on loopback and with its data in a folder of its own.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::runtime::Handle;

use super::{Etcd, EtcdSettings};

/// A real etcd on loopback, with its data in a folder of its own.
#[derive(Debug)]
pub(super) struct Server {
    process: Child,
    port: u16,
    peer_port: u16,
    /// What it is told beside where it listens.
    options: Vec<String>,
    pub(super) data: tempfile::TempDir,
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn spawn(data: &Path, port: u16, peer_port: u16, options: &[String]) -> Child {
    let [client, peer] = [port, peer_port].map(|port| format!("http://127.0.0.1:{port}"));
    Command::new("etcd")
        .arg("--data-dir")
        .arg(data.join("etcd"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .args(options)
        // As a variable: etcd 3.3 does not know the option, and refuses those that it does not know.
        .env("ETCD_UNSAFE_NO_FSYNC", "true")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd is installed (packaging/dev.sh deps)")
}

impl Server {
    pub(super) fn start() -> Self {
        Self::start_with(Vec::new())
    }

    /// One that is told `options`, too.
    pub(super) fn start_with(options: Vec<String>) -> Self {
        let data = tempfile::tempdir().unwrap();
        let (port, peer_port) = (free_port(), free_port());
        let process = spawn(data.path(), port, peer_port, &options);
        Self { process, port, peer_port, options, data }
    }

    pub(super) fn settings(&self, cluster: &str) -> EtcdSettings {
        EtcdSettings {
            endpoints: vec![format!("http://127.0.0.1:{}", self.port)],
            cluster: cluster.to_owned(),
            user: None,
            tls: None,
            lease: Duration::from_secs(2),
            call_timeout: Duration::from_secs(2),
        }
    }

    pub(super) fn handle(&self) -> Etcd {
        Etcd::start(self.settings("test"), &Handle::current())
    }

    pub(super) fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub(super) fn start_again(&mut self) {
        self.process = spawn(self.data.path(), self.port, self.peer_port, &self.options);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
