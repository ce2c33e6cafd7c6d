//! A real etcd on loopback, with its data in a folder of its own.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;

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

/// Two ports that nobody has, for a moment.
fn free_ports() -> (u16, u16) {
    let held = [(); 2].map(|()| TcpListener::bind(("127.0.0.1", 0)).expect("a free port"));
    let [one, two] = held.each_ref().map(|held| held.local_addr().expect("its address").port());
    (one, two)
}

impl Etcd {
    /// A server that answers.
    pub(crate) fn start() -> Self {
        Self::start_with("http", Vec::new())
    }

    /// A server that is reached by `scheme` and told `options` too.
    pub(crate) fn start_with(scheme: &'static str, options: Vec<String>) -> Self {
        let data = tempfile::tempdir().expect("a temporary directory");
        let mut etcd = Self { process: None, port: 0, peer_port: 0, data, options, scheme };
        loop {
            (etcd.port, etcd.peer_port) = free_ports();
            // It ends by itself where somebody else took a port meanwhile.
            if etcd.starts() {
                return etcd;
            }
        }
    }

    /// `count` servers that make one etcd.
    pub(crate) fn start_many(count: usize) -> Vec<Self> {
        let names: Vec<String> = (0..count).map(|index| format!("server-{index}")).collect();
        let ports: Vec<_> = (0..count).map(|_| free_ports()).collect();
        let urls =
            names.iter().zip(&ports).map(|(name, (_, peer))| format!("{name}=http://127.0.0.1:{peer}"));
        let all = urls.collect::<Vec<_>>().join(",");
        let mut servers: Vec<Self> = names
            .iter()
            .zip(ports)
            .map(|(name, (port, peer_port))| Self {
                process: None,
                port,
                peer_port,
                data: tempfile::tempdir().expect("a temporary directory"),
                // What is said last counts.
                options: ["--name", name, "--initial-cluster", &all].map(str::to_owned).into(),
                scheme: "http",
            })
            .collect();
        // Each answers when most are there.
        thread::scope(|scope| {
            servers.iter_mut().for_each(|server| drop(scope.spawn(|| server.start_again())));
        });
        servers
    }

    /// The port on which it answers.
    pub(crate) fn port(&self) -> u16 {
        self.port
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
        assert!(
            self.starts(),
            "etcd ended at once: somebody else has port {} or {}?",
            self.port,
            self.peer_port
        );
    }

    /// Starts it. Returns whether it answers; it does not when it ended.
    #[track_caller]
    fn starts(&mut self) -> bool {
        let (client, peer) = (self.endpoint(), format!("http://127.0.0.1:{}", self.peer_port));
        let mut process = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.data.path().join(format!("etcd-{}", self.port)))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            // As a variable: etcd 3.3 does not know the option, and refuses those that it does not know.
            .env("ETCD_UNSAFE_NO_FSYNC", "true")
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd is installed (packaging/dev.sh deps)");
        let port = self.port;
        let mut has_ended = false;
        let is_decided = wait::until(wait::HANG, || {
            has_ended = process.try_wait().expect("a child").is_some();
            has_ended || TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        self.process = Some(process);
        assert!(is_decided, "etcd does not answer on {port}");
        !has_ended
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.stop();
    }
}
