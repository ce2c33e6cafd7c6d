//! The task that holds a follower's link to the keeper: it makes one after the other, and registers by each whom its process
//! wants to be registered.
//!
//! Invariant: it hosts a keeper only before it has heard of any, and then follows that.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidefs_engine::error::Error;
use tidefs_engine::link::{Link, Links};
use tokio::runtime::Handle;

use super::super::keeper::Keeper;
use super::super::wire::{Answered, Ask, KEEPER};
use super::super::{WhoKeeps, host, who_keeps};
use super::{Heard, Wish, ask_by};
use crate::cluster::coordinator::{CoordinatorError, Reachability};

/// Pause after a link that was lost or not made; doubles up to [`LONGEST_PAUSE`].
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl Heard {
    /// Holds one link after the other, until the task is aborted.
    pub(super) async fn reach_for_ever(self: Arc<Self>, links: Arc<Links>) {
        let mut pause = FIRST_PAUSE;
        // Once it is there it serves the others, and this process by a link like theirs.
        let mut keeper = None;
        loop {
            match self.reach(&links, &mut keeper).await {
                Ok(link) => {
                    pause = FIRST_PAUSE;
                    let mut links = self.link.subscribe();
                    self.link.send_replace(Some(Arc::clone(&link)));
                    if !link.is_up() {
                        // Its end was told before.
                        self.link.send_replace(None);
                    }
                    // The sender is a field of `self`.
                    let _ = links.wait_for(Option::is_none).await;
                }
                Err(reason) => self.note_lost(reason.into()),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Makes a link, and registers by it whom this process wants to be registered.
    async fn reach(&self, links: &Links, keeper: &mut Option<Keeper>) -> Result<Arc<Link>, String> {
        let address = &self.settings.address;
        let deadline = Instant::now() + self.settings.call_timeout;
        let resolved = tokio::time::timeout_at(deadline.into(), tokio::net::lookup_host(address)).await;
        let resolved = resolved.map_err(|_| format!("the name in `{address}` is not resolved in time"))?;
        let addresses: Vec<_> = resolved.map_err(|error| format!("{address}: {error}"))?.collect();
        if keeper.is_none() {
            *keeper = self.keep(&addresses).await?;
        }
        let mut told = self.told.subscribe();
        let link = links.connect(KEEPER, &addresses, deadline).await;
        let link = link.map_err(|error| self.not_reached(&error))?;
        // The keeper tells what is agreed on first.
        let is_told = tokio::time::timeout_at(deadline.into(), told.changed()).await;
        let refused = told.borrow().1.as_ref().map(ToString::to_string);
        if let Some(reason) =
            is_told.map_or(Some("it does not say what is agreed on".to_owned()), |_| refused)
        {
            link.close();
            return Err(reason);
        }
        let Wish { cluster, member } = self.wish.lock().clone();
        let mut superseded = None;
        if let (Some(cluster), Some(member)) = (cluster, member) {
            let (id, ours) = (member.id, member.incarnation);
            let ask = Ask::Register { cluster, member: Box::new(member) };
            match ask_by(&link, &ask, deadline).await {
                Ok(Answered::Superseded { latest }) => {
                    superseded = Some(CoordinatorError::Superseded { member: id, ours, latest });
                }
                Ok(_) => {}
                Err(error) => {
                    link.close();
                    return Err(in_words(error));
                }
            }
        }
        self.reachability.send_modify(|reachability| reachability.note_answer(superseded.as_ref()));
        Ok(link)
    }

    /// Becomes the keeper if this host has one of the addresses by now, which it had not when this daemon started.
    ///
    /// Who has heard of a keeper knows that the address is of another host. Should it come here, what begins here would be
    /// another cluster than the one that this process joined: that is for somebody to decide who restarts it.
    ///
    /// # Errors
    /// In words, why it cannot although it has the address.
    async fn keep(&self, addresses: &[SocketAddr]) -> Result<Option<Keeper>, String> {
        if self.is_on_this_host.load(Ordering::Relaxed) || self.told.borrow().0 > 0 {
            return Ok(None);
        }
        let address = match who_keeps(addresses.iter().copied()) {
            WhoKeeps::This(address) => address,
            // As on all hosts but one, whenever the keeper is away.
            WhoKeeps::Another => return Ok(None),
            WhoKeeps::Neighbour => {
                self.is_on_this_host.store(true, Ordering::Relaxed);
                return Ok(None);
            }
        };
        let (settings, runtime) = (self.settings.clone(), Handle::current());
        let hosted = tokio::task::spawn_blocking(move || host(&settings, address, &runtime)).await;
        let reason = match hosted {
            Ok(Ok(Some(keeper))) => {
                tracing::info!(%address, "this host has the address by now: this member coordinates its cluster");
                return Ok(Some(keeper));
            }
            // Whose process it is the next attempt finds, if there is one.
            Ok(Ok(None)) => return Ok(None),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        let is_known = matches!(
            &*self.reachability.borrow(),
            Reachability::Away { reason: before, .. } if **before == *reason
        );
        if !is_known {
            tracing::error!(reason, "this member would coordinate its cluster, and cannot");
        }
        Err(reason)
    }

    fn not_reached(&self, error: &Error) -> String {
        let address = &self.settings.address;
        match address.rsplit_once(':') {
            Some((_, port)) if self.is_on_this_host.load(Ordering::Relaxed) => format!(
                "{error}; {address} was taken by a process of this host before this daemon could listen there: if that is no \
                 tidefsd of this cluster (`ss -ltnp 'sport = :{port}'` shows it), end it, or name another cluster.coordinator \
                 on all members"
            ),
            _ => error.to_string(),
        }
    }
}

fn in_words(error: Error) -> String {
    match error {
        Error::Refused { cause } => cause.to_string(),
        error => error.to_string(),
    }
}
