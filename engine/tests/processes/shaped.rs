//! Two engines on two hosts, with a cable that is narrow, lossy, cut or pulled: every request ends once and by its
//! deadline, nothing wrong arrives, and the engines find each other again by themselves.

use std::time::{Duration, Instant};

use crate::network::{Family, Network};
use crate::orders::{Load, Outcome, Setup};
use crate::peer::{Peer, load, next_id, setup};

/// Where peers are to be given up, and where a busy machine is not to do that.
const QUICK: u64 = 2_000;
const SLOW: u64 = 10_000;

/// An engine on each host, the first connected to the second, who give each other up after `silence_ms`.
fn pair(network: &Network, family: Family, silence_ms: u64) -> (Peer, Peer) {
    let of = |listen: &str| Setup { silence_ms, ..setup(next_id(), &[listen], "tcp") };
    let mut one = Peer::start_on(&network.one, of(&family.listen(1)));
    let two = Peer::start_on(&network.two, of(&family.listen(2)));
    if family == Family::Both {
        let at = two.descriptor_at(&[format!("10.77.0.2:{}", two.port())]);
        assert_eq!(one.try_connect(&at, Duration::from_secs(20)), Ok(()));
    } else {
        one.connect(&two);
    }
    (one, two)
}

/// What comes of a load while `harm` is done and until `mend` has been survived.
fn through(network: &Network, harm: impl FnOnce() -> Option<()>, mend: impl FnOnce()) -> Option<Outcome> {
    let (mut one, mut two) = pair(network, Family::V4, QUICK);
    let hasty = |target: &Peer| Load { deadline_ms: 3_000, ..load(&[target]) };
    one.load(hasty(&two));
    // The other way too: the second has no address of the first, and uses the link that stands.
    let back = Load { seed: 2, ..hasty(&one) };
    two.connect(&one);
    two.load(back);
    one.wait_for_success(20);
    two.wait_for_success(20);
    harm()?;
    one.wait_for_failure(10);
    two.wait_for_failure(10);
    mend();
    one.wait_for_success(20);
    two.wait_for_success(20);
    let (outcome, other) = (one.stop_load(), two.stop_load());
    other.expect_sound();
    outcome.expect_sound();
    for peer in [&mut one, &mut two] {
        // A request ends for who asked a moment before it is counted as ended.
        let deadline = Instant::now() + Duration::from_secs(10);
        while peer.status().engine.operations > 0 {
            assert!(Instant::now() < deadline, "operations never end: {:?}", peer.status().engine);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    println!("{outcome:?}\n{other:?}");
    Some(outcome)
}

/// What comes of a load on a cable that was made worse in the beginning.
fn over(worse: impl FnOnce(&Network) -> Option<()>, load_of: impl FnOnce(&Peer) -> Load) -> Option<Outcome> {
    let network = Network::new(Family::V4)?;
    worse(&network)?;
    let (mut one, two) = pair(&network, Family::V4, SLOW);
    one.load(load_of(&two));
    one.wait_for_success(60);
    let outcome = one.stop_load();
    outcome.expect_sound();
    assert!(outcome.verified > 0, "{outcome:?}");
    println!("{outcome:?}");
    Some(outcome)
}

fn patient(two: &Peer) -> Load {
    Load { deadline_ms: 20_000, depth: 2, ..load(&[two]) }
}

#[test]
fn a_narrow_cable_delays_and_fails_nothing() {
    let narrow = |network: &Network| {
        for host in [&network.one, &network.two] {
            host.try_run("tc qdisc add dev eth0 root tbf rate 50mbit burst 32kb latency 20ms")
                .inspect_err(|reason| println!("skipped: {reason}"))
                .ok()?;
        }
        Some(())
    };
    let Some(outcome) = over(narrow, patient) else { return };
    assert_eq!(outcome.errors.len(), 0, "{outcome:?}");
}

#[test]
fn packets_that_are_lost_now_and_then_fail_nothing() {
    let lossy = |network: &Network| {
        for host in [&network.one, &network.two] {
            host.drop_arriving("numgen random mod 100 < 2 drop")?;
        }
        Some(())
    };
    let Some(outcome) = over(lossy, patient) else { return };
    assert_eq!(outcome.errors.len(), 0, "{outcome:?}");
}

#[test]
fn packets_that_are_late_lost_doubled_and_out_of_order_leave_the_bytes_right() {
    let bad = |network: &Network| {
        for host in [&network.one, &network.two] {
            host.try_run(
                "tc qdisc add dev eth0 root netem delay 10ms 5ms loss 1% duplicate 1% reorder 10% 50%",
            )
            .inspect_err(|reason| println!("skipped: {reason} (this kernel has no netem)"))
            .ok()?;
        }
        Some(())
    };
    let Some(outcome) = over(bad, patient) else { return };
    assert_eq!(outcome.errors.len(), 0, "{outcome:?}");
}

#[test]
fn a_silent_partition_ends_requests_by_their_deadline_and_heals() {
    let Some(network) = Network::new(Family::V4) else { return };
    let cut = || network.one.drop_arriving("drop").and_then(|()| network.two.drop_arriving("drop"));
    let join = || [&network.one, &network.two].into_iter().for_each(|host| host.drop_nothing());
    through(&network, cut, join);
}

#[test]
fn a_host_that_hears_nothing_but_is_heard_heals_too() {
    let Some(network) = Network::new(Family::V4) else { return };
    through(&network, || network.one.drop_arriving("drop"), || network.one.drop_nothing());
}

#[test]
fn connections_that_are_reset_are_made_again() {
    let Some(network) = Network::new(Family::V4) else { return };
    let reset = || network.two.drop_arriving("meta l4proto tcp reject with tcp reset");
    through(&network, reset, || network.two.drop_nothing());
}

#[test]
fn a_cable_that_is_pulled_and_plugged_in_again_is_used_again() {
    let Some(network) = Network::new(Family::V4) else { return };
    let pull = || {
        network.two.run("ip link set eth0 down");
        Some(())
    };
    through(&network, pull, || network.two.run("ip link set eth0 up"));
}

#[test]
fn a_host_with_addresses_of_one_family_or_of_both_is_served() {
    for family in [Family::V6, Family::Both] {
        let Some(network) = Network::new(family) else { return };
        let (mut one, mut two) = pair(&network, family, SLOW);
        let before = two.status().descriptors;
        if family == Family::Both {
            // By the other family, to the same peer: nothing new is made.
            let at = two.descriptor_at(&[format!("[fd77::2]:{}", two.port())]);
            assert_eq!(one.try_connect(&at, Duration::from_secs(20)), Ok(()));
        }
        one.load(load(&[&two]));
        one.wait_for_success(50);
        let outcome = one.stop_load();
        outcome.expect_sound();
        assert_eq!(outcome.errors.len(), 0, "{family:?}: {outcome:?}");
        assert_eq!(two.status().descriptors, before, "{family:?}: other connections were made");
    }
}
