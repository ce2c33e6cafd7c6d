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
use tidefs::datapath::Error;
use tidefs_engine::types::MemberId;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::member::Member;
use crate::common::wait;

/// A coordinator that loses its answer to each removal, which is asked for once more as soon as that is let, and that tells of
/// namespaces when it is let.
#[derive(Debug)]
struct Lossy {
    inner: Embedded,
    asks_again: watch::Receiver<bool>,
    told: watch::Receiver<Namespaces>,
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
        self.told.clone()
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

/// Two hosts, of which the first one's coordinator is [`Lossy`].
struct Hosts {
    coordinator: Embedded,
    removes: Member,
    makes: Member,
    may_ask: watch::Sender<bool>,
    tells: watch::Sender<Namespaces>,
}

impl Hosts {
    fn start() -> Self {
        let coordinator = Embedded::new(ClusterId(7));
        let ((may_ask, asks_again), (tells, told)) =
            (watch::channel(false), watch::channel(Namespaces::default()));
        let lossy = Arc::new(Lossy { inner: coordinator.another(), asks_again, told });
        let removes = Member::start(1, coordinator.another(), lossy, |_| ());
        let makes = Member::start(2, coordinator.another(), Arc::new(coordinator.another()), |_| ());
        for member in [&removes, &makes] {
            member.sees(1, |link| matches!(link, LinkState::Up));
            member.has_announced();
        }
        Self { coordinator, removes, makes, may_ask, tells }
    }

    /// The second host makes the namespace.
    fn make(&mut self) -> JoinHandle<()> {
        let making = self.makes.begin_to_make_namespace("kv");
        self.agreed(true);
        making
    }

    /// Waits until there is a record of it, or none.
    fn agreed(&self, is_there: bool) {
        let has_record = || self.coordinator.namespaces().borrow().records.contains_key("kv");
        assert!(wait::until(wait::HANG, || has_record() == is_there));
    }

    /// The first host hears of what there is by now.
    fn tell(&self) {
        self.tells.send_replace(self.coordinator.namespaces().borrow().clone());
    }

    /// The second host makes it, and the first one begins to remove it, for all.
    fn begin(&mut self) -> JoinHandle<Result<(), Error>> {
        let making = self.make();
        self.tell();
        self.makes.ended(making);
        assert!(has(&mut self.removes, true), "it is of all members");
        let removal = self.removes.remove_namespace("kv");
        self.agreed(false);
        assert!(has(&mut self.makes, false), "what was agreed on about it ended");
        removal
    }

    /// The first host asks for the removal once more, and hears of all.
    fn end(&mut self, removal: JoinHandle<Result<(), Error>>, making: JoinHandle<()>) -> Result<(), Error> {
        self.may_ask.send_replace(true);
        self.tell();
        self.makes.ended(making);
        let removed = self.removes.ended(removal);
        assert!(has(&mut self.removes, true) && has(&mut self.makes, true), "it was made since");
        assert_eq!(self.removes.told().1, 0);
        self.agreed(true);
        removed
    }
}

/// Whether that host has it, or has not, in the end.
fn has(member: &mut Member, is_there: bool) -> bool {
    wait::until(wait::HANG, || (member.logic.resolve(0, "kv") != Err(Errno::ENOENT)) == is_there)
}

#[test]
fn a_namespace_that_another_host_makes_anew_is_not_taken_by_an_rmdir_of_which_the_answer_is_lost() {
    let mut hosts = Hosts::start();
    let removal = hosts.begin();
    hosts.tell();
    assert!(has(&mut hosts.removes, false), "what was agreed on about it ended here, too");
    let making = hosts.make();
    hosts.end(removal, making).expect("what was there is removed");
}

#[test]
fn an_rmdir_says_not_empty_where_its_host_hears_of_the_end_and_of_what_was_made_anew_at_once() {
    let mut hosts = Hosts::start();
    let removal = hosts.begin();
    let making = hosts.make();
    assert!(matches!(hosts.end(removal, making), Err(Error::NotEmpty)));
}
