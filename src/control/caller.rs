//! Whether who asked is still there to be answered.
//!
//! A daemon that was stopped, or had no thread free, meets requests whose callers gave up and told their users so. What they
//! asked for is not done.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Weak};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tidefs_control_api::{ApiError, ErrorCode};
use tokio::net::UnixStream;
use tracing::info;

/// The end of a caller's connection, for as long as that is served.
#[derive(Clone, Debug, Default)]
pub(super) struct Caller(Weak<OwnedFd>);

impl Caller {
    /// The caller at the other end of `stream`, until the second value is dropped.
    pub(super) fn of(stream: &UnixStream) -> std::io::Result<(Self, Arc<OwnedFd>)> {
        let connection = Arc::new(stream.as_fd().try_clone_to_owned()?);
        Ok((Self(Arc::downgrade(&connection)), connection))
    }

    /// Makes sure that somebody waits for the answer.
    ///
    /// # Errors
    /// The caller has left; nobody reads this.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        if self.0.upgrade().is_some_and(|connection| !has_hung_up(&connection)) {
            return Ok(());
        }
        info!("a request is not carried out: its caller has left");
        Err(ApiError::new(ErrorCode::Timeout, "the caller has left"))
    }
}

/// Whether the other end was closed, both ways. One that only has nothing more to say still reads.
fn has_hung_up(connection: &OwnedFd) -> bool {
    let mut looked_at = [PollFd::new(connection.as_fd(), PollFlags::empty())];
    let looked = poll(&mut looked_at, PollTimeout::ZERO);
    let [found] = looked_at;
    looked.is_ok() && found.revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream as StdStream;

    use super::*;

    #[test]
    fn a_caller_is_there_until_it_closes_its_end_or_is_served_no_more() {
        let (mut caller, end) = StdStream::pair().unwrap();
        let connection = Arc::new(OwnedFd::from(end));
        let seen = Caller(Arc::downgrade(&connection));
        seen.check().unwrap();
        caller.write_all(b"a request").unwrap();
        caller.shutdown(Shutdown::Write).unwrap();
        seen.check().unwrap();
        drop(caller);
        seen.check().unwrap_err();
        let (_caller, end) = StdStream::pair().unwrap();
        let connection = Arc::new(OwnedFd::from(end));
        let seen = Caller(Arc::downgrade(&connection));
        drop(connection);
        seen.check().unwrap_err();
    }
}
