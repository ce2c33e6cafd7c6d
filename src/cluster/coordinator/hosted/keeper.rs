//! The keeper: has what is agreed on, serves it to followers, and keeps it in a file before it says that it is so.
//!
//! Invariants
//! - One thread at most waits for the disk of the file, whoever asks; what is changed meanwhile is written together.
//! - What the file does not hold nobody goes by, this member neither.
//! - What the disk refuses is written again, once in each lease, until it is taken: nobody waits for it any more.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::error::Error;
use tidefs_engine::link::{Answer, Channel, Link, LinkEvents, Links};
use tidefs_engine::types::{Incarnation, MemberId, PeerId};
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use super::wire::{Answered, Ask, CHANNEL, FileState, KEEPER, Told, decode, encode};
use super::{HostedSettings, StartError, another_cluster, file};
use crate::cluster::coordinator::embedded::{Agreed, Embedded};
use crate::cluster::coordinator::{
    Asked, Coordinator, CoordinatorError, Made, NamespaceChange, Namespaces, Reachability, Start,
};
use crate::cluster::member::{Member, View};

/// A start of a member that is registered.
type Registered = (MemberId, Incarnation);

/// The coordinator, at the member that hosts it.
#[derive(Debug)]
pub(super) struct Keeper {
    kept: Arc<Kept>,
    /// Held: followers are served while it lives.
    _links: Arc<Links>,
}

/// What is agreed on, and who is told.
#[derive(Debug)]
struct Kept {
    /// This member's own handle.
    own: Embedded,
    file: PathBuf,
    lease: Duration,
    /// What the file holds, once it was written. Held to write it, in a thread that may wait.
    written: Mutex<Option<Agreed>>,
    /// Held to change it.
    waiting: Mutex<Waiting>,
    /// What this member itself goes by.
    views: watch::Sender<View>,
    namespaces: watch::Sender<Namespaces>,
    /// What followers are told. Held to queue it to them, so that none hears of a later state first.
    told: Mutex<Telling>,
    /// Held for a look-up.
    followers: Mutex<HashMap<PeerId, Follower>>,
    /// Whose holders were lost, and when the latest of them was: the lease runs from there. Held for a look-up.
    lost: Mutex<HashMap<Registered, Instant>>,
    runtime: Handle,
    weak: Weak<Self>,
}

/// Who waits until what is agreed on by now is kept.
#[derive(Debug, Default)]
struct Waiting {
    tell: Vec<oneshot::Sender<Result<(), String>>>,
    /// A task sees to that, since then.
    since: Option<Instant>,
    /// It was refused, and a task waits to write it again.
    is_refused: bool,
}

/// All that the file holds, as it is told to each follower.
#[derive(Debug)]
struct Telling {
    file: FileState,
    /// A [`Told`]: written once, and not once for each of them.
    body: Vec<u8>,
}

/// A process that asks, while its link is up.
#[derive(Clone, Debug)]
struct Follower {
    handle: Arc<Embedded>,
    link: Arc<Link>,
}

impl Keeper {
    /// Goes on with what an earlier start kept, and listens at `address`.
    pub(super) fn start(
        settings: HostedSettings,
        address: SocketAddr,
        runtime: &Handle,
    ) -> Result<Self, StartError> {
        let unread = |source| StartError::File { file: settings.file.clone(), source };
        let agreed = file::load(&settings.file).map_err(unread)?;
        let before: Vec<_> = agreed.members.values().map(|member| (member.id, member.incarnation)).collect();
        let (start, found) = (file::drawn().map_err(unread)?, agreed.changes());
        let state = FileState { start, found, kept: found };
        let own = Embedded::resumed(agreed);
        let (agreed, view, namespaces) = own.agreed();
        let body = encode(&Told::of(agreed.cluster, &view, &namespaces, state))
            .map_err(|words| unread(io::Error::other(words)))?;
        let kept = Arc::new_cyclic(|weak| Kept {
            own,
            file: settings.file.clone(),
            lease: settings.lease,
            written: Mutex::default(),
            waiting: Mutex::default(),
            views: watch::Sender::new(view),
            namespaces: watch::Sender::new(namespaces),
            told: Mutex::new(Telling { file: state, body }),
            followers: Mutex::default(),
            lost: Mutex::default(),
            runtime: runtime.clone(),
            weak: Weak::clone(weak),
        });
        let events = Arc::clone(&kept) as Arc<dyn LinkEvents>;
        let links = Links::start(runtime.clone(), settings.link(vec![address]), KEEPER, events)
            .map_err(|source| StartError::Listen { address: address.to_string(), source })?;
        for registered in before {
            kept.forget_unless_back(registered);
        }
        Ok(Self { kept, _links: links })
    }

    /// What this member's own handle changes is so when it is kept. It is not undone when that takes too long, or is refused:
    /// whoever asked is told so, and the change comes into force with the disk.
    async fn kept<T>(
        &self,
        what: &'static str,
        deadline: Instant,
        change: Asked<'_, T>,
    ) -> Result<T, CoordinatorError> {
        let changed = change.await?;
        match tokio::time::timeout_at(deadline.into(), self.kept.keep()).await {
            Ok(Ok(())) => Ok(changed),
            Ok(Err(reason)) => Err(CoordinatorError::Refused { what, reason: reason.into() }),
            Err(_) => Err(self.kept.away(what)),
        }
    }
}

impl Kept {
    /// Waits until what is agreed on by now is kept, and all followers are told.
    async fn keep(self: &Arc<Self>) -> Result<(), String> {
        let (tell, told) = oneshot::channel();
        let begins = {
            let mut waiting = self.waiting.lock();
            waiting.tell.push(tell);
            let begins = waiting.since.is_none();
            waiting.since.get_or_insert_with(Instant::now);
            begins
        };
        if begins {
            let kept = Arc::clone(self);
            self.runtime.spawn(async move { while kept.keep_for_all().await {} });
        }
        told.await.unwrap_or_else(|_| Err("the coordinator ends".to_owned()))
    }

    /// Does so once for all who wait. Returns whether anybody did.
    async fn keep_for_all(self: &Arc<Self>) -> bool {
        let waiting = {
            let mut waiting = self.waiting.lock();
            waiting.since = (!waiting.tell.is_empty()).then(Instant::now);
            std::mem::take(&mut waiting.tell)
        };
        if waiting.is_empty() {
            return false;
        }
        let kept = Arc::clone(self);
        let written = self.runtime.spawn_blocking(move || kept.write()).await;
        let written = written.unwrap_or_else(|error| Err(error.to_string()));
        match &written {
            Ok(true) => self.tell_all(),
            // All were told of it when it was written.
            Ok(false) => {}
            Err(_) => self.write_again(),
        }
        let kept = written.map(|_| ());
        for tell in waiting {
            // Who has given up does not listen.
            let _ = tell.send(kept.clone());
        }
        true
    }

    /// Has what was refused written once more after a while. Who asked for it was told, and may not come again.
    fn write_again(&self) {
        if std::mem::replace(&mut self.waiting.lock().is_refused, true) {
            return;
        }
        let (weak, lease) = (Weak::clone(&self.weak), self.lease);
        self.runtime.spawn(async move {
            tokio::time::sleep(lease).await;
            if let Some(kept) = weak.upgrade() {
                // Before that is tried: if it is refused this begins anew.
                kept.waiting.lock().is_refused = false;
                drop(kept.keep().await);
            }
        });
    }

    /// What is asked is not kept in time.
    fn away(&self, what: &'static str) -> CoordinatorError {
        let since = self.waiting.lock().since;
        let reason = format!("the disk of `{}` takes too long", self.file.display());
        CoordinatorError::Away {
            what,
            away: since.map(|since| since.elapsed()).unwrap_or_default(),
            reason: reason.into(),
        }
    }

    /// Writes what is agreed on to the file, unless that holds it. Returns whether it did. Waits.
    fn write(&self) -> Result<bool, String> {
        let mut written = self.written.lock();
        if written.as_ref().is_some_and(|written| self.own.has_agreed_on(written)) {
            // Somebody asked, was registered again, or left twice.
            return Ok(false);
        }
        let (agreed, view, namespaces) = self.own.agreed();
        let state = FileState { kept: agreed.changes(), ..self.told.lock().file };
        let body = encode(&Told::of(agreed.cluster, &view, &namespaces, state))?;
        file::store(&self.file, &agreed).map_err(|error| {
            let reason = format!("cannot write `{}`: {error}", self.file.display());
            tracing::error!(
                reason,
                "what was asked of the coordinator is not in force until the disk takes it"
            );
            reason
        })?;
        *self.told.lock() = Telling { file: state, body };
        if view.number > self.views.borrow().number {
            self.views.send_replace(view);
        }
        if namespaces.revision > self.namespaces.borrow().revision {
            self.namespaces.send_replace(namespaces);
        }
        *written = Some(agreed);
        Ok(true)
    }

    fn tell_all(&self) {
        let links: Vec<_> =
            self.followers.lock().values().map(|follower| Arc::clone(&follower.link)).collect();
        let told = self.told.lock();
        let untold: Vec<_> = links.into_iter().filter(|link| !tell(link, &told)).collect();
        drop(told);
        untold.iter().for_each(|link| link.close());
    }

    /// Ends a registration when the lease is over, unless somebody holds it by then or has held it in between.
    fn forget_unless_back(&self, registered: Registered) {
        let (weak, lease, lost_at) = (Weak::clone(&self.weak), self.lease, Instant::now());
        self.lost.lock().insert(registered, lost_at);
        self.runtime.spawn(async move {
            tokio::time::sleep_until((lost_at + lease).into()).await;
            let is_over = weak.upgrade().is_some_and(|kept| kept.end_lease(registered, lost_at));
            if is_over && let Some(kept) = weak.upgrade() {
                // Logged. What is refused is written again.
                drop(kept.keep().await);
            }
        });
    }

    /// Whoever asked by a link that has ended before it was answered has its registration looked after by nobody else.
    fn end_unless_linked(&self, handle: &Arc<Embedded>) {
        let is_it = |follower: &Follower| Arc::ptr_eq(&follower.handle, handle);
        let is_linked = self.followers.lock().values().any(is_it);
        if let Some(registered) = handle.registered().filter(|_| !is_linked) {
            self.forget_unless_back(registered);
        }
    }

    /// Ends a registration whose holder was lost at `lost_at`. Returns whether it stood until now.
    fn end_lease(&self, registered: Registered, lost_at: Instant) -> bool {
        let was_last = {
            let mut lost = self.lost.lock();
            let was_last = lost.get(&registered) == Some(&lost_at);
            if was_last {
                lost.remove(&registered);
            }
            was_last
        };
        let is_held = || {
            let followers = self.followers.lock();
            let mut held = followers.values().map(|follower| follower.handle.registered());
            self.own.registered() == Some(registered) || held.any(|held| held == Some(registered))
        };
        let ends = was_last && !is_held() && self.own.forget(registered);
        if ends {
            tracing::info!(member = %registered.0, "a member's lease ran out");
        }
        ends
    }

    /// Does what a follower asks.
    async fn answer(self: Arc<Self>, handle: Arc<Embedded>, ask: Ask) -> Result<Answered, String> {
        // Nothing here waits for anybody.
        let soon = Instant::now();
        let cluster = self.own.cluster();
        let done = match ask {
            Ask::Begin { member } => handle
                .begin(member, soon)
                .await
                .map(|start| Answered::Started { cluster: start.cluster, incarnation: start.incarnation }),
            Ask::Register { cluster: theirs, .. } if theirs != cluster => {
                return Err(another_cluster(theirs, cluster));
            }
            Ask::Register { member, .. } => {
                let registered = handle.register(*member, soon).await.map(|()| Answered::Done);
                self.end_unless_linked(&handle);
                registered
            }
            Ask::Leave => handle.leave(soon).await.map(|()| Answered::Done),
            Ask::Change { name, change } => handle
                .change_namespace(&name, change, soon)
                .await
                .map(|revision| Answered::Agreed { revision }),
            Ask::Look { name } => {
                handle.find_namespace(&name, soon).await.map(|made| Answered::Found { made })
            }
            Ask::Remove { name, made } => {
                let made = made.unwrap_or(Made::ANY);
                handle.remove_namespace(&name, made, soon).await.map(|revision| Answered::Agreed { revision })
            }
        };
        match done {
            Ok(answered) => self.keep().await.map(|()| answered),
            Err(CoordinatorError::Superseded { latest, .. }) => Ok(Answered::Superseded { latest }),
            Err(CoordinatorError::TooMany) => Ok(Answered::TooMany),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Tells one follower. Returns whether that could be done: one that could not be told is to come again, and is told then.
fn tell(link: &Link, told: &Telling) -> bool {
    let sent = link.notify(CHANNEL, told.body.clone());
    if let Err(error) = &sent {
        tracing::warn!(%error, follower = %link.remote(), "a member could not be told what is agreed on");
    }
    sent.is_ok()
}

impl LinkEvents for Kept {
    fn connected(&self, link: &Arc<Link>) {
        let follower = Follower { handle: Arc::new(self.own.another()), link: Arc::clone(link) };
        let told = self.told.lock();
        self.followers.lock().insert(link.peer(), follower);
        let is_told = tell(link, &told);
        drop(told);
        if !is_told {
            link.close();
        }
    }

    fn disconnected(&self, peer: PeerId, _cause: &Error) {
        let lost = self.followers.lock().remove(&peer);
        let registered = lost.and_then(|follower| follower.handle.registered());
        if let (Some(registered), Some(kept)) = (registered, self.weak.upgrade()) {
            kept.forget_unless_back(registered);
        }
    }

    fn request(&self, link: &Arc<Link>, _channel: Channel, body: Vec<u8>) -> Answer {
        let follower = self.followers.lock().get(&link.peer()).cloned();
        let (Some(kept), Some(follower)) = (self.weak.upgrade(), follower) else {
            return Answer::Now(Err("the coordinator ends".to_owned()));
        };
        match decode::<Ask>(&body) {
            Ok(ask) => Answer::Later(Box::pin(async move {
                kept.answer(follower.handle, ask).await.and_then(|answered| encode(&answered))
            })),
            Err(words) => Answer::Now(Err(words)),
        }
    }

    fn notified(&self, link: &Arc<Link>, _channel: Channel, _body: Vec<u8>) {
        tracing::debug!(follower = %link.remote(), "a member tells what a coordinator does not listen to");
    }
}

impl Coordinator for Keeper {
    fn begin(&self, member: MemberId, deadline: Instant) -> Asked<'_, Start> {
        Box::pin(self.kept("starting a member", deadline, self.kept.own.begin(member, deadline)))
    }

    fn register(&self, member: Member, deadline: Instant) -> Asked<'_, ()> {
        Box::pin(self.kept("joining the cluster", deadline, self.kept.own.register(member, deadline)))
    }

    fn leave(&self, deadline: Instant) -> Asked<'_, ()> {
        Box::pin(self.kept("leaving the cluster", deadline, self.kept.own.leave(deadline)))
    }

    fn views(&self) -> watch::Receiver<View> {
        self.kept.views.subscribe()
    }

    fn namespaces(&self) -> watch::Receiver<Namespaces> {
        self.kept.namespaces.subscribe()
    }

    fn change_namespace(&self, name: &str, change: NamespaceChange, deadline: Instant) -> Asked<'_, u64> {
        let changed = self.kept.own.change_namespace(name, change, deadline);
        Box::pin(self.kept("a change of a directory's policy, owner or mode", deadline, changed))
    }

    fn find_namespace(&self, name: &str, deadline: Instant) -> Asked<'_, Made> {
        let found = self.kept.own.find_namespace(name, deadline);
        Box::pin(self.kept("removing a namespace", deadline, found))
    }

    fn remove_namespace(&self, name: &str, made: Made, deadline: Instant) -> Asked<'_, u64> {
        let removed = self.kept.own.remove_namespace(name, made, deadline);
        Box::pin(self.kept("removing a namespace", deadline, removed))
    }

    fn reachability(&self) -> Reachability {
        Reachability::Reached
    }
}

#[cfg(test)]
mod tests;
