//! Peers that die or stand still in the middle of transfers.

use std::time::Duration;

use nix::sys::signal::Signal;
use tidefs_engine::types::{Incarnation, PeerId};

use crate::orders::{Load, Setup, Ways};
use crate::peer::{Peer, load, next_id, setup};

const LOCAL: &str = "127.0.0.1:0";

/// The transports that this crate brings; what libfabric brings is tested elsewhere.
fn by_each_transport(fact: impl Fn(&str)) {
    ["tcp", "shm", "shm,tcp"].into_iter().for_each(fact);
}

fn heavy(target: &Peer, ways: Ways) -> Load {
    Load { ways, depth: 2, batch_bytes_max: 2 << 20, ..load(&[target]) }
}

#[test]
fn a_peer_killed_in_the_middle_ends_each_request_once_and_its_successor_serves() {
    by_each_transport(|transports| {
        for ways in [Ways::Reads, Ways::Writes] {
            let mut near = Peer::start(setup(next_id(), &[LOCAL], transports));
            let mut far = Peer::start(setup(next_id(), &[LOCAL], transports));
            near.connect(&far);
            near.load(heavy(&far, ways));
            near.wait_for_success(20);
            far.kill();
            near.wait_for_failure(20);
            let outcome = near.stop_load();
            outcome.expect_sound();
            // It comes back, on the same port, as another incarnation.
            let id = PeerId { incarnation: Incarnation(2), ..far.setup.id };
            let listen = vec![format!("127.0.0.1:{}", far.port()).parse().unwrap()];
            let again = Peer::start(Setup { id, listen, ..far.setup.clone() });
            near.connect(&again);
            near.load(heavy(&again, ways));
            near.wait_for_success(20);
            let outcome = near.stop_load();
            outcome.expect_sound();
            assert_eq!(outcome.errors.len(), 0, "{transports} {ways:?}: {outcome:?}");
        }
    });
}

#[test]
fn who_serves_outlives_peers_that_are_killed_while_they_move_its_bytes() {
    by_each_transport(|transports| {
        let mut hub = Peer::start(setup(next_id(), &[LOCAL], transports));
        let mut steady = Peer::start(setup(next_id(), &[LOCAL], transports));
        steady.connect(&hub);
        steady.load(heavy(&hub, Ways::Both));
        steady.wait_for_success(20);
        let before = hub.status();
        for _ in 0..3 {
            let mut victim = Peer::start(setup(next_id(), &[LOCAL], transports));
            victim.connect(&hub);
            victim.load(heavy(&hub, Ways::Both));
            victim.wait_for_success(20);
            victim.kill();
        }
        steady.wait_for_success(20);
        let outcome = steady.stop_load();
        outcome.expect_sound();
        assert_eq!(outcome.errors.len(), 0, "{transports}: {outcome:?}");
        // What the victims held here is let go, in time.
        let until = std::time::Instant::now() + crate::peer::PATIENCE;
        loop {
            let now = hub.status();
            if now.descriptors <= before.descriptors {
                break;
            }
            assert!(std::time::Instant::now() < until, "{transports}: {before:?} {now:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    });
}

#[test]
fn a_peer_that_stands_still_is_given_up_and_used_again_when_it_goes_on() {
    by_each_transport(|transports| {
        let quick = || Setup { silence_ms: 2_000, ..setup(next_id(), &[LOCAL], transports) };
        let (mut near, far) = (Peer::start(quick()), Peer::start(quick()));
        near.connect(&far);
        near.load(Load { deadline_ms: 1_000, ..heavy(&far, Ways::Both) });
        near.wait_for_success(20);
        far.signal(Signal::SIGSTOP);
        near.wait_for_failure(10);
        far.signal(Signal::SIGCONT);
        near.wait_for_success(20);
        let outcome = near.stop_load();
        outcome.expect_sound();
        println!("{transports}: {outcome:?}");
    });
}
