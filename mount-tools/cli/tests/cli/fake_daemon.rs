//! A daemon that has one answer for each route, and remembers what it was asked.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tidefs_control_api::lock::InstanceLock;

use crate::host::Host;

/// Answers until the test ends; the thread ends with the test's process.
#[derive(Debug)]
pub(crate) struct FakeDaemon {
    asked: Arc<Mutex<Vec<String>>>,
    _lock: InstanceLock,
}

impl FakeDaemon {
    /// Serves the mount of `host`. `answers` are (method and route, status, body).
    pub(crate) fn serve(host: &Host, answers: &[(&str, u16, Value)]) -> Self {
        let bodies = answers.iter().map(|(route, status, body)| (*route, *status, body.to_string()));
        Self::serve_text(host, bodies)
    }

    /// The same with bodies that need not be JSON.
    pub(crate) fn serve_text<'a>(
        host: &Host,
        answers: impl IntoIterator<Item = (&'a str, u16, String)>,
    ) -> Self {
        Self::serve_by(host, answers, whole)
    }

    /// The same of a daemon that dies after it has sent `answers`, each of which was to go on.
    pub(crate) fn serve_and_die<'a>(
        host: &Host,
        answers: impl IntoIterator<Item = (&'a str, u16, String)>,
    ) -> Self {
        Self::serve_by(host, answers, one_chunk)
    }

    fn serve_by<'a>(
        host: &Host,
        answers: impl IntoIterator<Item = (&'a str, u16, String)>,
        sent: fn(u16, &str) -> String,
    ) -> Self {
        let instance = host.instance();
        std::fs::create_dir_all(instance.dir()).unwrap();
        let lock = InstanceLock::acquire(&instance.lock()).unwrap();
        let listener = UnixListener::bind(instance.control_socket()).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let answers: HashMap<String, (u16, String)> =
            answers.into_iter().map(|(route, status, body)| (route.to_owned(), (status, body))).collect();
        let notes = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &answers, &notes, sent);
            }
        });
        Self { asked, _lock: lock }
    }

    /// Requests so far: `METHOD target body`.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn whole(status: u16, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}

/// Without the chunk of no bytes that ends it.
fn one_chunk(status: u16, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n")
}

fn answer(
    stream: UnixStream,
    answers: &HashMap<String, (u16, String)>,
    notes: &Mutex<Vec<String>>,
    sent: fn(u16, &str) -> String,
) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap() == 0 {
            return;
        }
    }
    let length = head
        .lines()
        .find_map(|line| {
            line.to_ascii_lowercase().strip_prefix("content-length:").map(|n| n.trim().to_owned())
        })
        .map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    notes
        .lock()
        .unwrap()
        .push(format!("{method} {target} {}", String::from_utf8_lossy(&body)).trim().to_owned());
    let route = format!("{method} {}", target.split('?').next().unwrap());
    let (status, body) = answers.get(&route).unwrap_or_else(|| panic!("{route} was not expected"));
    // A caller that left before the end of an answer is what some tests are about.
    let _ = reader.get_mut().write_all(sent(*status, body).as_bytes());
}
