//! Several members over real sockets of this machine: what one does, the others see.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tidefs_engine::engine::{TransportChoice, TransportName};
use tidefs_engine::link::ClusterKey;
use tidefs_engine::memory::{Access, PageKind, Region};
use tidefs_engine::types::{ByteCount, MemberId};
use tokio::runtime::{Handle, Runtime};

use super::host::{Host, Seen};
use super::memory::{Memory, Remembered};
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::shards::{KeyId, Owners};
use crate::cluster::*;

pub(super) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// By when a fact that is waited for is seen on a loaded machine. A call has less, [`soon`].
pub(super) fn at_last() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

pub(super) fn wall() -> Stamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    Stamp(u64::try_from(since.as_nanos()).unwrap())
}

pub(super) fn config(id: u64) -> ClusterConfig {
    let mut config = ClusterConfig::new(MemberId(id), &format!("host-{id}"));
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.key = Some(ClusterKey::new(*b"the key of this cluster"));
    config.transports = TransportChoice::Named(vec![TransportName::Tcp]);
    config.timings.reconnect = Duration::from_millis(100);
    config.timings.tick = Duration::from_millis(50);
    config
}

pub(super) async fn start(coordinator: &Embedded, config: ClusterConfig) -> Host {
    let memory = Arc::new(Memory::default());
    start_with(coordinator, config, memory).await
}

pub(super) async fn start_with(coordinator: &Embedded, config: ClusterConfig, memory: Arc<Memory>) -> Host {
    let holder: std::sync::Weak<dyn Holder> = Arc::<Memory>::downgrade(&memory);
    let cluster =
        Cluster::start(config, Handle::current(), Arc::new(coordinator.another()), holder).await.unwrap();
    memory.belongs_to(&cluster);
    Host { cluster, memory }
}

/// Waits until all of them know all of each other, and all that they hold.
pub(super) async fn settled(hosts: &[Host]) {
    let end = at_last();
    while let Some(unsettled) = hosts.iter().find(|host| !is_settled(host, hosts.len())) {
        assert!(Instant::now() < end, "not all know each other: {}", seen_by(unsettled));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn seen_by(host: &Host) -> String {
    let (status, core) = (host.cluster.status(), &host.cluster.core);
    format!("{status:#?} {:#?} {:?}", core.peers.lock(), core.takeovers.lock())
}

fn is_settled(host: &Host, members: usize) -> bool {
    let status = host.cluster.status();
    let core = &host.cluster.core;
    status.members.len() == members
        && status.incomplete_shards == 0
        && status.shards_to_announce == 0
        && core.takeovers.lock().is_empty()
        && core.peers.lock().values().all(|peer| !peer.is_owed_anything())
        && status.members.iter().all(|member| matches!(member.link, LinkState::Up | LinkState::Myself))
}

pub(super) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = at_last();
    while !is_so() {
        assert!(Instant::now() < end, "never seen: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// As [`until`], for what only others can say.
pub(super) async fn until_answered(what: &str, is_so: impl AsyncFn() -> bool) {
    let end = at_last();
    while !is_so().await {
        assert!(Instant::now() < end, "never seen: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(super) async fn cluster_of(count: u64) -> (Embedded, Vec<Host>) {
    let coordinator = Embedded::new(ClusterId(7));
    let hosts = started(&coordinator, count, |_| ()).await;
    (coordinator, hosts)
}

/// `count` members with their configuration changed by `configure`, who know all of each other.
pub(super) async fn started(
    coordinator: &Embedded,
    count: u64,
    configure: impl Fn(&mut ClusterConfig),
) -> Vec<Host> {
    let mut hosts = Vec::new();
    for id in 1..=count {
        let mut config = config(id);
        configure(&mut config);
        hosts.push(start(coordinator, config).await);
    }
    settled(&hosts).await;
    hosts
}

/// A name whose shard is served like this, for the index of hosts.
pub(super) fn name_served(hosts: &[Host], is_wanted: impl Fn(Owners) -> bool) -> String {
    let map = hosts[0].cluster.core.seen().map.clone();
    let is_it = |name: &String| map.owners(KeyId::of(name.as_bytes()).shard()).is_some_and(&is_wanted);
    (0..).map(|number| format!("kv/{number}")).find(is_it).unwrap()
}

pub(super) fn in_a_cluster_of<F: Future<Output = ()>>(
    count: u64,
    fact: impl FnOnce(Embedded, Vec<Host>) -> F,
) {
    runtime().block_on(async {
        let (coordinator, hosts) = cluster_of(count).await;
        fact(coordinator, hosts).await;
    });
}

#[test]
fn one_member_alone_answers_without_messages() {
    in_a_cluster_of(1, |_, hosts| async move {
        let host = &hosts[0];
        host.write("kv/a", b"one", wall(), soon()).await.unwrap();
        assert_eq!(host.look_up("kv/b", soon()).await, Seen::Absent);
        assert_eq!(host.remembers("kv/b"), Some(Remembered::Absent));
        host.unlink("kv/a", wall(), soon()).await.unwrap();
        let counters = host.cluster.counters();
        assert_eq!((counters.find_messages.get(), counters.change_messages.get()), (0, 0));
        assert_eq!(host.cluster.status().entries, 0);
    });
}

#[test]
fn what_one_writes_all_others_read_small_and_large() {
    in_a_cluster_of(3, |_, hosts| async move {
        for (length, name) in [(0, "kv/empty"), (100, "kv/small"), (3 << 20, "kv/large")] {
            let bytes: Vec<u8> = (0..length).map(|at: u32| (at % 251) as u8).collect();
            let published = hosts[0].write(name, &bytes, wall(), soon()).await.unwrap();
            assert!(published.is_settled);
            for host in &hosts {
                assert_eq!(host.read(name, soon()).await.as_ref(), Some(&bytes), "{name}");
            }
        }
        until("what was lent is given back", || hosts[0].cluster.status().loans == 0).await;
    });
}

#[test]
fn an_object_is_read_into_a_region_and_its_checksum_returned() {
    in_a_cluster_of(2, |_, hosts| async move {
        let bytes: Vec<u8> = (0..(2_u32 << 20)).map(|at| (at % 241) as u8).collect();
        hosts[0].write("kv/a", &bytes, wall(), soon()).await.unwrap();
        let Seen::Elsewhere(stamp, copies, size) = hosts[1].look_up("kv/a", soon()).await else { panic!() };
        let region = Arc::new(Region::anonymous(ByteCount(4 << 20), PageKind::Base, Access::Read).unwrap());
        let wanted = Wanted { path: b"kv/a".to_vec(), stamp, size: ByteCount(size), copies };
        let fetch = |wanted: Wanted| {
            let (cluster, region) = (hosts[1].cluster.clone(), Arc::clone(&region));
            tokio::task::spawn_blocking(move || {
                cluster.fetch(wanted, Duration::from_secs(20), soon()).into_region(&region, &Whole)
            })
        };
        let fetched = fetch(wanted.clone()).await.unwrap().unwrap();
        assert_eq!(fetched.checksum, twox_hash::XxHash3_64::oneshot(&bytes));
        let mut read = vec![0; bytes.len()];
        assert!(region.read_at(0, &mut read) && read == bytes);
        assert_eq!(hosts[0].cluster.status().loans, 1, "it is lent until what was fetched is dropped");
        drop(fetched);
        until("what was lent is given back", || hosts[0].cluster.status().loans == 0).await;
        let known = || {
            let status = hosts[1].cluster.engine().expect("bytes are moved").status();
            status.peers.iter().map(|peer| peer.regions).sum::<usize>()
        };
        assert_eq!(known(), 0, "no description stays of what is given back");
        hosts[0].memory.state.lock().lends_wrong_bytes = true;
        let refused = fetch(wanted).await.unwrap();
        assert!(matches!(refused, Err(ClusterError::NoSource { asked: 1, .. })), "{refused:?}");
        assert_eq!((hosts[1].cluster.counters().corrupt.get(), known()), (1, 0));
    });
}

/// How many slices are under way whenever a part has come: the most.
struct Watching {
    cluster: Cluster,
    most: Cell<usize>,
}

impl Arrival for Watching {
    fn arrived(&self, _bytes: ByteCount) {
        let operations = self.cluster.engine().expect("bytes are moved").status().operations;
        self.most.set(self.most.get().max(operations));
    }

    fn starts_again(&self) -> bool {
        true
    }
}

/// A program of this host may read from the same member meanwhile.
#[test]
fn of_what_is_fetched_to_be_kept_for_others_a_few_parts_are_under_way() {
    in_a_cluster_of(2, |_, hosts| async move {
        let length = ByteCount(24 << 20);
        let bytes: Vec<u8> = (0..length.get()).map(|at| (at % 241) as u8).collect();
        hosts[0].write("kv/a", &bytes, wall(), soon()).await.unwrap();
        let Seen::Elsewhere(stamp, copies, _) = hosts[1].look_up("kv/a", soon()).await else { panic!() };
        let region = Arc::new(Region::anonymous(length, PageKind::Base, Access::Read).unwrap());
        let wanted = Wanted { path: b"kv/a".to_vec(), stamp, size: length, copies };
        let (cluster, target) = (hosts[1].cluster.clone(), Arc::clone(&region));
        let fetching = tokio::task::spawn_blocking(move || {
            let arrival = Watching { cluster: cluster.clone(), most: Cell::new(0) };
            let fetch = cluster.fetch(wanted, Duration::from_secs(20), soon());
            let fetched =
                fetch.for_purpose(SharedPurpose::new(Purpose::Keeping)).into_region(&target, &arrival);
            (fetched, arrival.most.get())
        });
        let (fetched, most) = fetching.await.unwrap();
        assert_eq!(fetched.unwrap().checksum, twox_hash::XxHash3_64::oneshot(&bytes));
        // Two to a part. One that has ended is counted for a moment more.
        assert!(most <= 24, "{most} of 96");
    });
}

#[test]
fn absence_is_remembered_and_revoked_before_a_publish_resolves() {
    in_a_cluster_of(3, |_, hosts| async move {
        for round in 0..30 {
            let name = format!("kv/{round}");
            let (writer, reader) = (&hosts[round % 3], &hosts[(round + 1) % 3]);
            assert_eq!(reader.look_up(&name, soon()).await, Seen::Absent);
            assert_eq!(reader.remembers(&name), Some(Remembered::Absent));
            writer.write(&name, b"bytes", wall(), soon()).await.unwrap();
            assert_eq!(reader.remembers(&name), None);
            assert_eq!(reader.read(&name, soon()).await.as_deref(), Some(&b"bytes"[..]));
        }
    });
}

#[test]
fn identical_publishes_are_one_version_with_two_holders() {
    in_a_cluster_of(3, |_, hosts| async move {
        let first = hosts[0].write("kv/a", b"same", wall(), soon()).await.unwrap();
        let again = hosts[1].write("kv/a", b"same", wall(), soon()).await.unwrap();
        assert_eq!(first.stamp, again.stamp);
        let Seen::Elsewhere(_, copies, _) = hosts[2].look_up("kv/a", soon()).await else { panic!() };
        assert_eq!(copies.len(), 2);
        // One of the two is enough.
        hosts[0].memory.state.lock().lends_nothing = true;
        assert_eq!(hosts[2].read("kv/a", soon()).await.as_deref(), Some(&b"same"[..]));
    });
}

#[test]
fn a_source_that_fails_is_counted_as_one_before_another_only_when_another_one_is_asked() {
    in_a_cluster_of(3, |_, hosts| async move {
        for host in &hosts[..2] {
            host.write("kv/a", b"same", wall(), soon()).await.unwrap();
            host.memory.state.lock().lends_nothing = true;
        }
        assert_eq!(hosts[2].read("kv/a", soon()).await, None);
        let counters = hosts[2].cluster.counters();
        assert_eq!((counters.fetch_retries.get(), counters.fetch_failures.get()), (1, 1));
    });
}

#[test]
fn an_evicted_object_is_found_no_more_and_a_copy_of_it_is() {
    in_a_cluster_of(3, |_, hosts| async move {
        let published = hosts[0].write("kv/a", b"bytes", wall(), soon()).await.unwrap();
        hosts[1].memory.state.lock().objects.insert(
            b"kv/a".to_vec(),
            super::memory::Object {
                stamp: published.stamp,
                bytes: (*b"bytes").into(),
                is_directory: false,
                is_soft: false,
                replicas: 1,
            },
        );
        hosts[1].cluster.hold(b"kv/a", published.stamp, Medium::Ssd);
        let copies = |host: Host| async move {
            match host.look_up("kv/a", soon()).await {
                Seen::Elsewhere(_, copies, _) => copies.len(),
                _ => 0,
            }
        };
        until_answered("both copies", async || copies(hosts[2].clone()).await == 2).await;
        hosts[0].evict("kv/a");
        until_answered("one copy less", async || copies(hosts[2].clone()).await == 1).await;
        assert_eq!(hosts[2].read("kv/a", soon()).await.as_deref(), Some(&b"bytes"[..]));
        assert!(hosts[2].remembers("kv/a").is_some());
        hosts[1].evict("kv/a");
        until("the last copy's end is told", || hosts[2].remembers("kv/a").is_none()).await;
        assert_eq!(hosts[2].look_up("kv/a", soon()).await, Seen::Absent);
    });
}

#[test]
fn a_thousand_names_cost_a_message_for_each_member_that_serves_them() {
    in_a_cluster_of(3, |_, hosts| async move {
        let paths: Vec<Vec<u8>> = (0..1000).map(|number| format!("kv/{number}").into_bytes()).collect();
        let found = hosts[0].cluster.find(paths, soon()).await;
        assert!(found.iter().all(|found| *found == Found::Absent { is_watched: true }));
        assert_eq!(hosts[0].cluster.counters().find_messages.get(), 2);
    });
}

#[test]
fn many_publishes_at_once_share_messages() {
    in_a_cluster_of(2, |_, hosts| async move {
        let before = hosts[0].cluster.counters().change_messages.get();
        let writes = (0..1000).map(|number| {
            let host = hosts[0].clone();
            tokio::spawn(async move {
                host.write(&format!("kv/{number}"), b"bytes", wall(), soon()).await.unwrap()
            })
        });
        for write in writes.collect::<Vec<_>>() {
            assert!(write.await.unwrap().is_settled);
        }
        let messages = hosts[0].cluster.counters().change_messages.get() - before;
        assert!(messages < 250, "{messages} messages for about 500 publishes to the other member");
    });
}

#[test]
fn a_listing_has_the_names_of_all_members_once_and_in_pages() {
    in_a_cluster_of(3, |_, hosts| async move {
        for number in 0..40 {
            hosts[number % 3].write(&format!("kv/{number}"), b"same", wall(), soon()).await.unwrap();
            hosts[(number + 1) % 3].write(&format!("kv/{number}"), b"same", wall(), soon()).await.unwrap();
        }
        hosts[1].make_directory("kv/folder", soon()).await.unwrap();
        let (mut names, mut after) = (Vec::new(), 0);
        loop {
            let page = hosts[2].cluster.list(b"kv".to_vec(), after, 7, soon()).await.names;
            let Some(last) = page.last() else { break };
            assert!(page.len() <= 7);
            after = last.cookie;
            names.extend(page);
        }
        assert_eq!(names.len(), 41);
        assert_eq!(names.iter().filter(|listed| listed.is_directory).count(), 1);
        assert!(hosts[0].look_up("kv/folder", soon()).await.is_present());
    });
}
