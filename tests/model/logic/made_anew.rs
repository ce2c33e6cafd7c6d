//! A namespace that is removed on one host while another one makes it anew: the answer to the removal is lost, and it is asked for
//! once more.

use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;
use tidefs::cluster::coordinator::embedded::Embedded;
use tidefs::cluster::coordinator::{
    Asked, Coordinator, Made, NamespaceChange, Namespaces, Reachability, Start,
};
use tidefs::cluster::{self, ClusterId, LinkState, View};
use tidefs_engine::types::MemberId;
use tokio::sync::watch;

use super::member::Member;
use crate::common::wait;

/// A coordinator that loses its answer to each removal, which is asked for once more as soon as that is let.
#[derive(Debug)]
struct Lossy {
    inner: Embedded,
    asks_again: watch::Receiver<bool>,
}

impl Coordinator for Lossy {
    fn begin(&self, member: MemberId, deadline: Instant) -> Asked<'_, Start> {
        self.inner.begin(member, deadline)
    }

    fn register(&self, member: cluster::Member, deadline: Instant) -> Asked<'_, ()> {
        self.inner.register(member, deadline)
    }

    fn leave(&self, deadline: Instant) -> Asked<'_, ()> {
        self.inner.leave(deadline)
    }

    fn views(&self) -> watch::Receiver<View> {
        self.inner.views()
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
        let (name, mut asks_again) = (name.to_owned(), self.asks_again.clone());
        Box::pin(async move {
            self.inner.remove_namespace(&name, made, deadline).await?;
            // Who would let it is gone: it is not held back.
            drop(asks_again.wait_for(|may| *may).await);
            self.inner.remove_namespace(&name, made, deadline).await
        })
    }

    fn reachability(&self) -> Reachability {
        self.inner.reachability()
    }
}

/// Whether that host has it, or has not, in the end.
fn has(member: &mut Member, is_there: bool) -> bool {
    wait::until(wait::HANG, || (member.logic.resolve(0, "kv") != Err(Errno::ENOENT)) == is_there)
}

#[test]
fn a_namespace_that_another_host_makes_anew_is_not_taken_by_an_rmdir_of_which_the_answer_is_lost() {
    let coordinator = Embedded::new(ClusterId(7));
    let (may_ask, asks_again) = watch::channel(false);
    let lossy = Arc::new(Lossy { inner: coordinator.another(), asks_again });
    let mut removes = Member::start(1, coordinator.another(), lossy, |_| ());
    let mut makes = Member::start(2, coordinator.another(), Arc::new(coordinator.another()), |_| ());
    for member in [&removes, &makes] {
        member.sees(1, |link| matches!(link, LinkState::Up));
        member.has_announced();
    }
    removes.make_namespace("kv");
    assert!(has(&mut makes, true), "it is of all members");
    let removal = removes.remove_namespace("kv");
    assert!(has(&mut removes, false) && has(&mut makes, false), "what was agreed on about it ended");
    makes.make_namespace("kv");
    may_ask.send_replace(true);
    removes.has_removed(removal);
    assert!(has(&mut removes, true) && has(&mut makes, true), "it was made since");
    assert_eq!(removes.told().1, 0);
    assert!(coordinator.namespaces().borrow().records.contains_key("kv"));
}
