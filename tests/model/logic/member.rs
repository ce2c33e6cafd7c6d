//! What a host of a cluster does with what it is told between the rename of an object and its telling of that.

use std::sync::{Arc, Weak};
use std::time::Duration;

use nix::errno::Errno;
use tidefs::cluster::coordinator::Coordinator;
use tidefs::cluster::coordinator::embedded::Embedded;
use tidefs::cluster::{Cluster, ClusterConfig, ClusterId, Holder, Stamp};
use tidefs::datapath::{ClusterSide, Datapath, MemberSide, News};
use tidefs::namespace::Ino;
use tidefs_engine::types::{ByteCount, MemberId};
use tokio::runtime::Runtime;

use super::resent::publish;
use super::{Logic, Setup, caller};
use crate::system::{Open, System};

/// A host that is the only member of its cluster.
struct Member {
    logic: Logic,
    runtime: Runtime,
    side: Arc<MemberSide>,
}

impl Member {
    fn new() -> Self {
        let logic = Logic::new(Setup::of(ByteCount::mib(1)));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let datapath = logic.datapath();
        datapath.expect_cluster();
        let side = Arc::new(MemberSide::new(datapath, runtime.handle().clone()));
        let mut config = ClusterConfig::new(MemberId(1), "host");
        config.listen = vec![([127, 0, 0, 1], 0).into()];
        let coordinator: Arc<dyn Coordinator> = Arc::new(Embedded::new(ClusterId(7)));
        let holder: Weak<dyn Holder> = Arc::<MemberSide>::downgrade(&side);
        let started = Cluster::start(config, runtime.handle().clone(), coordinator, holder);
        let cluster = Arc::new(runtime.block_on(started).expect("a member"));
        let limit = Duration::from_secs(10);
        datapath.attach_cluster(ClusterSide::new(cluster, runtime.handle().clone(), limit, limit));
        Self { logic, runtime, side }
    }

    fn datapath(&self) -> &Arc<Datapath> {
        self.logic.datapath()
    }

    /// Makes an object of another file, and says what is to be told of it.
    fn publish(&mut self, seed: u64) -> News {
        publish(&mut self.logic, 0, seed);
        self.datapath().news_of(Ino::ROOT, b"k")
    }

    fn unlink(&mut self) -> News {
        let news = self.datapath().news_of_removal(Ino::ROOT, b"k");
        self.logic.unlink(0, "k").expect("unlink");
        news
    }

    fn tell(&self, news: News) {
        self.runtime.block_on(self.datapath().tell(news));
    }

    /// Another member replaced, or removed, what stands there.
    fn withdraw(&self, through: Stamp) {
        self.runtime.block_on(self.side.withdraw(b"k".to_vec(), through));
    }

    fn is_there(&mut self) -> bool {
        let found = self.logic.resolve(1, "k").map(drop);
        assert!(matches!(found, Ok(()) | Err(Errno::ENOENT)), "{found:?}");
        found.is_ok()
    }

    /// How often something was published and removed.
    fn told(&self) -> (u64, u64) {
        let telemetry = self.datapath().telemetry();
        (telemetry.catalog_publications.get(), telemetry.catalog_removals.get())
    }
}

/// Later than all that is sealed here.
fn much_later() -> Stamp {
    Stamp(u64::MAX / 2)
}

#[test]
fn what_nobody_was_told_of_yet_is_not_withdrawn_by_what_was_decided_before() {
    let mut member = Member::new();
    let news = member.publish(1);
    member.withdraw(much_later());
    assert!(member.is_there(), "what replaced it comes before it");
    member.tell(news);
    member.withdraw(much_later());
    assert!(!member.is_there(), "what replaces it comes after it");
}

#[test]
fn of_what_replaced_each_other_before_it_was_told_the_last_is_told_and_once() {
    for is_first_told_first in [true, false] {
        let mut member = Member::new();
        let mut all = [member.publish(1), member.publish(2)];
        if !is_first_told_first {
            all.reverse();
        }
        all.into_iter().for_each(|news| member.tell(news));
        assert_eq!(member.told(), (1, 0));
        member.withdraw(much_later());
        assert!(!member.is_there(), "it was told");
    }
}

#[test]
fn a_removal_that_is_told_late_takes_nothing_that_came_after_it() {
    let mut member = Member::new();
    let first = member.publish(1);
    member.tell(first);
    let removal = member.unlink();
    member.logic.advance(Duration::from_millis(1), false);
    let second = member.publish(2);
    member.tell(second);
    member.tell(removal);
    assert_eq!(member.told(), (2, 0));
    assert!(member.is_there());
}

#[test]
fn a_removal_that_is_told_late_takes_nothing_that_is_being_closed_since() {
    let mut member = Member::new();
    let first = member.publish(1);
    member.tell(first);
    let removal = member.unlink();
    member.logic.advance(Duration::from_millis(1), false);
    let create = Open { read: false, write: true, create: true, exclusive: false, truncate: false };
    let writer = member.logic.open(0, "k", create).expect("create");
    member.logic.write(0, writer, 0, &[7; 50_000]).expect("write");
    member.logic.flush(0, writer);
    let (handle, _) = member.logic.handle(writer);
    let promise = member.datapath().news_of_close(&caller(0), handle);
    member.tell(promise);
    member.tell(removal);
    assert_eq!(member.told(), (2, 0));
    member.logic.close(0, writer);
    assert!(member.is_there());
}

#[test]
fn what_was_removed_before_it_was_told_is_not_told_after_its_removal() {
    let mut member = Member::new();
    let first = member.publish(1);
    let removal = member.unlink();
    member.tell(removal);
    member.tell(first);
    assert_eq!(member.told(), (0, 1));
}
