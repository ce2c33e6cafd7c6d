//! A coordinator that a member does not always hear: its watch hangs, and when it goes on what came in between is compacted to
//! what is. Or it does not answer: what it was asked last is done when it does again.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidefs_engine::types::MemberId;
use tokio::sync::watch;

use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::coordinator::{
    Asked, Coordinator, CoordinatorError, Made, NamespaceChange, Namespaces, Reachability, Start,
};
use crate::cluster::{Member, View};

/// A coordinator that a member does not hear while it is deaf. What the member asks is done.
#[derive(Debug)]
pub(super) struct Deaf {
    pub(super) inner: Embedded,
    views: watch::Sender<View>,
    is_deaf: watch::Sender<bool>,
    /// It does not answer.
    away: Mutex<Option<Away>>,
    /// Another process starts as a member just before that is registered.
    has_rival: AtomicBool,
    /// How often it was asked to take the member out.
    leaves: AtomicU64,
}

/// What it was asked since it does not answer.
#[derive(Debug, Default)]
struct Away {
    /// To register a member, or to take it out.
    last: Option<Option<Member>>,
    was_asked_to_leave: bool,
}

impl Deaf {
    pub(super) fn new(inner: Embedded) -> Arc<Self> {
        let (views, is_deaf) = (watch::Sender::new(View::default()), watch::Sender::new(false));
        let (mut said, mut deafness) = (inner.views(), is_deaf.subscribe());
        let deaf = Arc::new(Self {
            inner,
            views,
            is_deaf,
            away: Mutex::default(),
            has_rival: AtomicBool::new(false),
            leaves: AtomicU64::new(0),
        });
        let told = Arc::downgrade(&deaf);
        tokio::spawn(async move {
            while let Some(deaf) = told.upgrade() {
                let view = said.borrow_and_update().clone();
                if !*deafness.borrow_and_update() && view.number > deaf.views.borrow().number {
                    deaf.views.send_replace(view);
                }
                drop(deaf);
                let has_changed = tokio::select! {
                    biased;
                    changed = said.changed() => changed,
                    changed = deafness.changed() => changed,
                };
                if has_changed.is_err() {
                    return;
                }
            }
        });
        deaf
    }

    pub(super) fn set_deaf(&self, is_deaf: bool) {
        self.is_deaf.send_replace(is_deaf);
    }

    /// The next member that is registered is started by another process first.
    pub(super) fn meet_rival(&self) {
        self.has_rival.store(true, Ordering::Relaxed);
    }

    pub(super) fn leaves(&self) -> u64 {
        self.leaves.load(Ordering::Relaxed)
    }

    /// It answers no more, which nobody has noticed yet.
    pub(super) fn go_away(&self) {
        *self.away.lock() = Some(Away::default());
    }

    /// It answers again, and does what it was asked last.
    pub(super) async fn come_back(&self, deadline: Instant) {
        let asked = self.away.lock().take().and_then(|away| away.last);
        match asked {
            Some(Some(member)) => self.inner.register(member, deadline).await.unwrap(),
            Some(None) => self.inner.leave(deadline).await.unwrap(),
            None => {}
        }
    }

    pub(super) fn was_asked_to_leave(&self) -> bool {
        self.away.lock().as_ref().is_some_and(|away| away.was_asked_to_leave)
    }

    /// Notes what is asked, if it does not answer.
    fn ask(&self, wish: Option<&Member>) -> Result<(), CoordinatorError> {
        let mut away = self.away.lock();
        let Some(away) = away.as_mut() else { return Ok(()) };
        away.was_asked_to_leave |= wish.is_none();
        away.last = Some(wish.cloned());
        let reason = "it does not answer".into();
        Err(CoordinatorError::Away { what: "a test", away: Duration::ZERO, reason })
    }
}

impl Coordinator for Deaf {
    fn begin(&self, member: MemberId, deadline: Instant) -> Asked<'_, Start> {
        self.inner.begin(member, deadline)
    }

    fn register(&self, member: Member, deadline: Instant) -> Asked<'_, ()> {
        match self.ask(Some(&member)) {
            Ok(()) if self.has_rival.swap(false, Ordering::Relaxed) => Box::pin(async move {
                self.inner.another().begin(member.id, deadline).await?;
                self.inner.register(member, deadline).await
            }),
            Ok(()) => self.inner.register(member, deadline),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    fn leave(&self, deadline: Instant) -> Asked<'_, ()> {
        self.leaves.fetch_add(1, Ordering::Relaxed);
        match self.ask(None) {
            Ok(()) => self.inner.leave(deadline),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    fn views(&self) -> watch::Receiver<View> {
        self.views.subscribe()
    }

    fn namespaces(&self) -> watch::Receiver<Namespaces> {
        self.inner.namespaces()
    }

    fn change_namespace(&self, name: &str, change: NamespaceChange, deadline: Instant) -> Asked<'_, u64> {
        self.inner.change_namespace(name, change, deadline)
    }

    fn find_namespace(&self, name: &str, deadline: Instant) -> Asked<'_, Made> {
        self.inner.find_namespace(name, deadline)
    }

    fn remove_namespace(&self, name: &str, made: Made, deadline: Instant) -> Asked<'_, u64> {
        self.inner.remove_namespace(name, made, deadline)
    }

    fn reachability(&self) -> Reachability {
        self.inner.reachability()
    }
}
