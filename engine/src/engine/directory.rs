//! Members by descriptors that are fetched from somewhere: a peer that was restarted is found again, once.
//!
//! Invariant: one call of [`Engine::connect_member`] fetches at most twice, the second time only when another process, or
//! none, was found where the first descriptor leads, and connects again only when the second names another incarnation.

use std::fmt;
use std::time::Instant;

use super::{Engine, PeerDescriptor};
use crate::error::Error;
use crate::types::{BoxFuture, MemberId, PeerId};

/// Where descriptors are published: etcd, a file, a table.
pub trait Directory: Send + Sync + fmt::Debug {
    /// What `member` has published last.
    ///
    /// # Errors
    /// [`Error::Unreachable`] when it has published nothing, or the directory does not answer.
    fn find(&self, member: MemberId) -> BoxFuture<'_, Result<PeerDescriptor, Error>>;
}

impl Engine {
    /// Connects to the process that is `member` now, and returns which incarnation that is. The descriptor is kept for as
    /// long as its connection lives; one that proves stale is fetched again, exactly once.
    ///
    /// # Errors
    /// As [`Engine::connect`], and what `directory` says.
    /// # Cancellation
    /// As [`Engine::connect`].
    pub async fn connect_member(
        &self,
        member: MemberId,
        directory: &dyn Directory,
        deadline: Instant,
    ) -> Result<PeerId, Error> {
        let kept = self.inner.members.lock().get(&member).cloned();
        let first = match kept {
            Some(descriptor) => descriptor,
            None => self.fetch(member, directory, deadline).await?,
        };
        let stale = match self.connect_and_keep(&first, deadline).await {
            Ok(()) => return Ok(first.id),
            Err(error @ (Error::PeerGone { .. } | Error::Unreachable { .. })) => error,
            Err(error) => return Err(error),
        };
        let second = self.fetch(member, directory, deadline).await?;
        if second.id == first.id {
            return Err(stale);
        }
        tracing::info!(old = %first.id, new = %second.id, "a peer was restarted");
        self.connect_and_keep(&second, deadline).await?;
        Ok(second.id)
    }

    /// Keeps a descriptor that leads to its peer, and no longer one that does not, or not in time.
    async fn connect_and_keep(&self, descriptor: &PeerDescriptor, deadline: Instant) -> Result<(), Error> {
        let connected = self.connect(descriptor, deadline).await;
        let member = descriptor.id.member;
        let mut members = self.inner.members.lock();
        // Who notices the end of the link after this look takes the descriptor out.
        if connected.is_ok() && self.inner.links.link(descriptor.id).is_some() {
            members.insert(member, descriptor.clone());
        } else if members.get(&member) == Some(descriptor) {
            members.remove(&member);
        }
        drop(members);
        connected
    }

    async fn fetch(
        &self,
        member: MemberId,
        directory: &dyn Directory,
        deadline: Instant,
    ) -> Result<PeerDescriptor, Error> {
        let found = tokio::time::timeout_at(deadline.into(), directory.find(member)).await;
        let descriptor = found.map_err(|_| Error::DeadlinePassed)??;
        if descriptor.id.member != member {
            return Err(Error::protocol(format!("the directory names {} as member {member}", descriptor.id)));
        }
        Ok(descriptor)
    }
}
