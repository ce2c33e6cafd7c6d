//! A real etcd on loopback, with its data in a folder of its own.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::wait;

/// One server that ends with its value.
#[derive(Debug)]
pub(crate) struct Etcd {
    process: Option<Child>,
    port: u16,
    peer_port: u16,
    data: TempDir,
    /// What it is told beside where it listens.
    options: Vec<String>,
    scheme: &'static str,
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).expect("a free port").local_addr().expect("its address").port()
}

impl Etcd {
    /// A server that answers.
    pub(crate) fn start() -> Self {
        Self::start_with("http", Vec::new())
    }

    /// A server that is reached by `scheme` and told `options` too.
    pub(crate) fn start_with(scheme: &'static str, options: Vec<String>) -> Self {
        let data = tempfile::tempdir().expect("a temporary directory");
        let (port, peer_port) = (free_port(), free_port());
        let mut etcd = Self { process: None, port, peer_port, data, options, scheme };
        etcd.start_again();
        etcd
    }

    /// Where it answers.
    pub(crate) fn endpoint(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// Ends it, its data stay.
    pub(crate) fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts it on its data.
    #[track_caller]
    pub(crate) fn start_again(&mut self) {
        let (client, peer) = (self.endpoint(), format!("http://127.0.0.1:{}", self.peer_port));
        let process = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.data.path().join("etcd"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}"), "--unsafe-no-fsync"])
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd is installed (packaging/dev.sh deps)");
        self.process = Some(process);
        let port = self.port;
        wait::until(Duration::from_secs(20), || TcpStream::connect(("127.0.0.1", port)).is_ok());
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.stop();
    }
}
