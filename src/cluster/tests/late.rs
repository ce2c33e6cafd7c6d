//! Members that are late: with an answer, with all of a transfer, or because their host slept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidefs_engine::engine::Answer;
use tidefs_engine::memory::{Access, PageKind, Region};
use tidefs_engine::types::{ByteCount, MemberId};
use tokio::time::sleep;

use super::gone::{self, GRACE, in_virtual_time};
use super::host::Seen;
use super::members::{
    cluster_of, in_a_cluster_of, runtime, settled, soon, started, until, until_answered, wall,
};
use super::memory::Object;
use super::network::Network;
use crate::cluster::catalog::wire::Lend;
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::*;

/// Who reads so slowly that what was lent is taken back meanwhile.
#[derive(Debug)]
struct Slow {
    pause: Duration,
    has_paused: AtomicBool,
}

impl Arrival for Slow {
    fn arrived(&self, _bytes: ByteCount) {
        if !self.has_paused.swap(true, Ordering::Relaxed) {
            std::thread::sleep(self.pause);
        }
    }

    fn starts_again(&self) -> bool {
        false
    }
}

#[test]
fn what_takes_longer_than_a_loan_is_lent_again() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let loan = Duration::from_millis(200);
        let hosts = started(&coordinator, 2, |config| config.timings.loan = loan).await;
        // More than is asked for ahead.
        let bytes: Vec<u8> = (0..(48_u32 << 20)).map(|at| (at % 239) as u8).collect();
        hosts[0].write("kv/a", &bytes, wall(), soon()).await.unwrap();
        let Seen::Elsewhere(stamp, copies, size) = hosts[1].look_up("kv/a", soon()).await else { panic!() };
        let region = Arc::new(Region::anonymous(ByteCount(48 << 20), PageKind::Base, Access::Read).unwrap());
        let wanted = Wanted { path: b"kv/a".to_vec(), stamp, size: ByteCount(size), copies };
        let (cluster, target) = (hosts[1].cluster.clone(), Arc::clone(&region));
        let fetched = tokio::task::spawn_blocking(move || {
            let arrival = Slow { pause: 5 * loan, has_paused: AtomicBool::new(false) };
            cluster.fetch(wanted, Duration::from_secs(20), soon()).into_region(&target, &arrival)
        });
        assert_eq!(fetched.await.unwrap().unwrap().checksum, twox_hash::XxHash3_64::oneshot(&bytes));
        let mut read = vec![0; bytes.len()];
        assert!(region.read_at(0, &mut read) && read == bytes);
        assert!(hosts[0].cluster.counters().loans_expired.get() > 0, "it was taken back in between");
    });
}

/// Who reads on when what a member lent first was taken back.
#[derive(Debug)]
struct Held(Cluster);

impl Arrival for Held {
    fn arrived(&self, _bytes: ByteCount) {
        let is_taken_back = || self.0.counters().loans_expired.get() > 0;
        if is_taken_back() {
            return;
        }
        let end = soon();
        while !is_taken_back() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        // So that nothing can be read any more, either.
        std::thread::sleep(Duration::from_millis(200));
    }

    fn starts_again(&self) -> bool {
        true
    }
}

#[test]
fn who_gave_the_rest_of_what_came_wrong_from_another_is_asked_for_the_whole() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let (wrong, right, reader) = (MemberId(1), MemberId(2), 2);
        let hosts = started(&coordinator, 3, |config| {
            if config.member == wrong {
                config.timings.loan = Duration::from_secs(2);
            }
        })
        .await;
        // More than is asked for ahead.
        let bytes: Vec<u8> = (0..(40_u32 << 20)).map(|at| (at % 239) as u8).collect();
        let (stamp, size, path) = (Stamp(7), ByteCount(bytes.len() as u64), b"kv/a".to_vec());
        for (at, first) in [(0, !bytes[0]), (1, bytes[0])] {
            let mut bytes = bytes.clone();
            bytes[0] = first;
            let object =
                Object { stamp, bytes: bytes.into(), is_directory: false, is_soft: false, replicas: 1 };
            hosts[at].memory.state.lock().objects.insert(path.clone(), object);
        }
        hosts[0].memory.state.lock().lends_wrong_bytes = true;
        let copies = [wrong, right].map(|member| Copy { member, medium: Medium::Memory }).to_vec();
        let wanted = Wanted { path, stamp, size, copies };
        let region = Arc::new(Region::anonymous(size, PageKind::Base, Access::Read).unwrap());
        let (cluster, target) = (hosts[reader].cluster.clone(), Arc::clone(&region));
        let arrival = Held(hosts[0].cluster.clone());
        let fetched = tokio::task::spawn_blocking(move || {
            let deadline = Instant::now() + Duration::from_secs(60);
            cluster.fetch(wanted, Duration::from_secs(20), deadline).into_region(&target, &arrival)
        });
        assert_eq!(fetched.await.unwrap().unwrap().checksum, twox_hash::XxHash3_64::oneshot(&bytes));
        let mut read = vec![0; bytes.len()];
        assert!(region.read_at(0, &mut read) && read == bytes);
        assert_eq!(hosts[reader].cluster.counters().corrupt.get(), 1, "what both gave was compared");
    });
}

#[test]
fn a_host_that_slept_knows_that_time_has_passed() {
    in_a_cluster_of(2, |_, hosts| async move {
        let core = &hosts[0].cluster.core;
        let (before, slept) = (core.now(), crate::cluster::core::host_slept());
        core.note_sleep(slept + Duration::from_secs(3600));
        assert!(core.now() - before >= Duration::from_secs(3600));
        until("it catches up", || hosts[0].cluster.counters().stalls.get() == 1).await;
        assert_eq!(hosts[1].cluster.counters().stalls.get(), 0);
    });
}

#[test]
fn who_was_held_up_itself_asks_again_before_it_passes_over_another() {
    // On one thread nobody is asked before this test waits.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (_coordinator, hosts) = cluster_of(2).await;
        let (core, two) = (&hosts[0].cluster.core, hosts[1].cluster.me());
        let patience = Duration::from_secs(2);
        core.note_slow(two, patience, Instant::now() - Duration::from_millis(100));
        assert!(!core.is_suspect(two), "the answer may have been waiting");
        until("it is asked, and answers", || !core.peers.lock()[&two].is_probed).await;
        assert!(!core.is_suspect(two));
        core.note_slow(two, patience, Instant::now());
        assert!(core.is_suspect(two), "there was time, and no answer");
        until("it is asked at once, and answers", || !core.is_suspect(two)).await;
    });
}

#[test]
fn who_is_late_with_what_may_take_long_is_asked_and_not_passed_over() {
    in_a_cluster_of(2, |_, hosts| async move {
        let (core, two) = (&hosts[0].cluster.core, hosts[1].cluster.me());
        hosts[1].write("kv/a", b"bytes", wall(), soon()).await.unwrap();
        hosts[1].memory.state.lock().lends_never = true;
        let wanted = match hosts[0].look_up("kv/a", soon()).await {
            Seen::Elsewhere(stamp, copies, size) => {
                Wanted { path: b"kv/a".to_vec(), stamp, size: ByteCount(size), copies }
            }
            other => panic!("{other:?}"),
        };
        let patience = Duration::from_millis(700);
        let fetched = core.fetch_bytes(wanted, Instant::now() + patience).await;
        assert!(fetched.is_err(), "its disk hangs");
        until("it is asked, and answers", || !core.peers.lock()[&two].is_probed).await;
        assert!(!core.is_suspect(two));
    });
}

#[test]
fn who_was_forgotten_while_it_was_slow_announces_what_it_holds_again() {
    runtime().block_on(async {
        let coordinator = Embedded::new(ClusterId(7));
        let hosts =
            started(&coordinator, 2, |config| config.timings.grace = Duration::from_millis(200)).await;
        for number in 0..50 {
            hosts[1].write(&format!("kv/{number}"), b"bytes", wall(), soon()).await.unwrap();
        }
        let (core, two) = (&hosts[0].cluster.core, hosts[1].cluster.me());
        {
            // As a member whose answers all come late.
            let mut peers = core.peers.lock();
            let peer = peers.get_mut(&two).unwrap();
            (peer.is_slow, peer.is_probed, peer.lost_at) = (true, true, Some(core.now()));
        }
        until("it is forgotten", || core.peers.lock()[&two].is_dropped).await;
        core.peers.lock().get_mut(&two).unwrap().is_probed = false;
        until("it is there again", || !core.peers.lock()[&two].is_dropped).await;
        for number in 0..50 {
            let name = format!("kv/{number}");
            until_answered("what it holds is found", async || hosts[0].read(&name, soon()).await.is_some())
                .await;
        }
    });
}

#[test]
fn who_was_started_again_and_is_slow_for_a_moment_later_is_not_taken_to_be_away() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(1), Embedded::new(ClusterId(7)));
        let one = gone::start(1, &network, &coordinator).await;
        let earlier = gone::start(2, &network, &coordinator).await;
        sleep(Duration::from_secs(5)).await;
        network.kill(earlier.cluster.core.me);
        earlier.cluster.close().await;
        let two = gone::start(2, &network, &coordinator).await;
        sleep(Duration::from_secs(5)).await;
        let (core, member) = (&one.cluster.core, two.cluster.me());
        assert_eq!(core.peers.lock()[&member].id, two.cluster.core.me);
        // It has announced all that it holds, and does not notice this.
        core.note_slow(member, Duration::from_secs(1), core.within(Duration::ZERO));
        assert!(core.is_suspect(member));
        sleep(Duration::from_secs(1)).await;
        assert!(!core.is_suspect(member), "it answered");
        let late = core.now() + core.config.timings.tombstones;
        assert_eq!(core.owner.lock().expire(late).disbelieved, []);
        one.cluster.close().await;
        two.cluster.close().await;
    });
}

#[test]
fn what_a_disk_gives_after_its_reader_is_gone_is_lent_to_nobody() {
    in_a_cluster_of(2, |_, hosts| async move {
        let (reader, holder) = (&hosts[0], &hosts[1]);
        let stamp = holder.write("kv/a", &[7; 1 << 20], wall(), soon()).await.unwrap().stamp;
        let core = &holder.cluster.core;
        let lend = || Lend { path: b"kv/a".to_vec(), stamp, for_ms: 60_000 };
        let answer = |lend| match core.answer_lend(reader.cluster.core.me, lend) {
            Answer::Later(answer) => answer,
            Answer::Now(answer) => panic!("{answer:?}"),
        };
        answer(lend()).await.unwrap();
        assert_eq!(core.loans.len(), 1);
        // As one that is being answered while the link ends.
        let late = answer(lend());
        reader.cluster.close().await;
        until("it is missed, and what it was lent is taken back", || {
            core.is_suspect(reader.cluster.me()) && core.loans.len() == 0
        })
        .await;
        late.await.unwrap_err();
        assert_eq!(core.loans.len(), 0, "nobody is there to give it back");
        assert_eq!(holder.cluster.counters().lent.get(), 1);
    });
}

#[test]
fn what_is_announced_when_its_seal_comes_late_gets_its_copies_without_waiting_for_a_walk_by_time() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(1), Embedded::new(ClusterId(7)));
        let hosts =
            [gone::start(1, &network, &coordinator).await, gone::start(2, &network, &coordinator).await];
        settled(&hosts).await;
        // The walks that the coming of the members is followed by are over then.
        sleep(2 * GRACE).await;
        // As of a file that was closed while there was no other: nobody was told of it, nor asked for copies.
        let bytes: Arc<[u8]> = Arc::new(*b"bytes");
        let object = Object { stamp: Stamp(5), bytes, is_directory: false, is_soft: false, replicas: 2 };
        hosts[0].memory.state.lock().objects.insert(b"kv/a".to_vec(), object);
        hosts[0].cluster.announce(b"kv/a");
        sleep(GRACE).await;
        assert!(hosts[1].memory.state.lock().objects.contains_key(&b"kv/a"[..]));
        for host in hosts {
            host.cluster.close().await;
        }
    });
}
