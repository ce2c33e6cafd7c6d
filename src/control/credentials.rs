//! Who may ask: root, and the user that the daemon runs as.
//!
//! The kernel notes the caller's user when it connects (`SO_PEERCRED`, `unix(7)`), so nothing a caller sends
//! takes part. A user that the daemon's user namespace does not know shows as the overflow user and is refused.

use tokio::net::UnixStream;

/// The caller of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// Its user.
    pub(super) uid: u32,
    /// Its process, if that is in our process namespace.
    pub(super) pid: Option<i32>,
}

impl Peer {
    /// The caller at the other end of `stream`.
    pub(super) fn of(stream: &UnixStream) -> std::io::Result<Self> {
        let credentials = stream.peer_cred()?;
        Ok(Self { uid: credentials.uid(), pid: credentials.pid() })
    }

    /// Whether a daemon that runs as `own_uid` answers this caller.
    pub(super) const fn is_allowed(self, own_uid: u32) -> bool {
        self.uid == 0 || self.uid == own_uid
    }
}

#[cfg(test)]
mod tests {
    use super::Peer;

    #[test]
    fn root_and_the_daemons_user_are_allowed_and_nobody_else() {
        let peer = |uid| Peer { uid, pid: None };
        assert!(peer(0).is_allowed(0) && peer(0).is_allowed(1000) && peer(1000).is_allowed(1000));
        assert!(!peer(1000).is_allowed(0) && !peer(1001).is_allowed(1000) && !peer(65534).is_allowed(1000));
    }
}
