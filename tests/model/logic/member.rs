//! What a host of a cluster does with what it is told between the rename of an object and its telling of that.

use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use tidefs::cluster::coordinator::Coordinator;
use tidefs::cluster::coordinator::embedded::Embedded;
use tidefs::cluster::{Cluster, ClusterConfig, ClusterId, Facts, FileFacts, Found, Holder, LinkState, Stamp};
use tidefs::datapath::{ClusterSide, Datapath, Error, MemberSide, News};
use tidefs::namespace::{Ino, Name};
use tidefs_engine::types::{ByteCount, MemberId};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::resent::{CREATE, publish};
use super::{Logic, Setup, caller};
use crate::common::wait;
use crate::system::{Change, Open, System, Token};

pub(super) const TRUNCATE: Open =
    Open { read: false, write: true, create: false, exclusive: false, truncate: true };
pub(super) const WRITE: Open = Open { truncate: false, ..TRUNCATE };

/// Objects of others that a host shows beside those that the kernel knows.
const SHOWN_MAX: usize = 8;

fn config(id: u64) -> ClusterConfig {
    let mut config = ClusterConfig::new(MemberId(id), "host");
    config.listen = vec![([127, 0, 0, 1], 0).into()];
    config
}

/// A host, in most tests the only member of its cluster.
pub(super) struct Member {
    pub(super) logic: Logic,
    runtime: Runtime,
    coordinator: Embedded,
    side: Arc<MemberSide>,
    pub(super) cluster: Arc<Cluster>,
}

impl Member {
    pub(super) fn new() -> Self {
        Self::after(|_| ())
    }

    /// The same, with an object of which the others know.
    pub(super) fn with_one_told() -> Self {
        let mut member = Self::new();
        let news = member.publish(1);
        member.tell(news);
        member
    }

    /// A host that has done something before it joined.
    pub(super) fn after(alone: impl FnOnce(&mut Logic)) -> Self {
        let coordinator = Embedded::new(ClusterId(7));
        let handle = Arc::new(coordinator.another());
        Self::start(1, coordinator, handle, alone)
    }

    /// The same of a cluster that others may be of. `handle`: its own, of that `coordinator`.
    pub(super) fn start(
        id: u64,
        coordinator: Embedded,
        handle: Arc<dyn Coordinator>,
        alone: impl FnOnce(&mut Logic),
    ) -> Self {
        let mut logic = Logic::new(Setup::of(ByteCount::mib(1)));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        logic.datapath().expect_cluster();
        alone(&mut logic);
        let datapath = logic.datapath();
        let side = Arc::new(MemberSide::new(datapath, runtime.handle().clone()));
        let holder: Weak<dyn Holder> = Arc::<MemberSide>::downgrade(&side);
        let started = Cluster::start(config(id), runtime.handle().clone(), handle, holder);
        let cluster = Arc::new(runtime.block_on(started).expect("a member"));
        let limit = Duration::from_secs(10);
        let of_side = Arc::clone(&cluster);
        let of_cluster = ClusterSide::new(of_side, runtime.handle().clone(), limit, limit);
        datapath.attach_cluster(of_cluster.with_shown_max(SHOWN_MAX));
        Self { logic, runtime, coordinator, side, cluster }
    }

    /// Others join, which hold nothing.
    pub(super) fn join<const N: usize>(&self, ids: [u64; N]) -> [Cluster; N] {
        let others = ids.map(|id| {
            let nobody: Weak<dyn Holder> = Weak::<MemberSide>::new();
            let (handle, coordinator) = (self.runtime.handle().clone(), self.coordinator.another());
            let started = Cluster::start(config(id), handle, Arc::new(coordinator), nobody);
            self.runtime.block_on(started).expect("a member")
        });
        self.sees(N, |link| matches!(link, LinkState::Up));
        others
    }

    /// Waits until this host sees as many others like that.
    pub(super) fn sees(&self, count: usize, is_so: fn(&LinkState) -> bool) {
        let are_there = || {
            let members = self.cluster.status().members;
            members.iter().filter(|member| is_so(&member.link)).count() == count
        };
        assert!(wait::until(wait::HANG, are_there), "{:#?}", self.cluster.status().members);
    }

    /// Waits until all that it holds is announced to those who joined.
    pub(super) fn has_announced(&self) {
        assert!(self.runtime.block_on(self.cluster.settle(Instant::now() + wait::HANG)));
    }

    /// Two others join, which nobody reaches any more.
    pub(super) fn lose_two_others(&self) {
        for other in self.join([2, 3]) {
            self.runtime.block_on(other.close());
        }
        self.sees(2, |link| matches!(link, LinkState::Suspect(_)));
    }

    pub(super) fn datapath(&self) -> &Arc<Datapath> {
        self.logic.datapath()
    }

    /// Makes an object of another file, and says what is to be told of it.
    pub(super) fn publish(&mut self, seed: u64) -> News {
        publish(&mut self.logic, 0, seed);
        self.datapath().news_of(Ino::ROOT, b"k")
    }

    pub(super) fn unlink(&mut self, who: usize) -> News {
        let news = self.datapath().news_of_removal(Ino::ROOT, b"k");
        self.logic.unlink(who, "k").expect("unlink");
        news
    }

    /// Renames the object, and says what is to be told of that.
    pub(super) fn rename(&mut self, name: &str) -> News {
        self.logic.rename(0, "k", name, false).expect("rename");
        let left = std::mem::take(&mut self.logic.left);
        self.datapath().news_of(Ino::ROOT, name.as_bytes()).and(left)
    }

    pub(super) fn tell(&self, news: News) {
        self.runtime.block_on(self.datapath().tell(news));
    }

    /// Makes a namespace, as mkdir does.
    pub(super) fn make_namespace(&mut self, name: &str) {
        let making = self.begin_to_make_namespace(name);
        self.ended(making);
    }

    /// Makes a namespace here, and begins to have the others agree on it.
    pub(super) fn begin_to_make_namespace(&mut self, name: &str) -> JoinHandle<()> {
        self.logic.mkdir(0, name).expect("a namespace");
        let (datapath, news) =
            (Arc::clone(self.datapath()), self.datapath().news_of(Ino::ROOT, name.as_bytes()));
        self.runtime.spawn(async move { datapath.tell(news).await })
    }

    /// Begins to remove a namespace, as rmdir does.
    pub(super) fn remove_namespace(&self, name: &'static str) -> JoinHandle<Result<(), Error>> {
        let datapath = Arc::clone(self.datapath());
        let removal = async move { datapath.remove_directory_everywhere(Ino::ROOT, name.as_bytes()).await };
        self.runtime.spawn(removal)
    }

    /// Waits for what was begun, and says how it ended.
    pub(super) fn ended<T>(&self, begun: JoinHandle<T>) -> T {
        self.runtime.block_on(begun).expect("a task")
    }

    /// Another member replaced, or removed, what stands there.
    pub(super) fn withdraw(&self, through: Stamp) {
        self.runtime.block_on(self.side.withdraw(b"k".to_vec(), through));
    }

    /// Writes a file straight to its name and closes a descriptor of it. Says what is to be told of that.
    pub(super) fn write(&mut self, who: usize, open: Open) -> (Token, News) {
        let writer = self.logic.open(who, "k", open).expect("open");
        self.logic.write(who, writer, 0, &[7; 50_000]).expect("write");
        self.logic.flush(who, writer);
        let (handle, _) = self.logic.handle(writer);
        (writer, self.datapath().news_of_close(&caller(who), handle))
    }

    /// The RELEASE of a descriptor comes, without another close.
    pub(super) fn release(&mut self, token: Token) {
        let (handle, _) = self.logic.handle(token);
        self.logic.handles.remove(&token);
        self.datapath().release(handle);
    }

    /// Does something before anything is told that nobody waits for. What was to be told then is told when this returns.
    pub(super) fn before_others_tell(&mut self, act: impl FnOnce(&mut Self)) {
        let (go_on, held) = mpsc::channel::<()>();
        // On the only thread on which that is told.
        self.runtime.spawn(async move {
            let _ = held.recv();
        });
        act(self);
        drop(go_on);
        self.runtime.block_on(self.runtime.spawn(async {})).expect("a task");
    }

    /// Another member publishes something.
    pub(super) fn published_by(&self, other: &Cluster, name: &str, stamp: Stamp) {
        let (size, checksum) = (ByteCount(5), Some(7));
        let facts = FileFacts { size, mtime_ns: 0, mode: 0o644, uid: 0, gid: 0, checksum, replicas: 1 };
        let deadline = Instant::now() + Duration::from_secs(10);
        let published = other.publish(name.into(), stamp, Facts::File(facts), deadline);
        self.runtime.block_on(published).expect("it is told");
    }

    /// Whether another member finds something under the name now.
    pub(super) fn is_found_by(&self, other: &Cluster, name: &str) -> bool {
        let found = other.find(vec![name.into()], Instant::now() + wait::HANG);
        matches!(self.runtime.block_on(found).pop(), Some(Found::Present { .. }))
    }

    /// Waits until so much was published: what is told later is told by others.
    pub(super) fn has_published(&self, count: u64) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.told().0 != count {
            assert!(Instant::now() < end, "{} were published, not {count}", self.told().0);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The version of the object that stands there.
    pub(super) fn stamp(&self, name: &str) -> Stamp {
        let facts = self.datapath().facts(name.as_bytes()).expect("it is there");
        let sealed_at_ns = facts.sealed_at_ns.expect("it is sealed");
        Stamp(u64::try_from(sealed_at_ns).expect("a time after 1970"))
    }

    pub(super) fn is_there(&mut self) -> bool {
        let found = self.logic.resolve(1, "k").map(drop);
        assert!(matches!(found, Ok(()) | Err(Errno::ENOENT)), "{found:?}");
        found.is_ok()
    }

    /// How often something was published and removed.
    pub(super) fn told(&self) -> (u64, u64) {
        let telemetry = self.datapath().telemetry();
        (telemetry.catalog_publications.get(), telemetry.catalog_removals.get())
    }
}

/// Later than all that is sealed here.
pub(super) fn much_later() -> Stamp {
    Stamp(u64::MAX / 2)
}

/// A version by the clock of a host that is ahead.
fn an_hour_ahead(logic: &Logic) -> Stamp {
    Stamp(u64::try_from(logic.now_ns() + 3_600_000_000_000).expect("a time after 1970"))
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

/// Its host's clock is ahead, or was when it was told of by another one.
#[test]
fn a_time_to_live_counts_from_now_for_what_was_sealed_by_a_clock_that_is_ahead() {
    let mut member = Member::new();
    member.withdraw(an_hour_ahead(&member.logic));
    let news = member.publish(1);
    member.tell(news);
    member.logic.policy(0, "k", "ttl", Some("5s")).expect("it is set");
    member.logic.advance(Duration::from_secs(4), true);
    assert!(member.is_there());
    member.logic.advance(Duration::from_secs(2), true);
    assert!(!member.is_there());
}

#[test]
fn what_was_closed_before_a_host_joined_is_withdrawn_like_any_other() {
    let mut member = Member::after(|logic| {
        let writer = logic.open(0, "k", CREATE).expect("create");
        logic.write(0, writer, 0, &[7; 50_000]).expect("write");
        logic.close(0, writer);
    });
    assert!(member.is_there());
    member.withdraw(much_later());
    assert!(!member.is_there());
}

#[test]
fn what_is_written_before_a_host_joined_is_later_than_what_was_removed_there() {
    let mut removed = Stamp::default();
    let member = Member::after(|logic| {
        publish(logic, 0, 1);
        removed = an_hour_ahead(logic);
        let tier = logic.datapath().tier();
        let facts = logic.datapath().facts(b"k").expect("it is there");
        let file = tier.open_segment(facts.segment.expect("one of its own")).expect("a segment");
        let mut record = tier.read_record(&file).expect("a record").expect("it is sealed");
        record.sealed_at_ns = i64::try_from(removed.0).expect("a time of this age");
        tier.seal(&file, &record).expect("its record");
        drop(file);
        logic.restart();
        logic.datapath().expect_cluster();
        let news = logic.datapath().news_of_removal(Ino::ROOT, b"k");
        logic.unlink(0, "k").expect("unlink");
        logic.datapath().remember_news(news);
        publish(logic, 0, 2);
    });
    assert!(member.stamp("k") > removed, "it would leave when its removal is told");
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
fn a_directory_of_which_nobody_could_be_told_stays_when_it_is_refused_for_one_that_was_removed_before() {
    let mut member = Member::new();
    member.make_namespace("kv");
    let kv = member.logic.resolve(0, "kv").expect("it is there");
    member.lose_two_others();
    // Of some this member itself decides.
    let fails = |number: &u32| {
        let name = number.to_string();
        member.logic.mkdir(0, &format!("kv/{name}")).expect("mkdir");
        let failures = || member.datapath().telemetry().catalog_failures.get();
        let (before, news) = (failures(), member.datapath().news_of(kv, name.as_bytes()));
        member.tell(news);
        failures() > before
    };
    let path = format!("kv/{}", (0..).find(fails).expect("numbers do not end"));
    let withdraw = |member: &Member, through| {
        member.runtime.block_on(member.side.withdraw(path.clone().into_bytes(), through));
    };
    // What an announcement is refused with.
    withdraw(&member, Stamp::default());
    assert!(member.logic.resolve(1, &path).is_ok(), "nobody removed it");
    withdraw(&member, much_later());
    assert_eq!(member.logic.resolve(1, &path), Err(Errno::ENOENT), "somebody did");
}

#[test]
fn what_is_written_after_a_removal_is_later_also_while_nobody_hears_of_either() {
    let mut member = Member::new();
    member.lose_two_others();
    let removed = an_hour_ahead(&member.logic);
    // Of some this member itself decides.
    let mut fails = |name: &String| {
        member.cluster.remove_later(name.clone().into_bytes(), removed);
        publish(&mut member.logic, 0, 1);
        member.logic.rename(0, "k", name, false).expect("rename");
        let failures = || member.datapath().telemetry().catalog_failures.get();
        let (before, news) = (failures(), member.datapath().news_of(Ino::ROOT, name.as_bytes()));
        member.tell(news);
        failures() > before
    };
    let name = (0_u32..).map(|number| number.to_string()).find(|name| fails(name));
    assert!(member.stamp(&name.expect("numbers do not end")) > removed);
}

#[test]
fn a_slot_file_that_takes_the_place_of_an_object_takes_it_from_all() {
    for (name, open) in [("k", TRUNCATE), ("slots", CREATE)] {
        let mut member = Member::with_one_told();
        let writer = member.logic.open(0, name, open).expect("open");
        member.logic.resize(0, writer, Change::Set(1 << 20)).expect("as long as a slot file");
        member.logic.close(0, writer);
        if name != "k" {
            member.logic.rename(0, name, "k", false).expect("rename");
        }
        assert_eq!(member.cluster.counters().removals_later.get(), 1, "{name}");
        assert!(member.is_there(), "it is of this host alone");
    }
}

#[test]
fn objects_of_others_that_the_kernel_does_not_know_are_shown_up_to_a_bound() {
    let mut member = Member::new();
    let [other] = member.join([2]);
    // As a probe of a client of the fast path does.
    let ask = |member: &Member, name: &str| {
        member.published_by(&other, name, Stamp(7));
        let names = vec![(Ino::ROOT, Name::new(name.as_bytes()).expect("a name"))];
        member.runtime.block_on(member.datapath().ask(names));
    };
    ask(&member, "known");
    assert!(member.logic.resolve(1, "known").is_ok());
    let names: Vec<String> = (0..3 * SHOWN_MAX).map(|number| number.to_string()).collect();
    names.iter().for_each(|name| ask(&member, name));
    let mut is_shown = |name: &str| member.logic.resolve(1, name).is_ok();
    let (first, last) = names.split_at(2 * SHOWN_MAX);
    assert!(is_shown("known"), "it goes when the kernel forgets it");
    assert!(!first.iter().any(|name| is_shown(name)));
    assert!(last.iter().all(|name| is_shown(name)));
}
