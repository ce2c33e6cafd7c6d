//! Daemons that start before the address of their coordinator is one of any host: one of them coordinates when it comes up, and
//! the others follow.
//!
//! How: in a network of its own for each test, which needs root; without, it says that it was skipped.

use std::process::Command;

use nix::sched::{CloneFlags, unshare};

use super::*;

/// An address that no host of a test has until it is given one.
const LATE: &str = "10.77.1.1:7401";

fn ip(arguments: &str) {
    let ran = Command::new("ip").args(arguments.split(' ')).output().expect("ip, of the package iproute2");
    assert!(ran.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// From now on [`LATE`] is an address of the network that this thread is in.
fn bring_up_the_address() {
    ip("address add 10.77.1.1/32 dev lo");
}

/// Runs `test` in a network of its own, which nothing but its loopback is in. Says so where that cannot be had.
fn in_a_network_of_its_own<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send) {
    let run = || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            eprintln!("SKIPPED: no network namespace can be made, which needs root: {error}");
            return;
        }
        ip("link set lo up");
        // Its threads are in the network that this one is in.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    };
    // A thread of its own: the next test of this one is to be in the network of all.
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap();
}

/// The places of two daemons of [`LATE`].
fn two_late_places() -> [(tempfile::TempDir, HostedSettings); 2] {
    [place(), place()].map(|(directory, settings)| {
        let address = LATE.to_owned();
        (directory, HostedSettings { address, ..settings })
    })
}

#[test]
fn when_the_address_comes_up_after_the_daemons_one_of_them_coordinates_and_the_others_join() {
    in_a_network_of_its_own(|| async {
        let [(_one, one), (_two, two)] = two_late_places();
        let early = [&one, &two].map(handle);
        for waits in &early {
            is_reached(&**waits, false).await;
            let shortly = Instant::now() + Duration::from_millis(100);
            assert!(waits.begin(MemberId(1), shortly).await.unwrap_err().is_away());
        }
        bring_up_the_address();
        let mut members = Vec::new();
        for (id, joins) in [1, 2].into_iter().zip(&early) {
            members.push(join(&**joins, id).await);
        }
        let late = handle(&HostedSettings { file: one.file.with_file_name("none.json"), ..one.clone() });
        members.push(join(&*late, 3).await);
        for joined in [&*early[0], &*early[1], &*late] {
            let all = shows(&mut joined.views(), "all three", |view| view.members().len() == 3).await;
            assert_eq!(as_registered(&all), members);
        }
        let kept = [&one, &two].map(|settings| settings.file.exists());
        assert!(kept[0] != kept[1], "one of them keeps what is agreed on: {kept:?}");
    });
}

#[test]
fn who_has_followed_a_keeper_does_not_take_its_place_when_it_could_listen_there() {
    in_a_network_of_its_own(|| async {
        let [(_one, one), (_two, two)] = two_late_places();
        let follower = handle(&two);
        is_reached(&*follower, false).await;
        // The follower does not run between these two lines.
        bring_up_the_address();
        let keeper = handle(&one);
        is_reached(&*follower, true).await;
        let member = join(&*follower, 2).await;
        drop(keeper);
        is_reached(&*follower, false).await;
        // Long enough for several attempts to reach the keeper that is gone.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!two.file.exists() && !matches!(follower.reachability(), Reachability::Reached));
        let keeper = handle_again(&one).await;
        // Its lease may run out before it is back.
        is_reached(&*follower, true).await;
        let view = shows(&mut keeper.views(), "the member", |view| view.members().len() == 1).await;
        assert_eq!(as_registered(&view), [member]);
    });
}

#[test]
fn who_gets_the_address_and_cannot_read_what_was_agreed_on_says_so_and_goes_on_when_it_can() {
    in_a_network_of_its_own(|| async {
        let [(_one, one), _] = two_late_places();
        std::fs::write(&one.file, "not ours").unwrap();
        let waits = handle(&one);
        is_reached(&*waits, false).await;
        bring_up_the_address();
        let end = soon();
        while !is_reached(&*waits, false).await.contains("coordinator.json") {
            assert!(Instant::now() < end, "{:?}", waits.reachability());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(std::fs::read(&one.file).unwrap(), b"not ours");
        std::fs::remove_file(&one.file).unwrap();
        join(&*waits, 1).await;
        assert!(one.file.exists());
    });
}
