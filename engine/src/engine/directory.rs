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
        let stale = match self.connect(&first, deadline).await {
            Ok(()) => return Ok(first.id),
            Err(error @ (Error::PeerGone { .. } | Error::Unreachable { .. })) => error,
            Err(error) => return Err(error),
        };
        let second = self.fetch(member, directory, deadline).await?;
        if second.id == first.id {
            self.inner.members.lock().remove(&member);
            return Err(stale);
        }
        tracing::info!(old = %first.id, new = %second.id, "a peer was restarted");
        self.connect(&second, deadline).await.inspect_err(|_| {
            self.inner.members.lock().remove(&member);
        })?;
        Ok(second.id)
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
        self.inner.members.lock().insert(member, descriptor.clone());
        Ok(descriptor)
    }
}
