//! Hot path: one connected socket, with or without encryption, read and written without waiting.
//!
//! Every method but the few `async` ones returns at once; [`Stream::ready`] says when to try again. So one task drives
//! both directions, and any other thread may write while nothing else does. A [`DataStream`] is one that the runtime does
//! not watch any more: whoever has it does.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use socket2::SockRef;
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;

use super::tls::Session;

/// A socket that is read and written without waiting.
pub(super) trait Nonblocking {
    fn try_read(&self, target: &mut [u8]) -> io::Result<usize>;

    fn try_write(&self, sources: &[IoSlice<'_>]) -> io::Result<usize>;
}

impl Nonblocking for TcpStream {
    fn try_read(&self, target: &mut [u8]) -> io::Result<usize> {
        Self::try_read(self, target)
    }

    fn try_write(&self, sources: &[IoSlice<'_>]) -> io::Result<usize> {
        self.try_write_vectored(sources)
    }
}

impl Nonblocking for std::net::TcpStream {
    fn try_read(&self, target: &mut [u8]) -> io::Result<usize> {
        let mut socket = self;
        socket.read(target)
    }

    fn try_write(&self, sources: &[IoSlice<'_>]) -> io::Result<usize> {
        SockRef::from(self).send_vectored_with_flags(sources, libc::MSG_NOSIGNAL)
    }
}

/// A connected byte stream that the runtime does not watch.
#[derive(Debug)]
pub(crate) struct DataStream {
    socket: Arc<std::net::TcpStream>,
    tls: Option<Box<Session>>,
}

impl DataStream {
    /// The socket, when bytes on it are the bytes of the stream.
    pub(crate) fn as_plain(&self) -> Option<&Arc<std::net::TcpStream>> {
        self.tls.is_none().then_some(&self.socket)
    }

    /// As [`Stream::try_read`].
    ///
    /// # Errors
    /// As that.
    pub(crate) fn try_read(&self, target: &mut [u8]) -> io::Result<usize> {
        match &self.tls {
            Some(session) => session.try_read(&*self.socket, target),
            None => Nonblocking::try_read(&*self.socket, target),
        }
    }

    /// As [`Stream::try_write`].
    ///
    /// # Errors
    /// As that.
    pub(crate) fn try_write(&self, sources: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.tls {
            Some(session) => session.try_write(&*self.socket, sources),
            None => Nonblocking::try_write(&*self.socket, sources),
        }
    }

    /// As [`Stream::try_flush`].
    ///
    /// # Errors
    /// As that.
    pub(crate) fn try_flush(&self) -> io::Result<()> {
        self.tls.as_ref().map_or(Ok(()), |session| session.try_flush(&*self.socket))
    }

    /// Whether bytes of the peer, or its end, wait in the socket to be read.
    pub(crate) fn has_unread(&self) -> bool {
        // It was made not to wait by the runtime that it was taken from.
        !matches!(self.socket.peek(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Ends both directions; who waits for the socket is woken. The peer sees the end of the stream.
    pub(crate) fn shut_down(&self) {
        // A socket that is not connected any more has nothing to end.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

impl AsFd for DataStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A connected byte stream.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: TcpStream,
    tls: Option<Box<Session>>,
}

impl Stream {
    pub(super) fn plain(socket: TcpStream) -> Self {
        Self { socket, tls: None }
    }

    /// Encrypts what follows; returns when both ends have shown their certificates.
    pub(super) async fn encrypted(socket: TcpStream, session: Session) -> io::Result<Self> {
        let stream = Self { socket, tls: Some(Box::new(session)) };
        loop {
            let Some(session) = &stream.tls else { return Ok(stream) };
            match session.shake_hands(&stream.socket) {
                Ok(()) => return Ok(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let interest = match session.wants_write() {
                        true => Interest::READABLE | Interest::WRITABLE,
                        false => Interest::READABLE,
                    };
                    stream.socket.ready(interest).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes it out of the runtime. Called inside it.
    ///
    /// # Errors
    /// What the runtime says.
    pub(crate) fn detach(self) -> io::Result<DataStream> {
        Ok(DataStream { socket: Arc::new(self.socket.into_std()?), tls: self.tls })
    }

    /// Whether bytes on the socket are the bytes of the stream.
    pub(super) fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    pub(super) fn remote(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Reads what is there, at most `target.len()` bytes; 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; what recv(2) or the encryption says.
    pub(crate) fn try_read(&self, target: &mut [u8]) -> io::Result<usize> {
        match &self.tls {
            Some(session) => session.try_read(&self.socket, target),
            None => self.read_plain(target),
        }
    }

    /// A read that does not fill its target has emptied the socket: its readiness is dropped at once, which saves the
    /// system call that would find nothing.
    fn read_plain(&self, target: &mut [u8]) -> io::Result<usize> {
        let (room, mut found) = (target.len(), 0);
        let outcome = self.socket.try_io(Interest::READABLE, || {
            found = (&*SockRef::from(&self.socket)).read(target)?;
            match found {
                0 => Ok(0),
                count if count < room => Err(io::ErrorKind::WouldBlock.into()),
                count => Ok(count),
            }
        });
        if found > 0 { Ok(found) } else { outcome }
    }

    /// Sends what fits of `sources`, in order, and returns how many bytes that was.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits; what writev(2) or the encryption says.
    pub(crate) fn try_write(&self, sources: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.tls {
            Some(session) => session.try_write(&self.socket, sources),
            None => self.socket.try_write_vectored(sources),
        }
    }

    /// Hands to the socket what [`Stream::try_write`] took and the encryption still holds.
    ///
    /// # Errors
    /// `WouldBlock` when some is left.
    pub(crate) fn try_flush(&self) -> io::Result<()> {
        self.tls.as_ref().map_or(Ok(()), |session| session.try_flush(&self.socket))
    }

    /// Waits until one of `interest` may succeed. It may also return too early.
    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        self.socket.ready(interest).await
    }

    /// Fills `target`.
    pub(super) async fn read_exact(&self, target: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < target.len() {
            match self.try_read(&mut target[done..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.socket.readable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends all of `source`.
    pub(super) async fn write_all(&self, source: &[u8]) -> io::Result<()> {
        let mut done = 0;
        loop {
            let step = match source.len() - done {
                0 => self.try_flush().map(|()| 0),
                _ => self.try_write(&[IoSlice::new(&source[done..])]),
            };
            match step {
                Ok(0) if done == source.len() => return Ok(()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.socket.writable().await?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the other end has closed it, or reset it. False while there is something to read.
    pub(super) fn has_ended(&self) -> bool {
        let mut byte = [MaybeUninit::uninit()];
        match SockRef::from(&self.socket).peek(&mut byte) {
            Ok(count) => count == 0,
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        }
    }

    /// Ends both directions; who waits for the socket is woken. The peer sees the end of the stream.
    pub(super) fn shut_down(&self) {
        // A socket that is not connected any more has nothing to end.
        let _ = SockRef::from(&self.socket).shutdown(std::net::Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_stream_has_ended_when_the_other_end_has_closed_it_and_all_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut other = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let stream = Stream::plain(listener.accept().await.unwrap().0);
        assert!(!stream.has_ended());
        other.write_all(&[1, 2]).await.unwrap();
        drop(other);
        let mut read = [0; 2];
        stream.read_exact(&mut read[..1]).await.unwrap();
        assert!(!stream.has_ended());
        stream.read_exact(&mut read[1..]).await.unwrap();
        while !stream.has_ended() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(read, [1, 2]);
    }
}
