//! A coordinator that a member does not always hear: its watch hangs, and when it goes on what came in between is compacted to
//! what is.

use std::sync::Arc;
use std::time::Instant;

use tidefs_engine::types::MemberId;
use tokio::sync::watch;

use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::coordinator::{Asked, Coordinator, NamespaceChange, Namespaces, Reachability, Start};
use crate::cluster::{Member, View};

/// A coordinator that a member does not hear while it is deaf. What the member asks is done.
#[derive(Debug)]
pub(super) struct Deaf {
    pub(super) inner: Embedded,
    views: watch::Sender<View>,
    is_deaf: watch::Sender<bool>,
}

impl Deaf {
    pub(super) fn new(inner: Embedded) -> Arc<Self> {
        let (views, is_deaf) = (watch::Sender::new(View::default()), watch::Sender::new(false));
        let (mut said, mut deafness) = (inner.views(), is_deaf.subscribe());
        let deaf = Arc::new(Self { inner, views, is_deaf });
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
}

impl Coordinator for Deaf {
    fn begin(&self, member: MemberId, deadline: Instant) -> Asked<'_, Start> {
        self.inner.begin(member, deadline)
    }

    fn register(&self, member: Member, deadline: Instant) -> Asked<'_, ()> {
        self.inner.register(member, deadline)
    }

    fn leave(&self, deadline: Instant) -> Asked<'_, ()> {
        self.inner.leave(deadline)
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

    fn remove_namespace(&self, name: &str, deadline: Instant) -> Asked<'_, u64> {
        self.inner.remove_namespace(name, deadline)
    }

    fn reachability(&self) -> Reachability {
        self.inner.reachability()
    }
}
