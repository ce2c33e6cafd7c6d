//! A peer that dies: its operations end, and only its.
//!
//! The peer is another process, this test program again, which serves one region and is killed. The two talk through
//! the child's standard input and output, in lines of hexadecimal.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::error::Error;
use tidefs_engine::memory::Access;
use tidefs_engine::transport::{BoxFuture, Direction, Exchange, Transport};

use crate::harness::{Memory, PATIENCE, Run, block_on, connect_as, open, pattern, peer};

const ROLE: &str = "TIDEFS_TEST_FABRIC_SERVER";
const LENGTH: u64 = 64 << 20;

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.trim().chars().collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap()).collect()
}

/// What the child runs; in a run of the tests it does nothing.
#[test]
fn server() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let fabric = open().unwrap();
    let memory = Memory::new(&fabric, 1, LENGTH, Access::ReadWrite);
    memory.fill(9);
    let say = |bytes: &[u8]| {
        println!("\ntidefs {}", to_hex(bytes));
        std::io::stdout().flush().unwrap();
    };
    say(&memory.key);
    for line in std::io::stdin().lines() {
        say(&fabric.answer(peer(1), &from_hex(&line.unwrap())).unwrap());
    }
}

#[derive(Debug)]
struct Server {
    child: Mutex<Child>,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "death::server", "--nocapture"])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pipes = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child: Mutex::new(child), pipes: Mutex::new(pipes) }
    }

    /// The next line that is not the test runner's.
    fn hear(&self) -> Vec<u8> {
        let mut pipes = self.pipes.lock();
        loop {
            let mut line = String::new();
            assert!(pipes.1.read_line(&mut line).unwrap() > 0, "the server has ended");
            if let Some(text) = line.strip_prefix("tidefs ") {
                return from_hex(text);
            }
        }
    }

    fn kill(&self) {
        let mut child = self.child.lock();
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Exchange for Server {
    fn ask(&self, request: Vec<u8>) -> BoxFuture<'_, Result<Vec<u8>, Error>> {
        writeln!(self.pipes.lock().0, "{}", to_hex(&request)).unwrap();
        let answer = self.hear();
        Box::pin(async move { Ok(answer) })
    }
}

#[test]
fn a_killed_peer_ends_its_operations_and_nobody_elses() {
    let (Some(near), Some(other)) = (open(), open()) else { return };
    let server = Server::start();
    let key: Arc<[u8]> = server.hear().into();
    let endpoint = block_on(near.connect(peer(2), &server)).unwrap();
    let local = Memory::new(&near, 1, LENGTH, Access::ReadWrite);
    let remote = Memory { key, ..local.clone() };
    let one = [(Direction::Read, 0, 0, 1 << 20)];
    assert_eq!(Run::start(&endpoint, &local, &remote, &one, PATIENCE).wait(), [Ok(())]);
    assert_eq!(local.bytes(0, 1 << 20), pattern(9, LENGTH)[..1 << 20]);

    let survivor = connect_as(&near, peer(1), &other, peer(3));
    let elsewhere = Memory::new(&other, 1, 1 << 20, Access::ReadWrite);
    for direction in [Direction::Read, Direction::Write] {
        let all: Vec<_> = (0..64).map(|index| (direction, index << 20, index << 20, 1 << 20)).collect();
        let run = Run::start(&endpoint, &local, &remote, &all, Duration::from_secs(5));
        if direction == Direction::Read {
            server.kill();
        }
        let began = Instant::now();
        let results = run.wait();
        assert!(results.iter().any(Result::is_err), "all ended well without a peer");
        // The deadline, the time to settle, and a busy machine.
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
    // The link of the engine would notice now.
    near.forget(peer(2));
    let results = Run::start(&endpoint, &local, &remote, &one, PATIENCE).wait();
    assert!(results[0].is_err());
    let read = [(Direction::Read, 0, 0, 4096)];
    let results = Run::start(&survivor, &local, &elsewhere, &read, PATIENCE).wait();
    // It may have been made anew meanwhile, if the dead peer's operations did not end by themselves.
    if results[0].is_err() {
        let again = connect_as(&near, peer(1), &other, peer(3));
        assert_eq!(Run::start(&again, &local, &elsewhere, &read, PATIENCE).wait(), [Ok(())]);
        println!("the endpoint was opened again");
    }
}
