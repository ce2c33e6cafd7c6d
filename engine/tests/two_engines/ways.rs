//! Ways that are in trouble, and what goes by others meanwhile.

use tidefs_engine::transport::tcp::TcpConfig;

use super::*;
use crate::moody::{Mood, all_moody, moody, moody_with};

/// Waits until `holds`; panics after long.
pub(crate) fn until(holds: &dyn Fn() -> bool) {
    let limit = soon();
    while !holds() {
        assert!(Instant::now() < limit, "what was waited for did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        link: LinkConfig { listen: vec!["127.0.0.1:0".parse().unwrap()], ..LinkConfig::default() },
        ..EngineConfig::new(PeerId { member: member(), incarnation: Incarnation(1) })
    }
}

/// One operation fails, and seven more want to go the same way: when it may be tried again, the first of them tries
/// it, and the others follow at once, not each a cool-down after the one before it.
#[test]
fn a_way_that_works_again_is_used_by_all_who_wait_for_it() {
    const FAILS: u64 = 8;
    let runtime = runtime();
    let there = end(&runtime, SOCKETS);
    let faults = Faults::new(FaultOptions { fail_every: FAILS, ..FaultOptions::default() });
    let here = start_with(&runtime, config(), Access::ReadWrite, |parts| faulty_tcp(parts, &faults));
    here.connect(&runtime, &there);
    let read = here.request(&there, Direction::Read, 0, 0, 4096);
    let submit = |count| here.engine.submit(Batch::new(vec![read; count], soon())).wait();
    (1..FAILS).for_each(|_| submit(1).into_result().unwrap());
    // The one that fails. No time is left to try it again.
    let brief = Batch::new(vec![read], Instant::now() + Duration::from_millis(50));
    assert!(here.engine.submit(brief).wait().into_result().is_err());
    let report = submit(7);
    assert!(report.elapsed < Duration::from_millis(450), "7 cool-downs take 700 ms: {:?}", report.elapsed);
    report.into_result().unwrap();
}

/// Three of four operations fail at once, for longer than any count of attempts would last: each is tried until it is
/// through.
#[test]
fn what_fails_is_tried_again_until_its_deadline() {
    let runtime = runtime();
    let there = end(&runtime, SOCKETS);
    let faults = Faults::new(FaultOptions { seed: 7, failure: 0.75, ..FaultOptions::default() });
    let here = start_with(&runtime, config(), Access::ReadWrite, |parts| faulty_tcp(parts, &faults));
    here.connect(&runtime, &there);
    let read = here.request(&there, Direction::Read, 0, 0, 4096);
    for _ in 0..3 {
        here.engine.submit(Batch::new(vec![read; 2], soon())).wait().into_result().unwrap();
    }
}

/// What one host's `tcp` takes at once, another's may not.
#[test]
fn a_peer_that_takes_shorter_operations_is_sent_no_longer_ones() {
    let runtime = runtime();
    let start = |longest| {
        let tcp = TcpConfig { operation_bytes_max: longest, ..TcpConfig::default() };
        start_with(&runtime, config(), Access::ReadWrite, |parts| {
            Ok(vec![
                TransportName::Tcp.open(&TransportOptions { tcp, ..TransportOptions::default() }, parts)?,
            ])
        })
    };
    let ends = (start(ByteCount::mib(1)), start(ByteCount(64 << 10)));
    for (here, there) in [(&ends.0, &ends.1), (&ends.1, &ends.0)] {
        here.connect(&runtime, there);
        for direction in [Direction::Read, Direction::Write] {
            let request = here.request(there, direction, 0, 0, LENGTH);
            here.engine.submit(Batch::new(vec![request], soon())).wait().into_result().unwrap();
        }
    }
}

/// What came back from one transport is tried by another that takes less at once.
#[test]
fn a_slice_that_is_too_long_for_the_next_way_is_cut_for_it() {
    let runtime = runtime();
    let faults = Faults::new(FaultOptions { failure: 1.0, ..FaultOptions::default() });
    let start = || {
        start_with(&runtime, config(), Access::ReadWrite, |parts| {
            let shm = TransportName::Shm.open(&TransportOptions::default(), parts)?;
            let tcp = TransportName::Tcp.open(&TransportOptions::default(), parts)?;
            Ok(vec![faulty(shm, &faults, &parts.runtime), tcp])
        })
    };
    let (here, there) = (start(), start());
    here.connect(&runtime, &there);
    // Shared memory takes it in one piece, whose end is not worth one of its own.
    let length = (1 << 20) + 4096;
    let written = bytes(3, 8192);
    assert!(there.region.write_at(length - 8192, &written));
    let read = here.request(&there, Direction::Read, 0, 0, length);
    here.engine.submit(Batch::new(vec![read], soon())).wait().into_result().unwrap();
    assert!(here.holds(length - 8192, &written));
    // Each part is taken off the books, just after the batch has ended.
    until(&|| here.engine.status().operations == 0);
}

/// The kernel takes the connection, and nobody says anything: the attempt ends long before the deadline, and says where.
#[test]
fn an_address_that_does_not_answer_is_named_while_the_deadline_lies_ahead() {
    let runtime = runtime();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let id = PeerId { member: member(), incarnation: Incarnation(1) };
    let peer = PeerDescriptor { id, addresses: vec![address], transports: vec![SOCKETS.to_owned()] };
    let (short, long) = (Duration::from_millis(200), Duration::from_secs(60));
    let deadline = || Instant::now() + Duration::from_secs(120);
    // Of the engine and of its links.
    for (connect_timeout, of_links) in [(short, long), (short, short), (long, short)] {
        let link = LinkConfig { connect_timeout: of_links, ..config().link };
        let config = EngineConfig { link, connect_timeout, ..config() };
        let here = start_with(&runtime, config, Access::ReadWrite, |parts| {
            Ok(vec![TransportName::Tcp.open(&TransportOptions::default(), parts)?])
        });
        let read = Request {
            direction: Direction::Read,
            local: LocalPlace { region: here.region_id, offset: 0 },
            remote: RemotePlace { peer: id, region: RegionId(1), offset: 0 },
            length: ByteCount(4096),
        };
        let connected = runtime.block_on(here.engine.connect(&peer, deadline()));
        let submitted = here.engine.submit(Batch::new(vec![read], deadline())).wait().into_result();
        for refused in [connected.unwrap_err(), submitted.unwrap_err()] {
            assert!(matches!(refused, Error::Unreachable { .. }), "{refused}");
            assert!(refused.to_string().contains(&address.to_string()), "{refused}");
        }
        assert_eq!(here.engine.metrics().deadlines_passed_total.get(), 0);
    }
}

#[test]
fn what_falls_back_is_counted_by_the_slice_and_a_peer_that_is_out_of_reach_is_no_failure() {
    let runtime = runtime();
    for is_out_of_reach in [false, true] {
        let mood = Arc::new(Mood { is_out_of_reach: is_out_of_reach.into(), ..Mood::default() });
        let (here, there) = (moody(&runtime, &mood), moody(&runtime, &Arc::default()));
        here.connect(&runtime, &there);
        let metrics = here.engine.metrics();
        assert_eq!(metrics.slices_fallen_back_total.get(), 0, "nothing was moved");
        let read = here.request(&there, Direction::Read, 0, 0, 1 << 20);
        here.engine.submit(Batch::new(vec![read], soon())).wait().into_result().unwrap();
        // Sockets move 256 KiB at once.
        let fallen_back = if is_out_of_reach { 0 } else { 4 };
        assert_eq!(metrics.slices_fallen_back_total.get(), fallen_back);
        assert_eq!(metrics.connects_failed_total.get() == 0, is_out_of_reach);
    }
}

/// Memory that the better one does not take at one of the two ends, for want of a right or of room: for as long as that lasts,
/// all of it goes by the other, which is open all the time.
#[test]
fn what_goes_by_the_next_best_as_the_better_has_not_the_memory_is_counted() {
    let runtime = runtime();
    let refuses = || Mood { refuses_regions: true.into(), needs_regions: true.into(), ..Mood::default() };
    for (is_at_peer, is_out_of_reach) in [(true, false), (false, false), (true, true)] {
        let here = Mood { is_out_of_reach: is_out_of_reach.into(), ..Mood::default() };
        let moods = if is_at_peer { (here, refuses()) } else { (refuses(), here) };
        let here = moody(&runtime, &Arc::new(moods.0));
        let there = moody(&runtime, &Arc::new(moods.1));
        here.connect(&runtime, &there);
        // On a busy machine sockets are connected beside it, and first.
        let state = || here.engine.status().peers[0].ways[0].state.clone();
        until(&|| !is_out_of_reach || state().starts_with("not possible"));
        let read = here.request(&there, Direction::Read, 0, 0, 4096);
        // The first asks the peer what it reads, and the second goes at once.
        for count in 1..=2 {
            here.engine.submit(Batch::new(vec![read], soon())).wait().into_result().unwrap();
            let wanted = if is_out_of_reach { 0 } else { count };
            assert_eq!(here.engine.metrics().slices_fallen_back_total.get(), wanted);
        }
    }
}

/// Who asks does not wait for it, and who gives up after 100 ms does not have the next one begin anew.
#[test]
fn a_better_way_that_hangs_while_it_is_connected_holds_nobody_up() {
    let runtime = runtime();
    let mood = Arc::new(Mood::default());
    let (here, there) = (moody(&runtime, &mood), moody(&runtime, &Arc::default()));
    here.connect(&runtime, &there);
    let read = here.request(&there, Direction::Read, 0, 0, 4096);
    here.engine.submit(Batch::new(vec![read], soon())).wait().into_result().unwrap();
    mood.hangs.store(true, Ordering::Relaxed);
    // Its cool-down is over.
    std::thread::sleep(Duration::from_millis(300));
    let before = mood.connects.load(Ordering::Relaxed);
    let mut given_up = 0_usize;
    for _ in 0..20 {
        let handle = here.engine.submit(Batch::new(vec![read], soon()));
        match handle.wait_for(Duration::from_millis(100)) {
            Ok(report) => report.into_result().unwrap(),
            Err(handle) => {
                given_up += 1;
                drop(handle);
            }
        }
    }
    assert!(given_up < 5, "{given_up} of 20 took more than 100 ms, by a way that was ready");
    assert_eq!(mood.connects.load(Ordering::Relaxed) - before, 1, "one attempt hangs still");
}

/// Nothing stands yet: the next best is connected beside it, before the one attempt, of 60 s, is over.
#[test]
fn a_best_way_that_hangs_from_the_first_holds_nobody_up_for_long() {
    let runtime = runtime();
    let mood = Arc::new(Mood { hangs: true.into(), ..Mood::default() });
    let patient = EngineConfig { connect_timeout: Duration::from_secs(60), ..config() };
    let (here, there) = (moody_with(&runtime, &mood, patient), moody(&runtime, &Arc::default()));
    let began = Instant::now();
    here.connect(&runtime, &there);
    let read = here.request(&there, Direction::Read, 0, 0, 4096);
    here.engine.submit(Batch::new(vec![read], soon())).wait().into_result().unwrap();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(mood.connects.load(Ordering::Relaxed), 1, "it hangs still");
    let metrics = here.engine.metrics();
    assert_eq!((metrics.connects_failed_total.get(), metrics.slices_fallen_back_total.get()), (0, 1));
}

/// One end whose transport of this mood connects to the other, which is gone.
fn connecting_while_the_link_is_lost(runtime: &Runtime, mood: &Arc<Mood>) -> (End, PeerId) {
    mood.hangs.store(true, Ordering::Relaxed);
    let (here, there) = (moody(runtime, mood), moody(runtime, &Arc::default()));
    let descriptor = there.engine.descriptor();
    runtime.spawn({
        let engine = here.engine.clone();
        async move { engine.connect(&descriptor, soon()).await }
    });
    until(&|| mood.connects.load(Ordering::Relaxed) == 1);
    runtime.block_on(there.engine.close());
    until(&|| mood.forgotten.load(Ordering::SeqCst) == 1);
    (here, there.id)
}

/// Else what it was told meanwhile would stay with it for ever.
#[test]
fn a_transport_that_connects_while_the_link_is_lost_is_told_to_forget_the_peer_again() {
    let (runtime, mood) = (runtime(), Arc::default());
    let _here = connecting_while_the_link_is_lost(&runtime, &mood);
    mood.go_on.notify_one();
    until(&|| mood.forgotten.load(Ordering::SeqCst) == 2);
}

/// Else it would be taken back at once.
#[test]
fn nothing_is_granted_over_a_new_link_while_the_peer_is_forgotten_because_of_the_old_one() {
    let (runtime, mood) = (runtime(), Arc::default());
    let (here, id) = connecting_while_the_link_is_lost(&runtime, &mood);
    mood.forgets_slowly.store(true, Ordering::Relaxed);
    mood.go_on.notify_one();
    until(&|| mood.forgotten.load(Ordering::SeqCst) == 2);
    let back = start(&runtime, id, "127.0.0.1:0", SOCKETS, Access::Read);
    back.connect(&runtime, &here);
    assert!(!mood.is_forgetting.load(Ordering::SeqCst));
}

/// One may wait for a peer, as shared memory does for one that was stopped in a copy: nobody reads by another meanwhile, nor
/// when whoever waited has given that up.
#[test]
fn a_region_is_withdrawn_from_all_transports_at_once() {
    let runtime = runtime();
    let mood = Arc::new(Mood { keeps_regions: true.into(), ..Mood::default() });
    let (here, there) = (moody(&runtime, &Arc::default()), moody(&runtime, &mood));
    here.connect(&runtime, &there);
    let read = here.request(&there, Direction::Read, 0, 0, 4096);
    let submit = || here.engine.submit(Batch::new(vec![read], soon())).wait().into_result();
    submit().unwrap();
    let withdrawn = runtime.block_on(async {
        tokio::time::timeout(Duration::from_millis(50), there.engine.unregister(there.region_id)).await
    });
    assert!(withdrawn.is_err(), "the better one waits");
    assert_eq!(submit(), Err(Error::NoSuchRegion { region: there.region_id }));
}

/// Shared memory waits for a peer that was stopped in a copy.
#[test]
fn a_transport_that_does_not_end_keeps_no_other_from_being_closed() {
    let runtime = runtime();
    let moods = [false, true, false].map(|never| Mood { never_closes: never.into(), ..Mood::default() });
    let moods = moods.map(Arc::new);
    let here = all_moody(&runtime, &moods);
    let engine = here.engine.clone();
    let closing = runtime.spawn(async move { engine.close().await });
    until(&|| moods.iter().all(|mood| mood.closed.load(Ordering::SeqCst) == 1));
    assert!(!closing.is_finished());
    // Whoever waited for it gives that up, and who comes later goes on.
    closing.abort();
    moods[1].never_closes.store(false, Ordering::Relaxed);
    let closed =
        runtime.block_on(async { tokio::time::timeout_at(soon().into(), here.engine.close()).await });
    assert!(closed.is_ok());
}

#[test]
fn a_peer_that_went_is_forgotten_once_nothing_holds_it_and_known_again_when_it_is_back() {
    by_each_transport(|runtime, transports| {
        let here = end(runtime, transports);
        let known = || here.engine.status().peers.len();
        let id = |incarnation| PeerId { member: MemberId(1 << 32), incarnation: Incarnation(incarnation) };
        let read = |there: &End| {
            let batch = Batch::new(vec![here.request(there, Direction::Read, 0, 0, 4096)], soon());
            here.engine.submit(batch).wait().into_result()
        };
        for incarnation in 1..4 {
            let there = start(runtime, id(incarnation), "127.0.0.1:0", transports, Access::ReadWrite);
            assert!(there.region.write_at(0, &bytes(3, 4096)));
            here.connect(runtime, &there);
            read(&there).unwrap();
            here.engine.forget(there.id);
            assert_eq!(known(), 1, "it is connected");
            read(&there).unwrap();
            runtime.block_on(there.engine.close());
            until(&|| !here.engine.status().peers[0].is_linked);
            here.engine.forget(id(incarnation - 1));
            assert_eq!(known(), 1, "that was an earlier one");
            // What ends with the link may hold it for a moment.
            until(&|| {
                here.engine.forget(there.id);
                known() == 0
            });
            assert!(read(&there).is_err());
            here.engine.forget(there.id);
        }
    });
}

/// The peer listens by IPv4 alone, and has dialled by IPv6.
#[test]
fn a_peer_that_has_dialled_by_a_family_that_it_does_not_listen_on_is_read_from() {
    let runtime = runtime();
    let id = || PeerId { member: member(), incarnation: Incarnation(1) };
    let here = start(&runtime, id(), "[::1]:0", SOCKETS, Access::ReadWrite);
    let there = start(&runtime, id(), "0.0.0.0:0", SOCKETS, Access::Read);
    assert!(there.region.write_at(0, &bytes(3, 4096)));
    there.connect(&runtime, &here);
    let read = here.request(&there, Direction::Read, 0, 0, 4096);
    here.engine.submit(Batch::new(vec![read], soon())).wait().into_result().unwrap();
    assert!(here.holds(0, &bytes(3, 4096)));
}

/// The peer has dialled by a way that ends, and is dialled where it said that it listens.
#[test]
fn a_peer_that_has_dialled_is_dialled_when_its_link_is_gone() {
    let runtime = runtime();
    let (here, there) = (end(&runtime, "tcp"), end(&runtime, "tcp"));
    let target = here.engine.addresses()[0];
    let (address, way) = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let way = tokio::spawn(async move {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = tokio::net::TcpStream::connect(target).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        });
        (address, way)
    });
    let ask = || runtime.block_on(here.engine.call(there.id, FIRST_FREE_CHANNEL, vec![1], soon()));
    assert!(matches!(ask(), Err(Error::PeerGone { .. })), "nobody has said where it is");
    let links =
        PeerDescriptor { addresses: vec![address], transports: Vec::new(), ..here.engine.descriptor() };
    // They have no transport in common by that, but a link.
    assert!(runtime.block_on(there.engine.connect(&links, soon())).is_err());
    assert_eq!(ask(), Ok(vec![1]));
    way.abort();
    until(&|| !here.engine.status().peers[0].is_linked);
    assert_eq!(ask(), Ok(vec![1]));
}
