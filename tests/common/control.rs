//! The admin socket by hand: a minimal HTTP client, so that the tests do not trust the project's own one.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::wait::HANG;

/// The answer of the admin socket.
#[derive(Debug)]
pub(crate) struct Answer {
    /// HTTP status code.
    pub(crate) status: u16,
    /// Body with any chunked framing removed.
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The body as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; fails the test when it is none.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {}", self.text()))
    }
}

/// Sends one request and reads the answer until the server closes the connection.
pub(crate) fn request(
    socket: &Path,
    method: &str,
    target: &str,
    body: Option<&str>,
) -> std::io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(HANG))?;
    let body = body.unwrap_or("");
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let length = body.len();
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: tidefs\r\nConnection: close\r\n{kind}Content-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut raw = Vec::new();
    stream.read_to_end(&mut raw)?;
    parse(&raw)
        .ok_or_else(|| std::io::Error::other(format!("no HTTP answer: {:?}", String::from_utf8_lossy(&raw))))
}

/// Takes head and body of a raw HTTP/1.1 answer apart.
fn parse(raw: &[u8]) -> Option<Answer> {
    let end = raw.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&raw[..end]).ok()?.to_ascii_lowercase();
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    let body = &raw[end + 4..];
    let chunked = head.lines().any(|line| line.starts_with("transfer-encoding:") && line.contains("chunked"));
    let body = if chunked { unchunk(body)? } else { body.to_vec() };
    Some(Answer { status, body })
}

/// Removes the framing of a chunked body.
fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(end + 2..end + 2 + size)?);
        rest = rest.get(end + 2 + size + 2..)?;
    }
}
