//! A cache as many are built: a server that is asked over a unix socket where an object lies in memory that is shared.
//!
//! It does as little as such a server can: one thread, one look-up, one answer of 8 bytes to each question of 16.

use std::collections::HashMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;

use super::error::Error;

/// Length of a key.
const KEY: usize = 16;
/// Answer for a key that is not there.
const NOWHERE: u64 = u64::MAX;

/// The server, and the client's end of its socket.
pub(super) struct Rpc {
    stream: UnixStream,
    server: Option<JoinHandle<()>>,
}

impl Rpc {
    /// Starts a server, on the CPUs of this thread, that knows where each key lies.
    ///
    /// # Errors
    /// When there is no socket.
    pub(super) fn start(places: HashMap<[u8; KEY], u64>) -> Result<Self, Error> {
        let (stream, other) =
            UnixStream::pair().map_err(Error::file("make", Path::new("a pair of sockets")))?;
        let server = std::thread::spawn(move || serve(other, &places));
        Ok(Self { stream, server: Some(server) })
    }

    /// Asks where a key lies.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(super) fn locate(&mut self, key: &str) -> Result<usize, Error> {
        let mut answer = [0; 8];
        let asked = self.stream.write_all(key.as_bytes()).and_then(|()| self.stream.read_exact(&mut answer));
        asked.map_err(Error::file("ask", Path::new("the server")))?;
        let place = u64::from_le_bytes(answer);
        let known = usize::try_from(place).ok().filter(|_| place != NOWHERE);
        known.ok_or_else(|| Error::Invalid("an object is gone".to_owned()))
    }
}

fn serve(mut stream: UnixStream, places: &HashMap<[u8; KEY], u64>) {
    let mut key = [0; KEY];
    loop {
        match stream.read_exact(&mut key) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return, // the client has ended
        }
        let place = places.get(&key).copied().unwrap_or(NOWHERE);
        if stream.write_all(&place.to_le_bytes()).is_err() {
            return;
        }
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        // The server's read ends with it.
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_says_where_a_key_lies_and_ends_with_its_client() {
        let mut rpc = Rpc::start(HashMap::from([(*b"0000000000000001", 4096)])).unwrap();
        assert_eq!(rpc.locate("0000000000000001").unwrap(), 4096);
        assert!(rpc.locate("0000000000000002").is_err());
        assert_eq!(rpc.locate("0000000000000001").unwrap(), 4096);
    }
}
