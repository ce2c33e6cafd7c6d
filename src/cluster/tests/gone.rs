//! Members that go and do not come back, thousands of them, each with a name of its own; and one that does.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tidefs_engine::engine::PeerDescriptor;
use tidefs_engine::error::Error;
use tidefs_engine::types::{ByteCount, Incarnation, MemberId, PeerId};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::host::Host;
use super::members::{name_served, settled};
use super::memory::{Memory, Remembered};
use super::network::{End, Network, SILENCE};
use crate::cluster::carrier::Carrier;
use crate::cluster::catalog::wire::{Change, Find, Outcome, Replicate, Revocation};
use crate::cluster::coordinator::Coordinator;
use crate::cluster::coordinator::embedded::Embedded;
use crate::cluster::core::{Core, Ingredients};
use crate::cluster::member::testing;
use crate::cluster::peers::{Link, Peer};
use crate::cluster::*;

pub(super) const GRACE: Duration = Duration::from_secs(20);
const NAMES: u64 = 1000;
/// Members that are there at once.
const AT_ONCE: u64 = 10;

pub(super) fn soon() -> std::time::Instant {
    tokio::time::Instant::now().into_std() + Duration::from_secs(2)
}

pub(super) fn config(id: u64) -> ClusterConfig {
    let mut config = ClusterConfig::new(MemberId(id), &format!("host-{id}"));
    config.timings.silence = SILENCE;
    config.timings.grace = GRACE;
    config
}

/// A member over a network that is made up, which does not follow the coordinator's views by itself.
async fn core_of(
    config: ClusterConfig,
    network: &Arc<Network>,
    coordinator: Arc<dyn Coordinator>,
    memory: &Arc<Memory>,
) -> Arc<Core> {
    let begun = coordinator.begin(config.member, soon()).await.unwrap();
    let me = PeerId { member: config.member, incarnation: begun.incarnation };
    let holder: Weak<dyn Holder> = Arc::<Memory>::downgrade(memory);
    let core = Core::new(Ingredients {
        me,
        cluster: begun.cluster,
        config,
        runtime: Handle::current(),
        coordinator,
        holder,
        carrier: Arc::new(End { me, network: Arc::clone(network) }) as Arc<dyn Carrier>,
        engine: None,
    });
    network.add(&core);
    core
}

/// A member over a network that is made up, with a handle of its own to the coordinator.
pub(super) async fn start_with(id: u64, network: &Arc<Network>, handle: Arc<dyn Coordinator>) -> Host {
    start_as(config(id), network, handle).await
}

pub(super) async fn start_as(
    config: ClusterConfig,
    network: &Arc<Network>,
    handle: Arc<dyn Coordinator>,
) -> Host {
    let memory = Arc::new(Memory::default());
    let core = core_of(config, network, handle, &memory).await;
    let descriptor =
        PeerDescriptor { id: core.me, addresses: vec![([127, 0, 0, 1], 1).into()], transports: Vec::new() };
    let cluster = Cluster::join(core, descriptor, soon()).await.unwrap();
    memory.belongs_to(&cluster);
    Host { cluster, memory }
}

pub(super) async fn start(id: u64, network: &Arc<Network>, coordinator: &Embedded) -> Host {
    start_with(id, network, Arc::new(coordinator.another())).await
}

/// Tasks that have not ended.
pub(super) fn tasks_of(core: &Core) -> usize {
    let mut tasks = core.tasks.lock();
    while tasks.try_join_next().is_some() {}
    tasks.len()
}

pub(super) fn in_virtual_time<F: Future<Output = ()>>(fact: F) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(fact);
}

#[test]
fn a_thousand_names_that_do_not_come_back_are_no_peers_and_are_forgotten_in_the_end() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(1), Embedded::new(ClusterId(7)));
        let host = start(1, &network, &coordinator).await;
        let core = &host.cluster.core;
        let me = core.seen().view.member(core.me.member).unwrap().clone();
        let mut number = core.seen().view.number;
        let mut adopt = |others: Vec<Member>| {
            number += 1;
            core.adopt_view(View::new(number, others.into_iter().chain([me.clone()]).collect()));
        };
        for first in (2..2 + NAMES).step_by(usize::try_from(AT_ONCE).unwrap()) {
            let mut guests: Vec<Member> = (first..first + AT_ONCE).map(|id| testing::member(id, 1)).collect();
            // Which speak another version of the protocol.
            guests.iter_mut().for_each(|guest| guest.protocol.newest += 1);
            adopt(guests.clone());
            for guest in &guests {
                core.link_up(guest.engine.id);
                let asked =
                    Find { view: core.seen().view.number, paths: vec![format!("kv/{first}").into_bytes()] };
                drop(core.answer_find(guest.engine.id, &asked));
            }
            sleep(Duration::from_secs(1)).await;
            for guest in &guests {
                core.link_down(guest.engine.id, &Error::Closed);
            }
            adopt(Vec::new());
            // What they are told, while they are not there, is remembered for a while.
            for guest in &guests {
                let revocation = Revocation::Appeared { path: vec![7; 100] };
                drop(core.tell(guest.id, revocation));
            }
        }
        let time = core.config.timings;
        sleep(GRACE + time.background + 4 * time.tick).await;
        assert_eq!(core.peers.lock().len(), 0, "queues and tasks of who is gone");
        assert!(tasks_of(core) < 20, "{} tasks", tasks_of(core));
        assert_eq!(core.plan.told(), 1, "it tells itself alone");
        sleep(time.tombstones + time.background).await;
        assert_eq!(core.gone.lock().len(), 0, "what is kept of who is gone");
        assert_eq!(core.carrier.others(), 0, "what they speak");
        assert_eq!(core.owner.lock().kept_of_others(), 0, "what the catalog keeps of them");
        host.cluster.close().await;
    });
}

/// What another owner tells when it has just lost these members.
fn word_of_lost(members: impl IntoIterator<Item = u64>) -> Replicate {
    Replicate {
        view: 1,
        is_decided: false,
        keys: Vec::new(),
        complete: Vec::new(),
        horizon_age_ms: None,
        away_ms: members.into_iter().map(|member| (MemberId(member), 0)).collect(),
    }
}

#[test]
fn who_was_never_met_and_was_away_for_too_long_is_not_believed_after_a_moment_in_touch() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(1), Embedded::new(ClusterId(7)));
        let host = start(1, &network, &coordinator).await;
        let core = &host.cluster.core;
        let now = core.now();
        core.owner.lock().learn_rest(MemberId(2), &word_of_lost([9]), now);
        let late = now + core.config.timings.tombstones;
        core.expire_removals(late);
        assert_eq!(core.owner.lock().horizon_age_ms(late), Some(600_000));
        // It is there, and lost before it heard anything.
        core.owner.lock().note_contact(MemberId(9), late);
        assert_eq!(core.owner.lock().contact_of(MemberId(9)), Some(now));
        // The same when it is not expected any more.
        let later = late + 2 * core.config.timings.grace;
        core.let_members_go(later);
        core.owner.lock().note_contact(MemberId(9), later);
        assert_eq!(core.owner.lock().contact_of(MemberId(9)), None);
        host.cluster.close().await;
    });
}

#[test]
fn who_is_lost_while_all_is_announced_to_it_is_not_heard_without_a_gap() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(1), Embedded::new(ClusterId(7)));
        let (one, two) = (start(1, &network, &coordinator).await, start(2, &network, &coordinator).await);
        sleep(Duration::from_secs(3)).await;
        let core = &one.cluster.core;
        let peer = |change: fn(&mut Peer)| {
            let mut peers = core.peers.lock();
            let peer = peers.get_mut(&MemberId(2)).unwrap();
            change(peer);
            (peer.link, peer.unheard_since)
        };
        peer(Peer::begin_to_announce);
        let lost_at = core.now();
        network.end(core.me, two.cluster.core.me, "reset");
        sleep(Duration::from_secs(3)).await;
        assert_eq!(peer(Peer::was_announced), (Link::Up, Some(lost_at)));
        peer(Peer::begin_to_announce);
        assert_eq!(peer(Peer::was_announced), (Link::Up, None));
        one.cluster.close().await;
        two.cluster.close().await;
    });
}

#[test]
fn who_is_told_everything_at_a_second_attempt_is_not_back_before_it_has_announced_what_it_holds() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(9), Embedded::new(ClusterId(7)));
        let hosts = [start(1, &network, &coordinator).await, start(2, &network, &coordinator).await];
        settled(&hosts).await;
        let (core, other) = (&hosts[0].cluster.core, &hosts[1].cluster.core);
        let contact = || core.owner.lock().contact_of(other.me.member);
        let is_up_and_owed = || {
            let peers = core.peers.lock();
            let peer = &peers[&other.me.member];
            (peer.link == Link::Up, !peer.owed.is_empty())
        };
        // It announces nothing from now on.
        other.draining.note_left();
        network.end(core.me, other.me, "reset");
        let first = contact();
        assert!(first.is_some());
        core.peers.lock().get_mut(&other.me.member).unwrap().is_dropped = true;
        // It seems to be there, and does not hear what it is told.
        core.link_up(other.me);
        sleep(Duration::from_millis(5)).await;
        assert_eq!(is_up_and_owed(), (true, true));
        // What it says of what it announced before it heard that does not count.
        let all = Change::Announced { view: core.seen().view.number };
        let outcomes: Vec<Outcome> = core.apply(other.me, &[all]).iter().map(|it| it.outcome).collect();
        assert_eq!(outcomes, [Outcome::Moved]);
        // It hears that, and is lost, more than once.
        for _ in 0..2 {
            sleep(Duration::from_secs(3)).await;
            assert_eq!(is_up_and_owed(), (true, false));
            network.end(core.me, other.me, "reset");
            assert_eq!(contact(), first);
        }
        for host in hosts {
            host.cluster.close().await;
        }
    });
}

#[test]
fn those_that_others_have_lost_and_that_are_never_met_are_forgotten_in_the_end() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(1), Embedded::new(ClusterId(7)));
        let host = start(1, &network, &coordinator).await;
        let core = &host.cluster.core;
        core.owner.lock().learn_rest(MemberId(2), &word_of_lost(2..2 + NAMES), core.now());
        let time = core.config.timings;
        sleep(time.tombstones + 4 * time.tick).await;
        assert!(core.owner.lock().kept_of_others() > 0, "as of those that were met and are gone");
        sleep(GRACE).await;
        assert_eq!(core.owner.lock().kept_of_others(), 0);
        host.cluster.close().await;
    });
}

#[test]
fn a_connection_that_ended_before_its_maker_looked_at_it_is_none() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(3), Embedded::new(ClusterId(7)));
        let (one, two) = (start(1, &network, &coordinator).await, start(2, &network, &coordinator).await);
        sleep(Duration::from_secs(3)).await;
        let (here, there) = (&one.cluster.core, two.cluster.core.me);
        let is_up = || here.peers.lock()[&there.member].link == Link::Up;
        assert!(is_up());
        network.end(here.me, there, "reset");
        here.link_found(there);
        assert!(!is_up(), "nobody would ever hear of its end");
        sleep(Duration::from_secs(3)).await;
        assert!(is_up(), "another one is made");
        here.link_found(there);
        assert!(is_up());
    });
}

#[test]
fn who_comes_back_after_it_went_knows_what_was_told_meanwhile_and_is_believed() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(2), Embedded::new(ClusterId(7)));
        let (one, two) = (start(1, &network, &coordinator).await, start(2, &network, &coordinator).await);
        sleep(Duration::from_secs(3)).await;
        let names: Vec<String> = (0..40).map(|number| format!("kv/{number}")).collect();
        two.write("kv/held", b"held", Stamp(1), soon()).await.unwrap();
        for name in &names {
            two.look_up(name, soon()).await;
        }
        assert!(names.iter().any(|name| two.remembers(name) == Some(Remembered::Absent)));
        // Only the coordinator is back before the network is, or the other way round.
        for is_met_first in [true, false] {
            let member = one.cluster.core.seen().view.member(MemberId(2)).unwrap().clone();
            let (first, second) = (one.cluster.core.me, two.cluster.core.me);
            network.part(first, second);
            two.cluster.core.coordinator.leave(soon()).await.unwrap();
            sleep(SILENCE + 2 * GRACE).await;
            assert_eq!(one.cluster.core.peers.lock().len(), 0, "it is no peer any more");
            assert_eq!(one.cluster.met(), [MemberId(2), MemberId(1)]);
            for name in &names {
                one.write(name, b"bytes", Stamp(2), soon()).await.unwrap();
            }
            if is_met_first {
                two.cluster.core.coordinator.register(member.clone(), soon()).await.unwrap();
                sleep(Duration::from_secs(1)).await;
                network.join(first, second);
            } else {
                network.join(first, second);
                sleep(Duration::from_secs(1)).await;
                two.cluster.core.coordinator.register(member.clone(), soon()).await.unwrap();
            }
            sleep(Duration::from_secs(20)).await;
            for name in &names {
                assert!(two.look_up(name, soon()).await.is_present(), "{name}");
            }
            assert_eq!(one.read("kv/held", soon()).await.as_deref(), Some(&b"held"[..]));
            assert_eq!(one.cluster.core.gone.lock().len(), 0);
            for name in &names {
                one.unlink(name, Stamp(3), soon()).await.unwrap();
                two.look_up(name, soon()).await;
            }
        }
        one.cluster.close().await;
        two.cluster.close().await;
    });
}

#[test]
fn a_start_with_the_name_of_who_is_gone_is_met_as_any_other() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(3), Embedded::new(ClusterId(7)));
        let one = start(1, &network, &coordinator).await;
        for _ in 0..3 {
            let two = start(2, &network, &coordinator).await;
            sleep(Duration::from_secs(3)).await;
            two.write("kv/a", b"bytes", Stamp(5), soon()).await.unwrap();
            assert_eq!(one.read("kv/a", soon()).await.as_deref(), Some(&b"bytes"[..]));
            assert_eq!(two.look_up("kv/b", soon()).await, super::host::Seen::Absent);
            one.write("kv/b", b"other", Stamp(6), soon()).await.unwrap();
            assert!(two.look_up("kv/b", soon()).await.is_present(), "it was told");
            one.unlink("kv/b", Stamp(7), soon()).await.unwrap();
            two.cluster.core.coordinator.leave(soon()).await.unwrap();
            network.kill(two.cluster.core.me);
            two.cluster.close().await;
            sleep(2 * GRACE).await;
            assert_eq!((one.cluster.core.peers.lock().len(), one.cluster.core.gone.lock().len()), (0, 1));
        }
        assert!(tasks_of(&one.cluster.core) < 20);
        one.cluster.close().await;
    });
}

#[test]
fn who_is_gone_is_lent_nothing_and_has_left_if_it_said_so() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(4), Embedded::new(ClusterId(7)));
        let one = start(1, &network, &coordinator).await;
        let two = start(2, &network, &coordinator).await;
        sleep(Duration::from_secs(3)).await;
        let start = two.cluster.core.me;
        two.cluster.leave(soon()).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        network.kill(start);
        two.cluster.close().await;
        sleep(2 * GRACE).await;
        let core = &one.cluster.core;
        assert_eq!(core.peers.lock().len(), 0);
        assert!(core.is_gone(start));
        assert!(!core.is_gone(PeerId { incarnation: Incarnation(start.incarnation.0 + 1), ..start }));
        let report = core.drain(MemberId(2), DrainOrder::Ask).await.unwrap();
        assert_eq!(report.phase, DrainPhase::Left);
        one.cluster.close().await;
    });
}

#[test]
fn who_is_back_just_before_what_it_held_is_forgotten_keeps_that_and_is_heard() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(8), Embedded::new(ClusterId(7)));
        let hosts = [start(1, &network, &coordinator).await, start(2, &network, &coordinator).await];
        settled(&hosts).await;
        let (one, two) = (&hosts[0], &hosts[1]);
        let (core, start) = (&one.cluster.core, two.cluster.core.me);
        let name = name_served(&hosts, |owners| owners.primary == core.me.member);
        two.write(&name, b"before", Stamp(5), soon()).await.unwrap();
        {
            // As who was lost for so long that this is just about to begin.
            let (mut peers, now) = (core.peers.lock(), core.now());
            let peer = peers.get_mut(&start.member).unwrap();
            (peer.link, peer.lost_at, peer.is_dropped) = (Link::Down(now), Some(now), true);
        }
        core.link_up(start);
        Arc::clone(core).drop_member(start).await;
        assert_eq!(core.owner.lock().copies_by_member().get(&start.member), Some(&1));
        two.write(&name, b"since", Stamp(6), soon()).await.unwrap();
        assert_eq!(one.read(&name, soon()).await.as_deref(), Some(&b"since"[..]));
    });
}

#[test]
fn what_a_member_held_is_forgotten_when_it_leaves_and_ends_at_once() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(5), Embedded::new(ClusterId(7)));
        let one = start(1, &network, &coordinator).await;
        let two = start(2, &network, &coordinator).await;
        sleep(Duration::from_secs(3)).await;
        two.write("kv/a", b"bytes", Stamp(5), soon()).await.unwrap();
        two.cluster.leave(soon()).await.unwrap();
        network.kill(two.cluster.core.me);
        two.cluster.close().await;
        sleep(Duration::from_secs(1)).await;
        assert!(one.cluster.core.peers.lock()[&MemberId(2)].has_left, "it heard that");
        assert_eq!(one.cluster.core.owner.lock().copies_by_member().get(&MemberId(2)), None);
        one.cluster.close().await;
    });
}

#[test]
fn a_member_does_not_wait_for_long_for_one_that_does_not_hear_that_it_leaves() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(6), Embedded::new(ClusterId(7)));
        let one = start(1, &network, &coordinator).await;
        let two = start(2, &network, &coordinator).await;
        sleep(Duration::from_secs(3)).await;
        network.part(one.cluster.core.me, two.cluster.core.me);
        let before = tokio::time::Instant::now();
        two.cluster.leave(soon()).await.unwrap();
        let took = before.elapsed();
        assert!(took <= Duration::from_millis(1100), "{took:?}");
        two.cluster.close().await;
        one.cluster.close().await;
    });
}

#[test]
fn who_forgets_much_that_an_earlier_start_of_another_held_did_not_stand_still() {
    in_virtual_time(async {
        let (network, coordinator) = (Network::new(7), Embedded::new(ClusterId(7)));
        let mut config = config(1);
        // Far less than forgetting takes.
        (config.timings.tick, config.timings.silence) = (Duration::from_millis(1), Duration::from_millis(10));
        let host = start_as(config, &network, Arc::new(coordinator.another())).await;
        let core = &host.cluster.core;
        let start = |incarnation| PeerId { member: MemberId(2), incarnation: Incarnation(incarnation) };
        let (size, checksum) = (ByteCount(1), None);
        let facts =
            Facts::File(FileFacts { size, mtime_ns: 0, mode: 0o644, uid: 0, gid: 0, checksum, replicas: 1 });
        let copies = || core.owner.lock().sizes().entries;
        sleep(Duration::from_millis(10)).await;
        let stalls = core.counters.stalls.get();
        {
            let (mut owner, now) = (core.owner.lock(), core.now());
            owner.meet(start(1));
            for number in 0..65_536 {
                let path = format!("kv/{number}").into_bytes();
                owner.change(start(1), &Change::Publish { number, path, proposed: Stamp(1), facts }, now);
            }
            owner.meet(start(2));
            owner.change(start(2), &Change::Announced { view: 1 }, now);
        }
        assert_eq!(copies(), 65_536);
        sleep(Duration::from_millis(500)).await;
        assert_eq!((copies(), core.counters.stalls.get()), (0, stalls));
        host.cluster.close().await;
    });
}
